//! The content of a cell of a KV cache in a form that does not depend on a backend's layout or on the cell's number: a
//! *cell row*.
//!
//! A layer's cell row is the keys of all heads, one after the other, then the values. A head of F32 or F16 is its
//! numbers. In Q8_0 every group of 32 numbers (the last group may be shorter) is one f32 scale and that many i8. The
//! scale has 32 bits because a GPU's has; a CPU's cache rounds it to f16, which is exact for cells that came from a
//! CPU. All numbers are little-endian.

use super::batch::{KvTypes, LayerCache};
use crate::quant::TensorType;

/// Numbers that share a scale in Q8_0; the last group of a head may have fewer.
pub const GROUP: usize = 32;
/// Bytes of a group's scale.
pub const SCALE: usize = 4;

/// Bytes of one head of `dim` numbers.
pub fn head_bytes(ty: TensorType, dim: usize) -> usize {
    match ty {
        TensorType::Q8_0 => dim + SCALE * dim.div_ceil(GROUP),
        ty => dim * ty.block_bytes(),
    }
}

impl LayerCache {
    /// Bytes of a cell row.
    pub fn row_bytes(&self, types: KvTypes) -> usize {
        self.heads * (head_bytes(types.k, self.head_dim_k) + head_bytes(types.v, self.head_dim_v))
    }
}
