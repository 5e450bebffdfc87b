/** The contract of `js/native.ts` over bun:ffi. */

import { type Pointer, toArrayBuffer } from "bun:ffi";
import { InferenceError } from "../js/errors.js";
import type {
  BuiltTrie,
  Delivery,
  FfiLlmHandle,
  FinishReason,
  GenerateOptions,
  LeafScores,
  Native,
  OpenOptions,
  SamplingOptions,
  Step,
  TrieNames,
} from "../js/native.js";
import type { TokenTreePayload } from "../js/token-tree.js";
import { closing, delivery, generate, outcome } from "./generation.js";
import { type Library, Out, Struct, addresses, bytes, decoder, ids, raw, terminated } from "./library.js";

/** sizeof(eliza_llm_open_options_t) and sizeof(eliza_llm_sampling_options_t); the offsets are in docs/abi.md. */
const OPEN_OPTIONS = 64;
const SAMPLING_OPTIONS = 96;

/** The functions of one library. */
export class BunNative implements Native {
  readonly version: string;
  readonly hasTokenTrie: boolean;
  readonly #library: Library;
  readonly #delivery: Delivery;
  /** The sampling options of each open handle as they were behind open. */
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

  /** Blocks while the file is loaded. */
  async open(modelPath: string, options: OpenOptions): Promise<FfiLlmHandle> {
    const { call } = this.#library;
    const struct = new Struct(OPEN_OPTIONS);
    struct.i32(4, options.contextSize);
    struct.i32(8, options.threads);
    struct.i32(12, options.gpuLayers);
    struct.array(16, terminated(modelPath, "modelPath"));
    if (options.device !== undefined) struct.array(24, terminated(options.device, "device"));
    if (options.kvType !== undefined) struct.array(32, terminated(options.kvType, "kvType"));
    struct.u32(56, options.slots);
    const handle = call.llm_stream_open_ex(struct.data, null);
    void struct.held.length; // the strings live until here
    if (handle === null || handle === 0) throw this.#library.lastFailure();
    return handle as unknown as FfiLlmHandle;
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
    const size = Number(count[0]) * 4;
    const copy = size === 0 ? new ArrayBuffer(0) : toArrayBuffer(tokens.address as Pointer, 0, size).slice(0);
    library.call.free_tokens(tokens.address);
    return new Int32Array(copy);
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
    if (options.onSpanEnd !== undefined) struct.u32(80, options.onSpanEnd === "stop" ? 1 : 0);
    if (options.strictTrie !== undefined) struct.u32(84, Number(options.strictTrie));
    if (options.ignoreEos !== undefined) struct.u32(88, Number(options.ignoreEos));
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
    for (let asked = 0; ; asked++) {
      const status = Number(library.call.llm_stream_status(raw(handle)));
      if (status < 0) throw library.failure(handle);
      if (status !== GENERATING) return tokens.length;
      // Short prompts are over in no time, and a timer would wait for a millisecond.
      await new Promise((resolve) => (asked < 8 ? setImmediate(resolve) : setTimeout(resolve, 1)));
    }
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

  cancel(handle: FfiLlmHandle): void {
    if (this.#library.call.llm_stream_cancel(raw(handle)) !== 0) this.#library.lastError(); // it is closed: nothing runs
  }

  usage(handle: FfiLlmHandle): unknown {
    const json = this.#library.take(this.#library.call.llm_stream_usage_json(raw(handle)));
    if (json === null) throw this.#library.failure(handle);
    return JSON.parse(json);
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

  #done(status: number | null, handle: FfiLlmHandle): void {
    if (status !== 0) throw this.#library.failure(handle);
  }

  /** Blocks for a pass of the model or two. */
  async scoreTrie(handle: FfiLlmHandle): Promise<LeafScores> {
    const error = new Out();
    const json = this.#answer(this.#library.call.score_token_trie(raw(handle), error), handle, error);
    return JSON.parse(json) as LeafScores;
  }

  buildTrie(handle: FfiLlmHandle, { path, names, before, after, parseSpecial }: TrieNames): BuiltTrie {
    const library = this.#library;
    const list = addresses(names, "names");
    const [warnings, error] = [new Out(), new Out()];
    const answer = library.call.build_token_trie(
      raw(handle),
      terminated(path, "path"),
      list.data,
      names.length,
      terminated(before, "before"),
      terminated(after, "after"),
      Number(parseSpecial),
      warnings,
      error,
    );
    void list.held.length;
    const payload = JSON.parse(this.#answer(answer, handle, error)) as TokenTreePayload;
    return { payload, warnings: library.take(warnings.address)?.split("\n") ?? [] };
  }

  /** A string that is NULL where the call failed. */
  #answer(address: number | null, handle: FfiLlmHandle, error: Out): string {
    const text = this.#library.take(address);
    if (text !== null) return text;
    const why = this.#library.take(error.address);
    const failure = this.#library.failure(handle);
    throw new InferenceError(failure.status, why ?? failure.message);
  }
}

/** ELIZA_STATUS_GENERATING. */
export const GENERATING = 2;
