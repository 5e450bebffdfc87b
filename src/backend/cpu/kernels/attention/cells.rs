//! Vectors of keys and values out of a cache of each element type.

use crate::backend::cpu::kv::{GROUP, Q8_GROUP_BYTES, q8_quant};
use crate::simd::{LANES, Vector};

/// An element type of the KV cache; the layouts are those of `kv/mod.rs`.
///
/// # Safety
///
/// Callers of every method pass the start of a whole key block or value row, and stay within its dimensions.
pub(crate) unsafe trait Cells {
    /// Dimensions that share a scale.
    const GROUP: usize;
    /// Whether there are scales at all.
    const SCALED: bool;
    /// Bytes of a vector of cells.
    const BYTES: usize;
    type Scale<S: Vector>: Copy;

    /// Scales of the 16 cells of a key block, for a group of dimensions.
    unsafe fn k_scale<S: Vector>(simd: S, block: *const u8, group: usize) -> Self::Scale<S>;
    /// Offset of dimension `j` in a key block.
    #[inline(always)]
    fn k_offset(j: usize) -> usize {
        j * Self::BYTES
    }
    /// Dimension `j` of the 16 cells of a key block, to be multiplied by the scales of its group.
    unsafe fn k<S: Vector>(simd: S, block: *const u8, j: usize) -> S::F;
    /// `sums` of a group of dimensions, multiplied by its scales and added to `total`.
    fn add<S: Vector>(simd: S, sums: S::F, scale: Self::Scale<S>, total: S::F) -> S::F;
    /// `p`, one number for each of 16 value rows of `bytes` bytes and `width` dimensions, times the rows' scales of the
    /// `vector`th 16 dimensions.
    unsafe fn scaled<S: Vector>(simd: S, p: S::F, rows: *const u8, bytes: usize, width: usize, vector: usize) -> S::F;
    /// The `vector`th 16 dimensions of a value row, to be multiplied by its scale.
    unsafe fn v<S: Vector>(simd: S, row: *const u8, vector: usize) -> S::F;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Q8;

// SAFETY: offsets of elements inside the block or row that callers pass.
unsafe impl Cells for F32 {
    const GROUP: usize = usize::MAX;
    const SCALED: bool = false;
    const BYTES: usize = 4 * LANES;
    type Scale<S: Vector> = ();

    #[inline(always)]
    unsafe fn k_scale<S: Vector>(_: S, _: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn k<S: Vector>(simd: S, block: *const u8, j: usize) -> S::F {
        // SAFETY: the trait's obligations; so in every method below.
        unsafe { simd.load(block.add(j * 4 * LANES).cast()) }
    }
    #[inline(always)]
    fn add<S: Vector>(simd: S, sums: S::F, (): (), total: S::F) -> S::F {
        simd.add(total, sums)
    }
    #[inline(always)]
    unsafe fn scaled<S: Vector>(_: S, p: S::F, _: *const u8, _: usize, _: usize, _: usize) -> S::F {
        p
    }
    #[inline(always)]
    unsafe fn v<S: Vector>(simd: S, row: *const u8, vector: usize) -> S::F {
        // SAFETY: as above.
        unsafe { simd.load(row.add(vector * 4 * LANES).cast()) }
    }
}

// SAFETY: offsets of elements inside the block or row that callers pass.
unsafe impl Cells for F16 {
    const GROUP: usize = usize::MAX;
    const SCALED: bool = false;
    const BYTES: usize = 2 * LANES;
    type Scale<S: Vector> = ();

    #[inline(always)]
    unsafe fn k_scale<S: Vector>(_: S, _: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn k<S: Vector>(simd: S, block: *const u8, j: usize) -> S::F {
        // SAFETY: as above.
        unsafe { simd.load_f16(block.add(j * 2 * LANES)) }
    }
    #[inline(always)]
    fn add<S: Vector>(simd: S, sums: S::F, (): (), total: S::F) -> S::F {
        simd.add(total, sums)
    }
    #[inline(always)]
    unsafe fn scaled<S: Vector>(_: S, p: S::F, _: *const u8, _: usize, _: usize, _: usize) -> S::F {
        p
    }
    #[inline(always)]
    unsafe fn v<S: Vector>(simd: S, row: *const u8, vector: usize) -> S::F {
        // SAFETY: as above.
        unsafe { simd.load_f16(row.add(vector * 2 * LANES)) }
    }
}

// SAFETY: offsets of elements inside the block or row that callers pass.
unsafe impl Cells for Q8 {
    const GROUP: usize = GROUP;
    const SCALED: bool = true;
    const BYTES: usize = LANES;
    type Scale<S: Vector> = S::F;

    #[inline(always)]
    unsafe fn k_scale<S: Vector>(simd: S, block: *const u8, group: usize) -> S::F {
        // SAFETY: as above.
        unsafe { simd.load_f16(block.add(group * Q8_GROUP_BYTES)) }
    }
    #[inline(always)]
    fn k_offset(j: usize) -> usize {
        q8_quant(j)
    }
    #[inline(always)]
    unsafe fn k<S: Vector>(simd: S, block: *const u8, j: usize) -> S::F {
        // SAFETY: as above.
        unsafe { simd.to_float(simd.load_i8(block.add(Self::k_offset(j)))) }
    }
    #[inline(always)]
    fn add<S: Vector>(simd: S, sums: S::F, scale: S::F, total: S::F) -> S::F {
        simd.fma(sums, scale, total)
    }
    #[inline(always)]
    unsafe fn scaled<S: Vector>(simd: S, p: S::F, rows: *const u8, bytes: usize, width: usize, vector: usize) -> S::F {
        let mut scales = [0u16; LANES];
        // SAFETY: as above.
        unsafe {
            let first = rows.add(width + vector * LANES / GROUP * 2);
            for (lane, scale) in scales.iter_mut().enumerate() {
                *scale = first.add(lane * bytes).cast::<u16>().read_unaligned();
            }
            simd.mul(p, simd.load_f16(scales.as_ptr().cast()))
        }
    }
    #[inline(always)]
    unsafe fn v<S: Vector>(simd: S, row: *const u8, vector: usize) -> S::F {
        // SAFETY: as above.
        unsafe { simd.to_float(simd.load_i8(row.add(vector * LANES))) }
    }
}
