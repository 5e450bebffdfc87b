//! What opening a model takes by its parts, beside reading its file: `cargo bench --bench open -- MODEL [ROUNDS]`.
//!
//! With `ELIZA_CACHE_DIR` the first open repacks the weights into that folder, and later ones map them: an empty folder
//! and one round measure the first open, the same again a later one. The file is in the page cache. Printed are the
//! least and the median of the rounds; "load" is all of the model (header, vocabulary, weights), "plans" the rest of an
//! open. The bounds: a second open takes 50 ms at most, a first one 1.3 times as long as reading the file's bytes.
#![allow(clippy::unwrap_used)]

use elizainference::engine::{Engine, EngineOptions, default_thread_count, open_model};
use elizainference::gguf::File;
use elizainference::vocab::Vocab;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Rounds, unless told otherwise.
const ROUNDS: usize = 7;

/// How long a call takes.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let began = Instant::now();
    let result = work();
    (began.elapsed(), result)
}

/// Read the whole file on some threads, 1 MiB at a time.
fn read(path: &Path, threads: u64) {
    let length = std::fs::metadata(path).unwrap().len();
    let part = length.div_ceil(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                use std::io::{Read, Seek, SeekFrom};
                let mut file = std::fs::File::open(path).unwrap();
                file.seek(SeekFrom::Start(thread * part)).unwrap();
                let (mut buffer, mut left) = (vec![0; 1 << 20], part);
                while left > 0 {
                    let most = buffer.len().min(left as usize);
                    match file.read(&mut buffer[..most]).unwrap() {
                        0 => break,
                        n => left -= n as u64,
                    }
                }
            });
        }
    });
}

/// One open: the model, the engine, the first token.
fn open(path: &Path) -> [Duration; 3] {
    let options = EngineOptions { context: 2048, ..EngineOptions::default() };
    let (load, model) = timed(|| open_model(path, &options, None).unwrap());
    let (plans, mut engine) = timed(|| Engine::new(model, &options).unwrap());
    let slot = engine.take_slot(-1).unwrap();
    let (first, ()) = timed(|| {
        engine.prefill(slot, &[1], &AtomicBool::new(false)).unwrap();
        engine.head(slot).unwrap();
    });
    [load, plans, first]
}

/// A line with the least and the median.
fn line(name: &str, mut times: Vec<Duration>) {
    times.sort();
    println!("{name:<20} {:>9.2?} {:>9.2?}", times[0], times[times.len() / 2]);
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let Some(path) = args.next() else {
        println!("cargo bench --bench open -- MODEL [ROUNDS]");
        return;
    };
    let path = Path::new(&path);
    let rounds = args.next().map_or(ROUNDS, |n| n.parse().unwrap());
    let threads = u64::from(default_thread_count());
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); 7];
    read(path, threads);
    for _ in 0..rounds {
        let (header, file) = timed(|| File::open(path).unwrap());
        let (vocabulary, vocab) = timed(|| Vocab::from_gguf(&file).unwrap());
        drop(vocab);
        let [load, plans, first] = open(path);
        let row = [timed(|| read(path, 1)).0, timed(|| read(path, threads)).0, header, vocabulary, load, plans, first];
        for (all, one) in times.iter_mut().zip(row) {
            all.push(one);
        }
    }
    let names = ["read, 1 thread", "read", "header", "vocabulary", "load", "plans", "first token"];
    for (name, times) in names.iter().zip(times) {
        line(name, times);
    }
}
