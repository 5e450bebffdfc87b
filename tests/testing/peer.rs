//! The reference program of another implementation, where a machine has it: `ELIZA_PEER` names it.
//!
//! It prints one JSON object per run and writes logits as raw little-endian `f32` rows.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program's path, or a plain word that it is not there.
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("ELIZA_PEER").map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: ELIZA_PEER does not name a peer program");
    }
    path
}

/// The logits of every position of `tokens`, computed by the peer with an F32 cache and without fused attention.
pub fn logits(program: &Path, model: &Path, tokens: &[i32], n_vocab: usize) -> Vec<Vec<f64>> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("logits.bin");
    let list: Vec<String> = tokens.iter().map(i32::to_string).collect();
    let run = Command::new(program)
        .args(["logits", "--kv-f32", "--no-flash", "--threads", "1", "--tokens", &list.join(","), "--model"])
        .arg(model)
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}: {}", model.display(), String::from_utf8_lossy(&run.stderr));
    let bytes = std::fs::read(&out).unwrap();
    assert_eq!(bytes.len(), 4 * n_vocab * tokens.len(), "size of the peer's logits");
    let values: Vec<f64> =
        bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect();
    values.chunks_exact(n_vocab).map(<[f64]>::to_vec).collect()
}
