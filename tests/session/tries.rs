//! Tries in sessions on real engines: large ones, long runs, cancels, and many threads on one cache.

use crate::testing;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::reference::{EXACT, Reference};
use crate::testing::rng::Stream;
use elizainference::gguf::File;
use elizainference::session::{EngineOptions, Event, FinishReason, KvType, Mode, OpenOptions, Session, Sink, SpanEnd};
use elizainference::trie::{Surroundings, build, cache};
use elizainference::{Error, Token};

const PROMPT: [Token; 6] = [1, 40, 300, 77, 410, 150];

fn open(context: u32) -> Session {
    let path = testing::fixture(Kind::Llama, Weights::F32);
    let engine = EngineOptions { context, kv_type: KvType::F32, slots: 1, threads: 1, ..EngineOptions::default() };
    let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap();
    let mut settings = session.settings();
    settings.ignore_eos = true;
    session.configure(settings).unwrap();
    session
}

/// Listens to a greedy generation; `on_token` hears how many tokens there were.
fn listen(session: &Session, max_new_tokens: i32, mut on_token: impl FnMut(usize) + Send + 'static) -> Vec<Token> {
    let (sender, receiver) = channel();
    let mut count = 0;
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if !event.done {
            count += 1;
            on_token(count);
            let _ = sender.send(event.token);
        }
    }));
    session.generate(max_new_tokens, Some(0.0), Some(1.0), sink).unwrap();
    receiver.iter().collect()
}

fn payload(leaves: &[Vec<Token>]) -> String {
    let leaves: Vec<String> =
        leaves.iter().enumerate().map(|(at, tokens)| format!(r#"{{"name":"{at}","tokens":{tokens:?}}}"#)).collect();
    format!(r#"{{"descriptors":[{{"path":"p","leaves":[{}]}}]}}"#, leaves.join(","))
}

#[test]
fn of_ten_thousand_leaves_one_is_taken_by_the_model_s_best_children() {
    let stream = Stream::new(1, "leaves");
    let mut leaves: Vec<Vec<Token>> = (0..10_000u64)
        .map(|leaf| {
            (0..4).map(|at| 259 + stream.below(4 * leaf + at, if at == 0 { 200 } else { 12 }) as Token).collect()
        })
        .collect();
    leaves.sort();
    leaves.dedup();
    assert!(leaves.len() > 9_000);
    let session = open(64);
    let mut settings = session.settings();
    settings.on_span_end = SpanEnd::Stop;
    session.configure(settings).unwrap();
    let reference = Reference::new(&File::open(testing::fixture(Kind::Llama, Weights::F32)).unwrap());
    for mode in [Mode::Greedy, Mode::Sampled] {
        session.set_trie(payload(&leaves).as_bytes(), mode).unwrap();
        session.prefill(&PROMPT, -1).unwrap();
        let said = listen(&session, -1, |_| ());
        assert!(leaves.contains(&said), "{said:?}");
        assert_eq!(session.usage().finish_reason, FinishReason::Span);
        let rows = reference.logits(&[PROMPT.as_slice(), &said].concat(), EXACT);
        for (depth, &token) in said.iter().enumerate() {
            let row = &rows[PROMPT.len() - 1 + depth];
            let legal = leaves.iter().filter(|leaf| leaf.starts_with(&said[..depth])).map(|leaf| leaf[depth]);
            let best = legal.map(|token| row[token as usize]).fold(f64::NEG_INFINITY, f64::max);
            // At temperature 0 the sampled mode takes the best child too.
            assert!(best - row[token as usize] < 4e-3, "{mode:?}, token {depth}");
        }
    }
}

/// A leaf of this many tokens.
fn long_leaf(tokens: u64) -> Vec<Token> {
    (0..tokens).map(|at| 259 + Stream::new(2, "long").below(at, 250) as Token).collect()
}

#[test]
fn a_leaf_of_six_hundred_tokens_is_one_run() {
    let leaf = long_leaf(600);
    let session = open(1024);
    session.prefill(&[PROMPT.as_slice(), &leaf].concat(), -1).unwrap();
    let behind = listen(&session, 8, |_| ());
    session.set_trie(payload(std::slice::from_ref(&leaf)).as_bytes(), Mode::Greedy).unwrap();
    session.prefill(&PROMPT, -1).unwrap();
    let said = listen(&session, 608, |_| ());
    assert_eq!(said, [leaf, behind].concat(), "the run, then what the model says behind it as a prompt");
    let usage = session.usage();
    assert_eq!((usage.forced_tokens, usage.completion_tokens), (600, 608));
    assert!(usage.forward_passes <= 1 + 3 + 7, "the prompt, the run in batches of 512 at most, one for each token");
}

#[test]
fn a_cancel_inside_a_run_or_its_evaluation_leaves_a_session_that_goes_on_rightly() {
    let leaf = long_leaf(500);
    let session = Arc::new(open(1024));
    session.set_trie(payload(std::slice::from_ref(&leaf)).as_bytes(), Mode::Greedy).unwrap();
    session.prefill(&PROMPT, -1).unwrap();
    let expected = listen(&session, 504, |_| ());
    assert_eq!(expected[..500], leaf);
    // While the run is told, from the callback.
    for at in [1, 250, 499, 500] {
        session.prefill(&PROMPT, -1).unwrap();
        let canceller = session.clone();
        let said = listen(&session, 504, move |count| {
            if count == at {
                canceller.cancel();
            }
        });
        assert_eq!((said.as_slice(), session.usage().finish_reason), (&leaf[..at], FinishReason::Cancelled));
    }
    // While it is evaluated, from another thread.
    let mut inside = 0;
    for delay in 0..10 {
        session.prefill(&PROMPT, -1).unwrap();
        let (started, wait) = channel();
        let said = thread::scope(|scope| {
            let session = &session;
            scope.spawn(move || {
                wait.recv().unwrap();
                thread::sleep(Duration::from_micros(500 * delay));
                session.cancel();
            });
            listen(session, 504, move |count| {
                if count == 500 {
                    started.send(()).unwrap();
                }
            })
        });
        assert!(expected.starts_with(&said) && said.len() >= 500, "{}", said.len());
        inside += usize::from(said.len() == 500 && session.usage().finish_reason == FinishReason::Cancelled);
    }
    println!("{inside} of 10 cancels came while the run was evaluated");
    session.prefill(&PROMPT, -1).unwrap();
    assert_eq!(listen(&session, 504, |_| ()), expected);
}

#[test]
fn a_cached_trie_is_refused_by_a_model_with_fewer_tokens() {
    let json = r#"{"descriptors":[{"path":"p","leaves":[{"name":"a","tokens":[1]},{"name":"b","tokens":[1,600]}]}]}"#;
    let cached = cache::load(json.as_bytes(), |_| Ok(())).unwrap();
    cached.check_vocab(601).unwrap();
    let session = open(64);
    for _ in 0..2 {
        let refused = session.set_trie(json.as_bytes(), Mode::Greedy).unwrap_err();
        assert!(
            matches!(&refused, Error::Trie { place, problem }
                if place == "descriptors[0].leaves[1].tokens[1]" && problem.contains("512 tokens")),
            "{refused}"
        );
        session.prefill(&PROMPT, -1).unwrap();
        assert_eq!(session.generate(1, None, None, Sink::Queue), Err(refused));
    }
    assert!(Arc::ptr_eq(&cached, &cache::load(json.as_bytes(), |_| Ok(())).unwrap()));
}

/// 16 threads set tries on 4 sessions out of 200 payloads, through the one cache of the process.
fn hammer(calls: u64) {
    const THREADS: usize = 16;
    let sessions: Vec<Session> = (0..4).map(|_| open(64)).collect();
    let vocab = sessions[0].vocab();
    let word = |number: u64| format!("go_{number}");
    let payloads: Vec<String> = (0..200)
        .map(|number| {
            let around = Surroundings { after: "!", ..Surroundings::default() };
            build(vocab, "", &word(number), &[word(number), format!("stay_{number}")], around).unwrap().json
        })
        .collect();
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sessions, payloads, start) = (&sessions, &payloads, &start);
            scope.spawn(move || {
                let stream = Stream::new(thread as u64, "hammer");
                start.wait();
                for call in 0..calls {
                    let number = stream.below(call, payloads.len() as u64);
                    let json = payloads[number as usize].as_bytes();
                    sessions[thread % sessions.len()].set_trie(json, Mode::Greedy).unwrap();
                    if call % 8 == 0 {
                        let trie = cache::load(json, |_| Ok(())).unwrap();
                        let descriptor = &trie.descriptors()[0];
                        assert_eq!((descriptor.path(), descriptor.leaves()), (word(number).as_str(), 2));
                    }
                    assert!(cache::stats().entries <= cache::CAPACITY.get());
                }
            });
        }
    });
    let stats = cache::stats();
    assert!(stats.entries <= 128 && stats.hits + stats.misses >= THREADS as u64 * calls, "{stats:?}");
    // What was set last is in force.
    for (session, json) in sessions.iter().zip(&payloads) {
        session.set_trie(json.as_bytes(), Mode::Greedy).unwrap();
        session.prefill(&PROMPT, -1).unwrap();
        let said = listen(session, -1, |_| ());
        let trie = cache::load(json.as_bytes(), |_| Ok(())).unwrap();
        let node = |node: u32, &token: &Token| trie.child(node, token);
        let walked = said.iter().try_fold(0, |at, token| node(at, token).ok_or(at));
        assert!(trie.leaf(walked.unwrap_or_else(|at| at)).is_some(), "{said:?}");
    }
}

#[test]
fn sixteen_threads_set_tries_at_once() {
    hammer(200);
}

#[test]
#[ignore = "160,000 calls"]
fn sixteen_threads_set_ten_thousand_tries_each() {
    hammer(10_000);
}
