/** What a host asks, against what the command line answers. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import {
  devices,
  fileMetadata,
  load,
  plan,
  setLogSink,
  type AnswerOptions,
  type ChatMessage,
  type ChatPart,
  type LogLevel,
  type Model,
  type OpenOptions,
  type SampledToken,
} from "eliza-inference";
import { camelCased } from "../js/describe.js";
import { MODEL, PROMPT, WAYS, open, sleep, whole } from "./support.js";

const PROGRAM = join(dirname(process.env["ELIZA_INFERENCE_LIBRARY"] ?? ""), "eliza-inference");

/** What the program prints. */
function program(...args: string[]): string {
  const { status, stdout, stderr } = spawnSync(PROGRAM, args, { encoding: "utf8" });
  assert.equal(status, 0, `${args.join(" ")}\n${stderr}`);
  return stdout;
}

/** The same without what changes from moment to moment. */
function lasting(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value, (key, field: unknown) => (key === "availableBytes" ? null : field)));
}

test("devices are those of the program", async () => {
  const found = await devices();
  assert.deepEqual(lasting(found), lasting(camelCased(JSON.parse(program("devices", "--json")))));
  const cpu = found.find(({ kind }) => kind === "cpu");
  assert.ok(cpu !== undefined && cpu.score > 0 && cpu.reason !== "");
  assert.ok(cpu.availableBytes === null || cpu.availableBytes > 0);
  using model = await open();
  assert.equal(model.describe().device, cpu.name);
});

test("a plan is that of the program, and loads nothing", async () => {
  const options: OpenOptions = { contextSize: 512, slots: 2, kvType: "f32" };
  const planned = await plan(MODEL, options);
  const printed = program("plan", "--model", MODEL, "--ctx", "512", "--slots", "2", "--kv-type", "f32", "--json");
  assert.deepEqual(lasting(planned), lasting(camelCased(JSON.parse(printed))));
  assert.deepEqual([planned.context, planned.kvType, planned.kvTypeV, planned.nBatch], [512, "f32", "f32", 512]);
  const [device] = planned.devices;
  assert.ok(device !== undefined);
  assert.equal(device.totalBytes, Object.values(device.bytes).reduce((sum, bytes) => sum + bytes, 0));
  // Values of half the size, and fewer rows at once.
  const smaller = (await plan(MODEL, { ...options, kvTypeV: "f16", nBatch: 16 })).devices[0];
  assert.equal(smaller?.bytes.kvCache, (device.bytes.kvCache * 3) / 4);
  assert.ok((smaller?.bytes.workspace ?? Infinity) < device.bytes.workspace);
  const drafted = await plan(MODEL, { ...options, draft: MODEL });
  assert.equal(drafted.draft?.totalBytes, device.totalBytes);
  assert.equal(drafted.devices[0]?.totalBytes, device.totalBytes * 2);
  await assert.rejects(plan("/nonexistent.gguf"), { code: "ELIZA_ERR_IO", message: /nonexistent/ });
  await assert.rejects(plan(MODEL, { nBatch: 513 }), { code: "ELIZA_ERR_INVALID_ARG", message: /513/ });
  const split = plan(MODEL, { gpuLayers: -1, tensorSplit: [0, 0] });
  await assert.rejects(split, { code: "ELIZA_ERR_INVALID_ARG", message: /`0,0`/ });
  await assert.rejects(plan("a\0b"), { code: "ELIZA_ERR_INVALID_ARG", message: /NUL/ });
});

test("a file's metadata is that of the program, whole and by key", async () => {
  const all = await fileMetadata(MODEL);
  const { keys } = JSON.parse(program("inspect", "--json", "--keys", MODEL)) as { keys: Record<string, unknown> };
  assert.deepEqual(Object.keys(all).sort(), Object.keys(keys).sort());
  assert.equal(all["general.architecture"], "llama");
  assert.deepEqual(all["tokenizer.ggml.tokens"], { type: "String", length: 512 });
  const tokens = await fileMetadata(MODEL, "tokenizer.ggml.tokens");
  assert.ok(Array.isArray(tokens) && tokens.length === 512);
  using model = await open();
  assert.deepEqual(model.metadata(), all);
  assert.deepEqual(model.metadata("tokenizer.ggml.tokens"), tokens);
  for (const [key, value] of Object.entries(all)) {
    if (typeof value !== "object") assert.equal(model.metadata(key), value, key);
  }
  assert.throws(() => model.metadata("no.such"), { code: "ELIZA_ERR_INVALID_ARG", message: /no\.such/ });
  assert.throws(() => model.metadata("a\0b"), { code: "ELIZA_ERR_INVALID_ARG", message: /NUL/ });
  await assert.rejects(fileMetadata(MODEL, "no.such"), { code: "ELIZA_ERR_INVALID_ARG", message: /no\.such/ });
  await assert.rejects(fileMetadata("/nonexistent.gguf"), { code: "ELIZA_ERR_IO" });
});

test("a model describes itself and its tokens", async () => {
  using model = await open({ slots: 3, nBatch: 64, kvType: "f32", kvTypeV: "f16" });
  const all = await fileMetadata(MODEL);
  const about = model.describe();
  assert.deepEqual(
    [about.path, about.nVocab, about.context, about.slots, about.threads, about.nBatch, about.kvType, about.kvTypeV],
    [MODEL, 512, 512, 3, 1, 64, "f32", "f16"],
  );
  assert.deepEqual(
    [about.architecture, about.nEmbd, about.nLayer, about.nHead, about.trainContext],
    ["architecture", "embedding_length", "block_count", "attention.head_count", "context_length"].map(
      (key, i) => all[i === 0 ? `general.${key}` : `llama.${key}`],
    ),
  );
  assert.deepEqual([about.names, about.vocabOnly, about.addBos], [model.info.ids, false, true]);
  assert.equal(about.special.bos, model.tokenize("")[0]);
  assert.ok(about.special.eos !== null && about.eog.includes(about.special.eos));
  assert.equal(about.special.fimPre, null);

  const texts = model.metadata("tokenizer.ggml.tokens") as string[];
  const scores = model.metadata("tokenizer.ggml.scores") as number[];
  for (let id = 0; id < about.nVocab; id++) {
    const token = model.token(id);
    assert.deepEqual([token.id, token.text, token.isEog], [id, texts[id], about.eog.includes(id)]);
    assert.equal(model.isEog(id), token.isEog);
    assert.ok(token.score !== null && Math.abs(token.score - (scores[id] ?? NaN)) < 1e-6);
    assert.ok(token.attributes.length > 0);
    if (token.piece !== null) assert.deepEqual(token.bytes, [...new TextEncoder().encode(token.piece)]);
  }
  const said = model.tokenize("Once upon żółć", { addSpecial: false });
  const bytes = Uint8Array.from([...said].flatMap((id) => model.token(id).bytes));
  assert.equal(new TextDecoder().decode(bytes).trimStart(), "Once upon żółć");
  assert.ok(model.token(about.special.bos ?? -1).attributes.includes("control"));
  for (const id of [-1, 512]) {
    assert.throws(() => model.token(id), { code: "ELIZA_ERR_INVALID_ARG", message: new RegExp(`${id}`) });
    assert.throws(() => model.isEog(id), { code: "ELIZA_ERR_INVALID_ARG", message: new RegExp(`${id}`) });
  }
});

test("messages become a prompt", async () => {
  using model = await open();
  const messages = [{ role: "user", content: "Once <s>" }];
  const { text, tokens } = model.chatPrompt(messages);
  assert.equal(text, "<s>user: Once <s>\nassistant:");
  assert.equal(tokens.filter((id) => id === 1).length, 1);
  assert.equal(tokens[0], 1);
  assert.equal(model.chatPrompt(messages, { addGenerationPrompt: false }).text, "<s>user: Once <s>\n");
  // A system turn, which this template has not, begins the user's; typed parts are a text.
  const parts = [{ type: "text", text: "a" }, { type: "text", text: "b" }];
  const adapted = model.chatPrompt([{ role: "developer", content: "brief" }, { role: "user", content: parts }]);
  assert.equal(adapted.text, "<s>user: brief\na\nb\nassistant:");
  assert.throws(() => model.chatPrompt([{ role: "user" }]), { code: "ELIZA_ERR_INVALID_ARG", message: /chat template/ });

  for (const [message, problem] of [[{ content: "x" }, /no `role`/], [{ role: "narrator", content: "x" }, /"narrator"/]] as const) {
    assert.throws(() => model.chatPrompt([message as ChatMessage]), { code: "ELIZA_ERR_INVALID_ARG", message: problem });
  }

  // Without marks an answer is the text of the stream.
  const options = { maxTokens: 5, temperature: 0 };
  let said = "";
  for await (const part of model.chat(messages, options)) said += part.type === "answer" ? part.text : `[${part.type}]`;
  assert.equal(said, (await whole(model, Int32Array.from(tokens), options)).text);
});

/** The parts of an answer, neighbours of one type joined. */
async function answer(model: Model, messages: readonly ChatMessage[], options: AnswerOptions = {}): Promise<ChatPart[]> {
  const all: ChatPart[] = [];
  for await (const part of model.chat(messages, { seed: 1, ...options })) {
    const last = all.at(-1);
    if (last !== undefined && last.type !== "tool_call" && part.type === last.type) last.text += part.text;
    else all.push({ ...part });
  }
  return all;
}

test("answers come apart", async () => {
  using model = await load(join(dirname(MODEL), "script.gguf"), { contextSize: 256, threads: 1 });
  const messages = [{ role: "user", content: "hi" }];
  const tools = [{ type: "function", function: { name: "look", parameters: {} } }];
  const hello: ChatPart = { type: "answer", text: "Hello there." };
  assert.deepEqual(await answer(model, messages), [{ type: "reasoning", text: "Hm" }, hello]);
  assert.deepEqual(await answer(model, messages, { thinking: false }), [hello]);
  const called: ChatPart = { type: "tool_call", name: "look", arguments: '{"at": "sky"}' };
  assert.deepEqual(await answer(model, messages, { tools }), [called]);
  for (const trieMode of ["greedy", "sampled", "score"] as const) {
    const [chosen, ...others] = await answer(model, messages, { choices: ["yes", "perhaps"], trieMode });
    assert.ok(chosen?.type === "answer" && ["yes", "perhaps"].includes(chosen.text) && others.length === 0);
  }
  // A call's name is chosen: the text before it was given, the text after it is one of the call's.
  const named = await answer(model, messages, {
    tools,
    answerStart: '<tool_call>\n{"name": "',
    choices: ["look", "leap"],
    choicesEnd: '"}\n</tool_call>',
  });
  assert.ok(named.length === 1 && named[0]?.type === "tool_call" && ["look", "leap"].includes(named[0].name));

  // An answer that is left ends, and the next one begins anew.
  for await (const part of model.chat([{ role: "user", content: "long" }])) if (part.type === "answer") break;
  const both = await Promise.all([answer(model, messages), answer(model, messages, { tools })]);
  assert.deepEqual(both, [[{ type: "reasoning", text: "Hm" }, hello], [called]]);
  const steps = model.chat(messages, { maxTokens: 3 });
  for (let step = await steps.next(); ; step = await steps.next()) if (step.done) {
    assert.equal(step.value, "length");
    break;
  }
  assert.throws(() => model.chatPrompt(messages, { answerStart: "x", addGenerationPrompt: false }), /add_generation_prompt/);
  const { text } = await whole(model, model.chatPrompt(messages).tokens, { specialText: true, seed: 1 });
  assert.ok(text.startsWith("<think>"), text);
});

/** Three texts of different lengths. */
const TEXTS = ["Once upon a time there was a little girl", "a dog", "They went to the park and saw a big ball"];

test("embeddings are those of the program", async () => {
  const printed = (...args: string[]): number[][] =>
    JSON.parse(program("embed", "--model", MODEL, "--threads", "1", ...args, "--json", ...TEXTS)).embeddings;
  using model = await open();
  const mean = await model.embed(TEXTS, { pooling: "mean" });
  assert.deepEqual(mean, printed("--pooling", "mean").map((row) => Float32Array.from(row)));
  for (const row of mean) assert.ok(Math.abs(row.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-4);
  const cut = await model.embed(TEXTS, { pooling: "last", dimensions: 8, normalize: false });
  const last = printed("--pooling", "last", "--dimensions", "8", "--no-normalize");
  assert.deepEqual(cut, last.map((row) => Float32Array.from(row)));
  // Without pooling a text has a row for each of its tokens; token ids are texts too.
  const tokens = TEXTS.map((text) => model.tokenize(text));
  const rows = await model.embed(tokens, { pooling: "none" });
  const width = mean[0]?.length ?? 0;
  assert.deepEqual(rows.map((of) => of.length), tokens.map(({ length }) => length * width));
  assert.deepEqual(await model.embed([]), []);
  // Others wait for their turn.
  const [one, two] = await Promise.all([model.embed(["a dog"], { pooling: "mean" }), model.embed(["a dog"], { pooling: "mean" })]);
  assert.deepEqual(one, two);
  await assert.rejects(model.embed([""], { pooling: "mean", dimensions: 1e6 }), { code: "ELIZA_ERR_INVALID_ARG" });
  await assert.rejects(model.embed([Array(513).fill(1)]), { code: "ELIZA_ERR_INVALID_ARG", message: /513 tokens/ });
  await assert.rejects(model.embed(["a"], { pooling: "all" as "mean" }), { code: "ELIZA_ERR_INVALID_ARG" });
  await assert.rejects(model.embed(["a"], { signal: AbortSignal.abort("before") }), (why) => why === "before");
  await assert.rejects(model.rank("Who?", TEXTS), { code: "ELIZA_ERR_INVALID_ARG", message: /classifier/ });
  assert.equal((await whole(model, PROMPT, { maxTokens: 3 })).tokens.length, 3);
});

test("a reranker scores texts, and continues none", async () => {
  const path = join(dirname(MODEL), "bert.gguf");
  using model = await load(path, { threads: 1 });
  assert.deepEqual(model.describe().labels, ["score", "other"]);
  assert.deepEqual([model.describe().generates, model.describe().pooling], [false, "cls"]);
  const scores = await model.rank("Who?", TEXTS);
  const { scores: printed } = JSON.parse(program("rank", "--model", path, "--threads", "1", "--json", "--query", "Who?", ...TEXTS));
  assert.deepEqual(scores.map(Math.fround), printed.map(Math.fround));
  const refusal = { code: "ELIZA_ERR_NOT_IMPLEMENTED", message: /gives embeddings/ };
  await assert.rejects(model.stream(PROMPT).next(), refusal);
  await assert.rejects(model.logits(PROMPT), refusal);
  assert.equal((await model.embed(TEXTS)).length, 3);
});

test("logits are those of the program", async () => {
  using model = await open();
  const out = join(mkdtempSync(join(tmpdir(), "eliza-")), "logits");
  program("logits", "--model", MODEL, "--threads", "1", "--prompt", PROMPT, "--all", "--out", out);
  const printed = new Float32Array(new Uint8Array(readFileSync(out)).buffer);
  const [tokens, n] = [model.tokenize(PROMPT), model.info.nVocab];
  assert.equal(printed.length, tokens.length * n);
  for (const last of [1, 3, tokens.length]) {
    const rows = await model.logits(PROMPT, { last, slot: 1 });
    assert.deepEqual(rows.map((row) => row.length), Array(last).fill(n));
    assert.deepEqual(rows.flatMap((row) => [...row]), [...printed.slice(printed.length - last * n)], `the last ${last}`);
  }
  assert.deepEqual(await model.logits(tokens), [printed.slice(-n)]);
  const [row] = await model.logits(PROMPT);
  const best = row?.indexOf(Math.max(...row));
  assert.equal((await whole(model, PROMPT, { maxTokens: 1, temperature: 0 })).tokens[0], best);
  await assert.rejects(model.logits(PROMPT, { last: 0 }), { code: "ELIZA_ERR_INVALID_ARG" });
  await assert.rejects(model.logits(PROMPT, { last: tokens.length + 1 }), { code: "ELIZA_ERR_INVALID_ARG" });
  await assert.rejects(model.logits(null), { code: "ELIZA_ERR_BUSY" });
  const file = `${out}.slot`;
  await model.logits(PROMPT, { slot: 1 });
  await model.saveSlot(file);
  await model.restoreSlot(file);
  assert.deepEqual(await model.logits(null, { last: 2 }), [printed.slice(-2 * n, -n), printed.slice(-n)]);
  await assert.rejects(model.logits(PROMPT, { signal: AbortSignal.abort("before") }), (why) => why === "before");
});

for (const delivery of WAYS) {
  test(`${delivery}: how a token was sampled is the softmax of its logits`, async () => {
    using model = await open({ delivery });
    assert.equal(model.sampled(), null);
    assert.equal(model.sampled(2), null);
    const [row] = await model.logits(PROMPT);
    assert.ok(row !== undefined);
    const most = Math.max(...row);
    const sum = row.reduce((total, logit) => total + Math.exp(logit - most), 0);
    const probability = (token: number) => Math.exp((row[token] ?? NaN) - most) / sum;
    const drawn = async (options: object): Promise<SampledToken> => {
      const { tokens } = await whole(model, PROMPT, { maxTokens: 1, seed: 5, slot: 2, chain: "temp=1", ...options });
      const got = model.sampled(2);
      assert.ok(got !== null);
      assert.equal(got.token, tokens[0]);
      return got;
    };
    const near = (a: number, b: number) => assert.ok(Math.abs(a - b) <= 1e-5 * Math.max(1, Math.abs(b)), `${a} ${b}`);
    const got = await drawn({ nCandidates: 6 });
    near(got.probability, probability(got.token));
    near(got.logprob, Math.log(got.probability));
    const order = [...row.keys()].sort((a, b) => (row[b] ?? 0) - (row[a] ?? 0)).slice(0, 6);
    assert.deepEqual(got.candidates.map(({ token }) => token), order);
    for (const candidate of got.candidates) {
      near(candidate.probability, probability(candidate.token));
      near(candidate.logit, row[candidate.token] ?? NaN);
    }
    assert.deepEqual((await drawn({})).candidates, [], "none were asked for");
    assert.equal((await drawn({ chain: "top_k=1" })).probability, 1);
  });

  test(`${delivery}: usage counts what was sampled and shifted`, async () => {
    using model = await open({ delivery, contextSize: 64, slots: 1 });
    const options = { temperature: 0, ignoreEos: true };
    const stopped = await whole(model, PROMPT, options);
    assert.equal(stopped.reason, "context");
    assert.deepEqual([model.usage().contextShifts, model.usage().sampledTokens], [0, stopped.tokens.length]);
    const shifted = await whole(model, PROMPT, { ...options, maxTokens: 150, onContextFull: "shift", nKeep: 4 });
    assert.deepEqual([shifted.reason, shifted.tokens.length], ["length", 150]);
    assert.deepEqual(shifted.tokens.slice(0, stopped.tokens.length), stopped.tokens);
    assert.ok(model.usage().contextShifts >= 2, `${model.usage().contextShifts} shifts`);
    assert.ok(model.usage().sampleUs >= 0);
    await assert.rejects(whole(model, PROMPT, { nKeep: 3 }), { code: "ELIZA_ERR_INVALID_ARG", message: /keep/i });
    const chained = {
      maxTokens: 12,
      seed: 5,
      samplers: "dry;top_n_sigma;typ_p;xtc;temperature",
      dryMultiplier: 0.8,
      dryBreakers: ["a", "\n"],
      topNSigma: 2,
      typicalP: 0.9,
      xtcProbability: 0.5,
      dynatempRange: 0.25,
      adaptiveTarget: 0.4,
      generator: "mt19937" as const,
      reasoning: { tokens: 3, start: "a", end: "b" },
    };
    assert.deepEqual((await whole(model, PROMPT, chained)).tokens, (await whole(model, PROMPT, chained)).tokens);
    const invalid = "ELIZA_ERR_INVALID_ARG";
    await assert.rejects(whole(model, PROMPT, { mirostat: 3 as 2 }), { code: invalid, message: /mirostat is 3/ });
    await assert.rejects(whole(model, PROMPT, { samplers: "top_q" }), { code: invalid, message: /top_q/ });
    await assert.rejects(whole(model, PROMPT, { generator: "dice" as "counter" }), { code: invalid, message: /generator is "dice"/ });
    const wrong = { onContextFull: "never" as "shift" };
    await assert.rejects(whole(model, PROMPT, wrong), { code: "ELIZA_ERR_INVALID_ARG", message: /onContextFull is "never"/ });
    assert.equal((await whole(model, PROMPT, options)).reason, "context", "the option was for one stream");
  });
}

test("the vocabulary alone is opened", async () => {
  using model = await load(MODEL, { vocabOnly: true });
  using full = await open();
  assert.deepEqual([model.describe().vocabOnly, model.describe().nVocab, model.info.nVocab], [true, 512, 512]);
  for (const text of ["", PROMPT, "żółć"]) assert.deepEqual(model.tokenize(text), full.tokenize(text));
  assert.equal(model.detokenize(model.tokenize(PROMPT)), full.detokenize(full.tokenize(PROMPT)));
  assert.deepEqual(model.tokenTrie(["REPLY", "STOP"]), full.tokenTrie(["REPLY", "STOP"]));
  assert.deepEqual(model.metadata(), full.metadata());
  assert.deepEqual(model.token(300), full.token(300));
  const refusal = { code: "ELIZA_ERR_NOT_IMPLEMENTED", message: /only the vocabulary/ };
  await assert.rejects(whole(model, PROMPT), refusal);
  await assert.rejects(model.choose(PROMPT, ["a"]), refusal);
  await assert.rejects(model.logits(PROMPT), refusal);
  await assert.rejects(model.saveSlot("slot"), refusal);
  await assert.rejects(model.restoreSlot("slot"), refusal);
});

test("a prompt in passes of any size says the same", async () => {
  const options = { maxTokens: 20, temperature: 0, ignoreEos: true };
  const prompt = Int32Array.from({ length: 100 }, (_, i) => 5 + (i % 400));
  using model = await open();
  const expected = await whole(model, prompt, options);
  for (const nBatch of [7, 64]) {
    using small = await open({ nBatch });
    assert.deepEqual(await whole(small, prompt, options), expected);
    assert.equal(small.usage().forwardPasses - model.usage().forwardPasses, Math.ceil(100 / nBatch) - 1);
  }
  await assert.rejects(open({ nBatch: 513 }), { code: "ELIZA_ERR_INVALID_ARG", message: /513/ });
  await assert.rejects(open({ kvTypeV: "q3" as "f16" }), { code: "ELIZA_ERR_INVALID_ARG", message: /q3/ });
});

test("a load tells its progress, and ends where that is refused", async () => {
  const told: number[] = [];
  {
    using model = await open({ onProgress: (progress) => void told.push(progress) });
    assert.equal((await whole(model, PROMPT, { maxTokens: 1 })).ends, 1);
  }
  assert.deepEqual(told, [...told].sort((a, b) => a - b));
  assert.ok(told.length > 0 && (told[0] ?? -1) >= 0 && told.at(-1) === 1, told.join());
  let calls = 0;
  const refuse = () => (calls++, false);
  await assert.rejects(open({ onProgress: refuse }), { code: "ELIZA_ERR_CANCELLED", status: -7 });
  assert.equal(calls, 1);
  const why = new Error("the host failed");
  const fail = () => {
    throw why;
  };
  await assert.rejects(open({ onProgress: fail }), why);
  await assert.rejects(load("/nonexistent.gguf", { onProgress: refuse }), { code: "ELIZA_ERR_IO" });
  using again = await open({ onProgress: () => true });
  assert.equal((await whole(again, PROMPT, { maxTokens: 1 })).ends, 1);
});

test("warnings reach the log sink, and nothing does without one", async () => {
  const lines: [LogLevel, string][] = [];
  setLogSink((level, message) => void lines.push([level, message]));
  using model = await open();
  const trie = { modelId: "another", descriptors: [{ path: "a", leaves: [{ name: "x", tokens: [300] }] }] };
  const constrained = () => whole(model, PROMPT, { trie, maxTokens: 2 });
  await constrained();
  const warned = () => lines.filter(([level, message]) => level === "warn" && /Token trie.*another/.test(message)).length;
  for (let i = 0; i < 200 && warned() === 0; i++) await sleep(10);
  assert.equal(warned(), 1, JSON.stringify(lines));
  assert.ok(lines.every(([, message]) => !message.includes(PROMPT)));
  await constrained();
  setLogSink(null);
  assert.equal(warned(), 2, "what was there is handed out");
  const before = lines.length;
  await constrained();
  await sleep(100);
  assert.equal(lines.length, before);
});

test("log lines come until the end of the process, and keep it not alive", () => {
  const script = join(import.meta.dirname, "logging.js");
  const { status, stdout, stderr } = spawnSync(process.execPath, [script], { encoding: "utf8", timeout: 60_000 });
  assert.deepEqual([status, stderr], [0, ""]);
  assert.match(stdout, /^warn Token trie.*another/m);
});
