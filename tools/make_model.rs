//! Writes a model of random weights at the shape of a real one:
//! `make_model SHAPE OUT [--vocab FILE] [--habits FILE] [--script FILE]`.
//!
//! The time of a pass does not depend on the weights' values, so that is enough to measure speed. Matrices are F16,
//! norms F32; `eliza-inference quantize` makes the other types of it. The vocabulary has the real one's size and joins
//! pieces as the real one does, but knows few words: those of the demo model's action names, then joins of them drawn
//! at random. A shape gives the same bytes on every machine.
//!
//! With `--vocab` the vocabulary, and its size, is that of another GGUF file. With `--habits`, lists of tokens as JSON,
//! the model writes what is in them: its layers add nothing to the embedding of the last token, and the row of the
//! output matrix of each token is near the embeddings of those that it follows in a list. So it takes the same time,
//! and with a grammar that rules out what does not fit, its answers look like those of a trained model. With
//! `--script`, a list of tokens as JSON, it says that list: after each position the token of the next. That takes a
//! shape with a table of positions. A shape with a block that predicts further tokens has one that says nearly what the
//! model says: with `--habits` the same but for what it adds of the row before.

use elizainference::Error;
use elizainference::gguf::{File, WriteValue, Writer};
use elizainference::quant::{TensorType, quantize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

/// What a model is like.
struct Shape {
    name: &'static str,
    architecture: &'static str,
    width: u64,
    layers: u32,
    feed_forward: u64,
    heads: u64,
    kv_heads: u64,
    head: u64,
    vocabulary: usize,
    context: u32,
    rope_base: f32,
    /// Whether the embedding is the output matrix too.
    tied: bool,
    /// Whether the vocabulary is a byte-level BPE; else it is SPM.
    bpe: bool,
}

impl Shape {
    /// Blocks after the layers that predict further tokens.
    fn nextn(&self) -> u32 {
        u32::from(self.architecture == "glm4moe")
    }
}

#[rustfmt::skip]
const SHAPES: [Shape; 11] = [
    Shape { name: "qwen3-0.6b", architecture: "qwen3", width: 1024, layers: 28, feed_forward: 3072, heads: 16,
            kv_heads: 8, head: 128, vocabulary: 151_936, context: 40_960, rope_base: 1e6, tied: true, bpe: true },
    Shape { name: "gemma3-270m", architecture: "gemma3", width: 640, layers: 18, feed_forward: 2048, heads: 4,
            kv_heads: 1, head: 256, vocabulary: 262_144, context: 32_768, rope_base: 1e6, tied: true, bpe: false },
    Shape { name: "tinyllama-1.1b", architecture: "llama", width: 2048, layers: 22, feed_forward: 5632, heads: 32,
            kv_heads: 4, head: 64, vocabulary: 32_000, context: 2048, rope_base: 1e4, tied: false, bpe: false },
    Shape { name: "llama-7b", architecture: "llama", width: 4096, layers: 32, feed_forward: 11_008, heads: 32,
            kv_heads: 32, head: 128, vocabulary: 32_000, context: 4096, rope_base: 1e4, tied: false, bpe: false },
    // A quarter of it, whose layers take as long as the whole one's.
    Shape { name: "llama-7b-8-layers", architecture: "llama", width: 4096, layers: 8, feed_forward: 11_008, heads: 32,
            kv_heads: 32, head: 128, vocabulary: 32_000, context: 4096, rope_base: 1e4, tied: false, bpe: false },
    // With a table of positions, for scripts; the second is a tenth of the first.
    Shape { name: "scripted-300m", architecture: "gpt2", width: 1024, layers: 24, feed_forward: 4096, heads: 16,
            kv_heads: 4, head: 64, vocabulary: 32_000, context: 4096, rope_base: 1e4, tied: false, bpe: false },
    Shape { name: "scripted-25m", architecture: "gpt2", width: 384, layers: 8, feed_forward: 1536, heads: 6,
            kv_heads: 2, head: 64, vocabulary: 32_000, context: 4096, rope_base: 1e4, tied: false, bpe: false },
    Shape { name: "nextn-300m", architecture: "glm4moe", width: 1024, layers: 24, feed_forward: 2816, heads: 16,
            kv_heads: 4, head: 64, vocabulary: 32_000, context: 4096, rope_base: 1e4, tied: false, bpe: false },
    // A large vocabulary on next to nothing.
    Shape { name: "vocab-128k", architecture: "llama", width: 64, layers: 1, feed_forward: 128, heads: 2,
            kv_heads: 1, head: 32, vocabulary: 128_256, context: 2048, rope_base: 5e5, tied: true, bpe: true },
    // Layers alone, and few, to count what they take.
    Shape { name: "llama-2-layers", architecture: "llama", width: 1024, layers: 2, feed_forward: 3072, heads: 16,
            kv_heads: 8, head: 64, vocabulary: 1024, context: 2048, rope_base: 1e4, tied: false, bpe: false },
    // To try things out.
    Shape { name: "tiny", architecture: "qwen3", width: 256, layers: 4, feed_forward: 768, heads: 4,
            kv_heads: 2, head: 64, vocabulary: 4096, context: 2048, rope_base: 1e6, tied: true, bpe: true },
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        (at + 1 < args.len()).then(|| args.drain(at..at + 2).next_back()).flatten()
    };
    let (vocab, habits, script) = (option("--vocab"), option("--habits"), option("--script"));
    let known = SHAPES.iter().find(|known| args.first().is_some_and(|name| name == known.name));
    let (Some(shape), [_, out]) = (known, &args[..]) else {
        let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
        let usage = "usage: make_model SHAPE OUT [--vocab FILE] [--habits FILE] [--script FILE], where SHAPE is one of";
        return Err(format!("{usage} {}", names.join(", ")).into());
    };
    let vocab = vocab.map(File::open).transpose()?;
    let tokens = vocab.as_ref().map_or(Ok(None), |file| file.byte_strings("tokenizer.ggml.tokens"))?;
    let shape = &Shape { vocabulary: tokens.map_or(shape.vocabulary, |all| all.len()), ..*shape };
    let habits = match (habits, script) {
        (Some(path), None) => Some(Habits::of(&serde_json::from_slice::<Vec<Vec<u32>>>(&std::fs::read(path)?)?, shape)),
        (None, Some(path)) => Some(Habits::script(&serde_json::from_slice::<Vec<u32>>(&std::fs::read(path)?)?, shape)),
        (None, None) => None,
        (Some(_), Some(_)) => return Err("--habits and --script are two ways to write".into()),
    };
    let mut file = Writer::new(3);
    metadata(&mut file, shape);
    match vocab {
        Some(vocab) => copied(&mut file, &vocab)?,
        None if shape.bpe => bpe(&mut file, shape),
        None => spm(&mut file, shape),
    }
    let tensors = tensors(shape, habits.is_some());
    for (name, dims, _) in &tensors {
        let ty = if dims.len() == 1 { TensorType::F32 } else { TensorType::F16 };
        file.declare(name.clone(), dims, ty);
    }
    file.stream(Path::new(&out), &mut |index, to| {
        let (name, dims, kind) = &tensors[index];
        let mut random = Random(index as u64);
        let ty = if dims.len() == 1 { TensorType::F32 } else { TensorType::F16 };
        let (mut row, mut bytes) = (vec![0.0; dims[0] as usize], Vec::new());
        for at in 0..dims.get(1).copied().unwrap_or(1) {
            kind.row(at as usize, &mut row, &mut random);
            if let Some(habits) = habits.as_ref().filter(|_| name == "output.weight") {
                habits.add(at as u32, &mut row);
            }
            bytes.clear();
            quantize(ty, &row, &mut bytes)?;
            to.write_all(&bytes).map_err(|error| Error::io(Path::new(&out), &error))?;
        }
        Ok(())
    })?;
    Ok(())
}

/// The vocabulary of a file.
fn copied(file: &mut Writer, from: &File) -> Result<(), Error> {
    for (key, _) in from.metadata().filter(|(key, _)| key.starts_with("tokenizer.")) {
        file.copy_key(from, key)?;
    }
    Ok(())
}

/// Which tokens follow which.
struct Habits {
    /// For each token those before it, or the positions.
    before: BTreeMap<u32, BTreeSet<u32>>,
    /// Rows of the embedding, or of the table of positions.
    rows: BTreeMap<u32, Vec<f32>>,
}

/// How much more likely a token is than by chance, in logits, if the embedding has a length of 1.
const HABIT: f32 = 40.0;

impl Habits {
    fn of(lists: &[Vec<u32>], shape: &Shape) -> Habits {
        let mut before: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for pair in lists.iter().flat_map(|list| list.windows(2)) {
            before.entry(pair[1]).or_default().insert(pair[0]);
        }
        // The embedding is the first tensor.
        Habits::with(before, 0, shape.vocabulary as u32, shape)
    }

    fn script(tokens: &[u32], shape: &Shape) -> Habits {
        let mut before: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (position, &token) in tokens.iter().skip(1).enumerate() {
            before.entry(token).or_default().insert(position as u32);
        }
        // The table of positions is the second.
        Habits::with(before, 1, shape.context, shape)
    }

    /// With rows of this tensor, which has so many.
    fn with(before: BTreeMap<u32, BTreeSet<u32>>, tensor: u64, count: u32, shape: &Shape) -> Habits {
        let wanted: BTreeSet<u32> = before.values().flatten().copied().collect();
        let mut random = Random(tensor);
        let (kind, mut rows) = (embedding(shape), BTreeMap::new());
        for at in 0..count {
            let row: Vec<f32> = (0..shape.width).map(|_| kind.next(&mut random)).collect();
            if wanted.contains(&at) {
                rows.insert(at, row);
            }
        }
        Habits { before, rows }
    }

    /// Adds to the row of the output matrix of a token.
    fn add(&self, token: u32, row: &mut [f32]) {
        let strength = HABIT / (row.len() as f32).sqrt();
        let before = self.before.get(&token).into_iter().flatten();
        for embedding in before.filter_map(|at| self.rows.get(at)) {
            row.iter_mut().zip(embedding).for_each(|(value, x)| *value += strength * x);
        }
    }
}

fn metadata(file: &mut Writer, shape: &Shape) {
    let architecture = shape.architecture;
    let key = |name: &str| format!("{architecture}.{name}");
    let name = format!("{} of random weights", shape.name);
    file.set("general.architecture", architecture).set("general.name", &*name).set("general.file_type", 1u32);
    for (name, value) in [
        ("context_length", shape.context),
        ("embedding_length", shape.width as u32),
        ("block_count", shape.layers + shape.nextn()),
        ("feed_forward_length", shape.feed_forward as u32),
        ("attention.head_count", shape.heads as u32),
        ("attention.head_count_kv", shape.kv_heads as u32),
        ("attention.key_length", shape.head as u32),
        ("attention.value_length", shape.head as u32),
        ("rope.dimension_count", shape.head as u32),
    ] {
        file.set(key(name), value);
    }
    match architecture {
        "gpt2" => file.set(key("attention.layer_norm_epsilon"), 1e-5f32),
        _ => file.set(key("attention.layer_norm_rms_epsilon"), 1e-6f32).set(key("rope.freq_base"), shape.rope_base),
    };
    if shape.nextn() > 0 {
        file.set(key("nextn_predict_layers"), shape.nextn());
    }
    if architecture == "gemma3" {
        file.set(key("attention.sliding_window"), 512u32);
    }
}

/// How a tensor's values are distributed.
enum Values {
    /// All the same.
    Norm(f32),
    /// Around zero, with this standard deviation.
    Spread(f32),
    /// Of a matrix of twice as many columns as rows: what it is multiplied with in the first half, and a part of this
    /// size of the second, mixed.
    First(f32),
}

impl Values {
    fn next(&self, random: &mut Random) -> f32 {
        match self {
            Values::Norm(mean) => *mean,
            Values::Spread(deviation) | Values::First(deviation) => deviation * random.normal(),
        }
    }

    /// Row `at` of a matrix.
    fn row(&self, at: usize, row: &mut [f32], random: &mut Random) {
        row.fill_with(|| self.next(random));
        if let Values::First(_) = self {
            let half = row.len() / 2;
            row[..half].fill(0.0);
            row[at] = 1.0;
        }
    }
}

/// Values that keep the length of what is multiplied by a row.
fn per_root(width: u64) -> f32 {
    1.0 / (width as f32).sqrt()
}

fn embedding(shape: &Shape) -> Values {
    Values::Spread(per_root(shape.width))
}

/// Name, shape (a row's length first) and values of every tensor; with `habits` the layers add nothing, and the output
/// matrix is one of its own.
fn tensors(shape: &Shape, habits: bool) -> Vec<(String, Vec<u64>, Values)> {
    let (gemma, positions) = (shape.architecture == "gemma3", shape.architecture == "gpt2");
    let own_norms = matches!(shape.architecture, "qwen3" | "gemma3");
    let second_norm = if shape.architecture == "glm4moe" { "post_attention_norm" } else { "ffn_norm" };
    let vocabulary = shape.vocabulary as u64;
    // Where positions tell what comes, the tokens hardly disturb them.
    let tokens = if positions { Values::Spread(0.1 * per_root(shape.width)) } else { embedding(shape) };
    let mut all = vec![("token_embd.weight".into(), vec![shape.width, vocabulary], tokens)];
    if positions {
        all.push(("position_embd.weight".into(), vec![shape.width, u64::from(shape.context)], embedding(shape)));
    }
    all.push(("output_norm.weight".into(), vec![shape.width], Values::Norm(if gemma { 3.0 } else { 1.0 })));
    if !shape.tied || habits {
        all.push(("output.weight".into(), vec![shape.width, vocabulary], Values::Spread(2.0 * per_root(shape.width))));
    }
    let (q, kv) = (shape.heads * shape.head, shape.kv_heads * shape.head);
    for layer in 0..shape.layers + shape.nextn() {
        let mut norms = vec![("attn_norm", shape.width), (second_norm, shape.width)];
        if layer >= shape.layers {
            norms.extend(["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"].map(|part| (part, shape.width)));
            let dims = vec![2 * shape.width, shape.width];
            all.push((format!("blk.{layer}.nextn.eh_proj.weight"), dims, Values::First(0.5 * per_root(shape.width))));
        }
        if own_norms {
            norms.extend([("attn_q_norm", shape.head), ("attn_k_norm", shape.head)]);
        }
        if gemma {
            norms.extend([("post_attention_norm", shape.width), ("post_ffw_norm", shape.width)]);
        }
        for (part, width) in norms {
            all.push((format!("blk.{layer}.{part}.weight"), vec![width], Values::Norm(1.0)));
        }
        for (part, width, rows) in [
            ("attn_q", shape.width, q),
            ("attn_k", shape.width, kv),
            ("attn_v", shape.width, kv),
            ("attn_output", q, shape.width),
            ("ffn_gate", shape.width, shape.feed_forward),
            ("ffn_up", shape.width, shape.feed_forward),
            ("ffn_down", shape.feed_forward, shape.width),
        ] {
            if positions && part == "ffn_gate" {
                continue;
            }
            let adds = matches!(part, "attn_output" | "ffn_down");
            let values = if habits && adds { Values::Norm(0.0) } else { Values::Spread(per_root(width)) };
            all.push((format!("blk.{layer}.{part}.weight"), vec![width, rows], values));
        }
    }
    all
}

/// splitmix64: one number after the other from any start.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// About normal, with a standard deviation of 1: the sum of four evenly distributed numbers.
    fn normal(&mut self) -> f32 {
        let x = self.next();
        let sum: u64 = (0..4).map(|i| (x >> (16 * i)) & 0xffff).sum();
        (sum as f32 / 65_536.0 - 2.0) * 3f32.sqrt()
    }

    /// Below `n`, the lower the likelier.
    fn low(&mut self, n: usize) -> usize {
        let x = self.next() as f64 / 2f64.powi(64);
        (x.powi(3) * n as f64) as usize
    }
}

/// This many pieces, each the join of two that come earlier or are single characters; with the two.
fn pieces(count: usize, blank: char) -> Vec<(String, String, String)> {
    let words: Vec<&str> = include_str!("../models/demo_actions.txt").split(['_', '\n']).collect();
    let (mut known, mut found) = (HashSet::new(), Vec::new());
    let mut add = |a: &str, b: &str, found: &mut Vec<(String, String, String)>| {
        let joined = format!("{a}{b}");
        if found.len() < count && known.insert(joined.clone()) {
            found.push((joined, a.into(), b.into()));
        }
    };
    for word in words.into_iter().filter(|word| !word.is_empty()) {
        for word in [word.to_owned(), word.to_lowercase()] {
            for before in [String::new(), "_".into(), blank.into()] {
                let mut so_far = String::new();
                for c in (before + &word).chars() {
                    if !so_far.is_empty() {
                        add(&so_far, &c.to_string(), &mut found);
                    }
                    so_far.push(c);
                }
            }
        }
    }
    let letters: Vec<String> = ('a'..='z').chain('A'..='Z').map(String::from).collect();
    let mut random = Random(count as u64);
    while found.len() < count {
        let mut one = || match random.low(letters.len() + found.len()) {
            at if at < letters.len() => letters[at].clone(),
            at => found[at - letters.len()].0.clone(),
        };
        let (a, b) = (one(), one());
        if a.len() + b.len() <= 16 && !b.starts_with([blank, '_']) {
            add(&a, &b, &mut found);
        }
    }
    found
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

fn set_tokens(file: &mut Writer, tokens: Vec<String>, types: Vec<i32>) {
    file.set("tokenizer.ggml.tokens", WriteValue::Strings(tokens))
        .set("tokenizer.ggml.token_type", WriteValue::I32s(types));
}

/// A byte-level BPE: a character for each byte, pieces, control tokens.
fn bpe(file: &mut Writer, shape: &Shape) {
    let special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    // Bytes that print are themselves, the others the characters from 256 on.
    let prints = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|byte| !prints(byte)).zip(256u32..);
    let bytes = (0..=255u8).filter(prints).map(|byte| (byte, u32::from(byte))).chain(others);
    let mut tokens: Vec<String> = bytes.filter_map(|(_, c)| char::from_u32(c)).map(String::from).collect();
    let pieces = pieces(shape.vocabulary - tokens.len() - special.len(), 'Ġ');
    tokens.extend(pieces.iter().map(|(joined, _, _)| joined.clone()));
    let mut types = vec![NORMAL; tokens.len()];
    let first = tokens.len() as u32;
    tokens.extend(special.map(String::from));
    types.extend([CONTROL; 3]);
    let pre = if shape.architecture == "qwen3" { "qwen2" } else { "llama-bpe" };
    let merges = pieces.iter().map(|(_, a, b)| format!("{a} {b}")).collect();
    file.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", pre);
    set_tokens(file, tokens, types);
    file.set("tokenizer.ggml.merges", WriteValue::Strings(merges));
    file.set("tokenizer.ggml.bos_token_id", first).set("tokenizer.ggml.eos_token_id", first + 2);
    file.set("tokenizer.ggml.add_bos_token", false);
}

/// SPM: control tokens, bytes, pieces with scores that fall, single characters.
fn spm(file: &mut Writer, shape: &Shape) {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    let mut types = vec![UNKNOWN, CONTROL, CONTROL];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    types.extend([BYTE; 256]);
    let singles: Vec<String> = ('!'..='~').chain(['▁']).map(String::from).collect();
    let pieces = pieces(shape.vocabulary - tokens.len() - singles.len(), '▁');
    let mut scores = vec![0.0; tokens.len()];
    scores.extend((0..pieces.len() + singles.len()).map(|i| -(i as f32)));
    types.resize(shape.vocabulary, NORMAL);
    tokens.extend(pieces.into_iter().map(|(joined, _, _)| joined).chain(singles));
    file.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.pre", "default");
    set_tokens(file, tokens, types);
    file.set("tokenizer.ggml.scores", WriteValue::F32s(scores));
    for (role, id) in [("unknown", 0u32), ("bos", 1), ("eos", 2)] {
        file.set(format!("tokenizer.ggml.{role}_token_id"), id);
    }
    file.set("tokenizer.ggml.add_bos_token", true);
}
