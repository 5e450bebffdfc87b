//! elizaOS's response skeletons: a line of spans with the host's names, sampler overrides and rules beside them.
//!
//! They allow exactly what the grammar allows that the host's own compiler makes of them, with its oddities: an enum of
//! two values and more has JSON quotes around each value, which is not escaped; of one value it is the bare text; a
//! string may hold control characters and any escape. A prefill plan is a hint about what is forced, which the grammar
//! says itself, so it changes nothing.

use super::lex;
use super::model::{Kind, Payload, Span, Value};
use super::payload::{Reader, numbers};
use crate::gguf::shown;
use crate::grammar::json::Json;
use crate::grammar::span_plan::SpanSampling;
use crate::{Error, Result};
use std::collections::HashSet;

/// Reads the skeleton of a source: `{"skeleton": {"spans": […], "rules"?: "name ::= …", "samplers"?: {"overrides":
/// […]}}, "samplers"?: …}`.
///
/// # Errors
/// [`Error::InvalidArgument`] with the place of the first problem.
pub(super) fn read(source: &Json) -> Result<Payload> {
    let mut reader = Reader::new();
    let mut payload = reader.required(source, "skeleton", line)?;
    reader.key(source, "samplers", |reader, plan| overrides(reader, plan, &mut payload.spans))?;
    Ok(payload)
}

fn line(reader: &mut Reader, json: &Json) -> Result<Payload> {
    reader.object(json, "an object with `spans`")?;
    let rules = reader.key(json, "rules", Reader::text)?.unwrap_or_default();
    let words = lex::words(&rules);
    let known: HashSet<&str> = match words.as_ref().and_then(|words| lex::rules(words)) {
        Some(known) => known.into_keys().collect(),
        None if rules.trim().is_empty() => HashSet::new(),
        None => return reader.error("`rules` are no rules of a grammar, each defined once"),
    };
    let mut spans = reader.required(json, "spans", |reader, list| {
        reader.list(list, |reader, json| {
            reader.span()?;
            span(reader, json, &known)
        })
    })?;
    if spans.is_empty() {
        return reader.error("there are no spans");
    }
    reader.key(json, "samplers", |reader, plan| overrides(reader, plan, &mut spans))?;
    Ok(Payload { spans, after: Vec::new(), then_free: false, rules })
}

fn span(reader: &mut Reader, span: &Json, known: &HashSet<&str>) -> Result<Span> {
    reader.object(span, "a span")?;
    let kind = reader.required(span, "kind", Reader::name)?;
    let key = reader.key(span, "key", Reader::name)?;
    let rule = reader.key(span, "rule", Reader::name)?;
    let kind = match (kind.as_str(), rule) {
        ("literal", _) => Kind::Literal(reader.key(span, "value", Reader::text)?.unwrap_or_default()),
        ("enum" | "number" | "boolean" | "free-string" | "free-json", Some(rule)) if known.contains(rule.as_str()) => {
            Kind::Rule(rule)
        }
        // Where rules are given, a name that is none of them is a mistake; without any the host has its own.
        ("free-string" | "free-json", Some(rule)) if !known.is_empty() && !is_default(&rule) => {
            return reader.error(format!("there is no rule \"{}\" in `rules`", shown(&rule)));
        }
        ("enum", _) => choice(reader, span)?,
        ("number", _) => Kind::LaxNumber,
        ("boolean", _) => Kind::Boolean,
        ("free-string", _) => Kind::LaxText,
        ("free-json", _) => Kind::LaxJson,
        (other, _) => {
            let all = "literal, enum, number, boolean, free-string and free-json are known";
            return reader.error(format!("kind \"{}\": {all}", shown(other)));
        }
    };
    Ok(Span { kind, key, sampling: None })
}

/// Names that the host's compiler defines itself.
fn is_default(rule: &str) -> bool {
    matches!(rule, "jsonvalue" | "jsonstring")
}

fn choice(reader: &mut Reader, span: &Json) -> Result<Kind> {
    let values = reader.key(span, "enumValues", |reader, list| {
        reader.list(list, |reader, value| {
            reader.value()?;
            reader.text(value)
        })
    })?;
    let mut values = values.unwrap_or_default();
    if values.len() <= 1 {
        return Ok(Kind::Literal(values.pop().unwrap_or_default()));
    }
    let quoted = |text: String| Value { text: format!("\"{text}\""), spans: Vec::new() };
    Ok(Kind::Choice(values.into_iter().map(quoted).collect()))
}

/// Sets the samplings of an override list, whose indexes count all spans.
fn overrides(reader: &mut Reader, plan: &Json, spans: &mut [Span]) -> Result<()> {
    reader.object(plan, "an object with `overrides`")?;
    reader.required(plan, "overrides", |reader, list| {
        let of = reader.list(list, |reader, one| {
            let (index, sampling) = override_of(reader, one, spans.len())?;
            spans[index].sampling = Some(sampling);
            Ok(())
        });
        of.map(|_| ())
    })
}

/// One override: the index of its span among `count`, and how that is sampled.
pub(super) fn override_of(reader: &mut Reader, one: &Json, count: usize) -> Result<(usize, SpanSampling)> {
    reader.object(one, "an override")?;
    let [index, top_k, top_p] = match one.get("span_index") {
        Some(_) => ["span_index", "top_k", "top_p"],
        None => ["spanIndex", "topK", "topP"],
    };
    let span = reader.required(one, index, Reader::integer)?;
    let Some(at) = usize::try_from(span).ok().filter(|&at| at < count) else {
        return reader.error(format!("there is no span {span}, there are {count}"));
    };
    Ok((at, numbers(reader, one, top_k, top_p)?))
}

/// Refuses a plan that no span can follow, where it must be followed.
pub(super) fn refused(problem: &str) -> Error {
    Error::InvalidArgument(format!("Spans: {problem}"))
}
