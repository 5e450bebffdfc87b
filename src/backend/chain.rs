//! The steps of a sampler chain as data. The host's sampler and a device run the same steps and choose the same token.
//!
//! What a step does to the candidates, and where the token trie's mask applies, is defined here for both.

use crate::Token;
use std::fmt;

/// One step of a chain.
#[derive(Debug, Clone, PartialEq)]
pub enum ChainStep {
    /// Removes tokens, except those that a mask allows; ids outside the vocabulary are ignored. Not part of a chain's
    /// text: banned tokens are an argument of each [`Sampler::sample`](crate::sampling::Sampler::sample).
    Ban(Vec<Token>),
    /// Adds numbers to logits; -inf removes a token.
    LogitBias(Vec<(Token, f32)>),
    /// Makes the tokens among the last `last_n` less likely. A positive logit is divided by `repeat`, any other is
    /// multiplied by it (Keskar et al., "CTRL", <https://arxiv.org/abs/1909.05858>, section 4.1); then `frequency`
    /// times the token's count and `presence` once are subtracted, as in OpenAI's API. `last_n <= 0` turns the step
    /// off.
    Penalties {
        /// Length of the window in tokens.
        last_n: i32,
        /// Repeat penalty; 1 changes nothing.
        repeat: f32,
        /// Subtracted for each occurrence in the window.
        frequency: f32,
        /// Subtracted once where the token occurs in the window.
        presence: f32,
    },
    /// Keeps the k candidates with the greatest logits; k <= 0 keeps all (Fan et al., "Hierarchical Neural Story
    /// Generation", <https://arxiv.org/abs/1805.04833>).
    TopK(i32),
    /// Nucleus sampling: keeps the fewest most probable candidates whose probabilities sum to at least `p`, but at
    /// least `min_keep`; p >= 1 keeps all (Holtzman et al., "The Curious Case of Neural Text Degeneration",
    /// <https://arxiv.org/abs/1904.09751>).
    TopP {
        /// The probability that the kept candidates sum to, 0 to 1.
        p: f32,
        /// Candidates kept at least, if there are as many.
        min_keep: u32,
    },
    /// Keeps the candidates that are at least `p` times as probable as the most probable one, but at least `min_keep`;
    /// p <= 0 keeps all (Nguyen et al., "Turning Up the Heat: Min-p Sampling", <https://arxiv.org/abs/2407.01082>).
    MinP {
        /// Threshold relative to the greatest probability, 0 to 1.
        p: f32,
        /// Candidates kept at least, if there are as many.
        min_keep: u32,
    },
    /// Divides the logits; 0 and below keep only the candidate with the greatest logit.
    Temperature(f32),
    /// Divides the logits by a temperature from `temperature - range` (at least 0) to `temperature + range`, which
    /// grows with the entropy of the candidates' probabilities: see [`crate::sampling`], `dynamic_temperature.rs`.
    /// Changes nothing where one candidate is left.
    DynamicTemperature {
        /// Middle of the range.
        temperature: f32,
        /// Half the width of the range; 0 and below make it a plain temperature.
        range: f32,
        /// Power to which the normalised entropy is raised.
        exponent: f32,
    },
    /// Chooses the candidate with the greatest logit. Ends the chain.
    Greedy,
    /// Draws a candidate by its probability. Ends the chain; a chain that ends with neither this nor
    /// [`ChainStep::Greedy`] also draws.
    Draw,
    /// The place at which the token trie's mask applies; without this step the mask applies before the first step that
    /// compares candidates.
    Trie,
    /// Only for a device that runs the first part of a chain: returns the candidates that are left, at most so many, to
    /// the host and draws nothing; position and history stay as they are. Ends the part. An earlier step must leave no
    /// more candidates than that. The mask applies only where [`ChainStep::Trie`] names its place.
    HandOver(u32),
}

impl ChainStep {
    /// Whether the step compares candidates with one another, and so may remove some.
    pub fn truncates(&self) -> bool {
        match self {
            ChainStep::Ban(_) | ChainStep::LogitBias(_) | ChainStep::Penalties { .. } | ChainStep::Trie => false,
            ChainStep::Temperature(temperature) => *temperature <= 0.0,
            // A dynamic temperature removes none, but depends on all of them.
            _ => true,
        }
    }

    /// Whether it changes the logits of single tokens.
    pub fn adjusts(&self) -> bool {
        matches!(self, ChainStep::Ban(_) | ChainStep::LogitBias(_) | ChainStep::Penalties { .. })
    }

    /// Whether it must be the last step.
    pub fn ends(&self) -> bool {
        matches!(self, ChainStep::Greedy | ChainStep::Draw | ChainStep::HandOver(_))
    }

    /// The most candidates that the step leaves, where the step alone bounds them.
    pub(super) fn leaves(&self) -> Option<u32> {
        match *self {
            ChainStep::TopK(k) => u32::try_from(k).ok().filter(|&k| k > 0),
            ChainStep::Temperature(temperature) => (temperature <= 0.0).then_some(1),
            _ => None,
        }
    }

    /// The name in a chain's text.
    pub fn name(&self) -> &'static str {
        match self {
            ChainStep::Ban(_) => "ban",
            ChainStep::LogitBias(_) => "logit_bias",
            ChainStep::Penalties { .. } => "penalties",
            ChainStep::TopK(_) => "top_k",
            ChainStep::TopP { .. } => "top_p",
            ChainStep::MinP { .. } => "min_p",
            ChainStep::Temperature(_) => "temp",
            ChainStep::DynamicTemperature { .. } => "dynatemp",
            ChainStep::Greedy => "greedy",
            ChainStep::Draw => "dist",
            ChainStep::Trie => "trie",
            ChainStep::HandOver(_) => "hand_over",
        }
    }
}

/// The index of the step before which the mask applies: the first step that truncates, else the end of the chain.
/// `None` where the chain names the place itself, or ends with [`ChainStep::HandOver`].
pub fn mask_place(steps: &[ChainStep]) -> Option<usize> {
    if steps.contains(&ChainStep::Trie) || matches!(steps.last(), Some(ChainStep::HandOver(_))) {
        return None;
    }
    Some(steps.iter().position(ChainStep::truncates).unwrap_or(steps.len()))
}

/// The step in a chain's text.
impl fmt::Display for ChainStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            ChainStep::LogitBias(biases) => {
                for (index, (token, bias)) in biases.iter().enumerate() {
                    write!(out, "{}{token}:{bias}", if index == 0 { "logit_bias=" } else { "," })?;
                }
                Ok(())
            }
            ChainStep::Penalties { last_n, repeat, frequency, presence } => {
                write!(out, "{name}={last_n},{repeat},{frequency},{presence}")
            }
            ChainStep::TopK(k) => write!(out, "{name}={k}"),
            ChainStep::TopP { p, min_keep: 0 } | ChainStep::MinP { p, min_keep: 0 } => write!(out, "{name}={p}"),
            ChainStep::TopP { p, min_keep } | ChainStep::MinP { p, min_keep } => write!(out, "{name}={p},{min_keep}"),
            ChainStep::Temperature(temperature) => write!(out, "{name}={temperature}"),
            ChainStep::DynamicTemperature { temperature, range, exponent } => {
                write!(out, "{name}={temperature},{range},{exponent}")
            }
            ChainStep::Ban(_) | ChainStep::Greedy | ChainStep::Draw | ChainStep::Trie | ChainStep::HandOver(_) => {
                out.write_str(name)
            }
        }
    }
}
