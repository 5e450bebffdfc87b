//! Models of every architecture, which `tools/decoders.py` makes. `ELIZA_DECODERS` names their folder; without it tests
//! say that they were skipped.

use super::rng::Stream;
use elizainference::Token;
use std::path::{Path, PathBuf};

/// The models whose names end so.
pub fn models(ending: &str) -> Vec<PathBuf> {
    let Some(folder) = std::env::var_os("ELIZA_DECODERS") else {
        eprintln!("skipped: `make deep` makes a model of every architecture, or set ELIZA_DECODERS to their folder");
        return Vec::new();
    };
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.to_string_lossy().ends_with(ending)).collect();
    files.sort();
    assert!(!files.is_empty(), "no *{ending} in the folder that ELIZA_DECODERS names");
    files
}

/// Tokens of a prompt: ordinary ones of the smallest vocabulary.
pub fn prompt(n: usize, path: &Path) -> Vec<Token> {
    let stream = Stream::new(3, &path.file_name().unwrap().to_string_lossy());
    (0..n as u64).map(|i| 300 + stream.below(i, 600) as Token).collect()
}
