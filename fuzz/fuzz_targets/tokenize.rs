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

/// Each with whether any text survives in it.
static VOCABULARIES: LazyLock<Vec<(Vocab, bool)>> = LazyLock::new(|| {
    let fixture = |kind| File::from_bytes(fixtures::bytes(kind, Weights::Q8_0, false)).unwrap();
    let fixtures = [(Kind::Llama, false), (Kind::Qwen3, true), (Kind::Gemma3, false)];
    let mut files: Vec<(File, bool)> = fixtures.map(|(kind, exact)| (fixture(kind), exact)).into();
    files.push((long_texts::spm().file(), false));
    // Two of them write text as it is, and this vocabulary has no tokens for all of it.
    let exact = |pre: &&str| !["gemma4", "sarvam-moe"].contains(pre);
    files.extend(long_texts::PRE_TOKENIZERS.iter().map(|pre| (long_texts::bpe(pre).file(), exact(pre))));
    let whole = |name: &str| ["RWKV", "PLaMo-2"].contains(&name);
    files.extend(families::all().map(|(name, keys)| (keys.file(), whole(name))));
    files.into_iter().map(|(file, exact)| (Vocab::from_gguf(&file).unwrap(), exact)).collect()
});

fuzz_target!(|data: &[u8]| {
    let Some((&which, text)) = data.split_first() else { return };
    let (vocab, exact) = &VOCABULARIES[usize::from(which) % VOCABULARIES.len()];
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
        if *exact && std::str::from_utf8(text).is_ok() {
            assert!(back == text, "{:?}", String::from_utf8_lossy(&back));
        }
    }
});
