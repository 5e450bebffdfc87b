//! The C exports: handles, strings, errors, panic boundary. One file per C noun.
//!
//! The doc comments of the exports become the comments of `include/eliza_inference.h`, so they speak to a C programmer:
//! ownership, null rule, thread rule, every status. What each export does is done by [`session`](crate::session); this
//! room only converts between C and Rust, by these rules:
//!
//! * every body runs within the panic boundary ([`panic`](crate::panic)) and every failure is kept (`errors.rs`);
//! * no pointer is read before its null, alignment and length rule was checked (`args.rs`);
//! * no lock is held while host code runs or while the caller blocks.
//!
//! Bindings written in Rust use [`session`](crate::session) and [`panic`](crate::panic) instead, and share with the C
//! calls the numbers of the errors ([`code`]).

// The header's documentation states the callers' obligations; a second list in Rust terms would drift from it.
#![allow(clippy::missing_safety_doc)]

mod args;
mod chat;
mod devices;
mod embed;
mod errors;
mod grammar;
mod handle;
mod host;
mod llama;
mod log;
mod model;
mod open;
mod options;
#[cfg(windows)]
mod pin;
mod pull;
mod recent;
mod sampler;
mod saved;
mod state;
mod status;
mod stream;
mod strings;
#[cfg(feature = "testing")]
mod testing;
#[cfg(feature = "testing")]
mod testing_noop;
mod tokens;
mod trie;
mod usage;
mod version;

pub use chat::*;
pub use devices::*;
pub use embed::*;
pub use errors::*;
pub use grammar::*;
pub use handle::{FfiLlmHandle, LlmSession};
pub use llama::{Interface, LlamaSampler, LlamaVocab, SamplerInit, TokenDataArray};
pub use log::*;
pub use model::*;
pub use open::*;
pub use options::*;
pub use pull::*;
pub use sampler::*;
pub use saved::*;
pub use status::*;
pub use stream::*;
pub use strings::*;
#[cfg(feature = "testing")]
pub use testing::*;
#[cfg(feature = "testing")]
pub use testing_noop::*;
pub use tokens::*;
pub use trie::*;
pub use usage::*;
pub use version::*;
