/** The contract of `js/native.ts` over bun:ffi. */

import { JSCallback, type Pointer, toArrayBuffer } from "bun:ffi";
import type { SampledToken } from "../js/describe.js";
import { InferenceError, STATUS } from "../js/errors.js";
import {
  type ChatPart,
  type ChatPrompt,
  type BuiltTrie,
  type Delivery,
  type EmbeddingOptions,
  type EmbeddingRows,
  type FfiLlmHandle,
  type FinishReason,
  type GenerateOptions,
  type LeafScores,
  type Native,
  type NativeOpenOptions,
  type OpenOptions,
  POOLINGS,
  type SamplingOptions,
  type Step,
  type TrieNames,
  modelLines,
  splitText,
  tensorRules,
} from "../js/native.js";
import type { TokenTreePayload } from "../js/token-tree.js";
import { closing, delivery, generate, outcome } from "./generation.js";
import { type Library, Out, Struct, addresses, bytes, decoder, ids, raw, terminated } from "./library.js";

/** Sizes of structures; the offsets are in docs/abi.md. */
const OPEN_OPTIONS = 168;
const SAMPLING_OPTIONS = 224;
const EMBEDDING_OPTIONS = 16;
const SAMPLED = 40;
const CANDIDATE = 12;

/** The functions of one library. */
export class BunNative implements Native {
  readonly version: string;
  readonly hasTokenTrie: boolean;
  readonly #library: Library;
  readonly #delivery: Delivery;
  /** The sampling options of each open handle as they were right after open. */
  readonly #defaults = new Map<number, Uint8Array>();

  constructor(library: Library, how: Delivery = delivery()) {
    this.#library = library;
    this.#delivery = how;
    this.version = library.version;
    this.hasTokenTrie = library.has(
      "set_token_trie",
      "clear_token_trie",
      "arm_token_trie",
      "score_token_trie",
      "build_token_trie",
    );
  }

  /** Blocks while drivers are loaded, once. */
  async devices(): Promise<unknown> {
    return this.#library.answer(this.#library.call.devices_json(null));
  }

  async plan(modelPath: string, options: OpenOptions): Promise<unknown> {
    const struct = openOptions(modelPath, options);
    const answer = this.#library.call.plan_json(struct.data, null);
    void struct.held.length; // the strings live until here
    return this.#library.answer(answer);
  }

  async fileMetadata(modelPath: string, key: string | null): Promise<unknown> {
    const [path, text] = [terminated(modelPath, "modelPath"), key === null ? null : terminated(key, "key")];
    return this.#library.answer(this.#library.call.file_metadata_json(path, text, null));
  }

  nextLogLine(): { level: number; message: string } | null {
    const level = new Int32Array(1);
    const message = this.#library.take(this.#library.call.next_log_line(level));
    const [code = 0] = level;
    if (message !== null) return { level: code, message };
    if (code < 0) throw new InferenceError(code, "The log lines of this process go elsewhere");
    return null;
  }

  endLog(): void {
    this.#library.call.set_log_sink(null, null);
  }

  /** Blocks while the file is loaded. */
  async open(modelPath: string, options: NativeOpenOptions): Promise<FfiLlmHandle> {
    const { call } = this.#library;
    const { onProgress } = options;
    const struct = openOptions(modelPath, options);
    // It is called on this thread, inside the call.
    const tell = onProgress && ((progress: number) => (onProgress(progress) ? 0 : 1));
    const callback = tell && new JSCallback(tell, { args: ["f32", "ptr"], returns: "i32" });
    if (callback !== undefined) struct.pointer(40, Number(callback.ptr));
    const handle = call.llm_stream_open_ex(struct.data, null);
    callback?.close();
    void struct.held.length; // the strings live until here
    if (handle === null || handle === 0) throw this.#library.lastFailure();
    return handle as unknown as FfiLlmHandle;
  }

  describe(handle: FfiLlmHandle): unknown {
    return this.#library.answerOf(handle, this.#library.call.llm_stream_model_json(raw(handle), null));
  }

  metadata(handle: FfiLlmHandle, key: string | null): unknown {
    const text = key === null ? null : terminated(key, "key");
    return this.#library.answerOf(handle, this.#library.call.llm_stream_metadata_json(raw(handle), text, null));
  }

  isEog(handle: FfiLlmHandle, token: number): boolean {
    const answer = this.#library.call.llm_stream_is_eog(raw(handle), token) as number;
    if (answer < 0) throw this.#library.failure(handle, answer);
    return answer === 1;
  }

  token(handle: FfiLlmHandle, token: number): unknown {
    return this.#library.answerOf(handle, this.#library.call.llm_stream_token_json(raw(handle), token, null));
  }

  chatPrompt(handle: FfiLlmHandle, inputs: string): ChatPrompt {
    const text = terminated(inputs, "inputs");
    return this.#library.answerOf(handle, this.#library.call.llm_stream_chat_prompt_json(raw(handle), text, null)) as ChatPrompt;
  }

  chatParts(handle: FfiLlmHandle, inputs: string | null, text: string, last: boolean): ChatPart[] {
    const { data, length } = bytes(text);
    const begun = inputs === null ? null : terminated(inputs, "inputs");
    const answer = this.#library.call.llm_stream_chat_parts_json(raw(handle), begun, data, length, Number(last), null);
    return this.#library.answerOf(handle, answer) as ChatPart[];
  }

  /** Blocks for a pass of the model where more than one row is asked for. */
  async logits(handle: FfiLlmHandle, nLast: number): Promise<Float32Array> {
    const library = this.#library;
    const error = new Out();
    const ask = (out: Float32Array | null, room: number) =>
      library.check(library.call.llm_stream_logits(raw(handle), nLast, out, room, error), handle, error);
    const room = ask(null, 0);
    const out = new Float32Array(room);
    ask(out, room);
    return out;
  }

  sampled(handle: FfiLlmHandle, slotId: number): SampledToken | null {
    const library = this.#library;
    const struct = new Struct(SAMPLED);
    let candidates = new Uint8Array(0);
    // The host's array is filled as far as it goes, so the first call only returns how many there are.
    for (let room = 0; ; ) {
      if (room > 0) struct.array(16, (candidates = new Uint8Array(room * CANDIDATE)));
      struct.size(24, room);
      const status = library.call.llm_stream_sampled(raw(handle), slotId, struct.data) as number;
      if (status === STATUS.ELIZA_ERR_INVALID_ARG) {
        library.forget(handle);
        return null;
      }
      if (status !== 0) throw library.failure(handle, status);
      const count = Number(struct.view.getBigUint64(32, true));
      if (count <= room) {
        candidates = candidates.subarray(0, count * CANDIDATE);
        break;
      }
      room = count;
    }
    const list = new DataView(candidates.buffer, 0, candidates.length);
    return {
      token: struct.view.getInt32(4, true),
      logprob: struct.view.getFloat32(8, true),
      probability: struct.view.getFloat32(12, true),
      candidates: Array.from({ length: candidates.length / CANDIDATE }, (_, i) => ({
        token: list.getInt32(i * CANDIDATE, true),
        logit: list.getFloat32(i * CANDIDATE + 4, true),
        probability: list.getFloat32(i * CANDIDATE + 8, true),
      })),
    };
  }

  openSlot(handle: FfiLlmHandle, slotId: number): FfiLlmHandle {
    const opened = this.#library.call.llm_stream_open_slot(raw(handle), slotId, null);
    if (opened === null || opened === 0) throw this.#library.failure(handle);
    return opened as unknown as FfiLlmHandle;
  }

  close(handle: FfiLlmHandle): void {
    this.#defaults.delete(raw(handle));
    closing(this.#library, handle);
    this.#library.call.llm_stream_close(raw(handle));
  }

  tokenize(handle: FfiLlmHandle, text: string, addSpecial: boolean, parseSpecial: boolean): Int32Array {
    const library = this.#library;
    const { data, length } = bytes(text);
    const [tokens, count, error] = [new Out(), new Out(), new Out()];
    const [add, parse] = [Number(addSpecial), Number(parseSpecial)];
    const status = library.call.llm_stream_tokenize(raw(handle), data, length, add, parse, tokens, count, error);
    library.check(status, handle, error);
    return this.#tokens(tokens, count);
  }

  detokenize(handle: FfiLlmHandle, tokens: Int32Array, removeSpecial: boolean, unparseSpecial: boolean): string {
    const library = this.#library;
    const error = new Out();
    const [data, remove, unparse] = [ids(tokens), Number(removeSpecial), Number(unparseSpecial)];
    const into = (text: Uint8Array | null, room: number) =>
      library.check(
        library.call.llm_stream_detokenize(raw(handle), data, tokens.length, remove, unparse, text, room, error),
        handle,
        error,
      );
    const length = into(null, 0);
    const text = new Uint8Array(length + 1);
    into(text, length + 1);
    return decoder.decode(text.subarray(0, length));
  }

  configure(handle: FfiLlmHandle, options: SamplingOptions): void {
    const library = this.#library;
    const struct = new Struct(SAMPLING_OPTIONS, this.#defaultsOf(handle));
    struct.u32(4, options.seed);
    struct.i32(8, options.topK);
    struct.f32(12, options.minP);
    struct.f32(16, options.repeatPenalty);
    struct.i32(20, options.repeatLastN);
    struct.f32(24, options.presencePenalty);
    struct.f32(28, options.frequencyPenalty);
    if (options.stop !== undefined && options.stop.length > 0) {
      const { data, held } = addresses(options.stop, "stop");
      struct.array(40, data);
      struct.size(48, options.stop.length);
      struct.held.push(...held);
    }
    if (options.logitBias !== undefined && options.logitBias.size > 0) {
      struct.array(56, Int32Array.from(options.logitBias.keys()));
      struct.array(64, Float32Array.from(options.logitBias.values()));
      struct.size(72, options.logitBias.size);
    }
    struct.u32(80, among(options.onSpanEnd, ["continue", "stop"], "onSpanEnd"));
    if (options.strictTrie !== undefined) struct.u32(84, Number(options.strictTrie));
    if (options.ignoreEos !== undefined) struct.u32(88, Number(options.ignoreEos));
    struct.u32(92, options.nCandidates);
    struct.u32(96, among(options.onContextFull, ["stop", "shift"], "onContextFull"));
    struct.u32(100, options.nKeep);
    if (options.specialText !== undefined) struct.u32(104, Number(options.specialText));
    if (options.guessing !== undefined) struct.u32(108, Number(!options.guessing));
    struct.f32(112, options.topNSigma);
    struct.f32(116, options.typicalP);
    struct.f32(120, options.xtcProbability);
    struct.f32(124, options.xtcThreshold);
    struct.f32(128, options.dynatempRange);
    struct.f32(132, options.dynatempExponent);
    struct.f32(136, options.dryMultiplier);
    struct.f32(140, options.dryBase);
    struct.i32(144, options.dryAllowedLength);
    struct.i32(148, options.dryLastN);
    struct.u32(152, options.mirostat);
    struct.f32(156, options.mirostatTau);
    struct.f32(160, options.mirostatEta);
    struct.f32(164, options.adaptiveTarget);
    struct.f32(168, options.adaptiveDecay);
    struct.u32(172, options.minKeep);
    struct.u32(176, among(options.generator, ["counter", "mt19937"], "generator"));
    if (options.samplers !== undefined) struct.array(184, terminated(options.samplers, "samplers"));
    if (options.dryBreakers !== undefined && options.dryBreakers.length > 0) {
      const { data, held } = addresses(options.dryBreakers, "dryBreakers");
      struct.array(192, data);
      struct.size(200, options.dryBreakers.length);
      struct.held.push(...held);
    }
    if (options.reasoning !== undefined) {
      struct.u32(180, options.reasoning.tokens);
      struct.array(208, terminated(options.reasoning.start, "reasoning.start"));
      struct.array(216, terminated(options.reasoning.end, "reasoning.end"));
    }
    const error = new Out();
    const status = library.call.llm_stream_configure(raw(handle), struct.data, error);
    void struct.held.length;
    library.check(status, handle, error);
  }

  #defaultsOf(handle: FfiLlmHandle): Uint8Array {
    const known = this.#defaults.get(raw(handle));
    if (known !== undefined) return known;
    const struct = new Struct(SAMPLING_OPTIONS);
    if (this.#library.call.llm_stream_sampling_defaults(raw(handle), struct.data) !== 0) {
      throw this.#library.failure(handle);
    }
    this.#defaults.set(raw(handle), struct.data);
    return struct.data;
  }

  setChain(handle: FfiLlmHandle, slotId: number, chain: string | null): void {
    const error = new Out();
    const text = chain === null ? null : terminated(chain, "chain");
    const status = this.#library.call.llm_stream_set_chain(raw(handle), slotId, text, error);
    this.#library.check(status, handle, error);
  }

  async prefill(handle: FfiLlmHandle, tokens: Int32Array, slotId: number): Promise<number> {
    const library = this.#library;
    const error = new Out();
    const started = library.call.llm_stream_start_prefill(raw(handle), ids(tokens), tokens.length, slotId, error);
    library.check(started, handle, error);
    const status = await this.#over(handle);
    if (status < 0) throw library.failure(handle);
    return tokens.length;
  }

  /** The status of a handle once its prompt or its texts are evaluated. */
  async #over(handle: FfiLlmHandle): Promise<number> {
    for (let asked = 0; ; asked++) {
      const status = Number(this.#library.call.llm_stream_status(raw(handle)));
      if (status !== GENERATING) return status;
      // Short prompts are over in no time, and a timer would wait for a millisecond.
      await new Promise((resolve) => (asked < 8 ? setImmediate(resolve) : setTimeout(resolve, 1)));
    }
  }

  async embed(handle: FfiLlmHandle, texts: readonly Int32Array[], options: EmbeddingOptions): Promise<EmbeddingRows> {
    const library = this.#library;
    const struct = new Struct(EMBEDDING_OPTIONS);
    struct.i32(4, among(options.pooling, POOLINGS, "pooling"));
    struct.u32(8, options.dimensions);
    struct.u32(12, Number(!options.normalize));
    const tokens = new Int32Array(texts.reduce((sum, text) => sum + text.length, 0));
    const counts = new BigUint64Array(Math.max(texts.length, 1));
    let at = 0;
    texts.forEach((text, i) => {
      tokens.set(text, at);
      counts[i] = BigInt(text.length);
      at += text.length;
    });
    const error = new Out();
    const started = library.call.llm_stream_start_embed(raw(handle), struct.data, ids(tokens), counts, texts.length, error);
    library.check(started, handle, error);
    const status = await this.#over(handle);
    const [rows, count, width] = [new Out(), new Out(), new Out()];
    const taken = library.call.llm_stream_take_embeddings(raw(handle), rows, count, width, error);
    if (taken !== 0 && status < 0) library.forget(handle); // the error of the work itself, which is told below
    library.check(taken, handle, error);
    const bytes = Number(count[0]) * Number(width[0]) * 4;
    const copy = bytes === 0 ? new ArrayBuffer(0) : toArrayBuffer(rows.address as Pointer, 0, bytes).slice(0);
    library.call.free_rows(rows.address);
    return { rows: new Float32Array(copy), width: Number(width[0]) };
  }

  tokenizePair(handle: FfiLlmHandle, query: string, text: string): Int32Array {
    const library = this.#library;
    const [first, second] = [bytes(query), bytes(text)];
    const [tokens, count, error] = [new Out(), new Out(), new Out()];
    const status = library.call.llm_stream_tokenize_pair(
      raw(handle),
      first.data,
      first.length,
      second.data,
      second.length,
      tokens,
      count,
      error,
    );
    library.check(status, handle, error);
    return this.#tokens(tokens, count);
  }

  /** A copy of the library's token ids, which are freed. */
  #tokens(tokens: Out, count: Out): Int32Array {
    const size = Number(count[0]) * 4;
    const copy = size === 0 ? new ArrayBuffer(0) : toArrayBuffer(tokens.address as Pointer, 0, size).slice(0);
    this.#library.call.free_tokens(tokens.address);
    return new Int32Array(copy);
  }

  generate(handle: FfiLlmHandle, options: GenerateOptions, onStep: (step: Step) => void): Promise<FinishReason> {
    const library = this.#library;
    return new Promise((resolve, reject) => {
      const onEvent = (step: Step) => {
        onStep(step);
        if (!step.done) return;
        const end = outcome(library, handle);
        if (end instanceof InferenceError) reject(end);
        else resolve(end);
      };
      const status = generate(library, handle, options, onEvent, this.#delivery);
      if (status !== 0) reject(library.failure(handle, status));
    });
  }

  /** Blocks while the file is written. */
  async saveSlot(handle: FfiLlmHandle, slotId: number, path: string): Promise<void> {
    this.saveSlotSync(handle, slotId, path);
  }

  saveSlotSync(handle: FfiLlmHandle, slotId: number, path: string): void {
    const error = new Out();
    const status = this.#library.call.llm_stream_save_slot(raw(handle), slotId, terminated(path, "path"), error);
    this.#library.check(status, handle, error);
  }

  /** Blocks while the file is read. */
  async restoreSlot(handle: FfiLlmHandle, slotId: number, path: string): Promise<number> {
    return this.restoreSlotSync(handle, slotId, path);
  }

  restoreSlotSync(handle: FfiLlmHandle, slotId: number, path: string): number {
    const error = new Out();
    const tokens = this.#library.call.llm_stream_restore_slot(raw(handle), slotId, terminated(path, "path"), error);
    return this.#library.check(tokens, handle, error);
  }

  /** Blocks while the file is written. */
  async persist(handle: FfiLlmHandle, slotId: number, key: string): Promise<void> {
    const error = new Out();
    const status = this.#library.call.llm_stream_persist(raw(handle), slotId, terminated(key, "key"), error);
    this.#library.check(status, handle, error);
  }

  /** Blocks while the file is read. */
  async resume(handle: FfiLlmHandle, slotId: number, key: string): Promise<number> {
    const error = new Out();
    const tokens = this.#library.call.llm_stream_resume(raw(handle), slotId, terminated(key, "key"), error);
    return this.#library.check(tokens, handle, error);
  }

  forget(handle: FfiLlmHandle, key: string): boolean {
    const error = new Out();
    const found = this.#library.call.llm_stream_forget(raw(handle), terminated(key, "key"), error);
    return this.#library.check(found, handle, error) === 1;
  }

  prewarm(handle: FfiLlmHandle, tokens: Int32Array, slotId: number): void {
    const error = new Out();
    const status = this.#library.call.llm_stream_prewarm(raw(handle), ids(tokens), tokens.length, slotId, error);
    this.#library.check(status, handle, error);
  }

  pinSlot(handle: FfiLlmHandle, slotId: number, pinned: boolean): void {
    const error = new Out();
    const status = this.#library.call.llm_stream_pin_slot(raw(handle), slotId, Number(pinned), error);
    this.#library.check(status, handle, error);
  }

  cancel(handle: FfiLlmHandle): void {
    if (this.#library.call.llm_stream_cancel(raw(handle)) !== 0) this.#library.lastError(); // it is closed: nothing runs
  }

  usage(handle: FfiLlmHandle): unknown {
    return this.#library.answerOf(handle, this.#library.call.llm_stream_usage_json(raw(handle)));
  }

  setTrie(handle: FfiLlmHandle, payloadJson: string, mode: number): void {
    const { data, length } = bytes(payloadJson);
    this.#done(this.#library.call.set_token_trie(raw(handle), data, length, mode), handle);
  }

  clearTrie(handle: FfiLlmHandle): void {
    this.#done(this.#library.call.clear_token_trie(raw(handle)), handle);
  }

  armTrie(handle: FfiLlmHandle, path: string | null): void {
    const text = path === null ? null : terminated(path, "path");
    this.#done(this.#library.call.arm_token_trie(raw(handle), text), handle);
  }

  setGrammar(handle: FfiLlmHandle, sourceJson: string): void {
    const { data, length } = bytes(sourceJson);
    this.#done(this.#library.call.set_grammar(raw(handle), data, length), handle);
  }

  clearGrammar(handle: FfiLlmHandle): void {
    this.#done(this.#library.call.clear_grammar(raw(handle)), handle);
  }

  #done(status: number | null, handle: FfiLlmHandle): void {
    if (status !== 0) throw this.#library.failure(handle);
  }

  /** Blocks for a pass of the model or two. */
  async scoreTrie(handle: FfiLlmHandle): Promise<LeafScores> {
    return this.#library.answerOf(handle, this.#library.call.score_token_trie(raw(handle), null)) as LeafScores;
  }

  buildTrie(handle: FfiLlmHandle, { path, names, before, after, parseSpecial }: TrieNames): BuiltTrie {
    const library = this.#library;
    const list = addresses(names, "names");
    const warnings = new Out();
    const answer = library.call.build_token_trie(
      raw(handle),
      terminated(path, "path"),
      list.data,
      names.length,
      terminated(before, "before"),
      terminated(after, "after"),
      Number(parseSpecial),
      warnings,
      null,
    );
    void list.held.length;
    const payload = this.#library.answerOf(handle, answer) as TokenTreePayload;
    return { payload, warnings: library.take(warnings.address)?.split("\n") ?? [] };
  }
}

/** The number of a choice. */
function among(value: string | undefined, names: readonly string[], option: string): number | undefined {
  if (value === undefined) return undefined;
  const number = names.indexOf(value);
  if (number >= 0) return number;
  const problem = `${option} is ${JSON.stringify(value)}, must be "${names.join('" or "')}"`;
  throw new InferenceError(STATUS.ELIZA_ERR_INVALID_ARG, problem);
}

function openOptions(modelPath: string, options: NativeOpenOptions | OpenOptions): Struct {
  const { device, tensorSplit, tensorDevices, kvType, kvTypeV, store, draft, server, fallback } = options;
  const struct = new Struct(OPEN_OPTIONS);
  struct.i32(4, options.contextSize);
  struct.i32(8, options.threads);
  struct.i32(12, options.gpuLayers);
  struct.array(16, terminated(modelPath, "modelPath"));
  if (device !== undefined) struct.array(24, terminated(device, "device"));
  if (kvType !== undefined) struct.array(32, terminated(kvType, "kvType"));
  struct.u32(56, options.slots);
  struct.u32(60, Number(options.vocabOnly ?? false) + 2 * Number(options.concurrentSlots ?? false));
  if (kvTypeV !== undefined) struct.array(64, terminated(kvTypeV, "kvTypeV"));
  struct.u32(72, options.nBatch);
  struct.u32(76, options.snapshots);
  if (tensorDevices !== undefined) struct.array(80, terminated(tensorRules(tensorDevices), "tensorDevices"));
  if (store !== undefined) {
    struct.array(88, terminated(store.directory, "store.directory"));
    struct.size(96, store.maxBytes ?? 0);
  }
  struct.u32(104, options.parallel);
  struct.u32(108, options.maxSlowdownPercent);
  if (draft !== undefined) struct.array(112, terminated(draft, "draft"));
  const { vocab, apiKey, certificates, timeoutMs } = server ?? {};
  if (vocab !== undefined) struct.array(120, terminated(vocab, "server.vocab"));
  if (apiKey !== undefined) struct.array(128, terminated(apiKey, "server.apiKey"));
  if (certificates !== undefined) struct.array(136, terminated(certificates, "server.certificates"));
  struct.u32(144, timeoutMs);
  if (fallback !== undefined) struct.array(152, terminated(modelLines(fallback), "fallback"));
  if (tensorSplit !== undefined) struct.array(160, terminated(splitText(tensorSplit), "tensorSplit"));
  return struct;
}

/** ELIZA_STATUS_GENERATING. */
export const GENERATING = 2;
