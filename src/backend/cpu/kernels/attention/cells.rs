//! Vectors of keys and values out of a cache of each element type.

use crate::backend::cpu::kv::{GROUP, Q8_GROUP_BYTES, q8_quant};
use crate::simd::{LANES, Vector};

/// An element type of the KV cache; the layouts are those of `kv/mod.rs`.
///
/// # Safety
///
/// Callers of every method pass the start of a whole key block or value row, and stay within its dimensions.
pub(crate) unsafe trait Cells {
    /// Dimensions that share what [`Cells::k_scale`] and [`Cells::v_scale`] load.
    const GROUP: usize;
    type Scale<S: Vector>: Copy;

    /// Scales of the 16 cells of a key block, for a group of dimensions.
    unsafe fn k_scale<S: Vector>(simd: S, block: *const u8, group: usize) -> Self::Scale<S>;
    /// Dimension `j` of the 16 cells of a key block.
    unsafe fn k<S: Vector>(simd: S, block: *const u8, j: usize, scale: Self::Scale<S>) -> S::F;
    /// Scale of a value row of `width` dimensions, for its `vector`th 16 dimensions.
    unsafe fn v_scale<S: Vector>(simd: S, row: *const u8, width: usize, vector: usize) -> Self::Scale<S>;
    /// The `vector`th 16 dimensions of a value row.
    unsafe fn v<S: Vector>(simd: S, row: *const u8, vector: usize, scale: Self::Scale<S>) -> S::F;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Q8;

// SAFETY: offsets of elements inside the block or row that callers pass.
unsafe impl Cells for F32 {
    const GROUP: usize = usize::MAX;
    type Scale<S: Vector> = ();

    #[inline(always)]
    unsafe fn k_scale<S: Vector>(_: S, _: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn k<S: Vector>(simd: S, block: *const u8, j: usize, (): ()) -> S::F {
        // SAFETY: the trait's obligations; so in every method below.
        unsafe { simd.load(block.add(j * 4 * LANES).cast()) }
    }
    #[inline(always)]
    unsafe fn v_scale<S: Vector>(_: S, _: *const u8, _: usize, _: usize) {}
    #[inline(always)]
    unsafe fn v<S: Vector>(simd: S, row: *const u8, vector: usize, (): ()) -> S::F {
        // SAFETY: as above.
        unsafe { simd.load(row.add(vector * 4 * LANES).cast()) }
    }
}

// SAFETY: offsets of elements inside the block or row that callers pass.
unsafe impl Cells for F16 {
    const GROUP: usize = usize::MAX;
    type Scale<S: Vector> = ();

    #[inline(always)]
    unsafe fn k_scale<S: Vector>(_: S, _: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn k<S: Vector>(simd: S, block: *const u8, j: usize, (): ()) -> S::F {
        // SAFETY: as above.
        unsafe { simd.load_f16(block.add(j * 2 * LANES)) }
    }
    #[inline(always)]
    unsafe fn v_scale<S: Vector>(_: S, _: *const u8, _: usize, _: usize) {}
    #[inline(always)]
    unsafe fn v<S: Vector>(simd: S, row: *const u8, vector: usize, (): ()) -> S::F {
        // SAFETY: as above.
        unsafe { simd.load_f16(row.add(vector * 2 * LANES)) }
    }
}

// SAFETY: offsets of elements inside the block or row that callers pass.
unsafe impl Cells for Q8 {
    const GROUP: usize = GROUP;
    type Scale<S: Vector> = S::F;

    #[inline(always)]
    unsafe fn k_scale<S: Vector>(simd: S, block: *const u8, group: usize) -> S::F {
        // SAFETY: as above.
        unsafe { simd.load_f16(block.add(group * Q8_GROUP_BYTES)) }
    }
    #[inline(always)]
    unsafe fn k<S: Vector>(simd: S, block: *const u8, j: usize, scale: S::F) -> S::F {
        // SAFETY: as above.
        unsafe { simd.mul(simd.to_float(simd.load_i8(block.add(q8_quant(j)))), scale) }
    }
    #[inline(always)]
    unsafe fn v_scale<S: Vector>(simd: S, row: *const u8, width: usize, vector: usize) -> S::F {
        // SAFETY: as above.
        unsafe { simd.splat_f16(row.add(width + vector * LANES / GROUP * 2)) }
    }
    #[inline(always)]
    unsafe fn v<S: Vector>(simd: S, row: *const u8, vector: usize, scale: S::F) -> S::F {
        // SAFETY: as above.
        unsafe { simd.mul(simd.to_float(simd.load_i8(row.add(vector * LANES))), scale) }
    }
}
