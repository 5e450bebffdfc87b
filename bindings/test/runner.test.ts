import assert from "node:assert/strict";
import { test } from "node:test";
import {
  aospStreaming,
  FfiStreamingRunner,
  InferenceError,
  streamingAbi,
  type ElizaStreamingAbi,
  type FfiLlmHandle,
  type FfiLlmStreamingAbi,
  type TokenCallback,
  type TokenTreePayload,
} from "eliza-inference";
import { MODEL, PROMPT, WAYS, open, sleep } from "./support.js";

const handle = 7 as unknown as FfiLlmHandle;
const payload: TokenTreePayload = {
  modelId: "test-model",
  descriptors: [
    {
      path: "action",
      leaves: [
        { name: "THINK", tokens: [100, 101] },
        { name: "EXECUTE", tokens: [200] },
      ],
    },
  ],
};
const args = { promptTokens: new Int32Array([1, 2, 3]), slotId: -1, maxTokens: 10, temperature: 0.7, topP: 0.9 };

/** An interface that writes down what is called, and says some words. */
function scripted(words: string[], more: Partial<FfiLlmStreamingAbi> = {}) {
  const calls: string[] = [];
  let cancelled = false;
  const ffi: FfiLlmStreamingAbi = {
    eliza_inference_llm_stream_open: () => handle,
    eliza_inference_llm_stream_prefill: (_, tokens, slot) => (calls.push(`prefill ${tokens.join()} ${slot}`), tokens.length),
    async eliza_inference_llm_stream_generate(_handle, max, temperature, topP, callback: TokenCallback) {
      calls.push(`generate ${max} ${temperature} ${topP}`);
      cancelled = false;
      for (const [at, word] of words.entries()) {
        await sleep(1);
        if (cancelled) break;
        callback(at, word, false);
      }
      callback(-1, "", true);
      calls.push("end");
      return 0;
    },
    eliza_inference_llm_stream_cancel: () => void (calls.push("cancel"), (cancelled = true)),
    eliza_inference_llm_stream_close: () => void calls.push("close"),
    eliza_inference_set_token_trie: (_, json, mode) => void calls.push(`set ${json} ${mode}`),
    eliza_inference_clear_token_trie: () => void calls.push("clear"),
    ...more,
  };
  return { ffi, calls };
}

test("the constraint is set behind the prefill and cleared behind the end", async () => {
  const { ffi, calls } = scripted(["a", "", "b"]);
  const chunks: string[] = [];
  const runner = new FfiStreamingRunner(ffi, { handle });
  const got = await runner.generateWithUsage({
    ...args,
    tokenTreePayload: payload,
    tokenTreeMode: 0,
    onTextChunk: (chunk) => void chunks.push(chunk),
  });
  assert.deepEqual(calls, ["prefill 1,2,3 -1", `set ${JSON.stringify(payload)} 0`, "generate 10 0.7 0.9", "end", "clear"]);
  assert.deepEqual([got.text, got.tokens, got.promptTokens, got.completionTokens], ["ab", [0, 1, 2], 3, 3]);
  assert.deepEqual([chunks, got.usage], [["a", "b"], null]);
  assert.ok(got.firstTokenMs !== null && got.firstTokenMs > 0);
});

test("without a constraint none is set or cleared", async () => {
  const { ffi, calls } = scripted(["a"]);
  await new FfiStreamingRunner(ffi, { handle }).generateWithUsage(args);
  assert.deepEqual(calls, ["prefill 1,2,3 -1", "generate 10 0.7 0.9", "end"]);
});

test("the constraint is cleared in every outcome", async () => {
  const refuse = () => {
    throw new InferenceError(-30, "refused");
  };
  const fail = () => Promise.reject(new InferenceError(-20, "not a number"));
  const options = { ...args, tokenTreePayload: payload };
  for (const more of [
    { eliza_inference_set_token_trie: refuse },
    { eliza_inference_llm_stream_generate: fail },
    { eliza_inference_llm_stream_generate: () => -1 },
  ]) {
    const { ffi, calls } = scripted([], more);
    await assert.rejects(new FfiStreamingRunner(ffi, { handle }).generateWithUsage(options), InferenceError);
    assert.equal(calls.at(-1), "clear");
  }
  const { ffi, calls } = scripted(["a", "b", "c"]);
  const failing = new FfiStreamingRunner(ffi, { handle }).generateWithUsage({
    ...options,
    onTextChunk: () => Promise.reject(new Error("the consumer failed")),
  });
  await assert.rejects(failing, /the consumer failed/);
  assert.ok(calls.includes("cancel") && calls.includes("clear"));
});

test("a library without token tries is warned about once and generates", async () => {
  const { ffi, calls } = scripted(["a"]);
  delete ffi.eliza_inference_set_token_trie;
  delete ffi.eliza_inference_clear_token_trie;
  const warnings: string[] = [];
  const runner = new FfiStreamingRunner(ffi, { handle }, { warn: (text) => warnings.push(text) });
  for (let i = 0; i < 3; i++) {
    assert.equal((await runner.generateWithUsage({ ...args, tokenTreePayload: payload })).text, "a");
  }
  assert.equal(warnings.length, 1);
  assert.equal(calls.filter((call) => call === "end").length, 3);
});

test("calls on one slot run one after the other, also behind one that failed", async () => {
  const { ffi, calls } = scripted(["a", "b"]);
  const runner = new FfiStreamingRunner(ffi, { handle });
  const aborted = runner.generateWithUsage({ ...args, slotId: 7, signal: AbortSignal.abort("before") });
  const [, first, second] = await Promise.allSettled([
    aborted,
    runner.generateWithUsage({ ...args, slotId: 7 }),
    runner.generateWithUsage({ ...args, slotId: 7 }),
  ]);
  await assert.rejects(aborted, (why) => why === "before");
  assert.deepEqual([first?.status, second?.status], ["fulfilled", "fulfilled"]);
  const one = ["prefill 1,2,3 7", "generate 10 0.7 0.9", "end"];
  assert.deepEqual(calls, [...one, ...one]);
});

test("an abort cancels between steps and throws its reason", async () => {
  const { ffi, calls } = scripted(Array.from({ length: 100 }, () => "x"));
  const abort = new AbortController();
  const running = new FfiStreamingRunner(ffi, { handle }).generateWithUsage({ ...args, signal: abort.signal });
  setTimeout(() => abort.abort(new Error("enough")), 15);
  await assert.rejects(running, /enough/);
  assert.equal(calls.filter((call) => call === "cancel").length, 1);
});

for (const delivery of WAYS) {
  test(`${delivery}: the runner on a real model`, async () => {
    const ffi = streamingAbi({ delivery });
    const opened = ffi.eliza_inference_llm_stream_open(MODEL, 512, 1, 0);
    assert.ok(opened);
    const runner = new FfiStreamingRunner(ffi, { handle: opened });
    using model = await open();
    const { payload: names } = model.tokenTrie(["REPLY", "STOP"]);
    const options = { prompt: PROMPT, slotId: 1, maxTokens: 9, temperature: 0, topP: 1 };
    const constrained = await runner.generateWithUsage({ ...options, tokenTreePayload: names });
    assert.match(constrained.text, /^ ?(REPLY|STOP)/);
    const free = await runner.generateWithUsage(options);
    assert.equal(free.usage?.spanTokens, 0);
    assert.deepEqual([free.usage?.completionTokens, free.promptTokens], [free.tokens.length, model.tokenize(PROMPT).length]);
    const long = { ...options, maxTokens: 400 };
    await assert.rejects(runner.generateWithUsage({ ...long, signal: AbortSignal.timeout(4) }), { name: "TimeoutError" });
    const twice = await Promise.all([runner.generateWithUsage(options), runner.generateWithUsage(options)]);
    assert.deepEqual(twice.map(({ text }) => text), [free.text, free.text]);
    await assert.rejects(runner.generateWithUsage({ ...options, slotId: 99 }), { code: "ELIZA_ERR_INVALID_ARG" });
    const bad = { ...names, descriptors: [] };
    await assert.rejects(runner.generateWithUsage({ ...options, tokenTreePayload: bad }), { code: "ELIZA_ERR_TRIE" });
    assert.equal((await runner.generateWithUsage(options)).text, free.text);
    ffi.eliza_inference_llm_stream_close(opened);
  });

  test(`${delivery}: the interface under the C names keeps its contract`, async () => {
    const ffi = streamingAbi({ delivery });
    assert.equal(ffi.eliza_inference_llm_stream_open("/nonexistent.gguf", 0, 0, 0), null);
    assert.match(ffi.eliza_inference_take_last_error() ?? "", /nonexistent/);
    const opened = ffi.eliza_inference_llm_stream_open(MODEL, 512, 1, 0);
    assert.ok(opened);
    const tokens = ffi.eliza_inference_llm_stream_tokenize(opened, PROMPT, true, false);
    assert.equal(ffi.eliza_inference_llm_stream_prefill(opened, tokens, -1), tokens.length);
    const events: [number, string, boolean][] = [];
    const record: TokenCallback = (...event) => void events.push(event);
    assert.equal(await ffi.eliza_inference_llm_stream_generate(opened, 5, 0, 1, record), 0);
    assert.deepEqual(events.map(([, , done]) => done), [false, false, false, false, false, true]);
    assert.deepEqual(events.at(-1)?.[0], -1);
    assert.equal(await ffi.eliza_inference_llm_stream_generate(opened, 5, 0, 1, record), -1, "no prefill");
    assert.match(ffi.eliza_inference_llm_stream_take_error(opened) ?? "", /prefill/);
    assert.equal(ffi.eliza_inference_llm_stream_prefill(opened, new Int32Array(0), -1), -1);
    assert.equal(ffi.eliza_inference_llm_stream_status(opened), -2);
    // Cancelled from inside the callback: still one end, and 0.
    ffi.eliza_inference_llm_stream_prefill(opened, tokens, -1);
    let ends = 0;
    const cancelling: TokenCallback = (_token, _text, done) => {
      if (done) ends++;
      else ffi.eliza_inference_llm_stream_cancel(opened);
    };
    assert.equal(await ffi.eliza_inference_llm_stream_generate(opened, -1, 0, 1, cancelling), 0);
    assert.equal(ends, 1);
    ffi.eliza_inference_llm_stream_prefill(opened, tokens, -1);
    const throwing: TokenCallback = () => {
      throw new Error("the host failed");
    };
    await assert.rejects(async () => ffi.eliza_inference_llm_stream_generate(opened, -1, 0, 1, throwing), /the host failed/);
    ffi.eliza_inference_llm_stream_close(opened);
    ffi.eliza_inference_llm_stream_close(opened);
    assert.equal(ffi.eliza_inference_llm_stream_prefill(opened, tokens, -1), -1);
  });
}

test("the Android agent's binding", () => {
  const ffi = streamingAbi() as ElizaStreamingAbi;
  const aosp = aospStreaming(ffi);
  assert.ok(aosp.llmStreamSupported());
  const config = {
    maxTokens: 20,
    temperature: 0,
    topP: 1,
    topK: 40,
    repeatPenalty: 1,
    slotId: 0,
    promptCacheKey: null,
    draftMin: 0,
    draftMax: 0,
    dflashDrafterPath: null,
    disableThinking: false,
  };
  assert.throws(() => aosp.openContext("/nonexistent.gguf", 0, 0, 0), { code: "ELIZA_ERR_IO" });
  const ctx = aosp.openContext(MODEL, 512, 1, 0);
  const plain = ffi.eliza_inference_llm_stream_open(MODEL, 64, 1, 0);
  assert.ok(plain);
  const tokens = ffi.eliza_inference_llm_stream_tokenize(plain, PROMPT, true, false);
  ffi.eliza_inference_llm_stream_close(plain);
  const run = (before: (stream: bigint) => void = () => {}) => {
    const stream = aosp.llmStreamOpen({ ctx, config });
    aosp.llmStreamPrefill({ stream, tokens });
    before(stream);
    let text = "";
    let count = 0;
    for (let done = false; !done; ) {
      const step = aosp.llmStreamNext({ stream, maxTokensPerStep: 3 });
      assert.ok(step.tokens.length <= 3);
      assert.deepEqual([step.drafterDrafted, step.drafterAccepted], [0, 0]);
      [text, count, done] = [text + step.text, count + step.tokens.length, step.done];
    }
    assert.throws(() => aosp.llmStreamNext({ stream }), /is over/);
    aosp.llmStreamClose(stream);
    aosp.llmStreamClose(stream);
    return { text, count };
  };
  const free = run();
  const leaves = [{ name: "x", tokens: [300, 301] }, { name: "y", tokens: [302] }];
  const triePayloadJson = JSON.stringify({ modelId: "", descriptors: [{ path: "action", leaves }] });
  const constrained = run((stream) => aosp.llmStreamSetTokenTrie?.({ stream, triePayloadJson, mode: 0 }));
  assert.notDeepEqual(constrained, free);
  const set = (stream: bigint) => {
    aosp.llmStreamSetTokenTrie?.({ stream, triePayloadJson, mode: 0 });
    aosp.llmStreamClearTokenTrie?.({ stream });
  };
  assert.deepEqual([run(), run(set)], [free, free], "closing and clearing take the constraint away");
  const stream = aosp.llmStreamOpen({ ctx, config });
  assert.throws(() => aosp.llmStreamOpen({ ctx, config }), { code: "ELIZA_ERR_BUSY" });
  assert.throws(() => aosp.llmStreamNext({ stream }), { code: "ELIZA_ERR_BUSY" });
  assert.throws(() => aosp.llmStreamSaveSlot({ stream, filename: "x" }), { code: "ELIZA_ERR_NOT_IMPLEMENTED" });
  aosp.llmStreamClose(stream);
  const cancelled = aosp.llmStreamOpen({ ctx, config: { ...config, maxTokens: -1 } });
  aosp.llmStreamPrefill({ stream: cancelled, tokens });
  aosp.llmStreamNext({ stream: cancelled, maxTokensPerStep: 1 });
  aosp.llmStreamCancel(cancelled);
  aosp.llmStreamClose(cancelled);
  assert.deepEqual(run(), free);
  aosp.closeContext(ctx);
  aosp.closeContext(ctx);
  assert.throws(() => aosp.llmStreamOpen({ ctx, config }), /not open/);

  const { eliza_inference_set_token_trie: _, ...older } = ffi;
  assert.equal("llmStreamSetTokenTrie" in aospStreaming(older as ElizaStreamingAbi), false);
});
