/**
 * The library driven as elizaOS drives it, in Bun. What is said is compared with the path-opened library in the same
 * process. ELIZA_HOST_LIBRARY and ELIZA_CORE_LIBRARY are the two; ELIZA_FIXTURES has the models (make built-for-c).
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ByPath, type Config, FAMILIES, Failure, Host } from "./loader.ts";

const env = (name: string) => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
};
const MODEL = join(env("ELIZA_FIXTURES"), "llama-q8_0.gguf");
const folder = mkdtempSync(join(tmpdir(), "eliza-host-"));
const host = new Host(env("ELIZA_HOST_LIBRARY"));
const right = new ByPath(env("ELIZA_CORE_LIBRARY"), MODEL);
const greedy = (maxTokens: number, more: Partial<Config> = {}): Config => ({ maxTokens, ...more });
const concat = (...parts: ArrayLike<number>[]) => Int32Array.from(parts.flatMap((part) => Array.from(part)));

/** A bundle with a model, and what else there shall be. */
function bundle(name: string, model: string | null, files: Record<string, string> = {}): string {
  const path = join(folder, name);
  mkdirSync(join(path, "text"), { recursive: true });
  if (model) copyFileSync(model, join(path, "text", "model.gguf"));
  for (const [file, text] of Object.entries(files)) writeFileSync(join(path, file), text);
  return path;
}

/** The failure of a call. */
function failure(call: () => unknown): Failure {
  try {
    call();
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
  throw new Error("it did not fail");
}

let path = "";
let ctx = 0;
beforeAll(() => {
  path = bundle("plain", MODEL);
  ctx = host.create(path);
});
afterAll(() => {
  host.destroy(ctx);
  right.close();
  rmSync(folder, { recursive: true });
  tellLongest("calls besides");
});

/** Prints the times of the calls since the last time that stood still longest. */
function tellLongest(what: string): void {
  const all = [...host.times].map(([name, times]) => ({ name, times: times.sort((a, b) => a - b) }));
  const longest = all.sort((a, b) => b.times.at(-1)! - a.times.at(-1)!).slice(0, 6);
  const told = longest.map(({ name, times }) => {
    const [middle, most] = [times[times.length >> 1]!, times.at(-1)!].map((ms) => ms.toFixed(1));
    return `${name} ${most} ms (of ${times.length}: median ${middle}, above 5 ms ${times.filter((ms) => ms > 5).length})`;
  });
  console.log(`longest ${what}: ${told.join("; ")}`);
  host.times.clear();
}

test("the loader's whole set binds, and its gates are open", () => {
  expect(String(host.call("abi_version"))).toBe("15");
  for (const yes of ["llm_stream", "llm_mtp", "llm_kv_quant", "embed", "tokenize", "llm_eot"]) {
    expect([yes, host.call(`${yes}_supported`)]).toEqual([yes, 1]);
  }
  const no = ["tts_stream", "asr_stream", "asr_timestamps", "vad", "wakeword", "speaker", "diariz", "kokoro", "vision"];
  for (const probe of [...no, "vision_stream"]) expect([probe, host.call(`${probe}_supported`)]).toEqual([probe, 0]);
  for (const region of ["text", "mtp", "dflash"]) {
    expect(host.acquire(ctx, region)).toBe(0);
    expect(host.evict(ctx, region)).toBe(0);
  }
  expect(failure(() => host.acquire(ctx, "tts"))).toMatchObject({ code: -1 });
  expect(host.evict(ctx, "asr")).toBe(0);
  expect(failure(() => host.acquire(ctx, "kitchen")).message).toContain("kitchen");
});

test("what is not supported says so", () => {
  const families = { ...FAMILIES.core, ...FAMILIES.referenceEncode, ...FAMILIES.vad, ...FAMILIES.wakeword };
  const speech = { ...families, ...FAMILIES.classifiers, ...FAMILIES.kokoro, ...FAMILIES.timedAsr };
  const vision = { ...FAMILIES.visionStream, describe: FAMILIES.textModalities.eliza_inference_describe_image };
  const does = /(abi_version|create|destroy|mmap_\w+|cancel_tts|callback|free_\w+|_supported|_close|_rate|_kind)$/;
  let asked = 0;
  for (const [symbol, { args, returns }] of Object.entries({ ...speech, ...vision })) {
    const name = symbol === "describe" ? "describe_image" : symbol.replace("eliza_inference_", "");
    if (does.test(name)) continue;
    const nothing = args.slice(0, -1).map((type) => (type === FAMILIES.core.eliza_inference_destroy.args[0] ? null : 0));
    const { code, message } = failure(() => (returns === args.at(-1) ? host.made(name, ...nothing) : host.checked(name, ...nothing)));
    expect([name, code]).toEqual([name, returns === args.at(-1) ? 0 : -1]);
    expect(message).toMatch(/^Not supported: .*text models/);
    asked += 1;
  }
  expect(asked).toBe(24);
  expect(host.call("kokoro_sample_rate", ctx)).toBe(-1);
  expect(host.checked("cancel_tts", ctx)).toBe(0);
  expect(host.checked("set_verifier_callback", ctx, 0n, 0n)).toBe(0);
  expect(failure(() => host.checked("set_verifier_callback", ctx, 4096n, 0n)).message).toContain("draft model");
  for (const close of ["vad", "wakeword", "speaker", "diariz", "asr_stream"]) host.call(`${close}_close`, 0n);
});

test("tokens become text again", () => {
  const tokens = host.tokenize(ctx, "Once upon a time 😀");
  expect(tokens.length).toBeGreaterThan(3);
  expect(host.detokenize(ctx, tokens.slice(1))).toContain("Once upon a time 😀");
  expect(host.tokenize(ctx, "", false).length).toBe(0);
  expect(failure(() => host.detokenize(ctx, tokens, 2))).toMatchObject({ code: -2 });
  expect(failure(() => host.detokenize(ctx, Int32Array.of(1 << 30)))).toMatchObject({ code: -2 });
});

test("the probability of a token is the model's", () => {
  const prompt = host.tokenize(ctx, "The cat sat on the");
  const logits = right.logits(prompt, 512);
  const sum = logits.reduce((all, one) => all + Math.exp(one), 0);
  const best = logits.reduce((top, one, token) => (one > logits[top]! ? token : top), 0);
  for (const target of [0, 7, best]) {
    const score = host.eotScore(ctx, prompt, target);
    expect(score.top).toBe(best);
    expect(score.target).toBeCloseTo(Math.exp(logits[target]!) / sum, 5);
    expect(score.topProbability).toBeCloseTo(Math.exp(logits[best]!) / sum, 5);
  }
  expect(failure(() => host.eotScore(ctx, Int32Array.of(), 1))).toMatchObject({ code: -2 });
  expect(failure(() => host.eotScore(ctx, prompt, -1)).message).toContain("target_token_id");
});

test("a step keeps to its budget, and characters stay whole", async () => {
  const prompt = host.tokenize(ctx, "Tell me a story");
  const wanted = right.answer(prompt, 40);
  const stream = host.open(ctx, greedy(40));
  host.prefill(stream, prompt);
  expect(failure(() => host.next(stream, 0))).toMatchObject({ code: -2 });
  expect(failure(() => host.next(stream, 1, 4))).toMatchObject({ code: -2 });
  const sizes: number[] = [];
  const said = await host.drain(stream, 3, (step) => sizes.push(step.tokens.length));
  expect(said).toEqual(wanted);
  expect(Math.max(...sizes)).toBeLessThanOrEqual(3);
  host.close(stream);
});

const GRAMMAR = 'root ::= "{\\"reply\\": \\"" [a-z ]{3,12} "\\"}"';

test("a hundred rounds of conversations say what they should, in the same memory", async () => {
  const prompts = ["You are a pirate. Ahoy", "You are a poet. Winter"].map((text) => host.tokenize(ctx, text));
  const more = host.tokenize(ctx, " and then", false);
  const first = prompts.map((prompt) => right.answer(prompt, 12));
  const second = prompts.map((prompt, at) => right.answer(concat(prompt, first[at]!.tokens, more), 12));
  const held = right.answer(prompts[0]!, 30, GRAMMAR);
  expect(held.text).toMatch(/^\{"reply": "[a-z ]{3,12}"\}$/);
  const row = right.embed("A text to embed");
  const memory: number[] = [];
  let mine = host.create(path);
  tellLongest("calls before the rounds");
  for (let round = 0; round < 100; round += 1) {
    const keys = ["pirate", "poet"];
    // Two conversations, step by step beside each other.
    const streams = keys.map((promptCacheKey) => host.open(mine, greedy(24, { promptCacheKey, temperature: 0 })));
    streams.forEach((stream, at) => host.prefill(stream, prompts[at]!));
    const texts = await Promise.all(streams.map(async (stream, at) => {
      const all: number[] = [];
      while (all.length < 12) {
        all.push(...host.next(stream, 12 - all.length).tokens);
        await new Promise((after) => setImmediate(after));
      }
      expect(all).toEqual(first[at]!.tokens);
      host.cancel(stream);
      expect(failure(() => host.next(stream))).toMatchObject({ code: -7 });
      return all;
    }));
    // Reuse: what was said stays, a further prompt follows it.
    for (const [at, stream] of streams.entries()) {
      const kept = prompts[at]!.length + texts[at]!.length;
      expect(host.resetKeep(stream, kept)).toBe(kept);
      host.prefill(stream, more);
      const said: number[] = [];
      while (said.length < 12) said.push(...host.next(stream, 12 - said.length).tokens);
      expect(said).toEqual(second[at]!.tokens);
    }
    streams.forEach((stream) => host.close(stream));
    expect(await host.generate(mine, greedy(30, { gbnfGrammar: GRAMMAR }), prompts[0]!)).toEqual(held);
    expect([...host.embed(mine, "A text to embed")]).toEqual([...row]);
    // Saved after a prompt, and continued by a stream that never read it.
    const file = join(folder, "slot");
    const saver = host.open(mine, greedy(12));
    host.prefill(saver, prompts[1]!);
    host.save(saver, file);
    host.close(saver);
    host.evict(mine, "text");
    const restorer = host.open(mine, greedy(12));
    host.restore(restorer, file);
    expect(await host.drain(restorer)).toEqual(first[1]!);
    host.close(restorer);
    if (round % 10 === 9) {
      host.destroy(mine);
      mine = host.create(path);
    }
    Bun.gc(true);
    memory.push(process.memoryUsage.rss());
  }
  host.destroy(mine);
  tellLongest("calls of the rounds");
  const [half, end] = [Math.max(...memory.slice(30, 60)), Math.max(...memory.slice(70))];
  console.log(`resident after 60 rounds ${half >> 20} MiB, after 100 ${end >> 20} MiB`);
  expect(end - half).toBeLessThan(8 << 20);
}, 120_000);

test("a prompt that is only read saves the next one's time, and max_tokens 0 ends at once", async () => {
  const prompt = host.tokenize(ctx, "A prompt to be read ahead");
  expect(await host.generate(ctx, greedy(0), prompt)).toEqual({ tokens: [], text: "" });
  const stream = host.open(ctx, greedy(0));
  host.prefill(stream, prompt);
  expect(host.next(stream)).toMatchObject({ tokens: [], done: true });
  host.close(stream);
});

test("an answer that is cancelled ends, and a reset begins anew", async () => {
  const prompt = host.tokenize(ctx, "Count to a thousand");
  const wanted = right.answer(prompt, 20);
  const stream = host.open(ctx, greedy(200));
  for (let round = 0; round < 20; round += 1) {
    host.prefill(stream, prompt);
    if (round % 2 === 0) while (host.next(stream, 4).tokens.length === 0);
    expect(host.cancel(stream)).toBe(0);
    expect(failure(() => host.next(stream))).toMatchObject({ code: -7 });
    expect(host.reset(stream)).toBe(0);
  }
  host.close(stream);
  expect(await host.generate(ctx, greedy(20), prompt)).toEqual(wanted);
});

test("types of the cache and layers on a GPU are applied or refused by name", async () => {
  const prompt = host.tokenize(ctx, "Which type");
  for (const type of ["f16", "q8_0"]) {
    const config = greedy(8, { cacheTypeK: type, cacheTypeV: type, contextSize: 256, gpuLayers: -1 });
    expect((await host.generate(ctx, config, prompt)).tokens.length).toBe(8);
  }
  const refused = (more: Partial<Config>) => failure(() => host.open(ctx, greedy(8, more))).message;
  expect(refused({ cacheTypeK: "qjl1_256" })).toContain("qjl1_256");
  expect(refused({ gpuLayers: -7 })).toContain("n_gpu_layers");
  expect(refused({ gbnfGrammar: "root ::= ???" })).toMatch(/line|root/);
  expect(refused({ temperature: Number.NaN })).toContain("temperature");
  expect(refused({ draftMin: 1, draftMax: 4, draftModelPath: MODEL.replace(".gguf", "-none.gguf") })).toContain("none.gguf");
  expect(refused({ draftMin: 1, draftMax: 4, draftModelPath: join(path, "text", "model.gguf") })).toContain("draft");
});

test("a draft model's guesses change nothing and are counted", async () => {
  const prompt = host.tokenize(ctx, "Draft this text");
  const stream = host.open(ctx, greedy(48, { draftMin: 1, draftMax: 4, draftModelPath: MODEL }));
  host.prefill(stream, prompt);
  let drafted = 0;
  const said = await host.drain(stream, 8, (step) => (drafted += step.drafted));
  host.close(stream);
  expect(said).toEqual(right.answer(prompt, 48));
  expect(drafted).toBeGreaterThan(0);
});

test("a stream is held to the names of a trie", async () => {
  const names = ["REPLY", "IGNORE", "STOP"];
  const leaves = names.sort().map((name) => ({ name, tokens: [...host.tokenize(ctx, name, false)] }));
  const stream = host.open(ctx, greedy(16));
  host.setTrie(stream, JSON.stringify({ modelId: "m", descriptors: [{ path: "action", leaves }] }));
  host.armTrie(stream, "action");
  host.prefill(stream, host.tokenize(ctx, "Which action?"));
  // The answer ends with the name.
  expect(names).toContain((await host.drain(stream)).text.trim());
  host.clearTrie(stream);
  expect(failure(() => host.setTrie(stream, "{")).code).toBe(-2);
  host.close(stream);
});

test("encoders embed, and do not answer", async () => {
  const mine = host.create(bundle("encoder", join(env("ELIZA_FIXTURES"), "bert.gguf")));
  const row = host.embed(mine, "a text");
  expect(row.reduce((sum, x) => sum + x * x, 0)).toBeCloseTo(1, 4);
  const stream = host.open(mine, greedy(4));
  host.prefill(stream, host.tokenize(mine, "a text"));
  await expect(host.drain(stream)).rejects.toMatchObject({ code: -1 });
  host.close(stream);
  host.destroy(mine);
});

test("a bundle that cannot be used says why", () => {
  const MANIFEST = "eliza-1.manifest.json";
  const refused = (of: string) => failure(() => host.create(of)).message;
  expect(refused(join(folder, "nowhere"))).toContain("nowhere");
  expect(refused(bundle("empty", null))).toContain("text");
  expect(refused(bundle("broken", MODEL, { [MANIFEST]: '{"files": ' }))).toContain(MANIFEST);
  const names = (file: string) => JSON.stringify({ files: { text: [{ path: file }] } });
  expect(refused(bundle("outside", MODEL, { [MANIFEST]: names("../plain/text/model.gguf") }))).toContain("../plain");
  expect(refused(bundle("missing", MODEL, { [MANIFEST]: names("text/other.gguf") }))).toContain("text/other.gguf");
  const named = host.create(bundle("named", MODEL, { [MANIFEST]: names("text/model.gguf") }));
  expect(host.tokenize(named, "word").length).toBeGreaterThan(0);
  host.destroy(named);
  const cut = bundle("cut", null);
  writeFileSync(join(cut, "text", "model.gguf"), readFileSync(MODEL).subarray(0, 300));
  const broken = host.create(cut);
  for (const ask of [() => host.tokenize(broken, "word"), () => host.open(broken, greedy(4)), () => host.embed(broken, "word")]) {
    expect(failure(ask).message).toContain("model.gguf");
  }
  host.destroy(broken);
});

test("handles that are NULL, closed or foreign are errors", () => {
  const stream = host.open(ctx, greedy(4));
  host.close(stream);
  host.close(stream);
  for (const handle of [0, stream, ctx, 123456789]) {
    expect(failure(() => host.next(handle))).toMatchObject({ code: -2 });
    expect(failure(() => host.prefill(handle, Int32Array.of(1)))).toMatchObject({ code: -2 });
    expect(failure(() => host.save(handle, "file"))).toMatchObject({ code: -2 });
    expect(host.cancel(handle)).toBe(-2);
    expect(host.reset(handle)).toBe(-2);
    expect(host.resetKeep(handle, 1)).toBe(-2);
    host.close(handle);
  }
  const gone = host.create(path);
  const orphan = host.open(gone, greedy(4));
  host.prefill(orphan, host.tokenize(gone, "text"));
  host.destroy(gone);
  host.destroy(gone);
  expect(failure(() => host.next(orphan)).message).toContain("not open");
  for (const handle of [0, gone, stream]) {
    expect(failure(() => host.tokenize(handle, "text"))).toMatchObject({ code: -2 });
    expect(failure(() => host.open(handle, greedy(4))).message).toContain("context");
  }
});

test("wrong arguments are errors that name them", () => {
  const stream = host.open(ctx, greedy(4));
  const next = (...args: unknown[]) => failure(() => host.checked("llm_stream_next", BigInt(stream), ...args)).message;
  expect(next(null, 4n, null, null, 64n, null, null)).toContain("num_tokens_out");
  expect(failure(() => host.next(stream)).message).toContain("no prompt");
  expect(failure(() => host.prefill(stream, Int32Array.of())).message).toContain("no tokens");
  expect(failure(() => host.prefill(stream, Int32Array.of(1, 1 << 30))).message).toContain(`token 1 is ${1 << 30}`);
  expect(failure(() => host.checked("llm_stream_prefill", BigInt(stream), null, 5n)).message).toContain("token_ids");
  expect(failure(() => host.made("llm_stream_open", ctx, null)).message).toContain("configuration");
  expect(failure(() => host.save(stream, "/tmp")).message).toContain("no text");
  expect(failure(() => host.restore(stream, join(folder, "no file"))).message).toContain("no file");
  expect(failure(() => host.restore(stream, MODEL)).message.length).toBeGreaterThan(10);
  host.close(stream);
  const long = host.open(ctx, greedy(4, { contextSize: 256 }));
  host.prefill(long, new Int32Array(300).fill(5));
  const tooLong = failure(() => {
    while (!host.next(long).done);
  });
  expect(tooLong).toMatchObject({ code: -5 });
  expect(tooLong.message).toContain("300");
  host.close(long);
});
