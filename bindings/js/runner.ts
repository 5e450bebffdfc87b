/**
 * The runner that hosts drive a streaming interface with: one call, one generation, with its text and its usage.
 *
 * It works on any {@link FfiLlmStreamingAbi}, whether its `generate` returns at once, a promise, or after the last event, and
 * also without token tries. It owns neither the interface nor the handle.
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

export interface RunnerOptions {
  /** What warnings go to; default `console.warn`. */
  warn?: (message: string) => void;
  /** How long the end of a generation is waited for that was cancelled, in milliseconds; default 5,000. */
  cancelTimeoutMs?: number;
}

/** Generations on one handle. A handle does one thing at a time, so they run one after the other, whatever their slots. */
export class FfiStreamingRunner {
  readonly #ffi: RunnerAbi;
  readonly #handle: FfiLlmHandle;
  readonly #warn: (message: string) => void;
  readonly #cancelTimeoutMs: number;
  #warned = false;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(ffi: RunnerAbi, ctx: { handle: FfiLlmHandle }, options: RunnerOptions = {}) {
    this.#ffi = ffi;
    this.#handle = ctx.handle;
    this.#warn = options.warn ?? console.warn;
    this.#cancelTimeoutMs = options.cancelTimeoutMs ?? 5000;
  }

  /**
   * Prefills, sets the constraint, generates until the event with `isDone`, and clears the constraint after it in every outcome.
   *
   * A generation that could not be started, or ended in an error by its promise or by `status`, throws that error. An abort ends
   * it within about a token and throws the signal's reason; one before the start evaluates nothing. Where no end follows a
   * cancel in time, the call ends without it. A library without token tries is warned about once, and generates
   * unconstrained.
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
    let over = false;
    let [end, giveUp] = [() => {}, () => {}];
    const ended = new Promise<void>((resolve) => (end = resolve));
    const givenUp = new Promise<void>((resolve) => (giveUp = resolve));
    /** Why the generation was cancelled, whatever comes of that. */
    let stopped: { why: unknown } | undefined;
    let patience: ReturnType<typeof setTimeout> | undefined;
    const stop = (why: unknown) => {
      if (over || stopped !== undefined) return;
      stopped = { why };
      patience = setTimeout(giveUp, this.#cancelTimeoutMs);
      ffi.eliza_inference_llm_stream_cancel(handle);
    };
    const onToken = (token: number, piece: string, done: boolean) => {
      if (over) return;
      if (!done) {
        firstTokenMs ??= performance.now() - began;
        tokens.push(token);
      }
      if (piece !== "") {
        text += piece;
        const { onTextChunk } = args;
        if (onTextChunk !== undefined) {
          chunks = chunks.then(() => (signal?.aborted === true ? undefined : onTextChunk(piece)));
          chunks.catch(stop); // a consumer that fails ends the generation
        }
      }
      if (done) end();
    };
    const constrained = args.tokenTreePayload != null && this.#canConstrain();
    const abort = () => stop(signal?.reason);
    signal?.addEventListener("abort", abort);
    let failure: { error: unknown } | undefined;
    try {
      if (constrained) {
        const json = JSON.stringify(args.tokenTreePayload);
        ffi.eliza_inference_set_token_trie?.(handle, json, args.tokenTreeMode ?? 0);
      }
      const { maxTokens, temperature, topP } = args;
      const started = ffi.eliza_inference_llm_stream_generate(handle, maxTokens, temperature, topP, onToken);
      const accepted = Promise.resolve(started).then((status) => {
        if (status !== 0) throw this.#failure("generate");
      });
      await Promise.race([Promise.all([accepted, ended]), givenUp]);
      const status = stopped === undefined ? (ffi.eliza_inference_llm_stream_status?.(handle) ?? 0) : 0;
      if (status < 0 && status !== STATUS.ELIZA_ERR_CANCELLED) throw this.#failure("generate");
    } catch (error) {
      failure = { error };
    }
    over = true;
    clearTimeout(patience);
    signal?.removeEventListener("abort", abort);
    try {
      if (constrained) ffi.eliza_inference_clear_token_trie?.(handle);
    } catch (error) {
      failure ??= { error };
    }
    if (stopped !== undefined) throw stopped.why;
    if (failure !== undefined) throw failure.error;
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
