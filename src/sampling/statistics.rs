//! What some steps compute of all candidates: the mean distance from the best logit, the entropy, the standard
//! deviation.
//!
//! Sums are integers, and what is made of them is f32 in which every operation is rounded by itself, without the
//! system's logarithms and powers. So a device without double precision computes the same bits, and chooses the same
//! token (`shaders/sample/statistics.wgsl`).

use super::weigh;

/// `a · 2^exponent` without the bits after the first 24.
pub(super) fn shortened(a: u128, exponent: i32) -> f32 {
    let length = 128 - a.leading_zeros() as i32;
    if length == 0 {
        return 0.0;
    }
    let mantissa = if length > 24 { a >> (length - 24) } else { a << (24 - length) };
    f32::from_bits(mantissa as u32 & 0x007f_ffff | ((126 + length + exponent) as u32) << 23)
}

/// The natural logarithm of `a · 2^exponent`, for a above 0; within two units in the last place, near 1 too.
fn ln(a: u64, exponent: i32) -> f32 {
    // The bits of the root of 2.
    const ROOT: u32 = 0x3fb5_04f3;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let length = 64 - a.leading_zeros() as i32;
    let a = u128::from(a);
    // f is what is left of a · 2^-power beyond 1, between the roots of 1/2 and of 2.
    let above = shortened(a, 1 - length).to_bits() > ROOT;
    let power = if above { length } else { length - 1 };
    let one = 1u128 << power;
    let f = if above { -shortened(one - a, -power) } else { shortened(a - one, -power) };
    // The single-precision polynomial of the Cephes library (`logf`).
    let mut tail = 7.037_683_6e-2;
    for next in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        tail = tail * f + next;
    }
    let square = f * f;
    let halvings = (power + exponent) as f32;
    let low = tail * (f * square) + halvings * LN2_LOW;
    f + (low - 0.5 * square) + halvings * LN2_HIGH
}

/// The mean distance from the best logit, in units of the temperature, from the sums of [`weigh::moment`] and
/// [`weigh::weight`].
pub(super) fn mean_distance(moment: u64, mass: u64) -> f32 {
    shortened((u128::from(moment) << 40) / u128::from(mass.max(1)), -40)
}

/// The entropy of `count` candidates as a share of the most that so many can have, 0 to 1; for two and more.
pub(super) fn evenness(count: u64, mass: u64, moment: u64) -> f32 {
    let entropy = ln(mass, -40) + mean_distance(moment, mass);
    if entropy > 0.0 { (entropy / ln(count, 0)).min(1.0) } else { 0.0 }
}

/// `base^exponent` for a base of 0 to 1; 0 to any power but 0 is 0. Results are e^-32 to e^32.
pub(super) fn power(base: f32, exponent: f32) -> f32 {
    if exponent == 1.0 || exponent == 0.0 || base <= 0.0 {
        return if exponent == 0.0 { 1.0 } else { base.max(0.0) };
    }
    let mantissa = base.to_bits() & 0x007f_ffff | 0x0080_0000;
    let y = exponent * ln(u64::from(mantissa), (base.to_bits() >> 23) as i32 - 150);
    if y <= 0.0 { weigh::exp(y) } else { 1.0 / weigh::exp(-y) }
}

/// The unit in which logits' distances from the best become integers: a power of two, of which the greatest distance
/// has 2^21 to 2^22.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    best: f32,
    /// Half the greatest distance.
    range: f32,
    /// Units per half of a logit.
    scale: f32,
    unit: f32,
}

impl Unit {
    /// The greatest distance that counts as none.
    const LEAST: f32 = 8.673_617_4e-19;

    /// `None` where all logits, from `lowest` to `best`, are about equal.
    pub(super) fn new(best: f32, lowest: f32) -> Option<Unit> {
        // Halves, so that no difference is infinite.
        let range = best * 0.5 - lowest * 0.5;
        (range >= Self::LEAST).then(|| {
            let exponent = range.to_bits() >> 23;
            let (scale, unit) = (f32::from_bits((275 - exponent) << 23), f32::from_bits((exponent - 21) << 23));
            Unit { best, range, scale, unit }
        })
    }

    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// The lowest logit that is `times` standard deviations below the best, with the number of logits, the sum of their
    /// [`units`] and that of the squares.
    pub(super) fn lowest(&self, times: f32, count: u64, sum: u64, squares: u128) -> f32 {
        let sum = u128::from(sum);
        let variance = u128::from(count) * squares - sum * sum;
        if variance == 0 {
            return self.best;
        }
        // 47 or 48 bits, by an even shift, have a root of 24.
        let shift = (128 - variance.leading_zeros() as i32 - 47) & !1;
        let part = if shift > 0 { variance >> shift } else { variance << -shift };
        let deviation = shortened(part.isqrt(), shift / 2) / shortened(u128::from(count), 0);
        let distance = times * deviation;
        if distance >= self.range * self.scale {
            return f32::MIN;
        }
        // The best stays whatever is rounded. A token at -inf is never kept.
        ((self.best * 0.5 - distance * self.unit) * 2.0).min(self.best).max(f32::MIN)
    }
}

/// The distance of a logit from the best in units, see [`Unit`]; 0 for -inf.
#[inline(always)]
pub(super) fn units(best: f32, scale: f32, logit: f32) -> u64 {
    /// Adding 2^23 rounds to an integer and leaves it in the low bits.
    const SHIFT: f32 = 8_388_608.0;
    u64::from(((best * 0.5 - logit * 0.5) * scale + SHIFT).to_bits() & 0x007f_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f32, exact: f64, relative: f64) {
        assert!((f64::from(got) - exact).abs() <= relative * exact.abs(), "{got}, exactly {exact}");
    }

    #[test]
    fn logarithms_near_and_far_from_one() {
        for a in [1, 2, 3, 5, 7, 100, 151_936, (1 << 40) + 1, (1 << 40) + 12_345, (1 << 40) - 7, 3 << 50, u64::MAX] {
            for exponent in [0, -40, -60, 3] {
                let exact = match a.checked_sub(1 << 40) {
                    // The logarithm in double precision is not exact so near to 1.
                    Some(rest) if exponent == -40 && rest < 1 << 20 => (rest as f64 / 2f64.powi(40)).ln_1p(),
                    _ => (a as f64).ln() + f64::from(exponent) * std::f64::consts::LN_2,
                };
                close(ln(a, exponent), exact, 3e-7);
            }
        }
        assert_eq!(ln(1 << 40, -40), 0.0);
    }

    #[test]
    fn powers() {
        for base in [1e-6f32, 0.01, 0.3, 0.7, 0.999, 1.0] {
            for exponent in [0.0f32, 0.3, 1.0, 1.5, 2.5, -0.5, -1.0] {
                let exact = f64::from(base).powf(f64::from(exponent));
                close(power(base, exponent), exact, if exact < 1e-13 { 1e9 } else { 5e-6 });
            }
        }
        assert_eq!((power(0.0, 2.0), power(0.0, -1.0), power(0.0, 0.0)), (0.0, 0.0, 1.0));
    }

    #[test]
    fn means_and_shares_of_the_entropy() {
        close(mean_distance(7 << 40, 3 << 40), 7.0 / 3.0, 1.2e-7);
        close(mean_distance(5, 1 << 40), 5.0 * 2f64.powi(-40), 1.2e-7);
        for count in [2, 3, 1000, 262_144] {
            assert_eq!(evenness(count, count << 40, 0), 1.0);
        }
        assert_eq!(evenness(2, 1 << 40, 0), 0.0);
    }

    #[test]
    fn deviations_of_any_range() {
        for scale in [1e-10f32, 1.0, 1e6, 1e37] {
            let logits: Vec<f32> = (0..1000).map(|i| ((i * 37 % 101) as f32).sqrt() * scale).collect();
            let (best, least) = (logits.iter().fold(0.0, |a: f32, &b| a.max(b)), 0.0);
            let unit = Unit::new(best, least).unwrap();
            let of = |&x: &f32| units(unit.best, unit.scale(), x);
            let sum = logits.iter().map(of).sum();
            let squares = logits.iter().map(|x| u128::from(of(x)).pow(2)).sum();
            let mean = logits.iter().map(|&x| f64::from(x)).sum::<f64>() / 1000.0;
            let variance = logits.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / 1000.0;
            for times in [0.01f32, 1.0, 2.5] {
                let exact = f64::from(best) - f64::from(times) * variance.sqrt();
                let got = f64::from(unit.lowest(times, 1000, sum, squares));
                assert!((got - exact).abs() <= 1e-6 * f64::from(best), "{got}, exactly {exact}");
            }
            assert_eq!(unit.lowest(65536.0, 1000, sum, squares), f32::MIN);
        }
        assert!(Unit::new(3.0, 3.0).is_none());
        let all = Unit::new(f32::MAX, f32::MIN).unwrap();
        assert_eq!(units(all.best, all.scale(), f32::MIN), 1 << 22);
        assert_eq!(units(all.best, all.scale(), f32::NEG_INFINITY), 0);
    }
}
