//! Super-blocks of 256 weights (ggml's k-quants), decoding: Q2_K to Q6_K. Sub-blocks of 16 or 32 weights have small
//! integer scales (and, in Q2_K, Q4_K and Q5_K, minimums) in units of the super-block's `f16` scales.

use super::scale::half_at;

pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (group, y) in out.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(scales[group] & 15), dmin * f32::from(scales[group] >> 4));
        let (from, shift) = two_bit_place(group);
        for (y, byte) in y.iter_mut().zip(&codes[from..]) {
            *y = scale * f32::from(byte >> shift & 3) - min;
        }
    }
}

pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, codes, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (group, y) in out.chunks_exact_mut(16).enumerate() {
        let low = scales[group % 8] >> (4 * (group / 8)) & 15;
        let top = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
        let scale = d * f32::from((low | top << 4) as i8 - 32);
        let (from, shift) = two_bit_place(group);
        let bit = group / 2;
        for (l, y) in y.iter_mut().enumerate() {
            let q = (codes[from + l] >> shift & 3) as i8;
            let below = if high[group % 2 * 16 + l] >> bit & 1 == 0 { 4 } else { 0 };
            *y = scale * f32::from(q - below);
        }
    }
}

/// First byte and shift of the 16 two-bit codes of a group in Q2_K and Q3_K.
fn two_bit_place(group: usize) -> (usize, usize) {
    (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2)
}

/// Scale and minimum, 6 bits each, of sub-block `j` in Q4_K and Q5_K.
pub(super) fn scale_and_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (j, y) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (y, byte) in y.iter_mut().zip(&block[16 + j / 2 * 32..]) {
            *y = scale * f32::from(byte >> (j % 2 * 4) & 15) - min;
        }
    }
}

pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (j, y) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (l, y) in y.iter_mut().enumerate() {
            let low = block[48 + j / 2 * 32 + l] >> (j % 2 * 4) & 15;
            let q = low | (block[16 + l] >> j & 1) << 4;
            *y = scale * f32::from(q) - min;
        }
    }
}

pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(block, 208);
    for (group, y) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(block[192 + group] as i8);
        let (low, low_shift, high, high_shift) = six_bit_place(group);
        for (l, y) in y.iter_mut().enumerate() {
            let q = block[low + l] >> low_shift & 15 | (block[high + l] >> high_shift & 3) << 4;
            *y = scale * f32::from(q as i8 - 32);
        }
    }
}

/// Where the 16 codes of a Q6_K group are: first byte and shift of the low four bits, then of the high two.
pub(super) fn six_bit_place(group: usize) -> (usize, usize, usize, usize) {
    let (half, quarter, side) = (group / 8, group % 8 / 2, group % 2 * 16);
    (half * 64 + quarter % 2 * 32 + side, quarter / 2 * 4, 128 + half * 32 + side, quarter * 2)
}
