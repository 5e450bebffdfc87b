//! Blocks whose 4-bit codes index a fixed table: IQ4_NL, MXFP4 and NVFP4.

use super::blocks32::each_nibble;
use super::scale::half_at;

/// The values of the 16 codes of IQ4_NL (and IQ4_XS), in units of the block's scale.
pub const IQ4_NL_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values of the 16 codes of MXFP4 and NVFP4: twice the E2M1 value, so that all are integers.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    each_nibble(&block[2..], |j, q| out[j] = f32::from(IQ4_NL_VALUES[usize::from(q)]) * d);
}

pub(super) fn decode_mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = half_power_of_two(block[0]);
    each_nibble(&block[1..], |j, q| out[j] = f32::from(MXFP4_VALUES[usize::from(q)]) * d);
}

/// 64 weights: four scales of 16 each, then their codes, the first 8 in the low halves of 8 bytes.
pub(super) fn decode_nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let (scales, codes) = (&block[..4], &block[4..]);
    for ((y, codes), scale) in out.chunks_exact_mut(16).zip(codes.chunks_exact(8)).zip(scales) {
        let d = nvfp4_scale(*scale);
        for (j, byte) in codes.iter().enumerate() {
            y[j] = f32::from(MXFP4_VALUES[usize::from(byte & 15)]) * d;
            y[j + 8] = f32::from(MXFP4_VALUES[usize::from(byte >> 4)]) * d;
        }
    }
}

/// Half the number with these bits of E4M3 without its sign, because the table above is doubled. The number that is
/// not one counts as 0.
pub fn nvfp4_scale(bits: u8) -> f32 {
    let (exponent, mantissa) = (bits >> 3 & 15, f32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa / 1024.0,
        _ => (mantissa + 8.0) * f32::from_bits((u32::from(exponent) + 127 - 11) << 23),
    }
}

/// 2^(e - 128): the E8M0 scale halved, because the table above is doubled. The two smallest are subnormal.
fn half_power_of_two(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => (u32::from(e) - 1) << 23,
    })
}
