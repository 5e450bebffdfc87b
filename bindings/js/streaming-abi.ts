/**
 * The streaming interface under the names of the C functions, for hosts that were written against it.
 *
 * {@link FfiLlmStreamingAbi} is the interface such hosts expect; {@link ElizaStreamingAbi} is what this package
 * implements: the same functions, and beside them those without which a host could not know why something failed, make
 * tokens, or pull.
 */

import type { InferenceError } from "./errors.js";
import type { FfiLlmHandle, Native, SamplingOptions, Step } from "./native.js";
import { type Usage, usageOf } from "./usage.js";

/** Receives one token, or at the end, once, token -1 with the held-back rest of the text and `isDone`. */
export type TokenCallback = (tokenId: number, tokenText: string, isDone: boolean) => void;

/** What hosts expect. All functions but `generate` and `cancel` block. */
export interface FfiLlmStreamingAbi {
  /** The handle, or `null`; then `eliza_inference_take_last_error` has the reason. */
  eliza_inference_llm_stream_open(
    modelPath: string,
    contextSizeTokens: number,
    numThreads: number,
    gpuLayers: number,
  ): FfiLlmHandle | null;

  /** How many tokens are in place, or -1. */
  eliza_inference_llm_stream_prefill(handle: FfiLlmHandle, promptTokens: Int32Array, slotId: number): number;

  /**
   * 0 where the generation was started: the callback then gets its tokens and, once, the event with `isDone`, also after a
   * cancel or an error. -1 where it could not be started: there is no event. Interfaces of others may give a promise of either;
   * this package's gives the number.
   */
  eliza_inference_llm_stream_generate(
    handle: FfiLlmHandle,
    maxNewTokens: number,
    temperature: number,
    topP: number,
    tokenCallback: TokenCallback,
  ): number | Promise<number>;

  /** Never waits; the last event still comes. */
  eliza_inference_llm_stream_cancel(handle: FfiLlmHandle): void;

  /** Frees the handle; a running generation is cancelled first. */
  eliza_inference_llm_stream_close(handle: FfiLlmHandle): void;

  /** Absent where the library has no token tries. Throws where the payload is refused. */
  eliza_inference_set_token_trie?(handle: FfiLlmHandle, triePayloadJson: string, mode: number): void;

  /** Absent where the library has no token tries. */
  eliza_inference_clear_token_trie?(handle: FfiLlmHandle): void;
}

/** One step of a pull. */
export interface LlmStreamStep {
  tokens: number[];
  text: string;
  done: boolean;
  /** Tokens that were guessed and told right from wrong since the last step, and those that were right. */
  drafterDrafted: number;
  drafterAccepted: number;
}

/** What this package implements. */
export interface ElizaStreamingAbi extends FfiLlmStreamingAbi {
  llmStreamSupported(): boolean;

  /**
   * 0 where it was started, or -1. Without a callback it is pulled by `eliza_inference_llm_stream_next`. With one, no event comes
   * before this call has returned, and how it ended is known from the event with `isDone` on:
   * `eliza_inference_llm_stream_status` is 0, 1 or the code of what went wrong, and `eliza_inference_llm_stream_take_error` its text.
   *
   * A callback that throws cancels the generation and gets nothing more but the event with `isDone`; what it threw goes where
   * the runtime's uncaught errors go. Until that event was handed out, the handle is busy.
   */
  eliza_inference_llm_stream_generate(
    handle: FfiLlmHandle,
    maxNewTokens: number,
    temperature: number,
    topP: number,
    tokenCallback: TokenCallback | null,
  ): number;

  /** Waits for a token and takes up to `maxTokens` with at most `maxTextBytes` of text. Throws where it failed. */
  eliza_inference_llm_stream_next(handle: FfiLlmHandle, maxTokens: number, maxTextBytes: number): LlmStreamStep;

  /** The code of a -1; see the header. */
  eliza_inference_llm_stream_status(handle: FfiLlmHandle): number;
  /** The newest text that nobody has taken. */
  eliza_inference_llm_stream_take_error(handle: FfiLlmHandle): string | null;
  /** The same for what belongs to no open handle. */
  eliza_inference_take_last_error(): string | null;
  /** The same with its code. */
  eliza_inference_take_last_failure(): InferenceError;

  eliza_inference_llm_stream_configure(handle: FfiLlmHandle, options: SamplingOptions): void;
  /** What is generated matches a grammar, in the JSON that the header describes. Throws where it is refused. */
  eliza_inference_set_grammar(handle: FfiLlmHandle, json: string): void;
  eliza_inference_clear_grammar(handle: FfiLlmHandle): void;
  eliza_inference_llm_stream_tokenize(
    handle: FfiLlmHandle,
    text: string,
    addSpecial: boolean,
    parseSpecial: boolean,
  ): Int32Array;
  eliza_inference_llm_stream_detokenize(
    handle: FfiLlmHandle,
    tokens: Int32Array,
    removeSpecial: boolean,
    unparseSpecial: boolean,
  ): string;
  eliza_inference_llm_stream_usage(handle: FfiLlmHandle): Usage;
  /** Usage, sizes and names as JSON. */
  eliza_inference_llm_stream_usage_json(handle: FfiLlmHandle): string;

  /** -1 saves the slot of the last prefill or restore. Throws where it failed, also while the handle is at work. */
  eliza_inference_llm_stream_save_slot(handle: FfiLlmHandle, slotId: number, path: string): void;
  /** How many tokens the stream has; a generate may follow at once. -1 takes a fresh slot. Throws as saving does. */
  eliza_inference_llm_stream_restore_slot(handle: FfiLlmHandle, slotId: number, path: string): number;
}

/** The functions that are the same over every runtime's {@link Native}. */
export abstract class StreamingAbi<Runtime extends Native> {
  protected readonly native: Runtime;

  protected constructor(native: Runtime) {
    this.native = native;
  }

  eliza_inference_llm_stream_cancel(handle: FfiLlmHandle): void {
    this.native.cancel(handle);
  }

  eliza_inference_llm_stream_close(handle: FfiLlmHandle): void {
    this.native.close(handle);
  }

  eliza_inference_llm_stream_configure(handle: FfiLlmHandle, options: SamplingOptions): void {
    this.native.configure(handle, options);
  }

  eliza_inference_set_grammar(handle: FfiLlmHandle, json: string): void {
    this.native.setGrammar(handle, json);
  }

  eliza_inference_clear_grammar(handle: FfiLlmHandle): void {
    this.native.clearGrammar(handle);
  }

  eliza_inference_llm_stream_tokenize(
    handle: FfiLlmHandle,
    text: string,
    addSpecial: boolean,
    parseSpecial: boolean,
  ): Int32Array {
    return this.native.tokenize(handle, text, addSpecial, parseSpecial);
  }

  eliza_inference_llm_stream_detokenize(
    handle: FfiLlmHandle,
    tokens: Int32Array,
    removeSpecial: boolean,
    unparseSpecial: boolean,
  ): string {
    return this.native.detokenize(handle, tokens, removeSpecial, unparseSpecial);
  }

  eliza_inference_llm_stream_usage(handle: FfiLlmHandle): Usage {
    return usageOf(this.native.usage(handle));
  }

  eliza_inference_llm_stream_usage_json(handle: FfiLlmHandle): string {
    return JSON.stringify(this.native.usage(handle));
  }

  /** What hands the steps of a generation to the host's callback, which may throw. */
  protected handTo(tokenCallback: TokenCallback, handle: FfiLlmHandle): (step: Step) => void {
    let failed = false;
    return ({ token, text, done }) => {
      if (failed && !done) return;
      try {
        tokenCallback(token, text, done);
      } catch (error) {
        failed = true;
        this.eliza_inference_llm_stream_cancel(handle);
        queueMicrotask(() => {
          throw error;
        });
      }
    };
  }
}
