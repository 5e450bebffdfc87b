//! The addon of the npm package `eliza-inference` for Node: what `bindings/js/native.ts` asks of a runtime, over
//! [`elizainference::session`].
//!
//! It keeps these rules:
//!
//! * Failures and panics become one kind of JavaScript error, made in `edge.rs`; `bindings/node/addon.ts` reads it.
//! * What takes long runs on a thread of its own (`background.rs`), never in the pool of Node, which files and the
//!   network need.
//! * Tokens reach JavaScript through a bounded thread-safe function (`generation.rs`): while JavaScript is busy the
//!   model waits.
//! * Every environment (the main thread, each worker) has handles of its own; when it ends they are closed, whatever
//!   runs.
//! * Loading the addon runs no code of ours, and the only mutable global belongs to a thread.

mod asking;
mod background;
mod edge;
mod generation;
mod grammars;
mod handle;
mod options;
mod saved;
#[cfg(feature = "testing")]
mod testing;
mod tries;
