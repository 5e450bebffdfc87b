//! What an engine does beside prompts, with a model of every architecture: `tools/decoders.py` makes them and compares
//! their logits. `ELIZA_DECODERS` names their folder; without it these tests say that they were skipped.

use crate::leaf_scores::compare_file;
use crate::testing::judge::NEVER;
use crate::testing::rng::Stream;
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId};
use elizainference::session::{Event, Mode, OpenOptions, Session, Sink, SpanEnd};
use elizainference::{Error, Token};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

/// The models whose names end so, but for those of architectures that are not known.
fn models(ending: &str) -> Vec<PathBuf> {
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
fn prompt(n: usize, path: &Path) -> Vec<Token> {
    let stream = Stream::new(3, &path.file_name().unwrap().to_string_lossy());
    (0..n as u64).map(|i| 300 + stream.below(i, 600) as Token).collect()
}

fn open(path: &Path) -> Engine {
    let kv_type = KvType::F32;
    let options = EngineOptions { context: 512, slots: 2, threads: 2, kv_type, ..EngineOptions::default() };
    Engine::new(engine::open_model(path, &options, None).unwrap(), &options).unwrap()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn prompts_and_tokens_one_by_one_give_the_same_bits() {
    for path in models(".gguf") {
        let mut engine = open(&path);
        let text = prompt(100, &path);
        let mut rows = Vec::new();
        engine
            .logits_all(&text, &NEVER, &mut |_, row| {
                rows.push(bits(row));
                Ok(())
            })
            .unwrap();
        let slot = SlotId::default();
        engine.prefill(slot, &text[..70], &NEVER).unwrap();
        assert!(bits(engine.head(slot).unwrap()) == rows[69], "{path:?}: the last row of a prompt");
        for (i, &token) in text.iter().enumerate().skip(70) {
            assert!(bits(engine.decode(slot, token, &NEVER).unwrap()) == rows[i], "{path:?}: token {i}");
        }
    }
}

#[test]
fn saved_slots_go_on_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("slot");
    for path in models("-f32.gguf") {
        let text = prompt(60, &path);
        let mut engine = open(&path);
        let slot = SlotId::default();
        engine.prefill(slot, &text[..50], &NEVER).unwrap();
        engine.save(slot, &saved, &[], &NEVER).unwrap();
        let follow = |engine: &mut Engine| {
            text[50..].iter().map(|&token| bits(engine.decode(slot, token, &NEVER).unwrap())).collect::<Vec<_>>()
        };
        let expected = follow(&mut engine);
        let mut other = open(&path);
        let restored = other.open_saved(&saved, &NEVER).unwrap();
        assert!(other.restore(slot, restored, &NEVER).unwrap(), "{path:?}");
        assert!(follow(&mut other) == expected, "{path:?}");
    }
}

/// In a model of one layer keys and values depend on no other token.
#[test]
fn a_shift_of_keys_leaves_a_text_that_never_held_the_rest() {
    for path in models("-1l-f32.gguf") {
        let text = prompt(205, &path);
        let left = [&text[..3], &text[50..]].concat();
        let slot = SlotId::default();
        let follow = |engine: &mut Engine| {
            let rows = text[200..].iter().map(|&token| engine.decode(slot, token, &NEVER).unwrap().to_vec());
            rows.collect::<Vec<_>>().concat()
        };
        let mut engine = open(&path);
        engine.prefill(slot, &text[..200], &NEVER).unwrap();
        match engine.remove(slot, 3..50) {
            Ok(()) => {}
            // Learned positions are part of what the layers were given.
            Err(Error::Unsupported(why)) if why.contains("positions") => continue,
            Err(error) => panic!("{path:?}: {error}"),
        }
        let got = follow(&mut engine);
        let mut fresh = open(&path);
        fresh.prefill(slot, &left[..left.len() - 5], &NEVER).unwrap();
        let expected = follow(&mut fresh);
        let spread = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
        let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 2e-4 * spread, "{path:?}: {worst} of {spread}");
    }
}

#[test]
fn leaves_are_scored_as_each_alone() {
    for path in models("-f32.gguf") {
        compare_file(&path, KvType::F32, 0, 2);
    }
}

/// The tokens of a span against those of a plain run where the best legal token is taken.
#[test]
fn spans_are_those_of_a_plain_run_with_a_mask() {
    for path in models("-f32.gguf") {
        let stream = Stream::new(4, &path.file_name().unwrap().to_string_lossy());
        let token = |at: u64, n: u64| 300 + stream.below(at, n) as Token;
        let mut leaves: Vec<Vec<Token>> =
            (0..40).map(|leaf| vec![token(4 * leaf, 6), token(4 * leaf + 1, 3), 777, token(4 * leaf + 3, 9)]).collect();
        leaves.sort();
        leaves.dedup();
        let text = prompt(40, &path);
        let mut engine = open(&path);
        let slot = SlotId::default();
        engine.prefill(slot, &text, &NEVER).unwrap();
        let (mut plain, mut row) = (Vec::new(), engine.head(slot).unwrap().to_vec());
        while plain.len() < 4 {
            let legal = leaves.iter().filter(|leaf| leaf.starts_with(&plain)).map(|leaf| leaf[plain.len()]);
            let best = legal.reduce(|best, token| if row[token as usize] > row[best as usize] { token } else { best });
            plain.push(best.unwrap());
            row = engine.decode(slot, *plain.last().unwrap(), &NEVER).unwrap().to_vec();
        }
        let options = EngineOptions { context: 512, kv_type: KvType::F32, threads: 2, ..EngineOptions::default() };
        let session = Session::open(OpenOptions { path, engine: options, ..OpenOptions::default() }).unwrap();
        let mut settings = session.settings();
        settings.on_span_end = SpanEnd::Stop;
        session.configure(settings).unwrap();
        let listed: Vec<String> =
            leaves.iter().enumerate().map(|(at, leaf)| format!(r#"{{"name":"{at}","tokens":{leaf:?}}}"#)).collect();
        let payload = format!(r#"{{"descriptors":[{{"path":"p","leaves":[{}]}}]}}"#, listed.join(","));
        session.set_trie(payload.as_bytes(), Mode::Greedy).unwrap();
        session.prefill(&text, -1).unwrap();
        let (sender, receiver) = channel();
        let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
            if !event.done {
                let _ = sender.send(event.token);
            }
        }));
        session.generate(-1, Some(0.0), Some(1.0), sink).unwrap();
        assert_eq!(receiver.iter().collect::<Vec<Token>>(), plain);
    }
}
