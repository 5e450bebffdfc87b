//! Typical sampling: keeps the fewest candidates whose surprise is nearest to the expected one and whose probabilities
//! sum to more than p (Meister et al., "Locally Typical Sampling", <https://arxiv.org/abs/2202.00666>).
//!
//! The surprise of a candidate is `-ln p = ln Z + d`, with its distance d below the best logit and the sum Z of all
//! weights; the entropy, which is the expected surprise, is `ln Z` and the mean of d. So a candidate is as untypical as
//! d is far from its mean, which integer sums give.

use super::dynamic_temperature::sums;
use crate::sampling::order::{Order, Typicality};
use crate::sampling::pool::{Buffers, Pool};
use crate::sampling::select::{key_token, radix_cut, rank};
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
    let (_, mass, moment) = sums(pool);
    let (mean, best, scale) = ((moment as f64 / mass as f64) as f32, pool.best(), pool.scale);
    let typicality = Typicality { best, scale, mean };
    // Rises with how typical a candidate is; one of no probability is the least typical.
    let typical = move |logit: f32| {
        if weight((logit - best) * scale) == 0 { f32::MIN } else { -typicality.distance(logit) }
    };
    // More than p, of one candidate at least.
    let need = ((f64::from(p.max(0.0)) * mass as f64) as u64).saturating_add(1);
    let mut cut = cut_of(pool, need, typical, move |logit| weight((logit - best) * scale));
    if min_keep > 1 && cut.is_some_and(|cut| kept(pool, cut, typical) < min_keep) {
        cut = cut_of(pool, min_keep as u64, typical, |logit| u64::from(logit > f32::NEG_INFINITY));
    }
    pool.order = Order::Typical(typicality);
    if let Some(cut) = cut {
        pool.list_alive();
        pool.retain(|token, logit| (rank(typical(logit)), token) <= cut);
    }
    Ok(())
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
