/// <reference lib="esnext.disposable" preserve="true" />
/** The face: an open model, its streams and its choices. */

import {
  camelCased,
  type Metadata,
  type MetadataValue,
  type ModelDescription,
  type SampledToken,
  type TokenDescription,
} from "./describe.js";
import { InferenceError, STATUS } from "./errors.js";
import { type FromSchema, type GrammarOptions, type JsonSchema, type Partially, grammarSource } from "./grammar.js";
import type {
  ChatPart,
  ChatPrompt,
  EmbeddingOptions,
  EmbeddingRows,
  FfiLlmHandle,
  FinishReason,
  LeafScore,
  Native,
  NativeOpenOptions,
  OpenOptions,
  Pooling,
  SamplingOptions,
  Step,
} from "./native.js";
import { partialJson } from "./partial-json.js";
import { TRIE_MODES, type TokenTreePayload, type TrieMode } from "./token-tree.js";
import { SpanReports } from "./spans.js";
import { type ModelReport, type Usage, modelReport, usageOf } from "./usage.js";

/** Text, or token ids that were made by the model's tokenizer. */
export type Prompt = string | ArrayLike<number>;

/** How text becomes tokens. */
export interface TokenizeOptions {
  /** Puts before and after it what the model wants there, usually BOS; default true. */
  addSpecial?: boolean;
  /** Reads the text of special tokens as those tokens: for templates, not for what users wrote; default false. */
  parseSpecial?: boolean;
}

/** A message of a chat, in the form of OpenAI's API. What else a template reads may be in it too. */
export interface ChatMessage {
  /** `system`, `developer`, `user`, `assistant` or `tool`; templates know others. */
  role: string;
  content?: string | readonly { type: string; text?: string }[] | null;
  tool_calls?: readonly unknown[];
  tool_call_id?: string;
  name?: string;
  reasoning_content?: string;
  [other: string]: unknown;
}

/** What a chat template is given beside messages. */
export interface ChatOptions {
  /** Functions that may be called, as OpenAI's API describes them. */
  tools?: readonly unknown[];
  /** Texts to answer from, where the template has a place for them. */
  documents?: readonly unknown[];
  /** Whether the model thinks first: `enable_thinking`. Without it what the template says. */
  thinking?: boolean;
  /** Whether the prompt ends where the model's turn begins; default true. */
  addGenerationPrompt?: boolean;
  /**
   * The text that the model's turn begins with: yours, not a user's, since special tokens in it are tokens. A thought that the
   * prompt has opened ends before it. Of it no part tells, but for a call that it begins.
   */
  answerStart?: string;
  /** What else the template reads, by its names there, such as `reasoning_effort`. */
  variables?: Record<string, unknown>;
}

/** How an answer to messages is made. */
export interface AnswerOptions extends ChatOptions, Omit<StreamOptions, "trie" | "triePath" | "parseSpecial" | "specialText"> {
  /**
   * What is said first is one of these texts, after `answerStart` where there is one; nothing is thought before it. `trieMode` is
   * then "score" where it is not given, and `onSpanEnd` "stop": the choice is the answer.
   */
  choices?: readonly string[];
  /** What closes a choice, such as `"`, and is said after it; default "". */
  choicesEnd?: string;
}

/** How tokens become text. */
export interface DetokenizeOptions {
  /** Leaves out the special tokens that tokenizing adds; default false. */
  removeSpecial?: boolean;
  /** Writes control tokens as their text; default false. */
  unparseSpecial?: boolean;
}

/** What the calls that evaluate a prompt have in common. */
export interface PromptOptions {
  /** Ends the call; it then throws the signal's reason. */
  signal?: AbortSignal;
  /**
   * -1 (default) takes the slot whose tokens the prompt goes on from, else an empty one, else the least recently used; 0 and up names
   * the slot of a conversation. What any slot has of the prompt's beginning is not evaluated again.
   */
  slot?: number;
  /** For a prompt that is text: special tokens in it are those tokens; default false. */
  parseSpecial?: boolean;
}

/** How a stream is made. */
export interface StreamOptions extends PromptOptions, SamplingOptions, GrammarOptions {
  /** Most tokens; without it until the model stops or the context is full. */
  maxTokens?: number;
  /** 0 takes the likeliest token; without it what the chain, the options or the model say. */
  temperature?: number;
  /** Without it what the chain, the options or the model say. */
  topP?: number;
  /** A sampler chain in place of the options, for example "top_k=40;min_p=0.05;temp=0.8". */
  chain?: string;
  /** What is generated first is one of these names. Not together with a grammar. */
  trie?: TokenTreePayload;
  /** How the trie's tokens are chosen; default "greedy". */
  trieMode?: TrieMode;
  /** The descriptor that is armed; default the first. */
  triePath?: string;
}

/** How JSON is made: as a stream, but the schema is the grammar. */
export type JsonOptions = Omit<
  StreamOptions,
  "trie" | "trieMode" | "triePath" | "triggers" | "specialText" | "stop" | Exclude<keyof GrammarOptions, "compact" | "keywords" | "jumpAhead">
>;

/** Which slot is saved or restored. */
export interface SlotOptions {
  /**
   * 0 and up is that of a pinned conversation; -1 (default) saves that of the last prompt or restore, and
   * restores into a fresh one.
   */
  slot?: number;
}

/** The text around names in a reply. */
export interface NamesOptions {
  /** The path of the set; default "choice". */
  path?: string;
  /** The text before a name in the reply, from the last line break on at least; default "". */
  before?: string;
  /** The closing delimiter, a part of every leaf; default "". */
  after?: string;
  /** Special tokens in the three texts are those tokens; default false. */
  parseSpecial?: boolean;
}

/** How a choice is made. */
export interface ChooseOptions extends PromptOptions {
  /** The text before the name; default the last line of a prompt that is text, "" where it is tokens. */
  before?: string;
  /** What closes the name in the reply, such as `"`; default "". */
  after?: string;
}

/** Which logits are asked for. */
export interface LogitsOptions extends PromptOptions {
  /** Of how many positions, counted from the end of the prompt, 1 to 512; default 1. */
  last?: number;
}

/** How rows of texts are made. */
export interface EmbedOptions {
  /** How the rows of a text's tokens become one; default "default": as the model's file says. */
  pooling?: Pooling;
  /** Divides each row by its length, so that products of rows are cosines; default true. Scores never are. */
  normalize?: boolean;
  /** Keeps so many of a row's first numbers, for models that are trained for it (Matryoshka); default all. */
  dimensions?: number;
  /** Ends the call; it then throws the signal's reason. */
  signal?: AbortSignal;
}

/** What a model chose. */
export interface Choice<Name extends string = string> {
  /** The most probable name. */
  choice: Name;
  /** Natural logarithm of the probability that exactly this name follows the prompt. */
  logprob: number;
  /** The same by token, which does not favour short names. */
  logprobPerToken: number;
  /** All names, the most probable first. */
  scores: { name: Name; logprob: number; logprobPerToken: number; tokens: number }[];
  /** What should be known about the names; see `docs/token-trie.md`. */
  warnings: string[];
}

/** Closes the handles of models that were forgotten. */
const forgotten = new FinalizationRegistry<() => void>((close) => close());

/**
 * An open model with its own context. One call works on it at a time: others wait for their turn, but for those of a model that
 * was opened with `parallel`: there as many work at the same time, and each step reads the weights once for all of them. What
 * names a slot, or goes on from a restored one, waits for its turn there too. `openSlot` makes a model of one slot, which works at
 * the same time. Models on one file share its weights.
 */
export class Model implements Disposable {
  readonly #native: Native;
  readonly #handle: FfiLlmHandle;
  #closed = false;
  #turn: Promise<void> = Promise.resolve();
  /** The slot that was restored last, until a prompt is evaluated. */
  #restored: number | undefined;
  /** Calls that work on it or wait for their turn. */
  #calls = 0;
  /** How others like it are opened, where calls may go to them, and those that are. */
  readonly #more: { path: string; options: NativeOpenOptions } | undefined;
  readonly #others: Model[] = [];
  #opening = 0;

  private constructor(native: Native, handle: FfiLlmHandle, more?: { path: string; options: NativeOpenOptions }) {
    this.#native = native;
    this.#handle = handle;
    this.#more = more;
    forgotten.register(this, () => native.close(handle), this);
  }

  /** Opens the GGUF file at `path`. A runtime's `load` calls this with its own library. */
  static async load(native: Native, path: string, options: OpenOptions = {}): Promise<Model> {
    const { onProgress, ...others } = options;
    const more = (options.parallel ?? 1) > 1 ? { path, options: others } : undefined;
    if (onProgress === undefined) return new Model(native, await native.open(path, others), more);
    let last = -1;
    let refused: { why: unknown } | undefined;
    const tell = (progress: number): boolean => {
      if (refused !== undefined || progress <= last) return refused === undefined;
      last = progress;
      try {
        if (onProgress(progress) === false) refused = { why: new InferenceError(STATUS.ELIZA_ERR_CANCELLED, "Cancelled") };
      } catch (why) {
        refused = { why };
      }
      return refused === undefined;
    };
    const handle = await native.open(path, { ...others, onProgress: tell }).catch((error: unknown) => {
      throw refused === undefined ? error : refused.why;
    });
    tell(1); // also where weights that others use were there already
    last = Infinity; // what comes late is not told
    if (refused === undefined) return new Model(native, handle, more);
    native.close(handle);
    throw (refused as { why: unknown }).why;
  }

  /** What was opened, and with which sizes. */
  get info(): ModelReport {
    return modelReport(this.#native.usage(this.#opened()));
  }

  /** What the last prompt and the generation after it used; also while it runs. With `parallel` those of one of the calls. */
  usage(): Usage {
    return usageOf(this.#native.usage(this.#opened()));
  }

  /** Sizes, special tokens and names. */
  describe(): ModelDescription {
    return camelCased(this.#native.describe(this.#opened())) as ModelDescription;
  }

  /** The metadata of the file: the value of a key, or of all. Throws `ELIZA_ERR_INVALID_ARG` where the key is not there. */
  metadata(): Metadata;
  metadata(key: string): MetadataValue;
  metadata(key?: string): unknown {
    return this.#native.metadata(this.#opened(), key ?? null);
  }

  /** Whether a token ends a generation. */
  isEog(token: number): boolean {
    return this.#native.isEog(this.#opened(), token);
  }

  /** What the vocabulary says of a token. */
  token(id: number): TokenDescription {
    return camelCased(this.#native.token(this.#opened(), id)) as TokenDescription;
  }

  /**
   * How the last token of a slot was drawn that was not forced, -1 the fresh one; null before the first. Inside the loop of a
   * stream the generation may be ahead of it.
   */
  sampled(slot: number = -1): SampledToken | null {
    return this.#native.sampled(this.#opened(), slot);
  }

  /** Text to token ids. */
  tokenize(text: string, { addSpecial = true, parseSpecial = false }: TokenizeOptions = {}): Int32Array {
    return this.#native.tokenize(this.#opened(), text, addSpecial, parseSpecial);
  }

  /** Token ids to text; bytes that are no character become U+FFFD. */
  detokenize(
    tokens: ArrayLike<number>,
    { removeSpecial = false, unparseSpecial = false }: DetokenizeOptions = {},
  ): string {
    return this.#native.detokenize(this.#opened(), Int32Array.from(tokens), removeSpecial, unparseSpecial);
  }

  /**
   * The prompt that the model's chat template makes of messages, up to where the model's own turn begins. What messages spell
   * is text: no special token comes of them. Throws `ELIZA_ERR_INVALID_ARG` where the template refuses the messages, and
   * `ELIZA_ERR_NOT_IMPLEMENTED` where the file has no template.
   */
  chatPrompt(messages: readonly ChatMessage[], options: ChatOptions = {}): ChatPrompt {
    return this.#native.chatPrompt(this.#opened(), chatInputs(messages, options));
  }

  /**
   * Answers messages: the parts of what follows `chatPrompt(messages, options)`. Texts come in pieces, a tool call whole. The
   * generator's return value is why the answer ended; everything else is as in `stream`.
   */
  async *chat(messages: readonly ChatMessage[], options: AnswerOptions = {}): AsyncGenerator<ChatPart, FinishReason, void> {
    const free = this.#free(options.slot);
    const on = free instanceof Model ? free : await free;
    try {
      return yield* on.#chat(messages, options);
    } finally {
      on.#calls--;
    }
  }

  async *#chat(messages: readonly ChatMessage[], options: AnswerOptions): AsyncGenerator<ChatPart, FinishReason, void> {
    const { choices, choicesEnd: after = "", trieMode = "score", onSpanEnd = "stop" } = options;
    const answerStart = options.answerStart ?? (choices === undefined ? undefined : "");
    const [native, handle] = [this.#native, this.#opened()];
    const inputs = chatInputs(messages, answerStart === undefined ? options : { ...options, answerStart });
    const { text, tokens } = native.chatPrompt(handle, inputs);
    let how: StreamOptions = { ...options, specialText: true };
    if (choices !== undefined) {
      const before = text.slice(text.lastIndexOf("\n") + 1);
      const { payload } = native.buildTrie(handle, { path: "choice", names: choices, before, after, parseSpecial: true });
      how = { ...how, trie: payload, trieMode, onSpanEnd };
    }
    const steps = this.#stream(tokens, how);
    try {
      // The library reads one answer: it is begun when it is this stream's turn.
      let begins: string | null = inputs;
      for (let step = await steps.next(); ; step = await steps.next()) {
        if (step.done) return step.value;
        const { text, done } = step.value;
        if (text === "" && !done) continue;
        const parts = native.chatParts(this.#opened(), begins, text, done);
        begins = null;
        yield* parts;
      }
    } finally {
      await steps.return("none");
    }
  }

  /** The payload that allows exactly these names, tokenized in their surroundings, and its warnings. */
  tokenTrie(names: readonly string[], options: NamesOptions = {}): { payload: TokenTreePayload; warnings: string[] } {
    const { path = "choice", before = "", after = "", parseSpecial = false } = options;
    return this.#native.buildTrie(this.#opened(), { path, names, before, after, parseSpecial });
  }

  /**
   * Continues a prompt: one step for each token, and a last one with `done`. The generator's return value is why it ended.
   *
   * Nothing happens before the first step is asked for. Leaving the loop ends the generation; an abort does too, and
   * throws the signal's reason.
   *
   * Without a prompt (`null`) it goes on where the stream stopped that `restoreSlot` brought back, in its slot.
   */
  async *stream(prompt: Prompt | null, options: StreamOptions = {}): AsyncGenerator<Step, FinishReason, void> {
    const free = this.#free(prompt === null ? 0 : options.slot);
    const on = free instanceof Model ? free : await free;
    try {
      return yield* on.#stream(prompt, options);
    } finally {
      on.#calls--;
    }
  }

  async *#stream(prompt: Prompt | null, options: StreamOptions): AsyncGenerator<Step, FinishReason, void> {
    const { signal, trie, trieMode = "greedy", triePath, chain } = options;
    const { maxTokens = -1, temperature = NaN, topP = NaN } = options;
    const [native, handle] = [this.#native, this.#handle];
    const leave = await this.#enter();
    const cancel = () => native.cancel(handle);
    let running: Promise<FinishReason> | undefined;
    let constrained = false;
    let guided = false;
    try {
      this.#opened();
      signal?.throwIfAborted();
      signal?.addEventListener("abort", cancel);
      const source = grammarSource(options);
      if (source !== undefined && trie !== undefined) {
        throw new InferenceError(STATUS.ELIZA_ERR_INVALID_ARG, "A trie and a grammar are given, where one of them can be");
      }
      const slot = prompt === null ? this.#resumed() : (options.slot ?? -1);
      native.configure(handle, options);
      native.setChain(handle, slot, chain ?? null);
      if (prompt !== null) await this.#prefill(prompt, options);
      if (trie !== undefined) {
        constrained = true; // also where it is refused: that bars generating until it is cleared
        native.setTrie(handle, JSON.stringify(trie), TRIE_MODES[trieMode]);
        if (triePath !== undefined) native.armTrie(handle, triePath);
      }
      if (source !== undefined) {
        guided = true;
        native.setGrammar(handle, source);
      }
      const steps = new Steps();
      running = native.generate(handle, { maxTokens, temperature, topP }, (step) => steps.push(step));
      running.then(() => steps.end(), () => steps.end());
      const spans = options.onSpan === undefined || !guided ? undefined : new SpanReports(options.onSpan);
      for (let step = await steps.next(); step !== undefined; step = await steps.next()) {
        signal?.throwIfAborted();
        spans?.step(step.text, native.usage(handle), step.done);
        yield step;
      }
      const reason = await running;
      signal?.throwIfAborted();
      return reason;
    } finally {
      signal?.removeEventListener("abort", cancel);
      if (!this.#closed) {
        if (running !== undefined) {
          cancel();
          await running.catch(() => {});
        }
        if (constrained && !this.#closed) native.clearTrie(handle);
        if (guided && !this.#closed) native.clearGrammar(handle);
      }
      leave();
    }
  }

  /**
   * Continues a prompt with a whole text: what `stream` gives, at once.
   */
  async generate(prompt: Prompt | null, options: StreamOptions = {}): Promise<{ text: string; reason: FinishReason }> {
    const steps = this.stream(prompt, options);
    let text = "";
    for (let step = await steps.next(); ; step = await steps.next()) {
      if (step.done) return { text, reason: step.value };
      text += step.value.text;
    }
  }

  /**
   * Continues a prompt with JSON that matches a schema, and reads it; its type follows from the schema. Throws where the generation
   * ended before the JSON did.
   */
  async json<const Schema extends JsonSchema>(prompt: Prompt, schema: Schema, options: JsonOptions = {}): Promise<FromSchema<Schema>> {
    const { text, reason } = await this.generate(prompt, { ...options, schema });
    return parsed(text, reason) as FromSchema<Schema>;
  }

  /**
   * The same while it is written: the value as far as it is certain, after each token that changes it. The generator's return value
   * is the whole one.
   */
  async *jsonStream<const Schema extends JsonSchema>(
    prompt: Prompt,
    schema: Schema,
    options: JsonOptions = {},
  ): AsyncGenerator<Partially<FromSchema<Schema>>, FromSchema<Schema>, void> {
    const steps = this.stream(prompt, { ...options, schema });
    let [text, before] = ["", ""];
    try {
      for (let step = await steps.next(); ; step = await steps.next()) {
        if (step.done) return parsed(text, step.value) as FromSchema<Schema>;
        text += step.value.text;
        const value = partialJson(text);
        const now = JSON.stringify(value);
        if (value === undefined || now === before) continue;
        before = now;
        yield value as Partially<FromSchema<Schema>>;
      }
    } finally {
      await steps.return("none");
    }
  }

  /**
   * Which of the names follows the prompt, whole names compared by their probability. Nothing is generated. In a runtime
   * that cannot leave the JavaScript thread (Bun) scoring blocks it for a pass of the model or two.
   */
  async choose<const Name extends string>(
    prompt: Prompt,
    names: readonly Name[],
    options: ChooseOptions = {},
  ): Promise<Choice<Name>> {
    const free = this.#free(options.slot);
    const on = free instanceof Model ? free : await free;
    try {
      return await on.#choose(prompt, names, options);
    } finally {
      on.#calls--;
    }
  }

  async #choose<const Name extends string>(
    prompt: Prompt,
    names: readonly Name[],
    options: ChooseOptions,
  ): Promise<Choice<Name>> {
    const { signal, after = "", parseSpecial = false } = options;
    const before = options.before ?? (typeof prompt === "string" ? prompt.slice(prompt.lastIndexOf("\n") + 1) : "");
    const [native, handle] = [this.#native, this.#handle];
    const leave = await this.#enter();
    const cancel = () => native.cancel(handle);
    let constrained = false;
    try {
      this.#opened();
      signal?.throwIfAborted();
      signal?.addEventListener("abort", cancel);
      const { payload, warnings } = native.buildTrie(handle, { path: "choice", names, before, after, parseSpecial });
      await this.#prefill(prompt, options);
      constrained = true;
      native.setTrie(handle, JSON.stringify(payload), TRIE_MODES.score);
      const { leaves } = await native.scoreTrie(handle).catch((error: unknown) => {
        signal?.throwIfAborted();
        throw error;
      });
      const scores = leaves.map((leaf) => score<Name>(leaf));
      const best = scores[0];
      if (best === undefined) throw new InferenceError(STATUS.ELIZA_ERR_FFI_FAULT, "No leaf was scored");
      const { name: choice, logprob, logprobPerToken } = best;
      return { choice, logprob, logprobPerToken, scores, warnings };
    } finally {
      signal?.removeEventListener("abort", cancel);
      if (constrained && !this.#closed) native.clearTrie(handle);
      leave();
    }
  }

  /**
   * The model's own logits for what follows the prompt's last positions, the last one's last, each a number for every token:
   * no chain, no bias. Nothing is generated. Without a prompt (`null`) those of what `restoreSlot` brought back.
   */
  async logits(prompt: Prompt | null, options: LogitsOptions = {}): Promise<Float32Array[]> {
    const { signal, last = 1 } = options;
    const [native, handle] = [this.#native, this.#handle];
    const leave = await this.#enter();
    const cancel = () => native.cancel(handle);
    try {
      this.#opened();
      signal?.throwIfAborted();
      signal?.addEventListener("abort", cancel);
      if (prompt === null) this.#resumed();
      else await this.#prefill(prompt, options);
      const all = await native.logits(handle, last).catch((error: unknown) => {
        signal?.throwIfAborted();
        throw error;
      });
      const row = all.length / last;
      return Array.from({ length: last }, (_, i) => all.subarray(i * row, (i + 1) * row));
    } finally {
      signal?.removeEventListener("abort", cancel);
      leave();
    }
  }

  /**
   * Embeddings: a row of numbers for each text, in their order. Short texts share passes, so many at once take far less time than
   * one by one. With pooling "none" a text's rows, one for each token, follow each other. A text that is longer than the context is
   * refused, never cut.
   */
  async embed(texts: readonly Prompt[], options: EmbedOptions = {}): Promise<Float32Array[]> {
    const { signal, pooling = "default", normalize = true, dimensions = 0 } = options;
    const native = this.#native;
    const handle = this.#opened();
    const lists = texts.map((text) =>
      typeof text === "string" ? native.tokenize(handle, text, true, false) : Int32Array.from(text),
    );
    const { rows, width } = await this.#embed(lists, { pooling, normalize, dimensions }, signal);
    // Also where the file says so.
    const unpooled = rows.length > width * lists.length;
    let from = 0;
    return lists.map((list) => {
      const to = from + width * (unpooled ? list.length : 1);
      const own = rows.slice(from, to);
      from = to;
      return own;
    });
  }

  /**
   * How well each text answers a question, by a model with a classifier (a reranker): higher is better. Some models give
   * probabilities, others any number.
   */
  async rank(query: string, texts: readonly string[], { signal }: { signal?: AbortSignal } = {}): Promise<number[]> {
    const native = this.#native;
    const handle = this.#opened();
    const pairs = texts.map((text) => native.tokenizePair(handle, query, text));
    const { rows, width } = await this.#embed(pairs, { pooling: "rank", normalize: false, dimensions: 0 }, signal);
    return pairs.map((_, i) => rows[i * width] ?? NaN);
  }

  async #embed(texts: readonly Int32Array[], options: EmbeddingOptions, signal?: AbortSignal): Promise<EmbeddingRows> {
    const [native, handle] = [this.#native, this.#handle];
    const leave = await this.#enter();
    const cancel = () => native.cancel(handle);
    try {
      this.#opened();
      signal?.throwIfAborted();
      signal?.addEventListener("abort", cancel);
      this.#restored = undefined;
      return await native.embed(handle, texts, options).catch((error: unknown) => {
        signal?.throwIfAborted();
        throw error;
      });
    } finally {
      signal?.removeEventListener("abort", cancel);
      leave();
    }
  }

  /**
   * Saves a slot to a file: its tokens, its part of the KV cache, and for that of the last prompt or restore where its
   * generation stopped. A file that is there is replaced as a whole; after a failure it is as before. It holds the prompt.
   *
   * It waits for its turn, so not inside the loop of a stream of this model. When such a loop is left the
   * generation is ahead of it by some tokens, which are saved too; `maxTokens` ends both at one token. A stream's trie ends
   * with it.
   */
  async saveSlot(path: string, { slot = -1 }: SlotOptions = {}): Promise<void> {
    const leave = await this.#enter();
    try {
      await this.#native.saveSlot(this.#opened(), slot, path);
    } finally {
      leave();
    }
  }

  /**
   * Restores what `saveSlot` wrote into a slot, whose content it replaces, and returns how many tokens the stream then has. It
   * may come from another process or machine; the model and `kvType` are the same. `stream(null)` goes on where the saved
   * stream stopped; a prompt reuses what was restored as far as the two agree.
   *
   * A file that is damaged, of another model, too long for the context, or saved inside a token trie is refused with
   * `ELIZA_ERR_SAVED_SLOT`, and nothing has changed.
   */
  async restoreSlot(path: string, { slot = -1 }: SlotOptions = {}): Promise<number> {
    const leave = await this.#enter();
    try {
      const tokens = await this.#native.restoreSlot(this.#opened(), slot, path);
      this.#restored = slot;
      return tokens;
    } finally {
      leave();
    }
  }

  /**
   * Keeps a slot in the folder `store` of `load` under a key of your choice, as `saveSlot` saves it, in place of what is kept under
   * that key. Where the folder is limited, the conversations that were used the longest time ago are removed for it. A process that
   * ends meanwhile and a full disk leave what was kept before.
   */
  async persist(key: string, { slot = -1 }: SlotOptions = {}): Promise<void> {
    const leave = await this.#enter();
    try {
      await this.#native.persist(this.#opened(), slot, key);
    } finally {
      leave();
    }
  }

  /**
   * Restores what `persist` kept under a key, in this process or an earlier one, as `restoreSlot` does, and returns how many tokens
   * the stream then has; 0, and nothing changes, where nothing is kept under that key.
   */
  async resume(key: string, { slot = -1 }: SlotOptions = {}): Promise<number> {
    const leave = await this.#enter();
    try {
      const tokens = await this.#native.resume(this.#opened(), slot, key);
      if (tokens > 0) this.#restored = slot;
      return tokens;
    } finally {
      leave();
    }
  }

  /** Removes what `persist` kept under a key; whether there was something. */
  forget(key: string): boolean {
    return this.#native.forget(this.#opened(), key);
  }

  /**
   * Evaluates a prompt when the model has nothing else to do, and returns at once: a later prompt that begins with it, in whatever
   * slot, does not evaluate it again. For the part that many conversations begin with, or for the next turn while the user types.
   * Every call that needs the model ends it. An error that comes later is logged.
   */
  prewarm(prompt: Prompt, { slot = -1, parseSpecial = false }: Omit<PromptOptions, "signal"> = {}): void {
    this.#native.prewarm(this.#opened(), this.#tokens(prompt, parseSpecial), slot);
  }

  /**
   * Pins a slot, or unpins it: a pinned one keeps its tokens when others need room, and no prompt takes it as its fresh slot. It waits
   * for its turn.
   */
  async pinSlot(slot: number, pinned: boolean = true): Promise<void> {
    const leave = await this.#enter();
    try {
      this.#native.pinSlot(this.#opened(), slot, pinned);
    } finally {
      leave();
    }
  }

  /**
   * A model of one slot of this one, with usage, tries and turns of its own: calls on it work at the same time as calls on this model
   * and on those of its other slots, and each step reads the weights once for all of them, which changes no token of anybody's. `load`
   * must have been asked for `concurrentSlots`.
   *
   * It has this slot alone, with the tokens in it, whether a call names it or none; this model has it again once the other is closed,
   * and keeps one slot at least. All share the context: where that is full, a slot is emptied in which nothing is going on. -1, the
   * default, takes a slot that has no model yet. It waits for its turn; closing this model leaves the others open.
   */
  async openSlot(slot: number = -1): Promise<Model> {
    const leave = await this.#enter();
    try {
      return new Model(this.#native, this.#native.openSlot(this.#opened(), slot));
    } finally {
      leave();
    }
  }

  /** Ends the model; a stream that runs ends with reason "cancelled". Closing again does nothing. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    forgotten.unregister(this);
    this.#native.close(this.#handle);
    this.#others.forEach((other) => other.close());
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #opened(): FfiLlmHandle {
    if (this.#closed) throw new InferenceError(STATUS.ELIZA_ERR_INVALID_ARG, "The model is closed");
    return this.#handle;
  }

  /** The slot in which a stream without a prompt goes on. That each restore serves one generation the library sees to. */
  #resumed(): number {
    if (this.#restored !== undefined) return this.#restored;
    throw new InferenceError(STATUS.ELIZA_ERR_BUSY, "A stream without a prompt needs a restoreSlot of its own first");
  }

  #tokens(prompt: Prompt, parseSpecial: boolean): Int32Array {
    return typeof prompt === "string" ? this.tokenize(prompt, { parseSpecial }) : Int32Array.from(prompt);
  }

  async #prefill(prompt: Prompt, { signal, slot = -1, parseSpecial = false }: PromptOptions): Promise<void> {
    const [native, handle] = [this.#native, this.#handle];
    this.#restored = undefined;
    const tokens = this.#tokens(prompt, parseSpecial);
    try {
      await native.prefill(handle, tokens, slot);
    } catch (error) {
      signal?.throwIfAborted();
      throw error;
    }
    signal?.throwIfAborted();
  }

  /**
   * Where a call works: here, or on another model at the same engine where a call works here, unless it names a slot. The call is
   * counted, and takes itself off when it is over. Only where a model must be opened does it wait: calls take turns in their order.
   */
  #free(slot: number | undefined): Model | Promise<Model> {
    const take = (model: Model): Model => {
      model.#calls++;
      return model;
    };
    const { path, options } = this.#more ?? {};
    if (path === undefined || (slot ?? -1) !== -1 || this.#calls === 0 || this.#closed) return take(this);
    const idle = this.#others.find((model) => model.#calls === 0);
    if (idle !== undefined) return take(idle);
    const least = () => this.#others.reduce((least, model) => (model.#calls < least.#calls ? model : least), this as Model);
    if (this.#others.length + this.#opening + 1 >= (options?.parallel ?? 1)) return take(least());
    this.#opening++;
    return this.#native
      .open(path, options ?? {})
      .then((handle) => {
        const other = new Model(this.#native, handle);
        if (this.#closed) other.close();
        this.#others.push(other);
        return take(other);
      })
      .catch(() => take(least())) // without another one the call waits for its turn
      .finally(() => this.#opening--);
  }

  /** Waits until no other call works on the model. The function it gives lets the next one in. */
  async #enter(): Promise<() => void> {
    const before = this.#turn;
    let leave = () => {};
    this.#turn = new Promise((resolve) => (leave = resolve));
    await before;
    return leave;
  }
}

/** The inputs of a chat template, as JSON. */
function chatInputs(messages: readonly ChatMessage[], options: ChatOptions): string {
  const { tools, documents, thinking, addGenerationPrompt = true, answerStart, variables } = options;
  return JSON.stringify({
    ...(thinking === undefined ? {} : { enable_thinking: thinking }),
    ...variables,
    messages,
    tools,
    documents,
    answer_start: answerStart,
    add_generation_prompt: addGenerationPrompt,
  });
}

function score<Name extends string>(leaf: LeafScore): Choice<Name>["scores"][number] {
  const { name, tokens, logprob, logprob_per_token } = leaf;
  return {
    name: name as Name,
    tokens,
    logprob: logprob ?? -Infinity,
    logprobPerToken: logprob_per_token ?? -Infinity,
  };
}

/** Events on their way from a callback to a loop. */
class Steps {
  #waiting: Step[] = [];
  #taken = 0;
  #ended = false;
  #wake: (() => void) | undefined;

  push(step: Step): void {
    this.#waiting.push(step);
    this.#wake?.();
  }

  end(): void {
    this.#ended = true;
    this.#wake?.();
  }

  /** The next event, or `undefined` after the last. */
  async next(): Promise<Step | undefined> {
    while (this.#taken === this.#waiting.length) {
      if (this.#ended) return undefined;
      this.#waiting = [];
      this.#taken = 0;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    return this.#waiting[this.#taken++];
  }
}

/** The value of a JSON text, which is whole where the generation ended by itself. */
function parsed(text: string, reason: FinishReason): unknown {
  if (reason === "stop") return JSON.parse(text);
  const problem = `The generation ended by "${reason}" before its JSON did: ${JSON.stringify(text.slice(-60))}`;
  throw new InferenceError(STATUS.ELIZA_ERR_INVALID_ARG, problem);
}
