//! Steady decoding allocates nothing: a counting allocator over the whole process, read from inside the callback.

mod common;

use common::fixtures::{Kind, Weights};
use elizainference::session::{EngineOptions, Event, FinishReason, Mode, OpenOptions, Session, Sink};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations between the 8th and the 200th token of one generation.
fn steady(session: &Session, temperature: f32) -> u64 {
    session.prefill(&[1, 40, 300, 77], -1).unwrap();
    let marks = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let seen = marks.clone();
    let mut tokens = 0;
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        tokens += 1;
        match tokens {
            8 => seen[0].store(ALLOCATIONS.load(Ordering::Relaxed), Ordering::Relaxed),
            200 => seen[1].store(ALLOCATIONS.load(Ordering::Relaxed), Ordering::Relaxed),
            _ => {}
        }
        assert_eq!(event.done, tokens == 201);
    }));
    session.generate(200, Some(temperature), Some(0.9), sink).unwrap();
    // A channel would allocate while it waits.
    while session.status().busy {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(session.usage().finish_reason, FinishReason::Length);
    marks[1].load(Ordering::Relaxed) - marks[0].load(Ordering::Relaxed)
}

#[test]
fn steady_decoding_allocates_nothing() {
    for (kind, threads) in [(Kind::Llama, 1), (Kind::Qwen3, 2), (Kind::Gemma3, 2)] {
        let path = common::fixture(kind, Weights::Q8_0);
        let engine = EngineOptions { threads, ..EngineOptions::default() };
        let session = Session::open(OpenOptions { path, engine, progress: None }).unwrap();
        let mut settings = session.settings();
        settings.ignore_eos = true;
        settings.stop = vec![b"a stop string that never comes".to_vec()];
        settings.params.repeat_penalty = 1.1;
        settings.candidates = 10;
        session.configure(settings).unwrap();
        for temperature in [0.0, 0.9] {
            assert_eq!(steady(&session, temperature), 0, "{kind:?}, {threads} threads, temperature {temperature}");
        }
        // A span of one long leaf with a choice at its second token, then free text.
        let tail: Vec<String> = (0..150).map(|at| (300 + at % 7).to_string()).collect();
        let leaf = |second: i32| format!(r#"{{"name":"{second}","tokens":[50,{second},{}]}}"#, tail.join(","));
        let json = format!(r#"{{"descriptors":[{{"path":"p","leaves":[{},{}]}}]}}"#, leaf(60), leaf(61));
        session.set_trie(json.as_bytes(), Mode::Sampled).unwrap();
        assert_eq!(steady(&session, 0.9), 0, "{kind:?} with a trie");
    }
}
