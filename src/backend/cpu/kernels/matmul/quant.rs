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
use crate::backend::cpu::packed::format::{BYTE_PLANE, Codes, Format};
use crate::simd::{Kernel, Vector};
use std::marker::PhantomData;
use std::mem::size_of;

/// How far ahead of its place the product of one column asks for weights, in bytes. Panels follow each other, so they
/// are one stream. Measured best of 2 to 24 KiB: three small pages, for the processor's prefetcher ends with each.
const AHEAD: usize = 12 << 10;

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

impl<F: Format, const C: usize> Tile<'_, F, C> {
    /// Bytes of a block of 16 rows, its share of the chunk's scales included.
    const BLOCK_BYTES: usize = F::BYTES * 32 / F::CHUNK;
    /// Whether the product of one column asks for the weights ahead. Codes that are bytes need no unpacking: there the
    /// processor's own prefetcher keeps up, and is only disturbed.
    const FETCHES: bool = Self::BLOCK_BYTES < BYTE_PLANE;
}

/// A block of weights, unpacked.
struct Block<S: Vector> {
    codes: Codes<S>,
    scales: [S::F; 2],
    minimums: [S::F; 2],
}

impl<F: Format, const C: usize> Kernel for Tile<'_, F, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let mut total = [simd.splat(0.0); C];
        let mut x = [self.x.row(self.column).cast::<i8>(); C];
        for c in 1..C {
            x[c] = self.x.row(self.column + c).cast();
        }
        for chunk in 0..self.n_in / F::CHUNK {
            let weights = self.panel.wrapping_add(chunk * F::BYTES);
            for b in 0..F::CHUNK / 32 {
                let index = chunk * (F::CHUNK / 32) + b;
                if C == 1 && Self::FETCHES {
                    for line in 0..Self::BLOCK_BYTES.div_ceil(64) {
                        simd.prefetch(weights.wrapping_add(AHEAD + b * Self::BLOCK_BYTES + 64 * line));
                    }
                }
                // SAFETY: whoever makes a tile vouches for a panel of `n_in` weights a row and for columns of as many
                // activations; `index` counts the blocks of both.
                unsafe {
                    let minimums = if F::MINIMUM { F::minimums(simd, weights, b) } else { [simd.splat(0.0); 2] };
                    let block =
                        Block { codes: F::codes(simd, weights, b), scales: F::scales(simd, weights, b), minimums };
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
    // SAFETY: the caller's promise: a row is `n_in` codes and a `Meta` for each block of 32.
    unsafe {
        let mut codes = [x[from]; J];
        let mut meta = [x[from].cast::<Meta>(); J];
        let mut dot = [[simd.splat_int(0); J]; 2];
        for j in 0..J {
            codes[j] = x[from + j].add(32 * index);
            meta[j] = x[from + j].add(n_in + index * size_of::<Meta>()).cast();
            if F::HALVES {
                dot[0][j] = zero_point::<S, F>(simd, (*meta[j]).first);
                dot[1][j] = zero_point::<S, F>(simd, (*meta[j]).last);
            } else {
                dot[0][j] = zero_point::<S, F>(simd, (*meta[j]).all);
            }
        }
        if F::HALVES {
            dot[0] = simd.dot::<1, J>(F::BITS, dot[0], &[block.codes[0]], codes);
            for j in 0..J {
                codes[j] = codes[j].add(16);
            }
            dot[1] = simd.dot::<1, J>(F::BITS, dot[1], &[block.codes[1]], codes);
        } else {
            dot[0] = simd.dot::<2, J>(F::BITS, dot[0], &block.codes, codes);
        }
        for j in 0..J {
            let mut t = simd.mul(simd.to_float(dot[0][j]), block.scales[0]);
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

/// What a dot product starts from: the zero point times the negated sum of activations.
#[inline(always)]
fn zero_point<S: Vector, F: Format>(simd: S, negated_sum: i32) -> S::I {
    match F::ZERO {
        Some(bits) if !(F::BITS == 8 && S::SIGNED_BYTES) => simd.shl_int(simd.splat_int(negated_sum), bits),
        _ => simd.splat_int(0),
    }
}
