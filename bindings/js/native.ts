/**
 * What a runtime provides: the contract between the face (`model.ts`) and `bun/`, `node/`.
 *
 * An implementation crosses the C interface and does nothing else: no queueing, no defaults, no policy. The rules that
 * hold for all of its functions:
 *
 * - **Errors.** Every failure is an {@link InferenceError} with the library's status and text: thrown by a synchronous
 *   function, a rejection of one that returns a promise (also where an argument is refused at once). Those
 *   functions of C that have no `out_error` return -1 only; the status is then `eliza_inference_llm_stream_status`, the text
 *   `eliza_inference_llm_stream_take_error`; for an open and a handle that is not open both are
 *   `eliza_inference_take_last_failure`. A text that came by `out_error` waits there too: take it, or it is taken for that of
 *   a later call.
 * - **Handles** are opaque to the face and only ever passed back. One that was closed is an error, never a crash.
 * - **Strings** are encoded as UTF-8 with their length in bytes. Where C takes a terminated string (paths of files and
 *   descriptors, chains, names, stop strings) one that holds a NUL is refused with `ELIZA_ERR_INVALID_ARG`.
 * - **Text** that comes back is valid UTF-8 except from `detokenize`, which decodes lossily (U+FFFD).
 * - **Threads.** What returns a promise may take long. A runtime that can runs it off the JavaScript thread; one that cannot
 *   blocks for all but `prefill`, `embed` and `generate`, which never block the event loop, so that `cancel` can reach them.
 * - **Life.** The process stays alive while a promise of these functions is pending, and ends normally whenever the host
 *   calls `process.exit`, throws, or ends a worker. Nothing else keeps the process alive.
 */

import type { SampledToken } from "./describe.js";
import type { TokenTreePayload } from "./token-tree.js";

/** An open model. At run time a number (or what the runtime likes); never looked into. */
export interface FfiLlmHandle {
  readonly _brand: "FfiLlmHandle";
}

/** How tokens come from the library to JavaScript: the library calls, or a timer asks. */
export type Delivery = "callback" | "poll";

/** What `load`, `native` and `streamingAbi` of every runtime take. */
export interface LibraryOptions {
  /** The runtime's binary; default `ELIZA_INFERENCE_LIBRARY`, else that of the platform package. */
  library?: string;
  /** Bun only: by callback where that is safe (1.4 and later, not in a Worker), else by polling. */
  delivery?: Delivery;
}

/** Formats of the key/value memory. */
export type KvType = "f16" | "f32" | "q8_0";

/** {@link OpenOptions.tensorDevices} as the library takes it. */
export function tensorRules(rules: Record<string, "cpu" | "gpu">): string {
  return Object.entries(rules).map(([pattern, device]) => `${pattern}=${device}`).join(";");
}

/** {@link OpenOptions.tensorSplit} as the library takes it. */
export function splitText(shares: readonly number[]): string {
  return shares.join(",");
}

/** {@link OpenOptions.fallback} as the library takes it. */
export function modelLines(models: readonly string[]): string {
  return models.join("\n");
}

/** How a server is reached whose address is in the place of a model's path. */
export interface ServerOptions {
  /**
   * The GGUF file with the vocabulary of the server's model; it needs no tensors. Without one the server tokenizes, and a token of the
   * model is a byte of its texts.
   */
  vocab?: string;
  /** The key that is sent to it, over https or to this machine alone; default the environment's `ELIZA_REMOTE_KEY`. */
  apiKey?: string;
  /** A PEM file with the only certificates that are trusted; default those of the platform. */
  certificates?: string;
  /** How long it may be silent, in milliseconds; default 60000. */
  timeoutMs?: number;
}

/** A folder of conversations, which several models and processes may share. */
export interface StoreOptions {
  /** The folder; it is created where it is not there. */
  directory: string;
  /** The most bytes that its conversations take: those used the longest time ago are removed. Default: no limit. */
  maxBytes?: number;
}

/** `eliza_llm_open_options_t`. Absent fields are 0 or NULL there, which is the library's default. */
export interface OpenOptions {
  /** Context in tokens; default min(4096, what the model was trained with). */
  contextSize?: number;
  /** Threads that compute; default as many as the machine has cores for it. */
  threads?: number;
  /** Layers on the GPU, counted from the end: 0 none (default), -1 all. */
  gpuLayers?: number;
  /** Name of the device, or of several GPUs, separated by semicolons, which divide the layers; default the best. */
  device?: string;
  /**
   * How large a part of the weights that are on GPUs each of several has, relative to the others: one for each that `device` names;
   * where that names one or none, the best so many GPUs are taken. Default by their free memory.
   */
  tensorSplit?: number[];
  /**
   * Tensors that are placed whatever their layer: regular expressions that have to match some part of a tensor's name, and
   * their device. The first that matches counts. `{ exps: "cpu" }` keeps experts on the CPU.
   */
  tensorDevices?: Record<string, "cpu" | "gpu">;
  /** Format of the key/value memory; default "f16". */
  kvType?: KvType;
  /** Format of the values in it, where it is not that of the keys. */
  kvTypeV?: KvType;
  /** How many conversations share the context, 1 to 16; default 16. */
  slots?: number;
  /** The most tokens of a prompt that one pass evaluates, 1 to 512; default 512. Fewer take less memory, and more passes. */
  nBatch?: number;
  /**
   * How many earlier recurrent states, and earlier windows of sliding layers, are kept, after which a prompt can go on, 1 to 256;
   * default as many as fit into a share of the cache. Models with neither need none.
   */
  snapshots?: number;
  /**
   * How many handles share an engine, 1 to 16; default 1. Handles that are opened with the same file and the same options join the
   * engine of the first: they generate at the same time, and every step reads the weights once for all of them, which changes no
   * token of anybody's. Each has a context of its own and `slots` slots, 16 in all; the memory for all of them is taken by the first.
   * Where an engine has no place left, another one is made.
   */
  parallel?: number;
  /**
   * Whether slots can have models of their own, made by `openSlot`, which work at the same time and share the context; default false:
   * the slots of a model take turns.
   */
  concurrentSlots?: boolean;
  /**
   * While prompts of others are read, a handle's time for a token grows to at most this many percent of the time without them, as
   * well as the passes so far tell; default 250, and 100 lets prompts wait for the tokens of all others.
   */
  maxSlowdownPercent?: number;
  /**
   * The GGUF file of a draft model, a small one: what it guesses is evaluated in the pass of the token before, where that has paid.
   * It changes no token. With another vocabulary it guesses by text, which pays less. The model's own file, where that has a block
   * that predicts further tokens (NextN, MTP): the block guesses. It works on the CPU, takes memory for weights and a context of its
   * own, and goes with neither `parallel` nor `concurrentSlots`.
   */
  draft?: string;
  /** For a model on a server, `load("vllm:https://host:8000/v1#name", { server })`: how it is reached. */
  server?: ServerOptions;
  /**
   * Models in the place of the first, files or addresses, in their order: every prompt is given to the first model that can be
   * opened, has room for it and does not fail before its first token; `usage().servedBy` says which. All have the vocabulary of the
   * first that was opened; those after it are opened when they are needed.
   */
  fallback?: string[];
  /** Where `persist` keeps conversations; without it nowhere. */
  store?: StoreOptions;
  /**
   * Opens the vocabulary alone, without weights: tokenizing, tries and the questions about model, file and tokens work, everything
   * else fails with `ELIZA_ERR_NOT_IMPLEMENTED`. The other options have no effect.
   */
  vocabOnly?: boolean;
  /**
   * Told which part of the model is loaded, growing up to 1. `false` cancels the load, which then rejects with
   * `ELIZA_ERR_CANCELLED`; what is thrown does too, and the load rejects with that.
   */
  onProgress?: (progress: number) => boolean | void;
}

/** How many tokens a model may think in each block; then the end of its thinking is forced. */
export interface ReasoningBudget {
  tokens: number;
  /** The text with which thinking begins, such as "<think>". */
  start: string;
  /** The text with which it ends, such as "</think>". */
  end: string;
}

/**
 * `eliza_llm_sampling_options_t`. Absent fields have the value that `eliza_inference_llm_stream_sampling_defaults` gave
 * right after open: the library's defaults under those of the model file.
 */
export interface SamplingOptions {
  /** Seed of the draws, 0 to 2^32 - 1; 2^32 - 1 takes a new one each time. */
  seed?: number;
  topK?: number;
  minP?: number;
  repeatPenalty?: number;
  repeatLastN?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  /** Tokens whose logit is at most so many standard deviations below the greatest; 0 and below keep all. */
  topNSigma?: number;
  /** Tokens of the most typical surprise with this probability in sum; 1 keeps all. */
  typicalP?: number;
  /** XTC: how often all tokens of at least the threshold's probability are removed but the least likely; 0: never. */
  xtcProbability?: number;
  xtcThreshold?: number;
  /** Half the width of the range in which the temperature grows with the entropy; 0: a plain temperature. */
  dynatempRange?: number;
  dynatempExponent?: number;
  /** DRY: subtracted from the logit of a token that prolongs a repetition of the allowed length; 0: off. */
  dryMultiplier?: number;
  dryBase?: number;
  dryAllowedLength?: number;
  dryLastN?: number;
  /** DRY: texts at which a repetition ends; default a line feed, `:`, `"` and `*`. "none" alone is no text. */
  dryBreakers?: readonly string[];
  /** This version of mirostat in place of all samplers but the temperature; 0: none. */
  mirostat?: 0 | 1 | 2;
  mirostatTau?: number;
  mirostatEta?: number;
  /** Adaptive-p: draw near this probability; 0 and below: off. */
  adaptiveTarget?: number;
  adaptiveDecay?: number;
  /** The tokens that top-p, min-p, typical-p and XTC keep at least. */
  minKeep?: number;
  /** The samplers and their order, such as "top_k;top_p;min_p;temperature". */
  samplers?: string;
  /** Where random numbers come from: "mt19937" is llama.cpp's generator, with its tokens. Default "counter". */
  generator?: "counter" | "mt19937";
  /** How long the model may think. */
  reasoning?: ReasoningBudget;
  /** Generation ends before the first of these that appears. */
  stop?: readonly string[];
  /** By how much logits are shifted, by token id. */
  logitBias?: ReadonlyMap<number, number>;
  /** What the end of a constrained span does; default "continue". */
  onSpanEnd?: "continue" | "stop";
  /** Refuse a token trie that only deserves a warning. */
  strictTrie?: boolean;
  /** Forbid end-of-generation tokens where no trie decides. */
  ignoreEos?: boolean;
  /** How many candidates `sampled` reports for each draw; default 0. */
  nCandidates?: number;
  /** What a full context does: "stop" ends the generation; "shift" drops tokens in the middle and goes on. Default "stop". */
  onContextFull?: "stop" | "shift";
  /** With "shift": number of tokens at the beginning that are kept. */
  nKeep?: number;
  /** Spell control tokens in the text of steps, which else have none; `chat` always does. */
  specialText?: boolean;
  /**
   * `false` never evaluates tokens that the text suggests before they are sampled. That changes no token; it is done where it has
   * paid in the generation so far. Default true.
   */
  guessing?: boolean;
}

/** As the face hands them on: its `onProgress` says whether the load goes on, and does not throw. */
export interface NativeOpenOptions extends Omit<OpenOptions, "onProgress"> {
  onProgress?: (progress: number) => boolean;
}

/** Arguments of a generation. */
export interface GenerateOptions {
  /** 0 ends at once, negative goes on until the model stops or the context is full. */
  maxTokens: number;
  /** 0 takes the likeliest token; NaN leaves it to the options, the chain or the model. */
  temperature: number;
  /** 1 keeps all; NaN as for the temperature. */
  topP: number;
}

/** One event of a generation. */
export interface Step {
  /** The token, or -1 where `done`. */
  token: number;
  /** The text that the token completes: whole characters, "" while one is incomplete. With `done` what was held back. */
  text: string;
  /** True once, in the last event. */
  done: boolean;
}

/** Why a generation ended. */
export type FinishReason = "none" | "stop" | "length" | "cancelled" | "error" | "context" | "span";

/** Names by the numbers of `ELIZA_FINISH_*`. */
export const FINISH_REASONS: readonly FinishReason[] = [
  "none",
  "stop",
  "length",
  "cancelled",
  "error",
  "context",
  "span",
];

/** The text around names, for {@link Native.buildTrie}; see `eliza_inference_build_token_trie`. */
export interface TrieNames {
  path: string;
  names: readonly string[];
  /** The text before a name in the reply. */
  before: string;
  /** The closing delimiter, a part of every leaf. */
  after: string;
  /** Whether the texts of control tokens are recognised in all three texts. */
  parseSpecial: boolean;
}

/** A payload from names and what the user should know about it, one sentence each. */
export interface BuiltTrie {
  payload: TokenTreePayload;
  warnings: string[];
}

/** One leaf's score; `logprob` is null where it cannot follow. */
export interface LeafScore {
  name: string;
  /** How many tokens the leaf has. */
  tokens: number;
  logprob: number | null;
  logprob_per_token: number | null;
}

/** What `eliza_inference_score_token_trie` answers, the most probable leaf first. */
export interface LeafScores {
  path: string;
  leaves: LeafScore[];
}

/** A rendered chat: the prompt as text, and the tokens to prefill. */
export interface ChatPrompt {
  text: string;
  tokens: number[];
}

/**
 * A part of an answer: what the user is to read, what the model thought, or a function that it calls. Texts of one type that
 * follow each other belong together; a call is whole.
 */
export type ChatPart =
  | { type: "answer"; text: string }
  | { type: "reasoning"; text: string }
  | {
      type: "tool_call";
      name: string;
      /** A JSON object as text. */
      arguments: string;
      /** Where the model gives one. */
      id?: string;
    };

/** How the rows of a text's tokens become one; by its place the number of `ELIZA_POOLING_*`. */
export const POOLINGS = ["default", "none", "mean", "cls", "last", "rank"] as const;

/** One of {@link POOLINGS}. "default" is what the model's file says. */
export type Pooling = (typeof POOLINGS)[number];

/** `eliza_llm_embedding_options_t`. */
export interface EmbeddingOptions {
  pooling: Pooling;
  /** How many of a row's first numbers are kept; 0 all. */
  dimensions: number;
  /** Whether rows are divided by their length. */
  normalize: boolean;
}

/** Rows of texts, one after the other, and how many numbers each has. */
export interface EmbeddingRows {
  rows: Float32Array;
  width: number;
}

/** The functions of one loaded library. */
export interface Native {
  /** `eliza_inference_abi_version`, for example "eliza-stream/1.0.0". */
  readonly version: string;
  /** Whether the library has all functions on token tries. Without them `setTrie` and its kin throw. */
  readonly hasTokenTrie: boolean;

  /** `eliza_inference_devices_json`, parsed. */
  devices(): Promise<unknown>;

  /** `eliza_inference_plan_json`, parsed. */
  plan(modelPath: string, options: OpenOptions): Promise<unknown>;

  /** `eliza_inference_file_metadata_json`, parsed; `null` returns all keys. */
  fileMetadata(modelPath: string, key: string | null): Promise<unknown>;

  /**
   * `eliza_inference_next_log_line`: the oldest log line that was not taken, its level by number. The first call makes lines
   * wait for it, until `endLog`.
   */
  nextLogLine(): { level: number; message: string } | null;

  /** `eliza_inference_set_log_sink` without a sink. */
  endLog(): void;

  /** `eliza_inference_llm_stream_open_ex`. A runtime that loads beside JavaScript may not hear a late `onProgress`. */
  open(modelPath: string, options: NativeOpenOptions): Promise<FfiLlmHandle>;

  /** `eliza_inference_llm_stream_open_slot`. */
  openSlot(handle: FfiLlmHandle, slotId: number): FfiLlmHandle;

  /** `eliza_inference_llm_stream_close`: never fails, never waits; twice does no harm. A generation's end still comes. */
  close(handle: FfiLlmHandle): void;

  /** `eliza_inference_llm_stream_model_json`, parsed. */
  describe(handle: FfiLlmHandle): unknown;

  /** `eliza_inference_llm_stream_metadata_json`, parsed; `null` returns all keys. */
  metadata(handle: FfiLlmHandle, key: string | null): unknown;

  /** `eliza_inference_llm_stream_is_eog`. */
  isEog(handle: FfiLlmHandle, token: number): boolean;

  /** `eliza_inference_llm_stream_token_json`, parsed. */
  token(handle: FfiLlmHandle, token: number): unknown;

  /** `eliza_inference_llm_stream_logits`: `nLast` rows, one after the other. */
  logits(handle: FfiLlmHandle, nLast: number): Promise<Float32Array>;

  /**
   * `eliza_inference_llm_stream_embed_tokens`. A `cancel` while it runs makes it reject with `ELIZA_ERR_CANCELLED`. The tokens are
   * copied before the function returns.
   */
  embed(handle: FfiLlmHandle, texts: readonly Int32Array[], options: EmbeddingOptions): Promise<EmbeddingRows>;

  /** `eliza_inference_llm_stream_tokenize_pair`. */
  tokenizePair(handle: FfiLlmHandle, query: string, text: string): Int32Array;

  /** `eliza_inference_llm_stream_sampled`; `null` where nothing was sampled yet. Legal while a generation runs. */
  sampled(handle: FfiLlmHandle, slotId: number): SampledToken | null;

  /** `eliza_inference_llm_stream_tokenize`. */
  tokenize(handle: FfiLlmHandle, text: string, addSpecial: boolean, parseSpecial: boolean): Int32Array;

  /** `eliza_inference_llm_stream_detokenize`. */
  detokenize(handle: FfiLlmHandle, tokens: Int32Array, removeSpecial: boolean, unparseSpecial: boolean): string;

  /** `eliza_inference_llm_stream_chat_prompt_json`, parsed; `inputs` is JSON. */
  chatPrompt(handle: FfiLlmHandle, inputs: string): ChatPrompt;

  /** `eliza_inference_llm_stream_chat_parts_json`, parsed; `null` goes on with the answer that was begun. */
  chatParts(handle: FfiLlmHandle, inputs: string | null, text: string, last: boolean): ChatPart[];

  /** `eliza_inference_llm_stream_configure`, over the defaults of this handle, not over what was configured before. */
  configure(handle: FfiLlmHandle, options: SamplingOptions): void;

  /** `eliza_inference_llm_stream_set_chain`; `null` goes back to the options. */
  setChain(handle: FfiLlmHandle, slotId: number, chain: string | null): void;

  /**
   * `eliza_inference_llm_stream_prefill`: resolves to how many tokens are in place. A `cancel` while it runs makes it
   * reject with `ELIZA_ERR_CANCELLED`. The tokens are copied before the function returns.
   */
  prefill(handle: FfiLlmHandle, tokens: Int32Array, slotId: number): Promise<number>;

  /**
   * `eliza_inference_llm_stream_generate_ex`: hands every event to `onStep`, in order, on the JavaScript thread, none
   * before this function has returned. The last, and only the last, has `done`.
   *
   * The promise settles after the event with `done` was handed out: it resolves to the reason of the end ("cancelled"
   * after a cancel or a close), and rejects where the generation failed. Where it could not be started there is no event
   * at all, and the promise rejects. `onStep` does not throw.
   *
   * The face does not call `prefill` or `generate` on the handle again before the promise has settled, so texts in the
   * library's arena may be decoded as late as that. An implementation that can slow the library down while JavaScript is
   * busy (a bounded queue) should, but must not lose or merge events.
   */
  generate(handle: FfiLlmHandle, options: GenerateOptions, onStep: (step: Step) => void): Promise<FinishReason>;

  /** `eliza_inference_llm_stream_save_slot`. */
  saveSlot(handle: FfiLlmHandle, slotId: number, path: string): Promise<void>;

  /** `eliza_inference_llm_stream_restore_slot`: resolves to how many tokens the stream has. `generate` may follow at once. */
  restoreSlot(handle: FfiLlmHandle, slotId: number, path: string): Promise<number>;

  /** `eliza_inference_llm_stream_persist`. */
  persist(handle: FfiLlmHandle, slotId: number, key: string): Promise<void>;

  /** `eliza_inference_llm_stream_resume`: resolves to how many tokens the stream has, 0 where nothing is kept. */
  resume(handle: FfiLlmHandle, slotId: number, key: string): Promise<number>;

  /** `eliza_inference_llm_stream_forget`: whether there was something. */
  forget(handle: FfiLlmHandle, key: string): boolean;

  /** `eliza_inference_llm_stream_prewarm`; legal while a generation runs. The tokens are copied. */
  prewarm(handle: FfiLlmHandle, tokens: Int32Array, slotId: number): void;

  /** `eliza_inference_llm_stream_pin_slot`. */
  pinSlot(handle: FfiLlmHandle, slotId: number, pinned: boolean): void;

  /** `eliza_inference_llm_stream_cancel`: one atomic store; legal at any time. Nothing happens when nothing runs. */
  cancel(handle: FfiLlmHandle): void;

  /** `eliza_inference_llm_stream_usage_json`, parsed; legal while a generation runs. */
  usage(handle: FfiLlmHandle): unknown;

  /** `eliza_inference_set_token_trie`; `mode` as in `TRIE_MODES`. */
  setTrie(handle: FfiLlmHandle, payloadJson: string, mode: number): void;

  /** `eliza_inference_clear_token_trie`. */
  clearTrie(handle: FfiLlmHandle): void;

  /** `eliza_inference_arm_token_trie`; `null` arms the next descriptor. */
  armTrie(handle: FfiLlmHandle, path: string | null): void;

  /** `eliza_inference_score_token_trie`, parsed. */
  scoreTrie(handle: FfiLlmHandle): Promise<LeafScores>;

  /** `eliza_inference_set_grammar`. */
  setGrammar(handle: FfiLlmHandle, sourceJson: string): void;

  /** `eliza_inference_clear_grammar`. */
  clearGrammar(handle: FfiLlmHandle): void;

  /** `eliza_inference_build_token_trie`, parsed. */
  buildTrie(handle: FfiLlmHandle, names: TrieNames): BuiltTrie;
}
