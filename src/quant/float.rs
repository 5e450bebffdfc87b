//! Plain float types: blocks of one weight.

use half::{bf16, f16};

pub(super) fn decode_f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

pub(super) fn decode_f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f16::from_le_bytes(*block).to_f32();
}

pub(super) fn decode_bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = bf16::from_le_bytes(*block).to_f32();
}

pub(super) fn encode_f32(x: &[f32; 1]) -> [u8; 4] {
    x[0].to_le_bytes()
}

pub(super) fn encode_f16(x: &[f32; 1]) -> [u8; 2] {
    f16::from_f32(x[0]).to_le_bytes()
}

pub(super) fn encode_bf16(x: &[f32; 1]) -> [u8; 2] {
    bf16::from_f32(x[0]).to_le_bytes()
}
