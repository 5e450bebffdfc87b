//! Float weights times `f32` activations.
//!
//! A panel holds 16 weights side by side for each input; a kernel broadcasts the activation and multiplies. Even
//! and odd inputs have a sum of their own (two chains for the multiplier to overlap, and half the rounding), added
//! at the end; so a result depends on neither the tile's width nor the panels beside it.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use super::operands::{Columns, Target};
use crate::simd::{Kernel, LANES, Vector};
use std::marker::PhantomData;

/// A float type as it lies in a panel.
pub(crate) trait Element: 'static {
    /// Bytes of one.
    const BYTES: usize;
    /// Loads 16.
    ///
    /// # Safety
    /// `p` is readable for 16 elements.
    unsafe fn load<S: Vector>(simd: S, p: *const u8) -> S::F;
}

macro_rules! element {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $load:ident) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Element for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load<S: Vector>(simd: S, p: *const u8) -> S::F {
                // SAFETY: the caller's promise.
                unsafe { simd.$load(p.cast()) }
            }
        }
    };
}

element! {
    /// IEEE single precision.
    F32, 4, load
}
element! {
    /// IEEE half precision.
    F16, 2, load_f16
}
element! {
    /// bfloat16.
    Bf16, 2, load_bf16
}

/// One panel times `C` columns.
pub(crate) struct Tile<'a, E, const C: usize> {
    pub(super) panel: *const u8,
    pub(super) n_in: usize,
    pub(super) x: &'a Columns,
    /// The first of the `C` columns.
    pub(super) column: usize,
    pub(super) target: Target,
    pub(super) element: PhantomData<E>,
}

impl<E: Element, const C: usize> Kernel for Tile<'_, E, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let (mut even, mut odd) = ([simd.splat(0.0); C], [simd.splat(0.0); C]);
        let mut x = [self.x.row(self.column).cast::<f32>(); C];
        for c in 1..C {
            x[c] = self.x.row(self.column + c).cast();
        }
        // SAFETY: whoever makes a tile vouches for a panel of `n_in` weights a row, for columns of as many `f32`, and
        // for the target's rows in these columns.
        unsafe {
            for k in (0..self.n_in & !1).step_by(2) {
                let weights = self.panel.add(k * LANES * E::BYTES);
                let (w, v) = (E::load(simd, weights), E::load(simd, weights.add(LANES * E::BYTES)));
                for c in 0..C {
                    even[c] = simd.fma(w, simd.splat(*x[c].add(k)), even[c]);
                    odd[c] = simd.fma(v, simd.splat(*x[c].add(k + 1)), odd[c]);
                }
            }
            if self.n_in % 2 == 1 {
                let k = self.n_in - 1;
                let w = E::load(simd, self.panel.add(k * LANES * E::BYTES));
                for c in 0..C {
                    even[c] = simd.fma(w, simd.splat(*x[c].add(k)), even[c]);
                }
            }
            for c in 0..C {
                even[c] = simd.add(even[c], odd[c]);
            }
            self.target.put(simd, self.column, even)
        }
    }
}
