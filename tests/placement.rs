//! Layers on several devices: a plan that is cut at every possible border gives the bits of the plan that is not cut.
//!
//! Two CPU backends stand for two devices, so only the cutting and copying is judged here, not another device's kernels.
#![allow(clippy::unwrap_used)]

mod common;

use common::fixture;
use common::fixtures::{Kind, Weights};
use common::rng::Stream;
use elizainference::backend::Backend;
use elizainference::backend::cpu::CpuBackend;
use elizainference::engine::{Engine, EngineOptions};
use elizainference::gguf::File;
use elizainference::model::Model;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

static NEVER: AtomicBool = AtomicBool::new(false);

/// Logits behind a prompt of each length, then behind three decoded tokens each, then of every position of one prompt.
fn everything(model: Arc<Model>) -> Vec<u32> {
    let mut engine = Engine::new(model, &EngineOptions { threads: 2, ..EngineOptions::default() }).unwrap();
    let stream = Stream::new(11, "placement");
    let tokens: Vec<i32> = (0..600).map(|i| stream.below(i, 512) as i32).collect();
    let mut bits = Vec::new();
    for length in [1, 7, 600] {
        let slot = engine.take_slot(-1).unwrap();
        engine.prefill(slot, &tokens[..length], &NEVER).unwrap();
        bits.extend(engine.head(slot).unwrap().iter().map(|x| x.to_bits()));
        for &token in &tokens[..3] {
            bits.extend(engine.decode(slot, token, &NEVER).unwrap().iter().map(|x| x.to_bits()));
        }
    }
    let mut all = |_: usize, row: &[f32]| {
        bits.extend(row.iter().map(|x| x.to_bits()));
        Ok(())
    };
    engine.logits_all(&tokens[..30], &NEVER, &mut all).unwrap();
    bits
}

#[test]
fn every_border_gives_the_same_bits() {
    for (kind, weights) in [(Kind::Llama, Weights::Q8_0), (Kind::Qwen3, Weights::F32), (Kind::Gemma3, Weights::Q4_0)] {
        let path = fixture(kind, weights);
        let cpu = || Arc::new(CpuBackend::new()) as Arc<dyn Backend>;
        let load = |backends: Vec<Arc<dyn Backend>>, gpu_layers| {
            Arc::new(Model::load(File::open(&path).unwrap(), backends, gpu_layers, 2, None).unwrap())
        };
        let whole = everything(load(vec![cpu()], 0));
        let layers = load(vec![cpu()], 0).hparams().n_layer as i32;
        for gpu_layers in (-1..=layers + 1).chain([1000]) {
            let cut = everything(load(vec![cpu(), cpu()], gpu_layers));
            assert!(cut == whole, "{kind:?} {weights:?}, {gpu_layers} layers on the second device");
        }
    }
}

#[test]
fn a_load_over_two_devices_reports_growing_progress_and_can_be_cancelled() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let backends = || vec![Arc::new(CpuBackend::new()) as Arc<dyn Backend>, Arc::new(CpuBackend::new())];
    let mut seen = Vec::new();
    let mut hear = |fraction| {
        seen.push(fraction);
        true
    };
    Model::load(File::open(&path).unwrap(), backends(), 1, 1, Some(&mut hear)).unwrap();
    assert!(seen.is_sorted() && (seen.last().unwrap() - 1.0).abs() < 1e-6, "{seen:?}");
    let mut refuse = |fraction: f32| fraction < 0.5;
    let cancelled = Model::load(File::open(&path).unwrap(), backends(), 1, 1, Some(&mut refuse));
    assert_eq!(cancelled.err(), Some(elizainference::Error::Cancelled));
}
