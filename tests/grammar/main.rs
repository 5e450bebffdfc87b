//! Grammars through their public face.
#![allow(clippy::unwrap_used)]

mod allocations;
mod cases;
mod hostile;
mod jumps;
#[cfg(feature = "llguidance")]
mod lark;
mod lazy;
mod naive;
mod oracle;
mod peer;
mod regex;
mod rules;
mod schema;
mod sources;
mod spans;
#[path = "../testing/mod.rs"]
mod testing;
mod texts;

use testing::allocator::PerThread;

#[global_allocator]
static ALLOCATOR: PerThread = PerThread;
