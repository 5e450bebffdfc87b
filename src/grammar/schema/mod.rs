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
mod gather;
mod llama;
mod members;
mod multiples;
mod names;
mod numbers;
mod options;
mod places;
mod shape;

use crate::gguf::shown;
use crate::grammar::json::Json;
use crate::{Error, Result};
pub use options::{Keywords, Options};

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
