//! Top-p (nucleus sampling): keeps the fewest most probable candidates whose probabilities sum to at least p (Holtzman
//! et al., "The Curious Case of Neural Text Degeneration", <https://arxiv.org/abs/1904.09751>).
//!
//! In a row, the weights are added up in bins of 1/128 nat below the best logit; only the bin in which p is reached is
//! sorted. Where that bin holds more than fit (long runs of equal logits), the cut is found by radix selection, see
//! `select.rs`.

use super::top_k;
use crate::sampling::candidate::Candidate;
use crate::sampling::listed::Listed;
use crate::sampling::order::Order;
use crate::sampling::passes::{BINS, bin};
use crate::sampling::pool::Pool;
use crate::sampling::select::{key_logit, radix_cut};
use crate::sampling::weigh;
use crate::{Error, Result, Token};

/// # Errors
/// [`Error::InvalidArgument`] when `p` is NaN.
pub(super) fn check(p: f32) -> Result<()> {
    if p.is_nan() { Err(Error::InvalidArgument("Top-p is NaN".into())) } else { Ok(()) }
}

/// # Errors
/// As [`Pool::scan`].
pub(in crate::sampling) fn apply(pool: &mut Pool<'_>, p: f32, min_keep: usize) -> Result<()> {
    pool.scan()?;
    let cut = match pool.in_list {
        _ if pool.buffers.llama => along_the_list(pool, p, min_keep),
        true => cut_of_list(pool, p),
        false => cut_of_row(pool, p),
    };
    pool.order = Order::Logit;
    let Some(cut) = cut else { return Ok(()) };
    if min_keep > 1 && pool.count(cut) < min_keep {
        return top_k::apply(pool, min_keep);
    }
    pool.list_alive();
    pool.cut(cut);
    Ok(())
}

/// The same with llama.cpp's numbers: probabilities are sums in f32 along its list as it was before.
fn along_the_list(pool: &mut Pool<'_>, p: f32, min_keep: usize) -> Option<u64> {
    let listed = Listed::of(pool);
    let list = &mut pool.buffers.arranged;
    // Nearly always enough.
    let first = list.len().min(256);
    for count in [first, list.len()] {
        list.select_nth_unstable_by_key(count.checked_sub(1)?, |one| one.key());
        list[..count].sort_unstable_by_key(|one| one.key());
        let mut reached = 0.0f32;
        let last = list[..count].iter().enumerate().position(|(at, one)| {
            reached += listed.probability(one);
            reached >= p && at + 1 >= min_keep
        });
        if let Some(last) = last {
            return Some(list[last].key());
        }
    }
    None
}

/// The mass to reach: at least 1, so that one candidate is kept.
fn needed(p: f32, total: u64) -> u64 {
    ((f64::from(p) * total as f64).ceil() as u64).max(1)
}

fn cut_of_list(pool: &mut Pool<'_>, p: f32) -> Option<u64> {
    let need = needed(p, pool.mass());
    pool.buffers.keys.clear();
    pool.buffers.keys.extend(pool.buffers.list.iter().map(|one| one.key()));
    walk(pool, need)
}

/// Sorts the keys and adds up their weights until `need` is reached.
fn walk(pool: &mut Pool<'_>, mut need: u64) -> Option<u64> {
    pool.buffers.keys.sort_unstable();
    for &key in &pool.buffers.keys {
        let mass = pool.weight(key_logit(key));
        if mass >= need {
            return Some(key);
        }
        need -= mass;
    }
    None
}

fn cut_of_row(pool: &mut Pool<'_>, p: f32) -> Option<u64> {
    let (best, scale) = (pool.best(), pool.scale);
    let total = pool.buffers.passes.mass_bins(pool.row, best, scale, &mut pool.buffers.bins);
    let total_need = needed(p, total);
    let mut need = total_need;
    let mut crossing = 0;
    for &mass in pool.buffers.bins.iter() {
        if mass >= need {
            break;
        }
        need -= mass;
        crossing += 1;
    }
    // The logits of the crossing bin, with half a bin to spare on both sides; the bin itself then decides.
    let edge = |bin: f32| best - bin * (-weigh::LOWEST / BINS as f32) / scale;
    let (low, high) = (edge(crossing as f32 + 1.0), edge(crossing as f32 - 1.0));
    let fits = pool.collect(low, high, Token::MAX);
    let in_bin = |one: &&Candidate| bin((one.logit - best) * scale) == crossing;
    pool.buffers.keys.clear();
    pool.buffers.keys.extend(pool.buffers.list.iter().filter(in_bin).map(|one| one.key()));
    if fits {
        walk(pool, need)
    } else {
        radix_cut(pool.row, &mut pool.buffers.bins[..], total_need, |x| x, |x| weigh::weight((x - best) * scale))
    }
}
