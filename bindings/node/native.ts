/** The contract of `js/native.ts` over the addon. */

import type { SampledToken } from "../js/describe.js";
import { InferenceError } from "../js/errors.js";
import {
  type ChatPart,
  type ChatPrompt,
  type BuiltTrie,
  type EmbeddingOptions,
  type EmbeddingRows,
  FINISH_REASONS,
  type FfiLlmHandle,
  type FinishReason,
  type GenerateOptions,
  type LeafScores,
  type Native,
  type NativeOpenOptions,
  type OpenOptions,
  type SamplingOptions,
  type Step,
  type TrieNames,
  modelLines,
  splitText,
  tensorRules,
} from "../js/native.js";
import type { LlmStreamStep } from "../js/streaming-abi.js";
import type { TokenTreePayload } from "../js/token-tree.js";
import { type Addon, type AddonHandle, call, failure } from "./addon.js";

/** Options as the addon takes them. */
function addonOptions({ tensorDevices, tensorSplit, store, server, fallback, ...options }: OpenOptions): object {
  const rules = tensorDevices === undefined ? {} : { tensorDevices: tensorRules(tensorDevices) };
  const split = tensorSplit === undefined ? {} : { tensorSplit: splitText(tensorSplit) };
  const kept = store === undefined ? {} : { storeDirectory: store.directory, storeBytes: store.maxBytes ?? 0 };
  const { vocab, apiKey, certificates, timeoutMs } = server ?? {};
  const models = fallback === undefined ? {} : { fallback: modelLines(fallback) };
  return { ...options, ...rules, ...split, ...kept, ...models, vocab, apiKey, certificates, serverTimeoutMs: timeoutMs };
}

/** The functions of one addon. */
export class NodeNative implements Native {
  readonly version: string;
  readonly hasTokenTrie = true;
  readonly #addon: Addon;

  constructor(addon: Addon) {
    this.#addon = addon;
    this.version = addon.version();
  }

  async devices(): Promise<unknown> {
    return JSON.parse(await working(null, () => this.#addon.devices()));
  }

  async plan(modelPath: string, options: OpenOptions): Promise<unknown> {
    return JSON.parse(await working(null, () => this.#addon.plan(modelPath, addonOptions(options))));
  }

  async fileMetadata(modelPath: string, key: string | null): Promise<unknown> {
    return JSON.parse(await working(null, () => this.#addon.fileMetadata(modelPath, key)));
  }

  nextLogLine(): { level: number; message: string } | null {
    return call(() => this.#addon.nextLogLine());
  }

  endLog(): void {
    this.#addon.endLog();
  }

  async open(modelPath: string, { onProgress, ...options }: NativeOpenOptions): Promise<FfiLlmHandle> {
    return given(await working(null, () => this.#addon.open(modelPath, addonOptions(options), onProgress)));
  }

  describe(handle: FfiLlmHandle): unknown {
    return JSON.parse(call(() => this.#taken(handle).describe()));
  }

  metadata(handle: FfiLlmHandle, key: string | null): unknown {
    return JSON.parse(call(() => this.#taken(handle).metadata(key)));
  }

  isEog(handle: FfiLlmHandle, token: number): boolean {
    return call(() => this.#taken(handle).isEog(token));
  }

  chatPrompt(handle: FfiLlmHandle, inputs: string): ChatPrompt {
    return JSON.parse(call(() => this.#taken(handle).chatPrompt(inputs)));
  }

  chatParts(handle: FfiLlmHandle, inputs: string | null, text: string, last: boolean): ChatPart[] {
    return JSON.parse(call(() => this.#taken(handle).chatParts(inputs, text, last)));
  }

  token(handle: FfiLlmHandle, token: number): unknown {
    return JSON.parse(call(() => this.#taken(handle).token(token)));
  }

  logits(handle: FfiLlmHandle, nLast: number): Promise<Float32Array> {
    return working(handle, () => this.#taken(handle).logits(nLast));
  }

  embed(handle: FfiLlmHandle, texts: readonly Int32Array[], options: EmbeddingOptions): Promise<EmbeddingRows> {
    const tokens = new Int32Array(texts.reduce((sum, text) => sum + text.length, 0));
    let at = 0;
    for (const text of texts) {
      tokens.set(text, at);
      at += text.length;
    }
    const counts = texts.map((text) => text.length);
    return working(handle, () => this.#taken(handle).embed(tokens, counts, options));
  }

  tokenizePair(handle: FfiLlmHandle, query: string, text: string): Int32Array {
    return call(() => this.#taken(handle).tokenizePair(query, text));
  }

  sampled(handle: FfiLlmHandle, slotId: number): SampledToken | null {
    return call(() => this.#taken(handle).sampled(slotId));
  }

  /** As {@link open}, on this thread. */
  openSync(modelPath: string, options: OpenOptions): FfiLlmHandle {
    return given(call(() => this.#addon.openSync(modelPath, addonOptions(options))));
  }

  openSlot(handle: FfiLlmHandle, slotId: number): FfiLlmHandle {
    return given(call(() => this.#taken(handle).openSlot(slotId)));
  }

  close(handle: FfiLlmHandle): void {
    if (this.#ours(handle)) handle.close();
  }

  tokenize(handle: FfiLlmHandle, text: string, addSpecial: boolean, parseSpecial: boolean): Int32Array {
    return call(() => this.#taken(handle).tokenize(text, addSpecial, parseSpecial));
  }

  detokenize(handle: FfiLlmHandle, tokens: Int32Array, removeSpecial: boolean, unparseSpecial: boolean): string {
    return call(() => this.#taken(handle).detokenize(tokens, removeSpecial, unparseSpecial));
  }

  configure(handle: FfiLlmHandle, { logitBias = new Map(), ...options }: SamplingOptions): void {
    const biases = { logitBiasIds: [...logitBias.keys()], logitBiasValues: [...logitBias.values()] };
    call(() => this.#taken(handle).configure({ ...options, ...biases }));
  }

  setChain(handle: FfiLlmHandle, slotId: number, chain: string | null): void {
    call(() => this.#taken(handle).setChain(slotId, chain));
  }

  prefill(handle: FfiLlmHandle, tokens: Int32Array, slotId: number): Promise<number> {
    return working(handle, () => this.#taken(handle).prefill(tokens, slotId));
  }

  /** As {@link prefill}, on this thread. */
  prefillSync(handle: FfiLlmHandle, tokens: Int32Array, slotId: number): number {
    return call(() => this.#taken(handle).prefillSync(tokens, slotId));
  }

  generate(handle: FfiLlmHandle, options: GenerateOptions, onStep: (step: Step) => void): Promise<FinishReason> {
    return new Promise((resolve, reject) => {
      this.start(handle, options, (step, end) => {
        onStep(step);
        if (end instanceof InferenceError) reject(end);
        else if (end !== null) resolve(end);
      });
    });
  }

  /** Starts a generation, whose last event comes with its end. Throws where it could not be started. */
  start(
    handle: FfiLlmHandle,
    { maxTokens, temperature, topP }: GenerateOptions,
    onEvent: (step: Step, end: FinishReason | InferenceError | null) => void,
  ): void {
    const holding = { handle };
    call(() =>
      this.#taken(handle).generate(maxTokens, temperature, topP, (token, text, end) => {
        const step = { token, text, done: end !== null };
        if (step.done) held.delete(holding);
        if (typeof end === "string") onEvent(step, failure(end));
        else onEvent(step, end === null ? null : (FINISH_REASONS[end] ?? "none"));
      }),
    );
    held.add(holding);
  }

  /** Starts a generation that {@link next} pulls. */
  generateQueued(handle: FfiLlmHandle, { maxTokens, temperature, topP }: GenerateOptions): void {
    call(() => this.#taken(handle).generateQueued(maxTokens, temperature, topP));
  }

  /** Waits for a token. */
  next(handle: FfiLlmHandle, maxTokens: number, maxTextBytes: number): LlmStreamStep {
    return call(() => this.#taken(handle).next(maxTokens, maxTextBytes));
  }

  saveSlot(handle: FfiLlmHandle, slotId: number, path: string): Promise<void> {
    return working(handle, () => this.#taken(handle).saveSlot(slotId, path));
  }

  restoreSlot(handle: FfiLlmHandle, slotId: number, path: string): Promise<number> {
    return working(handle, () => this.#taken(handle).restoreSlot(slotId, path));
  }

  /** As {@link saveSlot}, on this thread. */
  saveSlotSync(handle: FfiLlmHandle, slotId: number, path: string): void {
    call(() => this.#taken(handle).saveSlotSync(slotId, path));
  }

  /** As {@link restoreSlot}, on this thread. */
  restoreSlotSync(handle: FfiLlmHandle, slotId: number, path: string): number {
    return call(() => this.#taken(handle).restoreSlotSync(slotId, path));
  }

  persist(handle: FfiLlmHandle, slotId: number, key: string): Promise<void> {
    return working(handle, () => this.#taken(handle).persist(slotId, key));
  }

  resume(handle: FfiLlmHandle, slotId: number, key: string): Promise<number> {
    return working(handle, () => this.#taken(handle).resume(slotId, key));
  }

  forget(handle: FfiLlmHandle, key: string): boolean {
    return call(() => this.#taken(handle).forget(key));
  }

  prewarm(handle: FfiLlmHandle, tokens: Int32Array, slotId: number): void {
    call(() => this.#taken(handle).prewarm(tokens, slotId));
  }

  pinSlot(handle: FfiLlmHandle, slotId: number, pinned: boolean): void {
    call(() => this.#taken(handle).pinSlot(slotId, pinned));
  }

  cancel(handle: FfiLlmHandle): void {
    if (this.#ours(handle)) handle.cancel();
  }

  usage(handle: FfiLlmHandle): unknown {
    return JSON.parse(call(() => this.#taken(handle).usage()));
  }

  /** As `eliza_inference_llm_stream_status`. */
  status(handle: FfiLlmHandle): number {
    return call(() => this.#taken(handle).status());
  }

  setTrie(handle: FfiLlmHandle, payloadJson: string, mode: number): void {
    call(() => this.#taken(handle).setTrie(payloadJson, mode));
  }

  clearTrie(handle: FfiLlmHandle): void {
    call(() => this.#taken(handle).clearTrie());
  }

  armTrie(handle: FfiLlmHandle, path: string | null): void {
    call(() => this.#taken(handle).armTrie(path));
  }

  setGrammar(handle: FfiLlmHandle, sourceJson: string): void {
    call(() => this.#taken(handle).setGrammar(sourceJson));
  }

  clearGrammar(handle: FfiLlmHandle): void {
    call(() => this.#taken(handle).clearGrammar());
  }

  async scoreTrie(handle: FfiLlmHandle): Promise<LeafScores> {
    return JSON.parse(await working(handle, () => this.#taken(handle).scoreTrie())) as LeafScores;
  }

  buildTrie(handle: FfiLlmHandle, names: TrieNames): BuiltTrie {
    const { payload, warnings } = call(() => this.#taken(handle).buildTrie(names));
    return { payload: JSON.parse(payload) as TokenTreePayload, warnings };
  }

  #ours(handle: unknown): handle is AddonHandle {
    return handle instanceof this.#addon.Handle;
  }

  /** The addon's object that a handle is. */
  #taken(handle: FfiLlmHandle): AddonHandle {
    const taken: unknown = handle;
    if (this.#ours(taken)) return taken;
    throw new InferenceError(-1, "The handle is not open: it is none of ours");
  }
}

function given(handle: AddonHandle): FfiLlmHandle {
  return handle as unknown as FfiLlmHandle;
}

/** Handles with work under way: a handle that was collected would end it. */
const held = new Set<{ handle: FfiLlmHandle | null }>();

/** What a promise of the addon gives; refusals at once are rejections too. */
async function working<T>(handle: FfiLlmHandle | null, body: () => Promise<T>): Promise<T> {
  const holding = { handle };
  held.add(holding);
  try {
    return await body();
  } catch (error) {
    throw failure(error);
  } finally {
    held.delete(holding);
  }
}
