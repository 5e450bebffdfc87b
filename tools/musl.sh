#!/usr/bin/env bash
# The shared library for musl: built, looked at, and opened by programs of musl.
#
#   tools/musl.sh        needs rustup and musl-gcc; the rest comes from the registries of Debian, npm and Python, into target/musl
#
# For x86_64 a C program compiled by musl-gcc runs every case of tests/c, a panic behind the boundary among them, and Bun for musl
# runs the tests of the npm package that tools/js.sh compiled. For aarch64 the library is built without the GPU backend and looked
# at, and where there is qemu, the C program runs there too.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$root/target/musl
model=$root/target/fixtures/llama-f32.gguf
mkdir -p "$work"

skip() { printf 'skipped: %s\n' "$1"; }

# has_target TRIPLE
has_target() {
    rustup target add "$1" >/dev/null 2>&1 || { skip "Rust has no target $1 here, and it could not be added"; return 1; }
}

# debian ARCH PACKAGE...   unpacks packages of Debian 13, whose musl is the oldest that Bun runs on, into $work/ARCH
debian() {
    local arch=$1 state=$work/$1.apt suite mirror file key=/usr/share/keyrings/debian-archive-keyring.gpg
    shift
    command -v apt-get >/dev/null 2>&1 && test -f "$key" || return 1
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" | head -n 1)
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$work/$arch"
    printf 'deb [arch=%s signed-by=%s] %s trixie main\n' "$arch" "$key" "$mirror" >"$state/sources.list"
    : >"$state/status"
    local options=(-qq -o "Dir::Etc::SourceList=$state/sources.list" -o Dir::Etc::SourceParts=/nonexistent
        -o "Dir::State::Lists=$state/lists" -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache"
        -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o "APT::Sandbox::User=$(id -un)")
    apt-get "${options[@]}" update >/dev/null 2>&1 || return 1
    (cd "$state" && apt-get "${options[@]}" download "$@" >/dev/null 2>&1) || return 1
    for file in "$state"/*.deb; do dpkg -x "$file" "$work/$arch"; done
}

# build TRIPLE OPTION...   the library with the exports that only tests call: it needs musl's libc, which every process of musl has, and
# nothing else, exports what the header says, and loads where pages have 16 KiB
build() {
    local library=target/$1/debug/libelizainference.so needed
    cargo build --locked --lib --features testing --target "$@"
    needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    [[ "$needed" == libc.so ]] || { printf '%s needs %s, not libc.so alone\n' "$library" "${needed//$'\n'/, }" >&2; exit 1; }
    if readelf -lW "$library" | awk '$1 == "LOAD" && $NF != "0x4000"' | grep .; then
        printf '%s is not aligned for pages of 16 KiB\n' "$library" >&2
        exit 1
    fi
    sh tests/c/symbols.sh "$library" include/eliza_inference.h
    printf '%s: needs libc.so alone, exports what the header says\n' "$library"
}

# cases TRIPLE COMPILER RUNNER...   every case of tests/c on two models
cases() {
    local triple=$1 compiler=$2 passed=0 skipped=0
    shift 2
    read -ra compiler <<<"$compiler"
    "${compiler[@]}" -std=c99 -O1 -g -Wall -Wextra -Werror -pedantic -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE \
        -I tests/c -I include -o "$work/host-$triple" $(ls tests/c/*.c | grep -v '/peer')
    for model in target/fixtures/llama-f32.gguf models/demo.gguf; do
        for name in $(grep '^[A-Za-z]' tests/c/cases.txt); do
            local status=0
            ELIZA_LIBRARY=$root/target/$triple/debug/libelizainference.so ELIZA_TEST_MODEL=$root/$model \
                timeout 1800 "$@" "$work/host-$triple" "$name" || status=$?
            case $status in
            0) passed=$((passed + 1)) ;;
            77) skipped=$((skipped + 1)) ;;
            *) printf '%s on %s ended with %s\n' "$name" "$model" "$status" >&2; exit 1 ;;
            esac
        done
    done
    printf '%s: %s cases of tests/c passed, %s were skipped\n' "$triple" "$passed" "$skipped"
}

# Bun wants the C++ library of musl too, which Debian has not; wheels for musl bring it along.
bun() {
    local libraries=$work/bun.lib package=$root/target/js/package/dist/test
    test -d "$package" || { skip "tools/js.sh has not compiled the npm package"; return; }
    rm -rf "$libraries" "$work/bun" && mkdir -p "$libraries" "$work/bun"
    (cd "$work/bun" && npm pack --silent @oven/bun-linux-x64-musl >/dev/null 2>&1 && tar -xzf ./*.tgz) ||
        { skip "npm has no Bun for musl"; return; }
    (cd "$work/bun" && python3 -m pip download --quiet --no-deps --only-binary :all: --platform musllinux_1_2_x86_64 \
        --python-version 3.11 pandas >/dev/null 2>&1 && python3 -m zipfile -e ./pandas*.whl wheel) ||
        { skip "pip has no wheel that brings a C++ library for musl"; return; }
    debian amd64 musl || { skip "there is no musl 1.2.5 in reach, the oldest that Bun runs on"; return; }
    cp "$work"/bun/wheel/pandas.libs/libgcc_s-*.so.1 "$libraries/"
    cp "$work"/bun/wheel/pandas.libs/libgcc_s-*.so.1 "$libraries/libgcc_s.so.1"
    cp "$work"/bun/wheel/pandas.libs/libstdc++-*.so.6* "$libraries/libstdc++.so.6"
    # Started by its loader, so that nothing has to be installed in /lib.
    local run=("$work/amd64/usr/lib/x86_64-linux-musl/libc.so" --library-path "$libraries" "$work/bun/package/bin/bun")
    printf 'Bun %s for musl\n' "$("${run[@]}" --version)"
    export ELIZA_INFERENCE_LIBRARY=$root/target/x86_64-unknown-linux-musl/debug/libelizainference.so
    export ELIZA_ROOT=$root ELIZA_TEST_MODEL=$root/target/fixtures/llama-q8_0.gguf
    # Others start processes of Bun by a path that is here the loader's.
    (cd "$package" && "${run[@]}" test --timeout 900000 ./model.test.js ./text.test.js)
}

x86_64() {
    local triple=x86_64-unknown-linux-musl
    command -v musl-gcc >/dev/null 2>&1 || { skip "no musl-gcc"; return; }
    has_target "$triple" || return 0
    build "$triple"
    cases "$triple" musl-gcc
    bun
}

aarch64() {
    local triple=aarch64-unknown-linux-musl musl=$work/arm64/usr/lib/aarch64-linux-musl linker=$work/aarch64-linux-musl-gcc
    command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || { skip "no aarch64-linux-gnu-gcc"; return; }
    has_target "$triple" || return 0
    debian arm64 musl musl-dev || { skip "there is no musl for aarch64 in reach"; return; }
    # What musl-gcc is, for another architecture. The functions that choose atomic instructions at run time ask glibc.
    sed "s|/usr/include/aarch64-linux-musl|$work/arm64&|g; s|/usr/lib/aarch64-linux-musl|$work/arm64&|g" \
        "$musl/musl-gcc.specs" >"$work/arm64.specs"
    printf '#!/bin/sh\nexec aarch64-linux-gnu-gcc -mno-outline-atomics "$@" -specs %s\n' "$work/arm64.specs" >"$linker"
    chmod +x "$linker"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=$linker
    build "$triple" --no-default-features
    command -v qemu-aarch64 >/dev/null 2>&1 || { skip "no qemu-aarch64"; return; }
    cases "$triple" "$linker" qemu-aarch64 "$musl/libc.so"
}

x86_64
aarch64
