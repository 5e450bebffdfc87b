//! Sampling on a device as plain data: the chain, the mask, the result.
//!
//! The steps are those of the host's sampler and choose the same token. Where a device cannot run a whole chain,
//! [`SampleSpec::split`] returns the first part that it can run, and the host runs the rest on the few candidates that
//! part left.

use super::batch::MAX_LISTED;
use super::chain::ChainStep;
use crate::{Error, Result, Token};

/// A chain with its seed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SampleSpec {
    /// The steps, in the order of their application.
    pub steps: Vec<ChainStep>,
    /// The seed of the draws.
    pub seed: u64,
    /// The number of most probable candidates to report with each token, at most 64.
    pub candidates: u32,
}

impl SampleSpec {
    /// The part of the chain for a device that can run the first `supported` steps and return up to `most` candidates:
    /// the chain to give it, and how many steps of this one that covers. It is the whole chain, or a first part that
    /// leaves a bounded number of candidates for the host. `None` where the host runs the whole chain.
    ///
    /// A part ends before a dynamic temperature: the logits that are returned are those before temperatures, and the
    /// host does not know what a device made of this one.
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

    /// Whether the host can run the chain from this step on where the mask is greedy ([`Legal::greedy`]). The device
    /// has left only the best legal token then, which later biases and penalties could have changed.
    pub fn greedy_from(&self, step: usize) -> bool {
        !self.steps.iter().skip(step).any(ChainStep::adjusts)
    }

    /// Whether under a mask only the logits of legal tokens matter: the mask applies before every step that compares
    /// candidates.
    pub fn masks_first(&self) -> bool {
        let before = self.steps.iter().take_while(|op| **op != ChainStep::Trie);
        !self.steps.contains(&ChainStep::Trie) || !before.into_iter().any(ChainStep::truncates)
    }

    /// The chain as text, such as `+trie +top_k +top_p -penalties -dist`: `+` marks the first `followed` steps, which
    /// the device runs, `-` those of the host. The draw is named even where the chain does not; bans are not.
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

/// The part of a chain that a device runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Followed {
    /// How many steps, from the first on. After all of them the device draws; with fewer it returns the candidates that
    /// are left.
    pub steps: usize,
    /// The most candidates in a result.
    pub candidates: usize,
}

/// The tokens of a token mask, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegalTokens<'a> {
    /// These, ascending.
    List(&'a [Token]),
    /// Those whose bit is set.
    Mask {
        /// A bit for each token of the vocabulary, 32 to a word, the lowest bit first; no bit after them is set.
        bits: &'a [u32],
        /// Two masks with the same number have the same bits, so that a device can keep them.
        number: u64,
    },
}

impl LegalTokens<'_> {
    /// Whether the token is one of them.
    pub fn allows(self, token: Token) -> bool {
        match self {
            LegalTokens::List(tokens) => tokens.binary_search(&token).is_ok(),
            LegalTokens::Mask { bits, .. } => {
                let word = usize::try_from(token).ok().and_then(|id| bits.get(id / 32));
                word.is_some_and(|word| word >> (token & 31) & 1 == 1)
            }
        }
    }

    /// The smallest, once it is known that all are tokens of a vocabulary of `n_vocab`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is none, or one that the vocabulary does not have. That a list is
    /// ascending is not checked.
    pub fn first(self, n_vocab: usize) -> Result<Token> {
        let outside = |problem: String| Err(Error::InvalidArgument(problem));
        match self {
            LegalTokens::List(tokens) => match (tokens.first(), tokens.last()) {
                (Some(&first), Some(&last)) if first >= 0 && (last as usize) < n_vocab => Ok(first),
                (Some(first), Some(last)) => outside(format!(
                    "Legal tokens {first}..={last} are not all within the vocabulary of {n_vocab} tokens"
                )),
                _ => outside("The list of legal tokens is empty".into()),
            },
            LegalTokens::Mask { bits, .. } => {
                let unused = (bits.len() * 32).saturating_sub(n_vocab);
                let last = bits.last().map_or(32, |word| word.leading_zeros() as usize);
                if bits.len() != n_vocab.div_ceil(32) || last < unused {
                    let n_bits = (bits.len() * 32).saturating_sub(last);
                    return outside(format!("A mask of {n_bits} bits for a vocabulary of {n_vocab} tokens"));
                }
                match bits.iter().position(|&word| word != 0) {
                    Some(at) => Ok((at * 32) as Token + bits[at].trailing_zeros() as Token),
                    None => outside("The mask of legal tokens is empty".into()),
                }
            }
        }
    }
}

/// The token mask: the only tokens that may be drawn, and how to choose among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Legal<'a> {
    /// The tokens.
    pub tokens: LegalTokens<'a>,
    /// Choose the token with the greatest logit after biases and penalties, instead of running the rest of the chain.
    pub greedy: bool,
}

impl<'a> Legal<'a> {
    /// The mask of these tokens, ascending.
    pub fn list(tokens: &'a [Token], greedy: bool) -> Legal<'a> {
        Legal { tokens: LegalTokens::List(tokens), greedy }
    }

    /// The mask of the tokens whose bit is set; see [`LegalTokens::Mask`].
    pub fn mask(bits: &'a [u32], number: u64, greedy: bool) -> Legal<'a> {
        Legal { tokens: LegalTokens::Mask { bits, number }, greedy }
    }

    /// The logit subset to compute, given the chain's [`SampleSpec::masks_first`]; empty (all logits) where others
    /// matter too, or where the mask is one of bits or has more than [`MAX_LISTED`](super::MAX_LISTED) tokens.
    pub fn listed(&self, masks_first: bool) -> &'a [Token] {
        match self.tokens {
            LegalTokens::List(tokens) if (self.greedy || masks_first) && tokens.len() <= MAX_LISTED => tokens,
            _ => &[],
        }
    }
}

/// The result of sampling for one sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleResult {
    /// The token; -1 where none could be sampled, or where candidates are returned to the host.
    pub token: Token,
    /// Natural logarithm of `prob`.
    pub logprob: f32,
    /// The token's probability among the candidates that the chain left, 0 to 1.
    pub prob: f32,
    /// How many candidates the chain left.
    pub kept: u32,
    /// The position of the token in its sequence.
    pub position: u32,
    /// How many candidates are reported or returned to the host.
    pub reported: u32,
    /// Why there is no token, where there is none.
    pub problem: Option<SampleProblem>,
}

/// A [`SampleResult`] on the host, with room for the candidates it reports.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledRow {
    /// The sequence that sampled.
    pub sequence: u32,
    /// Its result.
    pub result: SampleResult,
    /// The most probable candidates as (token, logit, probability), as many as the chain reports. Those that are
    /// returned for the host to go on with have no order and no probability, and their logits are those before
    /// temperature.
    pub candidates: Vec<(Token, f32, f32)>,
}

impl Default for SampledRow {
    /// A row before any sampling.
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
