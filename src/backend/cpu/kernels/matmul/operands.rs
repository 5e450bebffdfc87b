//! What a matrix product reads and where it writes.

use crate::simd::{LANES, Vector};

/// Activation rows, of the kind the weights ask for (`PackedMatrix::activation_kind`).
#[derive(Debug, Clone, Copy)]
pub struct Columns {
    /// The first row: `f32` values, or a quantised row of `activations.rs`; aligned to 4.
    pub data: *const u8,
    /// Bytes from one row to the next, a multiple of 4.
    pub row_bytes: usize,
    /// Rows.
    pub count: usize,
}

impl Columns {
    #[inline(always)]
    pub(crate) fn row(&self, index: usize) -> *const u8 {
        self.data.wrapping_add(index * self.row_bytes)
    }
}

/// Where a tile's results go.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The panel's first row in column 0.
    pub(super) out: *mut f32,
    /// Floats from one column to the next.
    pub(super) stride: usize,
    /// Rows to store, at most 16.
    pub(super) rows: usize,
    /// Whether to add to what is there.
    pub(super) accumulate: bool,
}

impl Target {
    /// Stores the results of `C` columns.
    ///
    /// # Safety
    /// `rows` floats are writable (and set, to accumulate) in each of the columns from `column`.
    #[inline(always)]
    pub(crate) unsafe fn put<S: Vector, const C: usize>(self, simd: S, column: usize, total: [S::F; C]) {
        for (c, x) in total.into_iter().enumerate() {
            // SAFETY: the caller's promise; a panel that is not full goes through an array.
            unsafe {
                let out = self.out.add((column + c) * self.stride);
                if self.rows == LANES {
                    let x = if self.accumulate { simd.add(simd.load(out), x) } else { x };
                    simd.store(out, x);
                } else {
                    let mut lanes = [0f32; LANES];
                    simd.store(lanes.as_mut_ptr(), x);
                    for (row, x) in lanes.into_iter().enumerate().take(self.rows) {
                        let out = out.add(row);
                        out.write(if self.accumulate { out.read() + x } else { x });
                    }
                }
            }
        }
    }
}
