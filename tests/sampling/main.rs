//! The sampler through its public face.
#![allow(clippy::unwrap_used)]

mod allocations;
mod chain;
mod golden;
mod options;
mod peer;
mod selecting;
#[path = "../testing/mod.rs"]
mod testing;

use testing::allocator::PerThread;

#[global_allocator]
static ALLOCATOR: PerThread = PerThread;
