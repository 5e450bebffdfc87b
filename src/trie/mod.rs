//! The token trie: which tokens may come next when the next words are one of a closed set.
//!
//! A payload lists, per *descriptor* (a closed set of words, for one place in the reply), the token sequences of its
//! *leaves* (the words). It is parsed strictly ([`Trie::parse`]), compiled to flat arrays without any knowledge of a
//! vocabulary, and shared by the process ([`cache`]). A [`TrieState`] walks one compiled trie for one stream. [`build`]
//! makes the payload from names.
//!
//! Invariants: a compiled trie never changes; nodes are numbered parents first; the children of a node are in ascending
//! token order; a state transition allocates nothing and never loses the constraint silently.

mod build;
pub mod cache;
mod candidates;
mod compile;
mod payload;
mod saved;
mod spelling;
mod state;

pub use build::{Built, Shape, Surroundings, build, build_unless};
pub use candidates::{Candidate, Masked, Sieve};
pub use compile::{Descriptor, Node, Trie};
pub use payload::{MAX_DESCRIPTORS, MAX_LEAVES, MAX_NODES, MAX_PAYLOAD_BYTES, MAX_TOKENS};
pub use saved::SavedState;
pub use state::{Accept, TrieState};

use crate::{Error, Result};

/// How a token is chosen inside a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The child with the highest logit after biases and penalties.
    Greedy = 0,
    /// Temperature and truncations over the children only, then the draw.
    Sampled = 1,
    /// Every leaf is scored as a whole and the most probable one is taken.
    ScoreLeaves = 2,
}

impl Mode {
    /// The mode with this number, which is the same in every language.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is none.
    pub fn from_number(number: i32) -> Result<Self> {
        match number {
            0 => Ok(Mode::Greedy),
            1 => Ok(Mode::Sampled),
            2 => Ok(Mode::ScoreLeaves),
            other => {
                let problem = format!("mode is {other}, must be 0 (greedy), 1 (sampled) or 2 (score)");
                Err(Error::InvalidArgument(problem))
            }
        }
    }
}
