//! How the rows of a text's tokens become one row.

use crate::{Error, Result};
use std::str::FromStr;

/// How the hidden rows of a text's tokens become one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Not at all: the row of every token.
    #[default]
    None,
    /// Their mean, special tokens included.
    Mean,
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
    /// Scores by the model's classifier, a number for each of its labels.
    Rank,
}

impl Pooling {
    /// Every kind, in the order of the numbers of the key `pooling_type`.
    pub const ALL: [Pooling; 5] = [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::Rank];

    /// The accepted names, in the same order.
    pub const NAMES: [&'static str; 5] = ["none", "mean", "cls", "last", "rank"];

    /// The name, one of [`Pooling::NAMES`].
    pub fn name(self) -> &'static str {
        Pooling::NAMES[self as usize]
    }
}

impl FromStr for Pooling {
    type Err = Error;

    fn from_str(text: &str) -> Result<Pooling> {
        let known = Pooling::ALL.into_iter().find(|kind| kind.name() == text);
        known.ok_or_else(|| Error::InvalidArgument(format!("Pooling `{text}` (known: {})", Pooling::NAMES.join(", "))))
    }
}
