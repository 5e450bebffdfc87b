//! Sessions over real engines, from opening a model to the text that comes out.
#![allow(clippy::unwrap_used)]

mod context_shift;
mod conversations;
mod embeddings;
mod grammars;
mod guessing;
mod loading;
mod messages;
mod saved_streams;
mod schemas;
mod sharing;
#[cfg(feature = "testing")]
mod soak;
mod streams;
#[path = "../testing/mod.rs"]
mod testing;
mod tries;
