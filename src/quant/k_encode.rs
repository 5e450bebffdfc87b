//! Super-blocks of 256 weights (ggml's k-quants), encoding: Q4_K and Q6_K.
//!
//! Each sub-block is first fitted alone with real-valued scales, trying several ranges and solving the least-squares
//! problem that each choice of codes leaves. The super-block's scales follow from the largest of them; then every
//! sub-block looks for its best small integers next to the rounded ones, with the codes chosen anew for each.
//! Weights of large magnitude count more (they carry more of an activation), as is usual for these formats.

use super::blocks32::{code, inverse, signed_scale, sum};
use super::k_decode::six_bit_place;
use super::scale::stored_scale;

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
        let near = (code(fit.scale * inverse(d), 0.0, 63.0), code(fit.min * inverse(dmin), 0.0, 63.0));
        let (scale, min) = best_pair(group, d, dmin, near);
        put_scale_and_min(&mut block[4..16], j, scale as u8, min as u8);
        let (inverse, min) = (inverse(d * scale), dmin * min);
        for (l, v) in group.iter().enumerate() {
            block[16 + j / 2 * 32 + l] |= (code((v + min) * inverse, 0.0, 15.0) as u8) << (j % 2 * 4);
        }
    }
    block
}

pub(super) fn q6_k(x: &[f32; 256]) -> [u8; 210] {
    let (groups, _) = x.as_chunks::<16>();
    let mut scales = [0f32; GROUPS_6];
    for (scale, group) in scales.iter_mut().zip(groups) {
        *scale = signed_scale(group, 32.0, |v| v * v);
    }
    let extreme = scales.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    let d = stored_scale(extreme / -128.0);
    let mut block = [0; 210];
    block[208..].copy_from_slice(&d.to_le_bytes());
    let d = d.to_f32();
    for (g, (scale, group)) in scales.iter().zip(groups).enumerate() {
        let near = code(scale * inverse(d), -128.0, 127.0);
        let error = |s: f32| {
            let (scale, inverse) = (d * s, inverse(d * s));
            let off = |v: f32| scale * code(v * inverse, -32.0, 31.0) - v;
            sum::<16>(|i| (group[i] * off(group[i])).powi(2))
        };
        let scale = best_of([near, (near - 1.0).max(-128.0), (near + 1.0).min(127.0)], error);
        block[192 + g] = scale as i8 as u8;
        let (low, low_shift, high, high_shift) = six_bit_place(g);
        let inverse = inverse(d * scale);
        for (l, v) in group.iter().enumerate() {
            let q = (code(v * inverse, -32.0, 31.0) + 32.0) as u8;
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
            let codes = x.map(|v| code(inverse * (v - lowest), 0.0, 15.0));
            let fit = Self::solve(x, &weight, &codes);
            let error = sum::<32>(|i| weight[i] * (fit.scale * codes[i] - fit.min - x[i]).powi(2));
            if error < best.1 {
                best = (fit, error);
            }
        }
        best.0
    }

    /// Weighted least squares for given codes, with the minimum kept at or above 0.
    fn solve(x: &[f32; 32], weight: &[f32; 32], codes: &[f32; 32]) -> Self {
        let w = sum::<32>(|i| weight[i]);
        let wq = sum::<32>(|i| weight[i] * codes[i]);
        let wqq = sum::<32>(|i| weight[i] * codes[i] * codes[i]);
        let wx = sum::<32>(|i| weight[i] * x[i]);
        let wxq = sum::<32>(|i| weight[i] * x[i] * codes[i]);
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

/// The sub-block's integers (in `f32`) next to `near` with the least error once codes are rounded to them.
fn best_pair(x: &[f32; 32], d: f32, dmin: f32, near: (f32, f32)) -> (f32, f32) {
    let weight = magnitude_weights(x);
    let at = |v: f32, step: f32| (v + step).clamp(0.0, 63.0);
    let steps = [0.0, -1.0, 1.0];
    let error = |(s, m): (f32, f32)| {
        let (scale, inverse, min) = (d * s, inverse(d * s), dmin * m);
        sum::<32>(|i| weight[i] * (scale * code((x[i] + min) * inverse, 0.0, 15.0) - min - x[i]).powi(2))
    };
    best_of(steps.into_iter().flat_map(|s| steps.map(|m| (at(near.0, s), at(near.1, m)))), error)
}

/// The first of the candidates with the least error.
fn best_of<T: Copy + Default>(candidates: impl IntoIterator<Item = T>, error: impl Fn(T) -> f32) -> T {
    let mut best = (T::default(), f32::INFINITY);
    for candidate in candidates {
        let e = error(candidate);
        if e < best.1 {
            best = (candidate, e);
        }
    }
    best.0
}

fn magnitude_weights(x: &[f32; 32]) -> [f32; 32] {
    let rms = (sum::<32>(|i| x[i] * x[i]) / 32.0).sqrt();
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
