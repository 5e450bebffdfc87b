//! Vocabularies against the token lists that are kept beside them, and against slow obvious tokenizers.

use elizainference::gguf::File;
use elizainference::vocab::Vocab;
use std::path::{Path, PathBuf};

/// The folder of models that several projects share, if this machine has it.
fn shared() -> Option<PathBuf> {
    let folder = std::env::var_os("ELIZA_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let found = folder.join("models/vocab").is_dir();
    if !found {
        eprintln!("skipped: no vocabularies in {}", folder.display());
    }
    found.then_some(folder)
}

/// All vocabularies in the shared folder that this library does.
fn vocabularies(shared: &Path) -> Vec<(String, Vocab, PathBuf)> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(shared.join("models/vocab")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths.into_iter().filter(|p| p.extension().is_some_and(|e| e == "gguf")) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        match Vocab::from_gguf(&File::open(&path).unwrap()) {
            Ok(vocab) => found.push((name, vocab, path)),
            Err(elizainference::Error::Unsupported(what)) => eprintln!("skipped: {name}: {what}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    found
}

#[test]
fn listed_texts_have_their_listed_tokens() {
    let Some(shared) = shared() else { return };
    let vocabularies = vocabularies(&shared);
    assert!(vocabularies.len() >= 8, "only {} vocabularies", vocabularies.len());
    for (name, vocab, path) in vocabularies {
        let read = |extension: &str| std::fs::read_to_string(path.with_extension(extension)).unwrap();
        let texts = read("gguf.inp");
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let lists = read("gguf.out");
        let mut compared = 0;
        for (text, list) in texts.iter().zip(lists.lines()) {
            let expected: Vec<i32> = list.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(vocab.tokenize(text.as_bytes(), false, false), expected, "{name}: {text:?}");
            compared += 1;
        }
        assert!(compared > 40, "{name}: only {compared} texts");
    }
}
