//! The weight of a candidate: its probability relative to the best one's, as an integer.
//!
//! `weight = round(exp(z) · 2^40)` with `z = (logit - best) / temperature <= 0`. Integers have the same sum in any
//! order and vector width, so the samplers of the host and of every device choose the same token. Up to 2^23 candidates
//! fit a 64-bit sum. A candidate whose weight rounds to zero (below e^-28.4 of the best) is never drawn; all such
//! tokens of the largest vocabulary together have less than 2.4e-7 of the probability, about the resolution of a draw's
//! 32 bits.

/// The weight of the best candidate.
pub const ONE: u64 = 1 << 40;

/// [`exp`] is not evaluated below this: the weight is zero long before.
pub(super) const LOWEST: f32 = -32.0;

/// e^z for z in -32..=0, without branches so that a loop over it becomes vector code; below -32, and for NaN, e^-32.
/// The relative error is below 1.3e-7 (slightly more than one unit in the last place); exp(0) is exactly 1.
#[inline(always)]
pub fn exp(z: f32) -> f32 {
    // z = n·ln 2 + r with |r| <= ln 2 / 2. Adding 1.5·2^23 rounds to an integer and leaves it in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    // ln 2 in two parts; the upper has 9 bits, so that its product with n is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let z = if z > LOWEST { z } else { LOWEST };
    let shifted = z * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = (z - n * LN2_HIGH) - n * LN2_LOW;
    // The single-precision polynomial for (e^r - 1 - r) / r^2 of the Cephes library (`expf`).
    let mut tail = 1.987_569_1e-4;
    tail = tail * r + 1.398_2e-3;
    tail = tail * r + 8.333_452e-3;
    tail = tail * r + 4.166_579_6e-2;
    tail = tail * r + 1.666_666_5e-1;
    tail = tail * r + 0.5;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    (tail * (r * r) + r + 1.0) * power
}

/// The weight for `z <= 0`; 0 for -inf and NaN.
#[inline(always)]
pub fn weight(z: f32) -> u64 {
    // In 4096..=4097 a double's last bit is worth 2^-40, so the addition rounds to a multiple of that and the low bits
    // are the weight.
    const BASE: f64 = 4096.0;
    (f64::from(exp(z)) + BASE).to_bits() - BASE.to_bits()
}

/// round(e^z · -z · 2^40) for `z <= 0`: the entropy of weights is a sum of these.
#[inline(always)]
pub fn moment(z: f32) -> u64 {
    const BASE: f64 = 4096.0;
    let z = if z > LOWEST { z } else { LOWEST };
    (f64::from(exp(z)) * f64::from(-z) + BASE).to_bits() - BASE.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_stays_within_its_stated_error() {
        let mut worst = 0.0f64;
        let mut z = LOWEST;
        while z < 0.0 {
            let exact = f64::from(z).exp();
            worst = worst.max((f64::from(exp(z)) - exact).abs() / exact);
            z = f32::from_bits(z.to_bits() - 61); // towards zero, 61 floats at a time
            if z > -1e-30 {
                break;
            }
        }
        eprintln!("worst relative error of exp: {worst:.3e}");
        assert!(worst < 1.3e-7, "{worst:e}");
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn weights_of_the_edges() {
        assert_eq!(weight(0.0), ONE);
        assert_eq!(weight(-0.0), ONE);
        assert_eq!(weight(f32::NEG_INFINITY), 0);
        assert_eq!(weight(f32::MIN), 0);
        assert_eq!(weight(f32::NAN), 0);
        assert_eq!(weight(-28.5), 0);
        assert_eq!(weight(-28.4), 1);
    }

    #[test]
    fn moments_of_the_edges() {
        for z in [0.0, -0.0, f32::NEG_INFINITY, f32::MIN, -32.0] {
            assert_eq!(moment(z), 0, "{z}");
        }
        for z in [-1e-6f32, -0.3, -1.0, -7.5, -20.0] {
            let exact = f64::from(z).exp() * -f64::from(z) * ONE as f64;
            assert!((moment(z) as f64 - exact).abs() <= 1.0 + 1.3e-7 * exact, "{z}");
        }
    }
}
