//! One stream: worker, prefill, generate, text assembly, usage.
//!
//! A [`Session`] owns a worker thread, and the worker owns the engine; callers on any thread talk to it through this
//! type. At most one prefill or generation runs at a time. A caller's mistakes are found and returned before a command
//! goes to the worker; later errors are kept until they are asked for.

pub mod arguments;
mod chat;
mod constrain;
mod constraint;
mod decoder;
mod describe;
mod draft;
mod embed;
mod fallbacks;
mod generate;
mod guess;
mod hub;
mod nextn;
#[cfg(feature = "testing")]
mod noop;
#[cfg(feature = "remote")]
mod on_server;
mod options;
mod queue;
mod reasoning;
mod saved;
mod seat;
mod shared;
mod slots;
mod span_samplers;
mod stop;
mod store;
mod text;
mod translation;
mod usage;
mod worker;

pub use crate::engine::{EmbedOptions, Embeddings, EngineOptions, KvType, Pooling, TensorDevice, TensorSplit};
pub use crate::remote::{Key, RemoteOptions};
#[cfg(feature = "testing")]
pub use crate::reserve::refuse_one_in;
pub use crate::sampling::{Chain, Params, Sampled};
pub use crate::trie::Mode;
pub use options::{
    ArenaText, ContextFull, Event, FinishReason, LeafScores, ModelInfo, NamedScore, OpenOptions, Pull, ReasoningBudget,
    Settings, Sink, SpanEnd, Status,
};
pub use store::StoreOptions;
pub use text::Arena;
pub use usage::Usage;

use crate::backend::MAX_ROWS;
use crate::chat::{ChatTemplate, Parts};
use crate::engine::{self, Engine, LoadProgress};
use crate::gguf::File;
use crate::model::{self, Model};
use crate::remote::is_address;
use crate::sampling::Sampler;
use crate::sampling::random::unchosen_seed;
use crate::trie::{self, Built, Surroundings};
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use constraint::{Constraint, Kind};
use decoder::{Decoder, Drafter, EngineSlot};
use hub::Hub;
use parking_lot::Mutex;
use reasoning::Reasoning;
use seat::Seat;
use shared::{Command, Job, Phase, ResumePoint, Shared, Started, State};
use span_samplers::{SpanSamplers, restated};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use store::Store;
use text::TextStream;

/// One stream of tokens from one model. All methods take `&self` and may be called from any thread.
///
/// Every failing call also leaves its error for [`status`](Session::status) and [`take_error`](Session::take_error).
/// [`cancel`](Session::cancel), [`close`](Session::close), [`status`](Session::status), [`usage`](Session::usage),
/// [`sampled`](Session::sampled) and [`take_error`](Session::take_error) are legal at any time, inside the token
/// callback too; every other call made while the session is busy fails with [`Error::Busy`] and changes nothing.
///
/// Dropping the session closes it. It waits for the worker to end, except while a generation runs or its callback has
/// not returned: then the worker frees everything after the terminal event.
pub struct Session {
    shared: Arc<Shared>,
    vocab: Arc<Vocab>,
    file: File,
    info: ModelInfo,
    /// Read when it is first asked for.
    chat: OnceLock<Result<ChatTemplate>>,
    /// Where conversations are kept, if anywhere.
    store: Option<Store>,
    /// Takes the answer apart that is read now.
    parts: Mutex<Option<Parts>>,
    /// `None` where only the vocabulary is open.
    worker: Option<JoinHandle<()>>,
}

impl Session {
    /// A session of an opened engine.
    fn start(
        decoder: impl Decoder + 'static,
        vocab: Arc<Vocab>,
        file: File,
        info: ModelInfo,
        settings: Settings,
    ) -> Result<Session> {
        let started = worker::Worker::start(Box::new(decoder), vocab.clone(), settings)?;
        Ok(Session::around_worker(started, vocab, file, info))
    }

    fn around_worker(Started { shared, worker }: Started, vocab: Arc<Vocab>, file: File, info: ModelInfo) -> Session {
        let (chat, parts) = (OnceLock::new(), Mutex::new(None));
        Session { shared, vocab, file, info, chat, store: None, parts, worker: Some(worker) }
    }

    /// Loads the model on the calling thread and starts the worker.
    ///
    /// # Errors
    /// The reader's, the model's, the engine's or the server's error, or [`Error::Cancelled`] when `progress` said so.
    pub fn open(options: OpenOptions) -> Result<Session> {
        if !options.fallback.is_empty() {
            return Session::open_fallbacks(options);
        }
        if is_address(&options.path) {
            return Session::open_remote(options);
        }
        let OpenOptions { path, engine: wanted, draft, vocab_only, store, mut progress, .. } = options;
        if vocab_only {
            return Session::open_vocab(&path);
        }
        let store = store.map(Store::open).transpose()?;
        let mut hear = |done: f32| progress.as_mut().is_none_or(|heard| heard(done));
        // What cannot be is refused before anything is loaded.
        draft.as_ref().map(|_| wanted.of_draft(0)).transpose()?;
        let model = engine::open_drafted_model(&path, draft.as_deref(), &wanted, Some(&mut hear))?;
        let mut session = match wanted.shares()? {
            false => {
                let mut engine = Engine::open(model, &wanted, Some(&mut hear))?;
                if draft.is_some() && engine.most_guesses() == 0 {
                    return Err(Error::Unsupported("A draft model guesses where the model is on the CPU".into()));
                }
                let draft = draft.map(|path| Drafter::open(&path, &mut engine, &wanted, || hear(1.0)));
                Session::around(engine, draft.transpose()?, &wanted)?
            }
            true => Session::beside_others(&model, &wanted, Some(&mut hear))?,
        };
        // The model may be shared with someone who calls the file by another path.
        session.info.path = path;
        session.store = store;
        let info = &session.info;
        log::info!(
            "Opened {}: context {}, slots {}, threads {}, on {}",
            info.path.display(),
            info.context,
            info.slots,
            info.threads,
            info.device
        );
        Ok(session)
    }

    /// As the feature `remote` has it.
    #[cfg(not(feature = "remote"))]
    fn open_remote(options: OpenOptions) -> Result<Session> {
        Err(no_servers(&options.path))
    }

    /// A session with the vocabulary of the file at `path`, without weights.
    fn open_vocab(path: &Path) -> Result<Session> {
        let file = File::open(path)?;
        let vocab = Vocab::from_gguf(&file).map_err(|error| error.in_file(path))?;
        let info = ModelInfo {
            path: path.into(),
            ids: model::names(&file),
            n_vocab: vocab.n_tokens(),
            train_context: model::Facts::of(&file).context.and_then(|n| n.try_into().ok()).unwrap_or(0),
            ..ModelInfo::default()
        };
        let shared = Arc::new(Shared::new(Settings::default()));
        let (vocab, chat, parts) = (Arc::new(vocab), OnceLock::new(), Mutex::new(None));
        Ok(Session { shared, vocab, file, info, chat, store: None, parts, worker: None })
    }

    /// Starts the worker over a model that is loaded.
    ///
    /// # Errors
    /// The engine's error.
    pub fn over(model: Arc<Model>, wanted: &EngineOptions) -> Result<Session> {
        Session::around(Engine::new(model, wanted)?, None, wanted)
    }

    /// A session at an engine that others share.
    fn beside_others(model: &Arc<Model>, wanted: &EngineOptions, progress: LoadProgress<'_>) -> Result<Session> {
        let open = || Engine::open(model.clone(), wanted, progress);
        let (hub, stream) = Hub::join(model, wanted, open)?;
        let (info, settings) = about(&hub.engine(stream), wanted);
        let decoder = Seat::new(hub, stream, None)?;
        Session::start(decoder, model.vocab().clone(), model.file().clone(), info, settings)
    }

    fn around(engine: Engine, drafter: Option<Drafter>, wanted: &EngineOptions) -> Result<Session> {
        let model = engine.model().clone();
        let (info, settings) = about(&engine, wanted);
        Session::start(EngineSlot::new(engine, drafter)?, model.vocab().clone(), model.file().clone(), info, settings)
    }

    /// The tokens of a text, as [`Vocab::tokenize`] makes them. [`cancel`](Session::cancel) and
    /// [`close`](Session::close) from another thread end it with [`Error::Cancelled`]. Legal at any time.
    ///
    /// # Errors
    /// As [`Vocab::tokenize`]; [`Error::Cancelled`].
    pub fn tokenize(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        self.vocab.tokenize_unless(text, add_special, parse_special, &self.shared.cancelled_since_now())
    }

    /// The text of tokens, as [`Vocab::detokenize`] makes it. Legal at any time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the first token that the vocabulary does not have.
    pub fn detokenize(&self, tokens: &[Token], remove_special: bool, unparse_special: bool) -> Result<Vec<u8>> {
        let n_tokens = self.vocab.n_tokens();
        let known = |id: Token| usize::try_from(id).is_ok_and(|id| id < n_tokens);
        if let Some((index, id)) = tokens.iter().enumerate().find(|&(_, &id)| !known(id)) {
            let problem = format!("tokens[{index}] is {id}, but the vocabulary has {n_tokens} tokens");
            return Err(Error::InvalidArgument(problem));
        }
        self.vocab.detokenize(tokens, remove_special, unparse_special)
    }

    /// The payload of a token trie from names, as [`trie::build`] makes it for this model; ended as
    /// [`tokenize`](Session::tokenize) is. Legal at any time.
    ///
    /// # Errors
    /// As [`trie::build`]; [`Error::Cancelled`].
    pub fn build_trie(&self, path: &str, names: &[&str], around: Surroundings<'_>) -> Result<Built> {
        let model_id = self.info.ids.first().map_or("", String::as_str);
        trie::build_unless(&self.vocab, model_id, path, names, around, &self.shared.cancelled_since_now())
    }

    /// The model's vocabulary.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.vocab
    }

    /// What was opened, and with which sizes.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Prefill: makes slot `slot_id` hold `tokens` (-1: the slot whose tokens they go on from, else an empty one, else
    /// the least recently used), reuses their longest common prefix with the tokens of any slot, and blocks until that
    /// is done. Returns how many tokens the slot now holds, which is `tokens.len()`.
    ///
    /// Success re-arms the token trie or grammar; after a failure a new prefill is needed before generate.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] (no tokens, a token or slot that does not exist), [`Error::OutOfMemory`] (longer than
    /// the context), [`Error::Cancelled`], [`Error::Busy`] (also when called from the token callback).
    pub fn prefill(&self, tokens: &[Token], slot_id: i32) -> Result<usize> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.change(|state| self.schedule_prefill(state, tokens, slot_id, reply))?;
        answer.recv().map_err(|_| Error::Internal("the worker ended without an answer".into())).flatten()
    }

    /// As [`prefill`](Session::prefill), without waiting for it: [`status`](Session::status) is busy until it is over,
    /// and then has its error.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no tokens, or a token or slot that does not exist, and [`Error::Busy`]; later
    /// errors are in the status.
    pub fn start_prefill(&self, tokens: &[Token], slot_id: i32) -> Result<()> {
        let (reply, _) = mpsc::sync_channel(1);
        self.change(|state| self.schedule_prefill(state, tokens, slot_id, reply))
    }

    /// Waits up to `timeout` until no prefill and no generation runs, and says whether that is so.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.shared.lock();
        while state.phase != Phase::Idle {
            match deadline {
                Some(deadline) if Instant::now() >= deadline => return false,
                Some(deadline) => drop(self.shared.arrival.wait_until(&mut state, deadline)),
                None => self.shared.arrival.wait(&mut state),
            }
        }
        true
    }

    /// Starts a generation and returns at once; its tokens go to `sink`.
    ///
    /// `max_new_tokens` 0 ends at once, negative runs to the end of the context, or without end where that shifts
    /// ([`ContextFull`]). `temperature` and `top_p`, where given,
    /// override the settings and the slot's chain. Every accepted generate gets exactly one terminal event, also after
    /// cancel, close and errors.
    ///
    /// # Errors
    /// [`Error::Busy`] while generating and when no prefill succeeded since the last generate, with the
    /// reason of a failed [`set_trie`](Session::set_trie) or [`set_grammar`](Session::set_grammar) until a constraint
    /// is set or the refused one cleared, and with
    /// [`Error::InvalidArgument`] when the sampling parameters are out of range.
    pub fn generate(
        &self,
        max_new_tokens: i32,
        temperature: Option<f32>,
        top_p: Option<f32>,
        sink: Sink,
    ) -> Result<()> {
        self.change(|state| self.schedule_generate(state, max_new_tokens, temperature, top_p, sink))
    }

    /// Takes what a generation with [`Sink::Queue`] has produced: up to `tokens_out.len()` tokens and their text, which
    /// is followed by a NUL. Waits up to `timeout` (`None`: without limit, zero: not at all) for the first token;
    /// without a token in time the result is `Pull::default()`.
    ///
    /// A step ends early rather than cut a character or a token's text; only a token whose text alone exceeds the
    /// buffer has its text spread over several steps, the later ones without tokens. NUL characters in the text become
    /// U+FFFD. A failed generation returns its error after everything it produced was taken.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `tokens_out` is empty, `text_out` is shorter than 8 bytes or there
    /// is no generation to read, and with [`Error::Busy`] when the generation has a callback.
    pub fn next(&self, timeout: Option<Duration>, tokens_out: &mut [Token], text_out: &mut [u8]) -> Result<Pull> {
        self.check_engine()?;
        let deadline = timeout.map(|wait| Instant::now().checked_add(wait));
        let mut state = self.shared.lock();
        loop {
            if let Err(error) = queue::check_buffers(tokens_out, text_out).and(readable(&state)) {
                state.note(Some(&error));
                return Err(error);
            }
            if state.queue.ready() {
                let step = state.queue.pull(tokens_out, text_out);
                state.reading = matches!(step, Ok(Pull { done: false, .. }));
                return step;
            }
            match deadline {
                Some(Some(deadline)) if Instant::now() >= deadline => {
                    text_out[0] = 0;
                    return Ok(Pull::default());
                }
                Some(Some(deadline)) => {
                    self.shared.arrival.wait_until(&mut state, deadline);
                }
                // Without a limit, or with one beyond what the clock can count.
                None | Some(None) => self.shared.arrival.wait(&mut state),
            }
        }
    }

    /// How many tokens were guessed since the last call in this generation, and how many of those were right.
    pub fn take_guesses(&self) -> [u64; 2] {
        let mut state = self.shared.lock();
        let now = [state.usage.drafted_tokens, state.usage.accepted_tokens];
        let before = std::mem::replace(&mut state.guesses_told, now);
        [0, 1].map(|i| now[i].saturating_sub(before[i]))
    }

    /// Asks the prefill, generation or prewarm that runs to stop, and every [`tokenize`](Session::tokenize) and
    /// [`build_trie`](Session::build_trie) that runs, without waiting; seen within one token or one group of layers, or
    /// some milliseconds. Nothing happens when none runs.
    pub fn cancel(&self) {
        self.shared.cancel();
    }

    /// Ends the session: cancels what runs and refuses every later call. Never waits; the worker frees the engine after
    /// the terminal event.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.cancel();
        self.shared.work.notify_all();
    }

    /// Replaces the settings.
    ///
    /// # Errors
    /// [`Error::Busy`] or [`Error::InvalidArgument`] (an empty stop string, a
    /// parameter out of range, more tokens to keep than a shift can) and then changes nothing.
    pub fn configure(&self, settings: Settings) -> Result<()> {
        self.configure_with(settings, None)
    }

    /// Replaces the settings, and with `constraint` also what generations are held to; an error in its place bars
    /// generate, and leaves the settings as they were.
    fn configure_with(&self, settings: Settings, constraint: Option<Result<Constraint>>) -> Result<()> {
        let checked = self.check_settings(&settings);
        let nothing_to_ignore = settings.ignore_eos && self.vocab.eog_tokens().is_empty();
        self.change(|state| {
            checked?;
            if let Some(constraint) = constraint {
                state.constrain(Kind::Grammar, constraint)?;
            }
            state.settings = settings;
            Ok(())
        })?;
        if nothing_to_ignore {
            log::warn!("ignore_eos has no effect: the vocabulary has no token that ends a generation");
        }
        Ok(())
    }

    /// The settings in force; at open the model's own sampling defaults over the library's.
    pub fn settings(&self) -> Settings {
        self.shared.lock().settings.clone()
    }

    /// Sets the sampler chain of generations on slot `slot_id` (-1: of fresh slots), in place of the parameters of the
    /// settings; `None` goes back to those. Seed, stop strings and the other settings stay in force.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slot that does not exist or a chain that cannot be used.
    pub fn set_chain(&self, slot_id: i32, chain: Option<Chain>) -> Result<()> {
        let usable = chain.as_ref().map_or(Ok(()), |chain| self.sampler(chain, 0).map(drop));
        let checked = self.check_slot(slot_id).and(usable);
        self.change(|state| {
            checked?;
            match chain {
                Some(chain) => state.chains.insert(slot_id, chain),
                None => state.chains.remove(&slot_id),
            };
            Ok(())
        })
    }

    /// Writes the model's own logits of the last `n_last` positions (1 to 512) of the slot of the last prefill to
    /// `out`, a row for each, one number per token of the vocabulary, the first position first, and blocks until that
    /// is done. Returns how many numbers there are. Where `out` is too small for them nothing is computed or written.
    /// No chain, no bias.
    ///
    /// Only the last position's hidden row is kept: earlier positions are evaluated again. The session is unchanged: a
    /// generate may follow.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] (none, more than 512 or more than the slot has, more than one in a slot
    /// that was shifted), [`Error::Busy`] when no prefill succeeded since the last generate (or from inside the token
    /// callback), and [`Error::Cancelled`]; what `out` holds is undefined then.
    pub fn logits(&self, n_last: usize, out: &mut [f32]) -> Result<usize> {
        let (n_vocab, needed) = (self.info.n_vocab, n_last.saturating_mul(self.info.n_vocab));
        let (rows, coming) = mpsc::sync_channel(1);
        let (reply, answer) = mpsc::sync_channel(1);
        let mut scheduled = false;
        self.change(|state| {
            if !(1..=MAX_ROWS).contains(&n_last) {
                let problem = format!("n_last is {n_last}, 1 to {MAX_ROWS} are possible");
                return Err(Error::InvalidArgument(problem));
            }
            if out.len() < needed {
                return Ok(());
            }
            state.prompt.ok_or_else(|| Error::Busy("logits need a prefill of their own first".into()))?;
            self.check_worker(state, "logits")?;
            state.phase = Phase::Prefilling;
            self.schedule(state, Command::Logits { n_last, rows, reply });
            scheduled = true;
            Ok(())
        })?;
        if scheduled {
            for (row, place) in coming.iter().zip(out.chunks_exact_mut(n_vocab.max(1))) {
                place.copy_from_slice(&row);
            }
            answer.recv().map_err(|_| Error::Internal("the worker ended without an answer".into())).flatten()?;
        }
        Ok(needed)
    }

    /// The state of the session.
    pub fn status(&self) -> Status {
        let state = self.shared.lock();
        Status {
            busy: state.phase != Phase::Idle,
            prefilled: state.prompt.is_some(),
            finish_reason: state.usage.finish_reason,
            error: state.failure.clone(),
        }
    }

    /// The latest error that was not taken yet; each is given once.
    pub fn take_error(&self) -> Option<Error> {
        self.shared.lock().untaken.take()
    }

    /// Counters and times of the last prompt and the generation after it.
    pub fn usage(&self) -> Usage {
        self.shared.lock().usage
    }

    /// The file or address of the model that the last prompt was given to: where there are several, the one that
    /// answers.
    pub fn served_by(&self) -> PathBuf {
        self.shared.lock().served_by.clone().unwrap_or_else(|| self.info.path.clone())
    }

    /// Usage, sizes and names as one JSON object; with the spans of the last generation so far, where its grammar
    /// reports them.
    pub fn usage_json(&self) -> String {
        let (chain, spans) = {
            let state = self.shared.lock();
            let named = |plan| usage::NamedSpan::all(plan, &state.spans);
            (state.chain.clone(), state.constraint.spans().map(named).unwrap_or_default())
        };
        let (served_by, usage, prewarms) = (self.served_by(), self.usage(), self.prewarms());
        let telemetry = usage::Telemetry::new(&self.info, &served_by, usage, prewarms, &chain, spans);
        serde_json::to_string(&telemetry).unwrap_or_default()
    }

    /// The token sampled last on this slot (-1: the fresh one), `None` before the first. Forced tokens are not sampled.
    pub fn sampled(&self, slot_id: i32) -> Option<Sampled> {
        self.shared.lock().sampled.get(&slot_id).cloned()
    }

    /// The memory that holds the text of events; holding it keeps that text readable after close.
    pub fn arena(&self) -> Arc<Arena> {
        self.shared.arena.clone()
    }

    /// Changes an idle session, and records the outcome under the same lock.
    fn change(&self, body: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        let mut state = self.shared.lock();
        let outcome = self.check_engine().and_then(|()| state.check_idle()).and_then(|()| body(&mut state));
        state.note(outcome.as_ref().err());
        outcome
    }

    fn check_settings(&self, settings: &Settings) -> Result<()> {
        if let Some(at) = settings.stop.iter().position(Vec::is_empty) {
            return Err(Error::InvalidArgument(format!("stop[{at}] is empty")));
        }
        // A shift removes at least one token, frees one cell, and leaves the last token to be evaluated.
        let (context, most) = (self.info.context, self.info.context.saturating_sub(3));
        if let ContextFull::Shift { keep } = settings.on_context_full
            && keep > most
        {
            let problem = format!("n_keep is {keep}: in a context of {context} tokens a shift can keep {most}");
            return Err(Error::InvalidArgument(problem));
        }
        self.reasoning(settings)?;
        self.sampler(&settings.params.chain(), 0).map(drop)
    }

    fn reasoning(&self, settings: &Settings) -> Result<Option<Reasoning>> {
        settings.reasoning.as_ref().map(|budget| Reasoning::new(budget, &self.vocab)).transpose()
    }

    fn sampler(&self, chain: &Chain, seed: u64) -> Result<Sampler> {
        Sampler::with_vocab(chain, self.info.n_vocab, seed, &self.vocab)
    }

    fn check_engine(&self) -> Result<()> {
        match self.worker {
            Some(_) => Ok(()),
            None => Err(Error::Unsupported("only the vocabulary is open: there are no weights to compute with".into())),
        }
    }

    /// Fails where the model cannot continue a text.
    fn check_generates(&self) -> Result<()> {
        match self.info.generates {
            true => Ok(()),
            false => Err(Error::Unsupported("this model gives embeddings: it cannot continue a text".into())),
        }
    }

    /// Fails for a token of `what` that does not exist.
    fn check_tokens(&self, tokens: &[Token], what: &str) -> Result<()> {
        let n_vocab = self.info.n_vocab;
        let outside = |&token: &Token| usize::try_from(token).map_or(true, |id| id >= n_vocab);
        match tokens.iter().position(outside) {
            None => Ok(()),
            Some(at) => {
                let problem = format!("{what} token {at} is {}: ids run from 0 to {}", tokens[at], n_vocab - 1);
                Err(Error::InvalidArgument(problem))
            }
        }
    }

    fn check_slot(&self, slot_id: i32) -> Result<()> {
        let slots = self.info.slots as i32;
        match (-1..slots).contains(&slot_id) {
            true => Ok(()),
            false => Err(Error::InvalidArgument(format!("slot {slot_id} does not exist: -1 to {} do", slots - 1))),
        }
    }

    fn check_prompt(&self, tokens: &[Token], slot_id: i32) -> Result<()> {
        self.check_generates()?;
        self.check_slot(slot_id)?;
        if tokens.is_empty() {
            return Err(Error::InvalidArgument("the prompt has no tokens".into()));
        }
        self.check_tokens(tokens, "prompt")
    }

    fn schedule_prefill(
        &self,
        state: &mut State,
        tokens: &[Token],
        slot_id: i32,
        reply: mpsc::SyncSender<Result<usize>>,
    ) -> Result<()> {
        self.check_prompt(tokens, slot_id)?;
        self.check_worker(state, "a prefill")?;
        state.phase = Phase::Prefilling;
        state.prompt = None;
        state.resume_point = ResumePoint::default();
        state.reading = false;
        state.usage = Usage::default();
        self.schedule(state, Command::Prefill { tokens: tokens.to_vec(), slot_id, reply });
        Ok(())
    }

    fn schedule_generate(
        &self,
        state: &mut State,
        max_new_tokens: i32,
        temperature: Option<f32>,
        top_p: Option<f32>,
        sink: Sink,
    ) -> Result<()> {
        state.check_constraint()?;
        let unprompted = || Error::Busy("generate needs a prefill of its own first".into());
        let prompt = state.prompt.ok_or_else(unprompted)?;
        let settings = &state.settings;
        let chain = match state.chains.get(&prompt.slot_id) {
            Some(chain) => restated(chain.clone(), temperature, top_p),
            None => {
                let mut params = settings.params.clone();
                params.temperature = temperature.unwrap_or(params.temperature);
                params.top_p = top_p.unwrap_or(params.top_p);
                params.chain()
            }
        };
        let seed = settings.params.seed.unwrap_or_else(unchosen_seed);
        let make = |chain: &Chain| {
            let mut sampler = self.sampler(chain, seed)?;
            sampler.keep_candidates(settings.candidates);
            Ok(sampler)
        };
        let sampler = make(&chain)?;
        let spans = state.constraint.spans().map(|plan| SpanSamplers::new(plan, &chain, make)).transpose()?;
        let eog = if settings.ignore_eos { self.vocab.eog_tokens() } else { &[] };
        let job = Job {
            max_new_tokens: u64::try_from(max_new_tokens).ok(),
            slot_id: prompt.slot_id,
            sampler,
            span_samplers: spans.unwrap_or_default(),
            constraint: state.constraint.clone(),
            reasoning: self.reasoning(settings)?,
            resume_point: std::mem::take(&mut state.resume_point),
            text: TextStream::new(&settings.stop, self.vocab.max_piece_bytes()),
            banned: [self.vocab.suppressed(), eog].concat(),
            stop_at_span_end: settings.on_span_end == SpanEnd::Stop,
            on_context_full: settings.on_context_full,
            special_text: settings.special_text,
            guessing: !settings.no_guessing,
            sink,
        };
        state.delivering = matches!(job.sink, Sink::Callback(_));
        state.reading = matches!(job.sink, Sink::Queue);
        if state.reading {
            let room = match job.on_context_full {
                ContextFull::Stop => prompt.room,
                ContextFull::Shift { .. } => self.info.context as usize,
            };
            let most = job.max_new_tokens.map_or(room, |limit| room.min(limit as usize));
            state.queue.reset(most);
        }
        state.prompt = None;
        state.guesses_told = [0; 2];
        state.spans.restart();
        state.phase = Phase::Generating;
        self.schedule(state, Command::Generate(Box::new(job)));
        Ok(())
    }

    /// Fails where the worker cannot answer: on the worker's own thread, or with an unusable engine.
    fn check_worker(&self, state: &State, what: &str) -> Result<()> {
        if self.on_worker() {
            return Err(Error::Busy(format!("{what} from inside the token callback")));
        }
        state.fault.as_ref().map_or(Ok(()), |fault| Err(worker::refused(fault)))
    }

    /// Passes a command to the worker.
    fn schedule(&self, state: &mut State, command: Command) {
        state.command = Some(command);
        self.shared.begin();
    }

    /// Whether the caller is this session's own worker.
    fn on_worker(&self) -> bool {
        self.worker.as_ref().is_some_and(|handle| handle.thread().id() == thread::current().id())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
        let running = {
            let state = self.shared.lock();
            state.phase != Phase::Idle || state.delivering
        };
        let on_worker = self.on_worker();
        if let Some(handle) = self.worker.take()
            && !running
            && !on_worker
        {
            // The worker catches every panic of what it runs.
            let _ = handle.join();
        }
    }
}

#[cfg(not(feature = "remote"))]
fn no_servers(address: &Path) -> Error {
    let problem = "this build opens no servers: it was made without the feature `remote`";
    Error::Unsupported(format!("{}: {problem}", address.display()))
}

/// What is to be said of an engine, and the settings that its model's file asks for.
fn about(engine: &Engine, wanted: &EngineOptions) -> (ModelInfo, Settings) {
    let model = engine.model();
    let mut settings = Settings::default();
    let path = model.file().path();
    for unused in settings.params.apply_metadata(model.file()) {
        log::warn!("{}: {unused}", path.display());
    }
    let device = model.device();
    let info = ModelInfo {
        path: path.into(),
        ids: model.ids(),
        n_vocab: model.n_vocab(),
        generates: model.outline().pooled().is_none(),
        train_context: model.train_context() as u32,
        context: engine.context() as u32,
        threads: engine.threads() as u32,
        slots: engine.slots() as u32,
        parallel: wanted.parallel.max(1),
        n_batch: engine.batch() as u32,
        kv_type: engine.kv_types().k.to_string().to_lowercase(),
        kv_type_v: engine.kv_types().v.to_string().to_lowercase(),
        device: device.name,
        device_reason: device.reason,
        no_gpu_reason: model.no_gpu_reason(),
        weight_bytes_per_token: (0..model.devices().len()).map(|i| model.outline().bytes_per_token(i)).sum(),
        server: None,
    };
    (info, settings)
}

/// Whether there is something to read, now or later.
fn readable(state: &State) -> Result<()> {
    if state.reading {
        return Ok(());
    }
    if state.phase == Phase::Generating {
        return Err(Error::Busy("the generation has a callback".into()));
    }
    let nothing = || Error::InvalidArgument("there is no generation to read".into());
    Err(state.check_constraint().err().unwrap_or_else(nothing))
}

#[cfg(test)]
mod tests;
