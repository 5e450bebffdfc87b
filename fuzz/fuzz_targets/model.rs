//! Hyperparameters, names and shapes of any kind in a whole small model: refused, or a model that evaluates a prompt.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/testing/fixtures.rs"]
mod fixtures;
mod input;
#[path = "../../tests/testing/rng.rs"]
mod rng;
#[path = "../../tests/testing/vocabulary.rs"]
mod vocabulary;

use elizainference::Error;
use elizainference::engine::{self, Engine, EngineOptions};
use elizainference::gguf::{File, WriteValue, Writer};
use elizainference::quant::TensorType;
use fixtures::{Kind, Weights};
use input::Input;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

const KINDS: [Kind; 6] =
    [Kind::LlamaShallow, Kind::Llama, Kind::LlamaExtras, Kind::LlamaYarn, Kind::Qwen3, Kind::Gemma3Capped];
const KEYS: &[&str] = &[
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_log_multiplier",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "expert_count",
    "expert_used_count",
    "vocab_size",
    "attention.sliding_window_pattern",
    "logit_scale",
];
const TEXTS: &[&str] = &["yarn", "linear", "none", "llama", "qwen3", "gemma3", "longrope", "gpt2", ""];
const TYPES: [TensorType; 6] =
    [TensorType::F32, TensorType::F16, TensorType::Q8_0, TensorType::Q4_0, TensorType::Q4_K, TensorType::Q6_K];

static FILES: LazyLock<[File; 6]> =
    LazyLock::new(|| KINDS.map(|kind| File::from_bytes(fixtures::bytes(kind, Weights::Q8_0, false)).unwrap()));

fn value(input: &mut Input<'_>) -> WriteValue {
    match input.below(8) {
        0 => input.float().into(),
        1 => input.text(TEXTS).as_str().into(),
        2 => (0..input.below(7)).map(|_| input.number() as i32).collect::<Vec<_>>().into(),
        3 => (0..input.below(7)).map(|_| input.float()).collect::<Vec<_>>().into(),
        4 => input.flag().into(),
        5 => (u64::from(input.number()) << 32 | u64::from(input.number())).into(),
        _ => input.number().into(),
    }
}

/// The fixture with some of its keys and tensors changed.
fn changed(from: &File, input: &mut Input<'_>) -> Option<Vec<u8>> {
    let mut out = Writer::new(3);
    let arch: String = from.get("general.architecture").ok()??;
    let dropped = if input.below(8) == 0 { input.below(40) } else { usize::MAX };
    for (_, (key, _)) in from.metadata().enumerate().filter(|(i, _)| *i != dropped) {
        out.copy_key(from, key).ok()?;
    }
    for _ in 0..input.below(4) {
        let key = match input.below(16) {
            0 => input.text(&["general.architecture", "general.alignment", "split.count", "tokenizer.ggml.model"]),
            _ => format!("{arch}.{}", input.pick(KEYS)),
        };
        out.set(key, value(input));
    }
    let touched = (0..input.below(3)).map(|_| input.below(from.tensors().len())).collect::<Vec<_>>();
    for (i, info) in from.tensors().iter().enumerate() {
        let (mut name, mut shape, mut ty) = (info.name.clone(), info.shape, info.tensor_type().ok()?);
        let mut data = from.read(info).ok()?;
        if touched.contains(&i) {
            match input.below(5) {
                0 => continue,
                1 => name = input.text(&["output.weight", "blk.0.attn_q.bias", "rope_freqs.weight", "x"]),
                2 => ty = input.pick(&TYPES),
                3 => shape[input.below(3)] = u64::from(input.byte()),
                _ => data = (0..data.len()).map(|_| input.byte()).collect(),
            }
            let bytes = ty.row_bytes(shape[0])? * shape[1] * shape[2];
            if bytes > 1 << 20 {
                return None;
            }
            data.resize(bytes as usize, 0x11);
        }
        out.tensor(name, &shape[..info.n_dims as usize], ty, data);
    }
    out.to_bytes().ok()
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let from = &FILES[input.below(FILES.len())];
    let Some(bytes) = changed(from, &mut input) else { return };
    let Ok(file) = File::from_bytes(bytes) else { return };
    let options = EngineOptions { context: 64, threads: 1, slots: 2, ..EngineOptions::default() };
    let model = match engine::load_model(file, &options, None) {
        Ok(model) => model,
        Err(Error::Internal(what)) => panic!("{what}"),
        Err(_) => return,
    };
    let mut engine = match Engine::new(model, &options) {
        Ok(engine) => engine,
        Err(Error::Internal(what)) => panic!("{what}"),
        Err(_) => return,
    };
    let slot = engine.take_slot(-1).unwrap();
    let n_vocab = engine.model().n_vocab();
    match engine.prefill(slot, &[0, 1, 0], &AtomicBool::new(false)) {
        Ok(_) => assert_eq!(engine.head(slot).unwrap().len(), n_vocab),
        Err(Error::Internal(what)) => panic!("{what}"),
        Err(_) => {}
    }
});
