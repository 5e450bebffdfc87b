/**
 * The runner that hosts drive a streaming interface with: one call, one generation, with its text and its usage.
 *
 * It works on any {@link FfiLlmStreamingAbi}, a library without token tries included, and owns neither the interface nor
 * the handle.
 */

import { InferenceError, STATUS } from "./errors.js";
import type { FfiLlmHandle } from "./native.js";
import type { ElizaStreamingAbi, FfiLlmStreamingAbi } from "./streaming-abi.js";
import type { TokenTreePayload } from "./token-tree.js";
import type { Usage } from "./usage.js";

/** What the runner needs: the functions that hosts expect, and those of ours that it can do without. */
export type RunnerAbi = FfiLlmStreamingAbi &
  Partial<
    Pick<
      ElizaStreamingAbi,
      | "eliza_inference_llm_stream_tokenize"
      | "eliza_inference_llm_stream_usage"
      | "eliza_inference_llm_stream_status"
      | "eliza_inference_llm_stream_take_error"
    >
  >;

export interface FfiStreamingGenerateArgs {
  /** Token ids; one of the two is needed. */
  promptTokens?: Int32Array;
  /** Text, tokenized by the model. */
  prompt?: string;
  /** -1 takes a fresh slot. Calls on one slot run one after the other. */
  slotId: number;
  maxTokens: number;
  temperature: number;
  topP: number;
  tokenTreePayload?: TokenTreePayload | null;
  /** 0 greedy (default), 1 sampled, 2 whole names by their probability. */
  tokenTreeMode?: number;
  signal?: AbortSignal;
  /** Gets every text that is not empty, in order; a promise is waited for before the next. */
  onTextChunk?: (chunk: string) => void | Promise<void>;
}

export interface FfiStreamingResult {
  text: string;
  slotId: number;
  tokens: number[];
  promptTokens: number;
  completionTokens: number;
  /** From the call to the first token; null where there was none. */
  firstTokenMs: number | null;
  /** The library's own report; null where the interface has none. */
  usage: Usage | null;
}

/** What warnings go to. */
export interface RunnerOptions {
  warn?: (message: string) => void;
}

/** Generations on one handle. A handle does one thing at a time, so they run one after the other, whatever their slots. */
export class FfiStreamingRunner {
  readonly #ffi: RunnerAbi;
  readonly #handle: FfiLlmHandle;
  readonly #warn: (message: string) => void;
  #warned = false;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(ffi: RunnerAbi, ctx: { handle: FfiLlmHandle }, { warn = console.warn }: RunnerOptions = {}) {
    this.#ffi = ffi;
    this.#handle = ctx.handle;
    this.#warn = warn;
  }

  /**
   * Prefills, sets the constraint, generates, and clears the constraint in every outcome.
   *
   * An abort ends the generation within about a token and throws the signal's reason; one before the start evaluates
   * nothing. A library without token tries is warned about once, and generates unconstrained.
   */
  generateWithUsage(args: FfiStreamingGenerateArgs): Promise<FfiStreamingResult> {
    const run = this.#turn.then(() => this.#generate(args));
    this.#turn = run.catch(() => {});
    return run;
  }

  async #generate(args: FfiStreamingGenerateArgs): Promise<FfiStreamingResult> {
    const [ffi, handle, { signal, slotId }] = [this.#ffi, this.#handle, args];
    const began = performance.now();
    signal?.throwIfAborted();
    const promptTokens = this.#tokens(args);
    if (ffi.eliza_inference_llm_stream_prefill(handle, promptTokens, slotId) < 0) throw this.#failure("prefill");
    await macrotask(); // an abort that came while the prompt was evaluated is seen here
    signal?.throwIfAborted();

    const tokens: number[] = [];
    let text = "";
    let firstTokenMs: number | null = null;
    let chunks: Promise<void> = Promise.resolve();
    const cancel = () => ffi.eliza_inference_llm_stream_cancel(handle);
    const onToken = (token: number, piece: string, done: boolean) => {
      if (!done) {
        firstTokenMs ??= performance.now() - began;
        tokens.push(token);
      }
      if (piece === "") return;
      text += piece;
      if (args.onTextChunk !== undefined) {
        const { onTextChunk } = args;
        chunks = chunks.then(() => (signal?.aborted === true ? undefined : onTextChunk(piece)));
        chunks.catch(cancel); // a consumer that fails ends the generation, and its error is thrown below
      }
    };
    const constrained = args.tokenTreePayload != null && this.#canConstrain();
    signal?.addEventListener("abort", cancel);
    try {
      if (constrained) {
        const json = JSON.stringify(args.tokenTreePayload);
        ffi.eliza_inference_set_token_trie?.(handle, json, args.tokenTreeMode ?? 0);
      }
      const status = await ffi.eliza_inference_llm_stream_generate(
        handle,
        args.maxTokens,
        args.temperature,
        args.topP,
        onToken,
      );
      if (status < 0) throw this.#failure("generate");
    } finally {
      signal?.removeEventListener("abort", cancel);
      if (constrained) ffi.eliza_inference_clear_token_trie?.(handle);
    }
    await chunks;
    signal?.throwIfAborted();
    const usage = ffi.eliza_inference_llm_stream_usage?.(handle) ?? null;
    return {
      text,
      slotId,
      tokens,
      promptTokens: promptTokens.length,
      completionTokens: tokens.length,
      firstTokenMs,
      usage,
    };
  }

  #tokens({ promptTokens, prompt }: FfiStreamingGenerateArgs): Int32Array {
    if (promptTokens !== undefined) return promptTokens;
    const tokenize = this.#ffi.eliza_inference_llm_stream_tokenize?.bind(this.#ffi);
    if (prompt === undefined) throw new InferenceError(STATUS.ELIZA_ERR_INVALID_ARG, "Neither promptTokens nor prompt");
    if (tokenize === undefined) {
      throw new InferenceError(STATUS.ELIZA_ERR_NOT_IMPLEMENTED, "This library cannot tokenize: pass promptTokens");
    }
    return tokenize(this.#handle, prompt, true, false);
  }

  #canConstrain(): boolean {
    const { eliza_inference_set_token_trie: set, eliza_inference_clear_token_trie: clear } = this.#ffi;
    if (set !== undefined && clear !== undefined) return true;
    if (!this.#warned) this.#warn("This libelizainference has no token tries: generating unconstrained");
    this.#warned = true;
    return false;
  }

  #failure(call: string): InferenceError {
    const status = this.#ffi.eliza_inference_llm_stream_status?.(this.#handle) ?? -1;
    const text = this.#ffi.eliza_inference_llm_stream_take_error?.(this.#handle) ?? `${call} failed`;
    return new InferenceError(status < 0 ? status : -1, text);
  }
}

/** Lets timers and the network have their turn, which a resolved promise does not. */
function macrotask(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 0));
}
