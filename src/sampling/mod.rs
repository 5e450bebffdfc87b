//! From a row of logits to a token.
//!
//! A [`Chain`] is data: an ordered list of [`ChainStep`]s with a text form. A [`Sampler`] runs one chain for one stream
//! and holds every buffer it will need. Each kind of step has a file in `steps/` with its host form.
//!
//! A device may follow a chain, or its first part ([`crate::backend::SampleSpec::split`]): then it hands over the
//! candidates that part left, and the sampler goes on from there ([`Sampler::resume`]) to the same token. Where the
//! part a device can follow has no step that bounds the candidates (top-k), the whole chain runs here.
//!
//! Invariants of all host forms:
//! * A candidate is a token whose logit is above -inf. Candidates are never sorted as a whole; where few are left they
//!   stand in a short list, in ascending id order, and the row is not looked at again.
//! * The order of candidates is (logit descending, id ascending). Every truncation keeps a prefix of that order, so
//!   ties go to the lower id everywhere.
//! * Probabilities are integers ([`weigh`]), so their sums do not depend on the order of adding: the same token comes
//!   out whatever representation, vector width or set of removed candidates a row was sampled through.
//! * Randomness is a function of (seed, position, draw index) alone ([`random`]).

mod candidate;
mod chain;
mod draw;
#[cfg(test)]
mod oracle_tests;
mod params;
mod passes;
mod pool;
pub mod random;
mod sampler;
mod select;
mod steps;
pub mod weigh;

pub use crate::backend::{ChainStep, Legal};
pub use candidate::Candidate;
pub use chain::Chain;
pub use params::Params;
pub use sampler::{MAX_KEPT_CANDIDATES, Sampled, Sampler, legal_of};
pub use steps::penalties::MAX_LAST_N;
