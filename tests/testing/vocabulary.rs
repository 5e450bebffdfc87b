//! The 512-token vocabularies of the fixture models: every byte, the special tokens, and pieces merged from words that
//! the tests' texts use, each reachable through pieces that come before it.

use std::collections::HashSet;

/// Tokens in every fixture vocabulary.
pub const SIZE: usize = 512;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

const WORDS: &str = "the and you once upon a time there was little girl boy named Lily Tom Ben Anna Max who liked to \
    play in park with her ball she saw big dog said hello can we friends yes they were happy went home mom open close \
    door run walk attack defend north south east west day";

/// A vocabulary as a GGUF file holds it.
pub struct Vocabulary {
    /// Texts, `SIZE` of them.
    pub tokens: Vec<String>,
    /// The file format's token types, one per token.
    pub types: Vec<i32>,
    /// Merge priorities of an SPM vocabulary, empty for BPE.
    pub scores: Vec<f32>,
    /// Merges of a BPE vocabulary, best first; empty for SPM.
    pub merges: Vec<String>,
}

/// `count` pieces, each the join of two earlier pieces or characters, with the joins; `space` stands for a blank.
fn pieces(count: usize, space: char) -> Vec<(String, String)> {
    let (mut seen, mut out) = (HashSet::new(), Vec::new());
    for lead in [Some(space), None] {
        for word in WORDS.split_whitespace() {
            let mut left = lead.map(String::from).unwrap_or_default();
            for c in word.chars() {
                let joined = format!("{left}{c}");
                if !left.is_empty() && seen.insert(joined.clone()) {
                    out.push((left, c.to_string()));
                }
                left = joined;
            }
        }
    }
    assert!(out.len() >= count, "the words give {} pieces, {count} are needed", out.len());
    // Short pieces first, so that a piece never stands before its parts and every word's start survives the cut.
    out.sort_by_key(|(left, right)| left.chars().count() + right.chars().count());
    out.truncate(count);
    out
}

/// An SPM vocabulary. `special` are its head: texts of control tokens, `<unk>` among them.
fn spm(special: &[&str]) -> Vocabulary {
    let mut v = Vocabulary { tokens: Vec::new(), types: Vec::new(), scores: Vec::new(), merges: Vec::new() };
    let mut push = |text: String, ty: i32, score: f32| {
        v.tokens.push(text);
        v.types.push(ty);
        v.scores.push(score);
    };
    for text in special {
        push((*text).into(), if *text == "<unk>" { UNKNOWN } else { CONTROL }, 0.0);
    }
    for byte in 0..=255u8 {
        push(format!("<0x{byte:02X}>"), BYTE, 0.0);
    }
    let characters: Vec<char> =
        "\u{2581}".chars().chain('a'..='z').chain('A'..='Z').chain('0'..='9').chain(".,!?'\"-_".chars()).collect();
    let merged = pieces(SIZE - special.len() - 256 - characters.len(), '\u{2581}');
    for (i, (left, right)) in merged.iter().enumerate() {
        push(format!("{left}{right}"), NORMAL, -(i as f32) - 1.0);
    }
    for (i, c) in characters.iter().enumerate() {
        push(c.to_string(), NORMAL, -((merged.len() + i) as f32) - 1.0);
    }
    v
}

/// The vocabulary of the llama fixtures: `<unk>` 0, `<s>` 1, `</s>` 2, bytes from 3.
pub fn llama() -> Vocabulary {
    spm(&["<unk>", "<s>", "</s>"])
}

/// The vocabulary of the gemma3 fixtures: `<pad>` 0, `<eos>` 1, `<bos>` 2, `<unk>` 3, the turn marks, bytes from 6.
pub fn gemma() -> Vocabulary {
    spm(&["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"])
}

/// The byte-level BPE vocabulary of the qwen3 fixtures: bytes 0 to 255, pieces, then `<|endoftext|>` 509,
/// `<|im_start|>` 510 and `<|im_end|>` 511.
pub fn qwen() -> Vocabulary {
    let special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let merged = pieces(SIZE - 256 - special.len(), byte_character(b' '));
    let bytes = (0..=255u8).map(|b| byte_character(b).to_string());
    let joined = merged.iter().map(|(left, right)| format!("{left}{right}"));
    let tokens: Vec<String> = bytes.chain(joined).chain(special.map(String::from)).collect();
    let types = (0..SIZE).map(|i| if i < SIZE - special.len() { NORMAL } else { CONTROL }).collect();
    let merges = merged.iter().map(|(left, right)| format!("{left} {right}")).collect();
    Vocabulary { tokens, types, scores: Vec::new(), merges }
}

/// The printable character that stands for a byte in byte-level BPE: itself where it is printable Latin-1, else the
/// next free one from U+0100.
fn byte_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + before).unwrap()
}
