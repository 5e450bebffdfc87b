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

/** What hosts expect. All functions but `generate` block. */
export interface FfiLlmStreamingAbi {
  /** The handle, or `null`; then `eliza_inference_take_last_error` tells why. */
  eliza_inference_llm_stream_open(
    modelPath: string,
    contextSizeTokens: number,
    numThreads: number,
    gpuLayers: number,
  ): FfiLlmHandle | null;

  /** How many tokens are in place, or -1. */
  eliza_inference_llm_stream_prefill(handle: FfiLlmHandle, promptTokens: Int32Array, slotId: number): number;

  /**
   * Resolves to 0 after the callback had its last event, also after a cancel; rejects where the generation failed, or the
   * callback threw, which cancels it. Where it could not be started it is -1, and there is no event.
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
  /** There is no drafter: 0. */
  drafterDrafted: number;
  drafterAccepted: number;
}

/** What this package implements. */
export interface ElizaStreamingAbi extends FfiLlmStreamingAbi {
  llmStreamSupported(): boolean;

  /** Without a callback the generation is pulled; 0 when it was started, or -1. */
  eliza_inference_llm_stream_generate(
    handle: FfiLlmHandle,
    maxNewTokens: number,
    temperature: number,
    topP: number,
    tokenCallback: null,
  ): number;
  eliza_inference_llm_stream_generate(
    handle: FfiLlmHandle,
    maxNewTokens: number,
    temperature: number,
    topP: number,
    tokenCallback: TokenCallback,
  ): number | Promise<number>;

  /** Waits for a token and takes up to `maxTokens` with at most `maxTextBytes` of text. Throws where it failed. */
  eliza_inference_llm_stream_next(handle: FfiLlmHandle, maxTokens: number, maxTextBytes: number): LlmStreamStep;

  /** The code behind a -1; see the header. */
  eliza_inference_llm_stream_status(handle: FfiLlmHandle): number;
  /** The newest text that nobody has taken. */
  eliza_inference_llm_stream_take_error(handle: FfiLlmHandle): string | null;
  /** The same for what belongs to no open handle. */
  eliza_inference_take_last_error(): string | null;
  /** The same with its code. */
  eliza_inference_take_last_failure(): InferenceError;

  eliza_inference_llm_stream_configure(handle: FfiLlmHandle, options: SamplingOptions): void;
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

  /**
   * Hands the steps of what `start` starts to the callback. One that throws ends the generation, whose promise has the error;
   * a number instead of a promise says that nothing was started.
   */
  protected deliver(
    handle: FfiLlmHandle,
    tokenCallback: TokenCallback,
    start: (onStep: (step: Step) => void) => Promise<unknown> | number,
  ): number | Promise<number> {
    const thrown: unknown[] = [];
    const started = start(({ token, text, done }) => {
      try {
        tokenCallback(token, text, done);
      } catch (error) {
        thrown.push(error);
        this.eliza_inference_llm_stream_cancel(handle);
      }
    });
    if (typeof started === "number") return -1;
    return started.then(() => {
      if (thrown.length > 0) throw thrown[0];
      return 0;
    });
  }
}
