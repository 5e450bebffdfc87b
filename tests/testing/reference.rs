//! A slow, obvious forward pass in `f64` over dequantised weights: the oracle for logits.
//!
//! It takes one token at a time, keeps keys and values of all earlier ones in plain vectors, and writes every formula
//! out. [`Rounding`] adds, on request, the roundings that an implementation may make (activations to 8 bits, the cache
//! to 16 or 8 bits), which tells how far an honest implementation may be from the exact result.

use elizainference::gguf::File;
use elizainference::quant::{self, TensorType};
use half::f16;
use std::collections::HashMap;

/// Which roundings a run makes on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Keys and values kept exactly.
    Exact,
    /// Keys and values rounded to `f16`.
    F16,
    /// Keys and values in blocks of 32 with one `f16` scale and 8-bit values.
    Q8_0,
}

/// The roundings of one run. The default makes none.
#[derive(Clone, Copy, Debug)]
pub struct Rounding {
    /// Round the input of a matrix product as its weights' type invites: to `f16` for F16 and BF16, to 8-bit blocks
    /// of 32 for formats with blocks of 32, of 256 for those with blocks of 256.
    pub activations: bool,
    /// How keys and values are kept.
    pub cache: [Cache; 2],
    /// Look GELU up in a table from `f16` to `f16`, for arguments within ±10.
    pub gelu_table: bool,
}

/// No rounding at all: the oracle itself.
pub const EXACT: Rounding = Rounding { activations: false, cache: [Cache::Exact; 2], gelu_table: false };

/// What a layer has of the rows before: keys and values; or of a delta net what its convolution met, and for each head
/// a number for each key and value.
#[derive(Default)]
pub struct Past {
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
    rows: Vec<Vec<f64>>,
    states: Vec<Vec<Vec<f64>>>,
}

impl Past {
    /// The keys and the values, a row per token.
    pub fn kept(&self) -> (&[Vec<f64>], &[Vec<f64>]) {
        (&self.keys, &self.values)
    }
}

struct Matrix {
    ty: TensorType,
    cols: usize,
    rows: usize,
    values: Vec<f32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Arch {
    Llama,
    Qwen3,
    /// Gated delta nets, and attention with a gate.
    Qwen35,
    Gemma3,
}

/// How the rotation's angles are stretched beyond the trained context.
enum Scaling {
    None,
    Linear { factor: f64 },
    Yarn { factor: f64, original_context: f64 },
}

/// A model read whole into memory.
pub struct Reference {
    arch: Arch,
    tensors: HashMap<String, Matrix>,
    n_layer: usize,
    n_head: usize,
    n_kv: usize,
    key_len: usize,
    value_len: usize,
    n_rot: usize,
    eps: f64,
    freq_base: f64,
    local_freq_base: f64,
    scaling: Scaling,
    attention_scale: f64,
    window: Option<usize>,
    window_pattern: usize,
    /// Soft-cap on attention scores, in the file's unit; `None` leaves them as they are.
    pub attention_cap: Option<f64>,
    logit_cap: Option<f64>,
    /// Layers from one with attention to the next.
    interval: usize,
    /// Heads of a delta net's keys, and of its state.
    delta_heads: [usize; 2],
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
}

impl Reference {
    /// Reads all weights of `file` and dequantises them.
    pub fn new(file: &File) -> Self {
        let name: String = file.require("general.architecture").unwrap();
        let arch = match name.as_str() {
            "llama" => Arch::Llama,
            "qwen3" => Arch::Qwen3,
            "qwen35" => Arch::Qwen35,
            "gemma3" => Arch::Gemma3,
            other => panic!("architecture {other}"),
        };
        let int = |key: &str| file.get::<usize>(&format!("{name}.{key}")).unwrap();
        let float = |key: &str| file.get::<f32>(&format!("{name}.{key}")).unwrap().map(f64::from);
        let n_embd = int("embedding_length").unwrap();
        let n_head = int("attention.head_count").unwrap();
        let key_len = int("attention.key_length").unwrap_or(n_embd / n_head);
        let mut tensors = HashMap::new();
        for info in file.tensors() {
            let ty = info.tensor_type().unwrap();
            let mut values = vec![0.0; info.elements() as usize];
            quant::dequantize(ty, &file.read(info).unwrap(), &mut values).unwrap();
            let [cols, rows, ..] = info.shape.map(|n| n as usize);
            tensors.insert(info.name.clone(), Matrix { ty, cols, rows, values });
        }
        let n_vocab = tensors["token_embd.weight"].rows;
        let factor = float("rope.scaling.factor");
        let scaling = match file.get::<String>(&format!("{name}.rope.scaling.type")).unwrap().as_deref() {
            None | Some("none") => Scaling::None,
            Some("linear") => Scaling::Linear { factor: factor.unwrap() },
            Some("yarn") => Scaling::Yarn {
                factor: factor.unwrap(),
                original_context: int("rope.scaling.original_context_length").unwrap() as f64,
            },
            Some(other) => panic!("rope scaling {other}"),
        };
        Reference {
            arch,
            n_layer: int("block_count").unwrap() - int("nextn_predict_layers").unwrap_or(0),
            n_head,
            n_kv: int("attention.head_count_kv").unwrap_or(n_head),
            key_len,
            value_len: int("attention.value_length").unwrap_or(n_embd / n_head),
            n_rot: int("rope.dimension_count").unwrap_or(key_len),
            eps: float("attention.layer_norm_rms_epsilon").unwrap(),
            freq_base: float("rope.freq_base").unwrap_or(10000.0),
            local_freq_base: float("rope.freq_base_swa").unwrap_or(10000.0),
            scaling,
            attention_scale: float("attention.scale").unwrap_or(1.0 / (key_len as f64).sqrt()),
            window: if arch == Arch::Gemma3 { int("attention.sliding_window") } else { None },
            window_pattern: int("attention.sliding_window_pattern").unwrap_or(6),
            attention_cap: float("attn_logit_softcapping"),
            logit_cap: float("final_logit_softcapping"),
            interval: int("full_attention_interval").unwrap_or(1),
            delta_heads: ["ssm.group_count", "ssm.time_step_rank"].map(|key| int(key).unwrap_or(0)),
            n_vocab,
            tensors,
        }
    }

    /// The logits of every position of `tokens`.
    pub fn logits(&self, tokens: &[i32], rounding: Rounding) -> Vec<Vec<f64>> {
        let mut past: Vec<Past> = (0..self.n_layer).map(|_| Past::default()).collect();
        let mut out = Vec::with_capacity(tokens.len());
        for (position, &token) in tokens.iter().enumerate() {
            let hidden = self.hidden(token, position, &mut past, rounding);
            out.push(self.head(&hidden, rounding));
        }
        out
    }

    /// What the block that predicts further tokens says after each of `tokens` but the first, which it reads beside the
    /// hidden rows after the tokens before them, and then after each of `more`, which it reads beside its own hidden
    /// rows.
    pub fn nextn(&self, tokens: &[i32], more: &[i32], rounding: Rounding) -> Vec<Vec<f64>> {
        let mut past: Vec<Past> = (0..self.n_layer).map(|_| Past::default()).collect();
        let (mut own, mut out) = (Past::default(), Vec::new());
        let name = |part: &str| format!("blk.{}.nextn.{part}", self.n_layer);
        let mut hidden = Vec::new();
        for (position, &token) in tokens[1..].iter().chain(more).enumerate() {
            if position + 1 < tokens.len() {
                hidden = self.hidden(tokens[position], position, &mut past, rounding);
            }
            let both = [self.norm(&name("enorm"), &self.embedding(token)), self.norm(&name("hnorm"), &hidden)].concat();
            let mut x = self.product(&name("eh_proj"), &both, rounding);
            self.layer(self.n_layer, &mut x, position, &mut own, rounding);
            hidden = self.norm(&name("shared_head_norm"), &x);
            out.push(self.head(&hidden, rounding));
        }
        out
    }

    /// The hidden row after the last of `tokens`, and what the layers have of them.
    pub fn read(&self, tokens: &[i32], rounding: Rounding) -> (Vec<f64>, Vec<Past>) {
        let mut past: Vec<Past> = (0..self.n_layer).map(|_| Past::default()).collect();
        let rows = tokens.iter().enumerate().map(|(at, &token)| self.hidden(token, at, &mut past, rounding));
        (rows.last().unwrap(), past)
    }

    /// The logits of a hidden row.
    fn head(&self, hidden: &[f64], rounding: Rounding) -> Vec<f64> {
        let head = if self.tensors.contains_key("output.weight") { "output" } else { "token_embd" };
        let mut row = self.product(head, hidden, rounding);
        if let Some(cap) = self.logit_cap {
            row.iter_mut().for_each(|v| *v = cap * (*v / cap).tanh());
        }
        row
    }

    /// A row of the embedding table.
    pub fn embedding(&self, token: i32) -> Vec<f64> {
        self.tensors["token_embd.weight"].row(token as usize).iter().map(|&v| f64::from(v)).collect()
    }

    /// The normed hidden row of one token; appends its keys and values, and moves the delta nets on.
    fn hidden(&self, token: i32, position: usize, past: &mut [Past], rounding: Rounding) -> Vec<f64> {
        let mut x = self.embedding(token);
        if self.arch == Arch::Gemma3 {
            let scale = (x.len() as f64).sqrt();
            x.iter_mut().for_each(|v| *v *= scale);
        }
        for (layer, past) in past.iter_mut().enumerate() {
            self.layer(layer, &mut x, position, past, rounding);
        }
        self.norm("output_norm", &x)
    }

    /// One layer over one more row.
    fn layer(&self, layer: usize, x: &mut [f64], position: usize, past: &mut Past, rounding: Rounding) {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let normed = self.norm(&name("attn_norm"), x);
        if layer < self.n_layer && !(layer + 1).is_multiple_of(self.interval) {
            add(x, &self.delta_net(layer, &normed, past, rounding));
            self.feed_forward(layer, x, rounding);
            return;
        }
        let mut q = self.product(&name("attn_q"), &normed, rounding);
        let mut k = self.product(&name("attn_k"), &normed, rounding);
        let mut v = self.product(&name("attn_v"), &normed, rounding);
        let mut gate = Vec::new();
        if self.arch == Arch::Qwen35 {
            // Of each head its values, then its gate.
            let heads: Vec<_> = q.chunks_exact(2 * self.key_len).map(|head| head.split_at(self.key_len)).collect();
            gate = heads.iter().flat_map(|(_, gate)| gate.iter().copied()).collect();
            q = heads.iter().flat_map(|(values, _)| values.iter().copied()).collect();
        }
        for (heads, norm) in [(&mut q, "attn_q_norm"), (&mut k, "attn_k_norm")] {
            for head in heads.chunks_exact_mut(self.key_len) {
                if self.arch != Arch::Llama {
                    head.copy_from_slice(&self.norm(&name(norm), head));
                }
                self.rotate(head, position, layer);
            }
        }
        round_cache(&mut k, self.key_len, rounding.cache[0]);
        round_cache(&mut v, self.value_len, rounding.cache[1]);
        past.keys.push(k);
        past.values.push(v);
        let mut mixed = self.attention(&q, layer, &past.keys, &past.values);
        mixed.iter_mut().zip(&gate).for_each(|(v, gate)| *v /= 1.0 + (-gate).exp());
        let mut added = self.product(&name("attn_output"), &mixed, rounding);
        if self.arch == Arch::Gemma3 {
            added = self.norm(&name("post_attention_norm"), &added);
        }
        add(x, &added);
        self.feed_forward(layer, x, rounding);
    }

    /// Adds a layer's feed-forward part.
    fn feed_forward(&self, layer: usize, x: &mut [f64], rounding: Rounding) {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let norm = if self.arch == Arch::Qwen35 { "post_attention_norm" } else { "ffn_norm" };
        let normed = self.norm(&name(norm), x);
        let gate = self.product(&name("ffn_gate"), &normed, rounding);
        let up = self.product(&name("ffn_up"), &normed, rounding);
        let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| self.activation(*g, rounding) * u).collect();
        let mut added = self.product(&name("ffn_down"), &inner, rounding);
        if self.arch == Arch::Gemma3 {
            added = self.norm(&name("post_ffw_norm"), &added);
        }
        add(x, &added);
    }

    /// A gated delta net (Yang et al., <https://arxiv.org/abs/2412.06464>) over one more row.
    fn delta_net(&self, layer: usize, x: &[f64], net: &mut Past, rounding: Rounding) -> Vec<f64> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let [key_heads, heads] = self.delta_heads;
        let (a, bias) = (&self.tensors[&name("ssm_a")].values, &self.tensors[&name("ssm_dt.bias")].values);
        let taps = &self.tensors[&name("ssm_conv1d.weight")];
        net.rows.push(self.product(&name("attn_qkv"), x, rounding));
        let convolved: Vec<f64> = (0..taps.rows)
            .map(|c| {
                let newest = net.rows.iter().rev().zip(taps.row(c).iter().rev());
                let y: f64 = newest.map(|(row, &w)| row[c] * f64::from(w)).sum();
                y / (1.0 + (-y).exp())
            })
            .collect();
        let width = convolved.len() / (2 * key_heads + heads);
        let part = |first: usize, head: usize| &convolved[(first + head) * width..][..width];
        let unit = |v: &[f64]| {
            let length = dot(v, v).sqrt().max(self.eps);
            v.iter().map(|x| x / length).collect::<Vec<_>>()
        };
        let alpha = self.product(&name("ssm_alpha"), x, rounding);
        let beta = self.product(&name("ssm_beta"), x, rounding);
        net.states.resize(heads, vec![vec![0.0; width]; width]);
        let mut mixed = Vec::new();
        for head in 0..heads {
            let q = unit(part(0, head % key_heads));
            let k = unit(part(key_heads, head % key_heads));
            let v = part(2 * key_heads, head);
            let step = (alpha[head] + f64::from(bias[head])).exp().ln_1p();
            let (decay, write) = ((step * f64::from(a[head])).exp(), 1.0 / (1.0 + (-beta[head]).exp()));
            let state = &mut net.states[head];
            state.iter_mut().flatten().for_each(|s| *s *= decay);
            let known: Vec<f64> = (0..width).map(|j| (0..width).map(|i| state[i][j] * k[i]).sum()).collect();
            for i in 0..width {
                (0..width).for_each(|j| state[i][j] += k[i] * write * (v[j] - known[j]));
            }
            let read = (0..width).map(|j| (0..width).map(|i| state[i][j] * q[i]).sum::<f64>() / (width as f64).sqrt());
            mixed.extend(self.norm(&name("ssm_norm"), &read.collect::<Vec<_>>()));
        }
        let gate = self.product(&name("attn_gate"), x, rounding);
        mixed.iter_mut().zip(&gate).for_each(|(v, z)| *v *= z / (1.0 + (-z).exp()));
        self.product(&name("ssm_out"), &mixed, rounding)
    }

    /// Softmax-weighted mean of the values, per query head; keys and values end with the query's own position.
    fn attention(&self, q: &[f64], layer: usize, keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
        let first = match self.window {
            Some(window) if self.is_local(layer) => keys.len().saturating_sub(window),
            _ => 0,
        };
        let mut out = Vec::with_capacity(self.n_head * self.value_len);
        for head in 0..self.n_head {
            let kv = head / (self.n_head / self.n_kv);
            let query = &q[head * self.key_len..][..self.key_len];
            let mut scores: Vec<f64> = keys[first..]
                .iter()
                .map(|key| {
                    let score = dot(query, &key[kv * self.key_len..][..self.key_len]) * self.attention_scale;
                    self.attention_cap.map_or(score, |cap| cap * (score / cap).tanh())
                })
                .collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            scores.iter_mut().for_each(|s| *s = (*s - top).exp());
            let total: f64 = scores.iter().sum();
            let mut mean = vec![0.0; self.value_len];
            for (weight, value) in scores.iter().zip(&values[first..]) {
                for (m, v) in mean.iter_mut().zip(&value[kv * self.value_len..]) {
                    *m += weight / total * v;
                }
            }
            out.extend(mean);
        }
        out
    }

    /// Whether a layer sees only its window: all but every `window_pattern`-th.
    fn is_local(&self, layer: usize) -> bool {
        self.window.is_some() && layer % self.window_pattern < self.window_pattern - 1
    }

    /// Rotates one head in place: neighbouring pairs for llama, halves for the others.
    pub fn rotate(&self, head: &mut [f64], position: usize, layer: usize) {
        let local = self.is_local(layer);
        let base = if local { self.local_freq_base } else { self.freq_base };
        let factors = self.tensors.get("rope_freqs.weight").map(|t| &t.values);
        for i in 0..self.n_rot / 2 {
            let divisor = factors.map_or(1.0, |f| f64::from(f[i]));
            let plain = position as f64 * base.powf(-2.0 * i as f64 / self.n_rot as f64) / divisor;
            let (angle, magnitude) = match self.scaling {
                _ if local => (plain, 1.0),
                Scaling::None => (plain, 1.0),
                Scaling::Linear { factor } => (plain / factor, 1.0),
                Scaling::Yarn { factor, original_context } => {
                    let keep = yarn_keep(i, self.n_rot as f64, base, original_context);
                    (plain / factor * (1.0 - keep) + plain * keep, 1.0 + 0.1 * factor.ln())
                }
            };
            let (a, b) = if self.arch == Arch::Llama { (2 * i, 2 * i + 1) } else { (i, i + self.n_rot / 2) };
            let (sin, cos) = (angle.sin() * magnitude, angle.cos() * magnitude);
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }

    fn activation(&self, x: f64, rounding: Rounding) -> f64 {
        if self.arch != Arch::Gemma3 {
            return x / (1.0 + (-x).exp());
        }
        if !rounding.gelu_table || x.abs() >= 10.0 {
            return gelu(x);
        }
        f16::from_f64(gelu(f16::from_f64(x).to_f64())).to_f64()
    }

    /// RMS norm times the named weight.
    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = &self.tensors[&format!("{name}.weight")].values;
        assert_eq!(weight.len(), x.len(), "{name}");
        let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + self.eps).sqrt();
        x.iter().zip(weight).map(|(v, &w)| v * scale * f64::from(w)).collect()
    }

    /// The named matrix times `x`, plus its bias where it has one.
    fn product(&self, name: &str, x: &[f64], rounding: Rounding) -> Vec<f64> {
        let matrix = &self.tensors[&format!("{name}.weight")];
        assert_eq!(matrix.cols, x.len(), "{name}");
        let mut x = x.to_vec();
        if rounding.activations {
            round_input(&mut x, matrix.ty);
        }
        let mut out: Vec<f64> =
            (0..matrix.rows).map(|row| matrix.row(row).iter().zip(&x).map(|(&w, v)| f64::from(w) * v).sum()).collect();
        if let Some(bias) = self.tensors.get(&format!("{name}.bias")) {
            out.iter_mut().zip(&bias.values).for_each(|(v, &b)| *v += f64::from(b));
        }
        out
    }
}

impl Matrix {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }
}

/// The share of a frequency that YaRN leaves as trained: 1 for those that turn more than 32 times within the original
/// context, 0 for those that turn less than once, a ramp between.
fn yarn_keep(i: usize, n_rot: f64, base: f64, original_context: f64) -> f64 {
    let pair_turning =
        |turns: f64| n_rot * (original_context / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln());
    let low = pair_turning(32.0).floor().max(0.0);
    let high = pair_turning(1.0).ceil().min(n_rot - 1.0);
    1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(a, b)| *a += b);
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn round_input(x: &mut [f64], weights: TensorType) {
    match weights.block_len() {
        1 if weights == TensorType::F32 => {}
        1 => x.iter_mut().for_each(|v| *v = f16::from_f64(*v).to_f64()),
        block => x.chunks_mut(block).for_each(round_8_bits),
    }
}

fn round_cache(x: &mut [f64], head: usize, cache: Cache) {
    match cache {
        Cache::Exact => {}
        Cache::F16 => x.iter_mut().for_each(|v| *v = f16::from_f64(*v).to_f64()),
        Cache::Q8_0 => x.chunks_mut(head.min(32)).for_each(round_8_bits),
    }
}

/// One block rounded to multiples of its largest magnitude / 127.
fn round_8_bits(block: &mut [f64]) {
    let top = block.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let scale = f16::from_f64(top / 127.0).to_f64();
    if scale > 0.0 {
        block.iter_mut().for_each(|v| *v = (*v / scale).round() * scale);
    }
}
