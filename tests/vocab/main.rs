//! Vocabularies: texts to tokens and back, and the memory that takes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod families;
mod memory;
mod peer;
#[path = "../testing/mod.rs"]
mod testing;
mod tokenizer;

use testing::allocator::PerThread;

#[global_allocator]
static ALLOCATOR: PerThread = PerThread;
