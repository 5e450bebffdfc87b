//! One stream: worker, prefill, generate, text assembly, usage.
//!
//! A [`Session`] owns a worker thread, and the worker owns the engine; callers on any thread talk to it through this
//! type. At most one prefill or generation runs at a time.

mod options;
mod queue;
mod standin;
mod stop;
mod text;
mod usage;

pub use options::{ArenaText, Event, FinishReason, ModelInfo, OpenOptions, Pull, Settings, Sink, SpanEnd, Status};
pub use standin::{Chain, EngineOptions, KvType, Mode, Params, Sampled, Vocab};
pub use text::Arena;
pub use usage::Usage;

use crate::{Error, Result, Token};
use std::sync::Arc;
use std::time::Duration;

/// One stream of tokens from one model. All methods take `&self` and may be called from any thread.
///
/// Every failing call also leaves its error for [`status`](Session::status) and [`take_error`](Session::take_error).
/// [`cancel`](Session::cancel), [`close`](Session::close), [`status`](Session::status), [`usage`](Session::usage),
/// [`sampled`](Session::sampled) and [`take_error`](Session::take_error) are legal at any time, inside the token
/// callback too; every other call made while the session is busy fails with [`Error::Busy`] and changes nothing.
///
/// Dropping the session closes it. It waits for the worker to end, except while a generation runs or its callback has
/// not returned: then the worker frees everything itself after the terminal event.
pub struct Session {}

impl Session {
    /// Loads the model on the calling thread and starts the worker.
    ///
    /// Fails with the reader's, the model's or the engine's error, or [`Error::Cancelled`] when `progress` said so.
    pub fn open(options: OpenOptions) -> Result<Session> {
        Err(Error::Unsupported(format!("{}: sessions are not built yet", options.path.display())))
    }

    /// The model's vocabulary.
    pub fn vocab(&self) -> &Arc<Vocab> {
        todo!()
    }

    /// What was opened, and with which sizes.
    pub fn info(&self) -> &ModelInfo {
        todo!()
    }

    /// Brings `tokens` into slot `slot_id` (-1: a fresh one), reusing what the slot already holds, and blocks until that
    /// is done. Returns how many tokens the slot now holds, which is `tokens.len()`.
    ///
    /// Success re-arms the token trie. Fails with [`Error::InvalidArgument`] (no tokens, a token or slot that does not
    /// exist), [`Error::OutOfMemory`] (longer than the context), [`Error::Cancelled`], [`Error::Busy`] (also when
    /// called from the token callback); after a failure a new prefill is needed before generate.
    pub fn prefill(&self, tokens: &[Token], slot_id: i32) -> Result<usize> {
        let _ = (tokens, slot_id);
        todo!()
    }

    /// Starts a generation and returns at once; its tokens go to `sink`.
    ///
    /// `max_new_tokens` 0 ends at once, negative runs to the end of the context. `temperature` and `top_p`, where given,
    /// override the settings and the slot's chain. Every accepted generate gets exactly one terminal event, also after
    /// cancel, close and errors.
    ///
    /// Fails with [`Error::Busy`] while generating and when no prefill succeeded since the last generate, with the
    /// reason of a failed [`set_trie`](Session::set_trie) until a trie is set or cleared, and with
    /// [`Error::InvalidArgument`] when the sampling parameters are out of range.
    pub fn generate(
        &self,
        max_new_tokens: i32,
        temperature: Option<f32>,
        top_p: Option<f32>,
        sink: Sink,
    ) -> Result<()> {
        let _ = (max_new_tokens, temperature, top_p, sink);
        todo!()
    }

    /// Takes what a generation with [`Sink::Queue`] has produced: up to `tokens_out.len()` tokens and their text, which
    /// is followed by a NUL. Waits up to `timeout` (`None`: without end, zero: not at all) for the first token; nothing
    /// in time is `Pull::default()`.
    ///
    /// A step ends early rather than cut a character or a token's text; only a token whose text alone exceeds the
    /// buffer has its text spread over several steps, the later ones without tokens. NUL characters in the text become
    /// U+FFFD. A failed generation returns its error after everything it produced was taken.
    ///
    /// Fails with [`Error::InvalidArgument`] when `tokens_out` is empty, `text_out` is shorter than 8 bytes or there
    /// is no generation to read, and with [`Error::Busy`] when the generation has a callback.
    pub fn next(&self, timeout: Option<Duration>, tokens_out: &mut [Token], text_out: &mut [u8]) -> Result<Pull> {
        let _ = (timeout, tokens_out, text_out);
        todo!()
    }

    /// Asks the running prefill or generation to stop, by one atomic store; seen within one token or one group of
    /// layers. Nothing happens when none runs.
    pub fn cancel(&self) {
        todo!()
    }

    /// Ends the session: cancels what runs and refuses every later call. Never waits; the worker frees the engine after
    /// the terminal event.
    pub fn close(&self) {
        todo!()
    }

    /// Replaces the settings. Fails with [`Error::Busy`] or [`Error::InvalidArgument`] (an empty stop string, a
    /// parameter out of range) and then changes nothing.
    pub fn configure(&self, settings: Settings) -> Result<()> {
        let _ = settings;
        todo!()
    }

    /// The settings in force; at open the model's own sampling defaults over the library's.
    pub fn settings(&self) -> Settings {
        todo!()
    }

    /// Sets the sampler chain of generations on slot `slot_id` (-1: of fresh slots), in place of the parameters of the
    /// settings; `None` goes back to those.
    pub fn set_chain(&self, slot_id: i32, chain: Option<Chain>) -> Result<()> {
        let _ = (slot_id, chain);
        todo!()
    }

    /// Constrains what follows to the trie of a JSON payload and arms its first descriptor.
    ///
    /// A failure other than [`Error::Busy`] bars generate until a set succeeds or the trie is cleared, so that a caller
    /// that ignores it never gets unconstrained output.
    pub fn set_trie(&self, json: &[u8], mode: Mode) -> Result<()> {
        let _ = (json, mode);
        todo!()
    }

    /// Removes the trie, if any, and the bar a failed set left.
    pub fn clear_trie(&self) -> Result<()> {
        todo!()
    }

    /// Arms the descriptor with this path, or with `None` the next in payload order.
    pub fn arm_trie(&self, path: Option<&str>) -> Result<()> {
        let _ = path;
        todo!()
    }

    /// How the session stands.
    pub fn status(&self) -> Status {
        todo!()
    }

    /// The latest error that was not taken yet; each is given once.
    pub fn take_error(&self) -> Option<Error> {
        todo!()
    }

    /// Counters and times of the last prompt and the generation after it.
    pub fn usage(&self) -> Usage {
        todo!()
    }

    /// Usage, sizes and names as one JSON object.
    pub fn usage_json(&self) -> String {
        todo!()
    }

    /// The token sampled last on this slot (-1: the fresh one), `None` before the first. Forced tokens are not sampled.
    pub fn sampled(&self, slot_id: i32) -> Option<Sampled> {
        let _ = slot_id;
        todo!()
    }

    /// The memory that holds the text of events; holding it keeps that text readable after close.
    pub fn arena(&self) -> Arc<Arena> {
        todo!()
    }
}
