//! exp, tanh and sigmoid of vectors.
//!
//! Errors are measured against f64 in the tests, over every binade of the range in use, and stated with each
//! function. NaN stays NaN; results below the smallest normal number are 0, so that no kernel meets denormals.

use crate::simd::Vector;

/// Where [`exp`] becomes 0, and where it becomes infinite.
const EXP_LOW: f32 = -87.336_54;
const EXP_HIGH: f32 = 88.376_26;

/// e^x, within 2 units in the last place; 0 below -87.33, infinite above 88.37.
#[inline(always)]
pub(crate) fn exp<S: Vector>(simd: S, x: S::F) -> S::F {
    // x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts so that r keeps its digits. Clamping keeps n in
    // the range of pow2; `x` stands second so that NaN passes through.
    let clamped = simd.min(simd.splat(EXP_HIGH), simd.max(simd.splat(EXP_LOW), x));
    let n = simd.round(simd.mul(clamped, simd.splat(std::f32::consts::LOG2_E)));
    let r = simd.fma(n, simd.splat(-0.693_359_4), clamped);
    let r = simd.fma(n, simd.splat(2.121_944_4e-4), r);
    // e^r = 1 + r + r^2 p(r), p of degree 5 (coefficients of Cephes' expf).
    let mut p = simd.splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1] {
        p = simd.fma(p, r, simd.splat(c));
    }
    let e = simd.add(simd.fma(p, simd.mul(r, r), r), simd.splat(1.0));
    let y = simd.mul(e, simd.pow2(n));
    let y = simd.select(simd.lt(x, simd.splat(EXP_LOW)), simd.splat(0.0), y);
    simd.select(simd.lt(simd.splat(EXP_HIGH), x), simd.splat(f32::INFINITY), y)
}

/// tanh x, within 3 units in the last place.
#[inline(always)]
pub(crate) fn tanh<S: Vector>(simd: S, x: S::F) -> S::F {
    // Away from zero 1 - 2 / (e^2x + 1); near zero that cancels, and an odd polynomial stands in
    // (coefficients of Cephes' tanhf).
    let one = simd.splat(1.0);
    let away = simd.sub(one, simd.div(simd.splat(2.0), simd.add(exp(simd, simd.add(x, x)), one)));
    let z = simd.mul(x, x);
    let mut p = simd.splat(-5.704_988_7e-3);
    for c in [2.063_909e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = simd.fma(p, z, simd.splat(c));
    }
    let near = simd.fma(simd.mul(p, z), x, x);
    simd.select(simd.lt(z, simd.splat(0.625 * 0.625)), near, away)
}

/// x / (1 + e^-y), within 4 units in the last place; 0 where e^-y overflows.
#[inline(always)]
pub(crate) fn times_sigmoid<S: Vector>(simd: S, x: S::F, y: S::F) -> S::F {
    let e = exp(simd, simd.sub(simd.splat(0.0), y));
    simd.div(x, simd.add(simd.splat(1.0), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Kernel, dispatch};

    #[derive(Clone, Copy)]
    enum Function {
        Exp,
        Tanh,
        Silu,
    }

    struct Apply<'a>(Function, &'a [f32]);

    impl Kernel for Apply<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Vector>(self, simd: S) -> Vec<f32> {
            let mut out = vec![0f32; self.1.len()];
            for (x, y) in self.1.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0) {
                // SAFETY: chunks of 16.
                unsafe {
                    let x = simd.load(x.as_ptr());
                    let v = match self.0 {
                        Function::Exp => exp(simd, x),
                        Function::Tanh => tanh(simd, x),
                        Function::Silu => times_sigmoid(simd, x, x),
                    };
                    simd.store(y.as_mut_ptr(), v);
                }
            }
            out
        }
    }

    /// Distance in units in the last place of the exact value.
    fn ulps(got: f32, exact: f64) -> f64 {
        let nearest = (exact as f32).abs().max(f32::MIN_POSITIVE);
        let unit = f64::from(f32::from_bits(nearest.to_bits() + 1) - nearest);
        (f64::from(got) - exact).abs() / unit
    }

    /// Every 997th f32 of both signs up to `limit`.
    fn samples(limit: f32) -> Vec<f32> {
        let positive = (0..=limit.to_bits()).step_by(997).map(f32::from_bits);
        let mut x: Vec<f32> = positive.flat_map(|x| [x, -x]).collect();
        x.resize(x.len().next_multiple_of(16), 0.0);
        x
    }

    fn worst(function: Function, limit: f32, exact: fn(f64) -> f64, isa: Isa) -> f64 {
        let x = samples(limit);
        let y = dispatch(isa, Apply(function, &x));
        x.iter().zip(&y).map(|(&x, &y)| ulps(y, exact(f64::from(x)))).fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_as_stated() {
        for isa in Isa::available() {
            let exp = worst(Function::Exp, 87.33, f64::exp, isa);
            let tanh = worst(Function::Tanh, 20.0, f64::tanh, isa);
            let silu = worst(Function::Silu, 80.0, |x| x / (1.0 + (-x).exp()), isa);
            eprintln!("{isa:?}: exp {exp:.2}, tanh {tanh:.2}, silu {silu:.2} ulp");
            assert!(exp <= 2.0 && tanh <= 3.0 && silu <= 4.0, "{isa:?}: {exp} {tanh} {silu}");
        }
    }

    #[test]
    fn edges() {
        let inf = f32::INFINITY;
        let x = [
            0.0,
            -0.0,
            inf,
            -inf,
            f32::NAN,
            200.0,
            -200.0,
            88.0,
            88.4,
            -87.4,
            1.0,
            -1.0,
            1e-30,
            f32::MAX,
            f32::MIN,
            0.5,
        ];
        for isa in Isa::available() {
            let y = dispatch(isa, Apply(Function::Exp, &x));
            assert_eq!(y[..4], [1.0, 1.0, inf, 0.0], "{isa:?}");
            assert!(y[4].is_nan());
            assert_eq!((y[5], y[6], y[8], y[9], y[12], y[13], y[14]), (inf, 0.0, inf, 0.0, 1.0, inf, 0.0), "{isa:?}");
            let y = dispatch(isa, Apply(Function::Tanh, &x));
            assert_eq!((y[0], y[2], y[3], y[5], y[6]), (0.0, 1.0, -1.0, 1.0, -1.0), "{isa:?}");
            assert!(y[4].is_nan());
            let y = dispatch(isa, Apply(Function::Silu, &x));
            assert_eq!((y[0], y[2], y[5], y[6]), (0.0, inf, 200.0, 0.0), "{isa:?}");
            assert!(y[4].is_nan());
        }
    }
}
