//! Spans as a host describes them, before they are rules.

use crate::grammar::span_plan::SpanSampling;

/// A line of spans, with what may come before and after it.
#[derive(Debug, Clone, Default)]
pub(super) struct Payload {
    pub(super) spans: Vec<Span>,
    /// Texts after one of which the spans begin; with none they begin at once.
    pub(super) after: Vec<String>,
    /// Whether any text may follow the last span.
    pub(super) then_free: bool,
    /// Rules beside the spans, to which [`Kind::Rule`] refers.
    pub(super) rules: String,
}

/// One span.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) kind: Kind,
    pub(super) key: Option<String>,
    pub(super) sampling: Option<SpanSampling>,
}

/// What a span holds.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// A fixed text.
    Literal(String),
    /// One of these.
    Choice(Vec<Value>),
    /// The spans from `min` to `max` times, with `separator` between.
    Repeat { spans: Vec<Span>, separator: String, min: u32, max: Option<u32> },
    /// A number.
    Number { integer: bool, min: Option<i64>, max: Option<i64> },
    /// `true` or `false`.
    Boolean,
    /// A JSON string, with or without its quotes.
    Text { quotes: bool, max_length: Option<u32> },
    /// A JSON value that fits a schema, or any.
    Json { schema: Option<String>, compact: bool },
    /// Any text up to and with the first of these; without any, to the end.
    Free { until: Vec<String> },
    /// A number as skeletons allow it: with any number of digits.
    LaxNumber,
    /// A string as skeletons allow it: any characters, any escapes.
    LaxText,
    /// A JSON value as skeletons allow it.
    LaxJson,
    /// What the rule with this name in [`Payload::rules`] matches.
    Rule(String),
}

/// A value of a choice, and the spans that follow only it.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) text: String,
    pub(super) spans: Vec<Span>,
}
