/** Text on its way through the binding: a trie with one leaf makes a model say any tokens, parts of characters too. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Model } from "eliza-inference";
import { WAYS, open, random, whole } from "./support.js";

/** How many sequences; the long run asks for a thousand. */
const SEQUENCES = Number(process.env["ELIZA_TEST_SEQUENCES"] ?? 100);

/** The bytes of every token but those that end a generation or write nothing. */
function vocabulary(model: Model): Map<number, Uint8Array> {
  const pieces = new Map<number, Uint8Array>();
  const first = firstByteToken(model);
  for (let token = 0; token < model.info.nVocab; token++) {
    if (/^<(s|\/s|unk)>$/.test(model.detokenize([token], { unparseSpecial: true }))) continue;
    const byte = token - first;
    // Alone a token would lose the space that a text begins with; after a letter it is whole.
    const text = new TextEncoder().encode(model.detokenize([first + 0x61, token]).slice(1));
    pieces.set(token, byte >= 0 && byte < 256 ? Uint8Array.of(byte) : text);
  }
  return pieces;
}

/** The 256 byte tokens stand in a row. Where, tell characters that the vocabulary does not have: their UTF-8 is their tokens. */
function firstByteToken(model: Model): number {
  const firsts = new Set<number>();
  for (const text of ["\u{10348}", "\u{3fff}", "\u{7ff}"]) {
    const utf8 = new TextEncoder().encode(text);
    const tokens = model.tokenize(text, { addSpecial: false }).slice(-utf8.length);
    utf8.forEach((byte, i) => firsts.add((tokens[i] as number) - byte));
  }
  const [first = -1] = firsts;
  assert.ok(firsts.size === 1 && first >= 0, [...firsts].join());
  return first;
}

for (const delivery of WAYS) {
  test(`${delivery}: ${SEQUENCES} random token sequences are the lossy UTF-8 of their bytes`, async () => {
    using model = await open({ delivery });
    const pieces = vocabulary(model);
    const [ids, draw] = [[...pieces.keys()], random(4)];
    const partial = ids.filter((id) => model.detokenize([id]).includes("\ufffd"));
    assert.ok(partial.length >= 100, `${partial.length} tokens are parts of characters`);
    let broken = 0;
    for (let sequence = 0; sequence < SEQUENCES; sequence++) {
      const from = sequence % 2 === 0 ? ids : partial;
      const tokens = Array.from({ length: 1 + Math.floor(draw() * 40) }, () => from[Math.floor(draw() * from.length)] as number);
      const bytes = Uint8Array.from(tokens.flatMap((token) => [...(pieces.get(token) as Uint8Array)]));
      // A NUL is exact where the text comes with its length; a text with a terminator has U+FFFD there.
      const lossy = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
      const expected = delivery === "poll" ? lossy.replaceAll("\0", "\ufffd") : lossy;
      const trie = { modelId: "", descriptors: [{ path: "said", leaves: [{ name: "", tokens }] }] };
      const got = await whole(model, "a", { trie, maxTokens: tokens.length });
      assert.deepEqual(got.tokens, tokens);
      assert.equal(got.text, expected, tokens.join(" "));
      if (expected.includes("\ufffd")) broken++;
    }
    assert.ok(broken > 0 && broken < SEQUENCES, `${broken} of ${SEQUENCES} hold a broken character`);
  });

  test(`${delivery}: no character that completes is ever cut`, async () => {
    using model = await open({ delivery });
    const said = "żółć 😀 日本語 👩‍👩‍👧 naïve";
    const tokens = [...model.tokenize(said, { addSpecial: false })];
    const trie = { modelId: "", descriptors: [{ path: "said", leaves: [{ name: said, tokens }] }] };
    const pieces: string[] = [];
    for await (const { text } of model.stream("a", { trie, maxTokens: tokens.length })) pieces.push(text);
    assert.equal(pieces.join("").trimStart(), said);
    assert.ok(pieces.every((piece) => !piece.includes("\ufffd")));
    assert.ok(pieces.filter((piece) => piece === "").length > 10, "tokens of incomplete characters bring no text");
  });
}
