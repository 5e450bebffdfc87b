//! The fixture models themselves: the same bytes on every run, readable by our own reader, and close to what their
//! formats promise. `ELIZA_FIXTURES=DIR` also writes them into DIR, for the harnesses outside cargo.

use crate::testing::encoders::Encoder;
use crate::testing::fixtures::{self, Kind, Weights};
use crate::testing::reference::{EXACT, Reference};
use crate::testing::rng::Stream;
use crate::testing::script;
use crate::testing::stats;
use elizainference::gguf::File;

fn reference(kind: Kind, weights: Weights, as_f32: bool) -> Reference {
    Reference::new(&File::from_bytes(fixtures::bytes(kind, weights, as_f32)).unwrap())
}

fn tokens(n: u64) -> Vec<i32> {
    let stream = Stream::new(3, "fixture tokens");
    (0..n).map(|i| stream.below(i, 512) as i32).collect()
}

#[test]
fn a_fixture_is_the_same_file_every_time() {
    for kind in Kind::ALL {
        let first = fixtures::bytes(kind, Weights::Q8_0, false);
        assert_eq!(first, fixtures::bytes(kind, Weights::Q8_0, false), "{kind:?}");
        let other = fixtures::bytes(kind, Weights::F32, false);
        assert_ne!(first, other, "{kind:?}");
    }
}

#[test]
fn the_dequantised_twin_means_the_same() {
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3] {
        for weights in [Weights::F16, Weights::Q8_0, Weights::Q4_0, Weights::Q4_K, Weights::Q6_K] {
            let own = reference(kind, weights, false).logits(&tokens(3), EXACT);
            let twin = reference(kind, weights, true).logits(&tokens(3), EXACT);
            assert_eq!(own, twin, "{kind:?} {weights:?}");
        }
    }
}

/// A quantised model is a model, not noise: its logits stay near those of the weights it was made from.
#[test]
fn quantising_a_fixture_keeps_its_meaning() {
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3] {
        for (weights, from, bound) in [
            (Weights::F16, Weights::F32, 0.01),
            (Weights::Q8_0, Weights::F32, 0.03),
            (Weights::Q4_0, Weights::F32, 0.5),
            (Weights::Q4_K, Weights::WideF32, 0.4),
            (Weights::Q6_K, Weights::WideF32, 0.1),
        ] {
            let exact = reference(kind, from, false).logits(&tokens(16), EXACT);
            let d = stats::distance(&reference(kind, weights, false).logits(&tokens(16), EXACT), &exact);
            println!("{kind:?} {weights:?}: relative RMS {:.4}, largest difference {:.3}", d.relative_rms, d.max);
            assert!(d.relative_rms > 0.0 && d.relative_rms < bound, "{kind:?} {weights:?}: {}", d.relative_rms);
        }
    }
}

/// Every part that sets a kind apart shows in its logits; else a test on it would prove nothing.
#[test]
fn every_kind_has_its_own_logits() {
    let all: Vec<_> = Kind::ALL.iter().map(|&k| reference(k, Weights::F32, false).logits(&tokens(40), EXACT)).collect();
    for (i, a) in all.iter().enumerate() {
        for (j, b) in all.iter().enumerate().skip(i + 1) {
            let d = stats::distance(a, b);
            assert!(d.relative_rms > 0.05, "{:?} and {:?}: {}", Kind::ALL[i], Kind::ALL[j], d.relative_rms);
        }
    }
}

#[test]
fn writes_the_fixtures_where_they_are_asked_for() {
    let Some(dir) = std::env::var_os("ELIZA_FIXTURES") else {
        eprintln!("skipped: ELIZA_FIXTURES names no folder to write the fixture models to");
        return;
    };
    for kind in Kind::ALL {
        for weights in [Weights::F32, Weights::F16, Weights::Q8_0, Weights::Q4_0, Weights::Q4_K, Weights::Q6_K] {
            let path = fixtures::write(std::path::Path::new(&dir), kind, weights);
            File::open(&path).unwrap();
        }
    }
    for encoder in Encoder::ALL {
        File::open(&encoder.write(std::path::Path::new(&dir))).unwrap();
    }
    File::open(script::write(std::path::Path::new(&dir))).unwrap();
}
