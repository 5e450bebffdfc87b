#!/usr/bin/env bash
# The npm package in bindings/: js.sh test | deep | bench | host
# Installs Bun, TypeScript and what checks the exports into target/js, compiles the package to target/js/package and tests it
# there. Needs library and addon with the feature `testing` in target/debug and the fixture models (make built-for-c).
# ELIZA_LIBRARY_DIR names a folder with other builds of library and addon.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-test}
root=$PWD
work=$root/target/js
package=$work/package

skip() { printf 'skipped: %s\n' "$1"; exit 0; }
command -v npm >/dev/null 2>&1 && command -v node >/dev/null 2>&1 || skip "no npm"

mkdir -p "$work"
if ! cmp -s bindings/package-lock.json "$work/package-lock.json" || ! test -d "$work/node_modules"; then
    cp bindings/package.json "$work/"
    cp bindings/package-lock.json "$work/package-lock.new"
    # No scripts: Bun's own program is in its platform package.
    (cd "$work" && mv package-lock.new package-lock.json && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) ||
        { rm -rf "$work/node_modules" "$work/package-lock.json"; skip "npm could not install what bindings/package-lock.json names"; }
fi
bun=$(compgen -G "$work/node_modules/@oven/*/bin/bun" | head -n 1) || skip "there is no Bun for this machine"

printf 'Bun %s, Node %s, TypeScript %s\n' "$("$bun" --version)" "$(node --version)" "$(node "$work/node_modules/typescript/bin/tsc" --version)"
tsc=$work/node_modules/typescript/bin/tsc
if test "$mode" = host; then # elizaOS's side of the library of ABI 15: ELIZA_HOST_LIBRARY, ELIZA_CORE_LIBRARY, ELIZA_FIXTURES
    tests=$root/bindings/eliza-host/tests
    node "$tsc" --noEmit --strict --noUncheckedIndexedAccess --target ES2022 --module nodenext --allowImportingTsExtensions \
        --types bun --typeRoots "$work/node_modules/@types" "$tests"/*.ts
    exec "$bun" test --timeout 120000 "$tests/host.test.ts"
fi

rm -rf "$package"
mkdir -p "$package"
node "$tsc" -p bindings
python3 tools/npm_packages.py main "$package"
cp bindings/README.md LICENSE-APACHE LICENSE-MIT "$package/"

libraries=${ELIZA_LIBRARY_DIR:-$root/target/debug}
case "$(uname -s)" in Darwin) suffix=.dylib ;; *) suffix=.so ;; esac
in_bun() { ELIZA_INFERENCE_LIBRARY=$libraries/libelizainference$suffix "$bun" "$@"; }
in_node() { ELIZA_INFERENCE_LIBRARY=$libraries/libelizainference_node$suffix node --expose-gc "$@"; }
export ELIZA_ROOT=$root
export ELIZA_TEST_MODEL=${ELIZA_TEST_MODEL:-$root/target/fixtures/llama-q8_0.gguf}
export ELIZA_TEST_OLDER_C=$root/bindings/test/older.c

case "$mode" in
test) ;;
deep) export ELIZA_TEST_GENERATIONS=1000 ELIZA_TEST_ENDS=50 ELIZA_TEST_SEQUENCES=1000 ;;
bench)
    in_bun "$package/dist/bench/overhead.js"
    in_node "$package/dist/bench/overhead.js"
    exit
    ;;
*) printf 'js.sh test | deep | bench | host\n' >&2; exit 2 ;;
esac

# How an import resolves in TypeScript and Node, by the rules for packages that are modules alone.
(cd "$package" && npm pack --silent --pack-destination "$work" >/dev/null)
node "$work/node_modules/@arethetypeswrong/cli/dist/index.js" --format ascii --no-color --no-emoji --profile esm-only \
    "$work"/eliza-inference-*.tgz
shopt -s extglob
cd "$package/dist/test"
# Each waits for about half of its time, so both run at once; what Node says comes when both have ended.
failed=0
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
in_node --test --test-concurrency=1 !(bun-*).test.js >"$work/node.log" 2>&1 &
node=$!
in_bun test --timeout 900000 ./!(node-*).test.js || failed=1
wait "$node" || failed=1
cat "$work/node.log"
exit "$failed"
