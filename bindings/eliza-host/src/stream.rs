//! Streams: prompt in, steps of an answer out.
//!
//! A stream holds the tokens of a text: prompts are added to it, and so is what was handed out of an answer. The engine
//! has read some beginning of it, whatever it is, and reads the rest when an answer is wanted; so nothing of the engine
//! has to be kept in step with the host.

use crate::bundle::check_draft;
use crate::config::{Config, StreamConfig};
use crate::context::{CONTEXTS, Context, EliInferenceContext};
use crate::edge::{ELIZA_OK, array, array_mut, call, done, invalid, made, required, store, text};
use crate::engine::Engine;
use crate::table::Table;
use elizainference::session::{Mode, Session, Sink};
use elizainference::{Error, Result, Token, grammar};
use parking_lot::{Mutex, MutexGuard};
use std::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The open streams.
pub(crate) static STREAMS: Table<Stream> = Table::new("stream");

/// How long a step waits for its first token, then it has none.
const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes of text that a step needs room for: a character and the terminator.
const MIN_TEXT: usize = 8;
/// The most tokens of a stream's text, the longest context of a model.
const MAX_TEXT: usize = 1 << 20;
/// The most streams of a context.
const MAX_STREAMS: usize = 64;

/// A stream of text. The type is only used by pointer, and that pointer is a number.
pub struct EliLlmStream {
    _opaque: [u8; 0],
}

/// How far a stream's answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no prompt.
    Empty,
    /// There is one, which the engine has not been asked to read.
    Prompted,
    /// The engine reads.
    Reading,
    /// It has read, or restored, and can answer.
    Ready,
    /// It answers.
    Answering,
    /// The answer was handed out.
    Ended,
}

/// A token trie of the host, with the path of the descriptor that comes first.
#[derive(Clone)]
pub(crate) struct Trie {
    pub(crate) payload: Vec<u8>,
    pub(crate) mode: Mode,
    pub(crate) path: Option<String>,
}

struct State {
    phase: Phase,
    text: Vec<Token>,
    /// The text is that of a restored slot, whose tokens are not known here.
    restored: bool,
    /// Tokens that may still be answered.
    left: u32,
    trie: Option<Trie>,
}

/// A step of an answer.
#[derive(Default)]
struct Step {
    tokens: usize,
    done: bool,
    guesses: [u64; 2],
}

/// A stream, with its engine.
pub(crate) struct Stream {
    context: Arc<Context>,
    config: Config,
    /// There until the stream is dropped.
    engine: Option<Engine>,
    /// Until a reset every step says that it was cancelled.
    cancelled: AtomicBool,
    state: Mutex<State>,
}

impl Stream {
    fn open(context: Arc<Context>, config: Config) -> Result<Stream> {
        let open = STREAMS.all().iter().filter(|stream| Arc::ptr_eq(&stream.context, &context)).count();
        if open >= MAX_STREAMS {
            return Err(Error::OutOfMemory(format!("{open} streams of this context are open")));
        }
        // A file that is no model is an error here, not at the first step.
        let vocabulary = context.vocabulary()?;
        if !config.grammar.is_empty() {
            let source = serde_json::json!({ "gbnf": config.grammar }).to_string();
            grammar::load(source.as_bytes(), vocabulary.vocab())?;
        }
        if let Some(draft) = &config.placing.draft {
            check_draft(draft, &context.bundle.model)?;
        }
        let engine = context.pool.take(&context.bundle.model, &config.placing, &config.conversation);
        let state =
            State { phase: Phase::Empty, text: Vec::new(), restored: false, left: config.max_tokens, trie: None };
        let (cancelled, state) = (AtomicBool::new(false), Mutex::new(state));
        Ok(Stream { context, config, engine: Some(engine), cancelled, state })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn engine(&self) -> Result<&Engine> {
        self.engine.as_ref().ok_or_else(|| Error::Internal("a stream without an engine".into()))
    }

    /// The state of a stream that may be changed.
    fn change(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        match state.phase {
            Phase::Reading | Phase::Answering => {
                Err(Error::Busy("the stream is answering: end it, or reset it".into()))
            }
            _ => Ok(state),
        }
    }

    /// Replaces the trie, which takes the place of the grammar.
    pub(crate) fn set_trie(&self, trie: Option<Trie>) -> Result<()> {
        self.change()?.trie = trie;
        Ok(())
    }

    /// Chooses the descriptor of the trie by its path.
    pub(crate) fn arm_trie(&self, path: &str) -> Result<()> {
        let mut state = self.change()?;
        let trie = state.trie.as_mut().ok_or_else(|| invalid("there is no token trie to arm"))?;
        trie.path = Some(path.into());
        Ok(())
    }

    /// Asks what runs to stop.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        if let Some(Ok(session)) = self.engine.as_ref().and_then(|engine| engine.session.now()) {
            session.cancel();
        }
    }

    fn prefill(&self, tokens: &[Token]) -> Result<()> {
        if tokens.is_empty() {
            return Err(invalid("the prompt has no tokens"));
        }
        let n_vocab = self.context.vocabulary()?.info().n_vocab;
        let outside = |&token: &Token| usize::try_from(token).map_or(true, |id| id >= n_vocab);
        if let Some(at) = tokens.iter().position(outside) {
            let problem = format!("token {at} is {}, but the vocabulary has {n_vocab} tokens", tokens[at]);
            return Err(invalid(problem));
        }
        let mut state = self.change()?;
        if state.restored && state.phase != Phase::Ready {
            return Err(invalid("the tokens of the restored stream are not known: reset it before another prompt"));
        }
        if state.text.len() + tokens.len() > MAX_TEXT {
            let problem = format!("{} tokens of text and {} of prompt", state.text.len(), tokens.len());
            return Err(Error::OutOfMemory(problem));
        }
        state.restored = false;
        state.text.extend_from_slice(tokens);
        state.phase = Phase::Prompted;
        self.engine()?.read_ahead(&state.text);
        Ok(())
    }

    fn check_cancelled(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Acquire) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Takes the answer so far, up to the sizes of the buffers; none where there is none within [`PATIENCE`].
    fn step(&self, tokens_out: &mut [Token], text_out: &mut [u8]) -> Result<Step> {
        if tokens_out.is_empty() || text_out.len() < MIN_TEXT {
            let (tokens, bytes) = (tokens_out.len(), text_out.len());
            return Err(invalid(format!("tokens_cap is {tokens} and text_cap {bytes}, at least 1 and {MIN_TEXT}")));
        }
        let state = &mut *self.state.lock();
        let deadline = Instant::now() + PATIENCE;
        if let Some(first) = text_out.first_mut() {
            *first = 0;
        }
        loop {
            self.check_cancelled()?;
            match state.phase {
                Phase::Empty => return Err(invalid("there is no prompt to answer")),
                Phase::Ended => return Ok(Step { done: true, ..Step::default() }),
                _ if state.left == 0 && state.phase != Phase::Answering => {
                    state.phase = Phase::Ended;
                    continue;
                }
                _ => {}
            }
            let Some(session) = self.engine()?.session.by(deadline).transpose()? else { return Ok(Step::default()) };
            match state.phase {
                Phase::Answering => return self.pull(&session, state, deadline, tokens_out, text_out),
                _ if !session.wait_idle(deadline.saturating_duration_since(Instant::now())) => {
                    return Ok(Step::default());
                }
                Phase::Reading => {
                    // Also where it failed, the prompt is asked for again by a further step.
                    state.phase = Phase::Prompted;
                    if let Some(error) = session.status().error {
                        return Err(error);
                    }
                    state.phase = Phase::Ready;
                }
                Phase::Ready => {
                    self.hold_to(&session, state.trie.as_ref())?;
                    session.generate(state.left.min(i32::MAX as u32) as i32, None, None, Sink::Queue)?;
                    state.phase = Phase::Answering;
                }
                _ => {
                    session.start_prefill(&state.text, -1)?;
                    state.phase = Phase::Reading;
                }
            }
            if self.cancelled.load(Ordering::Acquire) {
                // What was started just now had not begun when the cancel came.
                session.cancel();
            }
        }
    }

    /// A part of the answer that the engine generates.
    fn pull(
        &self,
        session: &Session,
        state: &mut State,
        deadline: Instant,
        tokens_out: &mut [Token],
        text_out: &mut [u8],
    ) -> Result<Step> {
        let wait = deadline.saturating_duration_since(Instant::now());
        let pull = session.next(Some(wait), tokens_out, text_out).inspect_err(|_| state.phase = Phase::Ended)?;
        if !pull.done {
            self.check_cancelled()?;
        }
        state.text.extend_from_slice(&tokens_out[..pull.tokens]);
        state.left = state.left.saturating_sub(pull.tokens as u32);
        if pull.done {
            state.phase = Phase::Ended;
        }
        Ok(Step { tokens: pull.tokens, done: pull.done, guesses: session.take_guesses() })
    }

    /// Gives the session what this stream states: settings, and trie or grammar.
    fn hold_to(&self, session: &Session, trie: Option<&Trie>) -> Result<()> {
        session.clear_trie()?;
        let Some(trie) = trie else {
            return session.configure_guided(self.config.settings.clone(), &self.config.grammar);
        };
        session.configure_guided(self.config.settings.clone(), "")?;
        session.set_trie(&trie.payload, trie.mode)?;
        trie.path.as_ref().map_or(Ok(()), |path| session.arm_trie(Some(path)))
    }

    /// Keeps the first `keep` tokens of the text, and begins anew after them. Returns how many those are.
    fn reset(&self, keep: usize) -> usize {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Reading | Phase::Answering)
            && let Some(Ok(session)) = self.engine.as_ref().and_then(|engine| engine.session.now())
        {
            session.cancel();
        }
        let keep = if state.restored { 0 } else { keep.min(state.text.len()) };
        state.text.truncate(keep);
        (state.phase, state.restored, state.left) = (Phase::Empty, false, self.config.max_tokens);
        self.cancelled.store(false, Ordering::Release);
        keep
    }

    /// The session, at rest.
    fn at_rest(&self) -> Result<Arc<Session>> {
        let session = self.engine()?.session.wait()?;
        while !session.wait_idle(PATIENCE) {
            self.check_cancelled()?;
        }
        Ok(session)
    }

    fn save(&self, path: &Path) -> Result<()> {
        let mut state = self.change()?;
        if state.phase == Phase::Empty {
            return Err(invalid("there is no text to save"));
        }
        let session = self.at_rest()?;
        if state.phase == Phase::Prompted {
            session.prefill(&state.text, -1)?;
            state.phase = Phase::Ready;
        }
        session.save_slot(-1, path)
    }

    fn restore(&self, path: &Path) -> Result<()> {
        let mut state = self.change()?;
        let session = self.at_rest()?;
        self.hold_to(&session, state.trie.as_ref())?;
        session.restore_slot(-1, path)?;
        state.text.clear();
        (state.phase, state.restored) = (Phase::Ready, true);
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            if matches!(self.state.get_mut().phase, Phase::Reading | Phase::Answering)
                && let Some(Ok(session)) = engine.session.now()
            {
                session.cancel();
            }
            self.context.pool.give_back(engine);
        }
    }
}

/// Whether streams can be opened: 1. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_llm_stream_supported() -> c_int {
    1
}

/// Whether a draft model can be used: 1. One that a stream states is used, or refused when the stream is opened.
/// Threads: any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_llm_mtp_supported() -> c_int {
    1
}

/// Whether the type of the KV cache can be chosen: 1, for `f16`, `f32` and `q8_0`; others are refused by name. Threads:
/// any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_llm_kv_quant_supported() -> c_int {
    1
}

/// Opens a stream. It gets an engine of the context's text model, with what streams before it have read; weights are
/// read in the background where they are not in memory.
///
/// Ownership: `cfg` and its texts are copied; the host ends the stream with `eliza_inference_llm_stream_close`, and
/// frees `*out_error`. Null rule: `cfg` must not be NULL, its texts may be. Threads: any.
///
/// Returns NULL for a model whose header cannot be used, a grammar that is none, a type of cache, a draft model or a
/// number that is not possible, and where 64 streams of the context are open. What goes wrong while weights are read,
/// the first `eliza_inference_llm_stream_next` says.
///
/// # Safety
/// `cfg` is NULL or points to a readable structure whose texts are NULL or terminated; `out_error` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_open(
    ctx: *mut EliInferenceContext,
    cfg: *const StreamConfig,
    out_error: *mut *mut c_char,
) -> *mut EliLlmStream {
    let open = || {
        let context = CONTEXTS.get(ctx)?;
        // SAFETY: the host's promise.
        let config = unsafe { Config::read(cfg)? };
        Ok(STREAMS.insert(Arc::new(Stream::open(context, config)?)))
    };
    // SAFETY: the host's promise.
    unsafe { made(out_error, open) }
}

/// Adds a prompt to the stream's text, which is what it was given and has answered since its last reset. The text is
/// read in the background; what the engine has read before, in this stream or another, is not read again. After a
/// restore the prompt is a whole one.
///
/// Ownership: `token_ids` is copied; the host frees `*out_error`. Null rule: `token_ids` must not be NULL. Threads:
/// any, one call at a time on a stream but for cancel and close.
///
/// Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (no tokens, one that does not exist, an answer that has not ended),
/// `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`. A text longer than the context is an error of the next step.
///
/// # Safety
/// `token_ids` is NULL or points to `num_tokens` readable numbers, `out_error` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_prefill(
    stream: *mut EliLlmStream,
    token_ids: *const i32,
    num_tokens: usize,
    out_error: *mut *mut c_char,
) -> c_int {
    let prefill = || {
        let stream = STREAMS.get(stream)?;
        // SAFETY: the host's promise.
        stream.prefill(unsafe { array(token_ids, num_tokens, "token_ids")? }).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, prefill) }
}

/// Takes a step of the answer: what was generated since the last one, at most `tokens_cap` tokens and `text_cap` bytes
/// with the terminator. Characters are never cut, nor a step's text; only one token's that alone exceeds `text_cap` is
/// spread over steps. Without a token in 50 milliseconds the step has none, and the answer goes on: so a host's own
/// thread gets its turn while weights and long prompts are read.
///
/// Ownership: all buffers are the host's; it frees `*out_error`. Null rule: `tokens_out`, `num_tokens_out` and
/// `text_out` must not be NULL; the two numbers of guessed tokens may be. Threads: any, one call at a time on a stream
/// but for cancel and close.
///
/// Returns 0 (the answer goes on), 1 (it has ended), `ELIZA_ERR_CANCELLED` (from a cancel on until a reset),
/// `ELIZA_ERR_INVALID_ARG` (no room for a token, or `text_cap` below 8; no prompt), `ELIZA_ERR_OOM` (the text is longer
/// than the context, or there is no memory for the model) or another code for what went wrong with model or device.
///
/// # Safety
/// The buffers have the sizes that are stated; the other pointers are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_next(
    stream: *mut EliLlmStream,
    tokens_out: *mut i32,
    tokens_cap: usize,
    num_tokens_out: *mut usize,
    text_out: *mut c_char,
    text_cap: usize,
    drafter_drafted_out: *mut i32,
    drafter_accepted_out: *mut i32,
    out_error: *mut *mut c_char,
) -> c_int {
    let next = || {
        let stream = STREAMS.get(stream)?;
        required(num_tokens_out, "num_tokens_out")?;
        // SAFETY: the host's promise.
        let (tokens, text) = unsafe {
            (array_mut(tokens_out, tokens_cap, "tokens_out")?, array_mut(text_out.cast(), text_cap, "text_out")?)
        };
        let step = stream.step(tokens, text)?;
        let [drafted, accepted] = step.guesses.map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        // SAFETY: the host's promise.
        unsafe {
            store(num_tokens_out, step.tokens);
            store(drafter_drafted_out, drafted);
            store(drafter_accepted_out, accepted);
        }
        Ok(step.done.into())
    };
    // SAFETY: the host's promise.
    unsafe {
        store(num_tokens_out, 0);
        store(drafter_drafted_out, 0);
        store(drafter_accepted_out, 0);
        call(out_error, next)
    }
}

/// Ends the answer, and what is read for it, within about a token. Every step says `ELIZA_ERR_CANCELLED` until a reset.
///
/// Null rule: NULL is an error. Threads: any, also while another call on the stream waits.
///
/// Returns `ELIZA_OK`, also where nothing runs, or `ELIZA_ERR_INVALID_ARG` for a stream that is not open.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_llm_stream_cancel(stream: *mut EliLlmStream) -> c_int {
    let cancel = || STREAMS.get(stream).map(|stream| stream.cancel()).map(|()| ELIZA_OK);
    // SAFETY: there is no out-pointer.
    unsafe { call(std::ptr::null_mut(), cancel) }
}

/// Writes the stream's text, as the engine has read it, to a file, and waits for the disk. An answer has to have ended.
///
/// Ownership: the host frees `*out_error`. Null rule: `filename` must not be NULL. Threads: as prefill.
///
/// Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (no text, an answer that has not ended), `ELIZA_ERR_CANCELLED` or
/// `ELIZA_ERR_FFI_FAULT` (the system refused the file, which is then as before).
///
/// # Safety
/// `filename` is NULL or terminated, `out_error` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_save_slot(
    stream: *mut EliLlmStream,
    filename: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    let save = || {
        let stream = STREAMS.get(stream)?;
        // SAFETY: the host's promise.
        stream.save(Path::new(unsafe { text(filename, "filename")? })).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, save) }
}

/// Reads what `eliza_inference_llm_stream_save_slot` wrote, and waits for the disk. A step then continues the answer
/// that was saved; a prompt is a whole one, of which what was restored is not read again, in later streams too.
///
/// Ownership: the host frees `*out_error`. Null rule: `filename` must not be NULL. Threads: as prefill.
///
/// Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (a file that is damaged or of another model or type of cache, an answer
/// that has not ended), `ELIZA_ERR_CANCELLED` or `ELIZA_ERR_FFI_FAULT` (the system refused the file).
///
/// # Safety
/// `filename` is NULL or terminated, `out_error` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_restore_slot(
    stream: *mut EliLlmStream,
    filename: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    let restore = || {
        let stream = STREAMS.get(stream)?;
        // SAFETY: the host's promise.
        stream.restore(Path::new(unsafe { text(filename, "filename")? })).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, restore) }
}

/// Empties the stream's text, ends its answer, and counts its tokens anew. Nothing that the engine has read is lost.
///
/// Null rule: NULL is an error. Threads: as prefill.
///
/// Returns `ELIZA_OK`, or `ELIZA_ERR_INVALID_ARG` for a stream that is not open.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_llm_stream_reset(stream: *mut EliLlmStream) -> c_int {
    let reset = || STREAMS.get(stream).map(|stream| stream.reset(0)).map(|_| ELIZA_OK);
    // SAFETY: there is no out-pointer.
    unsafe { call(std::ptr::null_mut(), reset) }
}

/// As `eliza_inference_llm_stream_reset`, but keeps the first `n_keep` tokens of the text; the next prompt follows
/// them.
///
/// Null rule: NULL is an error. Threads: as prefill.
///
/// Returns how many tokens were kept: at most as many as there are, 0 for a negative number and where a slot was
/// restored; `ELIZA_ERR_INVALID_ARG` for a stream that is not open.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_llm_stream_reset_keep(stream: *mut EliLlmStream, n_keep: i32) -> c_int {
    let keep = usize::try_from(n_keep).unwrap_or(0);
    let reset = || STREAMS.get(stream).map(|stream| stream.reset(keep) as c_int);
    // SAFETY: there is no out-pointer.
    unsafe { call(std::ptr::null_mut(), reset) }
}

/// Ends a stream; what runs for its answer is cancelled and not waited for. A prompt that was given and not answered is
/// read on, for the stream after it.
///
/// Ownership: takes the stream. Null rule: NULL, and a stream that has ended, do nothing. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_llm_stream_close(stream: *mut EliLlmStream) {
    done(|| {
        let Some(stream) = STREAMS.remove(stream) else { return };
        // A call that another thread is in sees it at once.
        stream.cancelled.store(true, Ordering::Release);
    });
}
