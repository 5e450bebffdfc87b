import assert from "node:assert/strict";
import { test } from "node:test";
import {
  buildTokenTreeDescriptor,
  buildTokenTrie,
  countTerminals,
  estimateTrieBytes,
  isUniqueContinuation,
  step,
  type TokenTrieNode,
} from "eliza-inference";

function walk(root: TokenTrieNode, tokens: number[]): TokenTrieNode | null {
  return tokens.reduce<TokenTrieNode | null>((at, token) => at && step(at, token), root);
}

test("no names make a bare root", () => {
  const root = buildTokenTrie([]);
  assert.deepEqual([root.tokenId, root.children.size, root.isTerminal, countTerminals(root)], [-1, 0, false, 0]);
});

test("a name without tokens is left out", () => {
  const root = buildTokenTrie([{ name: "NONE", tokens: [] }, { name: "SOME", tokens: [12, 34] }]);
  assert.equal(countTerminals(root), 1);
  assert.equal(walk(root, [12, 34])?.leafName, "SOME");
});

test("names share the nodes that they begin with", () => {
  const root = buildTokenTrie([{ name: "A", tokens: [10, 20, 30] }, { name: "B", tokens: [10, 20, 40] }]);
  const inner = walk(root, [10, 20]);
  assert.deepEqual([root.children.size, inner?.children.size, inner?.isTerminal, countTerminals(root)], [1, 2, false, 2]);
});

test("a name that begins another is complete and goes on", () => {
  const root = buildTokenTrie([{ name: "OWN", tokens: [1, 2] }, { name: "OWNER", tokens: [1, 2, 3] }]);
  const [own, owner] = [walk(root, [1, 2]), walk(root, [1, 2, 3])];
  assert.ok(own && owner);
  assert.deepEqual([own.isTerminal, isUniqueContinuation(own), isUniqueContinuation(owner)], [true, false, true]);
});

test("of names with the same tokens the smallest is kept, whatever their order", () => {
  for (const names of [["ZULU", "ALPHA"], ["ALPHA", "ZULU"]]) {
    const root = buildTokenTrie(names.map((name) => ({ name, tokens: [7, 8] })));
    assert.deepEqual([countTerminals(root), walk(root, [7, 8])?.leafName], [1, "ALPHA"]);
  }
});

test("a token that is not allowed leads nowhere", () => {
  assert.equal(step(buildTokenTrie([{ name: "A", tokens: [1] }]), 2), null);
});

test("more nodes take more memory", () => {
  const small = buildTokenTrie([{ name: "A", tokens: [1] }]);
  const large = buildTokenTrie([{ name: "A", tokens: [1, 2, 3] }]);
  assert.equal(estimateTrieBytes(small), 2 * 80 + 16);
  assert.equal(estimateTrieBytes(large), 4 * 80 + 3 * 16);
});

test("a descriptor has each name with tokens once, sorted, whatever the order", () => {
  const tokens = new Map([["ZULU", [9]], ["ALPHA", [1, 2]], ["MIKE", [5]], ["EMPTY", []]]);
  const expected = {
    path: "parameters.agentType",
    leaves: [
      { name: "ALPHA", tokens: [1, 2] },
      { name: "MIKE", tokens: [5] },
      { name: "ZULU", tokens: [9] },
    ],
  };
  for (const names of [["ZULU", "ALPHA", "MIKE", "ZULU", "UNKNOWN", "EMPTY"], ["MIKE", "ALPHA", "ZULU"]]) {
    assert.deepEqual(buildTokenTreeDescriptor("parameters.agentType", names, tokens), expected);
  }
  assert.equal(buildTokenTreeDescriptor("action", ["UNKNOWN", "EMPTY"], tokens), null);
  assert.equal(buildTokenTreeDescriptor("action", [], tokens), null);
});
