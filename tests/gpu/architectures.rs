//! Every architecture on a GPU: logits against those of the CPU, which `tools/decoders.py` compares with another
//! program's.

use crate::testing::decoders::{models, prompt};
use crate::testing::has_gpu;
use crate::testing::judge::NEVER;
use elizainference::Error;
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId};
use std::path::Path;

/// Tokens of a prompt, and those that are decoded one by one after it.
const PROMPT: usize = 70;
const DECODED: usize = 4;

fn open(path: &Path, gpu_layers: i32) -> Engine {
    let kv_type = KvType::F32;
    let options = EngineOptions { context: 512, slots: 2, threads: 2, kv_type, gpu_layers, ..EngineOptions::default() };
    Engine::new(engine::open_model(path, &options, None).unwrap(), &options).unwrap()
}

/// Logits of a prompt's rows, of tokens after a prefill, and of tokens after others were removed.
fn rows(engine: &mut Engine, path: &Path) -> Vec<Vec<f32>> {
    let text = prompt(PROMPT + 2 * DECODED, path);
    let mut rows = Vec::new();
    engine
        .logits_all(&text[..PROMPT], &NEVER, &mut |_, row| {
            rows.push(row.to_vec());
            Ok(())
        })
        .unwrap();
    let slot = SlotId::default();
    engine.prefill(slot, &text[..PROMPT], &NEVER).unwrap();
    rows.push(engine.head(slot).unwrap().to_vec());
    let (decoded, after) = text[PROMPT..].split_at(DECODED);
    rows.extend(decoded.iter().map(|&token| engine.decode(slot, token, &NEVER).unwrap().to_vec()));
    match engine.remove(slot, 5..20) {
        Ok(()) => rows.extend(after.iter().map(|&token| engine.decode(slot, token, &NEVER).unwrap().to_vec())),
        Err(Error::Unsupported(_)) => {}
        Err(error) => panic!("{path:?}: {error}"),
    }
    rows
}

fn compare(path: &Path) {
    let expected = rows(&mut open(path, 0), path);
    let got = rows(&mut open(path, -1), path);
    assert_eq!(got.len(), expected.len(), "{path:?}");
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let spread = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
        let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-3 * spread, "{path:?}: row {i} is off by {worst}, numbers are {spread}");
    }
}

#[test]
fn every_architecture_is_as_on_the_cpu() {
    if has_gpu() {
        models("-1l-f32.gguf").iter().for_each(|path| compare(path));
    }
}

#[test]
#[ignore = "long: every architecture with all its layers"]
fn every_architecture_with_all_layers_is_as_on_the_cpu() {
    if has_gpu() {
        models("-f32.gguf")
            .iter()
            .filter(|path| !path.to_string_lossy().contains("-1l-"))
            .for_each(|path| compare(path));
    }
}
