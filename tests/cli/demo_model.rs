//! The demo model does what `models/README.md` says of it.

use crate::testing;
use elizainference::gguf::File;
use elizainference::session::{EngineOptions, Mode, OpenOptions, Session, Settings, Sink, SpanEnd};
use elizainference::trie::{self, Surroundings};
use std::collections::HashSet;

/// A request that the model was not trained on, with the action that answers it.
#[derive(serde::Deserialize)]
struct HeldOut {
    request: String,
    action: String,
}

fn held_out() -> Vec<HeldOut> {
    let text = std::fs::read_to_string(testing::models().join("demo_held_out.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn actions() -> Vec<String> {
    let text = std::fs::read_to_string(testing::models().join("demo_actions.txt")).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn open() -> Session {
    let engine = EngineOptions { threads: 1, slots: 1, ..EngineOptions::default() };
    let session = Session::open(OpenOptions { path: testing::demo(), engine, ..OpenOptions::default() }).unwrap();
    session.set_chain(-1, Some("greedy".parse().unwrap())).unwrap();
    session
}

fn payload(session: &Session) -> String {
    let around = Surroundings { before: "Action:\n", after: "", parse_special: false };
    let built = trie::build(session.vocab(), "libelizainference demo", "action", &actions(), around).unwrap();
    assert_eq!(built.warnings, Vec::<String>::new());
    built.json
}

fn prefill(session: &Session, request: &str) {
    let prompt = format!("User: {request}\nAction:\n");
    session.prefill(&session.vocab().tokenize(prompt.as_bytes(), true, false).unwrap(), -1).unwrap();
}

/// What follows a request, at most 24 tokens of it.
fn answer(session: &Session, request: &str) -> String {
    prefill(session, request);
    session.generate(24, None, None, Sink::Queue).unwrap();
    let (mut tokens, mut text, mut all) = ([0; 32], [0; 512], Vec::new());
    loop {
        let step = session.next(None, &mut tokens, &mut text).unwrap();
        all.extend_from_slice(&text[..step.text_bytes]);
        if step.done {
            return String::from_utf8(all).unwrap();
        }
    }
}

/// The share of held-out requests whose answer is right.
fn accuracy(answer: impl Fn(&str) -> String) -> f64 {
    let requests = held_out();
    let right = requests.iter().filter(|held| answer(&held.request) == held.action).count();
    right as f64 / requests.len() as f64
}

#[test]
fn held_out_requests_are_answered() {
    let session = open();
    let free = accuracy(|request| answer(&session, request));
    session.set_trie(payload(&session).as_bytes(), Mode::Greedy).unwrap();
    session.configure(Settings { on_span_end: SpanEnd::Stop, ..session.settings() }).unwrap();
    let greedy = accuracy(|request| answer(&session, request));
    let scored = accuracy(|request| {
        prefill(&session, request);
        session.score_trie().unwrap().leaves[0].name.clone()
    });
    println!("of {}: unconstrained {free:.4}, token trie {greedy:.4}, scored {scored:.4}", held_out().len());
    assert!(greedy >= 0.95 && scored >= 0.95, "token trie {greedy:.4}, scored {scored:.4}");
}

/// The held-out requests ask for every action, and for nothing else.
#[test]
fn held_out_requests_ask_for_all_actions() {
    let asked: HashSet<String> = held_out().into_iter().map(|held| held.action).collect();
    assert_eq!(asked, actions().into_iter().collect());
}

#[test]
fn the_file_is_small_and_says_what_it_is() {
    let file = File::open(testing::demo()).unwrap();
    assert!(file.size() <= 3_000_000, "{} bytes", file.size());
    assert_eq!(file.require::<String>("general.architecture").unwrap(), "llama");
    assert_eq!(file.require::<String>("general.license").unwrap(), "MIT OR Apache-2.0");
    let weights: u64 = file.tensors().iter().map(|tensor| tensor.elements()).sum();
    assert!((1_000_000..=3_000_000).contains(&weights), "{weights} weights");
}

/// The requests of the demo are held-out ones, and it shows the same on every terminal and to machines.
mod program {
    use super::*;
    use serde_json::Value;
    use std::process::{Command, Stdio};

    fn demo(args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eliza-inference"));
        let output = command.args(args).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn the_demo_asks_what_was_held_out() {
        let report: Value = serde_json::from_str(&demo(&["--json"])).unwrap();
        let held: HashSet<(String, String)> = held_out().into_iter().map(|held| (held.request, held.action)).collect();
        let requests = report["requests"].as_array().unwrap();
        assert_eq!(requests.len(), 12);
        for request in requests {
            let text = |key: &str| request[key].as_str().unwrap().to_owned();
            assert!(held.contains(&(text("request"), text("action"))), "{request}");
            let answer = |way: &str| request["answers"][way].clone();
            let (mask, trie) = (answer("mask"), answer("token trie"));
            assert_eq!(mask["text"], trie["text"], "the same name, whichever way it is held to it");
            assert!(trie["forward_passes"].as_u64() <= mask["forward_passes"].as_u64(), "{request}");
            for answer in [mask, trie, answer("unconstrained")] {
                assert_eq!(answer["right"], Value::Bool(answer["text"] == request["action"]), "{request}");
            }
        }
        let leaves = report["scores"]["leaves"].as_array().unwrap();
        let sum: f64 = leaves.iter().map(|leaf| leaf["logprob"].as_f64().unwrap().exp()).sum();
        assert!(leaves.len() == actions().len() && sum > 0.0 && sum <= 1.0 + 1e-6, "{sum}");
    }

    #[test]
    fn the_demo_fits_a_terminal_without_colours() {
        let shown = demo(&["--no-color"]);
        assert!(!shown.contains('\u{1b}') && shown.contains("12 requests, 88 actions"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    }
}
