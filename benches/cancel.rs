//! How long a cancel takes: from the call to the end of a 2,000-token prefill, and to the terminal event of a
//! generation.
//!
//! `cargo bench --bench cancel [-- MODEL.gguf]`; without a model it runs on a fixture. The yardsticks are measured on
//! the same model: the time of 64 prompt tokens for a prefill, of 2 tokens for decoding.
#![allow(clippy::unwrap_used)]

#[path = "../tests/testing/mod.rs"]
mod testing;

use elizainference::session::{EngineOptions, Event, OpenOptions, Session, Sink};
use elizainference::{Error, Token};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use testing::fixture;
use testing::fixtures::{Kind, Weights};
use testing::rng::Stream;

const PROMPT: usize = 2000;
const ROUNDS: usize = 50;
const DECODED: usize = 200;

/// Tokens no earlier prompt began with, so that no prefix is reused.
fn prompt(n_vocab: usize, round: usize) -> Vec<Token> {
    let stream = Stream::new(round as u64, "cancel");
    (0..PROMPT as u64).map(|i| stream.below(i, n_vocab as u64) as Token).collect()
}

/// Runs a generation of `count` tokens; `on_token` hears how many there are, on the session's own thread. Returns when
/// the terminal event came.
fn generate(session: &Session, count: usize, mut on_token: impl FnMut(usize) + Send + 'static) -> Instant {
    let (sender, receiver) = mpsc::channel();
    let mut seen = 0;
    let callback = move |event: Event<'_>| {
        if event.done {
            sender.send(Instant::now()).ok();
        } else {
            seen += 1;
            on_token(seen);
        }
    };
    session.generate(count as i32, Some(0.8), None, Sink::Callback(Box::new(callback))).unwrap();
    receiver.recv().unwrap()
}

fn report(what: &str, mut times: Vec<Duration>, yardstick: Duration, meaning: &str) -> bool {
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    let verdict = if worst <= yardstick { "ok" } else { "MISSED" };
    println!(
        "{what:<8} {:>3} cancels   median {median:>10.2?}   worst {worst:>10.2?}   {meaning} {yardstick:>10.2?}   \
         {verdict}",
        times.len()
    );
    worst <= yardstick
}

fn main() {
    let path = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with("--"))
        .map_or_else(|| fixture(Kind::Llama, Weights::Q8_0), PathBuf::from);
    println!("{}", path.display());
    let engine = EngineOptions { context: 4096, ..EngineOptions::default() };
    let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap();
    let n_vocab = session.info().n_vocab;
    session.configure(elizainference::session::Settings { ignore_eos: true, ..Default::default() }).unwrap();

    session.prefill(&prompt(n_vocab, 1_000), 0).unwrap();
    let start = Instant::now();
    session.prefill(&prompt(n_vocab, 1_001), 0).unwrap();
    let whole = start.elapsed();
    let start = Instant::now();
    let per_token = (generate(&session, DECODED, |_| {}) - start) / DECODED as u32;

    let delays = Stream::new(0, "delays");
    let mut prefill = Vec::new();
    for round in 0..ROUNDS {
        let tokens = prompt(n_vocab, round);
        let delay = whole.mul_f64(0.9 * delays.below(round as u64, 1_000) as f64 / 1_000.0);
        let (end, cancelled_at, result) = std::thread::scope(|scope| {
            let canceller = scope.spawn(|| {
                std::thread::sleep(delay);
                session.cancel();
                Instant::now()
            });
            let result = session.prefill(&tokens, 0);
            let end = Instant::now();
            (end, canceller.join().unwrap(), result)
        });
        match result {
            Err(Error::Cancelled) => prefill.push(end.saturating_duration_since(cancelled_at)),
            Ok(_) => {} // it was over before the cancel came
            Err(other) => panic!("{other}"),
        }
    }

    let mut decode = Vec::new();
    for round in 0..ROUNDS {
        session.prefill(&prompt(n_vocab, round)[..64], 0).unwrap();
        let stop_at = 1 + delays.below((ROUNDS + round) as u64, 100) as usize;
        let (sender, receiver) = mpsc::channel();
        let end = std::thread::scope(|scope| {
            let session = &session;
            let canceller = scope.spawn(move || {
                receiver.recv().ok();
                session.cancel();
                Instant::now()
            });
            let end = generate(session, 1_000, move |seen| {
                if seen == stop_at {
                    sender.send(()).ok();
                }
            });
            end.saturating_duration_since(canceller.join().unwrap())
        });
        decode.push(end);
    }

    println!("prefill of {PROMPT} tokens {whole:.2?}, {per_token:.2?} a decoded token");
    let prefill_ok = report("prefill", prefill, whole * 64 / PROMPT as u32, "64 prompt tokens");
    let decode_ok = report("decode", decode, per_token * 2, "2 tokens");
    std::process::exit(i32::from(!(prefill_ok && decode_ok)));
}
