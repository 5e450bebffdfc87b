/** The usage of a prompt and its generation, as the library reports it. */

import { camelCased } from "./describe.js";
import type { FinishReason } from "./native.js";

/** Counters and times since the last prefill began. Times are microseconds. */
export interface Usage {
  /** Tokens of the prompt, reused ones included. */
  promptTokens: number;
  /** Prompt tokens that were still in the slot and not evaluated again. */
  promptTokensReused: number;
  /** Those of them that came from a file, by `restoreSlot` or `resume`. */
  promptTokensRestored: number;
  /** Tokens evaluated, of the prompt and of what was generated, repeated ones counted each time. */
  evaluatedTokens: number;
  /** Earlier recurrent states and windows of sliding layers that are kept now, of all slots. */
  snapshots: number;
  /** Tokens emitted; an end-of-generation token is not. */
  completionTokens: number;
  /** Emitted tokens that the trie or the grammar left no choice about. */
  forcedTokens: number;
  /** Sampled tokens that the trie or the grammar left a choice about. */
  branchingSteps: number;
  /** Of those, the ones for which all logits were computed. */
  wholeRowSteps: number;
  /** Emitted tokens for which the trie or the grammar allowed some tokens only. */
  spanTokens: number;
  /** How many tokens it allowed there, added up. */
  spanCandidates: number;
  /** Model evaluations, those of the prompt included. */
  forwardPasses: number;
  /** How many more it would have taken to evaluate the generated tokens one by one. */
  forwardPassesSaved: number;
  /** Logits computed. */
  logitsComputed: number;
  /** Kernels started on a GPU; 0 on the CPU, as the next four. */
  gpuDispatches: number;
  gpuSubmissions: number;
  gpuWaits: number;
  gpuBytesUploaded: number;
  gpuBytesRead: number;
  /** How often a full context was shifted to go on. */
  contextShifts: number;
  /** Token masks that were computed for the grammar while the generation ran; others were known. */
  grammarMasks: number;
  /** States of the grammar that were known at the end of the generation. */
  grammarStates: number;
  /** Tokens that were guessed and evaluated before they were sampled, and those of them that were sampled: each saved a pass. */
  draftedTokens: number;
  acceptedTokens: number;
  /** Tokens that were chosen, by host or device: all but those that the trie or the grammar left no choice about. */
  sampledTokens: number;
  /** Time that the host spent choosing them; a device that samples does it in its pass. */
  sampleUs: number;
  /** From the start of the prefill to its end. */
  prefillUs: number;
  /** From the start of the generation to its first token. */
  firstTokenUs: number;
  /** From the start of the generation to its end. */
  decodeUs: number;
  finishReason: FinishReason;
  /** The file or address of the model that the prompt was given to: where there are several, the one that answered. */
  servedBy: string;
  /** Requests to the server that has the model, repeated ones included; 0 where the model is here. */
  serverRequests: number;
  /** Tokens of the prompt that the server still had, where it says so. */
  serverCachedTokens: number;
}

/** What was opened, and with which sizes. */
export interface ModelReport {
  path: string;
  /** The names that a payload's `modelId` may have. */
  ids: string[];
  nVocab: number;
  trainContext: number;
  context: number;
  threads: number;
  slots: number;
  device: string;
  /** Why this device. */
  deviceReason: string;
  /** Why no GPU computes, where none does. */
  noGpuReason: string | null;
  /** The server that has the model; null where it is here. */
  server: { model: string; address: string; version: string | null; context: number | null; nVocab: number | null } | null;
}

/** The part `usage` of the library's report. */
export function usageOf(report: unknown): Usage {
  const { served_by: servedBy } = report as { served_by?: string };
  return { ...(part(report, "usage") as Usage), servedBy: servedBy ?? "" };
}

/** The part `model` of the library's report. */
export function modelReport(report: unknown): ModelReport {
  return part(report, "model") as ModelReport;
}

function part(report: unknown, name: string): unknown {
  return camelCased((report as Record<string, object>)[name] ?? {});
}
