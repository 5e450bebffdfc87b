//! Blocks of 32 weights with one `f16` scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! The 4-bit codes of a block are in 16 bytes: low nibbles are weights 0..16, high nibbles weights 16..32. The 5-bit
//! types keep the fifth bit of weight `j` in bit `j` of a little-endian word before the nibbles.

use super::scale::{half_at, stored_scale};

/// Call `put` with each weight's index and its nibble.
#[inline(always)]
pub(super) fn each_nibble(nibbles: &[u8], mut put: impl FnMut(usize, u8)) {
    for (j, byte) in nibbles.iter().enumerate() {
        put(j, byte & 15);
        put(j + 16, byte >> 4);
    }
}

fn high_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

pub(super) fn decode_q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    each_nibble(&block[2..], |j, q| out[j] = f32::from(q as i8 - 8) * d);
}

pub(super) fn decode_q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    each_nibble(&block[4..], |j, q| out[j] = f32::from(q) * d + m);
}

pub(super) fn decode_q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let (d, high) = (half_at(block, 0), high_bits(block, 2));
    each_nibble(&block[6..], |j, q| {
        let q = q | ((high >> j & 1) as u8) << 4;
        out[j] = f32::from(q as i8 - 16) * d;
    });
}

pub(super) fn decode_q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), high_bits(block, 4));
    each_nibble(&block[8..], |j, q| {
        let q = q | ((high >> j & 1) as u8) << 4;
        out[j] = f32::from(q) * d + m;
    });
}

pub(super) fn decode_q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (y, q) in out.iter_mut().zip(&block[2..]) {
        *y = f32::from(*q as i8) * d;
    }
}

pub(super) fn encode_q8_0(x: &[f32; 32]) -> [u8; 34] {
    let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let d = stored_scale(largest / 127.0);
    let mut block = [0; 34];
    block[..2].copy_from_slice(&d.to_le_bytes());
    let inverse = inverse(d.to_f32());
    for (q, v) in block[2..].iter_mut().zip(x) {
        *q = code(v * inverse, -127.0, 127.0) as i8 as u8;
    }
    block
}

pub(super) fn encode_q4_0(x: &[f32; 32]) -> [u8; 18] {
    let d = stored_scale(signed_scale(x, 8.0, |_| 1.0));
    let mut block = [0; 18];
    block[..2].copy_from_slice(&d.to_le_bytes());
    let inverse = inverse(d.to_f32());
    let q = |v: f32| (code(v * inverse, -8.0, 7.0) + 8.0) as u8;
    for j in 0..16 {
        block[2 + j] = q(x[j]) | q(x[j + 16]) << 4;
    }
    block
}

pub(super) fn encode_q5_0(x: &[f32; 32]) -> [u8; 22] {
    let d = stored_scale(signed_scale(x, 16.0, |_| 1.0));
    let mut block = [0; 22];
    block[..2].copy_from_slice(&d.to_le_bytes());
    let inverse = inverse(d.to_f32());
    let mut high = 0u32;
    for j in 0..32 {
        let q = (code(x[j] * inverse, -16.0, 15.0) + 16.0) as u8;
        high |= u32::from(q >> 4) << j;
        block[6 + j % 16] |= (q & 15) << (4 * (j / 16));
    }
    block[2..6].copy_from_slice(&high.to_le_bytes());
    block
}

/// What weights are multiplied by to get codes in units of `scale`; 0 for a scale of 0.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The whole number in `lowest..=highest` that is nearest to `x`. The bounds must be below 2^22 in magnitude: adding
/// 1.5 · 2^23 then leaves no bits after the point, which rounds the number, and compiles to plain vector code.
#[inline(always)]
pub(super) fn code(x: f32, lowest: f32, highest: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    x.clamp(lowest, highest) + SHIFT - SHIFT
}

/// Σ f(i) over 0..N, in eight partial sums so that it compiles to vector code. N must be a multiple of 8.
#[inline(always)]
pub(super) fn sum<const N: usize>(f: impl Fn(usize) -> f32) -> f32 {
    let mut parts = [0f32; 8];
    for i in (0..N).step_by(8) {
        for (lane, part) in parts.iter_mut().enumerate() {
            *part += f(i + lane);
        }
    }
    parts.iter().sum()
}

/// The scale with which signed codes `-half..half` represent `x` with the least weighted squared error; the search
/// follows ggml's `make_qx_quants`.
///
/// The weight of largest magnitude is tried at a range of code values around `-half` (the side with one more level);
/// for the codes that follow, the best scale has a closed form, and the candidate with the greatest explained energy is
/// chosen. One more round starts from its codes.
pub(super) fn signed_scale<const N: usize>(x: &[f32; N], half: f32, weight: impl Fn(f32) -> f32) -> f32 {
    let extreme = x.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    // Below half the smallest step that a block can store, nothing but zero is nearer.
    if extreme.abs() < f32::powi(2.0, -25) {
        return 0.0;
    }
    let weight: [f32; N] = x.map(weight);
    let fit = |inverse: f32| {
        let q: [f32; N] = x.map(|v| code(v * inverse, -half, half - 1.0));
        let xq = sum::<N>(|i| weight[i] * x[i] * q[i]);
        let qq = sum::<N>(|i| weight[i] * q[i] * q[i]);
        if qq > 0.0 { (xq / qq, xq / qq * xq) } else { (0.0, 0.0) }
    };
    let mut best = (0.0, 0.0);
    for step in -9..=9 {
        let found = fit(-(half + 0.1 * step as f32) / extreme);
        if found.1 > best.1 {
            best = found;
        }
    }
    let again = fit(inverse(best.0));
    if again.1 > best.1 { again.0 } else { best.0 }
}
