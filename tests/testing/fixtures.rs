//! Deterministic tiny models, written by this project's own GGUF writer: every suite has something to run on with
//! nothing beside the project.
//!
//! Same kind and weights, same bytes. Values come from [`Stream`], scaled so that every block adds about as much as it
//! finds and logits have a standard deviation of a few units.

use super::rng::Stream;
use super::vocabulary::{self, Vocabulary};
use elizainference::gguf::{WriteValue, Writer};
use elizainference::quant::{self, TensorType};
use std::path::{Path, PathBuf};

/// Longest context of every fixture, in tokens.
pub const CONTEXT: u32 = 4096;

/// The chat template of every fixture. It reads contents that are texts, and has no system turn.
pub const CHAT_TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}\
    {% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}\
    {{ m.role + ': ' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// Which model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// llama: neighbouring-pair rotation, own output matrix, SPM vocabulary.
    Llama,
    /// llama with biases on the attention's matrices, per-frequency rotation factors and linear scaling.
    LlamaExtras,
    /// llama with YaRN scaling.
    LlamaYarn,
    /// llama of one layer, whose keys and values depend on no other token; with YaRN scaling.
    LlamaShallow,
    /// qwen3: q/k norm, head width apart from the embedding's, tied output, BPE vocabulary.
    Qwen3,
    /// qwen35: a gated delta net in every other of four layers, attention with a gate in the others, heads rotated in
    /// part; then a block that predicts further tokens.
    Qwen35,
    /// gemma3: six layers (the last one global), a window of 16, sandwich norms, tied output, SPM vocabulary.
    Gemma3,
    /// gemma3 with soft-caps on attention scores and logits.
    Gemma3Capped,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 8] = [
        Kind::Llama,
        Kind::LlamaExtras,
        Kind::LlamaYarn,
        Kind::LlamaShallow,
        Kind::Qwen3,
        Kind::Qwen35,
        Kind::Gemma3,
        Kind::Gemma3Capped,
    ];

    fn arch(self) -> &'static str {
        match self {
            Kind::Llama | Kind::LlamaExtras | Kind::LlamaYarn | Kind::LlamaShallow => "llama",
            Kind::Qwen3 => "qwen3",
            Kind::Qwen35 => "qwen35",
            Kind::Gemma3 | Kind::Gemma3Capped => "gemma3",
        }
    }

    /// Blocks that predict further tokens.
    fn nextn(self) -> u32 {
        u32::from(self == Kind::Qwen35)
    }

    fn vocabulary(self) -> Vocabulary {
        match self.arch() {
            "llama" => vocabulary::llama(),
            "qwen3" | "qwen35" => vocabulary::qwen(),
            _ => vocabulary::gemma(),
        }
    }
}

/// How the matrices are stored. The K formats come 256 wide, the others 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum Weights {
    /// Exact.
    F32,
    /// Half precision.
    F16,
    /// 8-bit blocks of 32.
    Q8_0,
    /// 4-bit blocks of 32; the output matrix Q8_0.
    Q4_0,
    /// 4-bit blocks of 256; the output matrix and `ffn_down` Q6_K.
    Q4_K,
    /// 6-bit blocks of 256.
    Q6_K,
    /// F32 matrices 256 wide, for the cases that need wide heads.
    WideF32,
}

impl Weights {
    /// Every way to store the matrices.
    pub const ALL: [Weights; 7] =
        [Weights::F32, Weights::F16, Weights::Q8_0, Weights::Q4_0, Weights::Q4_K, Weights::Q6_K, Weights::WideF32];

    /// Whether the matrices hold plain `f32`.
    pub fn is_f32(self) -> bool {
        matches!(self, Weights::F32 | Weights::WideF32)
    }

    fn tensor_type(self, part: &str) -> TensorType {
        let (usual, output) = match self {
            Weights::F32 | Weights::WideF32 => (TensorType::F32, TensorType::F32),
            Weights::F16 => (TensorType::F16, TensorType::F16),
            Weights::Q8_0 => (TensorType::Q8_0, TensorType::Q8_0),
            Weights::Q4_0 => (TensorType::Q4_0, TensorType::Q8_0),
            Weights::Q4_K => (TensorType::Q4_K, TensorType::Q6_K),
            Weights::Q6_K => (TensorType::Q6_K, TensorType::Q6_K),
        };
        let fine = part == "output" || part == "token_embd" || (self == Weights::Q4_K && part.ends_with("ffn_down"));
        if fine { output } else { usual }
    }
}

/// Heads of a delta net's keys, and of its values and state.
const KEY_HEADS: u64 = 2;
const STATE_HEADS: u64 = 4;

struct Shape {
    n_embd: u64,
    n_ff: u64,
    n_layer: u32,
    n_head: u64,
    n_kv: u64,
    head: u64,
}

impl Shape {
    /// Keys and values of a delta net's head.
    fn state(&self) -> u64 {
        self.n_embd / STATE_HEADS
    }
}

fn shape(kind: Kind, weights: Weights) -> Shape {
    let wide = matches!(weights, Weights::Q4_K | Weights::Q6_K | Weights::WideF32);
    let (n_embd, n_ff) = if wide { (256, 512) } else { (64, 192) };
    let (n_layer, n_kv, head) = match kind.arch() {
        "llama" => (if kind == Kind::LlamaShallow { 1 } else { 2 }, 2, n_embd / 4),
        "qwen3" => (2, 2, n_embd / 2),
        "qwen35" => (4, 2, n_embd / 2),
        _ => (6, 1, n_embd.min(128) / 2),
    };
    // gemma3's wide form needs rows of `attn_output` that are a whole number of 256-wide blocks: 4 x 64.
    Shape { n_embd, n_ff, n_layer, n_head: 4, n_kv, head }
}

/// The file's bytes. With `as_f32` the same weights are stored dequantised: what the quantised file means.
pub fn bytes(kind: Kind, weights: Weights, as_f32: bool) -> Vec<u8> {
    let mut build = Build { out: Writer::new(3), kind, weights, as_f32 };
    let shape = shape(kind, weights);
    build.metadata(&shape);
    build.vocabulary(&kind.vocabulary());
    build.tensors(&shape);
    build.out.to_bytes().unwrap()
}

/// Writes the file into `dir`, where it is not there yet, and returns its path.
pub fn write(dir: &Path, kind: Kind, weights: Weights) -> PathBuf {
    let name = format!("{kind:?}-{weights:?}.gguf").to_lowercase();
    place(dir, &name, &bytes(kind, weights, false))
}

/// Writes a file into `dir`, where it is not there yet with these bytes, and returns its path.
pub fn place(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    if std::fs::read(&path).is_ok_and(|old| old == bytes) {
        return path;
    }
    // Test binaries run side by side: each writes its own file and moves it into place.
    std::fs::create_dir_all(dir).unwrap();
    let mut file = tempfile::NamedTempFile::new_in(dir).unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    file.persist(&path).unwrap();
    path
}

struct Build {
    out: Writer,
    kind: Kind,
    weights: Weights,
    as_f32: bool,
}

impl Build {
    fn set(&mut self, key: &str, value: WriteValue) {
        self.out.set(key, value);
    }

    fn metadata(&mut self, shape: &Shape) {
        let arch = self.kind.arch();
        let key = |name: &str| format!("{arch}.{name}");
        self.set("general.architecture", WriteValue::String(arch.into()));
        self.set("general.name", WriteValue::String(format!("fixture-{:?}", self.kind).to_lowercase()));
        for (name, value) in [
            ("context_length", CONTEXT),
            ("embedding_length", shape.n_embd as u32),
            ("block_count", shape.n_layer + self.kind.nextn()),
            ("feed_forward_length", shape.n_ff as u32),
            ("attention.head_count", shape.n_head as u32),
            ("attention.head_count_kv", shape.n_kv as u32),
        ] {
            self.set(&key(name), WriteValue::U32(value));
        }
        let eps = if arch == "llama" { 1e-5 } else { 1e-6 };
        self.set(&key("attention.layer_norm_rms_epsilon"), WriteValue::F32(eps));
        let base = if arch == "llama" { 10_000.0 } else { 1_000_000.0 };
        self.set(&key("rope.freq_base"), WriteValue::F32(base));
        if arch == "llama" {
            self.set(&key("rope.dimension_count"), WriteValue::U32(shape.head as u32));
        } else {
            self.set(&key("attention.key_length"), WriteValue::U32(shape.head as u32));
            self.set(&key("attention.value_length"), WriteValue::U32(shape.head as u32));
        }
        match self.kind {
            Kind::LlamaExtras => {
                self.set(&key("rope.scaling.type"), WriteValue::String("linear".into()));
                self.set(&key("rope.scaling.factor"), WriteValue::F32(2.0));
            }
            Kind::LlamaYarn | Kind::LlamaShallow => {
                self.set(&key("rope.scaling.type"), WriteValue::String("yarn".into()));
                self.set(&key("rope.scaling.factor"), WriteValue::F32(4.0));
                self.set(&key("rope.scaling.original_context_length"), WriteValue::U32(CONTEXT / 4));
            }
            Kind::Qwen35 => {
                let (rotated, state) = (shape.head as u32 / 2, shape.state() as u32);
                for (name, value) in [
                    ("rope.dimension_count", rotated),
                    ("full_attention_interval", 2),
                    ("nextn_predict_layers", self.kind.nextn()),
                    ("ssm.conv_kernel", 4),
                    ("ssm.state_size", state),
                    ("ssm.group_count", KEY_HEADS as u32),
                    ("ssm.time_step_rank", STATE_HEADS as u32),
                    ("ssm.inner_size", state * STATE_HEADS as u32),
                ] {
                    self.set(&key(name), WriteValue::U32(value));
                }
                let part = rotated as i32 / 2 / 3;
                let sections = vec![rotated as i32 / 2 - 2 * part, part, part, 0];
                self.set(&key("rope.dimension_sections"), WriteValue::I32s(sections));
            }
            Kind::Gemma3 | Kind::Gemma3Capped => {
                self.set(&key("attention.sliding_window"), WriteValue::U32(16));
            }
            _ => {}
        }
        if self.kind == Kind::Gemma3Capped {
            self.set(&key("attn_logit_softcapping"), WriteValue::F32(2.0));
            self.set(&key("final_logit_softcapping"), WriteValue::F32(5.0));
        }
    }

    fn vocabulary(&mut self, v: &Vocabulary) {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        assert_eq!(v.tokens.len(), vocabulary::SIZE);
        let bpe = v.scores.is_empty();
        self.set(&key("model"), WriteValue::String(if bpe { "gpt2" } else { "llama" }.into()));
        self.set(&key("pre"), WriteValue::String(if bpe { "qwen2" } else { "default" }.into()));
        self.set(&key("tokens"), WriteValue::Strings(v.tokens.clone()));
        self.set(&key("token_type"), WriteValue::I32s(v.types.clone()));
        if bpe {
            self.set(&key("merges"), WriteValue::Strings(v.merges.clone()));
        } else {
            self.set(&key("scores"), WriteValue::F32s(v.scores.clone()));
        }
        let id = |text: &str| v.tokens.iter().position(|t| t == text).map(|i| WriteValue::U32(i as u32));
        let (bos, eos) = match self.kind.arch() {
            "llama" => ("<s>", "</s>"),
            "qwen3" | "qwen35" => ("<|endoftext|>", "<|im_end|>"),
            _ => ("<bos>", "<eos>"),
        };
        for (name, text) in [("bos_token_id", bos), ("eos_token_id", eos), ("unknown_token_id", "<unk>")] {
            if let Some(id) = id(text) {
                self.set(&key(name), id);
            }
        }
        self.set(&key("add_bos_token"), WriteValue::Bool(!bpe));
        self.set(&key("add_eos_token"), WriteValue::Bool(false));
        if self.kind.arch() == "gemma3" {
            self.set(&key("add_space_prefix"), WriteValue::Bool(false));
        }
        self.set("tokenizer.chat_template", WriteValue::String(CHAT_TEMPLATE.into()));
    }

    fn tensors(&mut self, s: &Shape) {
        let arch = self.kind.arch();
        let gemma = arch == "gemma3";
        let width = (s.n_embd as f32).sqrt();
        // gemma3 multiplies the embedding by sqrt(n_embd): small rows and a large output norm keep its tied output from
        // just repeating the input token.
        let embedding = match arch {
            "llama" => 1.0,
            "qwen3" | "qwen35" => 2.5 / width,
            _ => 0.5 / width,
        };
        let vocab = vocabulary::SIZE as u64;
        self.matrix("token_embd", s.n_embd, vocab, embedding);
        self.norm("output_norm", s.n_embd, if gemma { 5.0 } else { 1.0 });
        if arch == "llama" {
            self.matrix("output", s.n_embd, vocab, 2.5 / width);
        }
        if self.kind == Kind::LlamaExtras {
            let factors = (0..s.head / 2).map(|i| 1.0 + i as f32 * 0.25).collect();
            self.plain("rope_freqs.weight", factors);
        }
        let residual = 1.0 / (2.0 * s.n_layer as f32).sqrt();
        let (q, kv) = (s.n_head * s.head, s.n_kv * s.head);
        for layer in 0..s.n_layer + self.kind.nextn() {
            let name = |part: &str| format!("blk.{layer}.{part}");
            if layer == s.n_layer {
                for part in ["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"] {
                    self.norm(&name(part), s.n_embd, 1.0);
                }
                self.matrix(&name("nextn.eh_proj"), 2 * s.n_embd, s.n_embd, 1.0 / (2.0 * s.n_embd as f32).sqrt());
            }
            let hybrid = arch == "qwen35";
            for part in ["attn_norm", if hybrid { "post_attention_norm" } else { "ffn_norm" }] {
                self.norm(&name(part), s.n_embd, 1.0);
            }
            let recurrent = hybrid && layer % 2 == 0 && layer < s.n_layer;
            if arch != "llama" && !recurrent {
                self.norm(&name("attn_q_norm"), s.head, 1.0);
                self.norm(&name("attn_k_norm"), s.head, 1.0);
            }
            if gemma {
                self.norm(&name("post_attention_norm"), s.n_embd, 1.0);
                self.norm(&name("post_ffw_norm"), s.n_embd, 1.0);
            }
            let (state, qkv) = (s.state(), s.state() * (2 * KEY_HEADS + STATE_HEADS));
            let mixer = if recurrent {
                self.norm(&name("ssm_norm"), state, 1.0);
                self.delta_net(layer, qkv);
                vec![
                    ("attn_qkv", s.n_embd, qkv, 1.0),
                    ("attn_gate", s.n_embd, s.n_embd, 1.0),
                    ("ssm_alpha", s.n_embd, STATE_HEADS, 0.5),
                    ("ssm_beta", s.n_embd, STATE_HEADS, 1.0),
                    ("ssm_out", s.n_embd, s.n_embd, residual),
                ]
            } else {
                vec![
                    ("attn_q", s.n_embd, if hybrid { 2 * q } else { q }, 1.0),
                    ("attn_k", s.n_embd, kv, 1.0),
                    ("attn_v", s.n_embd, kv, 1.0),
                    ("attn_output", q, s.n_embd, residual),
                ]
            };
            for (part, cols, rows, gain) in mixer.into_iter().chain([
                ("ffn_gate", s.n_embd, s.n_ff, 1.0),
                ("ffn_up", s.n_embd, s.n_ff, 1.0),
                ("ffn_down", s.n_ff, s.n_embd, 2.0 * residual),
            ]) {
                self.matrix(&name(part), cols, rows, gain / (cols as f32).sqrt());
                if self.kind == Kind::LlamaExtras && part.starts_with("attn") {
                    let stream = Stream::new(1, &format!("{} bias", name(part)));
                    self.plain(&format!("{}.bias", name(part)), (0..rows).map(|i| 0.2 * stream.normal(i)).collect());
                }
            }
        }
    }

    /// What a delta net has besides matrices: a convolution, and decays that remember some tokens to some hundred.
    fn delta_net(&mut self, layer: u32, channels: u64) {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let taps = Stream::new(0, &name("ssm_conv1d"));
        let values: Vec<f32> = (0..4 * channels).map(|i| 0.5 * taps.normal(i)).collect();
        self.out.tensor(name("ssm_conv1d.weight"), &[4, channels], TensorType::F32, raw(&values));
        let numbers = |part: &str| Stream::new(0, &name(part));
        let (decay, bias) = (numbers("ssm_a"), numbers("ssm_dt"));
        self.plain(&name("ssm_a"), (0..STATE_HEADS).map(|i| -(0.6 * decay.normal(i)).exp()).collect());
        self.plain(&name("ssm_dt.bias"), (0..STATE_HEADS).map(|i| -2.0 + 0.8 * bias.normal(i)).collect());
    }

    fn matrix(&mut self, name: &str, cols: u64, rows: u64, deviation: f32) {
        let stream = Stream::new(0, name);
        let values: Vec<f32> = (0..cols * rows).map(|i| deviation * stream.normal(i)).collect();
        let ty = self.weights.tensor_type(name);
        let mut data = Vec::new();
        quant::quantize(ty, &values, &mut data).unwrap();
        let name = format!("{name}.weight");
        if self.as_f32 {
            let mut meant = vec![0.0; values.len()];
            quant::dequantize(ty, &data, &mut meant).unwrap();
            self.out.tensor(&name, &[cols, rows], TensorType::F32, raw(&meant));
        } else {
            self.out.tensor(&name, &[cols, rows], ty, data);
        }
    }

    fn norm(&mut self, name: &str, n: u64, mean: f32) {
        let stream = Stream::new(0, name);
        self.plain(&format!("{name}.weight"), (0..n).map(|i| mean * (1.0 + 0.1 * stream.normal(i))).collect());
    }

    fn plain(&mut self, name: &str, values: Vec<f32>) {
        self.out.tensor(name, &[values.len() as u64], TensorType::F32, raw(&values));
    }
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A llama of any shape with weights of no meaning, for what depends on sizes alone.
pub struct Shaped {
    pub n_vocab: u32,
    pub n_embd: u32,
    pub n_ff: u32,
    pub n_layer: u32,
    pub n_head: u32,
    /// Type of the matrices: F32 or Q8_0.
    pub ty: TensorType,
}

impl Shaped {
    /// Writes it to `path`.
    pub fn write(&self, path: &Path) {
        let mut out = Writer::new(3);
        out.set("general.architecture", "llama").set("general.name", "shaped");
        for (name, value) in [
            ("context_length", CONTEXT),
            ("embedding_length", self.n_embd),
            ("block_count", self.n_layer),
            ("feed_forward_length", self.n_ff),
            ("attention.head_count", self.n_head),
        ] {
            out.set(format!("llama.{name}"), value);
        }
        out.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
        let special = ["<unk>", "<s>", "</s>"].map(String::from);
        let words = (3..self.n_vocab).map(|i| format!("word{i}"));
        out.set("tokenizer.ggml.model", "llama");
        out.set("tokenizer.ggml.tokens", special.into_iter().chain(words).collect::<Vec<_>>());
        out.set("tokenizer.ggml.scores", vec![0f32; self.n_vocab as usize]);
        let types = (0..self.n_vocab).map(|i| [2, 3, 3].get(i as usize).copied().unwrap_or(1));
        out.set("tokenizer.ggml.token_type", types.collect::<Vec<i32>>());
        let (d, f, v) = (self.n_embd.into(), self.n_ff.into(), self.n_vocab.into());
        let mut shapes = vec![("token_embd".to_string(), vec![d, v]), ("output".into(), vec![d, v])];
        shapes.push(("output_norm".into(), vec![d]));
        for layer in 0..self.n_layer {
            let norms = ["attn_norm", "ffn_norm"].map(|name| (name, vec![d]));
            let square = ["attn_q", "attn_k", "attn_v", "attn_output"].map(|name| (name, vec![d, d]));
            let wide = [("ffn_gate", vec![d, f]), ("ffn_up", vec![d, f]), ("ffn_down", vec![f, d])];
            let all = norms.into_iter().chain(square).chain(wide);
            shapes.extend(all.map(|(name, shape)| (format!("blk.{layer}.{name}"), shape)));
        }
        for (name, shape) in &shapes {
            let ty = if shape.len() == 1 { TensorType::F32 } else { self.ty };
            out.declare(format!("{name}.weight"), shape, ty);
        }
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        out.stream(path, &mut |i, out| {
            let shape = &shapes[i].1;
            if shape.len() == 1 || self.ty == TensorType::F32 {
                let weight: f32 = if shape.len() == 1 { 1.0 } else { 0.01 };
                (0..shape.iter().product()).for_each(|_| out.write_all(&weight.to_le_bytes()).unwrap());
                return Ok(());
            }
            for _ in 0..shape.iter().product::<u64>() / 32 {
                let mut block = half::f16::from_f32(1e-3).to_le_bytes().to_vec();
                for _ in 0..4 {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    block.extend((state ^ state >> 33).to_le_bytes());
                }
                out.write_all(&block).unwrap();
            }
            Ok(())
        })
        .unwrap();
    }
}
