//! Top-k: keeps the k candidates with the greatest logits.
//!
//! In a row, the k-th greatest block maximum is a floor: k candidates at least reach it. Only blocks whose maximum
//! reaches it are looked into, which for a small k is about k of them. A k too large for the list is found by digits.

use super::passes::BLOCK;
use super::pool::{Candidate, LIST, Pool};
use super::select::{key_logit, radix_cut, rank};
use crate::{Result, Token};

/// The largest k the list is used for: it needs room to collect before it is cut down again.
const LISTED: usize = LIST / 2;

/// # Errors
/// As [`Pool::scan`].
pub(super) fn apply(pool: &mut Pool<'_>, k: usize) -> Result<()> {
    pool.scan()?;
    if pool.listed {
        keep_best(&mut pool.buffers.list, &mut pool.buffers.keys, k);
    } else if k <= LISTED {
        collect(pool, k);
    } else if k < pool.row.len() {
        let is_candidate = |x: f32| u64::from(x > f32::NEG_INFINITY);
        if let Some(cut) = radix_cut(pool.row, &mut pool.buffers.bins[..], k as u64, is_candidate) {
            pool.cut(cut);
        }
    }
    Ok(())
}

/// Moves the k best of the row to the list.
fn collect(pool: &mut Pool<'_>, k: usize) {
    let mut keys = std::mem::take(&mut pool.buffers.keys);
    let mut list = std::mem::take(&mut pool.buffers.list);
    list.clear();
    // What ties with the floor may be among the k; once k candidates are collected, what comes later and ties may not.
    let mut floor = f32::NEG_INFINITY;
    let mut ties = false;
    if k <= pool.buffers.maxima.len() {
        keys.clear();
        keys.extend(pool.buffers.maxima.iter().map(|&max| u64::from(rank(max)) << 32));
        let (_, &mut kth, _) = keys.select_nth_unstable(k - 1);
        floor = key_logit(kth);
        ties = floor > f32::NEG_INFINITY;
    }
    for ((block, &max), number) in pool.row.chunks(BLOCK).zip(&pool.buffers.maxima).zip(0..) {
        if max < floor {
            continue;
        }
        for (token, &logit) in (number * BLOCK..).zip(block) {
            if logit > floor || (ties && logit == floor) {
                if list.len() == LIST {
                    keep_best(&mut list, &mut keys, k);
                    floor = list.iter().fold(f32::INFINITY, |low, one| low.min(one.logit));
                    ties = false;
                    if logit <= floor {
                        continue;
                    }
                }
                list.push(Candidate { token: token as Token, logit });
            }
        }
    }
    keep_best(&mut list, &mut keys, k);
    pool.buffers.keys = keys;
    pool.buffers.list = list;
    pool.listed = true;
}

/// Keeps the k best of the list, in id order.
pub(super) fn keep_best(list: &mut Vec<Candidate>, keys: &mut Vec<u64>, k: usize) {
    if k >= list.len() {
        return;
    }
    keys.clear();
    keys.extend(list.iter().map(|one| one.key()));
    let (_, &mut cut, _) = keys.select_nth_unstable(k.saturating_sub(1));
    list.retain(|one| one.key() <= cut);
}
