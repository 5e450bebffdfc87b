//! Streams that share an engine for hours: nothing leaks, nobody waits for long, every generation has one end.
//!
//! Hosts open, close, cancel, save, restore and set tries and grammars at random; callbacks panic, and one in some
//! hundred reservations of memory fails. `ELIZA_SOAK_SECONDS` is how long it takes, 30 unless told;
//! `ELIZA_SOAK_PAUSE_MS` how long a stream pauses at most between two generations, 0 unless told.

use crate::testing;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::rng::Dice;
use elizainference::session::{EngineOptions, Event, Mode, OpenOptions, Session, Settings, Sink, refuse_one_in};
use elizainference::{Error, Result};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const STREAMS: u64 = 16;
const CONTEXT: usize = 512;
/// The longest that a stream may wait for a token, a prompt or an end.
const LONGEST: Duration = Duration::from_secs(1);
/// One in so many reservations of memory fails.
const REFUSED: u64 = 499;

const TRIE: &[u8] = br#"{"descriptors":[{"path":"p","leaves":[
    {"name":"a","tokens":[300,301,302]},{"name":"b","tokens":[300,301,303]},{"name":"c","tokens":[300,304]},
    {"name":"d","tokens":[305,301,302,303]},{"name":"e","tokens":[305,301,302,304]}]}]}"#;
const GRAMMARS: [&[u8]; 3] = [
    br#"{"gbnf":"root ::= [a-z]+ (\" \" [a-z]+)*"}"#,
    br#"{"gbnf":"root ::= \"{\" [a-z]{1,9} \":\" [0-9]{1,12} \"}\""}"#,
    br#"{"gbnf":"root ::= (\"ab\" | \"abc\" | \"b\")+ \".\""}"#,
];

/// What all streams together did.
#[derive(Default)]
struct Counts {
    generations: AtomicU64,
    ends: AtomicU64,
    tokens: AtomicU64,
    closed: AtomicU64,
    saved: AtomicU64,
    restored: AtomicU64,
    /// Generations that ended with an error, and all calls that found no memory.
    failed: AtomicU64,
    refused: AtomicU64,
    longest: Mutex<(Duration, &'static str)>,
}

impl Counts {
    fn waited(&self, since: Instant, what: &'static str) {
        let mut longest = self.longest.lock().unwrap();
        if since.elapsed() > longest.0 {
            *longest = (since.elapsed(), what);
        }
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// What a call returned, or nothing where it found no memory.
fn unless_refused<T>(counts: &Counts, result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::OutOfMemory(_)) => {
            add(&counts.refused, 1);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn open(kind: Kind) -> Result<Session> {
    let path = testing::fixture(kind, Weights::Q8_0);
    let engine = EngineOptions {
        context: CONTEXT as u32,
        slots: 1,
        parallel: STREAMS as u32 / 2,
        threads: 1,
        n_batch: 128,
        ..EngineOptions::default()
    };
    let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() })?;
    session.configure(Settings { ignore_eos: true, ..session.settings() })?;
    Ok(session)
}

/// Sets or clears what rules the next generation.
fn constrain(session: &Session, dice: &mut Dice) -> Result<()> {
    match dice.below(8) {
        0 => session.set_trie(TRIE, [Mode::Sampled, Mode::ScoreLeaves][dice.below(2)]),
        1 => session.set_grammar(GRAMMARS[dice.below(GRAMMARS.len())]),
        2 => session.clear_trie(),
        3 => session.clear_grammar(),
        _ => Ok(()),
    }
}

/// Saves what the stream has to its file, or goes on from what is there.
fn keep(session: &Session, file: &Path, dice: &mut Dice, counts: &Counts) {
    match dice.below(30) {
        0 => match session.save_slot(-1, file) {
            // After a prompt that was refused or cancelled at once there may be no token.
            Err(Error::InvalidArgument(problem)) if problem.contains("is empty") => {}
            saved => add(&counts.saved, u64::from(unless_refused(counts, saved).is_some())),
        },
        1 if file.exists() => match session.restore_slot(-1, file) {
            // Saved within a trie that is not set now.
            Err(Error::SavedSlot { .. }) => {}
            restored => add(&counts.restored, u64::from(unless_refused(counts, restored).is_some())),
        },
        _ => {}
    }
}

/// One prompt and one generation, with what hosts do meanwhile; false where the session was closed.
fn turn(session: Session, dice: &mut Dice, counts: &Arc<Counts>) -> Option<Session> {
    let length = [dice.below(20), dice.below(CONTEXT - 40), CONTEXT + 1][dice.below(10).saturating_sub(7)] + 1;
    let (prompt, started) = (dice.tokens(length), Instant::now());
    let session = Arc::new(session);
    let cancels = dice.below(8) == 0;
    let prefilled = thread::scope(|scope| {
        let asked = scope.spawn(|| session.prefill(&prompt, -1));
        if cancels {
            thread::sleep(Duration::from_micros(dice.below(3000) as u64));
            session.cancel();
        }
        asked.join().unwrap()
    });
    counts.waited(started, "a prompt");
    if cancels && matches!(prefilled, Err(Error::Cancelled)) {
        return Arc::into_inner(session);
    }
    if unless_refused(counts, prefilled).is_none() {
        return Arc::into_inner(session);
    }
    assert!(length <= CONTEXT);
    let (sender, ends) = channel();
    let (panics, pauses) = (dice.below(16) == 0, dice.below(8) == 0);
    let (of, mut last) = (counts.clone(), Instant::now());
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        of.waited(last, if event.done { "an end" } else { "a token" });
        if event.done {
            let _ = sender.send(());
        } else {
            add(&of.tokens, 1);
            if pauses {
                thread::sleep(Duration::from_millis(3));
            }
            if panics {
                // Without a word to the terminal.
                resume_unwind(Box::new("a callback that panics"));
            }
        }
        last = Instant::now();
    }));
    let begun = session.generate(1 + dice.below(60) as i32, Some([0.0, 1.0][dice.below(2)]), None, sink);
    if unless_refused(counts, begun).is_none() {
        return Arc::into_inner(session);
    }
    add(&counts.generations, 1);
    let closes = dice.below(10) == 0;
    if closes || dice.below(6) == 0 {
        thread::sleep(Duration::from_micros(dice.below(5000) as u64));
        if closes { session.close() } else { session.cancel() }
    }
    let began = Instant::now();
    // The sender goes with the callback.
    add(&counts.ends, ends.iter().count() as u64);
    counts.waited(began, if pauses { "the end of a slow stream" } else { "the end of a stream" });
    if let Some(error) = session.status().error {
        assert!(panics || matches!(error, Error::OutOfMemory(_)), "{error}");
        add(&counts.failed, 1);
        session.take_error();
    }
    if closes {
        add(&counts.closed, 1);
        return None;
    }
    Arc::into_inner(session)
}

/// Bytes of memory that the process has in use, where the system tells it.
fn resident() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

#[test]
#[ignore = "long: part of make deep"]
fn many_streams_for_as_long_as_told() {
    let told = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seconds, pause) =
        (told("ELIZA_SOAK_SECONDS").unwrap_or(30), told("ELIZA_SOAK_PAUSE_MS").unwrap_or(0) as usize);
    // The models are loaded before memory is refused, and stay loaded.
    let kept = [Kind::Llama, Kind::Gemma3].map(|kind| open(kind).unwrap());
    let folder = tempfile::tempdir().unwrap();
    refuse_one_in(REFUSED);
    let (counts, began) = (Arc::new(Counts::default()), Instant::now());
    let until = began + Duration::from_secs(seconds);
    let streams: Vec<_> = (0..STREAMS)
        .map(|stream| {
            let counts = counts.clone();
            let file = folder.path().join(format!("{stream}.slot"));
            thread::spawn(move || {
                let mut dice = Dice::new(stream, "soak");
                // A slot is restored by the model that it is of.
                let kind = [Kind::Llama, Kind::Gemma3][stream as usize % 2];
                let mut session = None;
                while Instant::now() < until {
                    thread::sleep(Duration::from_millis(dice.below(pause + 1) as u64));
                    let open = session.take().or_else(|| unless_refused(&counts, open(kind)));
                    let Some(open) = open else { continue };
                    unless_refused(&counts, constrain(&open, &mut dice));
                    session = turn(open, &mut dice, &counts);
                    if let Some(session) = &session {
                        keep(session, &file, &mut dice, &counts);
                    }
                }
            })
        })
        .collect();
    // What the first third leaves is there to stay.
    thread::sleep(Duration::from_secs(seconds) / 3);
    let early = resident();
    streams.into_iter().for_each(|stream| stream.join().unwrap());
    refuse_one_in(0);
    let late = resident();
    drop(kept);
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (longest, what) = *counts.longest.lock().unwrap();
    println!(
        "{} s: {} generations, {} tokens, {} closed, {} failed, {} calls without memory, {} saved, {} restored; the \
         longest wait {longest:?}, for {what}; resident {early:?}, at the end {late:?}",
        began.elapsed().as_secs(),
        of(&counts.generations),
        of(&counts.tokens),
        of(&counts.closed),
        of(&counts.failed),
        of(&counts.refused),
        of(&counts.saved),
        of(&counts.restored)
    );
    assert_eq!(of(&counts.ends), of(&counts.generations), "one end each");
    assert!(longest < LONGEST, "{longest:?} for {what}");
    if let (Some(early), Some(late)) = (early, late) {
        assert!(late < early + early / 20 + (8 << 20), "{early} bytes, then {late}");
    }
}
