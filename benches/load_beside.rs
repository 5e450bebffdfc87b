//! What the load of a large model costs those who generate meanwhile: the time per token of another handle, undisturbed
//! and beside a load, and how many tokens still come after a cancel.
//!
//! `cargo bench --bench load_beside [-- MB OF THE LOADED MODEL]`, 600 unless told otherwise: a file with weights of no
//! meaning in the folder for temporary files, removed at the end. The bounds: the slowest token but one in a hundred
//! takes at most twice as long as undisturbed, and a cancel is seen within two tokens.
#![allow(clippy::unwrap_used)]

#[path = "../tests/testing/mod.rs"]
mod testing;

use elizainference::engine::default_thread_count;
use elizainference::quant::TensorType;
use elizainference::session::{EngineOptions, Event, OpenOptions, Session, Settings, Sink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use testing::fixtures::Shaped;

/// Tokens of one generation.
const TOKENS: i32 = 1000;
const CANCELS: usize = 10;

fn open(path: &Path, threads: u32) -> Session {
    let engine = EngineOptions { context: 2048, slots: 1, threads, ..EngineOptions::default() };
    Session::open(OpenOptions { path: path.into(), engine, ..OpenOptions::default() }).unwrap()
}

fn start(session: &Session, mut each: impl FnMut(bool) + Send + 'static) {
    session.prefill(&[1, 5, 9], 0).unwrap();
    let callback = move |event: Event<'_>| each(event.done);
    session.generate(TOKENS, Some(0.0), Some(1.0), Sink::Callback(Box::new(callback))).unwrap();
}

/// Times between tokens of one generation after the other, for as long as `go_on` says before each.
fn times(session: &Session, mut go_on: impl FnMut() -> bool) -> Vec<Duration> {
    let mut all = Vec::new();
    while go_on() {
        let (sender, receiver) = channel();
        start(session, move |done| {
            let _ = sender.send((Instant::now(), done));
        });
        let at: Vec<Instant> = receiver.iter().filter(|(_, done)| !done).map(|(at, _)| at).collect();
        all.extend(at.windows(2).map(|pair| pair[1] - pair[0]));
    }
    all
}

/// Loads again and again until it is told to stop; how often, and how long one took.
fn loads(path: &Path, stop: &AtomicBool) -> (u32, Duration) {
    let (started, mut count) = (Instant::now(), 0);
    while !stop.load(SeqCst) {
        drop(open(path, 0));
        count += 1;
    }
    (count, started.elapsed() / count.max(1))
}

fn line(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let p99 = at(0.99);
    println!("  {what:<12} {:>6} tokens   median {:>9.2?}   p99 {p99:>9.2?}", times.len(), at(0.5));
    p99
}

fn main() {
    let mb = std::env::args().find_map(|a| a.parse::<u32>().ok()).unwrap_or(600);
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large.gguf");
    // 12.6 million weights a layer, of 34 bytes for 32.
    let shape =
        Shaped { n_vocab: 32_000, n_embd: 1024, n_ff: 2730 / 32 * 32, n_layer: 1, n_head: 16, ty: TensorType::Q8_0 };
    let (tables, layer) = (2 * 32_000 * 1088 / 1_000_000, (4 * 1024 + 3 * shape.n_ff) * 1088 / 1_000_000);
    Shaped { n_layer: (mb.saturating_sub(tables) / layer).max(1), ..shape }.write(&large);
    println!("a model of {} MB is loaded", std::fs::metadata(&large).unwrap().len() / 1_000_000);
    let stop = AtomicBool::new(false);
    let alone = thread::scope(|scope| {
        let loading = scope.spawn(|| loads(&large, &stop));
        thread::sleep(Duration::from_secs(3));
        stop.store(true, SeqCst);
        loading.join().unwrap().1
    });
    println!("alone a load takes {alone:.2?}");

    let mut missed = false;
    for (n_embd, n_layer) in [(256, 4), (512, 8), (1024, 12)] {
        let path = folder.path().join("decoding.gguf");
        let shape = Shaped { n_vocab: 4096, n_embd, n_ff: 3 * n_embd, n_layer, n_head: 8, ty: TensorType::Q8_0 };
        shape.write(&path);
        for threads in [default_thread_count(), 1] {
            println!(
                "decoding a model of {} MB on {threads} threads",
                std::fs::metadata(&path).unwrap().len() / 1_000_000
            );
            let session = open(&path, threads);
            session.configure(Settings { ignore_eos: true, ..Settings::default() }).unwrap();
            let until = Instant::now() + Duration::from_secs(3);
            let undisturbed = line("undisturbed", times(&session, || Instant::now() < until));
            let stop = AtomicBool::new(false);
            let (beside, loading) = thread::scope(|scope| {
                let loading = scope.spawn(|| loads(&large, &stop));
                let until = Instant::now() + Duration::from_secs(6);
                let beside = times(&session, || Instant::now() < until);
                stop.store(true, SeqCst);
                (beside, loading.join().unwrap())
            });
            let beside = line("beside", beside);
            let ratio = beside.as_secs_f64() / undisturbed.as_secs_f64();

            let stop = AtomicBool::new(false);
            let late = thread::scope(|scope| {
                let loading = scope.spawn(|| loads(&large, &stop));
                let late = (0..CANCELS).map(|_| tokens_after_cancel(&session)).max().unwrap_or(0);
                stop.store(true, SeqCst);
                loading.join().unwrap();
                late
            });
            let ok = ratio <= 2.0 && late <= 2;
            missed |= !ok;
            let verdict = if ok { "ok" } else { "MISSED" };
            println!(
                "  ratio {ratio:.2}, at most {late} tokens after a cancel, {} loads of {:.2?}   {verdict}",
                loading.0, loading.1
            );
        }
    }
    std::process::exit(i32::from(missed));
}

/// Tokens that come after a cancel from another thread.
fn tokens_after_cancel(session: &Session) -> usize {
    let (seen, (sender, over)) = (Arc::new(AtomicUsize::new(0)), channel());
    let count = seen.clone();
    start(session, move |done| {
        if done {
            let _ = sender.send(());
        } else {
            count.fetch_add(1, SeqCst);
        }
    });
    thread::sleep(Duration::from_millis(30));
    session.cancel();
    let before = seen.load(SeqCst);
    over.recv().unwrap();
    seen.load(SeqCst) - before
}
