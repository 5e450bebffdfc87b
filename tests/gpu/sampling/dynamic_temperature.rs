//! The dynamic temperature, which the device computes in f32, against double precision.

use super::rig::{Rig, devices, dynamic_of, may_be_drawn, order_of, rows};
use elizainference::backend::gpu::sample::{ChainStep, SampleSpec};

/// The dynamic temperature against double precision: the temperature within 1e-5, and the token except where the draw
/// lies within [`EPSILON`] of a boundary.
#[test]
fn dynamic_temperature() {
    let n = 4000;
    let chains: [(&[ChainStep], usize); 4] =
        [(&[], n), (&[ChainStep::TopK(30)], 30), (&[ChainStep::TopK(2)], 2), (&[ChainStep::TopK(1)], 1)];
    for gpu in devices() {
        let mut rig = Rig::new(gpu, n, 1);
        for (name, row) in rows(n).iter().filter(|(name, _)| name.contains("gaussian") || *name == "all equal") {
            for (before, kept) in chains {
                for (temperature, range, exponent) in [(1.0, 0.5, 1.0), (0.7, 1.2, 2.5), (0.5, 0.5, 0.0)] {
                    let dynamic = ChainStep::DynamicTemperature { temperature, range, exponent };
                    let steps = before.iter().cloned().chain([dynamic]).collect();
                    rig.program.set_chain(0, &SampleSpec { steps, seed: 3, candidates: 2 }).unwrap();
                    let order = order_of(row, kept);
                    let expected =
                        dynamic_of(&order, row, f64::from(temperature), f64::from(range), f64::from(exponent));
                    for position in [3, 900] {
                        rig.write(0, row);
                        rig.program.restart(0, position, &[]).unwrap();
                        rig.submit(&[0]);
                        let (result, candidates) = rig.read().swap_remove(0);
                        let what = format!("{kept} of {name}, {temperature}, {range}, {exponent}: {result:?}");
                        assert_eq!(result.kept as usize, kept, "{what}");
                        let (best, logit, _) = candidates[0];
                        assert_eq!(best as usize, order[0], "{what}");
                        let wanted = f64::from(row[order[0]]) / expected;
                        assert!((f64::from(logit) - wanted).abs() <= 1e-5 * wanted.abs(), "{what}: {logit}, {wanted}");
                        assert!(may_be_drawn(&order, row, expected, 3, position, result.token), "{what}");
                    }
                }
            }
        }
    }
}
