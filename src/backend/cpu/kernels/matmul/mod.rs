//! Matrix times activations on the CPU: the entry points, and the order in which tiles are computed.
//!
//! Work is a range of panels times all columns. Columns are taken in passes that fit the second-level cache, panels
//! within a pass, tiles of up to `Vector::TILE` columns within a panel; a single column is one stream through the
//! weights. A result, one row of the weights times one column, has the same bits whatever is computed with it, on
//! one instruction set: the kernels see to that (`quant.rs`, `float.rs`).

mod float;
mod operands;
mod quant;
#[cfg(test)]
mod tests;

pub use operands::Columns;

use super::activations;
use crate::backend::cpu::packed::format::Format;
use crate::backend::cpu::packed::{ActivationKind, PANEL, PackedMatrix, with_format};
use crate::quant::TensorType;
use crate::simd::{Isa, Kernel, Unpacked, Vector, dispatch};
use crate::{Error, Result};
use operands::Target;
use std::marker::PhantomData;
use std::ops::Range;

/// Bytes of activations that a pass over the panels keeps in the second-level cache.
const PASS_BYTES: usize = 256 << 10;

/// Multiplies the panels of a range with all columns: `out[c * out_stride + row]` becomes, or is increased by, the dot
/// product of weight row `row` and column `c`. Rows outside the panels are not touched, so disjoint ranges may run on
/// different threads. An instruction set that the processor lacks runs as the portable one.
///
/// # Safety
/// The panels are packed and lie in `w`. `x` holds `count` rows of `n_in` activations of `w.activation_kind()`,
/// readable and not written meanwhile. The rows of the range are writable in every column of `out` (and set, to
/// accumulate), and used by nobody else meanwhile.
pub unsafe fn matmul(
    isa: Isa,
    w: &PackedMatrix,
    panels: Range<usize>,
    x: Columns,
    out: *mut f32,
    out_stride: usize,
    accumulate: bool,
) {
    debug_assert!(panels.end <= w.n_panels());
    let job = Job { w, panels, x, out, stride: out_stride, accumulate };
    match w.ty() {
        TensorType::F32 => dispatch(isa, Floats::<float::F32>(job, PhantomData)),
        TensorType::F16 => dispatch(isa, Floats::<float::F16>(job, PhantomData)),
        TensorType::BF16 => dispatch(isa, Floats::<float::Bf16>(job, PhantomData)),
        ty => with_format!(ty, F => dispatch(isa, Quants::<F>(job, PhantomData)), else ()),
    }
}

/// Computes only some rows of one column: `out[i]` is the dot product of weight row `rows[i]` and `x`, the same bits
/// as [`matmul`]. Neighbouring entries that lie in one panel share its work, so ascending rows are cheapest.
///
/// # Errors
/// [`Error::InvalidArgument`] when a row is beyond the matrix, `out` is not as long as `rows`, or `x` is not one row of
/// `w.activation_kind()`.
pub fn gather_rows(isa: Isa, w: &PackedMatrix, rows: &[u32], x: &[u8], out: &mut [f32]) -> Result<()> {
    let (expected, aligned) = match w.activation_kind() {
        ActivationKind::F32 => (w.n_in() * size_of::<f32>(), x.as_ptr().cast::<f32>().is_aligned()),
        ActivationKind::Q8 => (activations::row_bytes(w.n_in()), x.as_ptr().cast::<activations::Meta>().is_aligned()),
    };
    if x.len() < expected || !aligned || out.len() != rows.len() {
        return Err(Error::InvalidArgument(format!(
            "{} rows into {} results from an activation row of {} bytes, expected {expected}",
            rows.len(),
            out.len(),
            x.len()
        )));
    }
    if let Some(row) = rows.iter().find(|&&row| row as usize >= w.n_out()) {
        return Err(Error::InvalidArgument(format!("row {row} of {} to compute", w.n_out())));
    }
    let x = Columns { data: x.as_ptr(), row_bytes: x.len(), count: 1 };
    let mut lanes = [0f32; PANEL];
    let mut computed = usize::MAX;
    for (row, result) in rows.iter().map(|&row| row as usize).zip(out) {
        let panel = row / PANEL;
        if panel != computed {
            let start = lanes.as_mut_ptr().wrapping_sub(panel * PANEL);
            // SAFETY: `x` is one row of the right length; one panel writes at most PANEL results, from `lanes`.
            unsafe { matmul(isa, w, panel..panel + 1, x, start, 0, false) };
            computed = panel;
        }
        *result = lanes[row % PANEL];
    }
    Ok(())
}

/// The arguments of [`matmul`].
struct Job<'a> {
    w: &'a PackedMatrix,
    panels: Range<usize>,
    x: Columns,
    out: *mut f32,
    stride: usize,
    accumulate: bool,
}

impl Job<'_> {
    /// Calls `tile(panel, target, column, left)` for the tiles in order, until all columns are done; the call returns
    /// how many of the `left` columns it took.
    #[inline(always)]
    fn for_each_tile(&self, widest: usize, mut tile: impl FnMut(*const u8, Target, usize, usize) -> usize) {
        let pass = (PASS_BYTES / self.x.row_bytes.max(1) / widest).max(1) * widest;
        let mut first = 0;
        while first < self.x.count {
            let end = (first + pass).min(self.x.count);
            for panel in self.panels.clone() {
                let row = panel * PANEL;
                let target = Target {
                    out: self.out.wrapping_add(row),
                    stride: self.stride,
                    rows: (self.w.n_out() - row).min(PANEL),
                    accumulate: self.accumulate,
                };
                let mut column = first;
                while column < end {
                    column += tile(self.w.panel(panel), target, column, end - column);
                }
            }
            first = end;
        }
    }
}

/// Picks the widest tile of a list that fits both the instruction set and the columns left.
macro_rules! widest {
    ($left:ident, $limit:expr, $tile:ident, $($width:literal)*) => {{
        $(if $width <= $limit && $left >= $width {
            $tile!($width);
            return $width;
        })*
        $tile!(1);
        1
    }};
}

struct Quants<'a, F>(Job<'a>, PhantomData<F>);

impl<F: Format> Kernel for Quants<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let (n_in, x) = (self.0.w.n_in(), &self.0.x);
        let together = if S::UNPACKS_FROM == usize::MAX { S::TILE } else { quant::MANY };
        let mut unpacked = (x.count >= S::UNPACKS_FROM).then_some([Unpacked::EMPTY; quant::UNPACKED]);
        self.0.for_each_tile(together, |panel, target, column, left| {
            // Where a few are left, they unpack in their tiles.
            if let Some(unpacked) = &mut unpacked
                && left >= S::UNPACKS_FROM
            {
                let (count, format) = (left.min(quant::MANY), PhantomData);
                simd.vectorize(quant::Unpacking::<F> { panel, n_in, x, column, count, target, unpacked, format });
                return count;
            }
            macro_rules! tile {
                ($width:literal) => {
                    simd.vectorize(quant::Tile::<F, $width> { panel, n_in, x, column, target, format: PhantomData })
                };
            }
            widest!(left, S::TILE, tile, 16 8 4 2)
        })
    }
}

struct Floats<'a, E>(Job<'a>, PhantomData<E>);

impl<E: float::Element> Kernel for Floats<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let (n_in, x) = (self.0.w.n_in(), &self.0.x);
        self.0.for_each_tile(S::FLOAT_TILE, |panel, target, column, left| {
            macro_rules! tile {
                ($width:literal) => {
                    simd.vectorize(float::Tile::<E, $width> { panel, n_in, x, column, target, element: PhantomData })
                };
            }
            widest!(left, S::FLOAT_TILE, tile, 12 4 2)
        })
    }
}
