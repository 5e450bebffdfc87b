//! Grammars: which tokens may come next so that a text matches GBNF rules.
//!
//! [`Rules`] are read from text ([`gbnf`]) and compiled for a vocabulary to a [`Grammar`]: positions in one list
//! ([`code`]), in which a class of code points is an automaton over the bytes of valid UTF-8 ([`classes`]). What a text
//! so far leaves open is a state, a set of stacks of positions; states, what each byte makes of them and their
//! [`Mask`]s are found when they are first needed and kept ([`tables`]). The vocabulary is a byte trie
//! ([`vocabulary`]), so that a mask is a walk ([`walk`]) that leaves out every subtree with a wrong beginning. A
//! [`GrammarState`] follows a grammar for one stream, by a matcher ([`matcher`]) of its engine: that of rules
//! ([`rule_matcher`]) or, for grammars in Lark, llguidance. [`load`] makes grammars of what hosts hand in.
//!
//! Invariants: a token's bit is set if and only if the token is accepted; an error leaves a state as it was, but for a
//! limit of llguidance's, which ends it; everything that grows with the text, the grammar or their ambiguity has a
//! limit, and tables that are full are made again from the states in use.

mod classes;
mod code;
mod compiled;
mod draft;
mod engine;
mod forced;
mod gbnf;
mod json;
#[cfg(feature = "llguidance")]
mod lark;
mod lazy;
mod mask;
mod matcher;
pub mod regex;
mod repeats;
mod rule_matcher;
mod rules;
pub mod schema;
mod source;
mod span_plan;
pub mod spans;
mod state;
mod tables;
mod vocabulary;
mod walk;

pub use compiled::{Grammar, GrammarCounts, GrammarOptions, JumpAhead};
pub use gbnf::{MAX_DEPTH, MAX_ITEMS, MAX_REPETITIONS, MAX_TEXT_BYTES};
pub use lazy::{MAX_SEARCHED, Trigger};
pub use mask::{MAX_FEW, Mask};
pub use rules::Rules;
pub use source::{MAX_SOURCE_BYTES, load, to_gbnf};
pub use span_plan::{MAX_SAMPLINGS, SpanInfo, SpanKind, SpanPlan, SpanSampling};
pub use state::GrammarState;
pub use tables::{MAX_STACKS, MAX_STEPS};
