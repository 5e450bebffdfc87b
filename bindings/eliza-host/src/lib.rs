//! The shared library of ABI 15 that elizaOS's loader opens: models opened through a context over a bundle folder, and
//! streams that are pulled.
//!
//! Its functions have names of the core's C interface and other arguments, so it is a library of its own, with one of
//! the two sets alone. It uses [`elizainference::session`], and keeps these rules:
//!
//! * A context and a stream are numbers that are never used again (`table.rs`), so a call on one that was closed is an
//!   error, also while another thread is just closing it.
//! * What takes long runs on threads of the library: models are opened (`later.rs`) and prompts read while the host
//!   does something else, and only `next` waits for them, and not long (`stream.rs`). What returns a result of the
//!   model (`embed`, `llm_eot_score`) or of the disk (`save_slot`, `restore_slot`) has to wait for it.
//! * A stream takes an engine for its life, and gives it back with all that it has read (`engine.rs`), since hosts open
//!   a stream for each answer.
//! * Every body runs within the panic boundary, and a failure is the code and the text of its own call (`edge.rs`).
//! * What hosts look for and this library does not do is there and says so (`lacking.rs`).
//!
//! In what follows "null rule" says which pointers may be NULL; handles that are NULL, closed or foreign are always
//! `ELIZA_ERR_INVALID_ARG`, and `out_error`, which is written only where a call fails, may be NULL.
#![cfg(feature = "exports")]

pub mod answers;
mod bundle;
pub mod config;
pub mod context;
pub mod edge;
mod engine;
pub mod lacking;
mod later;
pub mod stream;
mod table;
pub mod tries;
