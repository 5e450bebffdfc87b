//! Vocabularies of the families that find whole tokens in a text, where SPM and BPE join characters.
#![allow(dead_code)]

use super::gguf_keys::Keys;
use super::long_texts::{WORDS, specials};
use std::collections::{BTreeMap, BTreeSet};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// Runs of one character, as published vocabularies have them.
fn runs() -> impl Iterator<Item = String> {
    let one = ["a", "A", " ", "!", "é", "漢", "1", "\n", "🦙"];
    one.into_iter().flat_map(|one| (0..6).map(|i| one.repeat(1 << i)))
}

/// Tokens in the making: each text once, of the type it has first.
#[derive(Default)]
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
    seen: std::collections::HashSet<String>,
}

impl Tokens {
    fn push(&mut self, text: impl Into<String>, kind: i32) {
        let text = text.into();
        if self.seen.insert(text.clone()) {
            self.texts.push(text);
            self.types.push(kind);
        }
    }

    fn extend(&mut self, texts: impl IntoIterator<Item = String>) {
        texts.into_iter().for_each(|text| self.push(text, NORMAL));
    }

    fn keys(&self, model: &str, architecture: &str) -> Keys {
        Keys::default()
            .string("general.architecture", architecture)
            .string("tokenizer.ggml.model", model)
            .strings("tokenizer.ggml.tokens", &self.texts)
            .integers("tokenizer.ggml.token_type", &self.types)
    }

    /// A score for each token: better for longer ones, and a little different for each.
    fn scores(&self) -> Vec<f32> {
        let score = |(i, text): (usize, &String)| text.chars().count() as f32 - 12.0 - (i * 7 % 64) as f32 / 64.0;
        self.texts.iter().enumerate().map(score).collect()
    }
}

fn letters() -> impl Iterator<Item = String> {
    "abcdefghijklmnopqrstuvwxyzAE0123456789.,!/'éß漢字かñ".chars().map(String::from)
}

fn words() -> impl Iterator<Item = String> {
    WORDS.split_whitespace().map(String::from)
}

/// WordPiece, lower case without accents.
pub fn wpm() -> Keys {
    let mut tokens = Tokens::default();
    tokens.push("[PAD]", CONTROL);
    tokens.push("[UNK]", UNKNOWN);
    tokens.push("[CLS]", CONTROL);
    tokens.push("[SEP]", CONTROL);
    specials().into_iter().for_each(|(text, kind)| tokens.push(text, kind));
    for text in letters().chain(words()).chain(runs().map(|run| run.replace(' ', "_"))) {
        tokens.extend([format!("▁{text}"), text]);
    }
    tokens.extend(["▁hav", "ing", "▁ing", "er", "s", "▁[", "▁<"].map(String::from));
    tokens
        .keys("bert", "bert")
        .u32("tokenizer.ggml.unknown_token_id", 1)
        .u32("tokenizer.ggml.bos_token_id", 2)
        .u32("tokenizer.ggml.seperator_token_id", 3)
}

/// Unigram, with spaces merged or kept, and some characters that are written as others.
pub fn ugm(merges_spaces: bool) -> Keys {
    let mut tokens = Tokens::default();
    tokens.push("<pad>", CONTROL);
    tokens.push("</s>", CONTROL);
    tokens.push("<unk>", UNKNOWN);
    specials().into_iter().for_each(|(text, kind)| tokens.push(text, kind));
    tokens.push("ǆ!", USER_DEFINED);
    tokens.extend(letters().chain(["▁".into()]).chain(words().flat_map(|word| [format!("▁{word}"), word])));
    tokens.extend(runs().map(|run| run.replace(' ', "▁")));
    let map = [("\n", " "), ("\t", " "), ("\u{3000}", " "), ("\u{200b}", ""), ("½", "1/2"), ("Ａ", "A")];
    let map = map.into_iter().chain([("e\u{301}", "é"), ("e\u{301}\u{302}", "ế"), ("\u{1f3ff}", "  "), ("ǆ", "dz")]);
    tokens
        .keys("t5", "t5")
        .floats("tokenizer.ggml.scores", &tokens.scores())
        .bool("tokenizer.ggml.add_space_prefix", true)
        .bool("tokenizer.ggml.remove_extra_whitespaces", merges_spaces)
        .bytes_array("tokenizer.ggml.precompiled_charsmap", &charsmap(map))
}

/// RWKV: all bytes, words, runs.
pub fn rwkv() -> Keys {
    let mut tokens = Tokens::default();
    tokens.push("<s>", CONTROL);
    tokens.extend((0..=255).map(|byte| escaped(&[byte])));
    specials().into_iter().for_each(|(text, kind)| tokens.push(text, kind));
    tokens.extend(words().flat_map(|word| [format!(" {word}"), word]).map(|word| escaped(word.as_bytes())));
    tokens.extend(runs().map(|run| escaped(run.as_bytes())));
    tokens.extend([&[0xe6, 0xbc][..], &[0xff, 0xff], b"\r\n", b"\\n", b"'s"].map(escaped));
    tokens
        .keys("rwkv", "rwkv6")
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 0)
        .u32("tokenizer.ggml.unknown_token_id", 0)
}

/// PLaMo-2: byte tokens, words, runs.
pub fn plamo2() -> Keys {
    let mut tokens = Tokens::default();
    tokens.push("<|plamo:unk|>", UNKNOWN);
    ["bos", "eos", "pad"].iter().for_each(|role| tokens.push(format!("<|plamo:{role}|>"), CONTROL));
    (0..=255).for_each(|byte| tokens.push(format!("<0x{byte:02X}>"), BYTE));
    specials().into_iter().for_each(|(text, kind)| tokens.push(text, kind));
    tokens.extend(letters().chain(words().flat_map(|word| [format!(" {word}"), word])).chain(runs()));
    tokens.keys("plamo2", "plamo2").floats("tokenizer.ggml.scores", &tokens.scores())
}

/// All of them, with their names.
pub fn all() -> [(&'static str, Keys); 4] {
    [("WordPiece", wpm()), ("Unigram", ugm(true)), ("RWKV", rwkv()), ("PLaMo-2", plamo2())]
}

/// Bytes as RWKV's vocabularies have them.
pub fn escaped(bytes: &[u8]) -> String {
    let one = |&byte: &u8| match byte {
        b'\t' => r"\t".into(),
        b'\n' => r"\n".into(),
        b'\r' => r"\r".into(),
        b'\\' | b'\'' => format!(r"\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!(r"\x{byte:02x}"),
    };
    bytes.iter().map(one).collect()
}

/// A map of characters as files have it: a double array over the texts' bytes, then what they become.
pub fn charsmap<'a>(map: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    #[derive(Default)]
    struct Node {
        children: BTreeMap<u8, Node>,
        offset: Option<u32>,
    }
    /// The node's children are put where all of their places are free, and with a base of their own.
    fn place(node: &Node, at: u32, nodes: &mut BTreeMap<u32, u32>, bases: &mut BTreeSet<u32>) {
        let labels = || node.children.keys().copied().chain(node.offset.map(|_| 0));
        let is_free = |base: &u32| labels().all(|label| !nodes.contains_key(&(base ^ u32::from(label))));
        let base = (1u32..).filter(|base| base ^ at < 1 << 21 && !bases.contains(base)).find(is_free).unwrap();
        bases.insert(base);
        *nodes.entry(at).or_default() |= (base ^ at) << 10 | u32::from(node.offset.is_some()) << 8;
        nodes.extend(node.offset.map(|offset| (base, offset | 1 << 31)));
        nodes.extend(node.children.keys().map(|&byte| (base ^ u32::from(byte), u32::from(byte))));
        node.children.iter().for_each(|(&byte, child)| place(child, base ^ u32::from(byte), nodes, bases));
    }
    let (mut root, mut texts) = (Node::default(), Vec::new());
    for (from, to) in map {
        let node = from.bytes().fold(&mut root, |node, byte| node.children.entry(byte).or_default());
        node.offset = Some(texts.len() as u32);
        texts.extend(to.bytes().chain([0]));
    }
    let mut nodes = BTreeMap::from([(0, 0)]);
    place(&root, 0, &mut nodes, &mut BTreeSet::new());
    let count = nodes.keys().max().unwrap() + 256;
    let array = (0..count).flat_map(|at| nodes.get(&at).copied().unwrap_or(0).to_le_bytes());
    (4 * count).to_le_bytes().into_iter().chain(array).chain(texts).collect()
}
