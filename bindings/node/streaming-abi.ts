/**
 * `ElizaStreamingAbi` over the addon. There a call that fails throws; here, as in C, some calls say -1, and the code and the
 * text wait until they are asked for.
 */

import { InferenceError } from "../js/errors.js";
import type { FfiLlmHandle } from "../js/native.js";
import { type ElizaStreamingAbi, type LlmStreamStep, StreamingAbi, type TokenCallback } from "../js/streaming-abi.js";
import type { NodeNative } from "./native.js";

/** How many errors wait, of a handle or of none, the newest first. */
const KEPT = 16;

export class NodeStreamingAbi extends StreamingAbi<NodeNative> implements ElizaStreamingAbi {
  /** Errors of open handles that nobody has taken, and those that belong to none. */
  readonly #failed = new WeakMap<object, InferenceError[]>();
  readonly #lost: InferenceError[] = [];

  constructor(native: NodeNative) {
    super(native);
  }

  llmStreamSupported(): boolean {
    return true;
  }

  eliza_inference_llm_stream_open(
    modelPath: string,
    contextSize: number,
    threads: number,
    gpuLayers: number,
  ): FfiLlmHandle | null {
    try {
      return this.native.openSync(modelPath, { contextSize, threads, gpuLayers });
    } catch (error) {
      keep(this.#lost, error);
      return null;
    }
  }

  eliza_inference_llm_stream_prefill(handle: FfiLlmHandle, promptTokens: Int32Array, slotId: number): number {
    return this.#coded(handle, () => this.native.prefillSync(handle, promptTokens, slotId));
  }

  eliza_inference_llm_stream_generate(
    handle: FfiLlmHandle,
    maxNewTokens: number,
    temperature: number,
    topP: number,
    tokenCallback: TokenCallback | null,
  ): number {
    const options = { maxTokens: maxNewTokens, temperature, topP };
    return this.#coded(handle, () => {
      if (tokenCallback === null) {
        this.native.generateQueued(handle, options);
        return 0;
      }
      const hand = this.handTo(tokenCallback, handle);
      this.native.start(handle, options, (step, end) => {
        if (end instanceof InferenceError) this.#keep(handle, end);
        hand(step);
      });
      return 0;
    });
  }

  eliza_inference_set_token_trie(handle: FfiLlmHandle, triePayloadJson: string, mode: number): void {
    this.native.setTrie(handle, triePayloadJson, mode);
  }

  eliza_inference_clear_token_trie(handle: FfiLlmHandle): void {
    this.native.clearTrie(handle);
  }

  eliza_inference_llm_stream_next(handle: FfiLlmHandle, maxTokens: number, maxTextBytes: number): LlmStreamStep {
    return this.native.next(handle, maxTokens, maxTextBytes);
  }

  eliza_inference_llm_stream_save_slot(handle: FfiLlmHandle, slotId: number, path: string): void {
    this.native.saveSlotSync(handle, slotId, path);
  }

  eliza_inference_llm_stream_restore_slot(handle: FfiLlmHandle, slotId: number, path: string): number {
    return this.native.restoreSlotSync(handle, slotId, path);
  }

  eliza_inference_llm_stream_status(handle: FfiLlmHandle): number {
    try {
      return this.native.status(handle);
    } catch {
      return -1;
    }
  }

  eliza_inference_llm_stream_take_error(handle: FfiLlmHandle): string | null {
    return this.#failed.get(handle)?.pop()?.message ?? null;
  }

  eliza_inference_take_last_error(): string | null {
    return this.#lost.pop()?.message ?? null;
  }

  eliza_inference_take_last_failure(): InferenceError {
    return this.#lost.pop() ?? new InferenceError(-1, "The call failed");
  }

  /** A call that says -1 where it fails. */
  #coded(handle: FfiLlmHandle, body: () => number): number {
    try {
      return body();
    } catch (error) {
      this.#keep(handle, error);
      return -1;
    }
  }

  /** Keeps an error until it is asked for. */
  #keep(handle: FfiLlmHandle, error: unknown): void {
    const open = this.eliza_inference_llm_stream_status(handle) !== -1;
    let kept = open ? this.#failed.get(handle) : this.#lost;
    if (kept === undefined) this.#failed.set(handle, (kept = []));
    keep(kept, error);
  }
}

function keep(errors: InferenceError[], error: unknown): void {
  errors.push(error as InferenceError);
  if (errors.length > KEPT) errors.shift();
}
