//! Several models in the place of one: which one answers, and when another does.

use crate::fake::{Fake, Reply, Seen};
use crate::model::{self, Model, local};
use crate::same::payload;
use crate::{go_on, problem, say, testing};
use elizainference::session::{EngineOptions, KvType, Mode, OpenOptions, RemoteOptions, Session};
use elizainference::{Error, Token};
use serde_json::json;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn options(paths: &[&str], context: u32) -> OpenOptions {
    let engine = EngineOptions { context, kv_type: KvType::F32, slots: 2, threads: 1, ..EngineOptions::default() };
    let remote = RemoteOptions { timeout: Some(Duration::from_secs(5)), ..RemoteOptions::default() };
    let fallback = paths[1..].iter().map(PathBuf::from).collect();
    OpenOptions { path: paths[0].into(), fallback, engine, remote, ..OpenOptions::default() }
}

fn open(paths: &[&str], context: u32) -> Session {
    Session::open(options(paths, context)).unwrap()
}

fn here() -> &'static str {
    model::path().to_str().unwrap()
}

fn prompt(session: &Session, text: &str) -> Vec<Token> {
    session.tokenize(text.as_bytes(), true, true).unwrap()
}

/// A server of this kind whose completions are answered in another way while `broken`.
fn unsteady(
    kind: &'static str,
    broken: &Arc<AtomicBool>,
    answer: impl Fn(&Seen, &mut Reply<'_>) -> Result<()> + Send + Sync + 'static,
) -> Fake {
    let (model, broken) = (Model::new(kind), broken.clone());
    Fake::new(move |seen, reply| match seen.path == "/v1/completions" && broken.load(Ordering::Acquire) {
        true => answer(seen, reply),
        false => model.answer(seen, reply),
    })
}

#[test]
fn a_prompt_that_is_too_long_for_the_first_model_goes_to_the_next() {
    let model = Model::new("vllm");
    let fake = Fake::new(move |seen, reply| model.answer(seen, reply));
    let there = fake.of_kind("vllm");
    let session = open(&[here(), &there], 64);
    assert_eq!(fake.connections(), 0, "nothing is asked of a server that is not needed");
    let oracle = local();
    for (text, served) in [("wake me", here()), (&"wake me at seven ".repeat(30), &there), ("milk", here())] {
        let prompt = prompt(&session, text);
        let said = say(&session, &prompt, 12, 0.0).unwrap();
        assert_eq!(said, say(&oracle, &prompt, 12, 0.0).unwrap());
        assert_eq!(session.served_by(), Path::new(served));
        assert!(session.usage_json().contains(&format!("\"served_by\":{}", json!(served))));
    }
    assert!(matches!(session.prefill(&vec![5; 600], -1), Err(Error::OutOfMemory(_))), "too long for both");
}

#[test]
fn a_server_that_fails_before_its_first_token_is_replaced_and_asked_again_later() {
    let broken = Arc::new(AtomicBool::new(true));
    let fake = unsteady("vllm", &broken, |_, reply| reply.json(500, &json!({ "error": { "message": "no GPU left" } })));
    let there = fake.of_kind("vllm");
    let session = open(&[&there, here()], 0);
    let oracle = local();
    let asked = prompt(&session, "wake me at seven");
    let names = ["CREATE_ALARM", "DELETE_ALARM", "SHOW_ALARM"];
    let payload = payload(&oracle, &names);
    let expected = say(&oracle, &asked, 16, 0.0).unwrap();
    assert_eq!(say(&session, &asked, 16, 0.0).unwrap(), expected);
    assert_eq!(session.served_by(), Path::new(here()));
    assert_eq!(fake.seen_at("/v1/completions").len(), 1);
    // It is not asked again at once.
    broken.store(false, Ordering::Release);
    assert_eq!(say(&session, &asked, 16, 0.0).unwrap(), expected);
    assert_eq!((session.served_by(), fake.seen_at("/v1/completions").len()), (here().into(), 1));
    // A trie is held to by whoever answers.
    for session in [&session, &oracle] {
        session.set_trie(&payload, Mode::Greedy).unwrap();
    }
    assert_eq!(say(&session, &asked, 16, 0.0).unwrap(), say(&oracle, &asked, 16, 0.0).unwrap());
    let steady = open(&[&there, here()], 0);
    assert_eq!(say(&steady, &asked, 16, 0.0).unwrap(), expected);
    assert_eq!(steady.served_by(), Path::new(&there));
}

#[test]
fn after_a_token_nothing_is_replaced() {
    let broken = Arc::new(AtomicBool::new(true));
    let fake = unsteady("vllm", &broken, |_, reply| {
        reply.begin_events()?;
        reply.event(&json!({ "choices": [{ "text": "x", "token_ids": [80], "finish_reason": null }] }))?;
        Err(std::io::ErrorKind::ConnectionReset.into())
    });
    let there = fake.of_kind("vllm");
    let session = open(&[&there, here()], 0);
    let error = problem(say(&session, &prompt(&session, "wake me"), 16, 0.0));
    assert!(error.contains("connection"), "{error}");
    assert_eq!(session.served_by(), Path::new(&there));
}

#[test]
fn what_one_kind_cannot_do_another_does() {
    let model = Model::new("openai");
    let fake = Fake::new(move |seen, reply| model.answer(seen, reply));
    let there = fake.of_kind("openai");
    let session = open(&[&there, here()], 0);
    let oracle = local();
    let asked = prompt(&session, "add milk");
    let payload = payload(&oracle, &["CREATE_ALARM", "ADD_ITEM", "SHOW_ALARM"]);
    for mode in [Mode::Greedy, Mode::ScoreLeaves] {
        for session in [&session, &oracle] {
            session.set_trie(&payload, mode).unwrap();
        }
        assert_eq!(say(&session, &asked, 16, 0.0).unwrap(), say(&oracle, &asked, 16, 0.0).unwrap(), "{mode:?}");
        assert_eq!(session.served_by(), Path::new(here()));
    }
    session.prefill(&asked, -1).unwrap();
    assert_eq!(session.served_by(), Path::new(&there), "the next prompt is the first model's again");
    oracle.prefill(&asked, -1).unwrap();
    assert_eq!(session.score_trie().unwrap(), oracle.score_trie().unwrap());
    assert!(session.clear_trie().and_then(|()| go_on(&session, 4, 0.0)).is_ok());
}

#[test]
fn models_that_cannot_be_opened_are_passed_over() {
    let missing = testing::fixture_folder().join("missing.gguf");
    let missing = missing.to_str().unwrap();
    let session = open(&["vllm:http://127.0.0.1:9", missing, here()], 0);
    let asked = prompt(&session, "wake me");
    assert_eq!(say(&session, &asked, 8, 0.0).unwrap(), say(&local(), &asked, 8, 0.0).unwrap());
    assert_eq!(session.info().path, Path::new(here()));
    let none = Session::open(options(&[missing, "nowhere.gguf"], 0));
    assert!(matches!(none, Err(Error::Io { path, .. }) if path == Path::new(missing)), "the first one's error");
    let other = testing::fixture(testing::fixtures::Kind::Llama, testing::fixtures::Weights::F32);
    let session = open(&[here(), other.to_str().unwrap()], 32);
    let refused = session.prefill(&[5; 40], -1);
    assert!(matches!(refused, Err(Error::InvalidArgument(problem)) if problem.contains("another vocabulary")));
    let drafted = OpenOptions { draft: Some(here().into()), ..options(&[here(), missing], 0) };
    assert!(matches!(Session::open(drafted), Err(Error::Unsupported(_))));
}
