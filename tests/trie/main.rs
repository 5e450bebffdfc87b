//! The token trie through its public face; `tests/session/tries.rs` has it in sessions.
#![allow(clippy::unwrap_used)]

mod allocations;
mod build;
mod cache;
mod random;
mod rules;
#[path = "../testing/mod.rs"]
mod testing;

use testing::allocator::PerThread;

#[global_allocator]
static ALLOCATOR: PerThread = PerThread;
