//! Adaptive-p, as in llama.cpp: draws near a probability, such that the drawn tokens' mean probability comes to be the
//! target.
//!
//! A candidate's logit becomes `5 - 10 x² / (1 + x)` with its distance `x = |p - a| / 0.3` from the probability a at
//! which the draw aims. That is `2 target - mean`, where the mean of the probabilities of earlier tokens loses weight
//! by the decay with every token. Only a token that was drawn and then accepted counts.
//!
//! There should be a truncation before it: all improbable candidates are at about the same distance, and there are
//! many.

use crate::sampling::pool::Pool;
use crate::{Error, Result, Token, reserve};

/// The distance at which a logit is 5 below the greatest one.
const WIDTH: f32 = 0.3;
const PEAK: f32 = 5.0;
const SHARPNESS: f32 = 10.0;
/// The greatest decay.
const MAX_DECAY: f32 = 0.99;

/// Adaptive-p of one stream.
pub(super) struct AdaptiveP {
    target: f32,
    decay: f32,
    /// The sum of earlier probabilities, and that of their weights.
    sum: f32,
    weight: f32,
    /// The probabilities of the candidates, by their place.
    before: Vec<f32>,
    /// The token drawn last and its probability, until the next token is accepted.
    drawn: Option<(Token, f32)>,
}

impl AdaptiveP {
    /// # Errors
    /// [`Error::InvalidArgument`] naming the number that is not finite, [`Error::OutOfMemory`].
    pub(super) fn new(target: f32, decay: f32, n_vocab: usize) -> Result<AdaptiveP> {
        for (name, value) in [("target", target), ("decay", decay)] {
            if !value.is_finite() {
                return Err(Error::InvalidArgument(format!("Adaptive-p's {name} {value} is not a finite number")));
            }
        }
        let before = reserve::filled(0.0, n_vocab, "probabilities of adaptive-p")?;
        let decay = decay.clamp(0.0, MAX_DECAY);
        let mut adaptive = AdaptiveP { target, decay, sum: 0.0, weight: 0.0, before, drawn: None };
        adaptive.reset();
        Ok(adaptive)
    }

    /// As if the target had been met so far.
    pub(super) fn reset(&mut self) {
        (self.sum, self.weight) = (self.target / (1.0 - self.decay), 1.0 / (1.0 - self.decay));
        self.drawn = None;
    }

    /// # Errors
    /// As [`Pool::scan`].
    pub(super) fn apply(&mut self, pool: &mut Pool<'_>) -> Result<()> {
        if self.target < 0.0 {
            return Ok(());
        }
        pool.scan()?;
        pool.keep_order();
        let target = self.target.min(1.0);
        let mean = if self.weight == 0.0 { target } else { self.sum / self.weight };
        let aim = (2.0 * target - mean).clamp(0.0, 1.0);
        let (total, best, scale) = (pool.mass() as f64, pool.best(), pool.scale);
        let before = &mut self.before;
        pool.replace(|at, logit| {
            let p = (crate::sampling::weigh::weight((logit - best) * scale) as f64 / total) as f32;
            if let Some(place) = before.get_mut(at) {
                *place = p;
            }
            let x = (p - aim).abs() / WIDTH;
            PEAK - SHARPNESS * x * x / (1.0 + x)
        });
        Ok(())
    }

    /// This token was drawn from the pool.
    pub(super) fn drawn(&mut self, pool: &Pool<'_>, token: Token) {
        let p = pool.place(token).and_then(|at| self.before.get(at)).copied();
        self.drawn = p.filter(|_| self.target >= 0.0).map(|p| (token, p));
    }

    pub(super) fn accept(&mut self, token: Token) {
        if let Some((_, p)) = self.drawn.take().filter(|drawn| drawn.0 == token) {
            self.sum = p + self.decay * self.sum;
            self.weight = 1.0 + self.decay * self.weight;
        }
    }
}
