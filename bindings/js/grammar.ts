/** Grammars: what a host hands in, and the types of what comes out. */

import { InferenceError, STATUS } from "./errors.js";
import type { SpanEvent } from "./spans.js";

/** A JSON schema. Which keywords are known is in `docs/grammar.md`. */
export type JsonSchema = { readonly [keyword: string]: unknown };

/** What brings a lazy grammar into force: a text, or as the library takes it. */
export type Trigger =
  | string
  | { readonly type: "word" | "pattern" | "pattern_full"; readonly value: string }
  | { readonly type: "token"; readonly value: number };

/** How a span is sampled: the legal token with the greatest logit, as everything else in the generation, or with numbers of its own. */
export type SpanSampling = "greedy" | "session" | { readonly temperature?: number; readonly top_k?: number; readonly top_p?: number };

/** A part of a text; `docs/spans.md` has what each kind matches. */
export type Span = {
  /** A name that comes back in events. */
  readonly key?: string;
  /** Choices are greedy unless told, other spans are sampled as the generation. */
  readonly sampling?: SpanSampling;
} & (
  | { readonly kind: "literal"; readonly text: string }
  | { readonly kind: "choice"; readonly values: readonly (string | { readonly value: string; readonly spans: readonly Span[] })[] }
  | { readonly kind: "repeat"; readonly spans: readonly Span[]; readonly separator?: string; readonly min?: number; readonly max?: number }
  | { readonly kind: "number"; readonly integer?: boolean; readonly min?: number; readonly max?: number }
  | { readonly kind: "boolean" }
  | { readonly kind: "string"; readonly quotes?: boolean; readonly max_length?: number }
  | { readonly kind: "json"; readonly schema?: JsonSchema | boolean; readonly compact?: boolean }
  | { readonly kind: "free"; readonly until?: readonly (string | number)[] }
);

/** What a generation is held to: one of `grammar`, `schema`, `regex`, `lark`, `skeleton` and `spans`. */
export interface GrammarOptions {
  /** A grammar in GBNF. */
  grammar?: string;
  /** Its rule that the text has to match; default "root". */
  root?: string;
  /** A JSON schema that the text has to match. */
  schema?: JsonSchema | boolean;
  /** No white space in the JSON of a schema; default false. */
  compact?: boolean;
  /**
   * What becomes of keywords of a schema that no grammar can keep: "exact" refuses them (the default), "lenient" ignores them,
   * "llama.cpp" reads the schema as llama.cpp does.
   */
  keywords?: "exact" | "lenient" | "llama.cpp";
  /** A regular expression that the whole text has to match. */
  regex?: string;
  /** A grammar in llguidance's dialect of Lark, for a library that was built with the feature `llguidance`. */
  lark?: string;
  /** A response skeleton that makes up the text. */
  skeleton?: object;
  /** Spans that make up the text; see `docs/spans.md`. */
  spans?: readonly Span[];
  /** With `spans`: texts after the first of which they begin; what comes before is free. */
  after?: readonly string[];
  /** With `spans`: "free" lets the model go on after the last one; default "end". */
  then?: "free" | "end";
  /** With `grammar` or `skeleton`: how single spans are sampled. */
  spanSamplers?: { overrides: readonly { spanIndex: number; temperature?: number; topK?: number; topP?: number }[]; strict?: boolean };
  /** With `grammar`: how choices, numbers and booleans in it are sampled; default "session". */
  choiceSampling?: "greedy" | "session";
  /** Called for a span that begins, and again once it has ended, with its text. What it throws ends the generation. */
  onSpan?: (event: SpanEvent) => void;
  /**
   * Generates freely up to the first of these; the grammar begins with it. A text, or a pattern or token as
   * `eliza_inference_set_grammar` takes them.
   */
  triggers?: readonly Trigger[];
  /**
   * What is taken without sampling where the grammar leaves no choice: "bytes" (default) is forced text, tokenized as the model
   * writes it; "tokens" the tokens that are the only legal one; "off" nothing.
   */
  jumpAhead?: "bytes" | "tokens" | "off";
}

/** The kinds of source, by the library's names. */
const KINDS = { grammar: "gbnf", schema: "json_schema", regex: "regex", lark: "lark", skeleton: "skeleton", spans: "spans" } as const;

/** What `eliza_inference_set_grammar` takes; `undefined` where no grammar is asked for. */
export function grammarSource(options: GrammarOptions): string | undefined {
  const given = (Object.keys(KINDS) as (keyof typeof KINDS)[]).filter((kind) => options[kind] !== undefined);
  const [kind] = given;
  if (kind === undefined) return undefined;
  if (given.length > 1) {
    throw new InferenceError(STATUS.ELIZA_ERR_INVALID_ARG, `${given.join(" and ")} are given, where one of them can be`);
  }
  const { root, compact, keywords, triggers, jumpAhead, after, then, spanSamplers, choiceSampling } = options;
  const words = triggers?.map((trigger) => (typeof trigger === "string" ? { type: "word", value: trigger } : trigger));
  const lazy = words === undefined ? {} : { lazy: true, triggers: words };
  const spans = { after, then, samplers: spanSamplers, choice_sampling: choiceSampling, events: options.onSpan === undefined ? undefined : true };
  return JSON.stringify({ [KINDS[kind]]: options[kind], root, compact, keywords, ...lazy, jump_ahead: jumpAhead, ...spans });
}

/** The type of the values that a JSON schema allows: objects, arrays, strings, numbers, booleans, null, enum and const. */
export type FromSchema<Schema> = Schema extends true
  ? unknown
  : Schema extends { readonly const: infer Value }
    ? Value
    : Schema extends { readonly enum: readonly (infer Value)[] }
      ? Value
      : Schema extends { readonly anyOf: readonly (infer Option)[] }
        ? FromSchema<Option>
        : Schema extends { readonly oneOf: readonly (infer Option)[] }
          ? FromSchema<Option>
          : Schema extends { readonly type: readonly (infer Type)[] }
            ? OfType<Schema, Type>
            : Schema extends { readonly type: infer Type }
              ? OfType<Schema, Type>
              : Schema extends { readonly properties: unknown }
                ? OfType<Schema, "object">
                : unknown;

type OfType<Schema, Type> = Type extends "string"
  ? string
  : Type extends "number" | "integer"
    ? number
    : Type extends "boolean"
      ? boolean
      : Type extends "null"
        ? null
        : Type extends "array"
          ? Schema extends { readonly items: infer Item }
            ? FromSchema<Item>[]
            : unknown[]
          : Type extends "object"
            ? Schema extends { readonly properties: infer Properties }
              ? Flat<
                  { [Key in keyof Properties as Key extends Required<Schema> ? Key : never]: FromSchema<Properties[Key]> } & {
                    [Key in keyof Properties as Key extends Required<Schema> ? never : Key]?: FromSchema<Properties[Key]>;
                  }
                >
              : { [key: string]: unknown }
            : unknown;

/** The keys that an object has to have. */
type Required<Schema> = Schema extends { readonly required: readonly (infer Key)[] } ? Key : never;

/** One object type in place of several, which is easier to read. */
type Flat<Type> = { -readonly [Key in keyof Type]: Type[Key] };

/** A value of which not all has been written: keys may be absent, texts and lists shorter. */
export type Partially<Value> = Value extends readonly (infer Item)[]
  ? Partially<Item>[]
  : Value extends string
    ? string
    : Value extends object
      ? { [Key in keyof Value]?: Partially<Value[Key]> }
      : Value;
