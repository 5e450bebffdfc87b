//! Tensor types of GGUF files: block layouts, dequantise, quantise.
//!
//! Invariants: a slice is decoded or encoded only in whole blocks, lengths are checked before the first block, and
//! a value that the target type cannot hold (NaN, infinity, beyond the range of its scale) is refused by index
//! instead of being written as something else. Decoding is exact: the same `f32` operations in the same order as
//! the format's definition, so that every user of a tensor sees the same weights.
//!
//! The block layouts are those of ggml, <https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h>;
//! MXFP4 is the microscaling format of the Open Compute Project,
//! <https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf>.

mod blocks32;
mod float;
mod k_decode;
mod k_encode;
mod table;
mod types;

pub use table::{IQ4_NL_VALUES, MXFP4_VALUES};
pub use types::TensorType;

use crate::{Error, Result};
use half::f16;

/// Decode whole blocks of `ty` into `out`.
///
/// # Errors
/// [`Error::InvalidArgument`] where `src` does not hold exactly the blocks of `out.len()` weights,
/// [`Error::Unsupported`] for a type that this library has no decoder for.
pub fn dequantize(ty: TensorType, src: &[u8], out: &mut [f32]) -> Result<()> {
    if ty.row_bytes(out.len() as u64) != Some(src.len() as u64) {
        return Err(Error::InvalidArgument(format!(
            "{} bytes of {ty} do not hold {} weights ({} bytes for every {})",
            src.len(),
            out.len(),
            ty.block_bytes(),
            ty.block_len()
        )));
    }
    match ty {
        TensorType::F32 => decode(src, out, float::decode_f32),
        TensorType::F16 => decode(src, out, float::decode_f16),
        TensorType::BF16 => decode(src, out, float::decode_bf16),
        TensorType::Q4_0 => decode(src, out, blocks32::decode_q4_0),
        TensorType::Q4_1 => decode(src, out, blocks32::decode_q4_1),
        TensorType::Q5_0 => decode(src, out, blocks32::decode_q5_0),
        TensorType::Q5_1 => decode(src, out, blocks32::decode_q5_1),
        TensorType::Q8_0 => decode(src, out, blocks32::decode_q8_0),
        TensorType::Q2_K => decode(src, out, k_decode::q2_k),
        TensorType::Q3_K => decode(src, out, k_decode::q3_k),
        TensorType::Q4_K => decode(src, out, k_decode::q4_k),
        TensorType::Q5_K => decode(src, out, k_decode::q5_k),
        TensorType::Q6_K => decode(src, out, k_decode::q6_k),
        TensorType::IQ4_NL => decode(src, out, table::decode_iq4_nl),
        TensorType::MXFP4 => decode(src, out, table::decode_mxfp4),
        other => return Err(Error::Unsupported(format!("Weights of type {other} cannot be decoded"))),
    }
    Ok(())
}

/// Whether [`dequantize`] knows the type.
pub fn can_dequantize(ty: TensorType) -> bool {
    dequantize(ty, &[], &mut []).is_ok()
}

/// Encode `src` as whole blocks of `ty`, appended to `out`.
///
/// # Errors
/// [`Error::Unsupported`] for types other than F32, F16, BF16, Q8_0, Q5_0, Q4_0, Q4_K and Q6_K;
/// [`Error::InvalidArgument`] for a length that is no whole number of blocks, and for a weight that is NaN, infinite or
/// too large for the type, naming its index. Nothing is appended then.
pub fn quantize(ty: TensorType, src: &[f32], out: &mut Vec<u8>) -> Result<()> {
    let largest = match ty {
        TensorType::F32 => f32::MAX,
        // Half a step above the largest finite value is where rounding goes to infinity.
        TensorType::F16 => 65519.99,
        TensorType::BF16 => f32::from_bits(0x7f7f_7fff),
        TensorType::Q8_0 => 127.0 * MAX_SCALE,
        TensorType::Q5_0 => 16.0 * MAX_SCALE,
        TensorType::Q4_0 => 8.0 * MAX_SCALE,
        TensorType::Q4_K => 63.0 * MAX_SCALE,
        TensorType::Q6_K => 32.0 * 127.0 * MAX_SCALE,
        other => return Err(Error::Unsupported(format!("Weights cannot be encoded as {other}"))),
    };
    let Some(bytes) = ty.row_bytes(src.len() as u64) else {
        let problem = format!("{} weights are no whole number of {ty} blocks of {}", src.len(), ty.block_len());
        return Err(Error::InvalidArgument(problem));
    };
    if let Some(i) = src.iter().position(|x| x.is_nan() || x.abs() > largest) {
        let problem = format!("Weight {i} is {}, which {ty} cannot hold (at most {largest:e})", src[i]);
        return Err(Error::InvalidArgument(problem));
    }
    out.reserve(bytes as usize);
    match ty {
        TensorType::F32 => encode(src, out, float::encode_f32),
        TensorType::F16 => encode(src, out, float::encode_f16),
        TensorType::BF16 => encode(src, out, float::encode_bf16),
        TensorType::Q8_0 => encode(src, out, blocks32::encode_q8_0),
        TensorType::Q5_0 => encode(src, out, blocks32::encode_q5_0),
        TensorType::Q4_0 => encode(src, out, blocks32::encode_q4_0),
        TensorType::Q4_K => encode(src, out, k_encode::q4_k),
        _ => encode(src, out, k_encode::q6_k),
    }
    Ok(())
}

/// The largest scale a block can store: the largest finite `f16`.
const MAX_SCALE: f32 = 65504.0;

fn decode<const B: usize, const N: usize>(src: &[u8], out: &mut [f32], block: impl Fn(&[u8; B], &mut [f32; N])) {
    for (b, y) in src.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        block(b, y);
    }
}

fn encode<const B: usize, const N: usize>(src: &[f32], out: &mut Vec<u8>, block: impl Fn(&[f32; N]) -> [u8; B]) {
    for x in src.as_chunks().0 {
        out.extend_from_slice(&block(x));
    }
}

/// The `f16` at byte `at` of a block.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// A scale as it will be stored: the nearest `f16`, except that below the normal range, where a step is a large
/// part of the value, it rounds away from zero so that no weight of the block needs clipping, and a search that ended
/// beyond the range stays at its edge.
fn stored_scale(scale: f32) -> f16 {
    let nearest = f16::from_f32(scale.clamp(-MAX_SCALE, MAX_SCALE));
    if scale.abs() < f16::MIN_POSITIVE.to_f32() && nearest.to_f32().abs() < scale.abs() {
        return f16::from_bits(nearest.to_bits() + 1);
    }
    nearest
}
