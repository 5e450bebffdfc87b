//! Top-k: keeps the k candidates with the greatest logits.
//!
//! In a row, the k-th greatest block maximum is a floor: at least k candidates reach it. They are collected from the
//! blocks whose maximum reaches it, which are about k blocks for a small k. Where more reach it than the list holds (a
//! large k, long runs of equal logits), the cut is found by radix selection, see `select.rs`.

use crate::sampling::candidate::Candidate;
use crate::sampling::order::Order;
use crate::sampling::pool::{LIST, Pool};
use crate::sampling::select::{key_logit, key_token, radix_cut, rank};
use crate::{Result, Token};

/// # Errors
/// As [`Pool::scan`].
pub(in crate::sampling) fn apply(pool: &mut Pool<'_>, k: usize) -> Result<()> {
    pool.scan()?;
    pool.order = Order::Logit;
    pool.list_at_most(k);
    if !pool.in_list {
        let floor = floor(pool, k);
        pool.in_list = pool.collect(floor, f32::INFINITY, Token::MAX);
    }
    if pool.in_list {
        keep_best(&mut pool.buffers.list, &mut pool.buffers.keys, k);
    } else if k < pool.row.len()
        && let Some(cut) = cut(pool, k)
    {
        pool.cut(cut);
    }
    Ok(())
}

/// Writes the keys of the best `count` candidates, [`LIST`] at most, to the pool's buffer, best first. All candidates
/// stay.
///
/// # Errors
/// As [`Pool::scan`].
pub(super) fn best(pool: &mut Pool<'_>, count: usize) -> Result<()> {
    pool.scan()?;
    let count = count.clamp(1, LIST);
    if !pool.in_list {
        let floor = floor(pool, count);
        if !pool.collect(floor, f32::INFINITY, Token::MAX)
            && let Some(cut) = cut(pool, count)
        {
            pool.collect(key_logit(cut), f32::INFINITY, key_token(cut));
        }
    }
    let keys = &mut pool.buffers.keys;
    keys.clear();
    keys.extend(pool.buffers.list.iter().map(|one| one.key()));
    if count < keys.len() {
        keys.select_nth_unstable(count);
        keys.truncate(count);
    }
    keys.sort_unstable();
    Ok(())
}

/// The key of the k-th best candidate of the row.
fn cut(pool: &mut Pool<'_>, k: usize) -> Option<u64> {
    let is_candidate = |x: f32| u64::from(x > f32::NEG_INFINITY);
    radix_cut(pool.row, &mut pool.buffers.bins[..], k as u64, |x| x, is_candidate)
}

/// A logit that at least k candidates of the row reach, if there are as many.
fn floor(pool: &mut Pool<'_>, k: usize) -> f32 {
    let buffers = &mut *pool.buffers;
    if k > buffers.maxima.len() {
        return f32::NEG_INFINITY;
    }
    buffers.keys.clear();
    buffers.keys.extend(buffers.maxima.iter().map(|&max| u64::from(rank(max)) << 32));
    let (_, &mut kth, _) = buffers.keys.select_nth_unstable(k.saturating_sub(1));
    key_logit(kth)
}

/// Keeps the k best of the list, in id order.
fn keep_best(list: &mut Vec<Candidate>, keys: &mut Vec<u64>, k: usize) {
    if k >= list.len() {
        return;
    }
    keys.clear();
    keys.extend(list.iter().map(|one| one.key()));
    let (_, &mut cut, _) = keys.select_nth_unstable(k.saturating_sub(1));
    list.retain(|one| one.key() <= cut);
}
