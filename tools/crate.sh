#!/usr/bin/env bash
# The crate as its users get it: packed, compiled from the pack, added to an empty crate, and the Rust program of README.md run there.
#
#   tools/crate.sh        into target/crate
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$root/target/crate
rm -rf "$work/user"
mkdir -p "$work/user/src"

# Also with changes that are not committed: this is a test, nothing is published.
cargo package --locked --allow-dirty --target-dir "$work/target"
packed=$(ls -d "$work"/target/package/eliza-inference-*/)

cat >"$work/user/Cargo.toml" <<'EOF'
[package]
name = "user"
edition = "2024"

[workspace]
EOF
sed -n '/^```rust$/,/^```$/p' README.md | sed '/^```/d' >"$work/user/src/main.rs"
test -s "$work/user/src/main.rs" || { echo "README.md has no program in Rust" >&2; exit 1; }
cd "$work/user"
cargo add --quiet --path "$packed" --no-default-features eliza-inference
CARGO_TARGET_DIR=$work/target cargo build --release
ln -s "$root/models" models
text=$("$work/target/release/user")
printf '%s\n' "$text"
test -n "$text"
