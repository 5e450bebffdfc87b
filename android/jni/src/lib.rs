//! The JNI face of libelizainference: the native methods of the Java class `ai.eliza.inference.Native`.
//!
//! It uses [`elizainference::session`], where every failure is the result of the call that failed; so none can be
//! lost or be taken by another thread. It keeps these rules:
//!
//! * Native threads never call Java. Java pulls, on threads of its own, so no thread is ever attached, no `JNIEnv` is
//!   kept, and nothing here keeps a process alive. (The progress of a load is told on the thread that loads.)
//! * A session is a number that is never used again, so a call on one that was closed is an exception, also when
//!   another thread is just closing it.
//! * Text goes in and out as UTF-8 in direct buffers; only rare texts (errors, JSON) are made Java strings here.
//! * A failure and a panic become one `ElizaException` with code and message (`edge.rs`).
//! * Loading the library runs no code of ours.
//!
//! The C interface is exported as well (see `include/eliza_inference.h`), so an app with C++ code needs no second
//! library.

mod arguments;
mod asking;
mod edge;
mod grammars;
mod options;
mod saved;
mod session;
mod table;
#[cfg(feature = "testing")]
mod testing;
mod tries;
