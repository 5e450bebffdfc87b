//! A real server, which `tools/remote.py` starts: the same model there and here. `ELIZA_REAL_SERVER` is its address,
//! `ELIZA_REAL_MODEL` the file, `ELIZA_REMOTE_KEY` the key. Figures are printed.

use crate::same::{names, payload, prompts, stop_at_end};
use crate::{Said, go_on, say};
use elizainference::session::{
    EngineOptions, Event, FinishReason, Key, KvType, Mode, OpenOptions, RemoteOptions, Session, Sink, SpanEnd,
};
use elizainference::{Error, Token};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

struct Real {
    address: String,
    model: String,
}

fn real() -> Real {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    Real { address: variable("ELIZA_REAL_SERVER"), model: variable("ELIZA_REAL_MODEL") }
}

impl Real {
    fn here(&self) -> Session {
        let engine = EngineOptions { context: 512, kv_type: KvType::F32, slots: 2, threads: 1, ..Default::default() };
        Session::open(OpenOptions { path: self.model.clone().into(), engine, ..OpenOptions::default() }).unwrap()
    }

    fn options(&self) -> OpenOptions {
        let remote = RemoteOptions { vocab: Some(self.model.clone().into()), ..RemoteOptions::default() };
        OpenOptions { path: self.address.clone().into(), remote, ..OpenOptions::default() }
    }

    fn there(&self) -> Session {
        Session::open(self.options()).unwrap()
    }

    fn is(&self, kind: &str) -> bool {
        self.address.starts_with(kind)
    }
}

fn timed<T>(what: &str, body: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let value = body();
    println!("{what}: {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    value
}

/// The first place at which two greedy texts differ is one where the model here has no clear favourite.
fn agree(here: &Session, prompt: &[Token], expected: &Said, said: &Said) -> bool {
    let Some(at) = expected.tokens.iter().zip(&said.tokens).position(|(a, b)| a != b) else { return expected == said };
    here.prefill(&[prompt, &said.tokens[..at]].concat(), -1).unwrap();
    let mut row = vec![0.0; here.info().n_vocab];
    here.logits(1, &mut row).unwrap();
    let apart = row[expected.tokens[at] as usize] - row[said.tokens[at] as usize];
    println!("token {at} is another: {apart} apart");
    apart.abs() < 1e-3
}

#[test]
#[ignore = "needs a server: tools/remote.py"]
fn greedy_texts_are_those_of_here() {
    let real = real();
    let (here, there) = (real.here(), timed("open", || real.there()));
    println!("{:?}", there.info().server);
    for prompt in prompts(&here) {
        let expected = say(&here, &prompt, 32, 0.0).unwrap();
        let said = say(&there, &prompt, 32, 0.0).unwrap();
        assert!(agree(&here, &prompt, &expected, &said), "{expected:?}\n{said:?}");
    }
    let said = timed("32 tokens", || say(&there, &prompts(&here)[1], 32, 0.0)).unwrap();
    println!("{} tokens: {:?}, {:?}", said.tokens.len(), said.text, there.usage());
}

#[test]
#[ignore = "needs a server: tools/remote.py"]
fn two_hundred_names_are_chosen_and_scored_as_here() {
    let real = real();
    let (here, there) = (real.here(), real.there());
    let names = names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let payload = payload(&here, &names);
    for session in [&here, &there] {
        stop_at_end(session, SpanEnd::Stop);
        session.set_trie(&payload, Mode::Greedy).unwrap();
    }
    let prompt = &prompts(&here)[0];
    for (what, session) in [("here", &here), ("there", &there)] {
        for _ in 0..5 {
            session.prefill(prompt, -1).unwrap();
            let said = timed(&format!("choose 200 {what}"), || go_on(session, 40, 0.0)).unwrap();
            assert_eq!(said.reason, FinishReason::Span);
            assert!(names.contains(&said.text.trim()), "{said:?}");
            println!("{} requests, {}", session.usage().server_requests, said.text);
        }
    }
    for prompt in &prompts(&here)[..8] {
        let expected = say(&here, prompt, 40, 0.0).unwrap();
        assert!(agree(&here, prompt, &expected, &say(&there, prompt, 40, 0.0).unwrap()));
    }
    // The context here has room for the nodes of few names.
    for names in names.chunks(50) {
        for session in [&here, &there] {
            session.set_trie(&crate::same::payload(session, names), Mode::ScoreLeaves).unwrap();
            session.prefill(prompt, -1).unwrap();
        }
        let before = there.usage().server_requests;
        let (expected, scores) = (here.score_trie().unwrap(), timed("score 50 there", || there.score_trie()).unwrap());
        println!("{} requests", there.usage().server_requests - before);
        let apart = scores.leaves.iter().map(|one| {
            let same = expected.leaves.iter().find(|other| other.name == one.name).unwrap();
            (one.logprob - same.logprob).abs()
        });
        let apart = apart.fold(0.0, f64::max);
        println!("scores are {apart:.2e} apart at most");
        assert!(apart < 1e-3, "{apart}");
    }
    there.set_trie(&payload, Mode::ScoreLeaves).unwrap();
    for _ in 0..3 {
        there.prefill(prompt, -1).unwrap();
        timed("score 200 there", || there.score_trie()).unwrap();
    }
}

#[test]
#[ignore = "needs a server: tools/remote.py"]
fn schemas_hold() {
    let real = real();
    let (here, there) = (real.here(), real.there());
    let schema = json!({ "type": "object", "properties": {
        "action": { "enum": ["CREATE_ALARM", "DELETE_ALARM"] },
        "count": { "type": "integer", "minimum": 0, "maximum": 99 },
        "note": { "type": "string", "maxLength": 12 }
    }, "required": ["action", "count", "note"], "additionalProperties": false });
    let source = json!({ "json_schema": schema, "compact": true, "jump_ahead": "off" }).to_string();
    for session in [&here, &there] {
        session.set_grammar(source.as_bytes()).unwrap();
    }
    for prompt in &prompts(&here)[..8] {
        let expected = say(&here, prompt, 120, 0.0).unwrap();
        let said = say(&there, prompt, 120, 0.0).unwrap();
        let value: Value = serde_json::from_str(&said.text).unwrap();
        assert!(value["count"].is_i64(), "{said:?}");
        assert!(agree(&here, prompt, &expected, &said), "{expected:?}\n{said:?}");
        // Sampled too.
        let said = say(&there, prompt, 120, 1.2).unwrap();
        assert!(serde_json::from_str::<Value>(&said.text).is_ok() || said.reason == FinishReason::Length, "{said:?}");
    }
    for source in
        [json!({ "regex": "[A-Z]{3,8}_[0-9]{2}" }), json!({ "gbnf": "root ::= (\"- \" [a-zé ]{1,9} \"\\n\"){2}" })]
    {
        there.set_grammar(source.to_string().as_bytes()).unwrap();
        let said = say(&there, &prompts(&here)[1], 80, 0.9).unwrap();
        println!("{source}: {:?}", said.text);
        assert_eq!(said.reason, FinishReason::Stop);
    }
}

#[test]
#[ignore = "needs a server: tools/remote.py"]
fn sixty_four_at_once_and_a_cancel() {
    let real = real();
    let here = real.here();
    let prompt = &prompts(&here)[1];
    let expected = say(&here, prompt, 16, 0.0).unwrap();
    let opened: Vec<Session> = (0..64).map(|_| real.there()).collect();
    timed("64 generations at once", || {
        thread::scope(|scope| {
            for session in &opened {
                scope.spawn(|| assert_eq!(say(session, prompt, 16, 0.0).unwrap().tokens.len(), expected.tokens.len()));
            }
        });
    });
    let session = Arc::new(real.there());
    let mut settings = session.settings();
    settings.ignore_eos = true;
    session.configure(settings).unwrap();
    session.prefill(prompt, -1).unwrap();
    let (sender, receiver) = channel();
    let other = session.clone();
    let mut tokens = 0;
    session
        .generate(
            -1,
            Some(0.8),
            None,
            Sink::Callback(Box::new(move |event: Event<'_>| {
                tokens += 1;
                if tokens == 3 {
                    other.cancel();
                }
                if event.done {
                    let _ = sender.send(tokens);
                }
            })),
        )
        .unwrap();
    let tokens = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    println!("cancelled after {tokens} tokens");
    assert_eq!(session.status().finish_reason, FinishReason::Cancelled);
    assert!(say(&session, prompt, 4, 0.0).is_ok(), "and it goes on");
}

#[test]
#[ignore = "needs a server: tools/remote.py"]
fn wrong_keys_and_models_are_said() {
    let real = real();
    let mut options = real.options();
    options.remote.key = Key::new(Some("sk-wrong-key"));
    let wrong = |options| match Session::open(options).and_then(|session| say(&session, &[1, 2, 3], 2, 0.0)) {
        Err(error @ Error::Remote { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let error = wrong(options);
    println!("{error}");
    assert!(error.contains("(401)") && !error.contains("sk-wrong-key"));
    let mut options = real.options();
    options.path = format!("{}#no-such-model", real.address).into();
    let error = wrong(options);
    println!("{error}");
    assert!(error.contains("no-such-model"));
    // What this kind has of samplers.
    if real.is("vllm") {
        let there = real.there();
        let mut settings = there.settings();
        settings.params.logit_bias = vec![(3, 1.0)];
        settings.params.repeat_penalty = 1.1;
        there.configure(settings).unwrap();
        assert!(say(&there, &[1, 2, 3], 4, 0.7).is_ok(), "a bias and a penalty are taken");
    }
}

/// Makes the server's processes stand still; they go on when it is dropped.
struct Stopped(String);

impl Stopped {
    fn new(pid: &str) -> Stopped {
        signal("-STOP", pid);
        Stopped(pid.to_owned())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

/// Sends a signal to the process group of this process.
fn signal(signal: &str, pid: &str) {
    let sent = std::process::Command::new("kill").args([signal, "--", &format!("-{pid}")]).status();
    assert!(sent.unwrap().success(), "{signal}");
}

fn server_pid() -> Option<String> {
    let pid = std::env::var("ELIZA_REAL_PID").ok();
    if pid.is_none() {
        eprintln!("skipped: ELIZA_REAL_PID is not set");
    }
    pid
}

#[test]
#[ignore = "needs a server: tools/remote.py"]
fn a_slow_server_is_given_up() {
    let real = real();
    let Some(pid) = server_pid() else { return };
    let patience = Duration::from_secs(2);
    let mut options = real.options();
    options.remote.timeout = Some(patience);
    let session = Session::open(options).unwrap();
    let prompt = prompts(&session).swap_remove(1);
    let is_said = |error: &Error, began: Instant| {
        println!("{error}, after {:?}", began.elapsed());
        assert!(error.to_string().contains("was silent for"), "{error}");
        assert!(began.elapsed() >= patience && began.elapsed() < 3 * patience, "{:?}", began.elapsed());
    };
    {
        let (_stopped, began) = (Stopped::new(&pid), Instant::now());
        is_said(&say(&session, &prompt, 8, 0.0).unwrap_err(), began);
    }
    assert!(say(&session, &prompt, 8, 0.0).is_ok(), "it goes on");
    // Between two tokens.
    let mut settings = session.settings();
    settings.ignore_eos = true;
    session.configure(settings).unwrap();
    session.prefill(&prompt, -1).unwrap();
    let (sender, receiver) = channel();
    let (mut tokens, mut stopped) = (0, None);
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        tokens += 1;
        if tokens == 3 {
            stopped = Some((Stopped::new(&pid), Instant::now()));
        }
        if event.done {
            let _ = sender.send((tokens, stopped.take()));
        }
    }));
    session.generate(-1, Some(0.8), None, sink).unwrap();
    let (tokens, stopped) = receiver.recv_timeout(Duration::from_secs(30)).unwrap();
    let (stopped, began) = stopped.unwrap();
    drop(stopped);
    println!("{tokens} tokens came");
    is_said(&session.status().error.unwrap(), began);
}

#[test]
#[ignore = "needs a server that has room for few requests: tools/remote.py --busy"]
fn busy_servers_answer_or_refuse_all() {
    let real = real();
    let opened: Vec<Session> = (0..32).map(|_| real.there()).collect();
    let prompt = prompts(&opened[0]).swap_remove(1);
    let answers: Vec<_> = thread::scope(|scope| {
        let asked: Vec<_> = opened.iter().map(|session| scope.spawn(|| say(session, &prompt, 200, 0.9))).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let refused: Vec<String> =
        answers.iter().filter_map(|answer| answer.as_ref().err()).map(ToString::to_string).collect();
    println!("{} of 32 were refused after {:?} requests each", refused.len(), {
        opened.iter().map(|session| session.usage().server_requests).max()
    });
    println!("{:?}", refused.first());
    assert!(!refused.is_empty() && refused.len() < 32);
    assert!(refused.iter().all(|error| error.contains("(503)") || error.contains("(429)")), "{refused:?}");
}

#[test]
#[ignore = "needs a server: tools/remote.py"]
fn z_a_server_that_is_killed_is_an_error() {
    let real = real();
    let Some(pid) = server_pid() else { return };
    let session = real.there();
    let mut settings = session.settings();
    settings.ignore_eos = true;
    session.configure(settings).unwrap();
    session.prefill(&prompts(&session)[1], -1).unwrap();
    let (sender, receiver) = channel();
    let mut tokens = 0;
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        tokens += 1;
        if tokens == 3 {
            assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        }
        // What was sent before goes on arriving.
        thread::sleep(Duration::from_millis(2));
        if event.done {
            let _ = sender.send(tokens);
        }
    }));
    session.generate(-1, Some(0.8), None, sink).unwrap();
    let tokens = receiver.recv_timeout(Duration::from_secs(70)).unwrap();
    println!("{tokens} tokens, then {:?}", session.status());
    assert_eq!(session.status().finish_reason, FinishReason::Error);
    assert!(matches!(session.status().error, Some(Error::Remote { .. })));
    assert!(matches!(say(&session, &[1, 2], 2, 0.0), Err(Error::Remote { .. })), "and it is gone");
}
