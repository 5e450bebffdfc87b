/** What only Bun does: libraries that lack symbols, and the exports of the feature `testing`. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { CString, dlopen, type Pointer } from "bun:ffi";
import { FfiStreamingRunner, InferenceError, Model, STATUS, load, native, streamingAbi, type FfiLlmHandle } from "eliza-inference";
import { Library, Out, bytes, raw, terminated } from "../bun/library.js";
import { BunNative } from "../bun/native.js";
import { MODEL, PROMPT, WAYS } from "./support.js";

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
