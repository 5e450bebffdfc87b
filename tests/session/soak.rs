//! Streams that share an engine for hours: nothing leaks, nobody waits for long, every generation has one end.
//!
//! `ELIZA_SOAK_SECONDS` is how long it takes, 30 unless told.

use crate::testing;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::rng::Dice;
use elizainference::Error;
use elizainference::session::{EngineOptions, Event, OpenOptions, Session, Settings, Sink};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const STREAMS: u64 = 16;
const CONTEXT: usize = 512;
/// The longest that a stream may wait for a token, a prompt or an end.
const LONGEST: Duration = Duration::from_secs(1);

/// What all streams together did.
#[derive(Default)]
struct Counts {
    generations: AtomicU64,
    ends: AtomicU64,
    tokens: AtomicU64,
    closed: AtomicU64,
    failed: AtomicU64,
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

fn open(draws: u64) -> Session {
    let path = testing::fixture([Kind::Llama, Kind::Gemma3][draws as usize % 2], Weights::Q8_0);
    let engine = EngineOptions {
        context: CONTEXT as u32,
        slots: 1,
        parallel: STREAMS as u32 / 2,
        threads: 1,
        n_batch: 128,
        ..EngineOptions::default()
    };
    let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap();
    session.configure(Settings { ignore_eos: true, ..session.settings() }).unwrap();
    session
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
    match prefilled {
        Ok(_) => {}
        Err(Error::Cancelled) if cancels => return Arc::into_inner(session),
        Err(Error::OutOfMemory(_)) if length > CONTEXT => return Arc::into_inner(session),
        Err(error) => panic!("{error}"),
    }
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
    session.generate(1 + dice.below(60) as i32, Some([0.0, 1.0][dice.below(2)]), None, sink).unwrap();
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
    if session.status().error.is_some() {
        assert!(panics);
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
    let seconds = std::env::var("ELIZA_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    let (counts, began) = (Arc::new(Counts::default()), Instant::now());
    let until = began + Duration::from_secs(seconds);
    let streams: Vec<_> = (0..STREAMS)
        .map(|stream| {
            let counts = counts.clone();
            thread::spawn(move || {
                let mut dice = Dice::new(stream, "soak");
                let mut session = None;
                while Instant::now() < until {
                    let open = session.take().unwrap_or_else(|| open(dice.below(2) as u64));
                    session = turn(open, &mut dice, &counts);
                }
            })
        })
        .collect();
    // What the first third leaves is there to stay.
    thread::sleep(Duration::from_secs(seconds) / 3);
    let early = resident();
    streams.into_iter().for_each(|stream| stream.join().unwrap());
    let late = resident();
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (longest, what) = *counts.longest.lock().unwrap();
    println!(
        "{} s: {} generations, {} tokens, {} closed, {} failed; the longest wait {longest:?}, for {what}; resident \
         {early:?}, at the end {late:?}",
        began.elapsed().as_secs(),
        of(&counts.generations),
        of(&counts.tokens),
        of(&counts.closed),
        of(&counts.failed)
    );
    assert_eq!(of(&counts.ends), of(&counts.generations), "one end each");
    assert!(longest < LONGEST, "{longest:?} for {what}");
    if let (Some(early), Some(late)) = (early, late) {
        assert!(late < early + early / 20 + (8 << 20), "{early} bytes, then {late}");
    }
}
