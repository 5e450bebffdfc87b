/**
 * A host of ABI 15 in TypeScript for Bun, written from the interface of elizaOS's loader: the symbols that it looks up with
 * the types that it states, its calls, and its loop of a generation. Every call's time is kept, by name.
 */
import { CString, FFIType as T, dlopen, ptr, toArrayBuffer } from "bun:ffi";

const [p, n, i] = [T.ptr, T.u64, T.i32];
const probe = { args: [], returns: i };
const fn = (returns: T, ...args: T[]) => ({ args, returns });

/** The families of symbols, each of which a loader binds whole or not at all. Handles go back into C as numbers. */
export const FAMILIES = {
  core: {
    eliza_inference_abi_version: fn(T.cstring),
    eliza_inference_create: fn(p, p, p),
    eliza_inference_destroy: fn(T.void, p),
    eliza_inference_mmap_acquire: fn(i, p, p, p),
    eliza_inference_mmap_evict: fn(i, p, p, p),
    eliza_inference_tts_synthesize: fn(i, p, p, n, p, p, n, p),
    eliza_inference_asr_transcribe: fn(i, p, p, n, i, p, n, p),
    eliza_inference_tts_stream_supported: probe,
    eliza_inference_tts_synthesize_stream: fn(i, p, p, n, p, n, n, p),
    eliza_inference_cancel_tts: fn(i, p, p),
    eliza_inference_set_verifier_callback: fn(i, p, n, n, p),
    eliza_inference_asr_stream_supported: probe,
    eliza_inference_asr_stream_open: fn(p, p, i, p),
    eliza_inference_asr_stream_feed: fn(i, n, p, n, p),
    eliza_inference_asr_stream_partial: fn(i, n, p, n, p, p, p),
    eliza_inference_asr_stream_finish: fn(i, n, p, n, p, p, p),
    eliza_inference_asr_stream_close: fn(T.void, n),
    eliza_inference_free_string: fn(T.void, n),
  },
  referenceEncode: {
    eliza_inference_encode_reference: fn(i, p, p, n, i, p, p, p, p),
    eliza_inference_free_tokens: fn(T.void, n),
  },
  vad: {
    eliza_inference_vad_supported: probe,
    eliza_inference_vad_open: fn(p, p, i, p),
    eliza_inference_vad_process: fn(i, n, p, n, p, p),
    eliza_inference_vad_reset: fn(i, n, p),
    eliza_inference_vad_close: fn(T.void, n),
  },
  wakeword: {
    eliza_inference_wakeword_supported: probe,
    eliza_inference_wakeword_open: fn(p, p, i, p, p),
    eliza_inference_wakeword_score: fn(i, n, p, n, p, p),
    eliza_inference_wakeword_reset: fn(i, n, p),
    eliza_inference_wakeword_close: fn(T.void, n),
  },
  classifiers: {
    eliza_inference_speaker_supported: probe,
    eliza_inference_speaker_open: fn(p, p, p, p),
    eliza_inference_speaker_embed: fn(i, n, p, n, p, p),
    eliza_inference_speaker_close: fn(T.void, n),
    eliza_inference_diariz_supported: probe,
    eliza_inference_diariz_open: fn(p, p, p, p),
    eliza_inference_diariz_segment: fn(i, n, p, n, p, p, p),
    eliza_inference_diariz_close: fn(T.void, n),
  },
  llmStream: {
    eliza_inference_llm_stream_open: fn(p, p, p, p),
    eliza_inference_llm_stream_prefill: fn(i, n, p, n, p),
    eliza_inference_llm_stream_next: fn(i, n, p, n, p, p, n, p, p, p),
    eliza_inference_llm_stream_cancel: fn(i, n),
    eliza_inference_llm_stream_save_slot: fn(i, n, p, p),
    eliza_inference_llm_stream_restore_slot: fn(i, n, p, p),
    eliza_inference_llm_stream_close: fn(T.void, n),
  },
  llmCapability: {
    eliza_inference_llm_mtp_supported: probe,
    eliza_inference_llm_kv_quant_supported: probe,
  },
  textModalities: {
    eliza_inference_embed_supported: probe,
    eliza_inference_embed: fn(i, p, p, n, i, p, n, p, p),
    eliza_inference_vision_supported: probe,
    eliza_inference_describe_image: fn(i, p, p, n, p, p, p, n, p),
    eliza_inference_tokenize_supported: probe,
    eliza_inference_tokenize: fn(i, p, p, n, i, i, p, p, p),
    eliza_inference_detokenize: fn(i, p, p, n, i, i, p, n, p),
    eliza_inference_free_tokens: fn(T.void, n),
  },
  kokoro: {
    eliza_inference_kokoro_supported: probe,
    eliza_inference_kokoro_load: fn(i, p, p, p, i, p),
    eliza_inference_kokoro_synthesize: fn(i, p, p, n, T.f32, p, n, p),
    eliza_inference_kokoro_sample_rate: fn(i, p),
    eliza_inference_kokoro_g2p_kind: fn(i, p),
    eliza_inference_kokoro_synthesize_ipa: fn(i, p, p, n, T.f32, p, n, p),
  },
  eot: {
    eliza_inference_llm_eot_supported: probe,
    eliza_inference_llm_eot_score: fn(i, p, p, n, i, p, p, p, p),
  },
  timedAsr: {
    eliza_inference_asr_timestamps_supported: probe,
    eliza_inference_asr_transcribe_timed: fn(i, p, p, n, i, p, n, p, p, p, p),
  },
  visionStream: {
    eliza_inference_vision_stream_supported: probe,
    eliza_inference_describe_image_stream_open: fn(p, p, p, n, p, p, p),
  },
  /** What the Android agent and the Android app look up besides. */
  android: {
    eliza_inference_llm_stream_supported: probe,
    eliza_inference_llm_stream_reset: fn(i, n),
    eliza_inference_llm_stream_reset_keep: fn(i, n, i),
  },
  /** Of this library alone. */
  tries: {
    eliza_inference_set_token_trie: fn(i, n, p, n, i, p),
    eliza_inference_clear_token_trie: fn(i, n, p),
    eliza_inference_arm_token_trie: fn(i, n, p, p),
  },
};

/** What a stream is opened with. */
export interface Config {
  maxTokens: number;
  temperature?: number;
  topP?: number;
  topK?: number;
  repeatPenalty?: number;
  slotId?: number;
  promptCacheKey?: string | null;
  draftMin?: number;
  draftMax?: number;
  draftModelPath?: string | null;
  gbnfGrammar?: string | null;
  gpuLayers?: number;
  cacheTypeK?: string | null;
  cacheTypeV?: string | null;
  contextSize?: number;
}

export interface Step {
  tokens: number[];
  text: string;
  done: boolean;
  drafted: number;
  accepted: number;
}

/** A call that failed: its code, and the library's text. */
export class Failure extends Error {
  constructor(
    readonly code: number,
    text: string,
  ) {
    super(text);
  }
}

const bytes = (text: string) => Buffer.from(`${text}\0`, "utf8");
/** Bun has no pointer to nothing. */
const orNull = (data: NodeJS.TypedArray) => (data.length === 0 ? null : ptr(data));

/** A copy of an array of the library, of four bytes each. */
function numbers<A>(type: new (data: ArrayBuffer | number) => A, at: bigint, count: bigint): A {
  return count === 0n ? new type(0) : new type(toArrayBuffer(Number(at) as never, 0, Number(count) * 4).slice(0));
}

export class Host {
  readonly symbols: Record<string, (...args: unknown[]) => unknown>;
  /** The time of each call, in milliseconds, by name. */
  readonly times = new Map<string, number[]>();
  private readonly outError = new BigUint64Array(1);

  constructor(library: string) {
    this.symbols = dlopen(library, Object.assign({}, ...Object.values(FAMILIES))).symbols as never;
  }

  /** Calls a function by its name without the prefix. */
  call(name: string, ...args: unknown[]): unknown {
    const from = performance.now();
    const result = this.symbols[`eliza_inference_${name}`]!(...args);
    const time = performance.now() - from;
    const times = this.times.get(name);
    times ? times.push(time) : this.times.set(name, [time]);
    return result;
  }

  /** The text that the last call gave, which is freed. */
  takeError(): string {
    const at = Number(this.outError[0]);
    if (at === 0) return "";
    const text = String(new CString(at as never));
    this.call("free_string", BigInt(at));
    this.outError[0] = 0n;
    return text;
  }

  /** A call whose last argument is `out_error`, and which returns a code. */
  checked(name: string, ...args: unknown[]): number {
    this.outError[0] = 0n;
    const code = this.call(name, ...args, ptr(this.outError)) as number;
    if (code < 0) throw new Failure(code, this.takeError());
    return code;
  }

  /** A call whose last argument is `out_error`, and which returns a handle. */
  made(name: string, ...args: unknown[]): number {
    this.outError[0] = 0n;
    const handle = this.call(name, ...args, ptr(this.outError)) as number | null;
    if (!handle) throw new Failure(0, this.takeError());
    return handle;
  }

  create = (bundle: string) => this.made("create", ptr(bytes(bundle)));
  destroy = (ctx: number) => void this.call("destroy", ctx);
  acquire = (ctx: number, region: string) => this.checked("mmap_acquire", ctx, ptr(bytes(region)));
  evict = (ctx: number, region: string) => this.checked("mmap_evict", ctx, ptr(bytes(region)));

  tokenize(ctx: number, text: string, addSpecial = true, parseSpecial = false): Int32Array {
    const [utf8, at, count] = [Buffer.from(text, "utf8"), new BigUint64Array(1), new BigUint64Array(1)];
    this.checked("tokenize", ctx, orNull(utf8), BigInt(utf8.length), +addSpecial, +parseSpecial, ptr(at), ptr(count));
    const tokens = numbers(Int32Array, at[0]!, count[0]!);
    this.call("free_tokens", at[0]);
    return tokens;
  }

  detokenize(ctx: number, tokens: Int32Array, room = 4096): string {
    const out = Buffer.alloc(room);
    const length = this.checked("detokenize", ctx, orNull(tokens), BigInt(tokens.length), 0, 1, ptr(out), BigInt(room));
    return out.toString("utf8", 0, length);
  }

  embed(ctx: number, text: string, pooling = 1): Float32Array {
    const [utf8, out, dim] = [Buffer.from(text, "utf8"), new Float32Array(4096), new Int32Array(1)];
    this.checked("embed", ctx, ptr(utf8), BigInt(utf8.length), pooling, ptr(out), BigInt(out.length), ptr(dim));
    return out.slice(0, dim[0]);
  }

  eotScore(ctx: number, tokens: Int32Array, target: number): { target: number; top: number; topProbability: number } {
    const [target_, top, best] = [new Float32Array(1), new Int32Array(1), new Float32Array(1)];
    this.checked("llm_eot_score", ctx, orNull(tokens), BigInt(tokens.length), target, ptr(target_), ptr(top), ptr(best));
    return { target: target_[0]!, top: top[0]!, topProbability: best[0]! };
  }

  /** The structure of 88 bytes; what it points to is kept until the call has copied it. */
  open(ctx: number, config: Config): number {
    const kept: Buffer[] = [];
    const at = (text: string | null | undefined) => {
      if (text == null) return 0n;
      kept.push(bytes(text));
      return BigInt(ptr(kept.at(-1)!));
    };
    const c = Buffer.alloc(88);
    c.writeInt32LE(config.maxTokens, 0);
    c.writeFloatLE(config.temperature ?? 0, 4);
    c.writeFloatLE(config.topP ?? 1, 8);
    c.writeInt32LE(config.topK ?? 0, 12);
    c.writeFloatLE(config.repeatPenalty ?? 1, 16);
    c.writeInt32LE(config.slotId ?? -1, 20);
    c.writeBigUInt64LE(at(config.promptCacheKey), 24);
    c.writeInt32LE(config.draftMin ?? 0, 32);
    c.writeInt32LE(config.draftMax ?? 0, 36);
    c.writeBigUInt64LE(at(config.draftModelPath), 40);
    c.writeBigUInt64LE(at(config.gbnfGrammar), 48);
    c.writeInt32LE(config.gpuLayers ?? 0, 60);
    c.writeBigUInt64LE(at(config.cacheTypeK), 64);
    c.writeBigUInt64LE(at(config.cacheTypeV), 72);
    c.writeInt32LE(config.contextSize ?? 0, 80);
    const stream = this.made("llm_stream_open", ctx, ptr(c));
    kept.length = 0;
    return stream;
  }

  prefill(stream: number, tokens: Int32Array): void {
    this.checked("llm_stream_prefill", BigInt(stream), orNull(tokens), BigInt(tokens.length));
  }

  next(stream: number, maxTokens = 32, maxBytes = 1024): Step {
    const [tokens, count, text] = [new Int32Array(maxTokens), new BigUint64Array(1), Buffer.alloc(maxBytes)];
    const [drafted, accepted] = [new Int32Array(1), new Int32Array(1)];
    const [caps, outs] = [[BigInt(maxTokens), BigInt(maxBytes)], [ptr(drafted), ptr(accepted)]];
    const into = [orNull(tokens), caps[0], ptr(count), ptr(text), caps[1], ...outs];
    const done = this.checked("llm_stream_next", BigInt(stream), ...into) === 1;
    const said = text.toString("utf8", 0, text.indexOf(0));
    const taken = [...tokens.subarray(0, Number(count[0]))];
    return { tokens: taken, text: said, done, drafted: drafted[0]!, accepted: accepted[0]! };
  }

  cancel = (stream: number) => this.call("llm_stream_cancel", BigInt(stream)) as number;
  close = (stream: number) => void this.call("llm_stream_close", BigInt(stream));
  save = (stream: number, file: string) => this.checked("llm_stream_save_slot", BigInt(stream), ptr(bytes(file)));
  restore = (stream: number, file: string) => this.checked("llm_stream_restore_slot", BigInt(stream), ptr(bytes(file)));
  reset = (stream: number) => this.call("llm_stream_reset", BigInt(stream)) as number;
  resetKeep = (stream: number, keep: number) => this.call("llm_stream_reset_keep", BigInt(stream), keep) as number;

  setTrie(stream: number, payload: string, mode = 0): void {
    const utf8 = Buffer.from(payload, "utf8");
    this.checked("set_token_trie", BigInt(stream), ptr(utf8), BigInt(utf8.length), mode);
  }

  clearTrie = (stream: number) => this.checked("clear_token_trie", BigInt(stream));
  armTrie = (stream: number, path: string) => this.checked("arm_token_trie", BigInt(stream), ptr(bytes(path)));

  /** Steps until the end; the loop of the host lets others run after each. */
  async drain(stream: number, budget = 32, onStep: (step: Step) => void = () => {}): Promise<{ tokens: number[]; text: string }> {
    const all = { tokens: [] as number[], text: "" };
    for (let done = false; !done; ) {
      const step = this.next(stream, budget);
      all.tokens.push(...step.tokens);
      all.text += step.text;
      onStep(step);
      done = step.done;
      await new Promise((after) => setImmediate(after));
    }
    return all;
  }

  /** One generation as the host's runner makes it: open, prefill, steps, close. */
  async generate(ctx: number, config: Config, prompt: Int32Array): Promise<{ tokens: number[]; text: string }> {
    const stream = this.open(ctx, config);
    try {
      this.prefill(stream, prompt);
      return config.maxTokens > 0 ? await this.drain(stream) : { tokens: [], text: "" };
    } finally {
      this.close(stream);
    }
  }
}

/** The path-opened library, which says what is right. */
export class ByPath {
  private readonly symbols: Record<string, (...args: unknown[]) => unknown>;
  private readonly handle: number;

  constructor(library: string, model: string) {
    const symbols = {
      eliza_inference_llm_stream_open: fn(p, p, i, i, i),
      eliza_inference_llm_stream_prefill: fn(i, n, p, n, i),
      eliza_inference_llm_stream_generate: fn(i, n, i, T.f32, T.f32, p),
      eliza_inference_llm_stream_next: fn(i, n, p, n, p, p, n, p, p, p),
      eliza_inference_set_grammar: fn(i, n, p, n),
      eliza_inference_clear_grammar: fn(i, n),
      eliza_inference_llm_stream_embed: fn(i, n, p, p, p, n, p, p, p, p),
      eliza_inference_llm_stream_logits: fn(i, n, i, p, n, p),
      eliza_inference_free_rows: fn(T.void, n),
      eliza_inference_llm_stream_close: fn(T.void, n),
    };
    this.symbols = dlopen(library, symbols).symbols as never;
    const open = this.symbols.eliza_inference_llm_stream_open!;
    this.handle = open(ptr(bytes(model)), 0, 0, 0) as number;
    if (!this.handle) throw new Error(`${model} does not open`);
  }

  private ask(name: string, ...args: unknown[]): number {
    const code = this.symbols[`eliza_inference_${name}`]!(BigInt(this.handle), ...args) as number;
    if (code < 0) throw new Error(`${name}: ${code}`);
    return code;
  }

  /** The greedy answer to a prompt, within a grammar where there is one. */
  answer(prompt: Int32Array, maxTokens: number, gbnf?: string): { tokens: number[]; text: string } {
    this.ask("clear_grammar");
    if (gbnf !== undefined) {
      const source = Buffer.from(JSON.stringify({ gbnf }), "utf8");
      this.ask("set_grammar", ptr(source), BigInt(source.length));
    }
    this.ask("llm_stream_prefill", ptr(prompt), BigInt(prompt.length), -1);
    this.ask("llm_stream_generate", maxTokens, 0, 1, null);
    const all = { tokens: [] as number[], text: "" };
    const [tokens, count, text] = [new Int32Array(64), new BigUint64Array(1), Buffer.alloc(4096)];
    for (let code = 0; code === 0; ) {
      const into = [ptr(tokens), 64n, ptr(count), ptr(text), 4096n, null, null, null];
      code = this.ask("llm_stream_next", ...into);
      all.tokens.push(...tokens.subarray(0, Number(count[0])));
      all.text += text.toString("utf8", 0, text.indexOf(0));
    }
    return all;
  }

  /** The logits after a prompt. */
  logits(prompt: Int32Array, vocabulary: number): Float32Array {
    const row = new Float32Array(vocabulary);
    this.ask("llm_stream_prefill", ptr(prompt), BigInt(prompt.length), -1);
    this.ask("llm_stream_logits", 1, ptr(row), BigInt(row.length), null);
    return row;
  }

  /** The embedding of a text by the mean over its tokens. */
  embed(text: string): Float32Array {
    const [utf8, length] = [Buffer.from(text, "utf8"), new BigUint64Array([BigInt(Buffer.byteLength(text))])];
    const [rows, count, width] = [new BigUint64Array(1), new BigUint64Array(1), new BigUint64Array(1)];
    const options = new Uint32Array([16, 2, 0, 0]);
    this.ask("llm_stream_embed", ptr(options), ptr(utf8), ptr(length), 1n, ptr(rows), ptr(count), ptr(width), null);
    const row = numbers(Float32Array, rows[0]!, width[0]!);
    this.symbols.eliza_inference_free_rows!(rows[0]);
    return row;
  }

  close(): void {
    this.symbols.eliza_inference_llm_stream_close!(BigInt(this.handle));
  }
}
