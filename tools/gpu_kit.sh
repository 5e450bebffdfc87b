#!/usr/bin/env bash
# Packs what the first minutes on a machine with a GPU need: `gpu_kit.sh [FOLDER]`, target/gpu-kit unless told.
#
# On the other machine (x86-64 Linux with a Vulkan driver and `tar`) `FOLDER/gpu_kit` is the one command: see tools/gpu_kit.rs.
# `gpu_kit.sh --try [FOLDER]` also runs it for a few minutes in a root that holds nothing but the C library, `tar`, `gzip` and Mesa's
# software driver, as Debian has them; that needs the rights of root.
set -euo pipefail
cd "$(dirname "$0")/.."

try=
if [[ "${1:-}" == --try ]]; then try=1; shift; fi
kit=${1:-target/gpu-kit}
package=linux-x64-vulkan

cargo build --release --locked --bin eliza-inference --example make_model --example gpu_kit
rm -rf "$kit"
mkdir -p "$kit/models/architectures" "$kit/lib"
cp target/release/eliza-inference target/release/examples/make_model target/release/examples/gpu_kit "$kit/"
strip "$kit/eliza-inference" "$kit/make_model" "$kit/gpu_kit"
cp models/demo.gguf models/demo_actions.txt "$kit/models/"

loader=$(ldconfig -p 2>/dev/null | sed -n 's/.*libvulkan\.so\.1 (libc6,x86-64) => //p' | head -n 1)
if [[ -n "$loader" ]]; then cp -L "$loader" "$kit/lib/libvulkan.so.1"; else echo "skipped: no loader of Vulkan here to pack"; fi

# Small models of other architectures, where the shared folder can make them.
if [[ -d "${ELIZA_SHARED:-../shared}/tools" ]]; then
    [[ -d target/decoders ]] || python3 tools/decoders.py --shared "${ELIZA_SHARED:-../shared}" --make
    # As many as there is room for, small ones first.
    room=$((18 << 20))
    while read -r bytes path; do
        ((room -= bytes)) || true
        if ((room < 0)); then break; fi
        cp "$path" "$kit/models/architectures/"
    done < <(find target/decoders -name '*-q4_k.gguf' -printf '%s %p\n' | sort -n)
else
    echo "skipped: no small models of other architectures, the shared folder is not there"
fi

# llama.cpp's Vulkan build, without what no run loads: mostly shaders, which shrink to a fifth.
npm=target/llama/node_modules/@node-llama-cpp/$package/bins/$package
if [[ -d "$npm" ]] || npm install --no-save --ignore-scripts --no-audit --no-fund --prefix target/llama \
    "@node-llama-cpp/$package@3.22.1" >/dev/null; then
    folder=$(mktemp -d)
    for library in "$npm"/lib{llama,ggml}.*.so "$npm"/libggml-{base,vulkan,cpu-x64,cpu-haswell,cpu-zen4,cpu-skylakex}.so; do
        cp "$library" "$folder/"
    done
    strip --strip-unneeded "$folder"/*.so
    # shellcheck disable=SC2016
    ${CC:-cc} -std=c99 -O2 -Iinclude tools/llama_bench.c -o "$folder/llama_bench" "$folder"/lib{llama,ggml}.*.so \
        "$folder/libggml-base.so" '-Wl,-rpath,$ORIGIN' "-Wl,-rpath-link,$folder" -lm
    strip "$folder/llama_bench"
    tar -C "$folder" -czf "$kit/llama.tar.gz" .
    rm -rf "$folder"
else
    echo "skipped: llama.cpp could not be had"
fi
du -sm "$kit" | sed 's/\t/ MiB in /'

if [[ -n "$try" ]]; then
    root=$(python3 tools/gpu_lab.py root)
    mkdir -p "$root/kit" "$root/proc" "$root/tmp" "$root/dev"
    cp -a "$kit/." "$root/kit/"
    unshare --mount --pid --fork bash -c \
        'mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" && exec chroot "$1" /kit/gpu_kit --minutes "$2"' \
        bash "$root" "${ELIZA_KIT_MINUTES:-8}"
fi
