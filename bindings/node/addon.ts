/** The addon as Node loads it: its functions, and its errors as those of this package. */

import { existsSync } from "node:fs";
import type { SampledToken } from "../js/describe.js";
import { InferenceError, STATUS } from "../js/errors.js";
import type { LlmStreamStep } from "../js/streaming-abi.js";

/** The name of the addon's file. */
export const FILE = "elizainference.node";

/** Called for each event; `end` comes with the last: the reason by number, or code and message of the error. */
export type OnStep = (token: number, text: string, end: number | string | null) => void;

/** An open model; `src/handle.rs` has its methods. */
export interface AddonHandle {
  close(): void;
  describe(): string;
  metadata(key: string | null): string;
  isEog(token: number): boolean;
  token(token: number): string;
  chatPrompt(inputs: string): string;
  chatParts(inputs: string | null, text: string, last: boolean): string;
  logits(nLast: number): Promise<Float32Array>;
  embed(tokens: Int32Array, counts: number[], options: object): Promise<{ rows: Float32Array; width: number }>;
  tokenizePair(query: string, text: string): Int32Array;
  sampled(slot: number): SampledToken | null;
  tokenize(text: string, addSpecial: boolean, parseSpecial: boolean): Int32Array;
  detokenize(tokens: Int32Array, removeSpecial: boolean, unparseSpecial: boolean): string;
  configure(options: object): void;
  setChain(slot: number, chain: string | null): void;
  prefill(tokens: Int32Array, slot: number): Promise<number>;
  prefillSync(tokens: Int32Array, slot: number): number;
  generate(maxTokens: number, temperature: number, topP: number, onStep: OnStep): void;
  generateQueued(maxTokens: number, temperature: number, topP: number): void;
  next(maxTokens: number, maxTextBytes: number): LlmStreamStep;
  saveSlot(slot: number, path: string): Promise<void>;
  saveSlotSync(slot: number, path: string): void;
  restoreSlot(slot: number, path: string): Promise<number>;
  restoreSlotSync(slot: number, path: string): number;
  persist(slot: number, key: string): Promise<void>;
  resume(slot: number, key: string): Promise<number>;
  forget(key: string): boolean;
  prewarm(tokens: Int32Array, slot: number): void;
  pinSlot(slot: number, pinned: boolean): void;
  openSlot(slot: number): AddonHandle;
  cancel(): void;
  usage(): string;
  status(): number;
  setTrie(payload: string, mode: number): void;
  clearTrie(): void;
  armTrie(path: string | null): void;
  scoreTrie(): Promise<string>;
  setGrammar(source: string): void;
  clearGrammar(): void;
  buildTrie(names: object): { payload: string; warnings: string[] };
}

/** What the addon exports. */
export interface Addon {
  readonly Handle: new (...args: never) => AddonHandle;
  version(): string;
  devices(): Promise<string>;
  plan(path: string, options: object): Promise<string>;
  fileMetadata(path: string, key: string | null): Promise<string>;
  nextLogLine(): { level: number; message: string } | null;
  endLog(): void;
  open(path: string, options: object, onProgress?: (progress: number) => boolean): Promise<AddonHandle>;
  openSync(path: string, options: object): AddonHandle;
}

const loaded = new Map<string, Addon>();

/** The addon in a file. Throws where there is none, or something else. */
export function addon(path: string): Addon {
  const found = loaded.get(path);
  if (found !== undefined) return found;
  const module = { exports: {} as Partial<Addon> };
  try {
    process.dlopen(module, path);
  } catch (error) {
    const status = existsSync(path) ? STATUS.ELIZA_ERR_ABI_MISMATCH : STATUS.ELIZA_ERR_IO;
    throw new InferenceError(status, `${path} cannot be loaded as an addon: ${(error as Error).message}`);
  }
  const { exports } = module;
  if (exports.Handle === undefined) {
    throw new InferenceError(STATUS.ELIZA_ERR_ABI_MISMATCH, `${path} is an addon, but not this package's`);
  }
  loaded.set(path, exports as Addon);
  return exports as Addon;
}

/** The addon's error, whose message begins with the code. One of Node-API itself means an argument of a wrong type. */
export function failure(error: unknown): InferenceError {
  if (error instanceof InferenceError) return error;
  const text = error instanceof Error ? error.message : String(error);
  const [, status, message = ""] = /^(-\d+) (.*)$/s.exec(text) ?? [];
  if (status === undefined) return new InferenceError(STATUS.ELIZA_ERR_INVALID_ARG, text);
  return new InferenceError(Number(status), message);
}

/** Runs a call of the addon. */
export function call<T>(body: () => T): T {
  try {
    return body();
  } catch (error) {
    throw failure(error);
  }
}
