//! A GPU beside the CPU. All of it is skipped where there is no adapter, unless `ELIZA_REQUIRE_GPU` asks for one.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used)]

mod architectures;
mod embeddings;
mod engine;
mod sampling;
mod several;
mod sharing;
#[path = "../testing/mod.rs"]
mod testing;
#[path = "../../src/backend/gpu/kernel/translation.rs"]
mod translation;
mod trie_walk;
