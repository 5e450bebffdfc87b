//! What random weights write under JSON schemas, judged by a validator of others.

use crate::testing;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::schemas;
use elizainference::Token;
use elizainference::session::{EngineOptions, Event, FinishReason, KvType, OpenOptions, Session, Sink};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;

const COMPLETIONS: usize = 10_000;
const LONGEST: i32 = 900;

fn open(kind: Kind) -> Session {
    let path = testing::fixture(kind, Weights::F32);
    let engine =
        EngineOptions { context: 1024, kv_type: KvType::F32, slots: 1, threads: 2, ..EngineOptions::default() };
    Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap()
}

/// The tokens whose text ends a string, a list or an object: random weights favour none, and would seldom come to an
/// end.
fn closing(session: &Session) -> Vec<Token> {
    let vocab = session.vocab();
    let closes = |&token: &Token| {
        let mut text = Vec::new();
        vocab.piece(token, true, &mut text);
        text.iter().any(|byte| b"\"]}".contains(byte))
    };
    (0..vocab.n_tokens() as Token).filter(closes).collect()
}

#[test]
#[ignore = "10,000 completions, minutes: make deep"]
fn completions_of_random_weights_are_valid_and_unfinished_only_by_length() {
    let cases = schemas::all();
    let sessions = [open(Kind::Llama), open(Kind::Qwen3)];
    let mut out = Vec::new();
    let (mut finished, mut tokens) = (0, 0);
    for (index, case) in cases.iter().enumerate() {
        let session = &sessions[index % 2];
        let closing = closing(session);
        session.set_grammar(&case.source()).unwrap();
        for nth in 0..COMPLETIONS / cases.len() {
            let mut settings = session.settings();
            settings.params.seed = Some((index * 1000 + nth) as u64);
            settings.params.temperature = [0.5, 1.0, 2.0][nth % 3];
            // From none at all to one that nearly always acts.
            let bias = [0.0, 2.0, 4.0, 6.0][nth % 4];
            settings.params.logit_bias = closing.iter().map(|&token| (token, bias)).collect();
            session.configure(settings).unwrap();
            session.prefill(&[1, 40, 300, (nth % 200) as Token], -1).unwrap();
            let (sender, receiver) = channel();
            let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
                let _ = sender.send((event.token, event.text.to_owned()));
            }));
            session.generate(LONGEST, None, None, sink).unwrap();
            let (mut text, mut bytes) = (String::new(), Vec::new());
            for (token, piece) in receiver.iter() {
                text += &piece;
                if token >= 0 {
                    session.vocab().piece(token, true, &mut bytes);
                }
            }
            if session.status().finish_reason == FinishReason::Stop {
                assert_eq!(
                    bytes.escape_ascii().to_string(),
                    text.as_bytes().escape_ascii().to_string(),
                    "{}",
                    case.name
                );
            }
            let reason = session.status().finish_reason;
            tokens += session.usage().completion_tokens;
            match reason {
                FinishReason::Stop => finished += 1,
                FinishReason::Length => continue,
                other => panic!("{}, {nth}: {other:?} after {text:?}", case.name),
            }
            writeln!(out, "{}", json!({ "name": case.name, "text": text })).unwrap();
        }
    }
    eprintln!("{finished} of {COMPLETIONS} completions finished, the others by length; {tokens} tokens");
    assert!(finished > COMPLETIONS / 2, "{finished}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("completions.jsonl");
    std::fs::write(&path, out).unwrap();
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/validate.py");
    let run = Command::new("python3").arg(tool).arg(&path).status().unwrap();
    assert!(run.success(), "the validator refused some of {}", path.display());
}
