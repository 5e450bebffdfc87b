/** `ElizaStreamingAbi` over bun:ffi: every method is the C function of its name. */

import { InferenceError, STATUS } from "../js/errors.js";
import type { Delivery, FfiLlmHandle } from "../js/native.js";
import { type ElizaStreamingAbi, type LlmStreamStep, StreamingAbi, type TokenCallback } from "../js/streaming-abi.js";
import { delivering, delivery, generate } from "./generation.js";
import { type Library, Out, decoder, ids, raw, terminated } from "./library.js";
import { BunNative, GENERATING } from "./native.js";

const BUSY = "Busy: the end of a generation has not been handed out";

export class BunStreamingAbi extends StreamingAbi<BunNative> implements ElizaStreamingAbi {
  readonly #library: Library;
  readonly #delivery: Delivery;
  /** Handles on which a call was refused here, and not by the library, that nobody has asked about. */
  readonly #refused = new Set<FfiLlmHandle>();
  eliza_inference_set_token_trie?: (handle: FfiLlmHandle, triePayloadJson: string, mode: number) => void;
  eliza_inference_clear_token_trie?: (handle: FfiLlmHandle) => void;

  constructor(library: Library, how: Delivery = delivery()) {
    super(new BunNative(library, how));
    this.#library = library;
    this.#delivery = how;
    if (library.has("set_token_trie", "clear_token_trie")) {
      this.eliza_inference_set_token_trie = (handle, json, mode) => this.native.setTrie(handle, json, mode);
      this.eliza_inference_clear_token_trie = (handle) => this.native.clearTrie(handle);
    }
  }

  llmStreamSupported(): boolean {
    return !this.#library.has("llm_stream_supported") || this.#library.call.llm_stream_supported() === 1;
  }

  eliza_inference_llm_stream_open(
    modelPath: string,
    contextSizeTokens: number,
    numThreads: number,
    gpuLayers: number,
  ): FfiLlmHandle | null {
    const path = terminated(modelPath, "modelPath");
    const handle = this.#library.call.llm_stream_open(path, contextSizeTokens, numThreads, gpuLayers);
    return handle === 0 ? null : (handle as unknown as FfiLlmHandle | null);
  }

  /** The library would write over texts that JavaScript has not read yet. */
  #isBusy(handle: FfiLlmHandle): boolean {
    const busy = delivering(this.#library, handle);
    if (busy) this.#refused.add(handle);
    return busy;
  }

  override eliza_inference_llm_stream_close(handle: FfiLlmHandle): void {
    this.#refused.delete(handle);
    super.eliza_inference_llm_stream_close(handle);
  }

  eliza_inference_llm_stream_prefill(handle: FfiLlmHandle, promptTokens: Int32Array, slotId: number): number {
    if (this.#isBusy(handle)) return -1;
    return Number(this.#library.call.llm_stream_prefill(raw(handle), ids(promptTokens), promptTokens.length, slotId));
  }

  eliza_inference_llm_stream_generate(
    handle: FfiLlmHandle,
    maxNewTokens: number,
    temperature: number,
    topP: number,
    tokenCallback: TokenCallback | null,
  ): number {
    if (this.#isBusy(handle)) return -1;
    if (tokenCallback === null) {
      return Number(this.#library.call.llm_stream_generate(raw(handle), maxNewTokens, temperature, topP, null));
    }
    const options = { maxTokens: maxNewTokens, temperature, topP };
    const status = generate(this.#library, handle, options, this.handTo(tokenCallback, handle), this.#delivery);
    return status === 0 ? 0 : -1;
  }

  eliza_inference_llm_stream_next(handle: FfiLlmHandle, maxTokens: number, maxTextBytes: number): LlmStreamStep {
    const library = this.#library;
    const tokens = new Int32Array(Math.max(maxTokens, 1));
    const text = new Uint8Array(Math.max(maxTextBytes, 8));
    const [count, error] = [new Out(), new Out()];
    const [drafted, accepted] = [new Int32Array(1), new Int32Array(1)];
    const [h, call] = [raw(handle), library.call];
    const status = call.llm_stream_next(h, tokens, tokens.length, count, text, text.length, drafted, accepted, error);
    const done = library.check(status, handle, error) > 0;
    return {
      tokens: [...tokens.subarray(0, Number(count[0]))],
      text: decoder.decode(text.subarray(0, text.indexOf(0))),
      done,
      drafterDrafted: drafted[0] ?? 0,
      drafterAccepted: accepted[0] ?? 0,
    };
  }

  eliza_inference_llm_stream_save_slot(handle: FfiLlmHandle, slotId: number, path: string): void {
    this.native.saveSlotSync(handle, slotId, path);
  }

  eliza_inference_llm_stream_restore_slot(handle: FfiLlmHandle, slotId: number, path: string): number {
    if (delivering(this.#library, handle)) throw new InferenceError(STATUS.ELIZA_ERR_BUSY, BUSY);
    return this.native.restoreSlotSync(handle, slotId, path);
  }

  eliza_inference_llm_stream_status(handle: FfiLlmHandle): number {
    if (delivering(this.#library, handle)) return GENERATING;
    return Number(this.#library.call.llm_stream_status(raw(handle)));
  }

  eliza_inference_llm_stream_take_error(handle: FfiLlmHandle): string | null {
    if (this.#refused.delete(handle)) return BUSY;
    return this.#library.take(this.#library.call.llm_stream_take_error(raw(handle)));
  }

  eliza_inference_take_last_error(): string | null {
    return this.#library.lastError();
  }

  eliza_inference_take_last_failure(): InferenceError {
    return this.#library.lastFailure();
  }
}
