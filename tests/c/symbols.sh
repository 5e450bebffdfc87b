#!/bin/sh
# symbols.sh LIBRARY HEADER: the library exports what the header declares, and nothing else but the exports of the
# feature `testing`.
set -eu
exported=$(nm -D --defined-only "$1" | awk '$2 ~ /^[TDBR]$/ { print $3 }' | grep -v '^eliza_testing_' | sort)
declared=$(grep -oE '(eliza_inference_[a-z_]*|llama_sampler_init_token_trie)\(' "$2" | tr -d '(' | sort -u | while read -r name; do
  # A name with an argument list is declared where the line starts with a type, not with a comment.
  if grep -q "^[a-zA-Z].*[ *]$name(" "$2"; then echo "$name"; fi
done)
if [ "$exported" != "$declared" ]; then
  echo "exported and declared differ:"
  printf '%s\n' "$exported" > exported.txt
  printf '%s\n' "$declared" > declared.txt
  diff exported.txt declared.txt
fi
readelf -d "$1" 2>/dev/null | grep -q NODELETE || { echo "not linked with -z nodelete"; exit 1; }
