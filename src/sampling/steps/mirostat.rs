//! Mirostat: keeps so many of the most probable candidates that the surprise of what is drawn, in bits, comes to be tau
//! (Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity",
//! <https://arxiv.org/abs/2007.14966>).
//!
//! The state is the bound mu, at first 2 tau. After each draw it moves by eta times how far the surprise was from tau.
//! Version 1 estimates the exponent of the candidates' distribution from the best m and keeps the k that such a
//! distribution needs for a surprise of mu; version 2 keeps the candidates whose surprise is at most mu.

use std::f64::consts::LN_2;

use super::{greedy, top_k};
use crate::sampling::listed::Listed;
use crate::sampling::pool::{LIST, Pool};
use crate::sampling::select::{key, key_logit};
use crate::sampling::weigh::ONE;
use crate::{Error, Result, Token};

/// Mirostat of one stream.
pub(super) struct Mirostat {
    tau: f32,
    eta: f32,
    mu: f32,
    /// Of version 1: the number of candidates that it looks at, and that of tokens.
    first: Option<(usize, usize)>,
}

impl Mirostat {
    /// `first` has the m of version 1 and the size of the vocabulary.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the number that is out of range.
    pub(super) fn new(tau: f32, eta: f32, first: Option<(usize, usize)>) -> Result<Mirostat> {
        for (name, value) in [("tau", tau), ("eta", eta)] {
            if !value.is_finite() {
                return Err(Error::InvalidArgument(format!("Mirostat's {name} {value} is not a finite number")));
            }
        }
        if let Some((m, _)) = first
            && !(2..=LIST).contains(&m)
        {
            return Err(Error::InvalidArgument(format!("Mirostat's m is {m}: 2 to {LIST} are allowed")));
        }
        Ok(Mirostat { tau, eta, mu: 2.0 * tau, first })
    }

    pub(super) fn reset(&mut self) {
        self.mu = 2.0 * self.tau;
    }

    /// # Errors
    /// As [`Pool::scan`].
    pub(super) fn apply(&self, pool: &mut Pool<'_>) -> Result<()> {
        match self.first {
            Some((m, n_vocab)) => {
                let keep = self.count(pool, m, n_vocab)?;
                top_k::apply(pool, keep)
            }
            None => self.surprising(pool),
        }
    }

    /// How many candidates version 1 keeps.
    fn count(&self, pool: &mut Pool<'_>, m: usize, n_vocab: usize) -> Result<usize> {
        top_k::best(pool, m)?;
        let (mut products, mut squares) = (0.0f32, 0.0f32);
        for (pair, at) in pool.buffers.keys.windows(2).zip(0u16..) {
            let t = (f32::from(at + 2) / f32::from(at + 1)).ln();
            // The logarithm of the ratio of two probabilities.
            let b = (key_logit(pair[0]) - key_logit(pair[1])) * pool.scale;
            products += t * b;
            squares += t * t;
        }
        let exponent = products / squares;
        let over = exponent - 1.0;
        let k = ((over * self.mu.exp2()) / (1.0 - (n_vocab as f32).powf(-over))).powf(1.0 / exponent);
        // One candidate alone, equal ones and an exponent of 1 make a number that is none; llama.cpp then keeps one, as
        // it does for a k above what its integers hold.
        Ok(if k.is_finite() && k < 2_147_483_648.0 { (k as usize).max(1) } else { 1 })
    }

    /// Keeps the candidates of version 2, of which the best is one in any case.
    fn surprising(&self, pool: &mut Pool<'_>) -> Result<()> {
        pool.scan()?;
        pool.list_alive();
        if pool.buffers.llama {
            let listed = Listed::sorted(pool);
            let list = &pool.buffers.arranged;
            let kept = list.iter().take_while(|one| -listed.probability(one).log2() <= self.mu).count();
            if let Some(last) = list.get(kept.saturating_sub(1)).map(|one| one.key()) {
                pool.cut(last);
            }
            return Ok(());
        }
        // The surprise of a candidate is ln Z + d, with the distance d below the best logit.
        let farthest = f64::from(self.mu) * LN_2 - (pool.mass() as f64 / ONE as f64).ln();
        if farthest < 0.0 {
            return greedy::apply(pool);
        }
        let lowest = f64::from(pool.best()) - farthest / f64::from(pool.scale);
        pool.cut(key(Token::MAX, (lowest as f32).max(f32::MIN)));
        Ok(())
    }

    /// A candidate of this probability among those kept was drawn.
    pub(super) fn drawn(&mut self, probability: f32) {
        self.mu -= self.eta * (-probability.log2() - self.tau);
    }
}
