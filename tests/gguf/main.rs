//! Model files: reading, writing, broken and hostile ones, and the types of tensors in them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hostile;
mod peer;
mod quant;
mod split;
#[path = "../testing/mod.rs"]
mod testing;
mod write;

use testing::allocator::PerThread;

#[global_allocator]
static ALLOCATOR: PerThread = PerThread;
