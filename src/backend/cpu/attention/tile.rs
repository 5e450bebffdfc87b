//! The inner loops of attention: scores, softmax and weighted values of a few query vectors over one range of cells.
//!
//! Query vectors ("entries") are a row and a head; up to `S::MAX_ROWS` of them are worked on at once, their sums in
//! registers, so that every key or value that is loaded serves all of them. The sum of one entry runs over the same
//! terms in the same order however many entries stand beside it.

use super::super::simd::{LANES, Simd};
use super::super::vecmath::{exp, tanh};
use super::RANGE;
use super::cells::Cells;

/// Blocks of 16 cells in a range.
pub(super) const BLOCKS: usize = RANGE / LANES;
/// Most entries that are worked on at once, on any instruction set.
pub(super) const MAX_ENTRIES: usize = 12;

/// How many of `left` entries to take at once: a size that [`by_entries`] has for the instruction set.
#[inline(always)]
pub(super) fn step<S: Simd>(left: usize) -> usize {
    S::ENTRIES.iter().copied().find(|&n| n <= left).unwrap_or(1)
}

/// A block of 16 cells of which some are seen.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Block in the head's keys, and 1/16 of its first cell.
    pub index: usize,
    /// Cells that any entry may see.
    pub union: u16,
    /// Whether every entry sees all 16.
    pub full: bool,
}

/// What does not change over the ranges and entries of a task.
pub(super) struct Head {
    /// First key block and first value row of the head.
    pub k: *const u8,
    pub v: *const u8,
    pub k_block_bytes: usize,
    pub v_row_bytes: usize,
    pub dim_k: usize,
    /// Padded to whole vectors.
    pub dim_v: usize,
}

/// Calls `f::<S, C, n, m>` for n entries, with m vectors beside each other as registers allow.
macro_rules! by_entries {
    ($n:expr, $call:ident::<$s:ident, $c:ident>($($arg:expr),*)) => {
        match $n {
            12 if $s::WIDE => $call::<$s, $c, 12, 2>($($arg),*),
            8 if $s::WIDE => $call::<$s, $c, 8, 2>($($arg),*),
            4 if $s::WIDE => $call::<$s, $c, 4, 4>($($arg),*),
            2 if $s::WIDE => $call::<$s, $c, 2, 4>($($arg),*),
            6 if !$s::WIDE => $call::<$s, $c, 6, 1>($($arg),*),
            4 if !$s::WIDE => $call::<$s, $c, 4, 1>($($arg),*),
            2 if !$s::WIDE => $call::<$s, $c, 2, 2>($($arg),*),
            _ => $call::<$s, $c, 1, 4>($($arg),*),
        }
    };
}

/// `s[r RANGE + 16 i + lane] = q_r · key` for `n` entries and the cells of each block; `q` lies `[dim_k][n]`.
///
/// # Safety
///
/// The instruction set of `S`; blocks of the head's cache, `q` and `s` large enough, `n` out of [`step`].
#[inline(always)]
pub(super) unsafe fn scores<S: Simd, C: Cells>(n: usize, head: &Head, blocks: &[Block], q: *const f32, s: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { by_entries!(n, scores_of::<S, C>(head, blocks, q, s)) }
}

#[inline(always)]
unsafe fn scores_of<S: Simd, C: Cells, const R: usize, const B: usize>(
    head: &Head,
    blocks: &[Block],
    q: *const f32,
    s: *mut f32,
) {
    for (i, group) in blocks.chunks(B).enumerate() {
        // A last group that is not whole repeats its last block; B divides the blocks of a range, so there is room.
        let group: [Block; B] = std::array::from_fn(|b| group[b.min(group.len() - 1)]);
        // SAFETY: the caller's promise.
        unsafe { scores_tile::<S, C, R, B>(head, &group, q, s.add(i * B * LANES)) };
    }
}

#[inline(always)]
unsafe fn scores_tile<S: Simd, C: Cells, const R: usize, const B: usize>(
    head: &Head,
    blocks: &[Block; B],
    q: *const f32,
    s: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let keys: [*const u8; B] = std::array::from_fn(|b| head.k.add(blocks[b].index * head.k_block_bytes));
        let mut sums = [[S::splat(0.0); B]; R];
        let mut start = 0;
        while start < head.dim_k {
            let mut scales = [C::k_scale::<S>(keys[0], start / C::GROUP); B];
            for b in 1..B {
                scales[b] = C::k_scale::<S>(keys[b], start / C::GROUP);
            }
            let end = start.saturating_add(C::GROUP).min(head.dim_k);
            for j in start..end {
                let mut k = [S::splat(0.0); B];
                for b in 0..B {
                    k[b] = C::k::<S>(keys[b], j, scales[b]);
                }
                for r in 0..R {
                    let q = S::splat(*q.add(j * R + r));
                    for b in 0..B {
                        sums[r][b] = S::fma(q, k[b], sums[r][b]);
                    }
                }
            }
            start = end;
        }
        for r in 0..R {
            for b in 0..B {
                S::store(s.add(r * RANGE + b * LANES), sums[r][b]);
            }
        }
    }
}

/// `o_r = a_r o_r + b_r Σ p_rc value_c` for `n` entries, over the cells of each block that any entry may see. `p` lies
/// as [`scores`] leaves it, `o` is `[n][dim_v]`.
///
/// # Safety
///
/// The instruction set of `S`; blocks of the head's cache, `p` and `o` large enough, `n` out of [`step`].
#[inline(always)]
pub(super) unsafe fn values<S: Simd, C: Cells>(
    n: usize,
    head: &Head,
    blocks: &[Block],
    p: *const f32,
    weights: &Weights,
    o: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe { by_entries!(n, values_of::<S, C>(head, blocks, p, weights, o)) }
}

/// Factors of the old and the new sum of each entry.
pub(super) struct Weights {
    pub old: [f32; LANES],
    pub new: [f32; LANES],
}

#[inline(always)]
unsafe fn values_of<S: Simd, C: Cells, const R: usize, const V: usize>(
    head: &Head,
    blocks: &[Block],
    p: *const f32,
    weights: &Weights,
    o: *mut f32,
) {
    let vectors = head.dim_v / LANES;
    let mut first = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while first + V <= vectors {
            values_tile::<S, C, R, V>(head, blocks, p, weights, first, o);
            first += V;
        }
        while first < vectors {
            values_tile::<S, C, R, 1>(head, blocks, p, weights, first, o);
            first += 1;
        }
    }
}

#[inline(always)]
unsafe fn values_tile<S: Simd, C: Cells, const R: usize, const V: usize>(
    head: &Head,
    blocks: &[Block],
    p: *const f32,
    weights: &Weights,
    first: usize,
    o: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; R];
        for (i, block) in blocks.iter().enumerate() {
            let rows = head.v.add(block.index * LANES * head.v_row_bytes);
            let p = p.add(i * LANES);
            if block.union == u16::MAX {
                for lane in 0..LANES {
                    add_cell::<S, C, R, V>(
                        &mut sums,
                        rows.add(lane * head.v_row_bytes),
                        head.dim_v,
                        first,
                        p.add(lane),
                    );
                }
            } else {
                let mut left = block.union;
                while left != 0 {
                    let lane = left.trailing_zeros() as usize;
                    left &= left - 1;
                    add_cell::<S, C, R, V>(
                        &mut sums,
                        rows.add(lane * head.v_row_bytes),
                        head.dim_v,
                        first,
                        p.add(lane),
                    );
                }
            }
        }
        for r in 0..R {
            let (old, new) = (S::splat(weights.old[r]), S::splat(weights.new[r]));
            for v in 0..V {
                let o = o.add(r * head.dim_v + (first + v) * LANES);
                S::store(o, S::fma(sums[r][v], new, S::mul(S::load(o), old)));
            }
        }
    }
}

#[inline(always)]
unsafe fn add_cell<S: Simd, C: Cells, const R: usize, const V: usize>(
    sums: &mut [[S::F; V]; R],
    row: *const u8,
    dim_v: usize,
    first: usize,
    p: *const f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut x = [S::splat(0.0); V];
        for v in 0..V {
            x[v] = C::v::<S>(row, first + v, C::v_scale::<S>(row, dim_v, first + v));
        }
        for r in 0..R {
            let p = S::splat(*p.add(r * RANGE));
            for v in 0..V {
                sums[r][v] = S::fma(p, x[v], sums[r][v]);
            }
        }
    }
}

/// Turn the scores of one entry into weights e^(s - max) in place; cells outside `bits` get 0. Returns the largest
/// score and the sum of the weights. At least one cell is seen.
///
/// # Safety
///
/// The instruction set of `S`; `s` holds a vector per entry of `bits`.
#[inline(always)]
pub(super) unsafe fn softmax<S: Simd>(s: *mut f32, bits: &[u16], softcap: f32) -> (f32, f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut max = S::splat(f32::NEG_INFINITY);
        for (i, &bits) in bits.iter().enumerate() {
            let mut v = S::load(s.add(i * LANES));
            if softcap != 0.0 {
                v = S::mul(tanh::<S>(S::mul(v, S::splat(1.0 / softcap))), S::splat(softcap));
            }
            if bits != u16::MAX {
                v = S::select(S::mask(bits), v, S::splat(f32::NEG_INFINITY));
            }
            S::store(s.add(i * LANES), v);
            max = S::max(v, max);
        }
        // A NaN among the scores may be lost here, but comes back in its own weight and thus in the sum.
        let max = S::largest(max);
        let mut sum = S::splat(0.0);
        for i in 0..bits.len() {
            let p = exp::<S>(S::sub(S::load(s.add(i * LANES)), S::splat(max)));
            S::store(s.add(i * LANES), p);
            sum = S::add(sum, p);
        }
        (max, S::sum(sum))
    }
}
