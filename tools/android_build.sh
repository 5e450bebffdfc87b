#!/usr/bin/env bash
# Builds both libraries for arm64-v8a and x86_64: libelizainference_jni.so into target/android/jniLibs, where
# android/build.gradle.kts, android/Android.bp and android/CMakeLists.txt look for it, and libelizainference.so, the C interface
# alone, into target/android/lib.
#
#   tools/android_build.sh [ABI ...]        needs rustup, and an NDK in ANDROID_NDK_HOME, ANDROID_NDK_ROOT or ANDROID_HOME/ndk
#
# Without an NDK it does what can be done: the types are checked and the libraries are linked, by the linker that comes with Rust,
# against stubs of the system's libraries, into target/android/stub. That proves that they link, their exported names and their
# alignment; they are no libraries that run.
set -euo pipefail
cd "$(dirname "$0")/.."

api=26
declare -A triples=([arm64-v8a]=aarch64-linux-android [x86_64]=x86_64-linux-android)
abis=("$@")
if ((${#abis[@]} == 0)); then abis=(arm64-v8a x86_64); fi

ndk=${ANDROID_NDK_HOME:-${ANDROID_NDK_ROOT:-}}
if [[ -z "$ndk" && -n "${ANDROID_HOME:-}" ]]; then
    ndk=$(find "$ANDROID_HOME/ndk" -mindepth 1 -maxdepth 1 2>/dev/null | sort -V | tail -n 1)
fi
tools=$(compgen -G "${ndk:-/nonexistent}/toolchains/llvm/prebuilt/*/bin" | head -n 1 || true)

for abi in "${abis[@]}"; do
    triple=${triples[$abi]:-}
    if [[ -z "$triple" ]]; then
        printf '%s is no ABI of this script: %s\n' "$abi" "${!triples[*]}" >&2
        exit 2
    fi
    if ! rustc --print target-libdir --target "$triple" 2>/dev/null | xargs -r test -d; then
        if ! rustup target add "$triple" >/dev/null 2>&1; then
            printf 'skipped: Rust has no target %s here, and it could not be added\n' "$triple"
            continue
        fi
    fi
    upper=${triple//-/_}
    upper=${upper^^}
    # One command, so that both are made of one build of the core.
    build=(cargo build --locked -p eliza-inference -p eliza-inference-jni --lib --target "$triple"
        --no-default-features --features eliza-inference/gpu,eliza-inference-jni/gpu)
    if [[ -n "$tools" ]]; then
        export "CARGO_TARGET_${upper}_LINKER=$tools/$triple$api-clang"
        "${build[@]}" --release
    else
        printf 'no NDK: %s is linked against stubs, which proves that it links and gives nothing that can be shipped\n' "$abi"
        stubs=target/android/stub/$abi/system
        mkdir -p "$stubs"
        for library in c m dl log android unwind gcc; do
            printf 'INPUT()\n' >"$stubs/lib$library.so"
        done
        export "CARGO_TARGET_${upper}_LINKER=rust-lld"
        export "CARGO_TARGET_${upper}_RUSTFLAGS=-Clinker-flavor=ld.lld -L$PWD/$stubs"
        "${build[@]}"
    fi
    for library in jniLibs/$abi/libelizainference_jni.so lib/$abi/libelizainference.so; do
        if [[ -n "$tools" ]]; then
            out=target/android/$library
            mkdir -p "${out%/*}"
            "$tools/llvm-strip" --strip-unneeded -o "$out" "target/$triple/release/${library##*/}"
        else
            out=target/android/stub/$abi/${library##*/}
            cp "target/$triple/debug/${library##*/}" "$out"
        fi
        python3 tools/android_elf.py "$out" "$triple" ${tools:+--shippable}
        printf '%s\n' "$out"
    done
done
