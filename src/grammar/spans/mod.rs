//! Spans: an answer as a line of literals, choices, values and free text, made into rules of a grammar.
//!
//! A host describes the line as JSON ([`load`]), sends one of elizaOS's response skeletons ([`load_skeleton`]), or
//! sends a grammar in which the line is found ([`recognise`]). In every case the result is a grammar whose rules are
//! marked with the numbers of spans, and a [`SpanPlan`](super::SpanPlan) that says what those are; the grammar's engine
//! does the rest: forced text, masks, streams. Which span a token belongs to decides how it is sampled, and hosts hear
//! of spans as they begin and end ([`SpanTracker`]).

mod events;
mod free;
mod lex;
mod lower;
mod model;
mod payload;
mod read;
mod recognise;
mod skeleton;

pub use events::{SpanEvent, SpanTracker};
pub use lower::Lowered;
pub use payload::{MAX_DEPTH, MAX_SPANS, MAX_TEXT_BYTES, MAX_UNTIL_BYTES, MAX_VALUES};
pub use read::{load, load_skeleton, recognise};
