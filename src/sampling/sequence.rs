//! The order of the samplers that options make a chain of, as llama.cpp's tools write it: names joined by `;`, or a
//! letter for each.
//!
//! The list says which samplers there are and in which order; their numbers are options of their own. A name may be
//! repeated: then the sampler runs twice.

use std::fmt;
use std::str::FromStr;

use crate::gguf::shown;
use crate::{Error, Result};

/// A sampler of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // they are named as the steps of a chain
pub enum Kind {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    Typical,
    TopP,
    MinP,
    Xtc,
    Temperature,
    Infill,
    AdaptiveP,
}

/// Every sampler with its name and letter.
const KINDS: [(Kind, &str, char); 11] = [
    (Kind::Penalties, "penalties", 'e'),
    (Kind::Dry, "dry", 'd'),
    (Kind::TopNSigma, "top_n_sigma", 's'),
    (Kind::TopK, "top_k", 'k'),
    (Kind::Typical, "typ_p", 'y'),
    (Kind::TopP, "top_p", 'p'),
    (Kind::MinP, "min_p", 'm'),
    (Kind::Xtc, "xtc", 'x'),
    (Kind::Temperature, "temperature", 't'),
    (Kind::Infill, "infill", 'i'),
    (Kind::AdaptiveP, "adaptive_p", 'a'),
];

/// Other names, without `-` and `_`.
const ALIASES: [(&str, Kind); 4] =
    [("nucleus", Kind::TopP), ("temp", Kind::Temperature), ("typ", Kind::Typical), ("typicalp", Kind::Typical)];

/// An order of samplers. The default is llama.cpp's, of the first nine kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// The samplers, first applied first.
    pub kinds: Vec<Kind>,
}

impl Default for Sequence {
    fn default() -> Sequence {
        Sequence { kinds: KINDS[..9].iter().map(|one| one.0).collect() }
    }
}

impl Kind {
    /// The sampler with this name, in any case, with `-` for `_` or without.
    fn named(name: &str) -> Option<Kind> {
        let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
        let name = plain(name);
        let kind = KINDS.iter().find(|one| plain(one.1) == name).map(|one| one.0);
        kind.or_else(|| ALIASES.iter().find(|one| one.0 == name).map(|one| one.1))
    }
}

impl Sequence {
    /// The order that a letter for each sampler writes, such as `edskypmxt`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the letter that is none.
    pub fn of_letters(text: &str) -> Result<Sequence> {
        let kind = |letter: char| {
            KINDS.iter().find(|one| one.2 == letter).map(|one| one.0).ok_or_else(|| {
                let known: String = KINDS.iter().map(|one| one.2).collect();
                let letter = shown(&letter.to_string()).to_string();
                Error::InvalidArgument(format!("Sampler order: unknown letter `{letter}`; known are {known}"))
            })
        };
        Ok(Sequence { kinds: text.chars().map(kind).collect::<Result<_>>()? })
    }

    /// The order that these names make, without those that are unknown, which are returned.
    pub(super) fn of_known(text: &str) -> (Sequence, Vec<&str>) {
        let names = || text.split(';').map(str::trim).filter(|name| !name.is_empty());
        let kinds = names().filter_map(Kind::named).collect();
        (Sequence { kinds }, names().filter(|name| Kind::named(name).is_none()).collect())
    }
}

impl FromStr for Sequence {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidArgument`] naming the sampler that is unknown.
    fn from_str(text: &str) -> Result<Sequence> {
        match Sequence::of_known(text) {
            (sequence, unknown) if unknown.is_empty() => Ok(sequence),
            (_, unknown) => {
                let known: Vec<&str> = KINDS.iter().map(|one| one.1).collect();
                let name = shown(unknown[0]).to_string();
                Err(Error::InvalidArgument(format!("Sampler order: unknown `{name}`; known are {}", known.join(", "))))
            }
        }
    }
}

/// The names joined by `;`.
impl fmt::Display for Sequence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, kind) in self.kinds.iter().enumerate() {
            let name = KINDS.iter().find(|one| one.0 == *kind).map_or("", |one| one.1);
            write!(out, "{}{name}", if index == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}
