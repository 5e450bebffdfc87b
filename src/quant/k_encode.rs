//! Super-blocks of 256 weights, encoding: Q4_K and Q6_K.
//!
//! Each sub-block is first fitted alone with real-valued scales, trying several ranges and solving the least-squares
//! problem that each choice of codes leaves. The super-block's scales follow from the largest of them; then every
//! sub-block looks for its best small integers next to the rounded ones, with the codes chosen anew for each.
//! Weights of large magnitude count more (they carry more of an activation), as is usual for these formats.

use super::blocks32::{code, signed_scale};
use super::k_decode::six_bit_place;
use super::stored_scale;

const GROUPS_4: usize = 8;
const GROUPS_6: usize = 16;

pub(super) fn q4_k(x: &[f32; 256]) -> [u8; 144] {
    let (groups, _) = x.as_chunks::<32>();
    let mut fits = [Affine::default(); GROUPS_4];
    for (fit, group) in fits.iter_mut().zip(groups) {
        *fit = Affine::fit(group);
    }
    let d = stored_scale(fits.iter().fold(0f32, |m, f| m.max(f.scale)) / 63.0);
    let dmin = stored_scale(fits.iter().fold(0f32, |m, f| m.max(f.min)) / 63.0);
    let mut block = [0; 144];
    block[..2].copy_from_slice(&d.to_le_bytes());
    block[2..4].copy_from_slice(&dmin.to_le_bytes());
    let (d, dmin) = (d.to_f32(), dmin.to_f32());
    for (j, (fit, group)) in fits.iter().zip(groups).enumerate() {
        let (scale, min) = best_pair(group, d, dmin, code(fit.scale, d, 0, 63), code(fit.min, dmin, 0, 63));
        put_scale_and_min(&mut block[4..16], j, scale as u8, min as u8);
        let (scale, min) = (d * scale as f32, dmin * min as f32);
        for (l, v) in group.iter().enumerate() {
            block[16 + j / 2 * 32 + l] |= (code(v + min, scale, 0, 15) as u8) << (j % 2 * 4);
        }
    }
    block
}

pub(super) fn q6_k(x: &[f32; 256]) -> [u8; 210] {
    let (groups, _) = x.as_chunks::<16>();
    let mut scales = [0f32; GROUPS_6];
    for (scale, group) in scales.iter_mut().zip(groups) {
        *scale = signed_scale(group, 32, |v| v * v);
    }
    let extreme = scales.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    let d = stored_scale(extreme / -128.0);
    let mut block = [0; 210];
    block[208..].copy_from_slice(&d.to_le_bytes());
    let d = d.to_f32();
    for (g, (scale, group)) in scales.iter().zip(groups).enumerate() {
        let near = code(*scale, d, -128, 127);
        let error = |s: i32| squared_error(group, |v| d * s as f32 * code(v, d * s as f32, -32, 31) as f32);
        let scale = best_of([near, near - 1, near + 1].into_iter().filter(|s| (-128..128).contains(s)), error, near);
        block[192 + g] = scale as i8 as u8;
        let (low, low_shift, high, high_shift) = six_bit_place(g);
        for (l, v) in group.iter().enumerate() {
            let q = (code(*v, d * scale as f32, -32, 31) + 32) as u8;
            block[low + l] |= (q & 15) << low_shift;
            block[high + l] |= (q >> 4) << high_shift;
        }
    }
    block
}

/// `x ≈ scale · code - min` with codes 0..16 and both numbers at least 0.
#[derive(Clone, Copy, Default)]
struct Affine {
    scale: f32,
    min: f32,
}

impl Affine {
    fn fit(x: &[f32; 32]) -> Self {
        let lowest = x.iter().fold(0f32, |m, v| m.min(*v));
        let highest = x.iter().fold(f32::MIN, |m, v| m.max(*v));
        let flat = Affine { scale: 0.0, min: -lowest };
        // A range below the smallest step that a block can store has one level.
        if highest - lowest < f32::powi(2.0, -25) {
            return flat;
        }
        let weight = magnitude_weights(x);
        let mut best = (flat, f32::INFINITY);
        for step in 0..=20 {
            let inverse = (14.0 + 0.1 * step as f32) / (highest - lowest);
            let codes = x.map(|v| (inverse * (v - lowest)).round().clamp(0.0, 15.0));
            let fit = Self::solve(x, &weight, &codes);
            let error = (0..32).map(|i| weight[i] * (fit.scale * codes[i] - fit.min - x[i]).powi(2)).sum();
            if error < best.1 {
                best = (fit, error);
            }
        }
        best.0
    }

    /// Weighted least squares for given codes, with the minimum kept at or above 0.
    fn solve(x: &[f32; 32], weight: &[f32; 32], codes: &[f32; 32]) -> Self {
        let (mut w, mut wq, mut wqq, mut wx, mut wxq) = (0f32, 0f32, 0f32, 0f32, 0f32);
        for ((x, weight), q) in x.iter().zip(weight).zip(codes) {
            w += weight;
            wq += weight * q;
            wqq += weight * q * q;
            wx += weight * x;
            wxq += weight * x * q;
        }
        let determinant = w * wqq - wq * wq;
        if determinant > 0.0 {
            let scale = (w * wxq - wx * wq) / determinant;
            let offset = (wqq * wx - wq * wxq) / determinant;
            if offset <= 0.0 && scale >= 0.0 {
                return Affine { scale, min: -offset };
            }
        }
        Affine { scale: if wqq > 0.0 { (wxq / wqq).max(0.0) } else { 0.0 }, min: 0.0 }
    }
}

/// The sub-block's integers near `(scale, min)` with the least error once codes are rounded to them.
fn best_pair(x: &[f32; 32], d: f32, dmin: f32, scale: i32, min: i32) -> (i32, i32) {
    let weight = magnitude_weights(x);
    let near = |at: i32| (at - 1).max(0)..=(at + 1).min(63);
    let candidates = near(scale).flat_map(|s| near(min).map(move |m| (s, m)));
    let error = |(s, m): (i32, i32)| {
        let (s, m) = (d * s as f32, dmin * m as f32);
        x.iter().zip(&weight).map(|(v, w)| w * (s * code(v + m, s, 0, 15) as f32 - m - v).powi(2)).sum()
    };
    best_of(candidates, error, (scale, min))
}

fn best_of<T: Copy>(candidates: impl Iterator<Item = T>, error: impl Fn(T) -> f32, first: T) -> T {
    let mut best = (first, error(first));
    for candidate in candidates {
        let e = error(candidate);
        if e < best.1 {
            best = (candidate, e);
        }
    }
    best.0
}

fn squared_error(x: &[f32], decoded: impl Fn(f32) -> f32) -> f32 {
    x.iter().map(|v| v * v * (decoded(*v) - v).powi(2)).sum()
}

fn magnitude_weights(x: &[f32; 32]) -> [f32; 32] {
    let rms = (x.iter().map(|v| v * v).sum::<f32>() / 32.0).sqrt();
    x.map(|v| rms + v.abs())
}

fn put_scale_and_min(packed: &mut [u8], j: usize, scale: u8, min: u8) {
    if j < 4 {
        packed[j] |= scale;
        packed[j + 4] |= min;
    } else {
        packed[j + 4] |= scale & 15 | min << 4;
        packed[j - 4] |= scale >> 4 << 6;
        packed[j] |= min >> 4 << 6;
    }
}
