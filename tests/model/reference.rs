//! The slow forward pass that judges the engine must itself be right: it is held against another implementation,
//! where a machine has one.

use crate::testing;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::reference::{EXACT, Reference, Rounding};
use crate::testing::rng::Stream;
use crate::testing::{fixture, peer, stats};
use elizainference::gguf::File;
use std::path::Path;

/// Both run in different precision (`f64` here, `f32` there): this is their rounding, not a choice of ours.
const BOUND: f64 = 2e-3;

fn compare(program: &Path, model: &Path) {
    // The peer looks GELU up in an f16 table, which alone moves a gemma3 logit by several 1e-3.
    let as_the_peer = Rounding { gelu_table: true, ..EXACT };
    let mut reference = Reference::new(&File::open(model).unwrap());
    // The peer knows no soft-cap on the attention scores of this architecture, only that on the logits.
    reference.attention_cap = None;
    for length in [7u64, 64] {
        let stream = Stream::new(length, "reference against the peer");
        let tokens: Vec<i32> = (0..length).map(|i| stream.below(i, reference.n_vocab as u64) as i32).collect();
        let theirs = peer::logits(program, model, &tokens, reference.n_vocab);
        let d = stats::distance(&theirs, &reference.logits(&tokens, as_the_peer));
        let name = model.file_name().unwrap().to_string_lossy();
        println!("{name}, {length} tokens: max |difference| {:.2e}, relative RMS {:.2e}", d.max, d.relative_rms);
        assert!(d.max <= BOUND, "{name}, {length} tokens: {}", d.max);
    }
}

#[test]
fn the_slow_forward_pass_agrees_with_the_peer() {
    let Some(program) = peer::program() else { return };
    let synthetic = testing::synthetic(&[
        "llama-tiny-f32.gguf",
        "llama-tiny-bpe-f32.gguf",
        "qwen3-tiny-f32.gguf",
        "gemma3-tiny-f32.gguf",
    ]);
    for model in testing::stories260k().into_iter().chain(synthetic) {
        compare(&program, &model);
    }
}

#[test]
fn the_peer_reads_the_fixture_models_the_same_way() {
    let Some(program) = peer::program() else { return };
    for kind in Kind::ALL {
        compare(&program, &fixture(kind, Weights::F32));
    }
    compare(&program, &fixture(Kind::Qwen3, Weights::WideF32));
}
