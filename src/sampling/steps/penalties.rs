//! Penalties: the logits of tokens that occur in a window of the last tokens are lowered. The repeat penalty is that of
//! CTRL (Keskar et al., <https://arxiv.org/abs/1909.05858>) with negative logits multiplied; frequency and presence
//! penalty are those of OpenAI's API.
//!
//! Invariant: `counts` holds exactly the tokens in the window, ascending, each with its number of occurrences.

use std::collections::VecDeque;

use crate::sampling::pool::Pool;
use crate::{Error, Result, Token};

/// The largest window in tokens.
pub const MAX_LAST_N: i32 = 1 << 20;

/// The penalties of one stream, with the tokens of their window.
pub(super) struct Penalties {
    repeat: f32,
    frequency: f32,
    presence: f32,
    last_n: usize,
    window: VecDeque<Token>,
    counts: Vec<(Token, u32)>,
}

impl Penalties {
    /// # Errors
    /// [`Error::InvalidArgument`] naming the number that is out of range.
    pub(super) fn new(last_n: i32, repeat: f32, frequency: f32, presence: f32) -> Result<Penalties> {
        if last_n > MAX_LAST_N {
            return Err(Error::InvalidArgument(format!("Penalty window {last_n} is above {MAX_LAST_N} tokens")));
        }
        if !(repeat.is_finite() && repeat > 0.0) {
            return Err(Error::InvalidArgument(format!("Repeat penalty {repeat} is not a number above 0")));
        }
        for (name, value) in [("Frequency", frequency), ("Presence", presence)] {
            if !value.is_finite() {
                return Err(Error::InvalidArgument(format!("{name} penalty {value} is not a finite number")));
            }
        }
        let last_n = last_n.max(0) as usize;
        Ok(Penalties {
            repeat,
            frequency,
            presence,
            last_n,
            window: VecDeque::with_capacity(last_n),
            counts: Vec::with_capacity(last_n),
        })
    }

    pub(super) fn accept(&mut self, token: Token) {
        if self.last_n == 0 {
            return;
        }
        if self.window.len() == self.last_n
            && let Some(oldest) = self.window.pop_front()
            && let Ok(at) = self.counts.binary_search_by_key(&oldest, |one| one.0)
        {
            self.counts[at].1 -= 1;
            if self.counts[at].1 == 0 {
                self.counts.remove(at);
            }
        }
        self.window.push_back(token);
        match self.counts.binary_search_by_key(&token, |one| one.0) {
            Ok(at) => self.counts[at].1 += 1,
            Err(at) => self.counts.insert(at, (token, 1)),
        }
    }

    pub(super) fn reset(&mut self) {
        self.window.clear();
        self.counts.clear();
    }

    pub(in crate::sampling) fn apply(&self, pool: &mut Pool<'_>) {
        pool.keep_order();
        let temperature = 1.0 / pool.scale;
        for &(token, count) in &self.counts {
            let loss = (count as f32 * self.frequency + self.presence) * temperature;
            pool.adjust(token, |logit| {
                let repeated = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
                repeated - loss
            });
        }
    }
}
