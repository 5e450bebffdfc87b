//! The gated activations of feed-forward blocks: SwiGLU and GeGLU.

use super::vecmath::times_sigmoid;
use crate::simd::{Isa, Kernel, LANES, Vector, dispatch};

/// `out[i] = silu(gate[i]) up[i]`, silu(x) = x / (1 + e^-x).
///
/// All slices have one length.
pub fn swiglu(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    dispatch(isa, Gated::<false> { gate, up, out });
}

/// `out[i] = gelu(gate[i]) up[i]` with the tanh form of GELU, x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))).
///
/// All slices have one length.
pub fn geglu(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    dispatch(isa, Gated::<true> { gate, up, out });
}

struct Gated<'a, const GELU: bool> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl<const GELU: bool> Kernel for Gated<'_, GELU> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        assert!(self.gate.len() == self.out.len() && self.up.len() == self.out.len(), "Gated rows differ in length");
        let (gates, gate_rest) = self.gate.as_chunks::<LANES>();
        let (ups, up_rest) = self.up.as_chunks::<LANES>();
        let (outs, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
            gated::<S, GELU>(simd, gate, up, out);
        }
        let n = out_rest.len();
        if n != 0 {
            let (mut gate, mut up, mut out) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
            gate[..n].copy_from_slice(gate_rest);
            up[..n].copy_from_slice(up_rest);
            gated::<S, GELU>(simd, &gate, &up, &mut out);
            out_rest.copy_from_slice(&out[..n]);
        }
    }
}

#[inline(always)]
fn gated<S: Vector, const GELU: bool>(simd: S, gate: &[f32; LANES], up: &[f32; LANES], out: &mut [f32; LANES]) {
    // SAFETY: arrays of one vector.
    let (x, up) = unsafe { (simd.load(gate.as_ptr()), simd.load(up.as_ptr())) };
    // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u): GELU is a sigmoid of a cubic, which does not cancel for negative x.
    let y = if GELU {
        let scale = 2.0 * (2.0 / std::f32::consts::PI).sqrt();
        let cubic = simd.fma(simd.mul(x, x), simd.splat(0.044_715), simd.splat(1.0));
        simd.mul(simd.mul(x, simd.splat(scale)), cubic)
    } else {
        x
    };
    // SAFETY: an array of one vector.
    unsafe { simd.store(out.as_mut_ptr(), simd.mul(times_sigmoid(simd, x, y), up)) };
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
                swiglu(isa, &gate, &up, &mut out);
                for i in 0..n {
                    let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
                    let exact = g / (1.0 + (-g).exp()) * u;
                    assert!((f64::from(out[i]) - exact).abs() <= exact.abs() * 1e-6, "{isa:?} {n} {i}");
                }
                geglu(isa, &gate, &up, &mut out);
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
    fn extremes_stay_finite_and_nan_stays() {
        for isa in Isa::available() {
            let gate = [-1e30, 1e30, -200.0, 200.0, f32::NAN, 0.0];
            let up = [1.0; 6];
            let mut out = [7.0; 6];
            for gated in [swiglu, geglu] {
                gated(isa, &gate, &up, &mut out);
                assert_eq!((out[0], out[1], out[2], out[3], out[5]), (0.0, 1e30, 0.0, 200.0, 0.0), "{isa:?}");
                assert!(out[4].is_nan());
            }
        }
    }
}
