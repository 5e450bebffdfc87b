import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import {
  aospStreaming,
  FfiStreamingRunner,
  InferenceError,
  STATUS,
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

test("the constraint is set after the prefill and cleared after the end", async () => {
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

test("calls on one slot run one after the other, also after one that failed", async () => {
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

/** What an interface's `generate` may do, beside what {@link scripted} does. `events` hands out words and the end later. */
type Events = (words: string[], atEnd?: () => void) => void;
function interfaces(generate: (events: Events, callback: TokenCallback) => number | Promise<number>, status = 0) {
  let cancelled = false;
  const made = scripted([], {
    eliza_inference_llm_stream_generate(_handle, _max, _temperature, _topP, callback) {
      const events: Events = (words, atEnd = () => {}) => {
        void (async () => {
          for (const [at, word] of words.entries()) {
            await sleep(1);
            if (!cancelled) callback(at, word, false);
          }
          await sleep(1);
          made.calls.push("end");
          callback(-1, "", true);
          atEnd();
        })();
      };
      made.calls.push("generate");
      return generate(events, callback);
    },
    eliza_inference_llm_stream_cancel: () => void (made.calls.push("cancel"), (cancelled = true)),
  });
  const ffi = {
    ...made.ffi,
    eliza_inference_llm_stream_status: () => status,
    eliza_inference_llm_stream_take_error: () => "row 3 is not a number",
  };
  return { ...made, ffi };
}
const constrained = { ...args, tokenTreePayload: payload };
const set = `set ${JSON.stringify(payload)} 0`;

test("the runner waits for the last event, whatever generate returns", async () => {
  const words = ["a", "b", "c"];
  for (const generate of [
    (events: Events) => (events(words), 0),
    (events: Events) => (events(words), Promise.resolve(0)),
    (events: Events) => new Promise<number>((resolve) => events(words, () => resolve(0))),
    (events: Events) => new Promise<number>((resolve) => events(words, () => void sleep(5).then(() => resolve(0)))),
    (_: Events, callback: TokenCallback) => {
      for (const [at, word] of words.entries()) callback(at, word, false);
      callback(-1, "", true);
      return 0;
    },
  ]) {
    const { ffi, calls } = interfaces(generate);
    const { text, tokens } = await new FfiStreamingRunner(ffi, { handle }).generateWithUsage(constrained);
    assert.deepEqual([text, tokens], ["abc", [0, 1, 2]]);
    assert.deepEqual(calls.filter((call) => call !== "end"), ["prefill 1,2,3 -1", set, "generate", "clear"]);
    assert.ok(!calls.includes("end") || calls.indexOf("clear") > calls.indexOf("end"), calls.join());
  }
});

test("a generation that fails, at once or late, throws and is cleared away", async () => {
  const failed = new InferenceError(STATUS.ELIZA_ERR_NAN, "rejected late");
  for (const [generate, status, message] of [
    [() => -1, STATUS.ELIZA_ERR_BUSY, /row 3/],
    [() => Promise.resolve(-1), STATUS.ELIZA_ERR_BUSY, /row 3/],
    [() => sleep(3).then(() => -1), STATUS.ELIZA_ERR_BUSY, /row 3/],
    [(events: Events) => (events(["a"]), 0), STATUS.ELIZA_ERR_NAN, /row 3/],
    [(events: Events) => (events(["a"]), Promise.resolve(0)), STATUS.ELIZA_ERR_NAN, /row 3/],
    [(events: Events) => (events(["a", "b", "c"]), sleep(2).then(() => Promise.reject(failed))), 0, /late/],
    [(events: Events) => new Promise<number>((_, reject) => events(["a"], () => reject(failed))), 0, /late/],
    [(events: Events) => new Promise<number>((resolve) => events(["a"], () => resolve(-1))), STATUS.ELIZA_ERR_NAN, /row 3/],
  ] as const) {
    const { ffi, calls } = interfaces(generate, status);
    const run = new FfiStreamingRunner(ffi, { handle }).generateWithUsage(constrained);
    await assert.rejects(run, { name: "InferenceError", status: status || STATUS.ELIZA_ERR_NAN, message });
    assert.equal(calls.filter((call) => call === "clear").length, 1);
    await sleep(10); // events of a generation that was given up change nothing
  }
  // Cancelled by somebody else: what there is of the text.
  const { ffi } = interfaces((events) => (events(["a"]), 0), STATUS.ELIZA_ERR_CANCELLED);
  assert.equal((await new FfiStreamingRunner(ffi, { handle }).generateWithUsage(args)).text, "a");
});

test("an abort throws its reason, also where no end ever comes", async () => {
  const reason = new Error("enough");
  const never: (() => number | Promise<number>)[] = [
    () => 0,
    () => Promise.resolve(0),
    () => new Promise<number>(() => {}),
  ];
  for (const generate of never) {
    const { ffi, calls } = interfaces(generate);
    const runner = new FfiStreamingRunner(ffi, { handle }, { cancelTimeoutMs: 20 });
    const [abort, later] = [new AbortController(), new AbortController()];
    const run = runner.generateWithUsage({ ...constrained, signal: abort.signal });
    const next = runner.generateWithUsage({ ...args, signal: later.signal });
    while (!calls.includes("generate")) await sleep(1);
    abort.abort(reason);
    setTimeout(() => later.abort("later"), 60);
    await assert.rejects(run, reason);
    assert.deepEqual(calls.slice(0, 5), ["prefill 1,2,3 -1", set, "generate", "cancel", "clear"]);
    await assert.rejects(next, (why) => why === "later", "the next call has its turn");
  }
  // The end follows, or a promise that says no: the reason of the abort is what is thrown.
  for (const generate of [
    (events: Events) => (events(Array(100).fill("x")), 0),
    () => sleep(10).then(() => Promise.reject(new Error("cancelled"))),
    () => sleep(10).then(() => -1),
  ]) {
    const { ffi, calls } = interfaces(generate, STATUS.ELIZA_ERR_CANCELLED);
    const abort = new AbortController();
    const run = new FfiStreamingRunner(ffi, { handle }).generateWithUsage({ ...constrained, signal: abort.signal });
    while (!calls.includes("generate")) await sleep(1);
    abort.abort(reason);
    await assert.rejects(run, reason);
    assert.deepEqual(calls.filter((call) => /^(cancel|clear)$/.test(call)), ["cancel", "clear"]);
  }
});

/** An interface as hosts have it for tests: handles are objects, the last event has token 0, `generate` resolves after it. */
function mock(words: string[]) {
  let cancelled = false;
  const seen: unknown[][] = [];
  const note = (...call: unknown[]) => void seen.push(call);
  const ffi: FfiLlmStreamingAbi = {
    eliza_inference_llm_stream_open: () => ({}) as FfiLlmHandle,
    eliza_inference_llm_stream_prefill: (...call) => (note("prefill", ...call), call[1].length),
    async eliza_inference_llm_stream_generate(_handle, _max, _temperature, _topP, callback) {
      note("generate");
      for (const [token, word] of words.entries()) {
        await Promise.resolve();
        if (cancelled) break;
        callback(token, word, false);
      }
      callback(0, "", true);
      return 0;
    },
    eliza_inference_llm_stream_cancel: () => void (cancelled = true),
    eliza_inference_llm_stream_close: () => {},
    eliza_inference_set_token_trie: (...call) => note("set", ...call),
    eliza_inference_clear_token_trie: (...call) => note("clear", ...call),
  };
  return { ffi, seen, handle: ffi.eliza_inference_llm_stream_open("", 0, 0, 0) as FfiLlmHandle };
}

test("the founding document's test of the runner, with its mock", async () => {
  const { ffi, seen, handle: object } = mock(["Hel", "lo"]);
  const chunks: string[] = [];
  const got = await new FfiStreamingRunner(ffi, { handle: object }).generateWithUsage({
    promptTokens: new Int32Array([1, 2, 3]),
    slotId: -1,
    maxTokens: 10,
    temperature: 0.7,
    topP: 0.9,
    tokenTreePayload: payload,
    tokenTreeMode: 0,
    onTextChunk: (chunk) => void chunks.push(chunk),
  });
  assert.deepEqual(seen.map(([name]) => name), ["prefill", "set", "generate", "clear"]);
  assert.deepEqual(seen[1]?.slice(1), [object, JSON.stringify(payload), 0]);
  assert.deepEqual([got.text, got.tokens, chunks], ["Hello", [0, 1], ["Hel", "lo"]]);
  // Cancelled from inside the callback: one end, and what came before it.
  const cancelling = mock(["a", "b", "c"]);
  const run = new FfiStreamingRunner(cancelling.ffi, { handle: cancelling.handle });
  const onTextChunk = () => cancelling.ffi.eliza_inference_llm_stream_cancel(cancelling.handle);
  assert.match((await run.generateWithUsage({ ...args, onTextChunk })).text, /^ab?$/);
});

/** How the founding document's runner waits: refused unless 0 comes back at once, over with `isDone`. */
async function toTheEnd(ffi: FfiLlmStreamingAbi, on: FfiLlmHandle, maxTokens: number): Promise<string> {
  let whole = "";
  await new Promise<void>((resolve, reject) => {
    const result = ffi.eliza_inference_llm_stream_generate(on, maxTokens, 0, 1, (_token, text, isDone) => {
      whole += text;
      if (isDone) resolve();
    });
    if (result !== 0) reject(new Error(`generate failed: ${String(result)}`));
  });
  return whole;
}

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
    assert.equal(ffi.eliza_inference_llm_stream_generate(opened, 5, 0, 1, record), 0);
    assert.equal(events.length, 0, "no event comes before generate has returned");
    for (const call of [
      () => ffi.eliza_inference_llm_stream_prefill(opened, tokens, -1),
      () => ffi.eliza_inference_llm_stream_generate(opened, 5, 0, 1, record),
    ]) {
      assert.deepEqual([call(), ffi.eliza_inference_llm_stream_status(opened)], [-1, 2]);
      assert.match(ffi.eliza_inference_llm_stream_take_error(opened) ?? "", /^Busy/);
    }
    while (events.at(-1)?.[2] !== true) await sleep(1);
    assert.equal(ffi.eliza_inference_llm_stream_status(opened), 1, "a limit ended it");
    assert.deepEqual(events.map(([, , done]) => done), [false, false, false, false, false, true]);
    assert.deepEqual(events.at(-1)?.[0], -1);
    assert.equal(ffi.eliza_inference_llm_stream_generate(opened, 5, 0, 1, record), -1, "no prefill");
    assert.match(ffi.eliza_inference_llm_stream_take_error(opened) ?? "", /prefill/);
    assert.equal(ffi.eliza_inference_llm_stream_prefill(opened, new Int32Array(0), -1), -1);
    assert.equal(ffi.eliza_inference_llm_stream_status(opened), -2);
    assert.match(ffi.eliza_inference_llm_stream_take_error(opened) ?? "", /no tokens/);
    const said = events.map(([, text]) => text).join("");
    ffi.eliza_inference_llm_stream_prefill(opened, tokens, -1);
    assert.equal(await toTheEnd(ffi, opened, 5), said, "the founding document's way to wait");
    await assert.rejects(toTheEnd(ffi, opened, 5), /generate failed: -1/);
    assert.equal(ffi.eliza_inference_llm_stream_status(opened), STATUS.ELIZA_ERR_BUSY);
    assert.match(ffi.eliza_inference_llm_stream_take_error(opened) ?? "", /prefill/);
    // Cancelled from inside the callback: still one end.
    ffi.eliza_inference_llm_stream_prefill(opened, tokens, -1);
    let ends = 0;
    const cancelling: TokenCallback = (_token, _text, done) => {
      if (done) ends++;
      else ffi.eliza_inference_llm_stream_cancel(opened);
    };
    assert.equal(ffi.eliza_inference_llm_stream_generate(opened, -1, 0, 1, cancelling), 0);
    while (ends === 0) await sleep(1);
    await sleep(5);
    assert.equal(ends, 1);
    assert.equal(ffi.eliza_inference_llm_stream_status(opened), STATUS.ELIZA_ERR_CANCELLED);
    assert.equal(ffi.eliza_inference_llm_stream_take_error(opened), null);
    // Closed while tokens are on their way: still one end.
    ffi.eliza_inference_llm_stream_prefill(opened, tokens, -1);
    ends = 0;
    ffi.eliza_inference_llm_stream_generate(opened, -1, 0, 1, (_token, _text, done) => void (ends += Number(done)));
    ffi.eliza_inference_llm_stream_close(opened);
    assert.equal(ffi.eliza_inference_llm_stream_status(opened), -1);
    while (ends === 0) await sleep(1);
    await sleep(5);
    assert.equal(ends, 1);
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
      assert.ok(step.drafterAccepted <= step.drafterDrafted);
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
  const refusal = { code: "ELIZA_ERR_NOT_IMPLEMENTED", message: /speculative/ };
  for (const drafting of [{ draftMin: 1 }, { draftMax: 4 }, { draftMax: 4, dflashDrafterPath: "drafter.gguf" }]) {
    assert.throws(() => aosp.llmStreamOpen({ ctx, config: { ...config, ...drafting } }), refusal);
  }
  const stream = aosp.llmStreamOpen({ ctx, config });
  assert.throws(() => aosp.llmStreamOpen({ ctx, config }), { code: "ELIZA_ERR_BUSY" });
  assert.throws(() => aosp.llmStreamNext({ stream }), { code: "ELIZA_ERR_BUSY" });
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

/** A context of the agent's binding, the slots of its prefills, and a stream taken to its end. */
function agent(contextSize = 512) {
  const ffi = streamingAbi();
  const slots: number[] = [];
  let on: FfiLlmHandle | undefined;
  const watched = new Proxy(ffi, {
    get(target, name: keyof ElizaStreamingAbi) {
      if (name !== "eliza_inference_llm_stream_prefill") return (target[name] as Function | undefined)?.bind(target);
      return (handle: FfiLlmHandle, tokens: Int32Array, slot: number) => {
        [on] = [handle, slots.push(slot)];
        return target[name](handle, tokens, slot);
      };
    },
  });
  const aosp = aospStreaming(watched);
  const ctx = aosp.openContext(MODEL, contextSize, 1, 0);
  const pull = (stream: bigint, most = Infinity) => {
    const tokens: number[] = [];
    for (let done = false; !done && tokens.length < most; ) {
      const step = aosp.llmStreamNext({ stream, maxTokensPerStep: 1 });
      tokens.push(...step.tokens);
      done = step.done;
    }
    return tokens;
  };
  const prompt = (length: number, first: number) => Int32Array.from({ length }, (_, i) => 5 + ((first + i) % 400));
  const reused = () => ffi.eliza_inference_llm_stream_usage(on as FfiLlmHandle).promptTokensReused;
  return { aosp, ctx, slots, pull, prompt, reused };
}

const sampled = {
  maxTokens: 12,
  temperature: 0,
  topP: 1,
  topK: 40,
  repeatPenalty: 1,
  slotId: -1,
  promptCacheKey: null as string | null,
  draftMin: 0,
  draftMax: 0,
  dflashDrafterPath: null,
  disableThinking: false,
};

test("the Android agent's streams are saved and restored", () => {
  const filename = join(mkdtempSync(join(tmpdir(), "eliza-")), "stream.slot");
  const { aosp, ctx, pull, prompt } = agent();
  const tokens = prompt(9, 0);
  const begun = (config: typeof sampled) => {
    const stream = aosp.llmStreamOpen({ ctx, config });
    aosp.llmStreamPrefill({ stream, tokens });
    return stream;
  };
  const whole = begun({ ...sampled, slotId: 2 });
  const expected = pull(whole);
  aosp.llmStreamClose(whole);
  const first = begun({ ...sampled, maxTokens: 5, promptCacheKey: "first" });
  const before = pull(first);
  aosp.llmStreamSaveSlot({ stream: first, filename });
  aosp.llmStreamClose(first);
  aosp.closeContext(ctx);

  const other = agent();
  for (const promptCacheKey of [null, "second"]) {
    const config = { ...sampled, maxTokens: 7, promptCacheKey };
    const stream = other.aosp.llmStreamOpen({ ctx: other.ctx, config });
    assert.throws(() => other.aosp.llmStreamSaveSlot({ stream, filename }), { code: "ELIZA_ERR_INVALID_ARG" });
    other.aosp.llmStreamRestoreSlot({ stream, filename });
    assert.deepEqual([...before, ...other.pull(stream)], expected, "it goes on where it stopped");
    other.aosp.llmStreamSaveSlot({ stream, filename: `${filename}2` });
    other.aosp.llmStreamClose(stream);
  }
  const stream = other.aosp.llmStreamOpen({ ctx: other.ctx, config: { ...sampled, maxTokens: -1, slotId: 3 } });
  const save = (name: string) => other.aosp.llmStreamSaveSlot({ stream, filename: name });
  const restore = (name: string) => other.aosp.llmStreamRestoreSlot({ stream, filename: name });
  other.aosp.llmStreamPrefill({ stream, tokens });
  assert.throws(() => save("/nonexistent/slot"), { code: "ELIZA_ERR_IO" });
  assert.throws(() => restore("/nonexistent/slot"), { code: "ELIZA_ERR_IO" });
  writeFileSync(filename, "damaged");
  assert.throws(() => restore(filename), { code: "ELIZA_ERR_SAVED_SLOT" });
  assert.throws(() => save("a\0b"), { code: "ELIZA_ERR_INVALID_ARG" });
  assert.deepEqual(other.pull(stream, 12), expected, "and nothing is lost");
  other.aosp.llmStreamClose(stream);
  assert.throws(() => save(filename), /not open/);
  other.aosp.closeContext(other.ctx);
});

test("a prompt cache key has a slot of its context, used least recently where there is none left", () => {
  const { aosp, ctx, slots, prompt, reused } = agent(2048);
  const prefill = (promptCacheKey: string | null, first: number, slotId = -1) => {
    const stream = aosp.llmStreamOpen({ ctx, config: { ...sampled, promptCacheKey, slotId } });
    aosp.llmStreamPrefill({ stream, tokens: prompt(20, first) });
    aosp.llmStreamClose(stream);
    return [slots.at(-1) as number, reused()] as const;
  };
  const keys = Array.from({ length: 16 }, (_, i) => `conversation ${i}`);
  const first = keys.map((key, i) => prefill(key, i)[0]);
  assert.deepEqual([...first].sort((a, b) => a - b), keys.map((_, i) => i), "every slot is used");
  for (const [i, key] of keys.entries()) assert.deepEqual(prefill(key, i), [first[i], 19], key);
  // A new key takes the slot of the oldest, which then takes that of the next oldest.
  assert.deepEqual(prefill("one more", 100), [first[0], 0]);
  assert.deepEqual(prefill(keys[0] as string, 0), [first[1], 0]);
  assert.deepEqual(prefill(keys[2] as string, 2), [first[2], 19]);
  // A slot by its number takes it from its key.
  assert.deepEqual(prefill(null, 200, first[3]), [first[3], 0]);
  assert.deepEqual(prefill(null, 200, first[3]), [first[3], 19]);
  assert.equal(prefill(keys[3] as string, 3)[0], first[4]);
  assert.equal(prefill(null, 0)[0], -1, "without a key the stream's slotId");
  aosp.closeContext(ctx);
});

for (const delivery of WAYS) {
  test(`${delivery}: what a callback throws is an uncaught error, and the last event still comes`, () => {
    const script = join(import.meta.dirname, "throwing.js");
    const { status, stdout, stderr } = spawnSync(process.execPath, [script, delivery], { encoding: "utf8" });
    assert.deepEqual([status, stderr], [0, ""]);
    assert.deepEqual(stdout.trim().split("\n"), ["uncaught the host failed", "1 tokens, 1 end, status -7"]);
  });
}
