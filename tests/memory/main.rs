//! Memory and allocations of a whole process.
//!
//! What a test measures here, others in the process would disturb: each test takes its turn ([`turn`]), or has a
//! process of its own ([`alone`]).
#![allow(clippy::unwrap_used)]

mod decoding;
#[cfg(feature = "gpu")]
mod gpu_decoding;
mod many_layers;
mod plan;
#[path = "../testing/mod.rs"]
mod testing;

use elizainference::session::{Event, Session, Sink};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;
use testing::allocator::Counting;
use testing::process;

fn count() {
    decoding::count();
    #[cfg(feature = "gpu")]
    gpu_decoding::count();
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(count);

/// Waits until no other test of this file runs.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether this process runs nothing but the calling test, whose path is `test`. If not, the test has been run in such
/// a process, and there is nothing left to do.
fn alone(test: &str) -> bool {
    if process::is_child() {
        return true;
    }
    let _turn = turn();
    process::run(&mut process::of(test));
    false
}

/// Generates at most so many tokens, and returns once the session is idle. While there are events this thread waits at
/// no lock and no channel: there a thread's first wait allocates.
fn generate(
    session: &Session,
    most: u32,
    temperature: Option<f32>,
    mut callback: impl FnMut(Event<'_>) + Send + 'static,
) {
    let answering = Arc::new(());
    let held = answering.clone();
    let callback = move |event: Event<'_>| {
        let _ = &held;
        callback(event);
    };
    session.generate(most as i32, temperature, None, Sink::Callback(Box::new(callback))).unwrap();
    while Arc::strong_count(&answering) > 1 || session.status().busy {
        thread::sleep(Duration::from_millis(1));
    }
}
