//! Any saved slot, its checksum made right: refused, or a stream that goes on.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/testing/fixtures.rs"]
mod fixtures;
mod input;
#[path = "../../tests/testing/rng.rs"]
mod rng;
#[path = "../../tests/testing/vocabulary.rs"]
mod vocabulary;

use elizainference::Error;
use elizainference::session::{EngineOptions, Mode, OpenOptions, Session, Sink};
use fixtures::{Kind, Weights};
use input::Input;
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::sync::LazyLock;

const TRIE: &str = r#"{"descriptors":[{"path":"p","leaves":[{"name":"a","tokens":[300]},
    {"name":"b","tokens":[301,302]},{"name":"c","tokens":[301,303,304]}]}]}"#;
/// Bytes in front of the tokens, and behind the cells.
const HEADER: usize = 64;
const CHECKSUM: usize = 32;

struct Host {
    session: Session,
    /// What was saved without a constraint, and inside one.
    plain: Vec<u8>,
    inside: Vec<u8>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

static HOST: LazyLock<Host> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let model = fixtures::write(folder.path(), Kind::LlamaShallow, Weights::Q8_0);
    let engine = EngineOptions { context: 64, threads: 1, slots: 2, ..EngineOptions::default() };
    let session = Session::open(OpenOptions { path: model, engine, ..OpenOptions::default() }).unwrap();
    let path = folder.path().join("slot");
    let save = |tokens: i32| {
        session.prefill(&[5, 6, 7], -1).unwrap();
        run(&session, tokens);
        session.save_slot(-1, &path).unwrap();
        std::fs::read(&path).unwrap()
    };
    let plain = save(2);
    session.set_trie(TRIE.as_bytes(), Mode::Sampled).unwrap();
    let inside = save(1);
    Host { session, plain, inside, path, _folder: folder }
});

/// Takes so many tokens.
fn run(session: &Session, tokens: i32) {
    session.generate(tokens, None, None, Sink::Queue).unwrap();
    loop {
        match session.next(None, &mut [0; 8], &mut [0; 256]) {
            Ok(step) if step.done => return,
            Ok(_) => {}
            Err(Error::Internal(what)) => panic!("{what}"),
            Err(_) => return,
        }
    }
}

/// The note with some of its fields changed, or other bytes altogether.
fn note(old: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let Ok(mut note) = serde_json::from_slice::<serde_json::Value>(old) else { return old.to_vec() };
    let list = |input: &mut Input<'_>| -> serde_json::Value {
        let token = |input: &mut Input<'_>| if input.flag() { 300 + input.below(5) as u32 } else { input.number() };
        (0..input.below(4)).map(|_| token(input)).collect()
    };
    for _ in 0..input.below(3) {
        let field = input.pick(&["pending", "chosen", "ended", "at", "completed", "counted", "mode", "descriptor"]);
        let value = match input.below(4) {
            0 => serde_json::Value::Null,
            1 => input.number().into(),
            2 => input.flag().into(),
            _ => list(input),
        };
        match field {
            "pending" => note["pending"] = value,
            _ if note["constraint"].is_null() => {}
            "chosen" | "ended" => note["constraint"][field] = value,
            _ => note["constraint"]["state"][field] = value,
        }
    }
    match input.below(8) {
        0 => input.bytes(200).to_vec(),
        _ => note.to_string().into_bytes(),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let host = &*HOST;
    let whole = if input.flag() { &host.inside } else { &host.plain };
    let number = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().unwrap()) as usize;
    let at = HEADER + 4 * (number(48) + number(56));
    let (front, rest) = whole[..whole.len() - CHECKSUM].split_at(at);
    let (old, cells) = rest.split_at(number(60));
    let new = note(old, &mut input);
    let mut file = [front, &new, cells].concat();
    file[60..64].copy_from_slice(&(new.len() as u32).to_le_bytes());
    for _ in 0..input.below(4) {
        match input.below(4) {
            0 => {
                let place = input.pick(&[0, 8, 12, 16, 48, 52, 56, 60, 64, 68]);
                file[place..place + 4].copy_from_slice(&input.number().to_le_bytes());
            }
            1 => file.truncate(input.below(file.len() + 1).max(72)),
            2 => file.extend(input.bytes(64)),
            _ => {
                let place = input.below(file.len());
                file[place] = input.byte();
            }
        }
    }
    let checksum = if input.below(16) == 0 { [0; CHECKSUM] } else { Sha256::digest(&file).into() };
    file.extend(checksum);
    std::fs::write(&host.path, &file).unwrap();
    match input.below(4) {
        0 => host.session.clear_trie().unwrap(),
        n => host.session.set_trie(TRIE.as_bytes(), if n == 1 { Mode::Greedy } else { Mode::Sampled }).unwrap(),
    }
    let slot = input.below(4) as i32 - 1;
    match host.session.restore_slot(slot, &host.path) {
        Ok(_) => run(&host.session, input.below(4) as i32),
        Err(Error::Internal(what)) => panic!("{what}"),
        Err(_) => {}
    }
});
