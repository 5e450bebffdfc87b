//! A candidate: a token that may still be drawn, and the order of candidates.

use super::select::key;
use crate::Token;

/// A token that may still be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: Token,
    /// Its logit, after biases and penalties, before temperature.
    pub logit: f32,
}

impl Candidate {
    pub(super) fn key(self) -> u64 {
        key(self.token, self.logit)
    }
}
