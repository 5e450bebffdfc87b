//! The steps of a chain on the host, a file each. A step is a row in [`Stage::new`], which checks its numbers, and one
//! in [`Stage::apply`].

mod adaptive_p;
mod dry;
mod dynamic_temperature;
pub(super) mod greedy;
mod infill;
mod logit_bias;
pub(super) mod min_p;
mod mirostat;
pub(super) mod penalties;
pub(super) mod temperature;
pub(super) mod top_k;
pub(super) mod top_n_sigma;
pub(super) mod top_p;
pub(super) mod typical;
pub(super) mod xtc;

use super::breakers::breakers_of;
use super::mt19937::Mt19937;
use super::pool::Pool;
use super::random;
use crate::backend::{Breakers, ChainStep, Generator, Legal, MAX_XTC_THRESHOLD, xtc_limit};
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use adaptive_p::AdaptiveP;
use dry::Dry;
use infill::Infill;
use mirostat::Mirostat;
use penalties::Penalties;
use std::sync::Arc;

/// A step of the chain, with what it has to remember.
pub(super) struct Stage {
    pub step: ChainStep,
    memory: Memory,
}

/// What a step remembers of the stream, or needs besides its numbers.
enum Memory {
    Nothing,
    Penalties(Penalties),
    Dry(Dry),
    Mirostat(Mirostat),
    AdaptiveP(AdaptiveP),
    Infill(Infill),
    /// Of a step that draws, with llama.cpp's generator.
    Generator(Box<Mt19937>),
}

/// What a chain is made for.
pub(super) struct Setup<'a> {
    pub n_vocab: usize,
    pub vocab: Option<&'a Arc<Vocab>>,
    pub seed: u64,
    pub generator: Generator,
}

impl Setup<'_> {
    /// # Errors
    /// [`Error::InvalidArgument`] where there is none.
    fn vocab(&self, what: &str) -> Result<&Arc<Vocab>> {
        self.vocab.ok_or_else(|| Error::InvalidArgument(format!("{what} needs the vocabulary, which is not given")))
    }

    /// The breakers of DRY as tokens.
    fn breakers(&self, texts: &[String]) -> Result<Option<Arc<Breakers>>> {
        if texts.is_empty() {
            return Ok(None);
        }
        breakers_of(self.vocab("a sequence breaker of DRY")?, texts).map(Some)
    }
}

impl Stage {
    /// The place of the token trie's mask.
    pub fn mask() -> Stage {
        Stage { step: ChainStep::Trie, memory: Memory::Nothing }
    }

    /// The place from which on a device that has another generator cannot follow.
    pub fn rng() -> Stage {
        Stage { step: ChainStep::Rng(Generator::Mt19937), memory: Memory::Nothing }
    }

    /// Whether it needs random numbers.
    pub fn draws(&self) -> bool {
        matches!(self.step, ChainStep::Xtc { .. }) || self.step.selects()
    }

    /// A step made ready; `None` for one that changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a step that cannot be used, [`Error::OutOfMemory`].
    pub fn new(step: &ChainStep, setup: &Setup<'_>) -> Result<Option<Stage>> {
        let mut memory = Memory::Nothing;
        let n_vocab = setup.n_vocab;
        let step = match *step {
            ChainStep::LogitBias(ref biases) => {
                logit_bias::check(biases, n_vocab)?;
                Some(step.clone())
            }
            ChainStep::Penalties { last_n, repeat, frequency, presence } => {
                memory = Memory::Penalties(Penalties::new(last_n, repeat, frequency, presence)?);
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
                if setup.generator == Generator::Mt19937 {
                    memory = Memory::Generator(Box::new(Mt19937::new(setup.seed as u32)));
                }
                (probability > 0.0 && threshold <= MAX_XTC_THRESHOLD).then(|| step.clone())
            }
            ChainStep::Dry(ref dry, _) if dry::acts(dry)? => {
                let breakers = setup.breakers(&dry.breakers)?;
                memory = Memory::Dry(Dry::new(dry.clone(), breakers.clone())?);
                Some(ChainStep::Dry(dry.clone(), breakers))
            }
            ChainStep::Dry(..) => None,
            ChainStep::Mirostat { tau, eta, m } => {
                memory = Memory::Mirostat(Mirostat::new(tau, eta, Some((m as usize, n_vocab)))?);
                Some(step.clone())
            }
            ChainStep::MirostatV2 { tau, eta } => {
                memory = Memory::Mirostat(Mirostat::new(tau, eta, None)?);
                Some(step.clone())
            }
            ChainStep::AdaptiveP { target, decay } => {
                memory = Memory::AdaptiveP(AdaptiveP::new(target, decay, n_vocab)?);
                Some(step.clone())
            }
            ChainStep::Infill => {
                memory = Memory::Infill(Infill::new(setup.vocab("infill")?.clone())?);
                Some(step.clone())
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
            ChainStep::Draw | ChainStep::Rng(_) => None,
            ChainStep::Ban(_) | ChainStep::HandOver(_) => {
                return Err(Error::InvalidArgument("it is for devices alone".into()));
            }
        };
        Ok(step.map(|step| Stage { step, memory }))
    }

    /// Does what the step does to the candidates. Seed and position are those of the draw.
    ///
    /// # Errors
    /// As [`Pool::scan`].
    pub fn apply(&mut self, pool: &mut Pool<'_>, legal: Option<Legal<'_>>, (seed, position): (u64, u32)) -> Result<()> {
        match (&self.step, legal) {
            (ChainStep::LogitBias(biases), _) => logit_bias::apply(pool, biases),
            (ChainStep::Penalties { .. } | ChainStep::Dry(..), _) => match &mut self.memory {
                Memory::Penalties(penalties) => penalties.apply(pool),
                Memory::Dry(dry) => dry.apply(pool),
                _ => {}
            },
            (ChainStep::Trie, Some(legal)) => pool.restrict(legal.tokens)?,
            (ChainStep::Trie, None) => {}
            (_, Some(Legal { greedy: true, .. })) => {}
            (&ChainStep::TopK(k), _) => top_k::apply(pool, k.max(0) as usize)?,
            (&ChainStep::TopP { p, min_keep }, _) => top_p::apply(pool, p, min_keep as usize)?,
            (&ChainStep::MinP { p, min_keep }, _) => min_p::apply(pool, p, min_keep as usize)?,
            (&ChainStep::TopNSigma(n), _) => top_n_sigma::apply(pool, n)?,
            (&ChainStep::Typical { p, min_keep }, _) => typical::apply(pool, p, min_keep as usize)?,
            (&ChainStep::Xtc { probability, threshold, min_keep }, _) => {
                let memory = &mut self.memory;
                let acts = || match memory {
                    Memory::Generator(generator) => f64::from(generator.float()) <= f64::from(probability),
                    _ => xtc_limit(probability).is_some_and(|limit| random::bits(seed, position, random::XTC) <= limit),
                };
                xtc::apply(pool, threshold, min_keep as usize, acts)?
            }
            (&ChainStep::Temperature(temperature), _) => temperature::apply(pool, temperature)?,
            (&ChainStep::DynamicTemperature { temperature, range, exponent }, _) => {
                dynamic_temperature::apply(pool, temperature, range, exponent)?
            }
            (ChainStep::Greedy, _) => greedy::apply(pool)?,
            (
                ChainStep::Mirostat { .. }
                | ChainStep::MirostatV2 { .. }
                | ChainStep::AdaptiveP { .. }
                | ChainStep::Infill,
                _,
            ) => match &mut self.memory {
                Memory::Mirostat(mirostat) => mirostat.apply(pool)?,
                Memory::AdaptiveP(adaptive) => adaptive.apply(pool)?,
                Memory::Infill(infill) => infill.apply(pool, legal.is_some())?,
                _ => {}
            },
            // The end of every chain, the choice of the generator; the others are a device's own.
            (ChainStep::Draw | ChainStep::Rng(_) | ChainStep::Ban(_) | ChainStep::HandOver(_), _) => {}
        }
        Ok(())
    }

    /// This token of this probability was drawn from the pool.
    pub fn drawn(&mut self, pool: &Pool<'_>, token: Token, probability: f32) {
        match &mut self.memory {
            Memory::Mirostat(mirostat) => mirostat.drawn(probability),
            Memory::AdaptiveP(adaptive) => adaptive.drawn(pool, token),
            _ => {}
        }
    }

    /// Whether it changes with each row that it is applied to.
    pub fn learns(&self) -> bool {
        matches!(self.memory, Memory::Mirostat(_) | Memory::AdaptiveP(_) | Memory::Generator(_))
    }

    /// Appends a token of the stream to the history.
    pub fn accept(&mut self, token: Token) {
        match &mut self.memory {
            Memory::Penalties(penalties) => penalties.accept(token),
            Memory::Dry(dry) => dry.accept(token),
            Memory::AdaptiveP(adaptive) => adaptive.accept(token),
            _ => {}
        }
    }

    /// Clears the windows. What was learnt from drawn tokens stays.
    pub fn clear(&mut self) {
        match &mut self.memory {
            Memory::Penalties(penalties) => penalties.reset(),
            Memory::Dry(dry) => dry.reset(),
            _ => {}
        }
    }

    /// Makes everything as it was at first. The seed is the sampler's.
    pub fn reset(&mut self, seed: u64) {
        self.clear();
        match &mut self.memory {
            Memory::Mirostat(mirostat) => mirostat.reset(),
            Memory::AdaptiveP(adaptive) => adaptive.reset(),
            Memory::Generator(generator) => **generator = Mt19937::new(seed as u32),
            _ => {}
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
