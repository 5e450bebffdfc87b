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
mod coded;
mod float;
mod grids;
mod k_decode;
mod k_encode;
mod scale;
mod table;
mod types;

pub use coded::{Blocks, GROUP, IQ1_VALUES, IQ2_VALUES, IQ3_S_VALUES, IQ3_XXS_VALUES, Parts, blocks};
pub use table::{IQ4_NL_VALUES, MXFP4_VALUES, nvfp4_scale};
pub use types::TensorType;

use crate::{Error, Result};
use scale::MAX_SCALE;

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
        TensorType::NVFP4 => decode(src, out, table::decode_nvfp4),
        other => {
            let Some(blocks) = blocks(other) else {
                return Err(Error::Unsupported(format!("Weights of type {other} cannot be decoded")));
            };
            let (bytes, weights) = (other.block_bytes(), other.block_len());
            for (b, y) in src.chunks_exact(bytes).zip(out.chunks_exact_mut(weights)) {
                blocks.decode(b, y);
            }
        }
    }
    Ok(())
}

/// Where a block of this type has half-precision numbers: its scale, and after it the minimum of types that have one.
/// IQ1_M has none in one place; see [`put_halves`].
pub fn halves(ty: TensorType) -> &'static [usize] {
    match ty {
        TensorType::Q8_0 | TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q1_0 | TensorType::Q2_0 => &[0],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        TensorType::Q2_K => &[80, 82],
        TensorType::Q3_K => &[108],
        TensorType::Q6_K => &[208],
        TensorType::IQ1_S | TensorType::IQ2_XXS | TensorType::IQ2_XS | TensorType::IQ2_S => &[0],
        TensorType::IQ3_XXS | TensorType::IQ3_S | TensorType::IQ4_NL | TensorType::IQ4_XS => &[0],
        TensorType::TQ1_0 => &[52],
        TensorType::TQ2_0 => &[64],
        _ => &[],
    }
}

/// Sets every half-precision number of a block to what `next` returns; false where it has none. For those who make
/// blocks of random bytes: tests and probes.
pub fn put_halves(ty: TensorType, block: &mut [u8], mut next: impl FnMut() -> half::f16) -> bool {
    if ty == TensorType::IQ1_M {
        coded::put_iq1_m_unit(block, next());
        return true;
    }
    for &at in halves(ty) {
        block[at..at + 2].copy_from_slice(&next().to_le_bytes());
    }
    !halves(ty).is_empty()
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
