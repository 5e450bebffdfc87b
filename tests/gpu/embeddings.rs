//! Rows of texts from encoders whose layers are on a GPU, all or some, against those of the CPU.

use crate::testing::encoders::{CONTEXT, Encoder};
use crate::testing::judge::NEVER;
use crate::testing::rng::Stream;
use crate::testing::{fixture_folder, has_gpu, vocabulary};
use elizainference::Token;
use elizainference::engine::{EmbedOptions, Engine, EngineOptions, KvType, Pooling, open_model};
use std::path::Path;

/// Texts that share a pass, and one that is longer than the passes of a prompt.
const LENGTHS: [u64; 5] = [1, 9, 70, 130, 600];

fn rows(path: &Path, gpu_layers: i32, pooling: Option<Pooling>) -> Vec<f32> {
    let (context, kv_type) = (CONTEXT as u32, KvType::F32);
    let options = EngineOptions { context, slots: 1, threads: 2, kv_type, gpu_layers, ..EngineOptions::default() };
    let mut engine = Engine::new(open_model(path, &options, None).unwrap(), &options).unwrap();
    let stream = Stream::new(4, "texts on a GPU");
    let text = |n| (0..n).map(|i| stream.below(1000 * n + i, vocabulary::SIZE as u64) as Token).collect();
    let texts: Vec<Vec<Token>> = LENGTHS.into_iter().map(text).collect();
    engine.embed(&texts, &EmbedOptions { pooling, ..EmbedOptions::default() }, &NEVER).unwrap().texts.concat()
}

#[test]
fn rows_of_texts_are_as_on_the_cpu() {
    if !has_gpu() {
        return;
    }
    for kind in Encoder::ALL {
        let path = kind.write(&fixture_folder());
        let rank = (kind == Encoder::Bert).then_some(Pooling::Rank);
        for pooling in [Some(Pooling::None), None].into_iter().chain([rank]) {
            let expected = rows(&path, 0, pooling);
            for gpu_layers in [-1, 2] {
                let got = rows(&path, gpu_layers, pooling);
                assert_eq!(got.len(), expected.len());
                let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-3, "{kind:?} {pooling:?} {gpu_layers} layers: {worst}");
            }
        }
    }
}
