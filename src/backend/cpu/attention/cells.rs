//! Vectors of keys and values out of a cache of each element type.

use super::super::kv::{GROUP, Q8_GROUP_BYTES, q8_quant};
use super::super::simd::{LANES, Simd};

/// An element type of the KV cache; the layouts are those of [`super::super::kv`].
///
/// # Safety
///
/// Callers of every method have the instruction set of `S`, pass the start of a whole key block or value row, and
/// stay within its dimensions.
pub(super) unsafe trait Cells {
    /// Dimensions that share what [`Cells::k_scale`] and [`Cells::v_scale`] load.
    const GROUP: usize;
    type Scale<S: Simd>: Copy;

    /// Scales of the 16 cells of a key block, for a group of dimensions.
    unsafe fn k_scale<S: Simd>(block: *const u8, group: usize) -> Self::Scale<S>;
    /// Dimension `j` of the 16 cells of a key block.
    unsafe fn k<S: Simd>(block: *const u8, j: usize, scale: Self::Scale<S>) -> S::F;
    /// Scale of a value row of `width` dimensions, for its `vector`th 16 dimensions.
    unsafe fn v_scale<S: Simd>(row: *const u8, width: usize, vector: usize) -> Self::Scale<S>;
    /// The `vector`th 16 dimensions of a value row.
    unsafe fn v<S: Simd>(row: *const u8, vector: usize, scale: Self::Scale<S>) -> S::F;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Q8;

// SAFETY: offsets of elements inside the block or row that callers pass.
unsafe impl Cells for F32 {
    const GROUP: usize = usize::MAX;
    type Scale<S: Simd> = ();

    #[inline(always)]
    unsafe fn k_scale<S: Simd>(_: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn k<S: Simd>(block: *const u8, j: usize, (): ()) -> S::F {
        // SAFETY: the trait's obligations; so in every method below.
        unsafe { S::load(block.add(j * 4 * LANES).cast()) }
    }
    #[inline(always)]
    unsafe fn v_scale<S: Simd>(_: *const u8, _: usize, _: usize) {}
    #[inline(always)]
    unsafe fn v<S: Simd>(row: *const u8, vector: usize, (): ()) -> S::F {
        // SAFETY: as above.
        unsafe { S::load(row.add(vector * 4 * LANES).cast()) }
    }
}

// SAFETY: offsets of elements inside the block or row that callers pass.
unsafe impl Cells for F16 {
    const GROUP: usize = usize::MAX;
    type Scale<S: Simd> = ();

    #[inline(always)]
    unsafe fn k_scale<S: Simd>(_: *const u8, _: usize) {}
    #[inline(always)]
    unsafe fn k<S: Simd>(block: *const u8, j: usize, (): ()) -> S::F {
        // SAFETY: as above.
        unsafe { S::load_f16(block.add(j * 2 * LANES)) }
    }
    #[inline(always)]
    unsafe fn v_scale<S: Simd>(_: *const u8, _: usize, _: usize) {}
    #[inline(always)]
    unsafe fn v<S: Simd>(row: *const u8, vector: usize, (): ()) -> S::F {
        // SAFETY: as above.
        unsafe { S::load_f16(row.add(vector * 2 * LANES)) }
    }
}

// SAFETY: offsets of elements inside the block or row that callers pass.
unsafe impl Cells for Q8 {
    const GROUP: usize = GROUP;
    type Scale<S: Simd> = S::F;

    #[inline(always)]
    unsafe fn k_scale<S: Simd>(block: *const u8, group: usize) -> S::F {
        // SAFETY: as above.
        unsafe { S::load_f16(block.add(group * Q8_GROUP_BYTES)) }
    }
    #[inline(always)]
    unsafe fn k<S: Simd>(block: *const u8, j: usize, scale: S::F) -> S::F {
        // SAFETY: as above.
        unsafe { S::mul(S::load_i8(block.add(q8_quant(j))), scale) }
    }
    #[inline(always)]
    unsafe fn v_scale<S: Simd>(row: *const u8, width: usize, vector: usize) -> S::F {
        // SAFETY: as above.
        unsafe { S::splat_f16(row.add(width + vector * LANES / GROUP * 2)) }
    }
    #[inline(always)]
    unsafe fn v<S: Simd>(row: *const u8, vector: usize, scale: S::F) -> S::F {
        // SAFETY: as above.
        unsafe { S::mul(S::load_i8(row.add(vector * LANES)), scale) }
    }
}
