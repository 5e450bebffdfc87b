//! DRY, "don't repeat yourself": a token that would prolong a repetition loses the more, the longer the repetition is
//! (p-e-w, <https://github.com/oobabooga/text-generation-webui/pull/5677>; here as llama.cpp has it).
//!
//! A repetition of length c is: the last c tokens occurred before in the window. The token that followed there loses
//! `multiplier · base^(c - allowed)`, where c is at least the allowed length; of several repetitions the longest
//! counts. None reaches back over a breaker, and a token that is a breaker by itself loses nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use super::penalties::MAX_LAST_N;
use crate::backend;
use crate::sampling::pool::Pool;
use crate::{Error, Result, Token, reserve};

/// DRY of one stream, with the tokens of its window.
pub(super) struct Dry {
    of: backend::Dry,
    breakers: Option<Arc<backend::Breakers>>,
    window: VecDeque<Token>,
    /// The window, newest token first.
    newest: Vec<Token>,
    /// For each place in it: how many tokens from there on are those from the beginning on.
    same: Vec<u32>,
    /// Tokens that would prolong a repetition, with its length.
    found: Vec<(Token, u32)>,
}

/// [`backend::Dry::acts`], of numbers in their ranges.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the number that is out of range.
pub(super) fn acts(dry: &backend::Dry) -> Result<bool> {
    for (name, value) in [("multiplier", dry.multiplier), ("base", dry.base)] {
        if !value.is_finite() {
            return Err(Error::InvalidArgument(format!("DRY's {name} {value} is not a finite number")));
        }
    }
    if dry.last_n > MAX_LAST_N {
        return Err(Error::InvalidArgument(format!("DRY's window {} is above {MAX_LAST_N} tokens", dry.last_n)));
    }
    Ok(dry.acts())
}

impl Dry {
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn new(of: backend::Dry, breakers: Option<Arc<backend::Breakers>>) -> Result<Dry> {
        const TOKENS: &str = "tokens of DRY's window";
        let last_n = of.last_n.max(0) as usize;
        Ok(Dry {
            of,
            breakers,
            window: VecDeque::from(reserve::list(last_n, TOKENS)?),
            newest: reserve::list(last_n, TOKENS)?,
            same: reserve::list(last_n, TOKENS)?,
            found: reserve::list(last_n, TOKENS)?,
        })
    }

    pub(super) fn accept(&mut self, token: Token) {
        if self.window.len() as i64 >= i64::from(self.of.last_n) {
            self.window.pop_front();
        }
        self.window.push_back(token);
    }

    pub(super) fn reset(&mut self) {
        self.window.clear();
    }

    pub(super) fn apply(&mut self, pool: &mut Pool<'_>) {
        pool.keep_order();
        self.find();
        let temperature = 1.0 / pool.scale;
        for &(token, length) in &self.found {
            if self.breakers.as_ref().is_some_and(|breakers| breakers.is_single(token)) {
                continue;
            }
            let loss = self.of.loss(length);
            pool.adjust(token, |logit| logit - loss * temperature);
        }
    }

    /// Writes the tokens that would prolong a repetition to `found`, each with the length of the longest.
    fn find(&mut self) {
        let Dry { of, window, newest, same, found, .. } = self;
        let allowed = i64::from(of.allowed_length);
        found.clear();
        newest.clear();
        newest.extend(window.iter().rev());
        let length = newest.len();
        if length as i64 <= allowed {
            return;
        }
        let limit = self.breakers.as_ref().map_or(length, |breakers| breakers.since_last(newest));
        if (limit as i64) < allowed {
            return;
        }
        repeats(newest, same);
        for (at, &repeated) in same.iter().enumerate().skip(1) {
            let repeated = repeated.min(limit as u32);
            if i64::from(repeated) >= allowed {
                found.push((newest[at - 1], repeated));
            }
        }
        // The longest of each token.
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        found.dedup_by_key(|one| one.0);
    }
}

/// For each place of `text`: how many elements from there on are those from the beginning on (the Z-algorithm:
/// Gusfield, "Algorithms on Strings, Trees, and Sequences", section 1.4).
fn repeats(text: &[Token], same: &mut Vec<u32>) {
    same.clear();
    same.resize(text.len(), 0);
    // The stretch that is known to equal the beginning and reaches farthest.
    let (mut start, mut end) = (0, 0);
    for at in 1..text.len() {
        let mut length = if at < end { (same[at - start] as usize).min(end - at) } else { 0 };
        while at + length < text.len() && text[length] == text[at + length] {
            length += 1;
        }
        same[at] = length as u32;
        if at + length > end {
            (start, end) = (at, at + length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::random;

    #[test]
    fn repeats_are_those_of_a_plain_count() {
        let mut same = Vec::new();
        for case in 0..2000u32 {
            let draw = |at: u32| random::bits(5, case, at);
            let text: Vec<Token> = (0..draw(0) % 50).map(|at| (draw(at + 1) % (1 + case % 4)) as Token).collect();
            repeats(&text, &mut same);
            for at in 1..text.len() {
                let plain = text[at..].iter().zip(&text).take_while(|(a, b)| a == b).count();
                assert_eq!(same[at] as usize, plain, "{at} of {text:?}");
            }
        }
    }
}
