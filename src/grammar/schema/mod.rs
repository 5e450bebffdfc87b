//! JSON schemas as GBNF: a text that matches the grammar is JSON that the schema takes.
//!
//! A schema is read to shapes ([`exact`], [`llama`]), and shapes become rules ([`emit`]). Properties come in the
//! schema's order, required ones first; an object has no properties but those listed unless `additionalProperties`
//! allows others. So a grammar may refuse what the schema takes, but never, with [`Keywords::Exact`], the other way
//! round: a keyword that no grammar can keep is an error with its place. `docs/grammar.md` has the list.

mod disjoint;
mod emit;
mod exact;
mod formats;
mod json;
mod llama;
mod members;
mod names;
mod numbers;
mod shape;

use crate::gguf::shown;
use crate::{Error, Result};
use json::Json;

/// What becomes of keywords that a grammar cannot keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keywords {
    /// They are errors: what the grammar allows is valid.
    #[default]
    Exact,
    /// They are ignored; all others are kept.
    Lenient,
    /// As llama.cpp's converter reads schemas: it ignores much more, and the siblings of `$ref`, `oneOf` and `anyOf`.
    LlamaCpp,
}

/// How a schema is converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// No white space between the tokens of the JSON text.
    pub compact: bool,
    /// What becomes of keywords that a grammar cannot keep.
    pub keywords: Keywords,
}

/// The GBNF of a JSON schema, given as text because the order of its members counts.
///
/// # Errors
/// [`Error::InvalidArgument`] for text that is no schema, one that nothing can match, or one that is too large;
/// [`Error::Unsupported`] for keywords that no grammar keeps. Both name the place as a JSON pointer.
pub fn to_gbnf(schema: &str, options: Options) -> Result<String> {
    let document: Json = serde_json::from_str(schema).map_err(|error| {
        let text = error.to_string();
        match text.contains("recursion limit") {
            true => Error::InvalidArgument("JSON schema: more than 127 levels inside of each other".into()),
            false => Error::InvalidArgument(format!("JSON schema: malformed JSON: {}", shown(&text))),
        }
    })?;
    emit::convert(&document, options)
}

/// An error at a place of the schema.
fn refused(at: &str, problem: impl std::fmt::Display) -> Error {
    Error::InvalidArgument(format!("JSON schema, #{}: {problem}", shown(at)))
}

/// What `#/…` names in a document. The path is that of a URI fragment: `%25` is `%`, `~1` is `/`, `~0` is `~`.
fn resolve<'j>(document: &'j Json, reference: &str, at: &str) -> Result<shape::Part<'j>> {
    let Some(path) = reference.strip_prefix('#').filter(|path| path.is_empty() || path.starts_with('/')) else {
        let problem = format!("$ref \"{}\": only references into the same document (#/…) are read", shown(reference));
        return Err(Error::Unsupported(format!("JSON schema, #{}: {problem}", shown(at))));
    };
    let mut node = document;
    for step in path.split('/').skip(1) {
        let step = unescaped(step);
        let next = match node {
            Json::Array(items) => step.parse::<usize>().ok().and_then(|index| items.get(index)),
            _ => node.get(&step),
        };
        let missing = || refused(at, format!("$ref \"{}\": there is no \"{}\"", shown(reference), shown(&step)));
        node = next.ok_or_else(missing)?;
    }
    Ok(shape::Part::new(node, path))
}

fn unescaped(step: &str) -> String {
    let bytes = step.as_bytes();
    let (mut out, mut i) = (Vec::new(), 0);
    while let Some(&byte) = bytes.get(i) {
        let code = bytes.get(i + 1..i + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| byte == b'%') {
            Some(code) => {
                out.push(code);
                i += 3;
            }
            None => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).replace("~1", "/").replace("~0", "~")
}
