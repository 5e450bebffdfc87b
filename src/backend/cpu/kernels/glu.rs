//! The activations of feed-forward blocks: of a product alone, or gating another (SwiGLU, GeGLU and others).

use super::vecmath::{exp, times_sigmoid};
use crate::graph::Activation;
use crate::simd::{Isa, Kernel, LANES, Vector, dispatch};

/// `out[i] = act(gate[i]) up[i]`, see [`Activation`]; without `up` `act(gate[i])`.
///
/// All slices have one length.
pub fn gated(isa: Isa, act: Activation, gate: &[f32], up: Option<&[f32]>, out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.is_none_or(|up| up.len() == out.len()), "Gated rows differ in length");
    match act {
        Activation::Identity => dispatch(isa, Gated { curve: Identity, gate, up, out }),
        Activation::Silu => dispatch(isa, Gated { curve: Silu, gate, up, out }),
        Activation::Gelu => dispatch(isa, Gated { curve: Gelu, gate, up, out }),
        Activation::Relu => dispatch(isa, Gated { curve: Relu, gate, up, out }),
        Activation::Relu2 => dispatch(isa, Gated { curve: Relu2, gate, up, out }),
        Activation::Sigmoid => dispatch(isa, Gated { curve: Sigmoid, gate, up, out }),
        Activation::Xielu { positive, negative, linear, eps } => {
            dispatch(isa, Gated { curve: Xielu { positive, negative, linear, eps }, gate, up, out })
        }
        Activation::ClampedSwiglu => dispatch(isa, Gated { curve: ClampedSwiglu, gate, up, out }),
    }
}

/// An activation over vectors.
trait Curve: Copy {
    fn at<S: Vector>(self, simd: S, gate: S::F, up: S::F) -> S::F;
}

#[derive(Clone, Copy)]
struct Identity;
#[derive(Clone, Copy)]
struct Silu;
#[derive(Clone, Copy)]
struct Gelu;
#[derive(Clone, Copy)]
struct Relu;
#[derive(Clone, Copy)]
struct Relu2;
#[derive(Clone, Copy)]
struct Sigmoid;
#[derive(Clone, Copy)]
struct ClampedSwiglu;
#[derive(Clone, Copy)]
struct Xielu {
    positive: f32,
    negative: f32,
    linear: f32,
    eps: f32,
}

impl Curve for Identity {
    #[inline(always)]
    fn at<S: Vector>(self, simd: S, x: S::F, up: S::F) -> S::F {
        simd.mul(x, up)
    }
}

impl Curve for Silu {
    #[inline(always)]
    fn at<S: Vector>(self, simd: S, x: S::F, up: S::F) -> S::F {
        simd.mul(times_sigmoid(simd, x, x), up)
    }
}

impl Curve for Gelu {
    #[inline(always)]
    fn at<S: Vector>(self, simd: S, x: S::F, up: S::F) -> S::F {
        // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u): GELU is a sigmoid of a cubic, which does not cancel for negative x.
        let scale = 2.0 * (2.0 / std::f32::consts::PI).sqrt();
        let cubic = simd.fma(simd.mul(x, x), simd.splat(0.044_715), simd.splat(1.0));
        let y = simd.mul(simd.mul(x, simd.splat(scale)), cubic);
        simd.mul(times_sigmoid(simd, x, y), up)
    }
}

impl Curve for Relu {
    #[inline(always)]
    fn at<S: Vector>(self, simd: S, x: S::F, up: S::F) -> S::F {
        // `x` stands second so that NaN passes through.
        simd.mul(simd.max(simd.splat(0.0), x), up)
    }
}

impl Curve for Relu2 {
    #[inline(always)]
    fn at<S: Vector>(self, simd: S, x: S::F, up: S::F) -> S::F {
        // `x` stands second so that NaN passes through.
        let x = simd.max(simd.splat(0.0), x);
        simd.mul(simd.mul(x, x), up)
    }
}

impl Curve for Sigmoid {
    #[inline(always)]
    fn at<S: Vector>(self, simd: S, x: S::F, up: S::F) -> S::F {
        times_sigmoid(simd, up, x)
    }
}

impl Curve for Xielu {
    #[inline(always)]
    fn at<S: Vector>(self, simd: S, x: S::F, up: S::F) -> S::F {
        let above = simd.mul(simd.mul(x, x), simd.splat(self.positive));
        let power = exp(simd, simd.min(simd.splat(self.eps), x));
        let below = simd.mul(simd.sub(simd.sub(power, simd.splat(1.0)), x), simd.splat(self.negative));
        let curve = simd.select(simd.lt(simd.splat(0.0), x), above, below);
        simd.mul(simd.fma(x, simd.splat(self.linear), curve), up)
    }
}

impl Curve for ClampedSwiglu {
    #[inline(always)]
    fn at<S: Vector>(self, simd: S, gate: S::F, up: S::F) -> S::F {
        let a = simd.min(simd.splat(7.0), gate);
        let b = simd.max(simd.splat(-7.0), simd.min(simd.splat(7.0), up));
        simd.mul(times_sigmoid(simd, a, simd.mul(a, simd.splat(1.702))), simd.add(b, simd.splat(1.0)))
    }
}

struct Gated<'a, C> {
    curve: C,
    gate: &'a [f32],
    up: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl<C: Curve> Kernel for Gated<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Gated { curve, gate, up, out } = self;
        let ones = [1f32; LANES];
        let mut start = 0;
        while start < out.len() {
            let n = (out.len() - start).min(LANES);
            let (mut gate_end, mut up_end, mut out_end) = ([0f32; LANES], ones, [0f32; LANES]);
            // SAFETY: vectors that lie in the slices, which have one length, or arrays of one vector.
            unsafe {
                if n == LANES {
                    let gate = simd.load(gate.as_ptr().add(start));
                    let up = up.map_or(simd.splat(1.0), |up| simd.load(up.as_ptr().add(start)));
                    simd.store(out.as_mut_ptr().add(start), curve.at(simd, gate, up));
                } else {
                    gate_end[..n].copy_from_slice(&gate[start..]);
                    if let Some(up) = up {
                        up_end[..n].copy_from_slice(&up[start..]);
                    }
                    let (gate, up) = (simd.load(gate_end.as_ptr()), simd.load(up_end.as_ptr()));
                    simd.store(out_end.as_mut_ptr(), curve.at(simd, gate, up));
                    out[start..].copy_from_slice(&out_end[..n]);
                }
            }
            start += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(n: usize) -> (Vec<f32>, Vec<f32>) {
        let gate = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.31).collect();
        let up = (0..n).map(|i| ((i * 53 % 97) as f32 - 48.0) * 0.07).collect();
        (gate, up)
    }

    #[test]
    fn both_match_f64() {
        for isa in Isa::available() {
            for n in [1, 15, 16, 17, 64, 333] {
                let (gate, up) = inputs(n);
                let mut out = vec![f32::NAN; n];
                gated(isa, Activation::Silu, &gate, Some(&up), &mut out);
                for i in 0..n {
                    let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
                    let exact = g / (1.0 + (-g).exp()) * u;
                    assert!((f64::from(out[i]) - exact).abs() <= exact.abs() * 1e-6, "{isa:?} {n} {i}");
                }
                gated(isa, Activation::Gelu, &gate, Some(&up), &mut out);
                for i in 0..n {
                    let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
                    let exact = 0.5 * g * (1.0 + inner.tanh()) * u;
                    // e^-2u has a relative error of |2u| 2^-23 from rounding u; and f64's 1 + tanh(u) cancels.
                    let bound = exact.abs() * (1e-6 + 2.0 * inner.abs() * 2.4e-7) + 1e-14 * (g * u).abs() + 1e-37;
                    assert!((f64::from(out[i]) - exact).abs() <= bound, "{isa:?} {n} {i}: {} {exact}", out[i]);
                }
            }
        }
    }

    #[test]
    fn the_others_match_f64() {
        let xielu = Activation::Xielu { positive: 0.9, negative: 1.3, linear: 0.5, eps: -1e-6 };
        type Exact = fn(f64, f64) -> f64;
        let curves: [(Activation, Exact); 5] = [
            (Activation::Relu, |g, u| g.max(0.0) * u),
            (Activation::Relu2, |g, u| g.max(0.0).powi(2) * u),
            (Activation::Sigmoid, |g, u| u / (1.0 + (-g).exp())),
            (xielu, |g, u| {
                let curve = if g > 0.0 { 0.9 * g * g } else { 1.3 * (g.min(-1e-6).exp() - 1.0 - g) };
                (curve + 0.5 * g) * u
            }),
            (Activation::ClampedSwiglu, |g, u| {
                let (a, b) = (g.min(7.0), u.clamp(-7.0, 7.0));
                a / (1.0 + (-1.702 * a).exp()) * (b + 1.0)
            }),
        ];
        for isa in Isa::available() {
            let (gate, up) = inputs(333);
            let up: Vec<f32> = up.iter().map(|u| u * 5.0).collect();
            let mut out = vec![f32::NAN; 333];
            for (act, exact) in curves {
                for up in [Some(&up[..]), None] {
                    gated(isa, act, &gate, up, &mut out);
                    for i in 0..333 {
                        let exact = exact(f64::from(gate[i]), up.map_or(1.0, |up| f64::from(up[i])));
                        let bound = exact.abs() * 2e-6 + 3e-6;
                        assert!((f64::from(out[i]) - exact).abs() <= bound, "{isa:?} {act:?} {i}: {} {exact}", out[i]);
                    }
                }
            }
        }
    }

    #[test]
    fn extremes_stay_finite_and_nan_stays() {
        for isa in Isa::available() {
            let gate = [-1e30, 1e30, -200.0, 200.0, f32::NAN, 0.0];
            let up = [1.0; 6];
            let mut out = [7.0; 6];
            for act in [Activation::Silu, Activation::Gelu] {
                gated(isa, act, &gate, Some(&up), &mut out);
                assert_eq!((out[0], out[1], out[2], out[3], out[5]), (0.0, 1e30, 0.0, 200.0, 0.0), "{isa:?}");
                assert!(out[4].is_nan());
            }
        }
    }
}
