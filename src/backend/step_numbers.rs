//! What is computed of a step's numbers before any row: once for the host and for devices, so that both go on from the
//! same bits.

/// The greatest threshold of XTC that does anything: no two candidates have more than half of all probability.
pub const MAX_XTC_THRESHOLD: f32 = 0.5;

/// XTC acts where the 32 random bits of its draw, which mean the uniform number (r + 0.5) · 2^-32, are at most this.
/// `None` where it never acts.
pub fn xtc_limit(probability: f32) -> Option<u32> {
    // All of it is exact, but for numbers far below 0.5.
    let limit = (f64::from(probability) * 4_294_967_296.0 - 0.5).floor();
    (limit >= 0.0).then_some(limit as u32)
}

/// The number of standard deviations that top-n-sigma computes with: more keep all, too, since no candidate of 2^23 is
/// so many below the best.
pub fn deviations(n: f32) -> f32 {
    n.min(65_536.0)
}

/// The numbers of a dynamic temperature: `low + width · share^exponent`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DynamicRange {
    /// The lowest temperature.
    pub low: f32,
    /// How far above that the highest one is.
    pub width: f32,
    /// Power to which the share of the greatest entropy is raised.
    pub exponent: f32,
}

impl DynamicRange {
    /// From the numbers of [`ChainStep::DynamicTemperature`](super::ChainStep::DynamicTemperature). At bounds far
    /// beyond which all candidates are equally probable they are cut, so that no result is infinite.
    pub fn new(temperature: f32, range: f32, exponent: f32) -> DynamicRange {
        let low = (temperature - range).clamp(0.0, 1e37);
        let width = ((temperature + range) - low).clamp(-1e24, 1e24);
        DynamicRange { low, width, exponent: exponent.clamp(-1e30, 1e30) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xtc_acts_as_often_as_it_says() {
        for (probability, limit) in [
            (1.0, Some(u32::MAX)),
            (2.0, Some(u32::MAX)),
            (0.5, Some(0x7fff_ffff)),
            (f32::MIN_POSITIVE, None),
            (1.2e-10, Some(0)),
            (0.0, None),
            (-1.0, None),
        ] {
            assert_eq!(xtc_limit(probability), limit, "{probability}");
        }
        for probability in [0.1f32, 0.3, 0.7, 0.999_999_9] {
            let acts = |r: u32| (f64::from(r) + 0.5) / 4_294_967_296.0 <= f64::from(probability);
            let limit = xtc_limit(probability).unwrap_or_default();
            assert!(acts(limit) && !acts(limit + 1), "{probability}");
        }
    }

    #[test]
    fn ranges_are_finite() {
        for (temperature, range, exponent) in [(f32::MAX, f32::MAX, f32::MAX), (f32::MIN, f32::MAX, f32::MIN)] {
            let dynamic = DynamicRange::new(temperature, range, exponent);
            assert!(dynamic.low.is_finite() && dynamic.width.is_finite() && dynamic.exponent.is_finite());
        }
        let dynamic = DynamicRange::new(-1.0, 0.5, 2.0);
        assert_eq!((dynamic.low, dynamic.width), (0.0, -0.5));
    }
}
