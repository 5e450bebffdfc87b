//! Sampling on a device as plain data: the chain, the mask, what came out.
//!
//! The steps mean what the host sampler's steps of the same names mean, to the last token. Where a device cannot follow
//! a chain to its end, [`SampleSpec::split`] says which part it can take, and the host finishes over the few candidates
//! that part left.

use super::batch::MAX_LISTED;
use crate::Token;
use std::fmt;

/// One step of a chain. The steps mean what the host sampler's steps mean.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleOp {
    /// Takes tokens out, except those that a mask allows. Stands first where the host sampler is given banned tokens;
    /// what is no token of the vocabulary is ignored, as there.
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
    /// Divides the logits by a temperature between `temperature - range` (or 0) and `temperature + range`, the higher
    /// the more evenly the candidates are spread: the entropy's share of the greatest possible one, raised to
    /// `exponent`.
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
    /// Hands what is left to the host, at most so many candidates, and draws nothing: neither position nor history goes
    /// on. Ends the chain; a step in front must see to it that no more are left. The mask stands only where it is
    /// named.
    HandOver(u32),
}

impl SampleOp {
    /// The most candidates that the step leaves, if it says so by itself.
    fn leaves(&self) -> Option<u32> {
        match *self {
            SampleOp::TopK(k) => Some(k).filter(|&k| k > 0),
            SampleOp::Temperature(temperature) => (temperature <= 0.0).then_some(1),
            _ => None,
        }
    }

    /// Whether it compares candidates with one another; a mask that has no place of its own stands before it.
    pub(crate) fn truncates(&self) -> bool {
        match self {
            SampleOp::Ban(_) | SampleOp::Bias(_) | SampleOp::Penalties { .. } | SampleOp::Trie => false,
            SampleOp::Temperature(temperature) => *temperature <= 0.0,
            _ => true,
        }
    }

    /// Whether it changes single tokens' logits.
    pub(crate) fn adjusts(&self) -> bool {
        matches!(self, SampleOp::Ban(_) | SampleOp::Bias(_) | SampleOp::Penalties { .. })
    }
}

/// The name in a chain's text.
impl fmt::Display for SampleOp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            SampleOp::Ban(_) => "ban",
            SampleOp::Bias(_) => "logit_bias",
            SampleOp::Penalties { .. } => "penalties",
            SampleOp::TopK(_) => "top_k",
            SampleOp::TopP { .. } => "top_p",
            SampleOp::MinP { .. } => "min_p",
            SampleOp::Temperature(_) => "temp",
            SampleOp::DynamicTemperature { .. } => "dynatemp",
            SampleOp::Greedy => "greedy",
            SampleOp::Draw => "dist",
            SampleOp::Trie => "trie",
            SampleOp::HandOver(_) => "hand_over",
        })
    }
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

impl SampleSpec {
    /// What a device takes of the chain that can follow the first `supported` steps and hand over up to `most`
    /// candidates: the chain to give it, and how many steps of this one that covers. All, or a first part that leaves a
    /// bounded number of candidates, which are handed over. `None` where the host runs the whole chain.
    ///
    /// A part ends before a dynamic temperature: the host's is computed in double precision, and so the token is to the
    /// last the one of the whole chain on the host.
    pub fn split(&self, supported: usize, most: u32) -> Option<(SampleSpec, usize)> {
        if supported >= self.ops.len() {
            return Some((self.clone(), self.ops.len()));
        }
        let dynamic = |op: &SampleOp| matches!(op, SampleOp::DynamicTemperature { .. });
        let taken = self.ops.iter().position(dynamic).map_or(supported, |at| at.min(supported));
        let part = &self.ops[..taken];
        let left = part.iter().filter_map(SampleOp::leaves).min().filter(|&left| left <= most)?;
        let ops = part.iter().cloned().chain([SampleOp::HandOver(left)]).collect();
        Some((SampleSpec { ops, seed: self.seed, candidates: 0 }, taken))
    }

    /// Whether a host that follows the chain from this step on can do so under a mask that is followed greedily: the
    /// device left the best child only, which later biases and penalties could have changed.
    pub fn greedy_from(&self, step: usize) -> bool {
        !self.ops.iter().skip(step).any(SampleOp::adjusts)
    }

    /// Whether under a mask no logits matter but those of the tokens that it allows, however they are followed: it
    /// stands before every step that compares candidates.
    pub fn masks_first(&self) -> bool {
        let before = self.ops.iter().take_while(|op| **op != SampleOp::Trie);
        !self.ops.contains(&SampleOp::Trie) || !before.into_iter().any(SampleOp::truncates)
    }

    /// The chain in words, such as `+trie +top_k +top_p -penalties -dist`: each step's name after `+` where the device
    /// follows it, which are the first so many, and after `-` where the host does. The draw, which ends every chain
    /// that does not say otherwise, is named; bans are not.
    pub fn describe(&self, followed: usize) -> String {
        let ends = matches!(self.ops.last(), Some(SampleOp::Greedy | SampleOp::Draw | SampleOp::HandOver(_)));
        let draw = (!ends).then_some(&SampleOp::Draw);
        let word = |(index, op): (usize, &SampleOp)| {
            let place = if index < followed || followed == self.ops.len() { '+' } else { '-' };
            format!("{place}{op}")
        };
        let steps = self.ops.iter().chain(draw).enumerate().filter(|(_, op)| !matches!(op, SampleOp::Ban(_)));
        steps.map(word).collect::<Vec<_>>().join(" ")
    }
}

/// What a device follows of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Followed {
    /// Steps, the first ones. Behind the last step it draws; else it hands over the candidates that are left.
    pub steps: usize,
    /// The most candidates that come with a result.
    pub candidates: usize,
}

/// The only tokens that may win.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Children<'a> {
    /// The tokens, ascending; not empty.
    pub tokens: &'a [Token],
    /// Take the one with the greatest logit after biases and penalties, instead of the rest of the chain.
    pub greedy: bool,
}

impl<'a> Children<'a> {
    /// The tokens whose logits are all that have to be computed, for a chain that [`SampleSpec::masks_first`] or does
    /// not; none where others matter too, or where they are too many to be computed one by one.
    pub fn listed(&self, masks_first: bool) -> &'a [Token] {
        let alone = (self.greedy || masks_first) && self.tokens.len() <= MAX_LISTED;
        if alone { self.tokens } else { &[] }
    }
}

/// What a sequence found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleResult {
    /// The token; -1 where none could be sampled, or candidates are handed over.
    pub token: Token,
    /// The natural logarithm of `prob`.
    pub logprob: f32,
    /// The token's probability among the candidates that the chain left.
    pub prob: f32,
    /// How many candidates the chain left.
    pub kept: u32,
    /// The position that the token was sampled for.
    pub position: u32,
    /// How many candidates are reported or handed over.
    pub reported: u32,
    /// What was wrong.
    pub problem: Option<SampleProblem>,
}

/// A [`SampleResult`] on the host, with room for the candidates it reports.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledRow {
    /// The sequence that sampled.
    pub sequence: u32,
    /// What it found.
    pub result: SampleResult,
    /// The best candidates as (token, logit, probability), as many as the chain reports. Those that are handed over
    /// have no order and no probability, and their logits are those before temperature.
    pub candidates: Vec<(Token, f32, f32)>,
}

impl Default for SampledRow {
    /// A row that nothing was sampled from.
    fn default() -> Self {
        let problem = Some(SampleProblem::NoCandidate);
        let result = SampleResult { token: -1, logprob: 0.0, prob: 0.0, kept: 0, position: 0, reported: 0, problem };
        SampledRow { sequence: 0, result, candidates: Vec::new() }
    }
}

/// Why no token could be sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleProblem {
    /// The logit of this token, the first one, is NaN.
    Nan(Token),
    /// Every logit is -inf.
    NoCandidate,
}
