//! Blocks of 32 weights whose 4-bit codes index a fixed table: IQ4_NL and MXFP4.

use super::blocks32::each_nibble;
use super::scale::half_at;

/// The values of the 16 codes of IQ4_NL (and IQ4_XS), in units of the block's scale.
pub const IQ4_NL_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values of the 16 codes of MXFP4: twice the E2M1 value, so that all are integers.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    each_nibble(&block[2..], |j, q| out[j] = f32::from(IQ4_NL_VALUES[usize::from(q)]) * d);
}

pub(super) fn decode_mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = half_power_of_two(block[0]);
    each_nibble(&block[1..], |j, q| out[j] = f32::from(MXFP4_VALUES[usize::from(q)]) * d);
}

/// 2^(e - 128): the E8M0 scale halved, because the table above is doubled. The two smallest are subnormal.
fn half_power_of_two(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => (u32::from(e) - 1) << 23,
    })
}
