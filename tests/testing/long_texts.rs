//! Long texts that make tokenizers slow, and vocabularies to try them on.
#![allow(dead_code)]

use super::gguf_keys::Keys;

/// One name of each pre-tokenizer that cuts in its own way.
pub const PRE_TOKENIZERS: &[&str] = &[
    "default",
    "llama-bpe",
    "dbrx",
    "jais-2",
    "gpt-2",
    "starcoder",
    "qwen2",
    "qwen35",
    "laguna",
    "ufakzeka",
    "seed-coder",
    "bailingmoe",
    "minicpm5",
    "gpt-4o",
    "granite-embed-multi-97m",
    "tiny_aya",
    "tekken",
    "deepseek-v3",
    "spark2_5",
    "afmoe",
    "deepseek-llm",
    "deepseek-coder",
    "falcon",
    "bloom",
    "viking",
    "youtu",
    "chameleon",
    "exaone-moe",
    "superbpe",
    "kimi-k2",
    "gemma4",
    "sarvam-moe",
];

pub const WORDS: &str = "\
    the and of to in that it was for on with as he be at by had not are but from or have an they which one you were \
    her all she there would their we him been has when who will more no if out so said what up its about into than \
    them can only other new some could time these two may then do first any my now such like our over man";

/// The characters that byte-level BPE writes bytes with, by byte.
fn byte_chars() -> Vec<char> {
    let plain = |b: &u32| (0x21..=0x7e).contains(b) || (0xa1..=0xac).contains(b) || (0xae..=0xff).contains(b);
    let mut others = (0x100..).filter_map(char::from_u32);
    (0..256).map(|b| if plain(&b) { char::from_u32(b).unwrap() } else { others.next().unwrap() }).collect()
}

/// The words letter by letter and runs by doubling: pairs that join, shortest results first.
fn joins(space: &str, runs: &[&str]) -> Vec<(String, String)> {
    let mut joins = Vec::new();
    for word in WORDS.split_whitespace() {
        for lead in [space, ""] {
            let mut left = lead.to_string();
            for c in word.chars() {
                if !left.is_empty() {
                    joins.push((left.clone(), c.to_string()));
                }
                left.push(c);
            }
        }
    }
    for run in runs {
        joins.extend((0..5).map(|i| (run.repeat(1 << i), run.repeat(1 << i))));
    }
    joins.sort_by_key(|(left, right)| left.len() + right.len());
    let mut seen = std::collections::HashSet::new();
    joins.retain(|(left, right)| seen.insert([left.as_str(), right].concat()));
    joins
}

/// Special tokens: control tokens, and user-defined ones of which each begins the next.
pub fn specials() -> Vec<(String, i32)> {
    let control = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<｜end▁of▁sentence｜>"];
    let user = ["[[", "[[[[", "[[[[[[[["].map(String::from);
    let nested = (1..200).map(|n| format!("~{}", "^".repeat(n)));
    let control = control.iter().map(|text| (text.to_string(), 3));
    control.chain(user.into_iter().chain(nested).map(|text| (text, 4))).collect()
}

/// A byte-level BPE vocabulary with this pre-tokenizer.
pub fn bpe(pre: &str) -> Keys {
    let escaped = ["gemma4", "sarvam-moe"].contains(&pre);
    let joins = joins(if escaped { "▁" } else { "Ġ" }, &["a", "A", "Ġ", "▁", "!", "Ċ", "Ã©", "é", "漢", "1"]);
    let mut tokens: Vec<String> = byte_chars().into_iter().map(String::from).collect();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "漢"].map(String::from));
    let mut types = vec![1; tokens.len()];
    for joined in joins.iter().map(|(left, right)| format!("{left}{right}")) {
        tokens.push(joined);
        types.push(1);
    }
    for (text, kind) in specials() {
        tokens.push(text);
        types.push(kind);
    }
    let merges: Vec<String> = joins.iter().map(|(left, right)| format!("{left} {right}")).collect();
    Keys::default()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", &merges)
        .u32("tokenizer.ggml.bos_token_id", 0)
}

/// An SPM vocabulary.
pub fn spm() -> Keys {
    let mut tokens: Vec<(String, f32, i32)> = vec![("<unk>".into(), 0.0, 2)];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6)));
    tokens.extend(specials().into_iter().map(|(text, kind)| (text, 0.0, kind)));
    let single = ('a'..='z').map(String::from).chain(["▁", "A", "!", "é", "漢", "1", "🦙"].map(String::from));
    tokens.extend(single.map(|text| (text, -1e4, 1)));
    let joins = joins("▁", &["a", "A", "▁", "!", "é", "漢", "1"]);
    tokens.extend(joins.iter().enumerate().map(|(i, (left, right))| (format!("{left}{right}"), -(i as f32), 1)));
    let texts: Vec<&str> = tokens.iter().map(|(text, ..)| text.as_str()).collect();
    let scores: Vec<f32> = tokens.iter().map(|(_, score, _)| *score).collect();
    let types: Vec<i32> = tokens.iter().map(|(.., kind)| *kind).collect();
    Keys::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &texts)
        .floats("tokenizer.ggml.scores", &scores)
        .integers("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 0)
}

/// What all other texts are compared with: random English words, and a full stop at times.
pub fn prose(bytes: usize) -> Vec<u8> {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let (mut state, mut text) = (1u64, String::new());
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(words[(state >> 33) as usize % words.len()]);
        text.push_str(if (state >> 50).is_multiple_of(12) { ". " } else { " " });
    }
    text.truncate(bytes);
    text.into_bytes()
}

/// One character over and over: every class that a pre-tokenizer knows.
const RUNS: &[&str] = &[
    "a", "A", "1", " ", "\n", "\r", "\t", "'", "!", ".", "<", "[", "$", "^", "_", "\0", "\u{7f}", "é", "É", "ǅ", "漢",
    "か", "한", "ไ", "א", "\u{301}", "½", "٣", "\u{a0}", "\u{3000}", "\u{200b}", "—", "，", "€", "☃", "▁", "🦙",
    "\u{fffd}", "\u{ad}", "𠀀", "\u{e000}",
];
/// Several characters over and over.
const PAIRS: &[&str] = &[
    "a ",
    "a1",
    "aA",
    "Aa",
    "AAAa",
    "éA",
    "éAAAAAAAA",
    "1 ",
    " \n",
    "\n ",
    "\n        ",
    "'s",
    "a'",
    "'",
    "! ",
    "!\n",
    "a漢",
    "🦙 ",
    "\t ",
    "a\u{301}",
    "1,",
    "12",
    "a\r\n",
    "\r\n",
    " a",
    "  a",
    "            1",
    " 漢",
    "_a",
    "é\u{301} ",
    "👩\u{200d}👩\u{200d}👧",
    "🇩🇪",
    "❤\u{fe0f}",
    "\u{1f3ff}",
    "IMGIMGABC",
    "IMGIMGABCDZ",
];
/// Special tokens, whole, cut and beside each other.
const SPECIALS: &[&str] = &[
    "<|im_start|>",
    "<|im_",
    "<|im_start|><|im_end|>",
    "<|im_start|> \n",
    "<s>",
    "[[",
    "[[[",
    "~",
    "~^",
    "~^^^^^^^^",
    "^~",
    "<sentinel:1",
];
/// What stands after a long run of white space, or before it.
const AFTER: &[&str] = &["1", "漢", "a", "!", "\n", "\0", "é", "<|im_start|>"];

/// Texts of about `bytes` bytes, each with a name.
pub fn hard(bytes: usize) -> Vec<(String, Vec<u8>)> {
    let times = |one: &str| one.repeat(bytes.div_ceil(one.len()));
    let mut texts: Vec<(String, Vec<u8>)> = Vec::new();
    for one in RUNS.iter().chain(PAIRS).chain(SPECIALS) {
        texts.push((format!("{one:?} over and over"), times(one).into_bytes()));
    }
    for space in [" ", "\n", "\t", "\u{3000}", " \n"] {
        for after in AFTER {
            texts.push((format!("{space:?} over and over before {after:?}"), (times(space) + after).into_bytes()));
        }
        texts.push((format!("{space:?} over and over after a line feed"), ("\n".to_string() + &times(space)).into()));
    }
    texts.push(("<sentinel: and digits".into(), ("<sentinel:".to_string() + &times("1")).into()));
    texts.push(("~ and ^".into(), ("~".to_string() + &times("^")).into()));
    for byte in [0xffu8, 0x80, 0xc3, 0xe6, 0xf0] {
        texts.push((format!("byte {byte:#x} over and over"), vec![byte; bytes]));
    }
    texts
}
