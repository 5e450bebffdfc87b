/** Grammars, JSON by a schema, and the beginning of JSON. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { partialJson, type FromSchema, type InferenceError, type Partially, type Span, type SpanEvent } from "eliza-inference";
import { PROMPT, WAYS, open, random, whole } from "./support.js";

for (const delivery of WAYS) {
  test(`a stream is held to a grammar, and the next one is not (${delivery})`, async () => {
    using model = await open({ delivery });
    const grammar = 'root ::= "(" [a-z]{1,8} ")" ("!" | "?")';
    for (const jumpAhead of ["bytes", "tokens", "off", undefined] as const) {
      const how = jumpAhead === undefined ? {} : { jumpAhead };
      const { text, reason, ends } = await whole(model, PROMPT, { grammar, ...how, maxTokens: 200, temperature: 0.8, seed: 3 });
      assert.deepEqual([reason, ends], ["stop", 1], text);
      assert.match(text, /^\([a-z]+\)[!?]$/);
      const { branchingSteps, grammarStates } = model.usage();
      assert.ok(branchingSteps > 0 && grammarStates > 0);
    }
    const free = await whole(model, PROMPT, { maxTokens: 8, temperature: 0 });
    assert.equal(free.tokens.length, 8);
    const { text } = await whole(model, PROMPT, { grammar: "x ::= [0-9]\nroot ::= x", root: "root", maxTokens: 4 });
    assert.match(text, /^[0-9]$/);
  });
}

test("what is refused says why, and bars nothing afterwards", async () => {
  using model = await open();
  const refused = (options: object, message: RegExp) =>
    assert.rejects(whole(model, PROMPT, options), (error: InferenceError) => {
      assert.equal(error.code, "ELIZA_ERR_INVALID_ARG");
      assert.match(error.message, message);
      return true;
    });
  await refused({ grammar: "root ::= [a" }, /line 1/);
  await refused({ grammar: "root ::= a", regex: "b" }, /grammar and regex/);
  await refused({ lark: 'start: "a"', regex: "b" }, /regex and lark/);
  // These tests run with a library without that feature.
  await assert.rejects(whole(model, PROMPT, { lark: 'start: "a"' }), { code: "ELIZA_ERR_NOT_IMPLEMENTED", message: /feature `llguidance`/ });
  await refused({ grammar: "root ::= a", trie: { modelId: "", descriptors: [] } }, /trie and a grammar/);
  await refused({ grammar: 'root ::= "a"', triggers: [{ type: "what", value: "a" }] }, /triggers\[0\]/);
  assert.equal((await whole(model, PROMPT, { maxTokens: 3, temperature: 0 })).tokens.length, 3);
});

test("a lazy grammar begins with its trigger", async () => {
  using model = await open();
  const free = await whole(model, PROMPT, { maxTokens: 40, temperature: 0 });
  const word = free.text.slice(12, 15);
  const grammar = `root ::= ${JSON.stringify(word)} [^\\n]* "END"`;
  const { text } = await whole(model, PROMPT, { grammar, triggers: [word], maxTokens: 60, temperature: 0 });
  assert.ok(text.startsWith(free.text.slice(0, free.text.indexOf(word))), text);
});

const PERSON = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 12 },
    age: { type: "integer", minimum: 0, maximum: 99 },
    kind: { enum: ["cat", "dog"] },
    tags: { type: "array", items: { type: "boolean" }, maxItems: 2 },
  },
  required: ["name", "age", "kind", "tags"],
} as const;

test("JSON has the type of its schema, whole and in part", async () => {
  using model = await open();
  const value = await model.json(PROMPT, PERSON, { temperature: 0.9, seed: 5, maxTokens: 300 });
  // Compiled, not run: what a schema means to the compiler.
  const typed: { name: string; age: number; kind: "cat" | "dog"; tags: boolean[] } = value;
  assert.equal(typeof typed.name, "string");
  assert.ok(Number.isInteger(typed.age) && ["cat", "dog"].includes(typed.kind) && Array.isArray(typed.tags));
  const stream = model.jsonStream(PROMPT, PERSON, { temperature: 0.9, seed: 5, maxTokens: 300 });
  let last: Partially<FromSchema<typeof PERSON>> | undefined;
  for (let step = await stream.next(); ; step = await stream.next()) {
    if (step.done) {
      assert.deepEqual(step.value, value);
      assert.deepEqual(last, value);
      break;
    }
    last = step.value;
    if (last.name !== undefined) assert.ok(value.name.startsWith(last.name));
  }
  await assert.rejects(model.json(PROMPT, PERSON, { maxTokens: 2 }), { message: /length/ });
  assert.equal((await model.generate(PROMPT, { regex: "[0-9]{2}", maxTokens: 9 })).text.length, 2);
});

test("the beginning of JSON is read as far as it is certain", () => {
  const cases: [string, unknown][] = [
    ["", undefined],
    ["  ", undefined],
    ['"ab', "ab"],
    ['"a\\', "a"],
    ['"a\\n\\u00', "a\n"],
    ['"\\ud83d', ""],
    ['"\\ud83d\\ude00"', "\u{1f600}"],
    ["[1, 2", [1]],
    ["[1, 2 ", [1, 2]],
    ["-", undefined],
    ["tru", undefined],
    ["[true, fal", [true]],
    ['{"a', {}],
    ['{"a"', {}],
    ['{"a": ', {}],
    ['{"a": [{"b": "c', { a: [{ b: "c" }] }],
    ['{"a": 1, "b": {}, "c": nul', { a: 1, b: {} }],
    ['{"a":1}', { a: 1 }],
    ["[]", []],
  ];
  for (const [text, value] of cases) assert.deepEqual(partialJson(text), value, text);
  assert.equal(partialJson("12", { whole: true }), 12);
  assert.equal(Object.getPrototypeOf(partialJson('{"__proto__": {"a": 1}}')), Object.prototype);
  for (const text of ["x", "{a", '{"a" 1', "[1 2", "]", "01 ", '"\\q', '"\n', "1 2", "tra", "--", '"\\u00g'])
    assert.throws(() => partialJson(text), SyntaxError, text);
});

test("every beginning of a JSON text can be read, and grows to the whole", () => {
  const next = random(7);
  const any = (depth: number): unknown => {
    const kind = Math.floor(next() * (depth > 3 ? 5 : 7));
    if (kind === 0) return Math.round(next() * 2000 - 1000) / (next() < 0.5 ? 1 : 8);
    if (kind === 1) return next() < 0.5;
    if (kind === 2) return null;
    if (kind === 3) return "é\"\\\n\u{1f600}x".slice(0, Math.floor(next() * 8));
    if (kind === 4) return next() * 1e30;
    const items = Array.from({ length: Math.floor(next() * 4) }, () => any(depth + 1));
    return kind === 5 ? items : Object.fromEntries(items.map((item, i) => [`k${i}\t`, item]));
  };
  for (let i = 0; i < 200; i++) {
    const value = any(0);
    const text = JSON.stringify(value, null, i % 3);
    for (let end = 0; end <= text.length; end++) partialJson(text.slice(0, end));
    assert.deepEqual(partialJson(text, { whole: true }), JSON.parse(text));
  }
});

test("a host hears of spans as they are written, each with its text", async () => {
  using model = await open();
  const spans: Span[] = [
    { kind: "literal", text: '{"kind":' },
    { kind: "choice", key: "kind", values: ['"cat"', '"dog"'] },
    { kind: "literal", text: ',"years":[' },
    { kind: "repeat", key: "years", min: 2, max: 2, separator: ",", spans: [{ kind: "number", integer: true, min: 1, max: 9 }] },
    { kind: "literal", text: "]}" },
  ];
  const heard: SpanEvent[] = [];
  const { text } = await whole(model, PROMPT, { spans, maxTokens: 100, onSpan: (event) => heard.push(event) });
  const ended = heard.filter((event) => event.end !== null);
  assert.equal(heard.length, 2 * ended.length);
  const top = ended.filter((event) => event.parent === null);
  assert.deepEqual(top.map((event) => event.kind), ["literal", "choice", "literal", "repeat", "literal"]);
  assert.equal(top.map((event) => event.text).join(""), text);
  const value = JSON.parse(text) as { kind: string; years: number[] };
  assert.deepEqual([top[1]?.key, top[1]?.text], ["kind", JSON.stringify(value.kind)]);
  const years = ended.filter((event) => event.kind === "number").map((event) => Number(event.text));
  assert.deepEqual(years, value.years);
});

test("spans begin after a text, and single ones are sampled in their own way", async () => {
  using model = await open();
  const free = await whole(model, PROMPT, { maxTokens: 40, temperature: 0 });
  const word = free.text.slice(12, 15);
  const spans: Span[] = [{ kind: "literal", text: "[" }, { kind: "boolean", sampling: { temperature: 2 } }, { kind: "literal", text: "]" }];
  const { text } = await whole(model, PROMPT, { spans, after: [word], maxTokens: 60, temperature: 0 });
  assert.match(text.slice(text.indexOf(word) + word.length), /^\[(true|false)\]$/);
  const skeleton = { spans: [{ kind: "enum", key: "a", enumValues: ["x", "y"] }] };
  const spanSamplers = { overrides: [{ spanIndex: 0, temperature: 0, topK: 1 }] };
  const seeds = [1, 2, 3, 4, 5, 6].map((seed) => whole(model, PROMPT, { skeleton, spanSamplers, temperature: 50, seed }));
  assert.equal(new Set((await Promise.all(seeds)).map((one) => one.text)).size, 1);
});
