//! Infill, as in llama.cpp: for filling a gap in a text, where the model should stop as soon as the gap is full.
//!
//! Where the end of the text has a good share of the probability, only the ends stay. Else of two candidates of which
//! one begins with the other the less probable one goes and the other gets its probability; then those that have enough
//! of it stay, and where none has, the text ends. Logits stay as they are, so what was added only decides who stays.

use std::sync::Arc;

use super::top_k;
use crate::sampling::candidate::Candidate;
use crate::sampling::pool::Pool;
use crate::sampling::select::{key_logit, key_token};
use crate::vocab::Vocab;
use crate::{Result, Token, reserve};

/// The candidates, best first, that are compared with one another. Those after them are too improbable to stay.
const COMPARED: usize = 512;
/// A share of the probability that the end of the text has, times the number of candidates: above it the text ends.
const END: u64 = 3;
/// The least probability at first.
const ENOUGH: f32 = 0.2;

/// A candidate that is compared.
#[derive(Clone, Copy)]
struct Compared {
    token: Token,
    p: f32,
    is_end: bool,
    alive: bool,
    /// Where its text ends in the buffer of all texts.
    text_end: usize,
}

/// Infill of one stream.
pub(super) struct Infill {
    vocab: Arc<Vocab>,
    compared: Vec<Compared>,
    texts: Vec<u8>,
}

impl Infill {
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub(super) fn new(vocab: Arc<Vocab>) -> Result<Infill> {
        let texts = reserve::list(COMPARED.saturating_mul(vocab.max_piece_bytes()), "bytes of candidates' texts")?;
        Ok(Infill { vocab, compared: reserve::list(COMPARED, "candidates")?, texts })
    }

    /// `masked` is whether only some tokens may be drawn: then nothing is added to them.
    ///
    /// # Errors
    /// As [`Pool::scan`].
    pub(super) fn apply(&mut self, pool: &mut Pool<'_>, masked: bool) -> Result<()> {
        top_k::best(pool, COMPARED)?;
        pool.order = crate::sampling::order::Order::Logit;
        let total = pool.mass();
        let ends = self.vocab.eog_tokens().iter().filter_map(|&token| pool.logit(token));
        let end: u64 = ends.map(|logit| pool.weight(logit)).sum();
        let vocab = &*self.vocab;
        if u128::from(END * pool.size() as u64) * u128::from(end) > u128::from(total - end) {
            pool.list_alive();
            pool.retain(|token, _| vocab.is_eog(token));
            return Ok(());
        }
        self.read(pool, total);
        self.merge();
        // The ends stay in any case, those that were not compared too.
        let ends = (end as f64 / total as f64) as f32;
        let vocab = &*self.vocab;
        let Some((count, sum)) = keep(&mut self.compared, ENOUGH, ends) else {
            if !masked && let Some(token) = vocab.eot().or(vocab.eos()) {
                pool.keep_one(Candidate { token, logit: 1.0 });
            }
            return Ok(());
        };
        keep(&mut self.compared, sum / (count as f32 + 1.0), ends);
        pool.list_alive();
        pool.retain(|token, _| vocab.is_eog(token) || self.compared.iter().any(|one| one.alive && one.token == token));
        Ok(())
    }

    /// Reads the candidates of the pool's keys.
    fn read(&mut self, pool: &Pool<'_>, total: u64) {
        self.compared.clear();
        self.texts.clear();
        for &key in &pool.buffers.keys {
            let token = key_token(key);
            self.vocab.piece(token, false, &mut self.texts);
            let p = (pool.weight(key_logit(key)) as f64 / total as f64) as f32;
            let text_end = self.texts.len();
            self.compared.push(Compared { token, p, is_end: self.vocab.is_eog(token), alive: true, text_end });
        }
    }

    /// Adds up the candidates of which one begins with the other.
    fn merge(&mut self) {
        let Infill { compared, texts, .. } = self;
        let text = |compared: &[Compared], at: usize| {
            let start = at.checked_sub(1).map_or(0, |before| compared[before].text_end);
            &texts[start..compared[at].text_end]
        };
        for one in 0..compared.len() {
            for other in 0..compared.len() {
                if !compared[one].alive {
                    break;
                }
                let beginning = text(compared, one);
                if one == other
                    || !compared[other].alive
                    || beginning.is_empty()
                    || !text(compared, other).starts_with(beginning)
                {
                    continue;
                }
                let (stays, goes) = if compared[other].p > compared[one].p { (other, one) } else { (one, other) };
                compared[stays].p += compared[goes].p;
                compared[goes].p = 0.0;
                compared[goes].alive = false;
            }
        }
    }
}

/// Keeps those of at least this probability; returns their number and the sum of theirs and that of the ends, or `None`
/// where there is none.
fn keep(compared: &mut [Compared], least: f32, ends: f32) -> Option<(usize, f32)> {
    let (mut count, mut sum) = (0, ends);
    for one in compared.iter_mut().filter(|one| !one.is_end) {
        one.alive &= one.p >= least;
        if one.alive {
            count += 1;
            sum += one.p;
        }
    }
    (count > 0).then_some((count, sum))
}
