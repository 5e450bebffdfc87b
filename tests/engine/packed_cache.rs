//! Weights packed in one process and mapped in others: the logits are those of a process without a cache, bit by bit.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{NEVER, tokens};
use crate::testing::{fixture, process};
use elizainference::engine::{self, Engine, EngineOptions};
use std::path::Path;

const TEST: &str = "packed_cache::mapped_weights_give_the_same_logits";
/// The file that a child writes its logits to.
const OUT: &str = "ELIZA_TEST_LOGITS";
/// How many processes load at once.
const AT_ONCE: usize = 3;

/// The bits of the logits of a prompt and of some steps after it.
fn logits() -> Vec<u8> {
    let path = fixture(Kind::Qwen3, Weights::Q4_K);
    let options = EngineOptions { context: 64, threads: 2, ..EngineOptions::default() };
    let mut engine = Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap();
    let slot = engine.take_slot(-1).unwrap();
    let mut bits = Vec::new();
    let all = tokens(24, "packed cache");
    engine.prefill(slot, &all[..20], &NEVER).unwrap();
    bits.extend(engine.head(slot).unwrap().iter().flat_map(|x| x.to_le_bytes()));
    for &token in &all[20..] {
        bits.extend(engine.decode(slot, token, &NEVER).unwrap().iter().flat_map(|x| x.to_le_bytes()));
    }
    bits
}

#[test]
fn mapped_weights_give_the_same_logits() {
    if process::is_child() {
        return std::fs::write(std::env::var_os(OUT).unwrap(), logits()).unwrap();
    }
    let expected = logits();
    let folder = tempfile::tempdir().unwrap();
    let (cache, results) = (folder.path().join("cache"), folder.path());
    let child = |name: &str| {
        let mut command = process::of(TEST);
        command.env("ELIZA_CACHE_DIR", &cache).env(OUT, results.join(name));
        command
    };
    let same = |name: &str| assert_eq!(std::fs::read(results.join(name)).unwrap(), expected, "{name}");
    process::run(&mut child("without the folder"));
    same("without the folder");
    assert!(!cache.exists(), "a folder that is missing stays so");
    std::fs::create_dir(&cache).unwrap();
    std::thread::scope(|scope| {
        for i in 0..AT_ONCE {
            let child = &child;
            scope.spawn(move || process::run(&mut child(&format!("first {i}"))));
        }
    });
    (0..AT_ONCE).for_each(|i| same(&format!("first {i}")));
    let [kept] = &files(&cache)[..] else { panic!("{:?}", files(&cache)) };
    // What is used is the file: with other weights there the logits are others.
    process::run(&mut child("second"));
    same("second");
    let mut changed = std::fs::read(kept).unwrap();
    changed[4096..].fill(0);
    std::fs::write(kept, changed).unwrap();
    process::run(&mut child("changed"));
    assert_ne!(std::fs::read(results.join("changed")).unwrap(), expected);
    assert_eq!(files(&cache), std::slice::from_ref(kept));
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}
