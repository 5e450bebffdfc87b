//! From a row of logits to a token.
//!
//! A [`Chain`] is data: an ordered list of [`ChainStep`]s with a text form. A [`Sampler`] runs one chain for one stream
//! and holds every buffer it will need. Each kind of step has a file in `steps/` with its implementation on the host.
//!
//! A device may run a chain, or its first part ([`crate::backend::SampleSpec::split`]). After a part it returns the
//! candidates that are left, and the sampler runs the rest ([`Sampler::resume`]), with the same token as the whole
//! chain here. Where no step in the device's part bounds the number of candidates (top-k), the whole chain runs here.
//!
//! Invariants of all steps on the host:
//! * A candidate is a token whose logit is above -inf. The candidates are never sorted as a whole. Where few are left
//!   they are in a short list, in ascending id order, and the row is not read again.
//! * The order of candidates is (logit descending, id ascending). Every truncation keeps a prefix of that order, so
//!   ties go to the lower id everywhere.
//! * Probabilities are integers ([`weigh`]), so their sums do not depend on the order of additions: the token is the
//!   same for every representation, vector width and way in which candidates were removed.
//! * Randomness is a function of (seed, position, draw index) alone ([`random`]), unless a chain asks for llama.cpp's
//!   generator ([`Generator`]).
//! * What a step remembers of the stream changes when a token was drawn and when one was accepted; an error changes
//!   nothing.

mod breakers;
mod candidate;
mod chain;
mod draw;
mod listed;
mod mt19937;
#[cfg(test)]
mod oracle_tests;
mod order;
mod params;
mod passes;
mod pool;
pub mod random;
mod sampler;
mod select;
mod sequence;
mod statistics;
mod steps;
pub mod weigh;

pub use crate::backend::{ChainStep, DRY_BREAKERS, Dry, Generator, Legal, LegalTokens};
pub use candidate::Candidate;
pub use chain::Chain;
pub use params::{Mirostat, Params};
pub use sampler::{MAX_KEPT_CANDIDATES, Sampled, Sampler, legal_of, likeliest};
pub use sequence::{Kind, Sequence};
pub use steps::penalties::MAX_LAST_N;
