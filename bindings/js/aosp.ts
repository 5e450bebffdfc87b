/**
 * The binding that the Android agent's streaming code expects, over {@link ElizaStreamingAbi}.
 *
 * There a context is an open model and a stream is one generation on it. Here a context is a handle, which keeps its
 * prompt between streams, so that the next stream evaluates only what is new. A handle does one thing at a time: a second
 * stream on a context that has one open is refused.
 */

import { InferenceError, STATUS } from "./errors.js";
import type { FfiLlmHandle } from "./native.js";
import type { ElizaStreamingAbi, LlmStreamStep } from "./streaming-abi.js";
import { TRIE_MODES } from "./token-tree.js";

export type AospInferenceContextHandle = bigint;
export type AospLlmStreamHandle = bigint;

export interface AospLlmStreamConfig {
  maxTokens: number;
  temperature: number;
  topP: number;
  topK: number;
  repeatPenalty: number;
  /** -1 takes a fresh slot. */
  slotId: number;
  /** Has no effect: a slot keeps what it holds, whatever it is called. */
  promptCacheKey: string | null;
  /** Above 0 together with a drafter is refused: there is no drafter. */
  draftMin: number;
  draftMax: number;
  dflashDrafterPath: string | null;
  /** Has no effect: it is for the prompt's template. */
  disableThinking: boolean;
}

export interface AospStreamingLlmBinding {
  llmStreamSupported(): boolean;
  llmStreamOpen(args: { ctx: AospInferenceContextHandle; config: AospLlmStreamConfig }): AospLlmStreamHandle;
  llmStreamPrefill(args: { stream: AospLlmStreamHandle; tokens: Int32Array }): void;
  /** Waits for the next tokens: at most 32, or `maxTokensPerStep`, with at most 1024 bytes of text, or `maxTextBytes`. */
  llmStreamNext(args: {
    stream: AospLlmStreamHandle;
    maxTokensPerStep?: number;
    maxTextBytes?: number;
  }): LlmStreamStep;
  llmStreamCancel(stream: AospLlmStreamHandle): void;
  /** Always throws `ELIZA_ERR_NOT_IMPLEMENTED`: a slot cannot be saved yet. */
  llmStreamSaveSlot(args: { stream: AospLlmStreamHandle; filename: string }): void;
  /** As `llmStreamSaveSlot`. */
  llmStreamRestoreSlot(args: { stream: AospLlmStreamHandle; filename: string }): void;
  llmStreamClose(stream: AospLlmStreamHandle): void;
  /** Absent where the library has no token tries. Call it behind the prefill; closing the stream clears it. */
  llmStreamSetTokenTrie?(args: { stream: AospLlmStreamHandle; triePayloadJson: string; mode: number }): void;
  llmStreamClearTokenTrie?(args: { stream: AospLlmStreamHandle }): void;
}

/** The binding, and what opens and ends its contexts. */
export interface AospStreaming extends AospStreamingLlmBinding {
  openContext(modelPath: string, contextSizeTokens: number, numThreads: number, gpuLayers: number): AospInferenceContextHandle;
  closeContext(ctx: AospInferenceContextHandle): void;
}

interface Context {
  handle: FfiLlmHandle;
  stream: bigint | undefined;
}

interface Stream {
  context: Context;
  config: AospLlmStreamConfig;
  state: "open" | "generating" | "over";
}

/** The largest step that is asked for. */
const MAX_TOKENS_PER_STEP = 512;

/** An {@link AospStreamingLlmBinding} over a library. */
export function aospStreaming(ffi: ElizaStreamingAbi): AospStreaming {
  const contexts = new Map<bigint, Context>();
  const streams = new Map<bigint, Stream>();
  let issued = 0n;

  const context = (ctx: bigint): Context => contexts.get(ctx) ?? refuse(`Context ${ctx} is not open`);
  const stream = (id: bigint): Stream => streams.get(id) ?? refuse(`Stream ${id} is not open`);
  const failure = (handle: FfiLlmHandle): InferenceError =>
    new InferenceError(
      ffi.eliza_inference_llm_stream_status(handle),
      ffi.eliza_inference_llm_stream_take_error(handle) ?? "The call failed",
    );
  const next = ({ context: { handle } }: Stream, tokens: number, bytes: number) =>
    ffi.eliza_inference_llm_stream_next(handle, tokens, bytes);
  const unsaved = () => {
    throw new InferenceError(STATUS.ELIZA_ERR_NOT_IMPLEMENTED, "A slot cannot be saved or restored yet");
  };
  const close = (id: bigint): void => {
    const closing = streams.get(id);
    if (closing === undefined) return;
    const { handle } = closing.context;
    if (closing.state === "generating") {
      ffi.eliza_inference_llm_stream_cancel(handle);
      try {
        while (!next(closing, MAX_TOKENS_PER_STEP, 4096).done);
      } catch {
        // The end of a cancelled generation, or its error: it is over.
      }
    }
    ffi.eliza_inference_clear_token_trie?.(handle);
    closing.context.stream = undefined;
    streams.delete(id);
  };

  const binding: AospStreaming = {
    llmStreamSupported: () => ffi.llmStreamSupported(),

    openContext(modelPath, contextSizeTokens, numThreads, gpuLayers) {
      const handle = ffi.eliza_inference_llm_stream_open(modelPath, contextSizeTokens, numThreads, gpuLayers);
      if (handle === null) throw ffi.eliza_inference_take_last_failure();
      contexts.set(++issued, { handle, stream: undefined });
      return issued;
    },

    closeContext(ctx) {
      const closing = contexts.get(ctx);
      if (closing === undefined) return;
      if (closing.stream !== undefined) close(closing.stream);
      contexts.delete(ctx);
      ffi.eliza_inference_llm_stream_close(closing.handle);
    },

    llmStreamOpen({ ctx, config }) {
      const on = context(ctx);
      if (on.stream !== undefined) {
        throw new InferenceError(STATUS.ELIZA_ERR_BUSY, `Context ${ctx} has stream ${on.stream} open`);
      }
      if (config.dflashDrafterPath !== null && config.draftMax > 0) {
        throw new InferenceError(STATUS.ELIZA_ERR_NOT_IMPLEMENTED, "There is no speculative decoding: pass no drafter");
      }
      const { topK, repeatPenalty } = config;
      ffi.eliza_inference_llm_stream_configure(on.handle, { topK, repeatPenalty });
      on.stream = ++issued;
      streams.set(on.stream, { context: on, config, state: "open" });
      return on.stream;
    },

    llmStreamPrefill({ stream: id, tokens }) {
      const { context: on, config } = stream(id);
      if (ffi.eliza_inference_llm_stream_prefill(on.handle, tokens, config.slotId) < 0) throw failure(on.handle);
    },

    llmStreamNext({ stream: id, maxTokensPerStep = 32, maxTextBytes = 1024 }) {
      const on = stream(id);
      const { handle } = on.context;
      if (on.state === "open") {
        const { maxTokens, temperature, topP } = on.config;
        if (ffi.eliza_inference_llm_stream_generate(handle, maxTokens, temperature, topP, null) < 0) {
          throw failure(handle);
        }
        on.state = "generating";
      }
      if (on.state === "over") refuse(`Stream ${id} is over`);
      try {
        const step = next(on, Math.min(Math.max(maxTokensPerStep, 1), MAX_TOKENS_PER_STEP), maxTextBytes);
        if (step.done) on.state = "over";
        return step;
      } catch (error) {
        on.state = "over";
        throw error;
      }
    },

    llmStreamCancel(id) {
      ffi.eliza_inference_llm_stream_cancel(stream(id).context.handle);
    },

    llmStreamSaveSlot: unsaved,
    llmStreamRestoreSlot: unsaved,
    llmStreamClose: close,
  };
  const { eliza_inference_set_token_trie: set, eliza_inference_clear_token_trie: clear } = ffi;
  if (set !== undefined && clear !== undefined) {
    binding.llmStreamSetTokenTrie = ({ stream: id, triePayloadJson, mode = TRIE_MODES.greedy }) =>
      set.call(ffi, stream(id).context.handle, triePayloadJson, mode);
    binding.llmStreamClearTokenTrie = ({ stream: id }) => clear.call(ffi, stream(id).context.handle);
  }
  return binding;
}

function refuse(message: string): never {
  throw new InferenceError(STATUS.ELIZA_ERR_INVALID_ARG, message);
}
