//! Rotary position embedding: turning the pairs of heads by the cosines and sines of
//! [`Rope`](crate::backend::rope::Rope).

use crate::graph::RopeKind;
use crate::simd::{Isa, compiled_for};

/// In each head of `width` values of a row, turn `2 cos.len()` values, from the one called `first` on, by the given
/// cosines and sines; the rest stays.
pub fn rotate_heads(
    isa: Isa,
    kind: RopeKind,
    (cos, sin): (&[f32], &[f32]),
    heads: &mut [f32],
    (width, first): (usize, usize),
) {
    let pairs = cos.len();
    assert!(sin.len() == pairs && first + 2 * pairs <= width, "More rotated values than the head has");
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for head in heads.chunks_exact_mut(width) {
                let rotated = &mut head[first..first + 2 * pairs];
                match kind {
                    RopeKind::Norm => {
                        for (([x, y], c), s) in rotated.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                            (*x, *y) = (*x * c - *y * s, *x * s + *y * c);
                        }
                    }
                    RopeKind::Neox => {
                        let (first, second) = rotated.split_at_mut(pairs);
                        for (((x, y), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                            (*x, *y) = (*x * c - *y * s, *x * s + *y * c);
                        }
                    }
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::rope::Rope;
    use crate::graph::RopeScaling;

    #[test]
    fn pairs_turn_and_the_rest_stays() {
        for isa in Isa::available() {
            for (width, n_rot) in [(8, 8), (80, 32), (96, 96), (128, 64), (256, 256)] {
                let rope = Rope::new(n_rot, 1e4, &[], RopeScaling::None);
                let (mut cos, mut sin) = (vec![0.0; n_rot / 2], vec![0.0; n_rot / 2]);
                rope.fill(41, &mut cos, &mut sin);
                let row: Vec<f32> = (0..3 * width).map(|i| (i * 31 % 17) as f32 - 8.0).collect();
                for kind in [RopeKind::Norm, RopeKind::Neox] {
                    let mut got = row.clone();
                    rotate_heads(isa, kind, (&cos, &sin), &mut got, (width, 0));
                    // The same values later in wider heads.
                    let mut wide: Vec<f32> = row.chunks(width).flat_map(|x| [&[9.0; 8][..], x].concat()).collect();
                    rotate_heads(isa, kind, (&cos, &sin), &mut wide, (width + 8, 8));
                    for (wide, got) in wide.chunks(width + 8).zip(got.chunks(width)) {
                        assert_eq!((&wide[..8], &wide[8..]), (&[9.0; 8][..], got), "{isa:?} {kind:?}");
                    }
                    for (h, (x, y)) in row.chunks(width).zip(got.chunks(width)).enumerate() {
                        assert_eq!(x[n_rot..], y[n_rot..], "{isa:?} {kind:?} head {h}");
                        for i in 0..n_rot / 2 {
                            let (a, b) = match kind {
                                RopeKind::Norm => (2 * i, 2 * i + 1),
                                RopeKind::Neox => (i, i + n_rot / 2),
                            };
                            let (s, c) = (41.0 * 1e4_f64.powf(-2.0 * i as f64 / n_rot as f64)).sin_cos();
                            let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
                            assert!((f64::from(y[a]) - (xa * c - xb * s)).abs() < 4e-6, "{isa:?} {kind:?} {i}");
                            assert!((f64::from(y[b]) - (xa * s + xb * c)).abs() < 4e-6, "{isa:?} {kind:?} {i}");
                        }
                    }
                }
            }
        }
    }
}
