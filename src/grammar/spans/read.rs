//! From JSON or GBNF to marked rules.

use super::lower::{Lowered, lower};
use super::payload::{self, Reader};
use super::{recognise as shapes, skeleton};
use crate::Result;
use crate::gguf::shown;
use crate::grammar::json::Json;
use crate::grammar::span_plan::SpanSampling;
use crate::vocab::Vocab;

/// Reads a payload of spans: an object with `spans` and, if wanted, `after` and `then` (`docs/spans.md`).
///
/// # Errors
/// [`crate::Error::InvalidArgument`] with the place of the first problem.
pub fn load(json: &[u8], vocab: &Vocab) -> Result<Lowered> {
    lower(&payload::read(&parsed(json)?, vocab)?)
}

/// Reads one of elizaOS's response skeletons: an object whose `skeleton` has `spans` and, if wanted, `rules`. Sampler
/// overrides are `samplers` in either.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] with the place of the first problem.
pub fn load_skeleton(json: &[u8]) -> Result<Lowered> {
    lower(&skeleton::read(&parsed(json)?)?)
}

fn parsed(json: &[u8]) -> Result<Json> {
    let wrong = |error: serde_json::Error| skeleton::refused(&shown(&error.to_string()));
    serde_json::from_slice(json).map_err(wrong)
}

/// Finds the spans of a grammar; `None` where its shape is not known. The result matches the same texts. `options` is
/// the JSON object that the grammar came with: its `choice_sampling` (`"greedy"`, or as a span's `sampling`) says how
/// choices, numbers and booleans are sampled, its `samplers` is a list of overrides as in a skeleton, whose indexes
/// count the items of the root.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] with the place of a wrong option; for overrides of a grammar whose shape is not
/// known, where they say `strict`.
pub fn recognise(gbnf: &str, root: &str, options: &[u8]) -> Result<Option<Lowered>> {
    let options = &parsed(options)?;
    let mut reader = Reader::new();
    let choices = reader.key(options, "choice_sampling", payload::sampling)?.flatten();
    let mut found = shapes::recognise(gbnf, root, choices)?;
    let is_strict = reader.key(options, "samplers", |reader, plan| {
        reader.object(plan, "an object with `overrides`")?;
        let strict = reader.key(plan, "strict", Reader::flag)?.unwrap_or(false);
        reader.required(plan, "overrides", |reader, list| {
            let count = found.as_ref().map_or(usize::MAX, |found| found.items);
            let all = reader.list(list, |reader, one| skeleton::override_of(reader, one, count))?;
            for (span, sampling) in all {
                if let Some(found) = &mut found {
                    found.plan.set_sampling(span as u32, Some(sampling))?;
                }
            }
            Ok(())
        })?;
        Ok(strict)
    })?;
    if found.is_none() && is_strict == Some(true) {
        return Err(skeleton::refused("`samplers` are strict, but no spans were found in the grammar"));
    }
    if let Some(found) = &mut found {
        share_with_literals(found)?;
    }
    Ok(found)
}

/// A literal is sampled as what follows it: a token may hold the end of one with the beginning of the other.
fn share_with_literals(found: &mut Lowered) -> Result<()> {
    use crate::grammar::span_plan::SpanKind;
    let plan = &found.plan;
    let of = |span: usize| -> Option<SpanSampling> {
        plan.sampling(Some(span as u32)).and_then(|index| plan.samplings().get(index).copied())
    };
    let mut following: Vec<(u32, SpanSampling)> = Vec::new();
    let mut next = None;
    for (span, info) in plan.spans().iter().enumerate().take(found.items).rev() {
        match (info.kind, next) {
            (SpanKind::Literal, Some(sampling)) if of(span).is_none() => following.push((span as u32, sampling)),
            (SpanKind::Literal, _) => {}
            _ => next = of(span),
        }
    }
    for (span, sampling) in following {
        found.plan.set_sampling(span, Some(sampling))?;
    }
    Ok(())
}
