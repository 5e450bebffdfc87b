//! The arguments and results of a session: options, sinks, events, finish reasons.
//!
//! Plain data only; the methods of [`Session`](super::Session) document when each is legal.

use super::{EngineOptions, Params, RemoteOptions, StoreOptions};
use crate::engine::LeafScore;
use crate::remote::Facts;
use crate::trie::TrieState;
use crate::{Error, Token};
use std::ffi::c_char;
use std::path::{Path, PathBuf};

/// How to open a session.
#[derive(Default)]
pub struct OpenOptions {
    /// The GGUF file, or the address of a server that has the model: `KIND:URL#MODEL`, such as
    /// `vllm:https://host:8000/v1#name`; kinds are [`KINDS`](crate::remote::KINDS), and without a name the server's
    /// first model answers. Of `engine` only `slots` has an effect then, and `context` where the server says none.
    pub path: PathBuf,
    /// Models in its place, files or addresses, in their order: every prompt is given to the first model that can be
    /// opened, has room for it and does not fail before its first token. All have the vocabulary of the first that was
    /// opened; those after it are opened when they are needed.
    /// [`Session::served_by`](super::Session::served_by) says which one answers.
    pub fallback: Vec<PathBuf>,
    /// Context size, threads, placement and key/value format.
    pub engine: EngineOptions,
    /// The GGUF file of a draft model, a small one: what it guesses is evaluated in the pass of the token before, where
    /// that has paid. It changes no token. With another vocabulary it guesses by text, which pays less. The
    /// model's own file, where that has a block that predicts further tokens (NextN, MTP): the block guesses. It takes
    /// memory for a context of its own, and shares no engine.
    pub draft: Option<PathBuf>,
    /// Opens the vocabulary alone, without weights: only the methods about text, tokens and the file work. `engine` and
    /// `progress` have no effect.
    pub vocab_only: bool,
    /// Where conversations are kept; see [`Session::persist`](super::Session::persist).
    pub store: Option<StoreOptions>,
    /// How a server is reached.
    pub remote: RemoteOptions,
    /// Called on the opening thread with the fraction loaded, 0 to 1; answering `false` cancels the load.
    pub progress: Option<Box<dyn FnMut(f32) -> bool + Send>>,
}

/// What [`Session::configure`](super::Session::configure) sets; it holds until set again.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Sampling parameters, used unless a chain is set for the slot.
    pub params: Params,
    /// Stop strings, as bytes. None may be empty.
    pub stop: Vec<Vec<u8>>,
    /// Forbids end-of-generation tokens wherever no token trie decides.
    pub ignore_eos: bool,
    /// What the end of a constrained span does.
    pub on_span_end: SpanEnd,
    /// Turns the warnings of [`Session::set_trie`](super::Session::set_trie) into refusals.
    pub strict_trie: bool,
    /// How many candidates [`Session::sampled`](super::Session::sampled) keeps, likeliest first; 0 keeps none.
    pub candidates: usize,
    /// What a full context does.
    pub on_context_full: ContextFull,
    /// Spells control tokens in the text, which else have none: [`Session::chat_parts`](super::Session::chat_parts)
    /// reads them. A token that ends the generation has no text either way.
    pub special_text: bool,
    /// Never evaluates tokens that the text suggests before they are sampled. That changes no token; it is done where
    /// it has paid in the generation so far.
    pub no_guessing: bool,
    /// How long the model may think; `None` is as long as it likes.
    pub reasoning: Option<ReasoningBudget>,
}

/// How many tokens a model may think. Then the end of its thinking is forced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningBudget {
    /// The tokens between the tags, in each block; 0 ends it at once.
    pub tokens: u32,
    /// The text with which thinking begins, such as `<think>`.
    pub start: String,
    /// The text with which it ends, such as `</think>`; a message before the tag is forced with it.
    pub end: String,
}

/// What the end of a constrained span does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpanEnd {
    /// Generation goes on without the constraint; the token that ended a leaf with children is emitted.
    #[default]
    Continue,
    /// Generation ends with [`FinishReason::Span`]. The token that ended a leaf with children is neither emitted nor
    /// kept; the last token of a leaf without children is part of the span and is emitted.
    Stop,
}

/// What a generation does when its tokens fill the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContextFull {
    /// It ends with [`FinishReason::Context`].
    #[default]
    Stop,
    /// Context shift: the first `keep` tokens and the last half of the others are kept, those in between are removed,
    /// and generation goes on.
    Shift {
        /// Number of tokens at the beginning that are kept.
        keep: u32,
    },
}

/// Where the tokens of one generation go.
pub enum Sink {
    /// Kept until [`Session::next`](super::Session::next) takes them.
    Queue,
    /// Given to this function on the session's worker thread, one call per token and one terminal call.
    Callback(Box<dyn FnMut(Event<'_>) + Send>),
}

/// One token of a generation, or its end.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// The token, or -1 on the terminal event.
    pub token: Token,
    /// The whole characters that this token completed, exactly as generated; often a word, sometimes empty.
    pub text: &'a str,
    /// The same text in the session's arena, for callers that read it after the call.
    pub stored: ArenaText,
    /// True on the terminal event alone.
    pub done: bool,
}

/// Text in a session's arena: readable until the next prefill or generate on that session.
#[derive(Debug, Clone, Copy)]
pub struct ArenaText {
    /// The text as generated, `len` bytes and a NUL after them.
    pub exact: *const c_char,
    /// Bytes at `exact`, without the closing NUL.
    pub len: usize,
    /// The text as a C string: `exact`, or a copy with U+FFFD in place of each NUL character.
    pub c_string: *const c_char,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(i32)]
pub enum FinishReason {
    /// It has not ended, or there was none.
    #[default]
    None = 0,
    /// An end-of-generation token or a stop string.
    Stop = 1,
    /// `max_new_tokens` tokens were emitted.
    Length = 2,
    /// The caller cancelled it or closed the session.
    Cancelled = 3,
    /// It failed; [`Session::status`](super::Session::status) has the error.
    Error = 4,
    /// The context is full.
    Context = 5,
    /// A constrained span ended and [`SpanEnd::Stop`] was set.
    Span = 6,
}

/// The state of a session.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// A prefill or a generation is running.
    pub busy: bool,
    /// A generate would be accepted: a prefill succeeded and no generate has used it.
    pub prefilled: bool,
    /// Why the last generation ended; [`FinishReason::None`] while one runs and after a prefill.
    pub finish_reason: FinishReason,
    /// The error of the last call or generation to finish, if that failed. Unlike
    /// [`Session::take_error`](super::Session::take_error) reading it changes nothing.
    pub error: Option<Error>,
}

/// The result of one [`Session::next`](super::Session::next).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pull {
    /// Tokens written.
    pub tokens: usize,
    /// Text bytes written, without the closing NUL.
    pub text_bytes: usize,
    /// The generation ended and all of its output was taken.
    pub done: bool,
}

/// What was opened, and with which sizes.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct ModelInfo {
    /// The file it was opened from. In JSON what is not UTF-8 of it is U+FFFD.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Names a trie payload may call the model by: `general.name`, `general.basename`, the file stem.
    pub ids: Vec<String>,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Whether the model continues texts; else it gives rows of texts alone.
    pub generates: bool,
    /// Context length the model was trained with, in tokens.
    pub train_context: u32,
    /// Context of the session, in tokens; its slots share it.
    pub context: u32,
    /// Threads that compute.
    pub threads: u32,
    /// Number of slots.
    pub slots: u32,
    /// How many sessions share an engine.
    pub parallel: u32,
    /// The most tokens of a prompt that one pass evaluates.
    pub n_batch: u32,
    /// Element type of the cached keys.
    pub kv_type: String,
    /// Element type of the cached values.
    pub kv_type_v: String,
    /// The device that computes most.
    pub device: String,
    /// Why that device was chosen.
    pub device_reason: String,
    /// Why no GPU computes; `None` where one does.
    pub no_gpu_reason: Option<String>,
    /// Bytes of weights that decoding one token reads, on all devices.
    pub weight_bytes_per_token: u64,
    /// The server that has the model; `None` where it is here.
    pub server: Option<Facts>,
}

fn lossy<S: serde::Serializer>(path: &Path, out: S) -> std::result::Result<S::Ok, S::Error> {
    out.serialize_str(&path.to_string_lossy())
}

/// The probabilities of a descriptor's leaves, see [`Session::score_trie`](super::Session::score_trie).
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct LeafScores {
    /// The descriptor's path.
    pub path: String,
    /// Its leaves, the most probable first.
    pub leaves: Vec<NamedScore>,
}

/// One of [`LeafScores::leaves`]; see [`LeafScore`].
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct NamedScore {
    /// The leaf's name.
    pub name: String,
    /// Its number of tokens.
    pub tokens: u32,
    /// The natural logarithm of the probability that exactly this leaf follows.
    pub logprob: f64,
    /// `logprob` divided by the number of tokens.
    pub logprob_per_token: f64,
}

impl LeafScores {
    pub(crate) fn new(trie: &TrieState, scores: &[LeafScore]) -> LeafScores {
        let named = |score: &LeafScore| NamedScore {
            name: trie.trie().leaf(score.node).unwrap_or_default().into(),
            tokens: score.tokens,
            logprob: score.logprob,
            logprob_per_token: score.logprob_per_token(),
        };
        let mut leaves: Vec<NamedScore> = scores.iter().map(named).collect();
        // Equally probable leaves keep the order in which a generation prefers them.
        leaves.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        LeafScores { path: trie.descriptor().map_or("", |one| one.path()).into(), leaves }
    }
}
