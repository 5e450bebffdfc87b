/** What a machine has, and what a model and its file are. */

import type { KvType, Pooling } from "./native.js";

/** A device of this machine. */
export interface Device {
  /** What the option `device` takes, whole or in part. */
  name: string;
  kind: "cpu" | "gpu";
  /** How good it is for this library; 0 cannot be used. */
  score: number;
  /** Why it has this score. */
  reason: string;
  /** What compiles shaders before the driver does, with DX12. */
  shaderCompiler: "DXC" | "FXC" | null;
  /** Bytes that can be allocated now; null where the system does not report it. */
  availableBytes: number | null;
  /** It has no memory of its own, so what it takes is taken from the host. */
  memoryOfHost: boolean;
}

/** What opening a model would take of one device. */
export interface DeviceNeed {
  name: string;
  /** How many layers are placed there. */
  layers: number;
  bytes: { embedding: number; layers: number; head: number; kvCache: number; workspace: number; other: number };
  totalBytes: number;
  /** Part of the total: pages of the file, which the system may drop. */
  fileBackedBytes: number;
  availableBytes: number | null;
  memoryOfHost: boolean;
}

/** What opening a model would take. */
export interface MemoryPlan {
  model: string;
  context: number;
  kvType: KvType;
  kvTypeV: KvType;
  nBatch: number;
  nLayer: number;
  gpuLayers: number;
  /** The proportion of several GPUs, as "3,1"; empty where their free memory says it. */
  tensorSplit: string;
  /** What of the first device, the CPU, the draft model takes, where the options have one. */
  draft: { model: string; totalBytes: number; fileBackedBytes: number } | null;
  devices: DeviceNeed[];
  /** null where a device's free memory is unknown. */
  fits: boolean | null;
  /** The largest context that fits; null is none, or unknown. */
  largestContext: number | null;
  /** The most layers on the GPU, where those asked for do not fit. */
  largestGpuLayers: number | null;
}

/** A value of a file's metadata. Integers beyond 2^53 are rounded, and numbers that are not finite are null. */
export type MetadataValue = number | boolean | string | null | MetadataValue[];

/** All metadata of a file by key. Of an array with more than 16 elements only type and length are told. */
export type Metadata = Record<string, MetadataValue | { type: string; length: number }>;

/** Roles that a token may have. */
export type SpecialToken =
  | "bos"
  | "eos"
  | "eot"
  | "eom"
  | "unk"
  | "sep"
  | "pad"
  | "mask"
  | "nl"
  | "fimPre"
  | "fimSuf"
  | "fimMid"
  | "fimPad"
  | "fimRep"
  | "fimSep";

/** A description of the open model; null is what the file does not have. */
export interface ModelDescription {
  path: string;
  /** What a token trie may call the model. */
  names: string[];
  name: string | null;
  architecture: string | null;
  /** Whether the vocabulary alone is open. */
  vocabOnly: boolean;
  nVocab: number;
  nEmbd: number | null;
  nLayer: number | null;
  /** The largest, where layers differ; as the next two. */
  nHead: number | null;
  nHeadKv: number | null;
  nFf: number | null;
  trainContext: number | null;
  parameters: number;
  /** Of the file. */
  bytes: number;
  /** Whether the handle continues texts: not where the model gives embeddings alone, or only the vocabulary is open. */
  generates: boolean;
  /** How the file says that rows of texts are made. */
  pooling: Exclude<Pooling, "default">;
  /** Names of a classifier's scores. */
  labels: string[];
  context: number;
  slots: number;
  threads: number;
  nBatch: number;
  kvType: string;
  kvTypeV: string;
  device: string;
  /** The kind of vocabulary. */
  vocabulary: string | null;
  /** Token ids by role. */
  special: Record<SpecialToken, number | null>;
  /** All tokens that end a generation. */
  eog: number[];
  /** Whether tokenizing with `addSpecial` puts the begin or end of a text there. */
  addBos: boolean;
  addEos: boolean;
}

export type TokenAttribute = "unknown" | "unused" | "normal" | "control" | "user_defined" | "byte" | "lstrip" | "rstrip";

/** A token of the vocabulary. */
export interface TokenDescription {
  id: number;
  /** As the file has it. */
  text: string;
  /** What it spells in a text: "" for control tokens, null where that is no whole UTF-8. */
  piece: string | null;
  /** The bytes of `piece`. */
  bytes: number[];
  /** null where the file has none. */
  score: number | null;
  attributes: TokenAttribute[];
  isEog: boolean;
}

/** How a token was drawn. Tokens that a trie forced were not. */
export interface SampledToken {
  token: number;
  /** Natural logarithm of its probability in the draw. */
  logprob: number;
  probability: number;
  /** What the chain left to draw from, likeliest first: as many as `nCandidates` asked for. */
  candidates: { token: number; logit: number; probability: number }[];
}

/** The library names fields_like_this. */
export function camelCased(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(camelCased);
  if (typeof value !== "object" || value === null) return value;
  const name = (key: string) => key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(value).map(([key, field]) => [name(key), camelCased(field)]));
}
