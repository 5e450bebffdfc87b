//! Grammars through their public face.
#![allow(clippy::unwrap_used)]

mod allocations;
mod cases;
mod hostile;
mod jumps;
mod lazy;
mod oracle;
mod peer;
mod rules;
mod sources;
#[path = "../testing/mod.rs"]
mod testing;
mod texts;

use testing::allocator::PerThread;
#[global_allocator]
static ALLOCATOR: PerThread = PerThread;
mod naive;
mod regex;
mod schema;
