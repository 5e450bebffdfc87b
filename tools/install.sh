#!/usr/bin/env bash
# Installs what the tests need and the machine lacks: nothing is touched that is already there.
# Only what `make test` cannot do without is required; the rest is reported and left out. With --deep also what `make deep` runs
# another architecture with.
set -euo pipefail

packages=()
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || packages+=("$2")
}
need cmake cmake
need make make
need c++ g++
need python3 python3
need valgrind valgrind
need javac default-jdk-headless
need chromium chromium
if [[ "${1:-}" == --deep ]]; then
    need qemu-aarch64 qemu-user
    need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    need musl-gcc musl-tools
    need wine wine
    need xvfb-run xvfb
    need x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64
    need x86_64-w64-mingw32-g++ g++-mingw-w64-x86-64
    [[ -f /usr/aarch64-linux-gnu/lib/libc.so ]] || packages+=(libc6-dev-arm64-cross)
fi
need pkg-config pkg-config
# The module that makes virtual environments is a package of its own in Debian.
python3 -c 'import ensurepip' >/dev/null 2>&1 || packages+=(python3-venv)

if ((${#packages[@]})); then
    printf 'installing: %s\n' "${packages[*]}"
    as_root=()
    if ((EUID != 0)); then as_root=(sudo -n); fi
    if command -v apt-get >/dev/null 2>&1; then
        log=$(mktemp)
        if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install --yes --no-install-recommends "${packages[@]}"; } >"$log" 2>&1 </dev/null; then
            tail -n 20 "$log" >&2
        fi
        rm -f "$log"
    fi
fi

# The GPU tests run on Mesa's software Vulkan driver where there is no other; before Mesa 25 it is wrong (see
# src/backend/gpu/device/quirks.rs), so Debian 12 takes it from its backports, by way of a source list of this run alone.
if [[ "$(uname -s)" == Linux ]] && command -v apt-get >/dev/null 2>&1 && ! compgen -G '/usr/share/vulkan/icd.d/lvp_icd*' >/dev/null; then
    as_root=()
    if ((EUID != 0)); then as_root=(sudo -n); fi
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    log=$(mktemp) list=$(mktemp --suffix=.list) options=()
    if [[ "$suite" == bookworm ]]; then
        cat /etc/apt/sources.list >"$list" 2>/dev/null || true
        mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" 2>/dev/null | head -n 1)
        printf 'deb %s %s-backports main\n' "$mirror" "$suite" >>"$list"
        options=(-o "Dir::Etc::SourceList=$list" -t "$suite-backports")
    fi
    printf 'installing: mesa-vulkan-drivers libvulkan1\n'
    if ! { "${as_root[@]}" apt-get "${options[@]}" update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get "${options[@]}" install --yes --no-install-recommends mesa-vulkan-drivers libvulkan1; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        printf 'no software Vulkan driver could be installed: the GPU tests need one\n' >&2
    fi
    rm -f "$log" "$list"
fi

if command -v rustup >/dev/null 2>&1; then
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || rustup component add "$component" ||
            printf 'could not add %s\n' "$component"
    done
fi

missing=()
for command in cargo cc c++ cmake ctest python3; do
    command -v "$command" >/dev/null 2>&1 || missing+=("$command")
done
if ((${#missing[@]})); then
    printf 'these are needed and could not be installed: %s\n' "${missing[*]}" >&2
    exit 1
fi
printf '%s\n' "$(cargo --version)" "$(cmake --version | head -n 1)" "$(python3 --version)" "$(cc --version | head -n 1)"
