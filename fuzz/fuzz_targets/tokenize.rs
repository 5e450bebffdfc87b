//! Any bytes as text for the fixture vocabularies and for every pre-tokenizer: tokens in range, work by the text's
//! length, and text survives the way there and back.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/testing/families.rs"]
mod families;
#[path = "../../tests/testing/fixtures.rs"]
mod fixtures;
#[path = "../../tests/testing/gguf_keys.rs"]
mod gguf_keys;
#[path = "../../tests/testing/long_texts.rs"]
mod long_texts;
#[path = "../../tests/testing/rng.rs"]
mod rng;
#[path = "../../tests/testing/vocabulary.rs"]
mod vocabulary;

use elizainference::gguf::File;
use elizainference::vocab::Vocab;
use fixtures::{Kind, Weights};
use libfuzzer_sys::fuzz_target;
use std::cell::Cell;
use std::sync::LazyLock;

/// What a text may lose: nothing but this, or anything.
type Loses = Option<&'static str>;

static VOCABULARIES: LazyLock<Vec<(Vocab, Loses)>> = LazyLock::new(|| {
    let fixture = |kind| File::from_bytes(fixtures::bytes(kind, Weights::Q8_0, false)).unwrap();
    let fixtures = [(Kind::Llama, None), (Kind::Qwen3, Some("")), (Kind::Gemma3, None)];
    let mut files: Vec<(File, Loses)> = fixtures.map(|(kind, loses)| (fixture(kind), loses)).into();
    files.push((long_texts::spm().file(), None));
    // Two of them write text as it is, and this vocabulary has no tokens for all of it.
    let exact = |pre: &&str| (!["gemma4", "sarvam-moe"].contains(pre)).then_some("");
    files.extend(long_texts::PRE_TOKENIZERS.iter().map(|pre| (long_texts::bpe(pre).file(), exact(pre))));
    // A mark at the beginning is no part of the text.
    let loses = |name: &str| match name {
        "RWKV" => Some(""),
        "PLaMo-2" => Some("\u{feff}"),
        _ => None,
    };
    files.extend(families::all().map(|(name, keys)| (keys.file(), loses(name))));
    files.into_iter().map(|(file, loses)| (Vocab::from_gguf(&file).unwrap(), loses)).collect()
});

fuzz_target!(|data: &[u8]| {
    let Some((&which, text)) = data.split_first() else { return };
    let (vocab, loses) = &VOCABULARIES[usize::from(which) % VOCABULARIES.len()];
    for parse_special in [false, true] {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            false
        };
        let ids = vocab.tokenize_unless(text, false, parse_special, &look).unwrap();
        assert!(looks.get() <= 2 + text.len() / 128, "{} looks at the cancel in {} bytes", looks.get(), text.len());
        assert!(ids.iter().all(|&id| (0..vocab.n_tokens() as i32).contains(&id)));
        let mut back = Vec::new();
        ids.iter().for_each(|&id| vocab.piece(id, true, &mut back));
        if let Some(loses) = loses
            && std::str::from_utf8(text).is_ok()
        {
            let [text, back] = [text, &back].map(|bytes| String::from_utf8_lossy(bytes).replace(loses, ""));
            assert_eq!(back, text);
        }
    }
});
