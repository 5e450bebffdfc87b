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

use std::marker::PhantomData;
use std::mem::size_of;

use super::acts::Meta;
use super::lanes::{Kernel, Lanes};
use super::matmul::{Columns, Target};
use super::panels_format::{Codes, Format};

/// One panel times `C` columns.
pub(super) struct Tile<'a, F, const C: usize> {
    pub(super) panel: *const u8,
    pub(super) n_in: usize,
    pub(super) x: &'a Columns,
    /// The first of the `C` columns.
    pub(super) column: usize,
    pub(super) target: Target,
    pub(super) format: PhantomData<F>,
}

/// A block of weights, unpacked.
struct Block<L: Lanes> {
    codes: Codes<L>,
    scales: [L::F; 2],
    minimums: [L::F; 2],
}

impl<F: Format, const C: usize> Kernel for Tile<'_, F, C> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let mut total = [l.zero(); C];
        let mut x = [self.x.row(self.column).cast::<i8>(); C];
        for c in 1..C {
            x[c] = self.x.row(self.column + c).cast();
        }
        for chunk in 0..self.n_in / F::CHUNK {
            let weights = self.panel.wrapping_add(chunk * F::BYTES);
            for b in 0..F::CHUNK / 32 {
                let index = chunk * (F::CHUNK / 32) + b;
                // SAFETY: whoever makes a tile vouches for a panel of `n_in` weights a row and for columns of as many
                // activations; `index` counts the blocks of both.
                unsafe {
                    let minimums = if F::MINIMUM { F::minimums(l, weights, b) } else { [l.zero(); 2] };
                    let block = Block { codes: F::codes(l, weights, b), scales: F::scales(l, weights, b), minimums };
                    // Four columns at a time keep the multiplier busy; written out, for `total` to stay in registers.
                    match C {
                        1 => part::<L, F, 1, C>(l, &block, &x, 0, index, self.n_in, &mut total),
                        2 => part::<L, F, 2, C>(l, &block, &x, 0, index, self.n_in, &mut total),
                        _ => {
                            part::<L, F, 4, C>(l, &block, &x, 0, index, self.n_in, &mut total);
                            if C >= 8 {
                                part::<L, F, 4, C>(l, &block, &x, 4, index, self.n_in, &mut total);
                            }
                            if C >= 16 {
                                part::<L, F, 4, C>(l, &block, &x, 8, index, self.n_in, &mut total);
                                part::<L, F, 4, C>(l, &block, &x, 12, index, self.n_in, &mut total);
                            }
                        }
                    }
                }
            }
        }
        // SAFETY: whoever makes a tile vouches for the target's rows in these columns.
        unsafe { self.target.put(l, self.column, total) }
    }
}

/// Adds block `index` of the columns `from..from + J` to their totals.
///
/// # Safety
/// The columns hold `n_in` activations, `index` is one of their blocks, and `from + J <= C`.
#[inline(always)]
unsafe fn part<L: Lanes, F: Format, const J: usize, const C: usize>(
    l: L,
    block: &Block<L>,
    x: &[*const i8; C],
    from: usize,
    index: usize,
    n_in: usize,
    total: &mut [L::F; C],
) {
    // SAFETY: the caller's promise: a row is `n_in` codes and a `Meta` for each block of 32.
    unsafe {
        let mut codes = [x[from]; J];
        let mut meta = [x[from].cast::<Meta>(); J];
        let mut dot = [[l.splat_int(0); J]; 2];
        for j in 0..J {
            codes[j] = x[from + j].add(32 * index);
            meta[j] = x[from + j].add(n_in + index * size_of::<Meta>()).cast();
            if F::HALVES {
                dot[0][j] = zero_point::<L, F>(l, (*meta[j]).first);
                dot[1][j] = zero_point::<L, F>(l, (*meta[j]).last);
            } else {
                dot[0][j] = zero_point::<L, F>(l, (*meta[j]).all);
            }
        }
        if F::HALVES {
            dot[0] = l.dot::<1, J>(F::BITS, dot[0], &[block.codes[0]], codes);
            for j in 0..J {
                codes[j] = codes[j].add(16);
            }
            dot[1] = l.dot::<1, J>(F::BITS, dot[1], &[block.codes[1]], codes);
        } else {
            dot[0] = l.dot::<2, J>(F::BITS, dot[0], &block.codes, codes);
        }
        for j in 0..J {
            let mut t = l.mul(l.to_float(dot[0][j]), block.scales[0]);
            if F::HALVES {
                t = l.fma(l.to_float(dot[1][j]), block.scales[1], t);
            }
            if F::MINIMUM && F::HALVES {
                t = l.fma(l.to_float(l.splat_int((*meta[j]).first)), block.minimums[0], t);
                t = l.fma(l.to_float(l.splat_int((*meta[j]).last)), block.minimums[1], t);
            } else if F::MINIMUM {
                t = l.fma(l.to_float(l.splat_int((*meta[j]).all)), block.minimums[0], t);
            }
            total[from + j] = l.fma(t, l.splat((*meta[j]).scale), total[from + j]);
        }
    }
}

/// What a dot product starts from: the zero point times the negated sum of activations.
#[inline(always)]
fn zero_point<L: Lanes, F: Format>(l: L, negated_sum: i32) -> L::I {
    match F::ZERO {
        Some(bits) if !(F::BITS == 8 && L::SIGNED_BYTES) => l.shl_int(l.splat_int(negated_sum), bits),
        _ => l.splat_int(0),
    }
}
