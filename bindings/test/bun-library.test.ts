/** What only Bun does: libraries that lack symbols, and the exports of the feature `testing`. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { CString, dlopen, type Pointer } from "bun:ffi";
import {
  FfiStreamingRunner,
  InferenceError,
  Model,
  STATUS,
  load,
  native,
  streamingAbi,
  type FfiLlmHandle,
  type Step,
} from "eliza-inference";
import { delivery as safest, generate } from "../bun/generation.js";
import { Library, Out, bytes, raw, terminated } from "../bun/library.js";
import { BunNative } from "../bun/native.js";
import { MODEL, PROMPT, WAYS, open, sleep, whole } from "./support.js";

/** `older.c`, compiled; the sources are where the Makefile says. */
const OLDER = join(mkdtempSync(join(tmpdir(), "eliza-")), "libolder.so");
const built = spawnSync("cc", ["-shared", "-fPIC", "-pthread", "-o", OLDER, process.env["ELIZA_TEST_OLDER_C"] ?? ""]);
assert.equal(built.status, 0, String(built.stderr));

const payload = { modelId: "", descriptors: [{ path: "a", leaves: [{ name: "x", tokens: [1] }] }] };

for (const delivery of WAYS) {
  test(`${delivery}: a library without token tries loads, warns once, and generates unconstrained`, async () => {
    const older = native({ library: OLDER, delivery });
    assert.deepEqual([older.hasTokenTrie, older.version], [false, "eliza-stream/1.0.0"]);
    const ffi = streamingAbi({ library: OLDER, delivery });
    assert.equal(ffi.eliza_inference_set_token_trie, undefined);
    const handle = ffi.eliza_inference_llm_stream_open("model.gguf", 0, 0, 0);
    assert.ok(handle);
    const warnings: string[] = [];
    const runner = new FfiStreamingRunner(ffi, { handle }, { warn: (text) => warnings.push(text) });
    for (let i = 0; i < 3; i++) {
      const promptTokens = new Int32Array([1]);
      const options = { promptTokens, slotId: -1, maxTokens: 3, temperature: 0, topP: 1, tokenTreePayload: payload };
      const { text, tokens, usage } = await runner.generateWithUsage(options);
      assert.deepEqual([text, tokens, usage?.completionTokens], ["one two three", [0, 1, 2], 3]);
    }
    assert.equal(warnings.length, 1, warnings.join());
    const lacking = (name: string) => ({ code: "ELIZA_ERR_NOT_IMPLEMENTED", message: new RegExp(`has no eliza_inference_${name}:`) });
    using model = await Model.load(older, "model.gguf");
    await assert.rejects(model.saveSlot("a"), lacking("llm_stream_save_slot"));
    await assert.rejects(model.restoreSlot("a"), lacking("llm_stream_restore_slot"));
    assert.throws(() => older.setTrie(handle, "{}", 0), lacking("set_token_trie"));
  });
}

test("what is no such library is refused with a reason", async () => {
  const refused = (library: string) => {
    try {
      native({ library });
    } catch (error) {
      return error as InferenceError;
    }
    return assert.fail("it was loaded");
  };
  assert.equal(refused("/nonexistent/lib.so").code, "ELIZA_ERR_IO");
  const text = join(tmpdir(), "eliza-no-library.so");
  writeFileSync(text, "no library");
  assert.equal(refused(text).code, "ELIZA_ERR_ABI_MISMATCH");
  const kept = process.env["ELIZA_INFERENCE_LIBRARY"];
  delete process.env["ELIZA_INFERENCE_LIBRARY"];
  try {
    assert.throws(() => native(), new RegExp(`install eliza-inference-${process.platform}-${process.arch}`));
  } finally {
    process.env["ELIZA_INFERENCE_LIBRARY"] = kept;
  }
});

const path = process.env["ELIZA_INFERENCE_LIBRARY"] ?? "";
const testing = dlopen(path, {
  eliza_testing_panic: { args: ["ptr", "ptr", "ptr"], returns: "i32" },
  eliza_testing_return_status: { args: ["i32"], returns: "i32" },
  eliza_testing_echo_bytes: { args: ["ptr", "usize"], returns: "ptr" },
  eliza_testing_open_noop: { args: ["ptr", "ptr"], returns: "ptr" },
}).symbols;

test("every status has its name", () => {
  for (const [name, status] of Object.entries(STATUS)) {
    const error = new InferenceError(testing.eliza_testing_return_status(status), "why");
    assert.deepEqual([error.code, error.status, error.message, error.name], [name, status, "why", "InferenceError"]);
  }
  assert.equal(new InferenceError(testing.eliza_testing_return_status(-9999), "").code, "ELIZA_ERR_UNKNOWN");
});

test("text crosses both ways unchanged", () => {
  const library = new Library(path);
  for (const text of ["", "a", "żółć 😀 日本", "\ufeff byte order mark", "x".repeat(100_000), "line\nline\t\u0007"]) {
    const { data, length } = bytes(text);
    const echo = testing.eliza_testing_echo_bytes(data, length);
    assert.equal(library.take(echo as number | null), text);
  }
  const lone = bytes("\ud800");
  assert.equal(library.take(testing.eliza_testing_echo_bytes(lone.data, lone.length) as number | null), "\ufffd");
  assert.throws(() => terminated("a\0b", "path"), { code: "ELIZA_ERR_INVALID_ARG", message: /path holds a NUL/ });
});

test("a panic is an error with its text, and the process goes on", async () => {
  const library = new Library(path);
  const inside = new BunNative(library);
  const handle = await inside.open(MODEL, { contextSize: 64 });
  for (const on of [handle, 0 as unknown as FfiLlmHandle]) {
    const error = new Out();
    const status = testing.eliza_testing_panic(raw(on) as Pointer, terminated("at midnight", "message"), error);
    assert.equal(status, STATUS.ELIZA_ERR_FFI_FAULT);
    assert.match(String(new CString(error.address as Pointer)), /at midnight/);
    library.call.free_string(error.address);
    const why = on === handle ? library.failure(on) : library.lastFailure();
    assert.deepEqual([why.code, /at midnight/.test(why.message)], ["ELIZA_ERR_FFI_FAULT", true]);
  }
  assert.ok(inside.tokenize(handle, PROMPT, true, false).length > 1);
  inside.close(handle);
  using model = await load(MODEL, { contextSize: 64 });
  assert.ok(model.usage().promptTokens === 0);
});

/** A test build overwrites the texts of handles that it frees, so text that was read too late is no UTF-8 any more. */
test("m3: many models closed in one turn: no text is read that the library freed", { skip: safest() !== "callback" }, async () => {
  const options = { maxTokens: 12, temperature: 0, ignoreEos: true };
  const small = { contextSize: 64, delivery: "callback" as const };
  using model = await open(small);
  const expected = await whole(model, PROMPT, options);
  const functions = native({ delivery: "callback" });
  const handles: FfiLlmHandle[] = [];
  for (let i = 0; i < 64; i++) handles.push(await functions.open(MODEL, { contextSize: 64, threads: 1 }));
  const ready = handles.map(async (handle) => {
    functions.configure(handle, { ignoreEos: true });
    await functions.prefill(handle, functions.tokenize(handle, PROMPT, true, false), 0);
  });
  await Promise.all(ready);
  const got = handles.map((handle, i) => {
    const steps: Step[] = [];
    const onStep = (step: Step) => {
      steps.push(step);
      if (i === 0 && steps.length === 3) functions.close(handle);
    };
    return { steps, ended: functions.generate(handle, { maxTokens: 12, temperature: 0, topP: 1 }, onStep) };
  });
  // By now all that will be said is on its way, and nothing has come.
  Bun.sleepSync(500);
  for (const closed of handles.slice(1, 32)) functions.close(closed);
  Bun.sleepSync(100);
  const reasons = await Promise.all(got.map(({ ended }) => ended));
  for (const [i, { steps }] of got.entries()) {
    const text = steps.map((step) => step.text).join("");
    assert.ok(expected.text.startsWith(text), `${i}: ${JSON.stringify(text)}`);
    assert.deepEqual(steps.filter(({ done }) => !done).map(({ token }) => token), expected.tokens.slice(0, steps.length - 1));
    assert.deepEqual([steps.at(-1)?.done, steps.filter(({ done }) => done).length], [true, 1]);
    if (i >= 32) assert.deepEqual([text, steps.length, reasons[i]], [expected.text, 13, "length"]);
  }
  const lengths = got.map(({ steps }) => steps.length);
  assert.deepEqual(lengths.slice(0, 32), [4, ...Array(31).fill(1)], "after a close the end alone is handed out");
  assert.deepEqual(reasons.slice(0, 32).filter((reason) => reason !== "cancelled"), []);
  for (const handle of handles.slice(32)) functions.close(handle);
});

test("l13: polling gives text that is longer than its buffer", async () => {
  const library = new Library(path);
  const inside = new BunNative(library, "poll");
  const handle = testing.eliza_testing_open_noop(terminated(MODEL, "path"), null) as unknown as FfiLlmHandle;
  const prompt = inside.tokenize(handle, PROMPT, true, false);
  const run = async (maxTokens: number, stop: string[]) => {
    const steps: Step[] = [];
    inside.configure(handle, { stop });
    await inside.prefill(handle, prompt, 0);
    await inside.generate(handle, { maxTokens, temperature: 0, topP: 1 }, (step) => steps.push(step));
    return steps;
  };
  // It says the same all the time. With that as a stop string, but for its end, all of it is held back.
  const expected = (await run(100_000, [])).map(({ text }) => text).join("");
  const steps = await run(100_000, [`${expected}!`]);
  assert.deepEqual([steps.length, steps.map(({ text }) => text).join("") === expected], [100_001, true]);
  assert.ok((steps.at(-1)?.text.length ?? 0) > 65_536);
  inside.close(handle);
});

test("l13: polling gives a token the text that came in further steps", async () => {
  /** Steps as `eliza_inference_llm_stream_poll` gives them: the token, if any, the text, and what is returned. */
  const script: [number | null, string, number][] = [
    [1, "a", 0],
    [2, "b".repeat(65_535), 0],
    [null, "c".repeat(65_535), 0],
    [null, "d", 0],
    [3, "", 0],
    [null, "", 0],
    [4, "e", 0],
    [null, "", 0],
    [null, "f".repeat(65_535), 0],
    [null, "g", 1],
  ];
  const call = {
    llm_stream_generate_ex: () => 0,
    llm_stream_poll(_h: number, _ms: number, token: Int32Array, _cap: number, count: BigUint64Array, text: Uint8Array) {
      const [id, piece, status] = script.shift() ?? [null, "", 1];
      if (id !== null) token[0] = id;
      count[0] = BigInt(id === null ? 0 : 1);
      text.set(new TextEncoder().encode(`${piece}\0`));
      return status;
    },
  };
  const steps: Step[] = [];
  const options = { maxTokens: -1, temperature: 0, topP: 1 };
  generate({ call } as unknown as Library, 7 as unknown as FfiLlmHandle, options, (step) => steps.push(step), "poll");
  while (steps.at(-1)?.done !== true) await sleep(1);
  assert.deepEqual(steps, [
    { token: 1, text: "a", done: false },
    { token: 2, text: `${"b".repeat(65_535)}${"c".repeat(65_535)}d`, done: false },
    { token: 3, text: "", done: false },
    { token: 4, text: "e", done: false },
    { token: -1, text: `${"f".repeat(65_535)}g`, done: true },
  ]);
});
