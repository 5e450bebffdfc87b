//! The engine's slots: several in one step, removals from the cache, saved slots, leaves scored in a slot; all of it
//! with every architecture.
#![allow(clippy::unwrap_used)]

mod architectures;
mod embeddings;
mod encoder_decoder;
mod leaf_scores;
mod packed_cache;
mod reading;
mod removal;
mod saved_slots;
mod several_slots;
mod shared_prefix;
mod states;
#[path = "../testing/mod.rs"]
mod testing;
mod windows;
