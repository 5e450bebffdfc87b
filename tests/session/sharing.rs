//! Streams that share an engine: each says what it says alone, whatever the others do.

use crate::testing;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::rng::Dice;
use elizainference::session::{EngineOptions, Event, FinishReason, Mode, OpenOptions, Session, Sink};
use elizainference::{Error, Token};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const CONTEXT: u32 = 256;
const SLOTS: u32 = 2;
const KINDS: [(Kind, Weights); 3] =
    [(Kind::Llama, Weights::Q8_0), (Kind::Gemma3, Weights::Q8_0), (Kind::Qwen35, Weights::Q8_0)];

fn open(kind: Kind, weights: Weights, parallel: u32) -> Session {
    open_with(kind, weights, parallel, SLOTS)
}

fn open_with(kind: Kind, weights: Weights, parallel: u32, slots: u32) -> Session {
    let path = testing::fixture(kind, weights);
    let (context, n_batch) = (CONTEXT, 64);
    let engine = EngineOptions { context, slots, parallel, threads: 1, n_batch, ..EngineOptions::default() };
    Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap()
}

/// What one generation said.
#[derive(Debug, PartialEq)]
struct Said {
    tokens: Vec<Token>,
    text: String,
    reason: FinishReason,
    /// It was cancelled, so what it said may be the beginning of what it would have.
    cut: bool,
}

fn generate(session: &Session, max_new_tokens: i32, temperature: f32, cancel_at: Option<usize>) -> Said {
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        let _ = sender.send((event.token, event.text.to_owned(), event.done));
    }));
    session.generate(max_new_tokens, Some(temperature), None, sink).unwrap();
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for (token, piece, done) in receiver {
        text += &piece;
        if !done {
            tokens.push(token);
        }
        if cancel_at == Some(tokens.len()) {
            session.cancel();
        }
    }
    Said { tokens, text, reason: session.usage().finish_reason, cut: cancel_at.is_some() }
}

const TRIE: &str = r#"{"descriptors":[{"path":"p","leaves":[
    {"name":"a","tokens":[300,301,302]},{"name":"b","tokens":[300,301,303]},{"name":"c","tokens":[300,304]},
    {"name":"d","tokens":[305,301,302,303]},{"name":"e","tokens":[305,301,302,304]}]}]}"#;
const GRAMMAR: &str = r#"{"gbnf":"root ::= [a-z]+ (\" \" [a-z]+)*"}"#;

/// A life of one stream: prompts that begin alike, tries, grammars, chains, cancels, and so many slots.
fn program(session: &Session, slots: u32, seed: u64) -> Vec<Said> {
    let mut dice = Dice::new(seed, "sharing");
    let mut common = Dice::new(1, "common");
    let system = [vec![1], common.tokens(100)].concat();
    let mut all = Vec::new();
    for _ in 0..3 {
        let mut settings = session.settings();
        settings.params.seed = Some(dice.below(1000) as u64);
        settings.params.repeat_penalty = [1.0, 1.2][dice.below(2)];
        settings.params.top_k = [0, 20][dice.below(2)];
        settings.no_guessing = dice.below(3) == 0;
        session.configure(settings).unwrap();
        match dice.below(5) {
            0 => session.set_trie(TRIE.as_bytes(), Mode::Sampled).unwrap(),
            1 => session.set_trie(TRIE.as_bytes(), Mode::ScoreLeaves).unwrap(),
            2 => session.set_grammar(GRAMMAR.as_bytes()).unwrap(),
            3 => session.clear_grammar().unwrap(),
            _ => session.clear_trie().unwrap(),
        }
        let (begin, own) = (dice.below(system.len()) + 1, dice.below(30) + 1);
        let prompt = [&system[..begin], &dice.tokens(own)].concat();
        let slot = dice.below(slots as usize + 1) as i32 - 1;
        if dice.below(6) == 0 {
            session.prewarm(&system, -1).unwrap();
        }
        session.prefill(&prompt, slot).unwrap();
        let (most, temperature) = (dice.below(30) as i32 + 1, [0.0, 0.8, 1.3][dice.below(3)]);
        let cancel_at = [None, None, None, Some(1 + dice.below(5))][dice.below(4)];
        all.push(generate(session, most, temperature, cancel_at));
    }
    all
}

/// A session whose slots can have sessions of their own, with so many tokens of context for all of them.
fn open_concurrent(kind: Kind, weights: Weights, slots: u32, context: u32) -> Session {
    let path = testing::fixture(kind, weights);
    let engine =
        EngineOptions { context, slots, concurrent_slots: true, threads: 1, n_batch: 64, ..Default::default() };
    Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap()
}

fn check(kind: Kind, shared: &[Said], alone: &[Said]) {
    for (i, (shared, alone)) in shared.iter().zip(alone).enumerate() {
        if shared.cut {
            let n = shared.tokens.len().min(alone.tokens.len());
            assert_eq!(shared.tokens[..n], alone.tokens[..n], "{kind:?}: generation {i}");
        } else {
            assert_eq!(shared, alone, "{kind:?}: generation {i}");
        }
    }
    assert_eq!(shared.len(), alone.len());
}

fn programs(streams: u32, rounds: u64) {
    let slots = SLOTS.min(16 / streams);
    for (kind, weights) in KINDS {
        for round in 0..rounds {
            let seed = move |i: u32| round * 100 + u64::from(i);
            let barrier = Arc::new(Barrier::new(streams as usize));
            let lives: Vec<_> = (0..streams)
                .map(|i| {
                    let barrier = barrier.clone();
                    thread::spawn(move || {
                        let session = open_with(kind, weights, streams, slots);
                        barrier.wait();
                        program(&session, slots, seed(i))
                    })
                })
                .collect();
            for (i, life) in (0..streams).zip(lives) {
                let alone = program(&open_with(kind, weights, 1, slots), slots, seed(i));
                check(kind, &life.join().unwrap(), &alone);
            }
        }
    }
}

/// The slots of one session as so many streams, and the session itself as one of them.
fn programs_of_slots(streams: u32, rounds: u64) {
    for (kind, weights) in KINDS {
        for round in 0..rounds {
            let seed = |i: u32| 50 + round * 100 + u64::from(i);
            let session = open_concurrent(kind, weights, streams, CONTEXT * streams);
            let mut all: Vec<_> = (1..streams).map(|_| session.open_slot(-1).unwrap()).collect();
            all.push(session);
            let barrier = Arc::new(Barrier::new(all.len()));
            let lives: Vec<_> = (0..streams)
                .zip(all)
                .map(|(i, session)| {
                    let (barrier, seed) = (barrier.clone(), seed(i));
                    thread::spawn(move || {
                        barrier.wait();
                        program(&session, 0, seed)
                    })
                })
                .collect();
            for (i, life) in (0..streams).zip(lives) {
                let alone = program(&open_with(kind, weights, 1, 1), 0, seed(i));
                check(kind, &life.join().unwrap(), &alone);
            }
        }
    }
}

#[test]
fn every_stream_says_what_it_says_alone() {
    programs(2, 2);
    programs(16, 1);
}

#[test]
fn slots_of_one_session_say_what_each_says_alone() {
    programs_of_slots(2, 2);
    programs_of_slots(8, 1);
}

#[test]
#[ignore = "long: part of make deep"]
fn thousands_of_streams_say_what_they_say_alone() {
    for (streams, rounds) in [(2, 200), (3, 200), (8, 200), (16, 60)] {
        programs(streams, rounds);
    }
}

#[test]
#[ignore = "long: part of make deep"]
fn thousands_of_slots_say_what_they_say_alone() {
    for (slots, rounds) in [(2, 200), (3, 200), (8, 200), (16, 60)] {
        programs_of_slots(slots, rounds);
    }
}

#[test]
fn a_prompt_that_others_begin_with_is_evaluated_once() {
    for (kind, weights) in KINDS {
        let prompt: Vec<Token> = (0..128).map(|i| 280 + i).collect();
        let barrier = Arc::new(Barrier::new(8));
        let all: Vec<_> = (0..8)
            .map(|i| {
                let (barrier, prompt) = (barrier.clone(), [prompt.clone(), vec![300 + i; 4]].concat());
                thread::spawn(move || {
                    let session = open(kind, weights, 8);
                    barrier.wait();
                    session.prefill(&prompt, -1).unwrap();
                    // All are there until all have counted.
                    let usage = session.usage();
                    barrier.wait();
                    usage.evaluated_tokens
                })
            })
            .collect();
        let evaluated: u64 = all.into_iter().map(|one| one.join().unwrap()).sum();
        // Where a state cannot be cut back, the one after the last whole pass is gone on from.
        let again = if kind == Kind::Qwen35 { 7 * 128 } else { 0 };
        assert!((128 + 8 * 4..=128 + 8 * 4 + again).contains(&evaluated), "{kind:?}: {evaluated} tokens");
    }
}

#[test]
fn a_callback_that_takes_long_delays_nobody_else() {
    let (slow, quick) = (open(Kind::Llama, Weights::Q8_0, 2), open(Kind::Llama, Weights::Q8_0, 2));
    let (free, waiting) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    slow.prefill(&[1, 300, 301], 0).unwrap();
    let (until, begun) = (free.clone(), waiting.clone());
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        while !event.done && !until.load(Ordering::Acquire) {
            begun.store(true, Ordering::Release);
            thread::sleep(Duration::from_millis(1));
        }
    }));
    slow.generate(3, Some(0.0), None, sink).unwrap();
    while !waiting.load(Ordering::Acquire) {
        thread::yield_now();
    }
    quick.prefill(&[1, 400, 401], 0).unwrap();
    let said = generate(&quick, 20, 0.0, None);
    assert!(!said.tokens.is_empty() && slow.status().busy);
    free.store(true, Ordering::Release);
    while slow.status().busy {
        thread::yield_now();
    }
    assert_eq!(slow.status().error, None);
}

#[test]
fn errors_and_closes_are_those_of_one_stream() {
    let (one, other) = (open(Kind::Llama, Weights::Q8_0, 2), open(Kind::Llama, Weights::Q8_0, 2));
    assert_eq!((one.info().parallel, one.info().slots, one.info().context), (2, SLOTS, CONTEXT));
    other.prefill(&[1, 300, 301, 302], 0).unwrap();
    let long = vec![300; CONTEXT as usize + 1];
    let error = one.prefill(&long, 0).unwrap_err();
    assert!(matches!(&error, Error::OutOfMemory(problem) if problem.contains("257")), "{error}");
    assert!(matches!(one.prefill(&[1, 9999], 0), Err(Error::InvalidArgument(_))));
    assert!(matches!(one.prefill(&[1], 2), Err(Error::InvalidArgument(_))), "slots are those of the stream");
    let alone = open(Kind::Llama, Weights::Q8_0, 1);
    alone.prefill(&[1, 300, 301, 302], 0).unwrap();
    drop(one);
    // Its place is free again.
    let next = open(Kind::Llama, Weights::Q8_0, 2);
    next.prefill(&vec![310; CONTEXT as usize], 0).unwrap();
    assert_eq!(generate(&other, 12, 0.0, None), generate(&alone, 12, 0.0, None));
    next.prefill(&[1, 300, 301, 302], 1).unwrap();
    alone.prefill(&[1, 300, 301, 302], 1).unwrap();
    assert_eq!(generate(&next, 12, 0.0, None), generate(&alone, 12, 0.0, None));
    let mut options = EngineOptions { parallel: 17, ..EngineOptions::default() };
    let path = testing::fixture(Kind::Llama, Weights::Q8_0);
    let refused = |engine: &EngineOptions| {
        let options = OpenOptions { path: path.clone(), engine: engine.clone(), ..OpenOptions::default() };
        Session::open(options).map(drop).unwrap_err().to_string()
    };
    assert!(refused(&options).contains("parallel is 17 (1 to 16 are possible)"));
    (options.parallel, options.slots) = (4, 5);
    assert!(refused(&options).contains("5 slots for each of 4 streams (16 in all are possible)"));
}

#[test]
fn a_slot_with_a_session_of_its_own_is_nobody_elses() {
    let session = open_concurrent(Kind::Llama, Weights::Q8_0, 3, CONTEXT);
    let invalid = |outcome: elizainference::Result<Session>, problem: &str| {
        let error = outcome.map(drop).unwrap_err();
        assert!(matches!(&error, Error::InvalidArgument(text) if text.contains(problem)), "{error}");
    };
    let prompt = [1, 300, 301, 302, 303, 304];
    session.prefill(&prompt, 1).unwrap();
    let error = session.open_slot(1).map(drop).unwrap_err();
    assert!(matches!(&error, Error::Busy(text) if text.contains("Slot 1 has the prompt")), "{error}");
    let said = generate(&session, 8, 0.0, None);

    // The slot comes with its tokens, and what was said is evaluated nowhere again.
    let mut settings = session.settings();
    settings.params.temperature = 0.5;
    session.configure(settings).unwrap();
    let one = session.open_slot(1).unwrap();
    assert_eq!((one.settings().params.temperature, one.info().context), (0.5, CONTEXT));
    one.prefill(&prompt, -1).unwrap();
    assert_eq!(one.usage().prompt_tokens_reused, prompt.len() as u64 - 1);
    assert_eq!(generate(&one, 8, 0.0, None), said);
    invalid(session.open_slot(1), "Slot 1 is that of another handle");
    invalid(session.open_slot(3), "slot 3 does not exist");
    assert!(matches!(session.prefill(&prompt, 1), Err(Error::InvalidArgument(_))));
    assert!(matches!(one.prefill(&prompt, 0), Err(Error::InvalidArgument(_))));
    invalid(one.open_slot(-1), "the last");
    let other = session.open_slot(-1).unwrap();
    invalid(session.open_slot(-1), "the last");
    session.prefill(&prompt, -1).unwrap();
    assert_eq!(generate(&session, 8, 0.0, None), said);

    // A slot is its session's again once it is nobody else's, tokens and all; and it outlives that session.
    drop(one);
    session.prefill(&prompt, 1).unwrap();
    assert_eq!(session.usage().prompt_tokens_reused, prompt.len() as u64 - 1);
    drop(session);
    other.prefill(&prompt, -1).unwrap();
    assert_eq!(generate(&other, 8, 0.0, None), said);
    drop(other);

    let alone = open(Kind::Llama, Weights::Q8_0, 1);
    assert!(matches!(alone.open_slot(-1), Err(Error::Unsupported(text)) if text.contains("take turns")));
    let beside = open(Kind::Llama, Weights::Q8_0, 2);
    assert!(matches!(beside.open_slot(-1), Err(Error::Unsupported(_))));
}

#[test]
fn slots_at_rest_are_emptied_for_others_and_those_in_use_are_not() {
    for (kind, weights) in KINDS {
        let session = open_concurrent(kind, weights, 2, CONTEXT);
        let other = session.open_slot(-1).unwrap();
        let prompt = |first: Token| -> Vec<Token> {
            let mut dice = Dice::new(first as u64, "two tokens");
            (0..200).map(|i| if i == 0 { first } else { 310 + dice.below(2) as Token }).collect()
        };
        session.prefill(&prompt(300), -1).unwrap();
        let error = other.prefill(&prompt(400), -1).unwrap_err();
        assert!(matches!(&error, Error::OutOfMemory(text) if text.contains("256")), "{kind:?}: {error}");
        // What one said is over when the other needs the cells, with the guesses of its last pass that came to nothing.
        let alone = open(kind, weights, 1);
        let mut guessed = 0;
        for seed in 0..12 {
            for (session, first) in [(&session, 300), (&other, 400)] {
                for session in [session, &alone] {
                    let mut settings = session.settings();
                    (settings.params.seed, settings.params.logit_bias) = (Some(seed), vec![(310, 50.0), (311, 50.0)]);
                    settings.stop = vec![session.detokenize(&[311], false, false).unwrap()];
                    session.configure(settings).unwrap();
                    session.prefill(&prompt(first), -1).unwrap();
                }
                assert!(seed == 0 || session.usage().prompt_tokens_reused == 0, "{kind:?}");
                assert_eq!(generate(session, 30, 1.0, None), generate(&alone, 30, 1.0, None), "{kind:?}");
                let usage = session.usage();
                guessed += usage.drafted_tokens - usage.accepted_tokens;
            }
        }
        assert!(guessed > 0, "{kind:?}: every guess was right");
    }
}
