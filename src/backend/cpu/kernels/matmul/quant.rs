//! Quantised weights times 8-bit activations.
//!
//! ```text
//! for each tile of C columns:
//!     total[c] = 0                                     f32, a lane a row
//!     for each block of 32 weights of the panel:
//!         codes, scales, minimums <- unpack            once for all columns
//!         for each column:
//!             dot = zero * -sum(a) + codes . a         i32, exact
//!             t   = dot * scales (+ minimums * -sum(a))
//!             total[c] += t * scale(a)
//! ```
//!
//! The integers are exact in any order and the floats of a (row, column) go block by block, so a result does not
//! depend on the tile's width, on the panels computed beside it or on the thread.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use super::operands::{Columns, Target};
use crate::backend::cpu::kernels::activations::Meta;
use crate::backend::cpu::packed::format::{BYTE_PLANE, Codes, Format, Steps};
use crate::simd::{Kernel, LANES, Unpacked, Vector, is_amd};
use std::marker::PhantomData;
use std::mem::size_of;

/// How far ahead of its place a product asks for weights, in bytes. Panels follow each other, so they are one stream.
/// Measured best of 2 to 24 KiB: three small pages, for the processor's prefetcher ends with each.
const AHEAD: usize = 12 << 10;

/// Bytes of a small page.
const PAGE: usize = 4 << 10;

/// How many bytes of a page are asked for where that is its beginning alone. On a Zen 4 a file of Q8_0 on small pages
/// is decoded 1.14 times as fast as without. Where eight columns share the codes it is faster to ask for all of it.
const PAGE_START: usize = 768;

/// One panel times `C` columns.
pub(crate) struct Tile<'a, F, const C: usize> {
    pub(super) panel: *const u8,
    pub(super) n_in: usize,
    pub(super) x: &'a Columns,
    /// The first of the `C` columns.
    pub(super) column: usize,
    pub(super) target: Target,
    pub(super) format: PhantomData<F>,
}

/// Bytes of a block of 16 rows, its share of the chunk's scales included.
const fn block_bytes<F: Format>() -> usize {
    F::BYTES * 32 / F::CHUNK
}

/// How many bytes of a page a product of `columns` columns asks for ahead.
///
/// With one column the processor's own prefetcher keeps up, and is only disturbed, where codes are bytes, which need no
/// unpacking; on AMD's processors also where a vector is a whole line, as with AVX-512: on a Zen 4 files of four-bit
/// codes are decoded 1.3 times as fast without other requests than for the beginnings of pages.
#[inline(always)]
fn fetched<S: Vector, F: Format>(columns: usize) -> usize {
    let by_itself = columns == 1 && (block_bytes::<F>() >= BYTE_PLANE || S::WIDE && is_amd());
    match (by_itself, is_amd()) {
        (false, _) => PAGE,
        (true, true) => PAGE_START,
        (true, false) => 0,
    }
}

/// Asks for the block that is read [`AHEAD`] bytes after block `b` of a chunk, where its end is within the first
/// `fetched` bytes of a page.
#[inline(always)]
fn fetch<S: Vector, F: Format>(simd: S, chunk: *const u8, b: usize, fetched: usize) {
    let ahead = chunk.wrapping_add(AHEAD + b * block_bytes::<F>());
    if (ahead.addr() + block_bytes::<F>()) % PAGE < fetched {
        simd.prefetch_lines(ahead, block_bytes::<F>().div_ceil(64));
    }
}

/// A block of weights, unpacked.
struct Block<S: Vector> {
    codes: Codes<S>,
    scales: [S::F; 2],
    minimums: [S::F; 2],
    /// Of one column of a type with steps: the chunk's units, of scales and of minimums.
    units: [S::F; 2],
    /// Its chunk, and its place there.
    chunk: *const u8,
    place: usize,
}

impl<F: Format, const C: usize> Kernel for Tile<'_, F, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let fetched = fetched::<S, F>(C);
        let mut total = [simd.splat(0.0); C];
        let mut x = [self.x.row(self.column).cast::<i8>(); C];
        for c in 1..C {
            x[c] = self.x.row(self.column + c).cast();
        }
        for chunk in 0..self.n_in / F::CHUNK {
            let weights = self.panel.wrapping_add(chunk * F::BYTES);
            let units = match F::STEPS {
                // SAFETY: whoever makes a tile vouches for a panel of `n_in` weights a row.
                Some(steps) if C == 1 => unsafe { units::<S, F>(simd, weights, steps) },
                _ => [simd.splat(0.0); 2],
            };
            for b in 0..F::CHUNK / 32 {
                let index = chunk * (F::CHUNK / 32) + b;
                fetch::<S, F>(simd, weights, b, fetched);
                // SAFETY: whoever makes a tile vouches for a panel of `n_in` weights a row and for columns of as many
                // activations; `index` counts the blocks of both.
                unsafe {
                    let minimums = if F::MINIMUM { F::minimums(simd, weights, b) } else { [simd.splat(0.0); 2] };
                    let (codes, scales) = (F::codes(simd, weights, b), F::scales(simd, weights, b));
                    let block = Block { codes, scales, minimums, units, chunk: weights, place: b };
                    // Four columns at a time keep the multiplier busy; written out, for `total` to stay in registers.
                    match C {
                        1 => part::<S, F, 1, C>(simd, &block, &x, 0, index, self.n_in, &mut total),
                        2 => part::<S, F, 2, C>(simd, &block, &x, 0, index, self.n_in, &mut total),
                        _ => {
                            part::<S, F, 4, C>(simd, &block, &x, 0, index, self.n_in, &mut total);
                            if C >= 8 {
                                part::<S, F, 4, C>(simd, &block, &x, 4, index, self.n_in, &mut total);
                            }
                            if C >= 16 {
                                part::<S, F, 4, C>(simd, &block, &x, 8, index, self.n_in, &mut total);
                                part::<S, F, 4, C>(simd, &block, &x, 12, index, self.n_in, &mut total);
                            }
                        }
                    }
                }
            }
        }
        // SAFETY: whoever makes a tile vouches for the target's rows in these columns.
        unsafe { self.target.put(simd, self.column, total) }
    }
}

/// One panel times many columns, the panel unpacked to memory a few blocks at a time.
pub(crate) struct Unpacking<'a, F> {
    pub(super) panel: *const u8,
    pub(super) n_in: usize,
    pub(super) x: &'a Columns,
    /// The first of `count` columns.
    pub(super) column: usize,
    /// At most [`MANY`].
    pub(super) count: usize,
    pub(super) target: Target,
    pub(super) unpacked: &'a mut [Unpacked; UNPACKED],
    pub(super) format: PhantomData<F>,
}

/// Columns that share what was unpacked.
pub(super) const MANY: usize = 64;

/// Blocks that are unpacked together, a power of two of them in 14 KiB: they stay in the first-level cache, and the
/// more they are the more rarely totals and pointers are loaded.
pub(super) const UNPACKED: usize = 1 << ((14 << 10) / size_of::<Unpacked>()).ilog2();

impl<F: Format> Kernel for Unpacking<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let mut totals = [[0f32; LANES]; MANY];
        // The last column stands in for those that are not there.
        let mut columns = [self.x.row(self.column + self.count - 1); MANY];
        for (c, to) in columns.iter_mut().enumerate().take(self.count) {
            *to = self.x.row(self.column + c);
        }
        let zero = match F::ZERO {
            Some(bits) if !(F::BITS == 8 && S::SIGNED_BYTES) => 1 << bits,
            _ => 0,
        };
        let n_blocks = self.n_in / 32;
        for start in (0..n_blocks).step_by(UNPACKED) {
            let blocks = &mut self.unpacked[..UNPACKED.min(n_blocks - start)];
            for (index, block) in (start..).zip(blocks.iter_mut()) {
                let (chunk, b) = (index / (F::CHUNK / 32), index % (F::CHUNK / 32));
                let weights = self.panel.wrapping_add(chunk * F::BYTES);
                fetch::<S, F>(simd, weights, b, PAGE);
                // SAFETY: whoever makes this vouches for a panel of `n_in` weights a row; the arrays have 16 lanes.
                unsafe {
                    simd.unpack(F::BITS, &F::codes(simd, weights, b), zero, &mut block.codes);
                    for (to, x) in block.scales.iter_mut().zip(F::scales(simd, weights, b)) {
                        simd.store(to.as_mut_ptr(), x);
                    }
                    if F::SHORT_SCALES {
                        let start = simd.splat(-f32::from_bits(S::START.cast_unsigned()));
                        let offsets = simd.mul(simd.load(block.scales[0].as_ptr()), start);
                        simd.store(block.offsets.as_mut_ptr(), offsets);
                    }
                    if F::MINIMUM {
                        for (to, x) in block.minimums.iter_mut().zip(F::minimums(simd, weights, b)) {
                            simd.store(to.as_mut_ptr(), x);
                        }
                    }
                }
            }
            let groups = self.count.div_ceil(Unpacked::COLUMNS);
            let totals = totals.as_chunks_mut::<{ Unpacked::COLUMNS }>().0.iter_mut();
            for (columns, totals) in columns.as_chunks::<{ Unpacked::COLUMNS }>().0.iter().zip(totals).take(groups) {
                let x = columns.map(|row| row.wrapping_add(32 * start).cast());
                let meta = columns.map(|row| row.wrapping_add(self.n_in + start * size_of::<Meta>()).cast());
                let total = totals.as_mut_ptr().cast();
                // SAFETY: the columns hold `n_in` activations, codes and then a `Meta` for each block.
                unsafe {
                    match (F::SHORT_SCALES, F::HALVES, F::MINIMUM) {
                        (true, false, false) => {
                            simd.multiply::<true, false, false>(F::BITS, zero, blocks, x, meta, total)
                        }
                        (true, false, true) => {
                            simd.multiply::<true, false, true>(F::BITS, zero, blocks, x, meta, total)
                        }
                        (true, true, false) => {
                            simd.multiply::<true, true, false>(F::BITS, zero, blocks, x, meta, total)
                        }
                        (true, true, true) => simd.multiply::<true, true, true>(F::BITS, zero, blocks, x, meta, total),
                        (false, ..) => {
                            const { assert!(F::SHORT_SCALES || !F::HALVES && !F::MINIMUM) }
                            simd.multiply::<false, false, false>(F::BITS, zero, blocks, x, meta, total)
                        }
                    }
                }
            }
        }
        for (c, total) in totals.iter().enumerate().take(self.count) {
            // SAFETY: whoever makes this vouches for the target's rows in these columns.
            unsafe { self.target.put(simd, self.column + c, [simd.load(total.as_ptr())]) }
        }
    }
}

/// Adds block `index` of the columns `from..from + J` to their totals.
///
/// # Safety
/// The columns hold `n_in` activations, `index` is one of their blocks, and `from + J <= C`.
#[inline(always)]
unsafe fn part<S: Vector, F: Format, const J: usize, const C: usize>(
    simd: S,
    block: &Block<S>,
    x: &[*const i8; C],
    from: usize,
    index: usize,
    n_in: usize,
    total: &mut [S::F; C],
) {
    let start = if F::SHORT_SCALES && !(J == 1 && F::STEPS.is_some()) { S::START } else { 0 };
    // SAFETY: the caller's promise: a row is `n_in` codes and a `Meta` for each block of 32.
    unsafe {
        let mut codes = [x[from]; J];
        let mut meta = [x[from].cast::<Meta>(); J];
        let mut dot = [[simd.splat_int(0); J]; 2];
        for j in 0..J {
            codes[j] = x[from + j].add(32 * index);
            meta[j] = x[from + j].add(n_in + index * size_of::<Meta>()).cast();
            if F::HALVES {
                dot[0][j] = zero_point::<S, F, J>(simd, start, (*meta[j]).first);
                dot[1][j] = zero_point::<S, F, J>(simd, 0, (*meta[j]).last);
            } else {
                dot[0][j] = zero_point::<S, F, J>(simd, start, (*meta[j]).all);
            }
        }
        if F::HALVES {
            dot = simd.dot_halves::<J>(F::BITS, dot, &block.codes, codes);
        } else {
            dot[0] = simd.dot::<2, J>(F::BITS, dot[0], &block.codes, codes);
        }
        if let (1, Some(steps)) = (J, F::STEPS) {
            let t = by_steps::<S, F>(simd, block, steps, [dot[0][0], dot[1][0]], *meta[0]);
            total[from] = simd.fma(t, simd.splat((*meta[0]).scale), total[from]);
            return;
        }
        for j in 0..J {
            let mut t = if F::SHORT_SCALES {
                simd.scaled(dot[0][j], block.scales[0])
            } else {
                simd.mul(simd.to_float(dot[0][j]), block.scales[0])
            };
            if F::HALVES {
                t = simd.fma(simd.to_float(dot[1][j]), block.scales[1], t);
            }
            if F::MINIMUM && F::HALVES {
                t = simd.fma(simd.to_float(simd.splat_int((*meta[j]).first)), block.minimums[0], t);
                t = simd.fma(simd.to_float(simd.splat_int((*meta[j]).last)), block.minimums[1], t);
            } else if F::MINIMUM {
                t = simd.fma(simd.to_float(simd.splat_int((*meta[j]).all)), block.minimums[0], t);
            }
            total[from + j] = simd.fma(t, simd.splat((*meta[j]).scale), total[from + j]);
        }
    }
}

/// The units of a chunk's scales, and of its minimums where it has some.
///
/// # Safety
/// `chunk` points to a whole chunk.
#[inline(always)]
unsafe fn units<S: Vector, F: Format>(simd: S, chunk: *const u8, steps: Steps) -> [S::F; 2] {
    // SAFETY: the caller's promise: the units of scales begin the chunk, those of minimums are where `steps` says.
    unsafe {
        let mut unit = simd.load_f16(chunk);
        if steps.factor != 1.0 {
            unit = simd.mul(unit, simd.splat(steps.factor));
        }
        [unit, if F::MINIMUM { simd.load_f16(chunk.add(steps.minimums[0])) } else { simd.splat(0.0) }]
    }
}

/// A K or IQ type's block times one column, the activations' scale left out: the same bits as with the scales as
/// floats, which only pay where several columns share them.
///
/// # Safety
/// The block lies in its chunk.
#[inline(always)]
unsafe fn by_steps<S: Vector, F: Format>(simd: S, block: &Block<S>, steps: Steps, dot: [S::I; 2], meta: Meta) -> S::F {
    let groups = if F::HALVES { 2 } else { 1 };
    let [unit, minimum_unit] = block.units;
    // SAFETY: the chunk has 16 steps for each group where `steps` says.
    unsafe {
        let at = |from: usize, half: usize| block.chunk.add(from + LANES * (groups * block.place + half));
        let scale = |half| {
            if steps.signed { simd.load_i8(at(steps.scales, half)) } else { simd.load_u8(at(steps.scales, half)) }
        };
        let mut t = simd.times_steps(dot[0], scale(0), unit, steps.small);
        if F::HALVES {
            t = simd.fma_steps(dot[1], scale(1), unit, t, steps.small);
        }
        if F::MINIMUM {
            let at = |half| at(steps.minimums[1], half);
            if F::HALVES {
                t = simd.fma_steps_at(meta.first, at(0), minimum_unit, t);
                t = simd.fma_steps_at(meta.last, at(1), minimum_unit, t);
            } else {
                t = simd.fma_steps_at(meta.all, at(0), minimum_unit, t);
            }
        }
        t
    }
}

/// What a dot product starts from: `start` plus the zero point times the negated sum of activations.
#[inline(always)]
fn zero_point<S: Vector, F: Format, const J: usize>(simd: S, start: i32, negated_sum: i32) -> S::I {
    let signed = F::BITS == 8 && if J == 1 { S::ONE_SIGNED } else { S::SIGNED_BYTES };
    match F::ZERO {
        Some(bits) if !signed && start == 0 => simd.shl_int(simd.splat_int(negated_sum), bits),
        Some(bits) if !signed => simd.splat_int(start + (negated_sum << bits)),
        _ if start != 0 => simd.splat_int(start),
        _ => simd.no_dot(),
    }
}
