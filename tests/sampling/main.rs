//! The sampler through its public face.
#![allow(clippy::unwrap_used)]

mod allocations;
mod chain;
#[path = "../testing/mod.rs"]
mod testing;

use testing::allocator::PerThread;

#[global_allocator]
static ALLOCATOR: PerThread = PerThread;
