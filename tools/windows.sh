#!/usr/bin/env bash
# The Windows build under Wine: unit tests, the C harness by mingw, the C++ examples, and a model on the CPU and on software
# Vulkan, whose tokens are those of this system's build (`make built-for-c`). Folders have spaces and letters beyond ASCII in
# their names. C++ by the variant of mingw that has threads. Wine's DX12 compiles no shaders, so the GPU is named.
# Debian: wine wine64 gcc-mingw-w64-x86-64 g++-mingw-w64-x86-64 xvfb xauth libvkd3d1
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=x86_64-pc-windows-gnu

skip() { printf 'skipped: %s\n' "$1"; exit 0; }
say() { printf '\n-- %s\n' "$1"; }
for program in wine x86_64-w64-mingw32-gcc x86_64-w64-mingw32-g++-posix xvfb-run; do
    command -v "$program" >/dev/null || skip "no $program"
done
rustup target add $target >/dev/null 2>&1 || skip "Rust has no target $target here"

work=$root/target/windows
folder="$work/Ein Ordner für ünïcode 模型"
rm -rf "$folder"
mkdir -p "$work" "$folder"
export LC_ALL=C.UTF-8 WINEPREFIX=$work/wine WINEDEBUG=-all WINEDLLOVERRIDES='bcryptprimitives=n;mscoree=;mshtml='
export VK_DRIVER_FILES=${VK_DRIVER_FILES:-/usr/share/vulkan/icd.d/lvp_icd.json}
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc
export CARGO_TARGET_DIR=$work/build
# Unit tests run without a display, and so without Vulkan; what needs a GPU says that it was skipped.
unset ELIZA_REQUIRE_GPU
x86_64-w64-mingw32-gcc -shared -O1 -o "$work/bcryptprimitives.dll" tests/c/windows/random.c -ladvapi32

say "build"
cargo build --locked --target $target --features testing --lib --bins
built=$work/build/$target/debug
cp "$work/bcryptprimitives.dll" "$built/"
cp "$work/bcryptprimitives.dll" "$folder/"

say "unit tests"
tests=$(cargo test --locked --target $target --features testing --lib --no-run --message-format=json |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["kind"] != ["bin"]: print(message["executable"])' | tail -n 1)
cp "$work/bcryptprimitives.dll" "$(dirname "$tests")/"
wine "$tests" --test-threads 1 ${ELIZA_WINDOWS_TESTS:-} 2>&1 | tr -d '\r' | tee "$work/unit.log" | tail -n 40
grep -q '^test result: ok' "$work/unit.log"

say "C harness"
mkdir -p "$work/harness"
model=$root/target/fixtures/llama-f32.gguf
(cd tests/c && x86_64-w64-mingw32-gcc -std=gnu99 -g -Wall -Wextra -I windows -I ../../include -include windows/environment.h \
    -D__USE_MINGW_ANSI_STDIO=1 -o "$work/harness/host.exe" main.c host.c basics.c opening.c streaming.c concurrency.c constraint.c \
    saving.c sampler.c asking.c -static -lpthread)
cp "$work/bcryptprimitives.dll" "$work/harness/"
cp "$model" "$folder/Modell ä.gguf"
cp "$built/elizainference.dll" "$folder/"
failed=()
while read -r case; do
    status=0
    ELIZA_LIBRARY="Z:$folder/elizainference.dll" ELIZA_TEST_MODEL="Z:$folder/Modell ä.gguf" \
        timeout 300 wine "$work/harness/host.exe" "$case" >"$work/case.log" 2>&1 || status=$?
    if test $status -ne 0 && test $status -ne 77; then
        failed+=("$case")
        printf '%s (%s): ' "$case" $status
        tr -d '\r' <"$work/case.log" | tail -n 1
    fi
done <tests/c/cases.txt
printf '%d cases, %d failed\n' "$(wc -l <tests/c/cases.txt)" ${#failed[@]}
test ${#failed[@]} -eq 0

say "examples in C++"
for example in choice chat tools; do
    x86_64-w64-mingw32-g++-posix -std=c++17 -O1 -I include -o "$folder/$example.exe" "examples/cpp/$example.cpp" \
        "$built/libelizainference.dll.a" -static -lpthread
done
here=$root/target/debug
ln -sf "$here/libelizainference.so" "$work/libelizainference.so.1"
compare() { # NAME INPUT ARGUMENTS...: the same output as here
    local name=$1 input=$2
    shift 2
    g++ -std=c++17 -O1 -I include -o "$work/$name" "examples/cpp/$name.cpp" -L "$here" -lelizainference -lpthread
    printf '%s' "$input" | LD_LIBRARY_PATH=$work "$work/$name" models/demo.gguf "$@" >"$work/$name.here"
    printf '%s' "$input" | wine "$folder/$name.exe" models/demo.gguf "$@" | tr -d '\r' >"$work/$name.there"
    diff "$work/$name.here" "$work/$name.there"
    printf '%s: %s lines, the same\n' "$name" "$(wc -l <"$work/$name.here")"
}
compare choice '' 'Please wake me at seven. ACTION: ' CREATE_ALARM DELETE_NOTE SHOW_LIST
compare tools '' 'wake me at seven' 'add milk to the list'
compare chat $'hello\n' 16 0 1

say "a model on the CPU and on software Vulkan"
# Wine's server may still be that of the programs before, which knows no display.
wineserver -k || true
wineserver -w
prompt='Please wake me at seven. ACTION: '
cp models/demo.gguf "$folder/Modell 模型.gguf"
tokens() { # MODEL OPTIONS...: of an answer by the program in `run`
    local model=$1
    shift
    "${run[@]}" generate --model "$model" --prompt "$prompt" --temp 0 -n 24 --ignore-eos --json "$@" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["tokens"])'
}
run=("$here/eliza-inference")
expected=$(tokens models/demo.gguf)
run=(xvfb-run -a wine "$built/eliza-inference.exe")
same_tokens() { # OPTIONS...
    local found
    found=$(tokens "Z:$folder/Modell 模型.gguf" "$@")
    printf '%s: %s\n' "${*:-CPU}" "$found"
    test "$found" = "$expected"
}
same_tokens
same_tokens --gpu-layers -1 --device llvmpipe
{ wine "$built/eliza-inference.exe" generate --model "Z:$folder/nicht da 模.gguf" --prompt x 2>&1 || true; } | tr -d '\r' | tee "$work/error.log"
grep -q 'nicht da 模.gguf' "$work/error.log"
