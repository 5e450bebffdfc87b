/** What the tests share: the library and model of this run, and the ways in which tokens come. */

import { load, type Model, type OpenOptions, type Prompt, type StreamOptions } from "eliza-inference";

/** A fixture model; the library is named by ELIZA_INFERENCE_LIBRARY. */
export const MODEL: string = process.env["ELIZA_TEST_MODEL"] ?? "ELIZA_TEST_MODEL is not set";

/** The folder of the project. */
export const ROOT: string = process.env["ELIZA_ROOT"] ?? "ELIZA_ROOT is not set";

/** Whether this is Bun, where tokens come in two ways. */
export const IN_BUN: boolean = "bun" in process.versions;
export const WAYS: readonly ("callback" | "poll")[] = IN_BUN ? ["callback", "poll"] : ["callback"];

export const PROMPT = "Once upon a time";

/** The model with a small context. Runtimes that have one way of delivery take no notice of the other. */
export function open(options: OpenOptions & { delivery?: "callback" | "poll" } = {}): Promise<Model> {
  return load(MODEL, { contextSize: 512, threads: 1, ...options });
}

/** Everything a stream gave. */
export interface Whole {
  text: string;
  tokens: number[];
  ends: number;
  reason: string;
}

/** Takes a stream to its end. */
export async function whole(model: Model, prompt: Prompt | null, options: StreamOptions = {}): Promise<Whole> {
  const got: Whole = { text: "", tokens: [], ends: 0, reason: "" };
  const stream = model.stream(prompt, options);
  for (let step = await stream.next(); ; step = await stream.next()) {
    if (step.done) {
      got.reason = step.value;
      return got;
    }
    got.text += step.value.text;
    if (step.value.done) got.ends++;
    else got.tokens.push(step.value.token);
  }
}

/** The same numbers for every run: mulberry32. */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Collects garbage; absent in a Node that was not started with --expose-gc. */
export const collect: (() => void) | undefined = IN_BUN
  ? () => (globalThis as unknown as { Bun: { gc(force: boolean): void } }).Bun.gc(true)
  : (globalThis as { gc?: () => void }).gc;

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
