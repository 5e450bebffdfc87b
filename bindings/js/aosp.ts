/**
 * The binding that the Android agent's streaming code expects, over {@link ElizaStreamingAbi}.
 *
 * There a context is an open model and a stream is one generation on it. Here a context is a handle, whose slots keep their
 * prompts between streams, so that the next stream in a slot evaluates only what is new. A handle does one thing at a time: a
 * second stream on a context that has one open is refused.
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
  /** The slot of a stream without a `promptCacheKey`; -1 takes a fresh one. */
  slotId: number;
  /**
   * Streams of a context with the same key have the same slot, so what their prompts have in common is evaluated once. A new
   * key takes the slot used least recently, and the key that had it loses it. `null` leaves the slot to `slotId`.
   */
  promptCacheKey: string | null;
  /** There is no draft model: above 0 is refused with `ELIZA_ERR_NOT_IMPLEMENTED`. */
  draftMin: number;
  /** As `draftMin`. */
  draftMax: number;
  /** Never read, since there is no draft model. */
  dflashDrafterPath: string | null;
  /** Has no effect: thinking is asked for by the prompt's template, and here a prompt is tokens. */
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
  /** Saves the stream's slot, and where its generation stopped. Refused before a prefill or restore, and while it generates. */
  llmStreamSaveSlot(args: { stream: AospLlmStreamHandle; filename: string }): void;
  /** Brings a saved slot into the stream's: it goes on where that stopped, or a prefill reuses what the two have in common. */
  llmStreamRestoreSlot(args: { stream: AospLlmStreamHandle; filename: string }): void;
  llmStreamClose(stream: AospLlmStreamHandle): void;
  /** Absent where the library has no token tries. Call it after the prefill; closing the stream clears it. */
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
  /** Its slots and the keys of what they hold, that used least recently first. */
  slots: { slot: number; key: string | null }[];
}

interface Stream {
  context: Context;
  config: AospLlmStreamConfig;
  slot: number;
  /** Whether its slot holds what the stream put there. */
  filled: boolean;
  state: "open" | "generating" | "over";
}

/** The largest step that is asked for. */
const MAX_TOKENS_PER_STEP = 512;

/** The slot of a new stream. */
function slotOf({ slots }: Context, { promptCacheKey: key, slotId }: AospLlmStreamConfig): number {
  const known = slots.findIndex((one) => (key === null ? one.slot === slotId : one.key === key));
  const at = known < 0 && key !== null ? 0 : known;
  const used = slots[at];
  if (used === undefined) return slotId; // a fresh one, or none that there is
  slots.splice(at, 1);
  slots.push({ slot: used.slot, key });
  return used.slot;
}

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
      const { model } = JSON.parse(ffi.eliza_inference_llm_stream_usage_json(handle)) as { model: { slots: number } };
      const slots = Array.from({ length: model.slots }, (_, slot) => ({ slot, key: null }));
      contexts.set(++issued, { handle, stream: undefined, slots });
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
      const { draftMin, draftMax } = config;
      if (draftMin > 0 || draftMax > 0) {
        const problem = `draftMin is ${draftMin} and draftMax ${draftMax}, but there is no speculative decoding: both must be 0`;
        throw new InferenceError(STATUS.ELIZA_ERR_NOT_IMPLEMENTED, problem);
      }
      const { topK, repeatPenalty } = config;
      ffi.eliza_inference_llm_stream_configure(on.handle, { topK, repeatPenalty });
      on.stream = ++issued;
      streams.set(on.stream, { context: on, config, slot: slotOf(on, config), filled: false, state: "open" });
      return on.stream;
    },

    llmStreamPrefill({ stream: id, tokens }) {
      const on = stream(id);
      const { handle } = on.context;
      if (ffi.eliza_inference_llm_stream_prefill(handle, tokens, on.slot) < 0) throw failure(handle);
      on.filled = true;
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

    llmStreamSaveSlot({ stream: id, filename }) {
      const on = stream(id);
      if (!on.filled) refuse(`Stream ${id} has evaluated nothing that could be saved`);
      ffi.eliza_inference_llm_stream_save_slot(on.context.handle, -1, filename);
    },

    llmStreamRestoreSlot({ stream: id, filename }) {
      const on = stream(id);
      ffi.eliza_inference_llm_stream_restore_slot(on.context.handle, on.slot, filename);
      on.filled = true;
    },

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
