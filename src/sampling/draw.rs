//! The draw of one candidate by its probability: inverse transform sampling (the inverse of the cumulative
//! distribution).
//!
//! The weights are added up in ascending id order until the sum exceeds the drawn share of the total. Only the order of
//! ids matters, so a draw does not depend on how candidates were found or on which others were removed.
//!
//! With llama.cpp's generator the weights are its floating-point numbers, added up along its list: [`along_the_list`].

use super::candidate::Candidate;
use super::listed::Listed;
use super::mt19937::Mt19937;
use super::passes::BLOCK;
use super::pool::Pool;
use super::weigh::ONE;
use crate::{Error, Result, Token};

/// The result of a draw.
pub(super) struct Drawn {
    pub(super) one: Candidate,
    /// The sum of all candidates' weights.
    pub(super) total: u64,
    /// Its probability, in llama.cpp's numbers where its generator drew.
    pub(super) probability: f32,
}

/// Draws with 32 random bits `r`, which mean the uniform number (r + 0.5) · 2^-32.
///
/// # Errors
/// As [`Pool::scan`].
pub(super) fn apply(pool: &mut Pool<'_>, r: u32) -> Result<Drawn> {
    pool.scan()?;
    let total = pool.mass();
    let found = if pool.in_list {
        let weights = pool.buffers.list.iter().map(|&one| (one, pool.weight(one.logit)));
        passing(weights, share(total, r)).map(|(one, _)| one)
    } else {
        let masses = pool.buffers.masses.iter().copied().enumerate();
        passing(masses, share(total, r)).and_then(|(block, rest)| {
            let start = block * BLOCK;
            let logits = pool.row.get(start..)?.iter().take(BLOCK);
            let weights = (start..)
                .zip(logits)
                .map(|(token, &logit)| (Candidate { token: token as Token, logit }, pool.weight(logit)));
            passing(weights, rest).map(|(one, _)| one)
        })
    };
    // The best candidate weighs ONE, so the total is never 0 and the share is below it.
    let one = found.ok_or_else(|| Error::Internal("the draw found no candidate".into()))?;
    Ok(Drawn { one, total, probability: probability(pool, one.logit, total).0 })
}

/// Draws as llama.cpp does, with the numbers of its generator: adds up the candidates' exponentials in the order of its
/// list. A sampler that `selects` the token itself draws from probabilities, and not where the list has one candidate.
///
/// # Errors
/// As [`Pool::scan`].
pub(super) fn along_the_list(pool: &mut Pool<'_>, generator: &mut Mt19937, selects: bool) -> Result<Drawn> {
    pool.scan()?;
    let total = pool.mass();
    let (listed, size) = (Listed::of(pool), pool.size());
    let list = &pool.buffers.arranged;
    let weight = |one: &Candidate| f64::from(if selects { listed.probability(one) } else { listed.exponential(one) });
    let all: f64 = list.iter().map(weight).sum();
    let share = if selects && size < 2 { 0.0 } else { generator.double() };
    let mut reached = 0.0;
    let found = list.iter().find(|one| {
        reached += if selects { weight(one) / all } else { weight(one) };
        reached >= if selects { share } else { all * share }
    });
    let one = found.or(list.last()).copied();
    let drawn = one.map(|one| Drawn { one, total, probability: listed.probability(&one) });
    drawn.ok_or_else(|| Error::Internal("the draw found no candidate".into()))
}

/// floor(total · (r + 0.5) · 2^-32), below `total`.
fn share(total: u64, r: u32) -> u64 {
    ((u128::from(total) * (2 * u128::from(r) + 1)) >> 33) as u64
}

/// The first item at which the cumulative mass exceeds `share`, and the share minus the mass before it.
fn passing<T>(masses: impl Iterator<Item = (T, u64)>, mut share: u64) -> Option<(T, u64)> {
    for (one, mass) in masses {
        if mass > share {
            return Some((one, share));
        }
        share -= mass;
    }
    None
}

/// The probability of a candidate of this weight, and its natural logarithm.
pub(super) fn probability(pool: &Pool<'_>, logit: f32, total: u64) -> (f32, f32) {
    let probability = pool.weight(logit) as f64 / total as f64;
    let logprob = f64::from((logit - pool.best()) * pool.scale) - (total as f64 / ONE as f64).ln();
    (probability as f32, logprob as f32)
}
