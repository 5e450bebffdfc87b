//! Typical sampling: keeps the fewest candidates whose surprise is nearest to the expected one and whose probabilities
//! sum to more than p (Meister et al., "Locally Typical Sampling", <https://arxiv.org/abs/2202.00666>).
//!
//! The surprise of a candidate is `-ln p = ln Z + d`, with its distance d below the best logit and the sum Z of all
//! weights; the entropy, which is the expected surprise, is `ln Z` and the mean of d. So a candidate is as untypical as
//! d is far from its mean, which integer sums give.

use super::dynamic_temperature::sums;
use crate::sampling::candidate::Candidate;
use crate::sampling::listed::{Listed, sort_ascending};
use crate::sampling::order::Order;
use crate::sampling::pool::{Buffers, Pool};
use crate::sampling::select::{key_token, radix_cut, rank};
use crate::sampling::statistics::mean_distance;
use crate::sampling::weigh::weight;
use crate::{Error, Result, Token};

/// # Errors
/// [`Error::InvalidArgument`] when `p` is NaN.
pub(super) fn check(p: f32) -> Result<()> {
    if p.is_nan() { Err(Error::InvalidArgument("Typical-p is NaN".into())) } else { Ok(()) }
}

/// # Errors
/// As [`Pool::scan`].
pub(in crate::sampling) fn apply(pool: &mut Pool<'_>, p: f32, min_keep: usize) -> Result<()> {
    pool.scan()?;
    if pool.buffers.llama {
        as_a_list(pool, p, min_keep);
        return Ok(());
    }
    let (_, mass, moment) = sums(pool);
    let (mean, best, scale) = (mean_distance(moment, mass), pool.best(), pool.scale);
    // Rises with how typical a candidate is; one of no probability is the least typical.
    let typical = move |logit: f32| {
        let z = (logit - best) * scale;
        if weight(z) == 0 { f32::MIN } else { -(-z - mean).abs() }
    };
    // More than p, of one candidate at least.
    let need = ((f64::from(p.max(0.0)) * mass as f64) as u64).saturating_add(1);
    let mut cut = cut_of(pool, need, typical, move |logit| weight((logit - best) * scale));
    if min_keep > 1 && cut.is_some_and(|cut| kept(pool, cut, typical) < min_keep) {
        cut = cut_of(pool, min_keep as u64, typical, |logit| u64::from(logit > f32::NEG_INFINITY));
    }
    if let Some(cut) = cut {
        pool.retain(|token, logit| (rank(typical(logit)), token) <= cut);
    }
    Ok(())
}

/// The same with llama.cpp's numbers, in whose order the draw walks: surprises are f32, which have steps of 1e-6 where
/// there are many candidates.
fn as_a_list(pool: &mut Pool<'_>, p: f32, min_keep: usize) {
    let listed = Listed::sorted(pool);
    let mut list = std::mem::take(&mut pool.buffers.arranged);
    let entropy = listed.entropy(&list);
    for one in &mut list {
        one.logit = (-listed.probability(one).ln() - entropy).abs();
    }
    sort_ascending(&mut list);
    let mut reached = 0.0f32;
    let last = list.iter().enumerate().position(|(at, one)| {
        reached += pool.logit(one.token).map_or(0.0, |logit| listed.probability(&Candidate { logit, ..*one }));
        reached > p && at + 1 >= min_keep
    });
    if let Some(last) = last {
        for one in list.drain(last + 1..) {
            pool.adjust(one.token, |_| f32::NEG_INFINITY);
        }
        pool.retain(|_, logit| logit > f32::NEG_INFINITY);
        pool.list_alive();
    }
    pool.buffers.arranged = list;
    pool.order = Order::Arranged;
}

/// How many candidates a cut keeps.
fn kept(pool: &Pool<'_>, cut: (u32, Token), typical: impl Fn(f32) -> f32) -> usize {
    let mut kept = 0;
    pool.each(|token, logit| kept += usize::from((rank(typical(logit)), token) <= cut));
    kept
}

/// Rank and token of the last candidate kept, where the most typical are kept until `need` is reached; of those equally
/// typical the lower ids come first. `None` where all together do not reach it.
fn cut_of(
    pool: &mut Pool<'_>,
    mut need: u64,
    typical: impl Fn(f32) -> f32,
    weigh: impl Fn(f32) -> u64,
) -> Option<(u32, Token)> {
    let Buffers { list, keys, bins, .. } = &mut *pool.buffers;
    if !pool.in_list {
        let key = radix_cut(pool.row, &mut bins[..], need, typical, weigh)?;
        return Some(((key >> 32) as u32, key_token(key)));
    }
    // Places in the list, which is by id.
    keys.clear();
    keys.extend((0u64..).zip(&*list).map(|(at, one)| u64::from(rank(typical(one.logit))) << 32 | at));
    keys.sort_unstable();
    keys.iter().find_map(|&key| {
        let one = list.get(key as u32 as usize)?;
        let mass = weigh(one.logit);
        if mass >= need {
            return Some(((key >> 32) as u32, one.token));
        }
        need -= mass;
        None
    })
}
