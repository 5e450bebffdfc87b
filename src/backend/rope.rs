//! Rotary position embedding (RoPE): the angles.
//!
//! A head's first `n_rot` values are n_rot/2 pairs; pair i of a row at position p is rotated by the angle p f_i, with
//! f_i = base^(-2i/n_rot) before scaling. [`Rope`] keeps the f_i of a model in f64, so that an angle still has all
//! digits of an f32 at positions of a million; [`Rope::fill`] makes the cosines and sines of one position, once for all
//! heads and layers that share them. Every backend takes the frequencies from here.
//!
//! Su et al., "RoFormer", <https://arxiv.org/abs/2104.09864>; the scaling for long contexts is YaRN, Peng et al.,
//! <https://arxiv.org/abs/2309.00071>.

use crate::graph::RopeScaling;
use std::f64::consts::PI;

/// The frequencies of one kind of layer of a model.
#[derive(Debug, Clone)]
pub struct Rope {
    frequencies: Vec<f64>,
    magnitude: f64,
}

impl Rope {
    /// Frequencies for `n_rot` (even) rotated values with the given base. `factors`, one per pair, divide the
    /// frequencies (`rope_freqs.weight`); an empty slice means ones. Panics when there are too few.
    pub fn new(n_rot: usize, base: f64, factors: &[f32], scaling: RopeScaling) -> Rope {
        let pairs = n_rot / 2;
        assert!(factors.is_empty() || factors.len() >= pairs, "{} frequency factors for {pairs} pairs", factors.len());
        let mut magnitude = 1.0;
        let frequencies = (0..pairs).map(|i| {
            let factor = factors.get(i).map_or(1.0, |&f| f64::from(f));
            base.powf(-2.0 * i as f64 / n_rot as f64) / factor
        });
        let frequencies = match scaling {
            RopeScaling::None => frequencies.collect(),
            RopeScaling::Linear { factor } => frequencies.map(|f| f / factor).collect(),
            RopeScaling::Yarn { factor, ext_factor, attn_factor, beta_fast, beta_slow, original_context } => {
                magnitude = attn_factor;
                if ext_factor != 0.0 {
                    magnitude *= 1.0 + 0.1 * factor.ln();
                }
                // The (fractional) pair that turns `turns` times over the original context.
                let context = f64::from(original_context);
                let pair = |turns: f64| n_rot as f64 * (context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
                let low = pair(beta_fast).floor().max(0.0);
                let high = pair(beta_slow).ceil().min(n_rot as f64 - 1.0);
                let keep = move |i: usize| 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let blend = move |(i, f): (usize, f64)| {
                    let kept = keep(i) * ext_factor;
                    f / factor * (1.0 - kept) + f * kept
                };
                frequencies.enumerate().map(blend).collect()
            }
        };
        Rope { frequencies, magnitude }
    }

    /// Values of a head that are rotated.
    pub fn n_rot(&self) -> usize {
        self.frequencies.len() * 2
    }

    /// Radians per position of each pair.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// Factor on all cosines and sines: YaRN's attention factor, else 1.
    pub fn magnitude(&self) -> f64 {
        self.magnitude
    }

    /// Cosines and sines of one position, n_rot/2 of each.
    pub fn fill(&self, position: i32, cos: &mut [f32], sin: &mut [f32]) {
        for ((f, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            let (s, c) = (f64::from(position) * f).sin_cos();
            *cos = (c * self.magnitude) as f32;
            *sin = (s * self.magnitude) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Angle of pair i straight from the definition.
    fn plain(position: i32, i: usize, n_rot: usize, base: f64) -> f64 {
        f64::from(position) * base.powf(-2.0 * i as f64 / n_rot as f64)
    }

    fn filled(rope: &Rope, position: i32) -> (Vec<f32>, Vec<f32>) {
        let (mut cos, mut sin) = (vec![0.0; rope.n_rot() / 2], vec![0.0; rope.n_rot() / 2]);
        rope.fill(position, &mut cos, &mut sin);
        (cos, sin)
    }

    fn assert_angles(rope: &Rope, position: i32, angle: impl Fn(usize) -> f64, magnitude: f64) {
        let (cos, sin) = filled(rope, position);
        for i in 0..cos.len() {
            let (s, c) = angle(i).sin_cos();
            assert!((f64::from(cos[i]) - c * magnitude).abs() < 1.3e-7 * magnitude, "cos {i} at {position}");
            assert!((f64::from(sin[i]) - s * magnitude).abs() < 1.3e-7 * magnitude, "sin {i} at {position}");
        }
    }

    #[test]
    fn frequencies_keep_their_digits_at_a_million() {
        for (n_rot, base) in [(8, 1e4), (64, 1e4), (128, 1e6), (256, 1e6)] {
            let rope = Rope::new(n_rot, base, &[], RopeScaling::None);
            for position in [0, 1, 77, 4095, 131_071, 1_000_000] {
                assert_angles(&rope, position, |i| plain(position, i, n_rot, base), 1.0);
            }
        }
        let (cos, sin) = filled(&Rope::new(64, 1e4, &[], RopeScaling::None), 1_000_000);
        // From an independent calculation to 50 digits: cos and sin of a million radians.
        assert!((cos[0] - 0.936_752_13).abs() < 1e-7 && (sin[0] + 0.349_993_5).abs() < 1e-7, "{} {}", cos[0], sin[0]);
    }

    #[test]
    fn factors_and_linear_scaling_divide() {
        let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32 * 0.5).collect();
        let rope = Rope::new(64, 5e5, &factors, RopeScaling::Linear { factor: 4.0 });
        assert_angles(&rope, 9000, |i| plain(9000, i, 64, 5e5) / f64::from(factors[i]) / 4.0, 1.0);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let (n_rot, base, factor, context) = (128usize, 1e4, 16.0, 4096u32);
        let yarn = |ext_factor| RopeScaling::Yarn {
            factor,
            ext_factor,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: context,
        };
        // The paper's values for LLaMA 2 extended 16 times: blend from pair 20 (32 turns in 4096 tokens) to pair 46
        // (1 turn), and 0.1 ln 16 + 1.
        let rope = Rope::new(n_rot, base, &[], yarn(1.0));
        let kept = |i: usize| 1.0 - ((i as f64 - 20.0) / 26.0).clamp(0.0, 1.0);
        let angle = |i| plain(3000, i, n_rot, base) * (kept(i) + (1.0 - kept(i)) / factor);
        assert_angles(&rope, 3000, angle, 1.277_258_872_223_978);
        let off = Rope::new(n_rot, base, &[], yarn(0.0));
        assert_angles(&off, 3000, |i| plain(3000, i, n_rot, base) / factor, 1.0);
    }
}
