//! Row operations of a block besides matrix products: RMS norm, sums, scales, soft caps, the largest logit.
//!
//! A row is a slice of f32 of any length. Sums run in 64 partial sums of f32 that are joined pairwise, in an order
//! that depends on the length alone: the relative error of a sum of n squares is at most (n/64 + 8) 2^-24.

use super::vecmath::tanh;
use crate::simd::{Isa, Kernel, LANES, Vector, compiled_for, dispatch};

/// `out[i] = x[i] / sqrt(mean(x²) + eps)`, times `weight[i]` where there is a weight.
///
/// All slices have one length.
pub fn rms_norm_row(isa: Isa, x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    assert!(x.len() == out.len() && weight.is_none_or(|w| w.len() == x.len()), "Rows of one RMS norm differ in length");
    let scale = 1.0 / (dispatch(isa, SumOfSquares(x)) / x.len() as f32 + eps).sqrt();
    compiled_for(
        isa,
        #[inline(always)]
        move || match weight {
            Some(weight) => {
                for ((y, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                    *y = x * scale * w;
                }
            }
            None => {
                for (y, &x) in out.iter_mut().zip(x) {
                    *y = x * scale;
                }
            }
        },
    );
}

/// `out[i] += x[i] / sqrt(mean(x²) + eps) weight[i]`: the norm of a block's output, added to the residual.
///
/// All slices have one length.
pub fn rms_norm_add_row(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == out.len() && weight.len() == x.len(), "Rows of one RMS norm differ in length");
    let scale = 1.0 / (dispatch(isa, SumOfSquares(x)) / x.len() as f32 + eps).sqrt();
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for ((y, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                *y += x * scale * w;
            }
        },
    );
}

/// [`rms_norm_row`] of each head of a row by itself, in place, with one weight for all heads (query and key norms).
///
/// `x` is a whole number of heads of `weight.len()` values.
pub fn rms_norm_heads(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(x.len().is_multiple_of(weight.len()), "The row is not a whole number of heads");
    dispatch(isa, NormHeads { x, weight, eps });
}

/// `out[i] += x[i]`.
pub fn add_row(isa: Isa, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "Rows of one sum differ in length");
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for (y, &x) in out.iter_mut().zip(x) {
                *y += x;
            }
        },
    );
}

/// `x[i] *= scale`.
pub fn scale_row(isa: Isa, x: &mut [f32], scale: f32) {
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for x in x {
                *x *= scale;
            }
        },
    );
}

/// `x[i] = cap tanh(x[i] / cap)`.
pub fn softcap_row(isa: Isa, x: &mut [f32], cap: f32) {
    dispatch(isa, SoftCap { x, cap });
}

struct SumOfSquares<'a>(&'a [f32]);

impl Kernel for SumOfSquares<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) -> f32 {
        sum_of_squares(simd, self.0)
    }
}

#[inline(always)]
fn sum_of_squares<S: Vector>(simd: S, x: &[f32]) -> f32 {
    let (blocks, rest) = x.as_chunks::<{ 4 * LANES }>();
    // SAFETY: pointers into chunks of whole vectors.
    unsafe {
        let mut sums = [simd.splat(0.0); 4];
        for block in blocks {
            for (i, sum) in sums.iter_mut().enumerate() {
                let v = simd.load(block.as_ptr().add(i * LANES));
                *sum = simd.fma(v, v, *sum);
            }
        }
        let (vectors, rest) = rest.as_chunks::<LANES>();
        for (v, sum) in vectors.iter().zip(&mut sums) {
            let v = simd.load(v.as_ptr());
            *sum = simd.fma(v, v, *sum);
        }
        let mut last = [0f32; LANES];
        last[..rest.len()].copy_from_slice(rest);
        let v = simd.load(last.as_ptr());
        sums[3] = simd.fma(v, v, sums[3]);
        simd.sum(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
    }
}

struct NormHeads<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for NormHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let n = self.weight.len();
        for head in self.x.chunks_exact_mut(n) {
            let scale = 1.0 / (sum_of_squares(simd, head) / n as f32 + self.eps).sqrt();
            for (x, &w) in head.iter_mut().zip(self.weight) {
                *x = *x * scale * w;
            }
        }
    }
}

struct SoftCap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Kernel for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let (vectors, rest) = self.x.as_chunks_mut::<LANES>();
        let mut last = [0f32; LANES];
        last[..rest.len()].copy_from_slice(rest);
        for v in vectors.iter_mut().chain([&mut last]) {
            // SAFETY: arrays of one vector.
            unsafe {
                let x = simd.mul(simd.load(v.as_ptr()), simd.splat(1.0 / self.cap));
                simd.store(v.as_mut_ptr(), simd.mul(tanh(simd, x), simd.splat(self.cap)));
            }
        }
        let n = rest.len();
        rest.copy_from_slice(&last[..n]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 * 4.0 - 2.0
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn rms_norm_matches_f64() {
        for isa in Isa::available() {
            for n in [1, 8, 15, 16, 63, 64, 65, 80, 640, 1152, 4096] {
                let (x, w) = (row(n, 1), row(n, 2));
                let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / n as f64;
                let scale = 1.0 / (mean + f64::from(1e-6f32)).sqrt();
                // Half the sum's relative error, then the roundings of the mean, root, quotient and two products.
                let bound = ((n / 64 + 8) as f64 * 0.5 + 5.0) / f64::from(1 << 24);
                let mut out = vec![f32::NAN; n];
                rms_norm_row(isa, &x, Some(&w), 1e-6, &mut out);
                for i in 0..n {
                    let exact = f64::from(x[i]) * scale * f64::from(w[i]);
                    assert!((f64::from(out[i]) - exact).abs() <= exact.abs() * bound, "{isa:?} {n} {i}");
                }
                rms_norm_row(isa, &x, None, 1e-6, &mut out);
                for i in 0..n {
                    let exact = f64::from(x[i]) * scale;
                    assert!((f64::from(out[i]) - exact).abs() <= exact.abs() * bound, "{isa:?} {n} {i}");
                }
            }
        }
    }

    #[test]
    fn heads_are_normed_one_by_one() {
        for isa in Isa::available() {
            for (heads, width) in [(1, 8), (3, 80), (4, 128)] {
                let (x, w) = (row(heads * width, 3), row(width, 4));
                let mut got = x.clone();
                rms_norm_heads(isa, &mut got, &w, 1e-5);
                for (head, got) in x.chunks(width).zip(got.chunks(width)) {
                    let mut expected = vec![0.0; width];
                    rms_norm_row(isa, head, Some(&w), 1e-5, &mut expected);
                    assert_eq!(got, expected, "{isa:?}");
                }
            }
        }
    }

    #[test]
    fn sums_scales_and_caps() {
        for isa in Isa::available() {
            for n in [0, 1, 16, 33, 100] {
                let (x, y) = (row(n, 5), row(n, 6));
                let mut sum = y.clone();
                add_row(isa, &x, &mut sum);
                assert!((0..n).all(|i| sum[i] == x[i] + y[i]));
                let mut scaled = x.clone();
                scale_row(isa, &mut scaled, 0.37);
                assert!((0..n).all(|i| scaled[i] == x[i] * 0.37));
                let mut capped: Vec<f32> = x.iter().map(|v| v * 40.0).collect();
                softcap_row(isa, &mut capped, 30.0);
                for i in 0..n {
                    let exact = 30.0 * (f64::from(x[i] * 40.0) / 30.0).tanh();
                    assert!((f64::from(capped[i]) - exact).abs() <= exact.abs() * 1e-6, "{isa:?} {n} {i}");
                }
            }
        }
    }
}
