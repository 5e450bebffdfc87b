//! The steps of a chain on the host, a file each. A step is a row in [`Stage::new`], which checks its numbers, and one
//! in [`Stage::apply`].

mod dynamic_temperature;
pub(super) mod greedy;
mod logit_bias;
pub(super) mod min_p;
pub(super) mod penalties;
pub(super) mod temperature;
pub(super) mod top_k;
pub(super) mod top_n_sigma;
pub(super) mod top_p;
pub(super) mod typical;
pub(super) mod xtc;

use super::pool::Pool;
use super::random;
use crate::backend::{ChainStep, Legal, MAX_XTC_THRESHOLD};
use crate::{Error, Result, Token};
use penalties::Penalties;

/// A step of the chain, with what it has to remember.
pub(super) struct Stage {
    pub step: ChainStep,
    /// Of penalties alone: the tokens they look back on.
    penalties: Option<Penalties>,
}

impl Stage {
    /// The place of the token trie's mask.
    pub fn mask() -> Stage {
        Stage { step: ChainStep::Trie, penalties: None }
    }

    /// A step made ready; `None` for one that changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a step that cannot be used.
    pub fn new(step: &ChainStep, n_vocab: usize) -> Result<Option<Stage>> {
        let mut penalties = None;
        let step = match *step {
            ChainStep::LogitBias(ref biases) => {
                logit_bias::check(biases, n_vocab)?;
                Some(step.clone())
            }
            ChainStep::Penalties { last_n, repeat, frequency, presence } => {
                penalties = Some(Penalties::new(last_n, repeat, frequency, presence)?);
                Some(ChainStep::Penalties { last_n: last_n.max(0), repeat, frequency, presence })
            }
            ChainStep::TopK(k) => (k > 0).then_some(ChainStep::TopK(k)),
            ChainStep::TopP { p, .. } => {
                top_p::check(p)?;
                (p < 1.0).then(|| step.clone())
            }
            ChainStep::MinP { p, .. } => {
                min_p::check(p)?;
                (p > 0.0).then(|| step.clone())
            }
            ChainStep::TopNSigma(n) => {
                top_n_sigma::check(n)?;
                (n > 0.0).then(|| step.clone())
            }
            ChainStep::Typical { p, .. } => {
                typical::check(p)?;
                (p < 1.0).then(|| step.clone())
            }
            ChainStep::Xtc { probability, threshold, .. } => {
                xtc::check(probability, threshold)?;
                (probability > 0.0 && threshold <= MAX_XTC_THRESHOLD).then(|| step.clone())
            }
            ChainStep::Temperature(temperature) => {
                temperature::check(temperature)?;
                (temperature != 1.0).then_some(ChainStep::Temperature(temperature))
            }
            ChainStep::DynamicTemperature { temperature, range, exponent } => {
                dynamic_temperature::check(temperature, range, exponent)?;
                Some(if range > 0.0 { step.clone() } else { ChainStep::Temperature(temperature) })
            }
            ChainStep::Greedy | ChainStep::Trie => Some(step.clone()),
            ChainStep::Draw => None,
            ChainStep::Ban(_) | ChainStep::HandOver(_) => {
                return Err(Error::InvalidArgument("it is for devices alone".into()));
            }
        };
        Ok(step.map(|step| Stage { step, penalties }))
    }

    /// Does what the step does to the candidates. Seed and position are those of the draw.
    ///
    /// # Errors
    /// As [`Pool::scan`].
    pub fn apply(&self, pool: &mut Pool<'_>, legal: Option<Legal<'_>>, (seed, position): (u64, u32)) -> Result<()> {
        match (&self.step, legal) {
            (ChainStep::LogitBias(biases), _) => logit_bias::apply(pool, biases),
            (ChainStep::Penalties { .. }, _) => self.penalties.iter().for_each(|penalties| penalties.apply(pool)),
            (ChainStep::Trie, Some(legal)) => pool.restrict(legal.tokens)?,
            (ChainStep::Trie, None) => {}
            (_, Some(Legal { greedy: true, .. })) => {}
            (&ChainStep::TopK(k), _) => top_k::apply(pool, k.max(0) as usize)?,
            (&ChainStep::TopP { p, min_keep }, _) => top_p::apply(pool, p, min_keep as usize)?,
            (&ChainStep::MinP { p, min_keep }, _) => min_p::apply(pool, p, min_keep as usize)?,
            (&ChainStep::TopNSigma(n), _) => top_n_sigma::apply(pool, n)?,
            (&ChainStep::Typical { p, min_keep }, _) => typical::apply(pool, p, min_keep as usize)?,
            (&ChainStep::Xtc { probability, threshold, min_keep }, _) => {
                let random = random::bits(seed, position, random::XTC);
                xtc::apply(pool, (probability, threshold), min_keep as usize, random)?
            }
            (&ChainStep::Temperature(temperature), _) => temperature::apply(pool, temperature)?,
            (&ChainStep::DynamicTemperature { temperature, range, exponent }, _) => {
                dynamic_temperature::apply(pool, temperature, range, exponent)?
            }
            (ChainStep::Greedy, _) => greedy::apply(pool)?,
            // The end of every chain; the others are a device's own.
            (ChainStep::Draw | ChainStep::Ban(_) | ChainStep::HandOver(_), _) => {}
        }
        Ok(())
    }

    /// Appends a token of the stream to the history.
    pub fn accept(&mut self, token: Token) {
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
    }

    /// Clears the history.
    pub fn reset(&mut self) {
        if let Some(penalties) = &mut self.penalties {
            penalties.reset();
        }
    }
}

/// Drops truncations directly before an argmax, of those that keep the best candidate.
pub(super) fn skip_before_argmax(stages: &mut Vec<Stage>) {
    let is_argmax = |step: &ChainStep| match *step {
        ChainStep::Greedy => true,
        ChainStep::Temperature(temperature) => temperature <= 0.0,
        _ => false,
    };
    let is_truncation = |step: &ChainStep| {
        matches!(step, ChainStep::TopK(_) | ChainStep::TopP { .. } | ChainStep::MinP { .. } | ChainStep::TopNSigma(_))
    };
    let useless = |pair: &[Stage]| is_truncation(&pair[0].step) && is_argmax(&pair[1].step);
    while let Some(at) = stages.windows(2).position(useless) {
        stages.remove(at);
    }
}
