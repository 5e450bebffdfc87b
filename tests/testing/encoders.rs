//! Tiny encoders, written by this project's own GGUF writer, and their slow, obvious forward pass in `f64`: the oracle
//! for embeddings.

use super::fixtures::place;
use super::rng::Stream;
use super::vocabulary;
use elizainference::gguf::{WriteValue, Writer};
use elizainference::quant::TensorType;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Longest text of every encoder, in tokens.
pub const CONTEXT: usize = 700;
/// Numbers in a row.
pub const WIDTH: usize = 64;
const HEADS: usize = 4;
const HEAD: usize = WIDTH / HEADS;
const UNITS: usize = 96;
const LAYERS: usize = 4;
/// Of the layers of [`Encoder::Modern`] that see half of it to each side.
const WINDOW: usize = 10;
const EPS: f64 = 1e-5;
const BASES: [f64; 2] = [160_000.0, 10_000.0];

/// Which model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoder {
    /// bert: learned positions, norms after sums, a classifier with tanh over the first token; pooling `cls`.
    Bert,
    /// modern-bert: two of three layers with a window and rotation of their own, gated units; pooling `mean`.
    Modern,
    /// jina-bert-v2: ALiBi, queries and keys normalised over all heads; pooling `mean`.
    Jina,
}

impl Encoder {
    /// Every model.
    pub const ALL: [Encoder; 3] = [Encoder::Bert, Encoder::Modern, Encoder::Jina];

    fn arch(self) -> &'static str {
        match self {
            Encoder::Bert => "bert",
            Encoder::Modern => "modern-bert",
            Encoder::Jina => "jina-bert-v2",
        }
    }

    /// Writes the file into `dir`, where it is not there yet, and returns its path.
    pub fn write(self, dir: &Path) -> PathBuf {
        place(dir, &format!("{}.gguf", self.arch()), &self.made().1)
    }

    /// The model in memory.
    pub fn oracle(self) -> Oracle {
        Oracle { kind: self, tensors: self.made().0 }
    }

    fn made(self) -> (HashMap<String, Vec<f32>>, Vec<u8>) {
        let mut build = Build { out: Writer::new(3), tensors: HashMap::new() };
        build.metadata(self);
        build.tensors(self);
        let bytes = build.out.to_bytes().unwrap();
        (build.tensors, bytes)
    }
}

struct Build {
    out: Writer,
    tensors: HashMap<String, Vec<f32>>,
}

impl Build {
    fn metadata(&mut self, kind: Encoder) {
        let arch = kind.arch();
        let mut set = |key: &str, value: WriteValue| {
            self.out.set(key, value);
        };
        set("general.architecture", WriteValue::String(arch.into()));
        set("general.name", WriteValue::String(format!("fixture-{arch}")));
        for (name, value) in [
            ("context_length", CONTEXT),
            ("embedding_length", WIDTH),
            ("block_count", LAYERS),
            ("feed_forward_length", UNITS),
            ("attention.head_count", HEADS),
            ("pooling_type", if kind == Encoder::Bert { 2 } else { 1 }),
        ] {
            set(&format!("{arch}.{name}"), WriteValue::U32(value as u32));
        }
        set(&format!("{arch}.attention.layer_norm_epsilon"), WriteValue::F32(EPS as f32));
        set(&format!("{arch}.attention.causal"), WriteValue::Bool(false));
        if kind == Encoder::Modern {
            set(&format!("{arch}.attention.sliding_window"), WriteValue::U32(WINDOW as u32));
            set(&format!("{arch}.rope.freq_base"), WriteValue::F32(BASES[0] as f32));
            set(&format!("{arch}.rope.freq_base_swa"), WriteValue::F32(BASES[1] as f32));
        }
        if kind == Encoder::Bert {
            let labels = vec!["score".to_string(), "other".to_string()];
            set(&format!("{arch}.classifier.output_labels"), WriteValue::Strings(labels));
            let template = "<|endoftext|>{query}<|im_end|>{document}<|im_end|>";
            set("tokenizer.chat_template.rerank", WriteValue::String(template.into()));
        }
        let v = vocabulary::qwen();
        for (name, value) in [
            ("model", WriteValue::String("gpt2".into())),
            ("pre", WriteValue::String("qwen2".into())),
            ("tokens", WriteValue::Strings(v.tokens)),
            ("token_type", WriteValue::I32s(v.types)),
            ("merges", WriteValue::Strings(v.merges)),
            ("bos_token_id", WriteValue::U32(vocabulary::SIZE as u32 - 3)),
            ("eos_token_id", WriteValue::U32(vocabulary::SIZE as u32 - 1)),
            ("add_bos_token", WriteValue::Bool(true)),
            ("add_eos_token", WriteValue::Bool(true)),
        ] {
            set(&format!("tokenizer.ggml.{name}"), value);
        }
    }

    fn tensors(&mut self, kind: Encoder) {
        let layer_norm_bias = kind != Encoder::Modern;
        self.matrix("token_embd", WIDTH, vocabulary::SIZE, 1.0, false);
        self.norm("token_embd_norm", layer_norm_bias);
        if kind != Encoder::Modern {
            self.matrix("token_types", WIDTH, 2, 0.3, false);
        }
        match kind {
            Encoder::Bert => {
                self.matrix("position_embd", WIDTH, CONTEXT, 0.5, false);
                self.matrix("cls", WIDTH, WIDTH, 0.1, true);
                self.matrix("cls.output", WIDTH, 2, 0.1, true);
            }
            Encoder::Modern => self.norm("output_norm", false),
            Encoder::Jina => {}
        }
        for layer in 0..LAYERS {
            let name = |part: &str| format!("blk.{layer}.{part}");
            if kind == Encoder::Modern {
                if layer > 0 {
                    self.norm(&name("attn_norm"), false);
                }
                self.norm(&name("ffn_norm"), false);
                self.matrix(&name("attn_qkv"), WIDTH, 3 * WIDTH, 0.15, false);
                self.matrix(&name("attn_output"), WIDTH, WIDTH, 0.1, false);
                self.matrix(&name("ffn_up"), WIDTH, 2 * UNITS, 0.15, false);
                self.matrix(&name("ffn_down"), UNITS, WIDTH, 0.1, false);
                continue;
            }
            for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
                self.matrix(&name(part), WIDTH, WIDTH, 0.15, true);
            }
            self.norm(&name("attn_output_norm"), true);
            self.norm(&name("layer_output_norm"), true);
            if kind == Encoder::Jina {
                self.norm(&name("attn_q_norm"), true);
                self.norm(&name("attn_k_norm"), true);
                self.matrix(&name("ffn_gate"), WIDTH, UNITS, 0.15, false);
            }
            self.matrix(&name("ffn_up"), WIDTH, UNITS, 0.15, kind == Encoder::Bert);
            self.matrix(&name("ffn_down"), UNITS, WIDTH, 0.15, true);
        }
    }

    fn matrix(&mut self, name: &str, cols: usize, rows: usize, deviation: f32, bias: bool) {
        self.tensor(&format!("{name}.weight"), &[cols, rows], 0.0, deviation);
        if bias {
            self.tensor(&format!("{name}.bias"), &[rows], 0.0, 0.2);
        }
    }

    fn norm(&mut self, name: &str, bias: bool) {
        self.tensor(&format!("{name}.weight"), &[WIDTH], 1.0, 0.1);
        if bias {
            self.tensor(&format!("{name}.bias"), &[WIDTH], 0.0, 0.1);
        }
    }

    fn tensor(&mut self, name: &str, shape: &[usize], mean: f32, deviation: f32) {
        let (stream, n) = (Stream::new(5, name), shape.iter().product::<usize>());
        let values: Vec<f32> = (0..n as u64).map(|i| mean + deviation * stream.normal(i)).collect();
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.out.tensor(name, &shape, TensorType::F32, data);
        self.tensors.insert(name.into(), values);
    }
}

type Row = Vec<f64>;

/// A model's equations, written out.
pub struct Oracle {
    kind: Encoder,
    tensors: HashMap<String, Vec<f32>>,
}

impl Oracle {
    fn vector(&self, name: &str) -> Option<Row> {
        Some(self.tensors.get(name)?.iter().map(|&v| f64::from(v)).collect())
    }

    fn row(&self, name: &str, row: usize) -> Row {
        self.tensors[name][row * WIDTH..][..WIDTH].iter().map(|&v| f64::from(v)).collect()
    }

    fn product(&self, name: &str, x: &[f64]) -> Row {
        let weight = &self.tensors[&format!("{name}.weight")];
        let rows = weight.chunks_exact(x.len());
        let mut y: Row = rows.map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect();
        if let Some(bias) = self.vector(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        y
    }

    fn norm(&self, name: &str, x: &[f64]) -> Row {
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + EPS).sqrt();
        let bias = self.vector(&format!("{name}.bias")).unwrap_or_else(|| vec![0.0; x.len()]);
        let weight = self.vector(&format!("{name}.weight")).unwrap();
        (0..x.len()).map(|i| (x[i] - mean) / deviation * weight[i] + bias[i]).collect()
    }

    /// The rows of all tokens of a text.
    pub fn rows(&self, tokens: &[i32]) -> Vec<Row> {
        let embed = |(position, &token): (usize, &i32)| {
            let mut x = self.row("token_embd.weight", token as usize);
            let mut add = |more: Row| x.iter_mut().zip(more).for_each(|(x, y)| *x += y);
            if self.kind != Encoder::Modern {
                add(self.row("token_types.weight", 0));
            }
            if self.kind == Encoder::Bert {
                add(self.row("position_embd.weight", position));
            }
            self.norm("token_embd_norm", &x)
        };
        let mut x: Vec<Row> = tokens.iter().enumerate().map(embed).collect();
        for layer in 0..LAYERS {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let modern = self.kind == Encoder::Modern;
            let input = |part: &str, x: &[Row]| -> Vec<Row> {
                match modern && self.tensors.contains_key(&format!("{}.weight", name(part))) {
                    true => x.iter().map(|row| self.norm(&name(part), row)).collect(),
                    false => x.to_vec(),
                }
            };
            let mixed = self.attention(layer, &input("attn_norm", &x));
            x = self.added(&name("attn_output_norm"), &x, &mixed);
            let made: Vec<Row> = input("ffn_norm", &x).iter().map(|row| self.units(layer, row)).collect();
            x = self.added(&name("layer_output_norm"), &x, &made);
        }
        match self.kind {
            Encoder::Modern => x.iter().map(|row| self.norm("output_norm", row)).collect(),
            _ => x,
        }
    }

    /// The sums, normalised where the model does so.
    fn added(&self, norm: &str, x: &[Row], made: &[Row]) -> Vec<Row> {
        let sum = |(x, y): (&Row, &Row)| -> Row { x.iter().zip(y).map(|(x, y)| x + y).collect() };
        let sums = x.iter().zip(made).map(sum);
        match self.kind {
            Encoder::Modern => sums.collect(),
            _ => sums.map(|row| self.norm(norm, &row)).collect(),
        }
    }

    fn units(&self, layer: usize, x: &[f64]) -> Row {
        let gelu =
            |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
        let up = self.product(&format!("blk.{layer}.ffn_up"), x);
        let hidden: Row = match self.kind {
            Encoder::Bert => up.into_iter().map(gelu).collect(),
            Encoder::Modern => (0..UNITS).map(|i| gelu(up[i]) * up[UNITS + i]).collect(),
            Encoder::Jina => {
                let gate = self.product(&format!("blk.{layer}.ffn_gate"), x);
                gate.into_iter().zip(up).map(|(gate, up)| gelu(gate) * up).collect()
            }
        };
        self.product(&format!("blk.{layer}.ffn_down"), &hidden)
    }

    fn attention(&self, layer: usize, x: &[Row]) -> Vec<Row> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let near = self.kind == Encoder::Modern && !layer.is_multiple_of(3);
        let heads: Vec<[Row; 3]> = x
            .iter()
            .enumerate()
            .map(|(position, row)| {
                let [mut q, mut k, v] = match self.kind {
                    Encoder::Modern => {
                        let all = self.product(&name("attn_qkv"), row);
                        [0, 1, 2].map(|i| all[i * WIDTH..(i + 1) * WIDTH].to_vec())
                    }
                    _ => ["attn_q", "attn_k", "attn_v"].map(|part| self.product(&name(part), row)),
                };
                match self.kind {
                    Encoder::Bert => {}
                    Encoder::Modern => {
                        for head in q.chunks_exact_mut(HEAD).chain(k.chunks_exact_mut(HEAD)) {
                            turn(head, position as f64, BASES[usize::from(near)]);
                        }
                    }
                    Encoder::Jina => {
                        (q, k) = (self.norm(&name("attn_q_norm"), &q), self.norm(&name("attn_k_norm"), &k));
                    }
                }
                [q, k, v]
            })
            .collect();
        let attend = |at: usize| {
            let mut out = vec![0.0; WIDTH];
            for head in 0..HEADS {
                let part = |row: &Row| row[head * HEAD..(head + 1) * HEAD].to_vec();
                let q = part(&heads[at][0]);
                let weight = |other: usize| {
                    let distance = at.abs_diff(other);
                    if near && distance > WINDOW / 2 {
                        return 0.0;
                    }
                    let product: f64 = q.iter().zip(part(&heads[other][1])).map(|(q, k)| q * k).sum();
                    let slope =
                        if self.kind == Encoder::Jina { 2f64.powf(-8.0 * (head + 1) as f64 / 4.0) } else { 0.0 };
                    (product / (HEAD as f64).sqrt() - slope * distance as f64).exp()
                };
                let weights: Row = (0..heads.len()).map(weight).collect();
                let total: f64 = weights.iter().sum();
                for (other, weight) in weights.iter().enumerate() {
                    let to = &mut out[head * HEAD..(head + 1) * HEAD];
                    to.iter_mut().zip(part(&heads[other][2])).for_each(|(out, v)| *out += weight / total * v);
                }
            }
            self.product(&name("attn_output"), &out)
        };
        (0..x.len()).map(attend).collect()
    }

    /// The scores of the classifier over a text's first row.
    pub fn scores(&self, rows: &[Row]) -> Row {
        let hidden: Row = self.product("cls", &rows[0]).into_iter().map(f64::tanh).collect();
        self.product("cls.output", &hidden)
    }
}

/// Rotates a head, its first half against its second.
fn turn(head: &mut [f64], position: f64, base: f64) {
    let half = head.len() / 2;
    for i in 0..half {
        let (sin, cos) = (position * base.powf(-((2 * i) as f64) / head.len() as f64)).sin_cos();
        let (a, b) = (head[i], head[half + i]);
        (head[i], head[half + i]) = (a * cos - b * sin, a * sin + b * cos);
    }
}
