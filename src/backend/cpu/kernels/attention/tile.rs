//! The inner loops of attention: scores, softmax and weighted values of a few query vectors over one range of cells.
//!
//! Query vectors ("entries") are a row and a head; a few of them are worked on at once, their sums in
//! registers, so that every key or value that is loaded serves all of them. The sum of one entry runs over the same
//! terms in the same order however many entries stand beside it.

// Loops over registers are counted: their lengths are constants, and they walk several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::cells::Cells;
use crate::backend::cpu::kernels::vecmath::{exp, tanh};
use crate::simd::{Kernel, LANES, Vector};
use std::marker::PhantomData;

/// Cells that are softmaxed together; part of what a result is, see [`super`].
pub const RANGE: usize = 128;
/// Blocks of 16 cells in a range.
pub(crate) const BLOCKS: usize = RANGE / LANES;
/// Most entries that are worked on at once, on any instruction set.
pub(crate) const MAX_ENTRIES: usize = 12;

/// So few entries (decoding) wait for memory, not for arithmetic.
const FEW: usize = 4;
/// Bytes of a line of the caches.
const LINE: usize = 64;
/// How far ahead of their place few entries ask for values, in bytes: two small pages, for the processor's own
/// prefetcher ends where a page does. For keys it is the blocks of the next group.
const AHEAD: usize = 8 << 10;

/// How many of `left` entries to take at once: a size that [`by_entries`] has for the instruction set.
#[inline(always)]
pub(crate) fn step<S: Vector>(left: usize) -> usize {
    S::ENTRIES.iter().copied().find(|&n| n <= left).unwrap_or(1)
}

/// A block of 16 cells of which some are seen.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// Block in the head's keys, and 1/16 of its first cell.
    pub index: usize,
    /// Cells that any entry may see.
    pub union: u16,
    /// Whether every entry sees all 16.
    pub full: bool,
}

/// What does not change over the ranges and entries of a task.
pub(crate) struct Head {
    /// The key head.
    pub index: usize,
    /// First key block and first value row of the head.
    pub k: *const u8,
    pub v: *const u8,
    pub k_block_bytes: usize,
    pub v_row_bytes: usize,
    pub dim_k: usize,
    /// Padded to whole vectors.
    pub dim_v: usize,
}

/// Runs `kernel::<C, n, m>` as a function of its own, for n entries, with m vectors beside each other as registers
/// allow. Sizes that the instruction set does not use are not compiled for it.
macro_rules! by_entries {
    ($n:expr, $simd:ident: $s:ident, $kernel:ident::<$c:ident>($($arg:expr),*)) => {
        match $n {
            12 if const { uses::<$s>(12) } => $simd.vectorize($kernel::<$c, 12, 2>($($arg),*)),
            8 if const { uses::<$s>(8) } => $simd.vectorize($kernel::<$c, 8, 2>($($arg),*)),
            6 if const { uses::<$s>(6) } => $simd.vectorize($kernel::<$c, 6, 1>($($arg),*)),
            4 if const { uses::<$s>(4) && $s::WIDE } => $simd.vectorize($kernel::<$c, 4, 4>($($arg),*)),
            4 if const { uses::<$s>(4) && !$s::WIDE } => $simd.vectorize($kernel::<$c, 4, 1>($($arg),*)),
            2 if const { uses::<$s>(2) && $s::WIDE } => $simd.vectorize($kernel::<$c, 2, 4>($($arg),*)),
            2 if const { uses::<$s>(2) && !$s::WIDE } => $simd.vectorize($kernel::<$c, 2, 2>($($arg),*)),
            _ => $simd.vectorize($kernel::<$c, 1, 4>($($arg),*)),
        }
    };
}

const fn uses<S: Vector>(n: usize) -> bool {
    let sizes = S::ENTRIES;
    n == sizes[0] || n == sizes[1] || n == sizes[2] || n == sizes[3]
}

/// `s[r RANGE + 16 i + lane] = q_r · key` for `n` entries and the cells of each block; `q` lies `[dim_k][n]`.
///
/// # Safety
///
/// Blocks of the head's cache, `q` and `s` large enough, `n` out of [`step`].
#[inline(always)]
pub(crate) unsafe fn scores<S: Vector, C: Cells>(
    simd: S,
    n: usize,
    head: &Head,
    blocks: &[Block],
    q: *const f32,
    s: *mut f32,
) {
    by_entries!(n, simd: S, Scores::<C>(head, blocks, q, s, PhantomData))
}

/// [`scores`] of `R` entries, `B` blocks beside each other.
struct Scores<'a, C, const R: usize, const B: usize>(&'a Head, &'a [Block], *const f32, *mut f32, PhantomData<C>);

impl<C: Cells, const R: usize, const B: usize> Kernel for Scores<'_, C, R, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Scores(head, blocks, q, s, _) = self;
        for (i, group) in blocks.chunks(B).enumerate() {
            // A last group that is not whole repeats its last block; B divides the blocks of a range, so there is
            // room for it.
            let mut keys = [head.k; B];
            for (b, key) in keys.iter_mut().enumerate() {
                // SAFETY: the caller's promise; so in the next block.
                *key = unsafe { head.k.add(group[b.min(group.len() - 1)].index * head.k_block_bytes) };
            }
            // SAFETY: as above.
            unsafe { scores_tile::<S, C, R, B>(simd, head, &keys, q, s.add(i * B * LANES)) };
        }
    }
}

#[inline(always)]
unsafe fn scores_tile<S: Vector, C: Cells, const R: usize, const B: usize>(
    simd: S,
    head: &Head,
    keys: &[*const u8; B],
    q: *const f32,
    s: *mut f32,
) {
    let (dim, ahead) = (head.dim_k, B * head.k_block_bytes);
    // SAFETY: the caller's promise.
    unsafe {
        let mut start = 0;
        while start < dim {
            let mut sums = [[simd.splat(0.0); B]; R];
            let end = start.saturating_add(C::GROUP).min(dim);
            for j in start..end {
                let mut k = [simd.splat(0.0); B];
                for b in 0..B {
                    k[b] = C::k(simd, keys[b], j);
                }
                if R <= FEW && (j * C::BYTES).is_multiple_of(LINE) {
                    for b in 0..B {
                        simd.prefetch(keys[b].wrapping_add(ahead + C::k_offset(j)));
                    }
                }
                for r in 0..R {
                    let q = simd.splat(*q.add(j * R + r));
                    for b in 0..B {
                        sums[r][b] = simd.fma(q, k[b], sums[r][b]);
                    }
                }
            }
            for b in 0..B {
                if R <= FEW && C::SCALED {
                    // Where the next group begins, with its scales.
                    simd.prefetch(keys[b].wrapping_add(ahead + C::k_offset(end) - 2 * LANES));
                }
                let scale = C::k_scale(simd, keys[b], start / C::GROUP);
                for r in 0..R {
                    let s = s.add(r * RANGE + b * LANES);
                    // One group, or many: then their sums wait in the cache, for want of registers.
                    let total = match start {
                        0 if !C::SCALED => sums[r][b],
                        0 => C::add(simd, sums[r][b], scale, simd.splat(0.0)),
                        _ => C::add(simd, sums[r][b], scale, simd.load(s)),
                    };
                    simd.store(s, total);
                }
            }
            start = end;
        }
    }
}

/// `sums_r = Σ p_rc value_c` for `n` entries, over the cells of each block that any entry may see. `p` lies as
/// [`scores`] leaves it, `sums` is `[n][dim_v]`.
///
/// # Safety
///
/// Blocks of the head's cache, `p` and `sums` large enough, `n` out of [`step`].
#[inline(always)]
pub(crate) unsafe fn values<S: Vector, C: Cells>(
    simd: S,
    n: usize,
    head: &Head,
    blocks: &[Block],
    p: *const f32,
    sums: *mut f32,
) {
    by_entries!(n, simd: S, Values::<C>(head, blocks, p, sums, PhantomData))
}

/// [`values`] of `R` entries, `V` vectors of dimensions beside each other.
struct Values<'a, C, const R: usize, const V: usize>(&'a Head, &'a [Block], *const f32, *mut f32, PhantomData<C>);

impl<C: Cells, const R: usize, const V: usize> Kernel for Values<'_, C, R, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Values(head, blocks, p, sums, _) = self;
        let vectors = head.dim_v / LANES;
        // Few entries read memory in order, block by block, and keep their sums in the cache; many entries keep them
        // in registers for the whole range.
        let together = if R <= FEW { 1 } else { BLOCKS };
        for (i, blocks) in blocks.chunks(together).enumerate() {
            let mut first = 0;
            // SAFETY: the caller's promise.
            unsafe {
                let p = p.add(i * together * LANES);
                while first + V <= vectors {
                    values_tile::<S, C, R, V>(simd, head, blocks, p, first, i > 0, sums);
                    first += V;
                }
                while first < vectors {
                    values_tile::<S, C, R, 1>(simd, head, blocks, p, first, i > 0, sums);
                    first += 1;
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn values_tile<S: Vector, C: Cells, const R: usize, const V: usize>(
    simd: S,
    head: &Head,
    blocks: &[Block],
    p: *const f32,
    first: usize,
    go_on: bool,
    out: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let out = out.add(first * LANES);
        let mut sums = [[simd.splat(0.0); V]; R];
        if go_on {
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = simd.load(out.add(r * head.dim_v + v * LANES));
                }
            }
        }
        for (i, block) in blocks.iter().enumerate() {
            let rows = head.v.add(block.index * LANES * head.v_row_bytes);
            let mut p = Weights { p: p.add(i * LANES), entry: RANGE, group: 0 };
            // Times the scales of the vectors' groups, where there are any; a last vector may be half a group.
            let mut scaled = [[[0f32; LANES]; R]; V];
            if C::SCALED {
                if R <= FEW && first == 0 {
                    for lane in 0..LANES {
                        simd.prefetch(rows.wrapping_add(AHEAD + lane * head.v_row_bytes + head.dim_v));
                    }
                }
                for g in 0..(V * LANES).div_ceil(C::GROUP) {
                    for r in 0..R {
                        let p = simd.load(p.p.add(r * RANGE));
                        let p = C::scaled(simd, p, rows, head.v_row_bytes, head.dim_v, first + g * C::GROUP / LANES);
                        simd.store(scaled[g][r].as_mut_ptr(), p);
                    }
                }
                p = Weights { p: scaled.as_ptr().cast(), entry: LANES, group: R * LANES };
            }
            if block.union == u16::MAX {
                for lane in 0..LANES {
                    let row = rows.add(lane * head.v_row_bytes);
                    add_cell::<S, C, R, V>(simd, &mut sums, row, first, p.of(lane));
                }
            } else {
                let mut left = block.union;
                while left != 0 {
                    let lane = left.trailing_zeros() as usize;
                    left &= left - 1;
                    let row = rows.add(lane * head.v_row_bytes);
                    add_cell::<S, C, R, V>(simd, &mut sums, row, first, p.of(lane));
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                simd.store(out.add(r * head.dim_v + v * LANES), sums[r][v]);
            }
        }
    }
}

/// Where the weights of a cell and some entries are.
#[derive(Clone, Copy)]
struct Weights {
    p: *const f32,
    /// From one entry to the next.
    entry: usize,
    /// From one group of dimensions to the next.
    group: usize,
}

impl Weights {
    #[inline(always)]
    fn of(self, lane: usize) -> Weights {
        Weights { p: self.p.wrapping_add(lane), ..self }
    }
}

#[inline(always)]
unsafe fn add_cell<S: Vector, C: Cells, const R: usize, const V: usize>(
    simd: S,
    sums: &mut [[S::F; V]; R],
    row: *const u8,
    first: usize,
    weights: Weights,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut x = [simd.splat(0.0); V];
        for v in 0..V {
            x[v] = C::v(simd, row, first + v);
            if R <= FEW && (v * C::BYTES).is_multiple_of(LINE) {
                simd.prefetch(row.wrapping_add(AHEAD + (first + v) * C::BYTES));
            }
        }
        for r in 0..R {
            for v in 0..V {
                let p = weights.p.add(r * weights.entry + v * LANES / C::GROUP * weights.group);
                sums[r][v] = simd.fma(simd.splat(*p), x[v], sums[r][v]);
            }
        }
    }
}

/// `o = old o + new sums`, over whole vectors.
#[inline(always)]
pub(crate) fn blend<S: Vector>(simd: S, o: &mut [f32], old: f32, sums: &[f32], new: f32) {
    for (o, sums) in o.as_chunks_mut::<LANES>().0.iter_mut().zip(sums.as_chunks::<LANES>().0) {
        // SAFETY: arrays of one vector.
        unsafe {
            let scaled = simd.mul(simd.load(o.as_ptr()), simd.splat(old));
            simd.store(o.as_mut_ptr(), simd.fma(simd.load(sums.as_ptr()), simd.splat(new), scaled));
        }
    }
}

/// Turn the scores of one entry into weights e^(s - max) in place; cells outside `bits` get 0. Returns the largest
/// score and the sum of the weights. At least one cell is seen.
///
/// # Safety
///
/// `s` holds a vector per entry of `bits`.
#[inline(always)]
pub(crate) unsafe fn softmax<S: Vector>(simd: S, s: *mut f32, bits: &[u16], softcap: f32) -> (f32, f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut max = simd.splat(f32::NEG_INFINITY);
        for (i, &bits) in bits.iter().enumerate() {
            let mut v = simd.load(s.add(i * LANES));
            if softcap != 0.0 {
                v = simd.mul(tanh(simd, simd.mul(v, simd.splat(1.0 / softcap))), simd.splat(softcap));
            }
            if bits != u16::MAX {
                v = simd.select(simd.mask(bits), v, simd.splat(f32::NEG_INFINITY));
            }
            simd.store(s.add(i * LANES), v);
            max = simd.max(v, max);
        }
        // A NaN among the scores may be lost here, but comes back in its own weight and thus in the sum.
        let max = simd.largest(max);
        let mut sum = simd.splat(0.0);
        for i in 0..bits.len() {
            let p = exp(simd, simd.sub(simd.load(s.add(i * LANES)), simd.splat(max)));
            simd.store(s.add(i * LANES), p);
            sum = simd.add(sum, p);
        }
        (max, simd.sum(sum))
    }
}
