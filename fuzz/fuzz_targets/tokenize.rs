//! Any bytes as text for the fixture vocabularies: tokens in range, and text without special tokens survives the way
//! there and back.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/common/fixtures.rs"]
mod fixtures;
#[path = "../../tests/common/rng.rs"]
mod rng;
#[path = "../../tests/common/vocabulary.rs"]
mod vocabulary;

use elizainference::gguf::File;
use elizainference::vocab::Vocab;
use fixtures::{Kind, Weights};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static VOCABULARIES: LazyLock<Vec<Vocab>> = LazyLock::new(|| {
    let load =
        |kind| Vocab::from_gguf(&File::from_bytes(fixtures::bytes(kind, Weights::Q8_0, false)).unwrap()).unwrap();
    [Kind::Llama, Kind::Qwen3, Kind::Gemma3].map(load).into()
});

fuzz_target!(|data: &[u8]| {
    for vocab in VOCABULARIES.iter() {
        for parse_special in [false, true] {
            let ids = vocab.tokenize(data, false, parse_special).unwrap();
            assert!(ids.iter().all(|&id| (0..vocab.n_tokens() as i32).contains(&id)));
            let text = vocab.detokenize(&ids, false, true).unwrap();
            // The llama vocabulary puts a blank in front, and SPM writes U+2581 for a blank.
            let plain = std::str::from_utf8(data).is_ok_and(|text| !text.contains('\u{2581}'));
            if plain && !parse_special && vocab.token_text(0) != Some("<unk>") {
                assert_eq!(text, data);
            }
        }
    }
});
