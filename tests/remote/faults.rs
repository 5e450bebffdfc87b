//! A server that refuses, fails, is silent or lies: each is an error that says so, in time, and no secret is in it.

use crate::fake::{Fake, Reply, Seen};
use crate::model::Model;
use crate::{go_on, open, options, problem, say};
use elizainference::session::{Event, FinishReason, Mode, OpenOptions, Session, Settings, Sink};
use elizainference::{Error, Token};
use serde_json::json;
use std::io::Result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const PROMPT: [Token; 4] = [1, 5, 6, 7];
const KEY: &str = "sk-0123456789-secret";

/// A vLLM that answers completions in this way, and all else as it should.
fn completions(answer: impl Fn(&Seen, &mut Reply<'_>) -> Result<()> + Send + Sync + 'static) -> Fake {
    let model = Model::new("vllm");
    Fake::new(move |seen, reply| match seen.path == "/v1/completions" {
        true => answer(seen, reply),
        false => model.answer(seen, reply),
    })
}

fn token(id: Token) -> serde_json::Value {
    json!({ "choices": [{ "text": "", "token_ids": [id], "finish_reason": null }] })
}

fn end(reply: &mut Reply<'_>, reason: &str) -> Result<()> {
    reply.event(&json!({ "choices": [{ "text": "", "token_ids": [], "finish_reason": reason }] }))?;
    reply.chunks(b"data: [DONE]\n\n")?;
    reply.end_events()
}

fn asked(fake: &Fake) -> usize {
    fake.seen_at("/v1/completions").len()
}

/// Generates from a server that answers so; what was delivered, and the error's text.
fn broken(answer: impl Fn(&Seen, &mut Reply<'_>) -> Result<()> + Send + Sync + 'static) -> (Vec<Token>, String, usize) {
    let fake = completions(answer);
    let session = open(&fake.of_kind("vllm"));
    session.prefill(&PROMPT, -1).unwrap();
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        let _ = sender.send(event.token);
    }));
    session.generate(8, Some(0.0), None, sink).unwrap();
    let tokens = receiver.iter().filter(|&token| token >= 0).collect();
    let status = session.status();
    assert_eq!(status.finish_reason, FinishReason::Error);
    (tokens, problem(status.error.map_or(Ok(()), Err)), asked(&fake))
}

#[test]
fn refusals_have_the_server_s_own_text() {
    let answers: [(u16, &str, &str); 6] = [
        (401, r#"{"error":"Unauthorized"}"#, "the key, or that there is none (401): Unauthorized"),
        (404, r#"{"error":{"message":"The model `x` does not exist.","code":404}}"#, "`x` does not exist"),
        (400, r#"{"error":{"message":"Token id 512 is out of vocabulary","code":400}}"#, "512 is out of vocabulary"),
        (422, r#"{"detail":"not a number"}"#, "(422): not a number"),
        (500, "Internal Server Error", "the server failed (500): Internal Server Error"),
        (307, "", "not followed (307): no reason given"),
    ];
    for (status, body, expected) in answers {
        let (tokens, error, asked) =
            broken(move |_, reply| reply.text(status, "location: http://127.0.0.1:9\r\n", body));
        assert!(error.contains(expected) && error.contains("vllm:http://localhost:"), "{error}");
        assert_eq!((tokens.len(), asked), (0, 1), "asked once: {error}");
    }
    // vLLM refuses a streamed request with status 200.
    let (_, error, asked) = broken(|_, reply| {
        reply.begin_events()?;
        reply.event(&json!({ "error": { "message": "bad grammar", "code": 400 } }))?;
        reply.end_events()
    });
    assert!(error.contains("(400): bad grammar"), "{error}");
    assert_eq!(asked, 1);
}

#[test]
fn a_busy_server_is_asked_again_three_times() {
    let (_, error, asked) = broken(|_, reply| reply.text(503, "", r#"{"error":{"message":"queue is full"}}"#));
    assert!(error.contains("(503): queue is full"), "{error}");
    assert_eq!(asked, 4);
    for way in 0..4 {
        let calls = AtomicUsize::new(0);
        let fake = completions(move |_, reply| {
            let first = calls.fetch_add(1, Ordering::AcqRel) == 0;
            match (first, way) {
                (true, 0) => return reply.text(429, "retry-after: 1\r\n", ""),
                (true, 1) => return reply.text(503, "", ""),
                (true, 2) => return Err(std::io::ErrorKind::ConnectionReset.into()),
                (true, _) => {
                    reply.begin_events()?;
                    return reply
                        .event(&json!({ "error": { "message": "busy", "code": 503 } }))
                        .and(reply.end_events());
                }
                _ => {}
            }
            reply.begin_events()?;
            (5..9).try_for_each(|id| reply.event(&token(id)))?;
            end(reply, "length")
        });
        let session = open(&fake.of_kind("vllm"));
        let began = Instant::now();
        let said = say(&session, &PROMPT, 4, 0.0).unwrap();
        assert_eq!((said.tokens, said.reason), (vec![5, 6, 7, 8], FinishReason::Length), "way {way}");
        assert_eq!(asked_of(&session), 2);
        assert!(way != 0 || began.elapsed() >= Duration::from_secs(1), "as long as the server asked for");
    }
}

fn asked_of(session: &Session) -> u64 {
    session.usage().server_requests
}

#[test]
fn what_breaks_in_the_middle_keeps_what_was_there() {
    let cut = |_: &Seen, reply: &mut Reply<'_>| {
        reply.begin_events()?;
        reply.event(&token(5))?;
        reply.event(&token(6))
    };
    let (tokens, error, asked) = broken(move |seen, reply| {
        cut(seen, reply)?;
        Err(std::io::ErrorKind::ConnectionReset.into())
    });
    assert_eq!((tokens, asked), (vec![5, 6], 1), "never asked again after a token");
    assert!(error.contains("connection"), "{error}");
    let (tokens, error, _) = broken(move |seen, reply| cut(seen, reply).and(reply.end_events()));
    assert_eq!(tokens, [5, 6]);
    assert!(error.contains("the connection ended before the answer did"), "{error}");
    let (tokens, error, _) = broken(move |seen, reply| {
        cut(seen, reply)?;
        reply.chunks(b"data: [DONE]\n\n").and(reply.end_events())
    });
    assert_eq!(tokens, [5, 6]);
    assert!(error.contains("ended without a reason"), "{error}");
    let (tokens, error, _) = broken(move |seen, reply| {
        cut(seen, reply)?;
        reply.event(&json!({ "error": { "message": "engine died", "code": 500 } })).and(reply.end_events())
    });
    assert_eq!(tokens, [5, 6]);
    assert!(error.contains("engine died"), "{error}");
    let (tokens, error, _) = broken(move |seen, reply| cut(seen, reply).and(end(reply, "length")));
    assert_eq!(tokens, [5, 6]);
    assert!(error.contains("ended the answer after"), "{error}");
    let (tokens, error, _) = broken(move |seen, reply| cut(seen, reply).and(end(reply, "abort")));
    assert_eq!(tokens, [5, 6]);
    assert!(error.contains("gave the answer up"), "{error}");
}

#[test]
fn what_cannot_be_read_is_said() {
    let events: [(&str, &str); 5] = [
        ("data: {\"choices\": [}\n\n", "malformed JSON"),
        ("data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":null}]}\n\n", "without token ids"),
        ("data: {\"choices\":[{\"text\":\"\",\"token_ids\":[\"a\"]}]}\n\n", "no token id"),
        ("data: {\"choices\":[{\"text\":\"\",\"token_ids\":[99999999]}]}\n\n", "99999999"),
        ("data: {\"choices\":[{\"text\":\"\",\"token_ids\":[-3]}]}\n\n", "-3"),
    ];
    for (event, expected) in events {
        let (tokens, error, _) = broken(move |_, reply| {
            reply.begin_events()?;
            reply.chunks(event.as_bytes()).and(reply.end_events())
        });
        assert!(error.contains(expected) && tokens.is_empty(), "{error}");
    }
    let (_, error, _) = broken(|_, reply| {
        reply.begin_events()?;
        let line = vec![b'x'; 1 << 20];
        (0..20).try_for_each(|_| reply.chunks(&line))
    });
    assert!(error.contains("more than 16777216 bytes"), "{error}");
}

#[test]
fn silence_ends_at_its_limit_and_a_cancel_at_once() {
    // Before the first byte, and between tokens.
    for after in [0, 2] {
        let fake = completions(move |_, reply| {
            if after > 0 {
                reply.begin_events()?;
                (0..after).try_for_each(|id| reply.event(&token(5 + id)))?;
            }
            thread::sleep(Duration::from_secs(4));
            Ok(())
        });
        let mut slow = options(&fake.of_kind("vllm"), None);
        slow.remote.timeout = Some(Duration::from_millis(300));
        let session = Session::open(slow).unwrap();
        let began = Instant::now();
        let error = problem(say(&session, &PROMPT, 8, 0.0));
        assert!(error.contains("silent for 0.3 s"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());

        let session = Arc::new(open(&fake.of_kind("vllm")));
        session.prefill(&PROMPT, -1).unwrap();
        let (sender, receiver) = channel();
        let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
            let _ = sender.send(event.done);
        }));
        session.generate(8, Some(0.0), None, sink).unwrap();
        thread::sleep(Duration::from_millis(200));
        let began = Instant::now();
        session.cancel();
        assert!(receiver.iter().any(|done| done));
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
        assert_eq!(session.status().finish_reason, FinishReason::Cancelled);
    }
}

#[test]
fn a_cancel_ends_the_request_at_the_server() {
    let model = Model::new("vllm");
    let cancelled = model.cancelled.clone();
    let fake = Fake::new(move |seen, reply| model.answer(seen, reply));
    let session = Arc::new(open(&fake.of_kind("vllm")));
    let endless = Settings { ignore_eos: true, ..session.settings() };
    session.configure(endless).unwrap();
    session.prefill(&PROMPT, -1).unwrap();
    let ended = Arc::new((Mutex::new(false), Condvar::new()));
    let (other, seen) = (session.clone(), ended.clone());
    let mut tokens = 0;
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        tokens += 1;
        if tokens == 3 {
            other.cancel();
        }
        if event.done {
            *seen.0.lock().unwrap() = true;
            seen.1.notify_all();
        }
    }));
    session.generate(-1, Some(0.9), None, sink).unwrap();
    let done = ended.1.wait_timeout_while(ended.0.lock().unwrap(), Duration::from_secs(5), |done| !*done).unwrap();
    assert!(*done.0);
    drop(done);
    let until = Instant::now() + Duration::from_secs(5);
    while fake.open() > 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((fake.open(), cancelled.load(Ordering::Acquire)), (0, 1), "the server noticed");
    // And the session goes on.
    assert!(say(&session, &PROMPT, 3, 0.0).is_ok());
}

#[test]
fn a_server_that_ignores_a_constraint_is_found_out() {
    let fake = completions(|_, reply| {
        reply.begin_events()?;
        (5..9).try_for_each(|id| reply.event(&token(id)))?;
        end(reply, "length")
    });
    let session = open(&fake.of_kind("vllm"));
    let payload =
        r#"{"descriptors":[{"path":"p","leaves":[{"name":"a","tokens":[5,40,41]},{"name":"b","tokens":[9]}]}]}"#;
    session.set_trie(payload.as_bytes(), Mode::Greedy).unwrap();
    session.prefill(&PROMPT, -1).unwrap();
    // The run after token 5 is forced; what the server says instead is found where the next token is asked for.
    let error = problem(go_on(&session, 8, 0.0));
    assert!(error.contains("did not hold to the constraint") || error.contains("ended"), "{error}");
    session.set_grammar(br#"{"gbnf": "root ::= \"zzzz\""}"#).unwrap();
    let error = problem(say(&session, &PROMPT, 8, 0.0));
    assert!(error.contains("did not hold to the constraint: it answered token 5"), "{error}");
}

#[test]
fn another_vocabulary_another_model_and_no_server_are_refused_at_open() {
    let fake = Fake::new({
        let model = Model::new("vllm");
        move |seen, reply| match seen.path == "/tokenize" {
            true => reply.json(200, &json!({ "tokens": [1, 2, 3] })),
            false => model.answer(seen, reply),
        }
    });
    let error = problem(Session::open(options(&fake.of_kind("vllm"), None)));
    assert!(error.contains("demo.gguf is not that of the server") && error.contains("[1, 2, 3] there"), "{error}");
    let fake = completions(|_, _| Ok(()));
    let error = problem(Session::open(options(&format!("{}#other", fake.of_kind("vllm")), None)));
    assert!(error.contains("no model \"other\"; it has: demo/model"), "{error}");
    assert!(Session::open(options(&format!("{}#demo/model", fake.of_kind("vllm")), None)).is_ok());
    let port = fake.port();
    drop(fake);
    thread::sleep(Duration::from_millis(50));
    let error = problem(Session::open(options(&format!("vllm:http://127.0.0.1:{port}"), None)));
    assert!(error.contains("the connection failed"), "{error}");
    for bad in ["vllm:http://", "vllm:http://user:pw@host"] {
        let OpenOptions { remote, .. } = options(bad, None);
        let opened = Session::open(OpenOptions { path: bad.into(), remote, ..OpenOptions::default() });
        assert!(matches!(opened, Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn a_key_is_in_no_error_and_goes_nowhere_unencrypted() {
    // A server that repeats the key in everything it says.
    let model = Model::new("vllm");
    let fake = Fake::new(move |seen, reply| {
        assert_eq!(seen.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
        let text = format!("no {KEY} here");
        match &seen.path[..] {
            "/v1/completions" if seen.body["max_tokens"] == 3 => reply.json(401, &json!({ "error": text })),
            "/v1/completions" => {
                reply.begin_events()?;
                reply.event(&json!({ "error": { "message": text, "code": 400 } })).and(reply.end_events())
            }
            _ => model.answer(seen, reply),
        }
    });
    let options = options(&fake.of_kind("vllm"), Some(KEY));
    assert!(!format!("{:?}", options.remote).contains(KEY));
    let session = Session::open(options).unwrap();
    for most in [3, 4] {
        let error = problem(say(&session, &PROMPT, most, 0.0));
        assert!(error.contains("no [key] here"), "{error}");
        let said = [format!("{:?} {:?}", session.status(), session.take_error()), session.usage_json()];
        assert!(said.iter().all(|text| !text.contains(KEY)), "{said:?}");
    }
    let open = Session::open(crate::options("vllm:http://192.0.2.1:8000", Some(KEY)));
    assert!(
        matches!(open, Err(Error::InvalidArgument(problem)) if problem.contains("https") && !problem.contains(KEY))
    );
    let open = Session::open(crate::options(&fake.of_kind("vllm"), Some("two\r\nlines")));
    assert!(matches!(open, Err(Error::InvalidArgument(problem)) if !problem.contains("lines")));
}
