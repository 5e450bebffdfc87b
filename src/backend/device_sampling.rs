//! Sampling on a device as plain data: the chain, the mask, what came out.
//!
//! The steps mean what the host sampler's steps of the same names mean, to the last token. Where a device cannot follow
//! a chain to its end, [`SampleSpec::split`] says which part it can take, and the host finishes over the few candidates
//! that part left.

use super::batch::MAX_LISTED;
use super::chain::ChainStep;
use crate::Token;

/// A chain with its seed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SampleSpec {
    /// The steps, first applied first.
    pub steps: Vec<ChainStep>,
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
        if supported >= self.steps.len() {
            return Some((self.clone(), self.steps.len()));
        }
        let dynamic = |step: &ChainStep| matches!(step, ChainStep::DynamicTemperature { .. });
        let taken = self.steps.iter().position(dynamic).map_or(supported, |at| at.min(supported));
        let part = &self.steps[..taken];
        let left = part.iter().filter_map(ChainStep::leaves).min().filter(|&left| left <= most)?;
        let steps = part.iter().cloned().chain([ChainStep::HandOver(left)]).collect();
        Some((SampleSpec { steps, seed: self.seed, candidates: 0 }, taken))
    }

    /// Whether a host that follows the chain from this step on can do so under a mask that is followed greedily: the
    /// device left the best child only, which later biases and penalties could have changed.
    pub fn greedy_from(&self, step: usize) -> bool {
        !self.steps.iter().skip(step).any(ChainStep::adjusts)
    }

    /// Whether under a mask no logits matter but those of the tokens that it allows, however they are followed: it
    /// stands before every step that compares candidates.
    pub fn masks_first(&self) -> bool {
        let before = self.steps.iter().take_while(|op| **op != ChainStep::Trie);
        !self.steps.contains(&ChainStep::Trie) || !before.into_iter().any(ChainStep::truncates)
    }

    /// The chain in words, such as `+trie +top_k +top_p -penalties -dist`: each step's name after `+` where the device
    /// follows it, which are the first so many, and after `-` where the host does. The draw, which ends every chain
    /// that does not say otherwise, is named; bans are not.
    pub fn describe(&self, followed: usize) -> String {
        let ends = self.steps.last().is_some_and(ChainStep::ends);
        let draw = (!ends).then_some(&ChainStep::Draw);
        let word = |(index, op): (usize, &ChainStep)| {
            let place = if index < followed || followed == self.steps.len() { '+' } else { '-' };
            format!("{place}{}", op.name())
        };
        let steps = self.steps.iter().chain(draw).enumerate().filter(|(_, op)| !matches!(op, ChainStep::Ban(_)));
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

/// The only tokens that may win, and how to choose among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Legal<'a> {
    /// The tokens, ascending; not empty.
    pub tokens: &'a [Token],
    /// Take the one with the greatest logit after biases and penalties, instead of the rest of the chain.
    pub greedy: bool,
}

impl<'a> Legal<'a> {
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
