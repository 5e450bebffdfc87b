/** What every runtime's entry exports, beside its own `load`, `native` and `streamingAbi`. */

export * from "./aosp.js";
export type {
  Device,
  DeviceNeed,
  MemoryPlan,
  Metadata,
  MetadataValue,
  ModelDescription,
  SampledToken,
  SpecialToken,
  TokenAttribute,
  TokenDescription,
} from "./describe.js";
export * from "./errors.js";
export type { FromSchema, GrammarOptions, JsonSchema, Partially, Span, SpanSampling, Trigger } from "./grammar.js";
export type { SpanEvent, SpanKind } from "./spans.js";
export type { LogLevel, LogSink } from "./log.js";
export * from "./model.js";
export * from "./native.js";
export { partialJson } from "./partial-json.js";
export * from "./runner.js";
export * from "./streaming-abi.js";
export * from "./token-tree.js";
export type { ModelReport, Usage } from "./usage.js";
