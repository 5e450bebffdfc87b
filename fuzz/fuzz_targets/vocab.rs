//! Metadata of any shape as a vocabulary: refused, or one that cuts and spells any text within its bounds.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/testing/families.rs"]
mod families;
#[path = "../../tests/testing/gguf_keys.rs"]
mod gguf_keys;
mod input;
#[path = "../../tests/testing/long_texts.rs"]
mod long_texts;

use elizainference::vocab::Vocab;
use gguf_keys::Keys;
use input::Input;
use libfuzzer_sys::fuzz_target;
use std::cell::Cell;

const KINDS: &[&str] =
    &["gpt2", "gpt2", "gpt2", "llama", "llama", "gemma4", "none", "bert", "t5", "t5", "rwkv", "plamo2", ""];
const PIECES: &[&str] = &[
    "a",
    "b",
    "c",
    "ab",
    "bc",
    "abc",
    "aa",
    "aaaa",
    " ",
    "▁",
    "▁▁",
    "▁a",
    "Ġ",
    "ĠĠ",
    "Ċ",
    "漢",
    "漢字",
    "é",
    "<0x61>",
    "<0xFF>",
    "<0x",
    "<unk>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "unused",
    "<|endoftext|>",
    "<|fim_pad|>",
    "<mask>",
    "[MASK]",
    "<|tool_response>",
    "<|channel|>",
    "\n",
    "1",
    "!",
    "Ã",
    "©",
    "",
];
const NAMES: &[&str] = &["llama", "phi-3", "modern-bert", "nomic-bert-moe", "jina-bert-v3", "x"];
const ROLES: &[&str] =
    &["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "fim_pre", "prefix", "fim_suf", "fim_pad"];
const FLAGS: &[&str] = &["add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces"];

/// A text of a few pieces, at times many of one.
fn piece(input: &mut Input<'_>) -> String {
    let text = input.text(PIECES);
    match input.byte() {
        byte @ 0..16 => text.repeat(usize::from(byte) * 4),
        255 => text.repeat(30_000),
        byte if byte & 3 == 0 => text + &input.text(PIECES),
        _ => text,
    }
}

fn keys(input: &mut Input<'_>) -> Keys {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let kind = input.text(KINDS);
    let mut keys = Keys::default()
        .string(&key("model"), &kind)
        .string(&key("pre"), &input.text(long_texts::PRE_TOKENIZERS))
        .string("general.architecture", &input.text(NAMES))
        .string("general.name", &input.text(NAMES));
    let mut tokens: Vec<String> = (0..input.below(80)).map(|_| piece(input)).collect();
    if input.below(8) > 0 {
        let mut seen = std::collections::HashSet::new();
        tokens.retain(|token| seen.insert(token.clone()));
    }
    if kind == "plamo2" {
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>")).filter(|text| !tokens.contains(text));
        tokens.extend(bytes.collect::<Vec<_>>());
    }
    if kind == "t5" && input.flag() {
        let pairs = (0..input.below(8)).map(|_| (input.text(PIECES), input.text(PIECES))).collect::<Vec<_>>();
        let mut map = families::charsmap(pairs.iter().map(|(from, to)| (from.as_str(), to.as_str())));
        for _ in 0..input.below(4) {
            let at = input.below(map.len());
            map[at] = input.byte();
        }
        keys = keys.bytes_array(&key("precompiled_charsmap"), &map);
    }
    let count = |input: &mut Input<'_>| if input.below(16) == 0 { input.below(100) } else { tokens.len() };
    if input.below(4) > 0 {
        let types: Vec<i32> = (0..count(input)).map(|_| i32::from(input.byte() % 8)).collect();
        keys = keys.integers(&key("token_type"), &types);
    }
    if input.below(4) > 0 {
        let scores: Vec<f32> = (0..count(input)).map(|_| input.float()).collect();
        keys = keys.floats(&key("scores"), &scores);
    }
    if input.below(8) > 0 {
        let side = |input: &mut Input<'_>| match tokens.is_empty() || input.below(8) == 0 {
            true => piece(input),
            false => tokens[input.below(tokens.len())].clone(),
        };
        let merges: Vec<String> = (0..input.below(60)).map(|_| side(input) + " " + &side(input)).collect();
        keys = keys.strings(&key("merges"), &merges);
    }
    for _ in 0..input.below(6) {
        let name = format!("{}_token_id", input.pick(ROLES));
        let value = input.number();
        keys = keys.u32(&key(&name), if value < 256 { value % (tokens.len() as u32 + 1) } else { value });
    }
    for _ in 0..input.below(3) {
        keys = keys.bool(&key(input.pick(FLAGS)), input.flag());
    }
    keys.strings(&key("tokens"), &tokens)
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let keys = keys(&mut input);
    let Ok(file) = elizainference::gguf::File::from_bytes(keys.bytes()) else { return };
    let Ok(vocab) = Vocab::from_gguf(&file) else { return };
    let n_tokens = vocab.n_tokens() as i32;
    let (mut piece, mut longest) = (Vec::new(), 0);
    for id in -1..n_tokens.min(200) + 1 {
        piece.clear();
        vocab.piece(id, true, &mut piece);
        longest = longest.max(piece.len());
        let text = vocab.token_text(id).unwrap_or_default();
        assert!(piece.len() <= 272 * text.len().min(256) + text.len(), "token {id}: {} of {}", piece.len(), text.len());
    }
    assert!(longest <= vocab.max_piece_bytes());
    let text = input.0;
    for parse_special in [false, true] {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            false
        };
        let ids = vocab.tokenize_unless(text, true, parse_special, &look).unwrap();
        assert!(looks.get() <= 2 + text.len() / 16, "{} looks at the cancel in {} bytes", looks.get(), text.len());
        assert!(ids.iter().all(|id| (0..n_tokens).contains(id)));
        let back = vocab.detokenize(&ids, false, true).unwrap();
        assert!(back.len() <= ids.len() * vocab.max_piece_bytes());
    }
});
