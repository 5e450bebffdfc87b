/**
 * The shared library as bun:ffi sees it, and what crosses: strings, arrays, structures, errors.
 *
 * `dlopen` of bun:ffi refuses a library that lacks one symbol, so a library older than this package is opened with those
 * that it has; a function that is not there throws when it is called.
 */

import { CString, dlopen, type FFIFunction, type Pointer, ptr } from "bun:ffi";
import { existsSync } from "node:fs";
import { InferenceError, STATUS } from "../js/errors.js";
import type { FfiLlmHandle } from "../js/native.js";

const PREFIX = "eliza_inference_";

/** The functions that are bound, as the header declares them. Handles are numbers, passed where C has a pointer. */
const SYMBOLS = {
  abi_version: { args: [], returns: "cstring" },
  devices_json: { args: ["ptr"], returns: "ptr" },
  plan_json: { args: ["ptr", "ptr"], returns: "ptr" },
  file_metadata_json: { args: ["ptr", "ptr", "ptr"], returns: "ptr" },
  set_log_sink: { args: ["ptr", "ptr"], returns: "i32" },
  next_log_line: { args: ["ptr"], returns: "ptr" },
  llm_stream_supported: { args: [], returns: "i32" },
  llm_stream_open: { args: ["ptr", "i32", "i32", "i32"], returns: "ptr" },
  llm_stream_open_ex: { args: ["ptr", "ptr"], returns: "ptr" },
  llm_stream_open_slot: { args: ["ptr", "i32", "ptr"], returns: "ptr" },
  llm_stream_close: { args: ["ptr"], returns: "void" },
  llm_stream_prefill: { args: ["ptr", "ptr", "usize", "i32"], returns: "i32" },
  llm_stream_start_prefill: { args: ["ptr", "ptr", "usize", "i32", "ptr"], returns: "i32" },
  llm_stream_generate: { args: ["ptr", "i32", "f32", "f32", "ptr"], returns: "i32" },
  llm_stream_generate_ex: { args: ["ptr", "i32", "f32", "f32", "ptr", "ptr", "ptr"], returns: "i32" },
  llm_stream_cancel: { args: ["ptr"], returns: "i32" },
  llm_stream_status: { args: ["ptr"], returns: "i32" },
  llm_stream_take_error: { args: ["ptr"], returns: "ptr" },
  take_last_error: { args: [], returns: "ptr" },
  take_last_failure: { args: ["ptr"], returns: "ptr" },
  free_string: { args: ["ptr"], returns: "void" },
  free_tokens: { args: ["ptr"], returns: "void" },
  llm_stream_next: { args: ["ptr", "ptr", "usize", "ptr", "ptr", "usize", "ptr", "ptr", "ptr"], returns: "i32" },
  llm_stream_poll: { args: ["ptr", "i32", "ptr", "usize", "ptr", "ptr", "usize", "ptr"], returns: "i32" },
  llm_stream_sampling_defaults: { args: ["ptr", "ptr"], returns: "i32" },
  llm_stream_configure: { args: ["ptr", "ptr", "ptr"], returns: "i32" },
  llm_stream_set_chain: { args: ["ptr", "i32", "ptr", "ptr"], returns: "i32" },
  llm_stream_save_slot: { args: ["ptr", "i32", "ptr", "ptr"], returns: "i32" },
  llm_stream_restore_slot: { args: ["ptr", "i32", "ptr", "ptr"], returns: "i32" },
  llm_stream_persist: { args: ["ptr", "i32", "ptr", "ptr"], returns: "i32" },
  llm_stream_resume: { args: ["ptr", "i32", "ptr", "ptr"], returns: "i32" },
  llm_stream_forget: { args: ["ptr", "ptr", "ptr"], returns: "i32" },
  llm_stream_prewarm: { args: ["ptr", "ptr", "usize", "i32", "ptr"], returns: "i32" },
  llm_stream_pin_slot: { args: ["ptr", "i32", "i32", "ptr"], returns: "i32" },
  llm_stream_usage: { args: ["ptr", "ptr"], returns: "i32" },
  llm_stream_usage_json: { args: ["ptr"], returns: "ptr" },
  llm_stream_model_json: { args: ["ptr", "ptr"], returns: "ptr" },
  llm_stream_metadata_json: { args: ["ptr", "ptr", "ptr"], returns: "ptr" },
  llm_stream_is_eog: { args: ["ptr", "i32"], returns: "i32" },
  llm_stream_token_json: { args: ["ptr", "i32", "ptr"], returns: "ptr" },
  llm_stream_logits: { args: ["ptr", "i32", "ptr", "usize", "ptr"], returns: "i32" },
  llm_stream_start_embed: { args: ["ptr", "ptr", "ptr", "ptr", "usize", "ptr"], returns: "i32" },
  llm_stream_take_embeddings: { args: ["ptr", "ptr", "ptr", "ptr", "ptr"], returns: "i32" },
  llm_stream_tokenize_pair: { args: ["ptr", "ptr", "usize", "ptr", "usize", "ptr", "ptr", "ptr"], returns: "i32" },
  free_rows: { args: ["ptr"], returns: "void" },
  llm_stream_sampled: { args: ["ptr", "i32", "ptr"], returns: "i32" },
  llm_stream_tokenize: { args: ["ptr", "ptr", "usize", "i32", "i32", "ptr", "ptr", "ptr"], returns: "i32" },
  llm_stream_chat_prompt_json: { args: ["ptr", "ptr", "ptr"], returns: "ptr" },
  llm_stream_chat_parts_json: { args: ["ptr", "ptr", "ptr", "usize", "i32", "ptr"], returns: "ptr" },
  llm_stream_detokenize: { args: ["ptr", "ptr", "usize", "i32", "i32", "ptr", "usize", "ptr"], returns: "i32" },
  set_token_trie: { args: ["ptr", "ptr", "usize", "i32"], returns: "i32" },
  clear_token_trie: { args: ["ptr"], returns: "i32" },
  arm_token_trie: { args: ["ptr", "ptr"], returns: "i32" },
  score_token_trie: { args: ["ptr", "ptr"], returns: "ptr" },
  set_grammar: { args: ["ptr", "ptr", "usize"], returns: "i32" },
  clear_grammar: { args: ["ptr"], returns: "i32" },
  build_token_trie: { args: ["ptr", "ptr", "ptr", "usize", "ptr", "ptr", "i32", "ptr", "ptr"], returns: "ptr" },
} as const satisfies Record<string, FFIFunction>;

export type SymbolName = keyof typeof SYMBOLS;
/** What a call may be given: bytes and arrays are passed by their address. */
type Argument = number | null | NodeJS.TypedArray;
type Call = (...args: Argument[]) => number | null;

/** Those without which nothing works. */
const REQUIRED: readonly SymbolName[] = [
  "abi_version",
  "llm_stream_open",
  "llm_stream_prefill",
  "llm_stream_generate",
  "llm_stream_generate_ex",
  "llm_stream_cancel",
  "llm_stream_close",
  "llm_stream_status",
  "llm_stream_take_error",
  "take_last_error",
  "free_string",
  "llm_stream_poll",
  "llm_stream_usage",
];

/** The interface's name and major version. */
const SPEAKS = "eliza-stream/1.";

const encoder = new TextEncoder();
/** Of UTF-8 that is text, so a byte order mark is a character like others. */
export const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** A loaded library. */
export class Library {
  readonly path: string;
  readonly version: string;
  readonly call: Readonly<Record<SymbolName, Call>>;
  readonly #missing = new Set<SymbolName>();

  constructor(path: string) {
    this.path = path;
    this.call = this.#open(path);
    this.version = String(this.call.abi_version());
    if (!this.version.startsWith(SPEAKS)) {
      const problem = `${path} speaks ${this.version}, this package ${SPEAKS}`;
      throw new InferenceError(STATUS.ELIZA_ERR_ABI_MISMATCH, problem);
    }
  }

  /** Whether the library has a function. */
  has(...names: SymbolName[]): boolean {
    return names.every((name) => !this.#missing.has(name));
  }

  #open(path: string): Record<SymbolName, Call> {
    const bind = (names: readonly SymbolName[]): Record<string, unknown> =>
      dlopen(path, Object.fromEntries(names.map((name) => [PREFIX + name, SYMBOLS[name]]))).symbols;
    const all = Object.keys(SYMBOLS) as SymbolName[];
    let symbols: Record<string, unknown>;
    try {
      symbols = bind(all);
    } catch {
      try {
        symbols = { ...bind(REQUIRED) };
      } catch (error) {
        const status = existsSync(path) ? STATUS.ELIZA_ERR_ABI_MISMATCH : STATUS.ELIZA_ERR_IO;
        throw new InferenceError(status, `${path} cannot be used: ${(error as Error).message}`);
      }
      for (const name of all.filter((name) => !REQUIRED.includes(name))) {
        try {
          Object.assign(symbols, bind([name]));
        } catch {
          this.#missing.add(name);
        }
      }
    }
    const absent = (name: SymbolName) => (): never => {
      throw new InferenceError(STATUS.ELIZA_ERR_NOT_IMPLEMENTED, `${path} has no ${PREFIX}${name}: it is too old for this call`);
    };
    const calls = all.map((name) => [name, symbols[PREFIX + name] ?? absent(name)]);
    return Object.fromEntries(calls) as Record<SymbolName, Call>;
  }

  /** A string of the library as a JavaScript string, freed; `null` for NULL. */
  take(address: number | null): string | null {
    if (address === null || address === 0) return null;
    const text = String(new CString(address as Pointer));
    this.call.free_string(address);
    return text;
  }

  /** Why a call on a handle failed, by the code that it returned, or where that was -1 or NULL by the handle's status. */
  failure(handle: FfiLlmHandle, code = -1): InferenceError {
    const status = code === -1 ? Number(this.call.llm_stream_status(raw(handle))) : code;
    const text = this.take(this.call.llm_stream_take_error(raw(handle)));
    return text === null ? this.lastFailure() : new InferenceError(status < 0 ? status : -1, text);
  }

  /** Why something without a handle failed, with its code. */
  lastFailure(): InferenceError {
    if (!this.has("take_last_failure")) return new InferenceError(-1, this.lastError() ?? "The call failed");
    const code = new Int32Array(1);
    const text = this.take(this.call.take_last_failure(code));
    return new InferenceError(code[0] || -1, text ?? "The call failed");
  }

  /** Why something without a handle failed. */
  lastError(): string | null {
    return this.take(this.call.take_last_error());
  }

  /** Throws unless a call that returns a code and an error text succeeded. */
  check(status: number | null, handle: FfiLlmHandle, error: Out): number {
    if (status !== null && status >= 0) return status;
    const text = this.take(error.address);
    this.forget(handle);
    throw new InferenceError(status ?? -1, text ?? "The call failed");
  }

  /** The JSON of a call without a handle, which is NULL where it failed. */
  answer(address: number | null): unknown {
    const json = this.take(address);
    if (json === null) throw this.lastFailure();
    return JSON.parse(json);
  }

  /** The same of a call on a handle. */
  answerOf(handle: FfiLlmHandle, address: number | null): unknown {
    const json = this.take(address);
    if (json === null) throw this.failure(handle);
    return JSON.parse(json);
  }

  /** Takes the copy of an error that a caller already has, so that it is not taken for that of a later call. */
  forget(handle: FfiLlmHandle): void {
    this.take(this.call.llm_stream_take_error(raw(handle)));
  }
}

/** The number that a handle is. */
export function raw(handle: FfiLlmHandle): number {
  return handle as unknown as number;
}

/** A place that a function writes an address or a size to. */
export class Out extends BigUint64Array {
  constructor() {
    super(1);
  }

  get address(): number {
    return Number(this[0]);
  }
}

/** UTF-8 with its terminator. A NUL in the text would cut it short, so that is refused. */
export function terminated(text: string, what: string): Uint8Array {
  if (text.includes("\0")) throw new InferenceError(STATUS.ELIZA_ERR_INVALID_ARG, `${what} holds a NUL character`);
  return encoder.encode(`${text}\0`);
}

/** UTF-8 without a terminator. bun:ffi has no address for an empty array, so that is one byte of no length. */
export function bytes(text: string): { data: Uint8Array; length: number } {
  const data = encoder.encode(text);
  return data.length === 0 ? { data: new Uint8Array(1), length: 0 } : { data, length: data.length };
}

/** Token ids with an address, also where there are none. */
export function ids(tokens: Int32Array): Int32Array {
  return tokens.length === 0 ? new Int32Array(1) : tokens;
}

/** A structure that is written field by field, and what its pointers point to: keep it until the call is over. */
export class Struct {
  readonly data: Uint8Array;
  readonly view: DataView;
  readonly held: NodeJS.TypedArray[] = [];

  /** `struct_size` is the first field of all of them. */
  constructor(size: number, from?: Uint8Array) {
    this.data = from === undefined ? new Uint8Array(size) : from.slice();
    this.view = new DataView(this.data.buffer);
    this.view.setUint32(0, size, true);
  }

  i32(at: number, value: number | undefined): void {
    if (value !== undefined) this.view.setInt32(at, value, true);
  }

  pointer(at: number, address: number): void {
    this.view.setBigUint64(at, BigInt(address), true);
  }

  u32(at: number, value: number | undefined): void {
    if (value !== undefined) this.view.setUint32(at, value, true);
  }

  f32(at: number, value: number | undefined): void {
    if (value !== undefined) this.view.setFloat32(at, value, true);
  }

  /** A pointer to an array. */
  array(at: number, value: NodeJS.TypedArray): void {
    this.held.push(value);
    this.pointer(at, ptr(value));
  }

  size(at: number, value: number): void {
    this.view.setBigUint64(at, BigInt(value), true);
  }
}

/** Addresses of terminated strings, and the strings, which live as long as `held`. */
export function addresses(texts: readonly string[], what: string): { data: BigUint64Array; held: Uint8Array[] } {
  const held = texts.map((text, index) => terminated(text, `${what}[${index}]`));
  const data = new BigUint64Array(Math.max(held.length, 1));
  held.forEach((text, index) => (data[index] = BigInt(ptr(text))));
  return { data, held };
}

/** The name of the shared library's file. */
const FILES: Partial<Record<string, string>> = { win32: "elizainference.dll", darwin: "libelizainference.dylib" };
export const FILE: string = FILES[process.platform] ?? "libelizainference.so";
