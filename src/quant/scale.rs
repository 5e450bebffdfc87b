//! Reading and rounding of blocks' scales.

use half::f16;

/// The largest scale a block can store: the largest finite `f16`.
pub(super) const MAX_SCALE: f32 = 65504.0;

/// The `f16` at byte `at` of a block.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// A scale as it will be stored: the nearest `f16`, except that below the normal range, where a step is a large
/// part of the value, it rounds away from zero so that no weight of the block needs clipping, and a search that ended
/// beyond the range stays at its edge.
pub(super) fn stored_scale(scale: f32) -> f16 {
    let nearest = f16::from_f32(scale.clamp(-MAX_SCALE, MAX_SCALE));
    if scale.abs() < f16::MIN_POSITIVE.to_f32() && nearest.to_f32().abs() < scale.abs() {
        return f16::from_bits(nearest.to_bits() + 1);
    }
    nearest
}
