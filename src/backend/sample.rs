//! Sampling on a device as plain data: the chain, the mask, what came out.
//!
//! The steps mean what the host sampler's steps of the same names mean, to the last token.

use crate::Token;

/// One step of a chain. The steps mean what the host sampler's steps mean.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleOp {
    /// Takes tokens out, except those that a mask allows. Stands first where the host sampler is given banned tokens.
    Ban(Vec<Token>),
    /// Adds numbers to logits; -inf takes a token out.
    Bias(Vec<(Token, f32)>),
    /// Makes the tokens of the last `last_n` less likely.
    Penalties {
        /// Tokens looked back on.
        last_n: u32,
        /// Factor; 1 is neutral.
        repeat: f32,
        /// Loss per occurrence.
        frequency: f32,
        /// Loss for having occurred.
        presence: f32,
    },
    /// Keeps the k best; 0 keeps all.
    TopK(u32),
    /// Keeps the fewest best whose probabilities reach `p`, but at least `min_keep`; p >= 1 keeps all.
    TopP {
        /// The probability to reach.
        p: f32,
        /// Candidates kept at least, if there are as many.
        min_keep: u32,
    },
    /// Keeps those at least `p` times as probable as the best, but at least `min_keep`; p <= 0 keeps all.
    MinP {
        /// The share of the best one's probability.
        p: f32,
        /// Candidates kept at least, if there are as many.
        min_keep: u32,
    },
    /// Divides the logits; 0 and below keep only the best.
    Temperature(f32),
    /// Divides the logits by a temperature between `temperature - range` (or 0) and `temperature + range`, the higher the
    /// more evenly the candidates are spread: the entropy's share of the greatest possible one, raised to `exponent`.
    DynamicTemperature {
        /// The middle.
        temperature: f32,
        /// The distance; 0 and below make it a plain temperature.
        range: f32,
        /// The power.
        exponent: f32,
    },
    /// Takes the best. Ends the chain.
    Greedy,
    /// Draws by probability. Ends the chain; a chain that ends with neither draws all the same.
    Draw,
    /// The place of the mask; without it, that is before the first step that takes candidates out.
    Trie,
}

/// A chain with its seed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SampleSpec {
    /// The steps, first applied first.
    pub ops: Vec<SampleOp>,
    /// The seed of the draws.
    pub seed: u64,
    /// The best candidates to report with each token, at most 64.
    pub candidates: u32,
}

/// The only tokens that may win.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Children<'a> {
    /// The tokens, ascending; not empty.
    pub tokens: &'a [Token],
    /// Take the one with the greatest logit after biases and penalties, instead of the rest of the chain.
    pub greedy: bool,
}

/// What a slot found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleResult {
    /// The token; -1 where none could be sampled.
    pub token: Token,
    /// The natural logarithm of `prob`.
    pub logprob: f32,
    /// The token's probability among the candidates that the chain left.
    pub prob: f32,
    /// How many candidates the chain left.
    pub kept: u32,
    /// The position that the token was sampled for.
    pub position: u32,
    /// How many candidates are reported.
    pub reported: u32,
    /// What was wrong.
    pub problem: Option<SampleProblem>,
}

/// Why no token could be sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleProblem {
    /// The logit of this token, the first one, is NaN.
    Nan(Token),
    /// Every logit is -inf.
    NoCandidate,
}
