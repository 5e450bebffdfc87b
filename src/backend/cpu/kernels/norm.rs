//! Row operations of a block besides matrix products: norms, sums, scales, limits, soft caps, thresholds.
//!
//! A row is a slice of f32 of any length. Sums run in 64 partial sums of f32 that are joined pairwise, in an order
//! that depends on the length alone: the relative error of a sum of n squares is at most (n/64 + 8) 2^-24.

use super::vecmath::tanh;
use crate::graph::NormKind;
use crate::simd::{Isa, Kernel, LANES, Vector, compiled_for, dispatch};

/// A norm with its numbers at hand, see [`NormSpec`](crate::graph::NormSpec). Weights and biases are as long as what is
/// normalised together.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// What it divides by.
    pub kind: NormKind,
    /// Factor per column.
    pub weight: Option<&'a [f32]>,
    /// Added per column.
    pub bias: Option<&'a [f32]>,
    /// Added to the mean square.
    pub eps: f32,
}

impl Norm<'_> {
    /// `out = norm(x)`. All slices have one length.
    pub fn row(&self, isa: Isa, x: &[f32], out: &mut [f32]) {
        self.check(x.len());
        assert_eq!(x.len(), out.len(), "Rows of one norm differ in length");
        dispatch(isa, Rows { norm: *self, x, out, add: false });
    }

    /// `out += norm(x)`: the norm of a block's output, added to the residual.
    pub fn add_row(&self, isa: Isa, x: &[f32], out: &mut [f32]) {
        self.check(x.len());
        assert_eq!(x.len(), out.len(), "Rows of one norm differ in length");
        dispatch(isa, Rows { norm: *self, x, out, add: true });
    }

    /// The norm in place.
    pub fn in_place(&self, isa: Isa, x: &mut [f32]) {
        self.check(x.len());
        dispatch(isa, Heads { norm: *self, heads: x, width: 0 });
    }

    /// The norm of each head of a row by itself, in place, with one weight for all heads; `x` is a whole number of
    /// heads of `width` values, of which the first are normalised, as many as there are weights.
    pub fn heads(&self, isa: Isa, x: &mut [f32], width: usize) {
        assert!(x.len().is_multiple_of(width), "The row is not a whole number of heads");
        self.check(self.weight.map_or(width, <[f32]>::len).min(width));
        dispatch(isa, Heads { norm: *self, heads: x, width });
    }

    /// The norm of part `i` of a row, `width` values: weights and biases may be for each part or for the whole row.
    pub fn part(&self, i: usize, width: usize) -> Self {
        let of = |values: &mut Option<&_>| {
            if let Some(all) = values.filter(|all: &&[f32]| all.len() > width) {
                *values = Some(&all[i * width..][..width]);
            }
        };
        let mut part = *self;
        of(&mut part.weight);
        of(&mut part.bias);
        part
    }

    fn check(&self, n: usize) {
        let fits = [self.weight, self.bias].into_iter().flatten().all(|values| values.len() == n);
        assert!(fits, "Rows of one norm differ in length");
    }

    /// What is subtracted from values, and the factor on them.
    #[inline(always)]
    fn moments<S: Vector>(&self, simd: S, x: &[f32]) -> (f32, f32) {
        let n = x.len() as f32;
        let (mean, squares) = match self.kind {
            NormKind::Rms => (0.0, sum_of_squares(simd, x, 0.0)),
            NormKind::Layer => {
                let mean = sum(simd, x) / n;
                (mean, sum_of_squares(simd, x, mean))
            }
        };
        (mean, 1.0 / (squares / n + self.eps).sqrt())
    }

    /// The normalised value of column `i`. What a norm lacks is the same in all columns, so loops are free of it.
    #[inline(always)]
    fn value(&self, i: usize, x: f32, (mean, scale): (f32, f32)) -> f32 {
        let x = match self.kind {
            NormKind::Rms => x * scale,
            NormKind::Layer => (x - mean) * scale,
        };
        let x = self.weight.map_or(x, |weight| x * weight[i]);
        self.bias.map_or(x, |bias| x + bias[i])
    }
}

struct Rows<'a> {
    norm: Norm<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
    add: bool,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Rows { norm, x, out, add } = self;
        let (mean, scale) = norm.moments(simd, x);
        // The usual norm in loops of its own, without bounds to check.
        match (norm.kind, norm.weight, norm.bias, add) {
            (NormKind::Rms, Some(weight), None, false) => {
                for ((y, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                    *y = x * scale * w;
                }
            }
            (NormKind::Rms, Some(weight), None, true) => {
                for ((y, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                    *y += x * scale * w;
                }
            }
            _ => {
                for (i, (y, &x)) in out.iter_mut().zip(x).enumerate() {
                    let value = norm.value(i, x, (mean, scale));
                    *y = if add { *y + value } else { value };
                }
            }
        }
    }
}

struct Heads<'a> {
    norm: Norm<'a>,
    heads: &'a mut [f32],
    /// Values of a head; 0: all of the row is one.
    width: usize,
}

impl Kernel for Heads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Heads { norm, heads, width } = self;
        let width = if width == 0 { heads.len().max(1) } else { width };
        for head in heads.chunks_exact_mut(width) {
            let n = norm.weight.map_or(width, <[f32]>::len).min(width);
            let moments = norm.moments(simd, &head[..n]);
            for (i, x) in head[..n].iter_mut().enumerate() {
                *x = norm.value(i, *x, moments);
            }
        }
    }
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

/// `out[i] += x[i] scale`.
pub fn add_scaled_row(isa: Isa, x: &[f32], scale: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "Rows of one sum differ in length");
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for (y, &x) in out.iter_mut().zip(x) {
                *y += x * scale;
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

/// `x[i] *= factors[i]`.
pub fn multiply_row(isa: Isa, factors: &[f32], x: &mut [f32]) {
    assert_eq!(x.len(), factors.len(), "Rows of one product differ in length");
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for (x, &factor) in x.iter_mut().zip(factors) {
                *x *= factor;
            }
        },
    );
}

/// `out = x` scaled so that it has the length of `like`; zeros stay.
pub fn equalize_row(isa: Isa, x: &[f32], like: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "Rows of one scale differ in length");
    dispatch(isa, Equalize { x, like, out });
}

struct Equalize<'a> {
    x: &'a [f32],
    like: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Equalize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let (have, want) = (sum_of_squares(simd, self.x, 0.0), sum_of_squares(simd, self.like, 0.0));
        let factor = if have > 0.0 { (want / have).sqrt() } else { 0.0 };
        for (y, &x) in self.out.iter_mut().zip(self.x) {
            *y = x * factor;
        }
    }
}

/// `out[i] = max(0, x[i] - mean - deviations σ)`, with σ over n - 1; NaN stays.
pub fn sparsify_row(isa: Isa, x: &[f32], deviations: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "Rows of one threshold differ in length");
    dispatch(isa, Sparsify { x, deviations, out });
}

struct Sparsify<'a> {
    x: &'a [f32],
    deviations: f32,
    out: &'a mut [f32],
}

impl Kernel for Sparsify<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Sparsify { x, deviations, out } = self;
        let mean = sum(simd, x) / x.len() as f32;
        let deviation = (sum_of_squares(simd, x, mean) / x.len().saturating_sub(1).max(1) as f32).sqrt();
        let threshold = mean + deviations * deviation;
        for (y, &x) in out.iter_mut().zip(x) {
            let above = x - threshold;
            *y = if above < 0.0 { 0.0 } else { above };
        }
    }
}

/// `x[i]` limited to ± `limit`; NaN stays.
pub fn clamp_row(isa: Isa, x: &mut [f32], limit: f32) {
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for x in x {
                *x = x.clamp(-limit, limit);
            }
        },
    );
}

/// `x[i] = cap tanh(x[i] / cap)`.
pub fn softcap_row(isa: Isa, x: &mut [f32], cap: f32) {
    dispatch(isa, SoftCap { x, cap });
}

/// `Σ (x - mean)²`.
#[inline(always)]
pub(super) fn sum_of_squares<S: Vector>(simd: S, x: &[f32], mean: f32) -> f32 {
    sums(simd, x, mean, |v, sum| {
        let v = if mean == 0.0 { v } else { simd.sub(v, simd.splat(mean)) };
        simd.fma(v, v, sum)
    })
}

/// `Σ x`.
#[inline(always)]
fn sum<S: Vector>(simd: S, x: &[f32]) -> f32 {
    sums(simd, x, 0.0, |v, sum| simd.add(v, sum))
}

/// The sum over all vectors of what `add` adds to it; a last vector is filled up with `filler`.
#[inline(always)]
fn sums<S: Vector>(simd: S, x: &[f32], filler: f32, add: impl Fn(S::F, S::F) -> S::F) -> f32 {
    let (blocks, rest) = x.as_chunks::<{ 4 * LANES }>();
    // SAFETY: pointers into chunks of whole vectors.
    unsafe {
        let mut sums = [simd.splat(0.0); 4];
        for block in blocks {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = add(simd.load(block.as_ptr().add(i * LANES)), *sum);
            }
        }
        let (vectors, rest) = rest.as_chunks::<LANES>();
        for (v, sum) in vectors.iter().zip(&mut sums) {
            *sum = add(simd.load(v.as_ptr()), *sum);
        }
        let mut last = [filler; LANES];
        last[..rest.len()].copy_from_slice(rest);
        sums[3] = add(simd.load(last.as_ptr()), sums[3]);
        simd.sum(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
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

    fn rms(weight: Option<&[f32]>, eps: f32) -> Norm<'_> {
        Norm { kind: NormKind::Rms, weight, bias: None, eps }
    }

    #[test]
    fn layer_norm_matches_f64() {
        for isa in Isa::available() {
            for n in [1, 15, 16, 65, 640, 4096] {
                let (x, w, b, y) = (row(n, 1), row(n, 2), row(n, 3), row(n, 4));
                let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n as f64;
                let squares = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>();
                let scale = 1.0 / (squares / n as f64 + 1e-3).sqrt();
                for (weight, bias) in [(None, None), (Some(&w[..]), None), (Some(&w[..]), Some(&b[..]))] {
                    let norm = Norm { kind: NormKind::Layer, weight, bias, eps: 1e-3 };
                    let (mut out, mut sum, mut inside) = (vec![f32::NAN; n], y.clone(), x.clone());
                    norm.row(isa, &x, &mut out);
                    norm.add_row(isa, &x, &mut sum);
                    norm.in_place(isa, &mut inside);
                    assert_eq!(out, inside, "{isa:?} {n}");
                    for i in 0..n {
                        let weight = weight.map_or(1.0, |w| f64::from(w[i]));
                        let exact = (f64::from(x[i]) - mean) * scale * weight + bias.map_or(0.0, |b| f64::from(b[i]));
                        assert!((f64::from(out[i]) - exact).abs() <= 6e-6, "{isa:?} {n} {i}: {} {exact}", out[i]);
                        assert_eq!(sum[i], y[i] + out[i], "{isa:?} {n} {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_norm_of_a_prefix_leaves_the_rest() {
        for isa in Isa::available() {
            let (x, w) = (row(3 * 40, 3), row(24, 4));
            let mut got = x.clone();
            rms(Some(&w), 1e-5).heads(isa, &mut got, 40);
            for (head, got) in x.chunks(40).zip(got.chunks(40)) {
                let mut expected = head.to_vec();
                rms(Some(&w), 1e-5).row(isa, &head[..24], &mut expected[..24]);
                assert_eq!(got, expected, "{isa:?}");
            }
        }
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
                rms(Some(&w), 1e-6).row(isa, &x, &mut out);
                for i in 0..n {
                    let exact = f64::from(x[i]) * scale * f64::from(w[i]);
                    assert!((f64::from(out[i]) - exact).abs() <= exact.abs() * bound, "{isa:?} {n} {i}");
                }
                rms(None, 1e-6).row(isa, &x, &mut out);
                for i in 0..n {
                    let exact = f64::from(x[i]) * scale;
                    assert!((f64::from(out[i]) - exact).abs() <= exact.abs() * bound, "{isa:?} {n} {i}");
                }
            }
        }
    }

    #[test]
    fn lengths_are_made_equal() {
        for isa in Isa::available() {
            for n in [1, 16, 65, 640] {
                let (x, like) = (row(n, 1), row(n, 2));
                let squares = |x: &[f32]| x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>();
                let factor = (squares(&like) / squares(&x)).sqrt();
                let mut out = vec![f32::NAN; n];
                equalize_row(isa, &x, &like, &mut out);
                for i in 0..n {
                    let exact = f64::from(x[i]) * factor;
                    assert!((f64::from(out[i]) - exact).abs() <= exact.abs() * 2e-6, "{isa:?} {n} {i}");
                }
                equalize_row(isa, &vec![0.0; n], &like, &mut out);
                assert!(out.iter().all(|&v| v == 0.0), "{isa:?} {n}");
            }
        }
    }

    #[test]
    fn what_is_below_the_threshold_is_zero() {
        for isa in Isa::available() {
            for n in [1, 16, 65, 640] {
                let x = row(n, 3);
                let exact = |x: &[f64]| {
                    let mean = x.iter().sum::<f64>() / n as f64;
                    let squares = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
                    let threshold = mean + 0.7 * (squares / (n as f64 - 1.0).max(1.0)).sqrt();
                    x.iter().map(|v| (v - threshold).max(0.0)).collect::<Vec<_>>()
                };
                let expected = exact(&x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
                let mut out = vec![f32::NAN; n];
                sparsify_row(isa, &x, 0.7, &mut out);
                for i in 0..n {
                    assert!((f64::from(out[i]) - expected[i]).abs() <= 4e-6, "{isa:?} {n} {i}");
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
                rms(Some(&w), 1e-5).heads(isa, &mut got, width);
                for (head, got) in x.chunks(width).zip(got.chunks(width)) {
                    let mut expected = vec![0.0; width];
                    rms(Some(&w), 1e-5).row(isa, head, &mut expected);
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
                let mut product = x.clone();
                multiply_row(isa, &y, &mut product);
                assert!((0..n).all(|i| product[i] == x[i] * y[i]));
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
