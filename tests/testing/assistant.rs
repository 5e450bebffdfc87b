//! A draft model that reads the hidden rows of the `gemma3` fixtures and attends to their keys and values, and a slow
//! forward pass over it.

use super::fixtures::place;
use super::reference::{Reference, Rounding};
use super::rng::Stream;
use elizainference::gguf::{File, WriteValue, Writer};
use elizainference::quant::TensorType;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const N_EMBD: usize = 32;
const N_FF: usize = 96;
const N_HEAD: usize = 4;
const WINDOW: usize = 16;
/// Whether a layer has a window, and the last layer of the `gemma3` fixtures that is like it.
const LAYERS: [(bool, usize); 3] = [(true, 4), (true, 4), (false, 5)];

/// The draft model's weights, by name.
pub struct Assistant {
    tensors: HashMap<String, Vec<f32>>,
    /// Values of the model's hidden rows, and of a head.
    width: usize,
    head: usize,
}

/// Writes a draft model for the model in a file, and returns its path and the weights.
pub fn write(dir: &Path, of: &File) -> (PathBuf, Assistant) {
    let number = |key: &str| of.require::<usize>(&format!("gemma3.{key}")).unwrap();
    let (width, head) = (number("embedding_length"), number("attention.key_length"));
    let mut out = Writer::new(3);
    let set = |out: &mut Writer, key: &str, value| {
        out.set(format!("gemma4-assistant.{key}"), value);
    };
    out.set("general.architecture", "gemma4-assistant");
    for (key, value) in [
        ("context_length", 4096),
        ("embedding_length", N_EMBD),
        ("embedding_length_out", width),
        ("block_count", LAYERS.len()),
        ("nextn_predict_layers", LAYERS.len()),
        ("feed_forward_length", N_FF),
        ("attention.head_count", N_HEAD),
        ("attention.head_count_kv", 1),
        ("attention.key_length", head),
        ("attention.value_length", head),
        ("attention.key_length_swa", head),
        ("attention.value_length_swa", head),
        ("attention.sliding_window", WINDOW),
    ] {
        set(&mut out, key, WriteValue::U32(value as u32));
    }
    for (key, value) in
        [("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e6), ("rope.freq_base_swa", 1e4)]
    {
        set(&mut out, key, WriteValue::F32(value));
    }
    set(&mut out, "attention.sliding_window_pattern", WriteValue::I32s(LAYERS.map(|(local, _)| local.into()).to_vec()));
    for (name, _) in of.metadata().filter(|(name, _)| name.starts_with("tokenizer.ggml.")) {
        out.copy_key(of, name).unwrap();
    }
    let n_vocab = of.tensor("token_embd.weight").unwrap().shape[1] as usize;
    let mut tensors = HashMap::new();
    let mut add = |name: &str, shape: &[usize], mean: f32, deviation: f32| {
        let stream = Stream::new(9, name);
        let n = shape.iter().product::<usize>() as u64;
        let values: Vec<f32> = (0..n).map(|i| mean + deviation * stream.normal(i)).collect();
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        out.tensor(format!("{name}.weight"), &shape, TensorType::F32, bytes);
        tensors.insert(name.to_string(), values);
    };
    let scale = |n: usize| 1.0 / (n as f32).sqrt();
    add("token_embd", &[N_EMBD, n_vocab], 0.0, 2.5 * scale(N_EMBD));
    add("output_norm", &[N_EMBD], 1.0, 0.1);
    add("nextn.pre_projection", &[2 * width, N_EMBD], 0.0, scale(2 * width));
    add("nextn.post_projection", &[N_EMBD, width], 0.0, scale(N_EMBD));
    for layer in 0..LAYERS.len() {
        let name = |part: &str| format!("blk.{layer}.{part}");
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            add(&name(norm), &[N_EMBD], 1.0, 0.1);
        }
        add(&name("attn_q_norm"), &[head], 0.5, 0.1);
        add(&name("attn_q"), &[N_EMBD, N_HEAD * head], 0.0, scale(N_EMBD));
        add(&name("attn_output"), &[N_HEAD * head, N_EMBD], 0.0, scale(N_HEAD * head));
        add(&name("ffn_gate"), &[N_EMBD, N_FF], 0.0, scale(N_EMBD));
        add(&name("ffn_up"), &[N_EMBD, N_FF], 0.0, scale(N_EMBD));
        add(&name("ffn_down"), &[N_FF, N_EMBD], 0.0, scale(N_FF));
        add(&name("layer_output_scale"), &[1], 0.9, 0.1);
    }
    let path = place(dir, &format!("assistant-{width}.gguf"), &out.to_bytes().unwrap());
    (path, Assistant { tensors, width, head })
}

impl Assistant {
    /// What it says after the first of `next`, which follows `tokens`, and then after each of the others, which it
    /// reads beside its own hidden rows, all at one position. What the model rounds is said.
    pub fn logits(&self, model: &Reference, rounding: Rounding, tokens: &[i32], next: &[i32]) -> Vec<Vec<f64>> {
        let (mut hidden, past) = model.read(tokens, rounding);
        let mut out = Vec::new();
        for &token in next {
            let scale = (self.width as f64).sqrt();
            let both: Vec<f64> = model.embedding(token).iter().map(|v| v * scale).chain(hidden).collect();
            let mut x = self.product("nextn.pre_projection", &both);
            for (layer, (local, of)) in LAYERS.into_iter().enumerate() {
                let name = |part: &str| format!("blk.{layer}.{part}");
                let mut q = self.product(&name("attn_q"), &self.norm(&name("attn_norm"), &x));
                let (keys, values) = past[of].kept();
                // The token's own place in the window has no keys.
                let first = if local { keys.len().saturating_sub(WINDOW - 1) } else { 0 };
                let mut mixed = Vec::new();
                for head in q.chunks_exact_mut(self.head) {
                    head.copy_from_slice(&self.norm(&name("attn_q_norm"), head));
                    model.rotate(head, tokens.len(), of);
                    let score = |key: &Vec<f64>| key.iter().zip(&*head).map(|(k, q)| k * q).sum::<f64>();
                    let scores: Vec<f64> = keys[first..].iter().map(score).collect();
                    let most = scores.iter().copied().fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    mixed.extend((0..self.head).map(|i| {
                        weights.iter().zip(&values[first..]).map(|(w, value)| w * value[i]).sum::<f64>() / sum
                    }));
                }
                let added = self.norm(&name("post_attention_norm"), &self.product(&name("attn_output"), &mixed));
                x.iter_mut().zip(added).for_each(|(x, y)| *x += y);
                let normed = self.norm(&name("ffn_norm"), &x);
                let [gate, up] = ["ffn_gate", "ffn_up"].map(|part| self.product(&name(part), &normed));
                let inner: Vec<f64> = gate.iter().zip(up).map(|(&gate, up)| gelu(gate) * up).collect();
                let added = self.norm(&name("post_ffw_norm"), &self.product(&name("ffn_down"), &inner));
                let scale = f64::from(self.tensors[&name("layer_output_scale")][0]);
                x.iter_mut().zip(added).for_each(|(x, y)| *x = (*x + y) * scale);
            }
            let x = self.norm("output_norm", &x);
            hidden = self.product("nextn.post_projection", &x);
            out.push(self.product("token_embd", &x));
        }
        out
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.tensors[name].chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(&w, v)| f64::from(w) * v).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + 1e-6).sqrt();
        x.iter().zip(&self.tensors[name]).map(|(v, &w)| v * scale * f64::from(w)).collect()
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}
