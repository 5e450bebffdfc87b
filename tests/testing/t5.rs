//! A tiny T5 with F32 weights, written by this project's own GGUF writer, and its slow, obvious forward pass in `f64`.

use super::fixtures::place;
use super::rng::Stream;
use super::vocabulary;
use elizainference::gguf::{WriteValue, Writer};
use elizainference::quant::TensorType;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Longest prompt and answer, in tokens.
pub const CONTEXT: usize = 256;
/// The token that answers begin with.
pub const BEGIN: i32 = 5;
const WIDTH: usize = 64;
const HEADS: usize = 4;
/// Not the width over the heads.
const HEAD: usize = 32;
const UNITS: usize = 96;
const BUCKETS: usize = 32;
const EPS: f64 = 1e-6;

type Row = Vec<f64>;

/// The model with so many blocks in its encoder and in its decoder.
pub struct T5 {
    blocks: [usize; 2],
    out: Writer,
    tensors: HashMap<String, Vec<f32>>,
}

impl T5 {
    pub fn new(blocks: [usize; 2]) -> T5 {
        let mut made = T5 { blocks, out: Writer::new(3), tensors: HashMap::new() };
        made.metadata();
        made.tensor("token_embd.weight", &[WIDTH, vocabulary::SIZE], 0.0, 1.0);
        made.tensor("output.weight", &[WIDTH, vocabulary::SIZE], 0.0, 0.3);
        for (side, blocks) in ["enc", "dec"].into_iter().zip(blocks) {
            made.tensor(&format!("{side}.output_norm.weight"), &[WIDTH], 1.0, 0.1);
            made.tensor(&format!("{side}.blk.0.attn_rel_b.weight"), &[HEADS, BUCKETS], 0.0, 1.0);
            for block in 0..blocks {
                for part in if side == "enc" { &["attn"][..] } else { &["attn", "cross_attn"] } {
                    let name = |of: &str| format!("{side}.blk.{block}.{part}_{of}.weight");
                    made.tensor(&name("norm"), &[WIDTH], 1.0, 0.1);
                    for of in ["q", "k", "v"] {
                        made.tensor(&name(of), &[WIDTH, HEADS * HEAD], 0.0, 0.06);
                    }
                    made.tensor(&name("o"), &[HEADS * HEAD, WIDTH], 0.0, 0.1);
                }
                let name = |of: &str| format!("{side}.blk.{block}.ffn_{of}.weight");
                made.tensor(&name("norm"), &[WIDTH], 1.0, 0.1);
                made.tensor(&name("gate"), &[WIDTH, UNITS], 0.0, 0.15);
                made.tensor(&name("up"), &[WIDTH, UNITS], 0.0, 0.15);
                made.tensor(&name("down"), &[UNITS, WIDTH], 0.0, 0.1);
            }
        }
        made
    }

    /// Writes the file into `dir`, where it is not there yet, and returns its path.
    pub fn write(&self, dir: &Path) -> PathBuf {
        place(dir, &format!("t5-{}-{}.gguf", self.blocks[0], self.blocks[1]), &self.out.to_bytes().unwrap())
    }

    fn metadata(&mut self) {
        let mut set = |key: &str, value: WriteValue| {
            self.out.set(key, value);
        };
        set("general.architecture", WriteValue::String("t5".into()));
        for (name, value) in [
            ("context_length", CONTEXT),
            ("embedding_length", WIDTH),
            ("block_count", self.blocks[0]),
            ("decoder_block_count", self.blocks[1]),
            ("feed_forward_length", UNITS),
            ("attention.head_count", HEADS),
            ("attention.key_length", HEAD),
            ("attention.value_length", HEAD),
            ("attention.relative_buckets_count", BUCKETS),
            ("decoder_start_token_id", BEGIN as usize),
        ] {
            set(&format!("t5.{name}"), WriteValue::U32(value as u32));
        }
        set("t5.attention.layer_norm_rms_epsilon", WriteValue::F32(EPS as f32));
        let v = vocabulary::qwen();
        for (name, value) in [
            ("model", WriteValue::String("gpt2".into())),
            ("pre", WriteValue::String("qwen2".into())),
            ("tokens", WriteValue::Strings(v.tokens)),
            ("token_type", WriteValue::I32s(v.types)),
            ("merges", WriteValue::Strings(v.merges)),
            ("eos_token_id", WriteValue::U32(vocabulary::SIZE as u32 - 1)),
        ] {
            set(&format!("tokenizer.ggml.{name}"), value);
        }
    }

    fn tensor(&mut self, name: &str, shape: &[usize], mean: f32, deviation: f32) {
        let (stream, n) = (Stream::new(6, name), shape.iter().product::<usize>());
        let values: Vec<f32> = (0..n as u64).map(|i| mean + deviation * stream.normal(i)).collect();
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.out.tensor(name, &shape, TensorType::F32, data);
        self.tensors.insert(name.into(), values);
    }

    fn product(&self, name: &str, x: &[f64]) -> Row {
        let rows = self.tensors[&format!("{name}.weight")].chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Row {
        let scale = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + EPS).sqrt();
        x.iter().zip(&self.tensors[&format!("{name}.weight")]).map(|(x, &w)| x / scale * f64::from(w)).collect()
    }

    /// The bias of a key at `key` for a query at `query`.
    fn bias(&self, side: &str, head: usize, query: usize, key: usize) -> f64 {
        let (n, first) = match side {
            "enc" => (BUCKETS / 2, if key > query { BUCKETS / 2 } else { 0 }),
            _ => (BUCKETS, 0),
        };
        let (distance, alone) = (query.abs_diff(key), n / 2);
        let bucket = match distance < alone {
            true => distance,
            false => {
                let far = (distance as f64 / alone as f64).ln() / (128.0 / alone as f64).ln();
                (alone + (far * (n - alone) as f64) as usize).min(n - 1)
            }
        };
        f64::from(self.tensors[&format!("{side}.blk.0.attn_rel_b.weight")][(first + bucket) * HEADS + head])
    }

    /// The sum of the values of `keys` rows, each by its score.
    fn attend(&self, name: &str, x: &[f64], keys: &[Row], score: impl Fn(usize, usize) -> f64) -> Row {
        let q = self.product(&format!("{name}_q"), x);
        let of = |part: &str| keys.iter().map(|row| self.product(&format!("{name}_{part}"), row)).collect::<Vec<_>>();
        let (k, v) = (of("k"), of("v"));
        let mut all = vec![0.0; HEADS * HEAD];
        for head in 0..HEADS {
            let range = head * HEAD..(head + 1) * HEAD;
            let dot = |k: &Row| q[range.clone()].iter().zip(&k[range.clone()]).map(|(a, b)| a * b).sum::<f64>();
            let weights: Vec<f64> = k.iter().enumerate().map(|(i, k)| (dot(k) + score(head, i)).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (weight, v) in weights.iter().zip(&v) {
                for i in range.clone() {
                    all[i] += weight / total * v[i];
                }
            }
        }
        self.product(&format!("{name}_o"), &all)
    }

    /// The last rows of a side; those of the decoder attend to `text`.
    fn rows(&self, side: &str, tokens: &[i32], text: Option<&[Row]>) -> Vec<Row> {
        let embed = |&token: &i32| {
            let row = &self.tensors["token_embd.weight"][token as usize * WIDTH..][..WIDTH];
            row.iter().map(|&x| f64::from(x)).collect::<Row>()
        };
        let add = |x: &mut Row, y: Row| x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        let mut x: Vec<Row> = tokens.iter().map(embed).collect();
        for block in 0..self.blocks[usize::from(text.is_some())] {
            let name = |part: &str| format!("{side}.blk.{block}.{part}");
            let normed: Vec<Row> = x.iter().map(|x| self.norm(&name("attn_norm"), x)).collect();
            for (i, x) in x.iter_mut().enumerate() {
                let seen = if text.is_some() { i + 1 } else { normed.len() };
                let score = |head, key| self.bias(side, head, i, key);
                add(x, self.attend(&name("attn"), &normed[i], &normed[..seen], score));
                if let Some(text) = text {
                    let normed = self.norm(&name("cross_attn_norm"), x);
                    add(x, self.attend(&name("cross_attn"), &normed, text, |_, _| 0.0));
                }
                let normed = self.norm(&name("ffn_norm"), x);
                let gate = self.product(&name("ffn_gate"), &normed).into_iter();
                let up = self.product(&name("ffn_up"), &normed);
                let gelu = |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x.powi(3))).tanh());
                let units: Row = gate.zip(up).map(|(gate, up)| gelu(gate) * up).collect();
                add(x, self.product(&name("ffn_down"), &units));
            }
        }
        x.iter().map(|x| self.norm(&format!("{side}.output_norm"), x)).collect()
    }

    /// Logits before the first token of an answer, and after each.
    pub fn logits(&self, prompt: &[i32], answer: &[i32]) -> Vec<Vec<f64>> {
        let text = self.rows("enc", prompt, None);
        let rows = self.rows("dec", &[&[BEGIN], answer].concat(), Some(&text));
        rows.iter().map(|row| self.product("output", row)).collect()
    }
}
