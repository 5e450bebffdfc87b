//! libelizainference runs GGUF language models on the user's own device and streams tokens to its host.
//!
//! The modules (rooms) are on floors, and each imports only from lower floors (`tests/house/floors.rs` has the list):
//! [`ffi`] and the command line on top of [`session`], then [`engine`], [`model`], [`schedule`], [`sampling`] and
//! [`remote`], [`backend`], [`chat`], [`grammar`] and [`trie`], [`graph`] and [`vocab`], and at the bottom [`quant`],
//! [`gguf`], [`simd`], [`Error`], the panic boundary ([`panic`]), the functions that reserve memory and those that put
//! text together. `docs/design.md` describes each room.

// Sizes of caches and products are checked to fit 64 bits; on 32 they would wrap around.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("libelizainference needs a target with 64-bit pointers: on others its sizes are not tested");

pub mod backend;
pub mod chat;
mod disk;
pub mod engine;
mod error;
#[cfg(not(feature = "unexported"))]
pub mod ffi;
pub mod gguf;
pub mod grammar;
pub mod graph;
pub mod model;
pub mod panic;
pub mod quant;
pub mod remote;
mod reserve;
pub mod sampling;
pub mod schedule;
pub mod session;
pub mod simd;
pub mod trie;
mod utf8;
pub mod vocab;

pub use error::{Error, Result};

/// A token id. Negative values never name a token; `-1` marks "none" at the C boundary.
pub type Token = i32;
