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

use std::sync::{Mutex, MutexGuard};
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
