//! The state that callers and the worker of one session share.
//!
//! One lock guards all of it. It is held for moments only: never while the model computes, a payload is parsed or a
//! callback runs. By the [`Phase`], settings and constraint change only while it is `Idle`; a command contains
//! everything that the worker needs. Cancelling needs no lock.

use super::constraint::{Constraint, Kind};
use super::queue::Queue;
use super::reasoning::Reasoning;
use super::span_samplers::SpanSamplers;
use super::store::Store;
use super::text::{Arena, TextStream};
use super::{Chain, ContextFull, EmbedOptions, Embeddings, LeafScores, Sampled, Settings, Sink, Usage};
use crate::grammar::spans::SpanTracker;
use crate::sampling::Sampler;
use crate::trie::{Node, TrieState};
use crate::{Error, Result, Token};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread::JoinHandle;

/// What the worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    /// Nothing, or delivering the terminal event of a generation that is over.
    #[default]
    Idle,
    /// A prefill.
    Prefilling,
    /// A generation, from the accepted call until its outcome is known.
    Generating,
}

/// A worker, and what its session shares with it.
pub(crate) struct Started {
    pub(crate) shared: Arc<Shared>,
    pub(crate) worker: JoinHandle<()>,
}

/// A command to the worker.
pub(crate) enum Command {
    /// Evaluate a prompt and answer its caller.
    Prefill { tokens: Vec<Token>, slot_id: i32, reply: SyncSender<Result<usize>> },
    /// Score the leaves of a trie and answer the caller.
    Score { trie: TrieState, reply: SyncSender<Result<LeafScores>> },
    /// Send the logits of the last `n_last` positions, a row each, and answer the caller.
    Logits { n_last: usize, rows: SyncSender<Vec<f32>>, reply: SyncSender<Result<()>> },
    /// Make rows of texts and answer the caller.
    Embed { texts: Vec<Vec<Token>>, options: EmbedOptions, reply: SyncSender<Result<Embeddings>> },
    /// Save a slot, within the limits of a store, and answer the caller.
    Save { slot_id: i32, path: PathBuf, store: Option<Store>, reply: SyncSender<Result<()>> },
    /// Restore a slot and answer the caller.
    Restore { slot_id: i32, path: PathBuf, reply: SyncSender<Result<usize>> },
    /// Start a worker for a slot of its own and answer the caller.
    OpenSlot { slot_id: i32, reply: SyncSender<Result<Started>> },
    /// Run a generation.
    Generate(Box<Job>),
    /// Evaluate a prompt while nothing else is asked for.
    Prewarm(Prewarm),
}

/// A prompt to be evaluated before it is asked for.
pub(crate) struct Prewarm {
    pub(crate) tokens: Vec<Token>,
    pub(crate) slot_id: i32,
}

/// Everything that a generation needs, made when it is accepted, so that its errors are returned to the caller.
pub(crate) struct Job {
    /// Most tokens to emit; `None` is as many as the context takes.
    pub(crate) max_new_tokens: Option<u64>,
    pub(crate) slot_id: i32,
    pub(crate) sampler: Sampler,
    /// Those of spans that are sampled in their own way.
    pub(crate) span_samplers: SpanSamplers,
    pub(crate) constraint: Constraint,
    pub(crate) reasoning: Option<Reasoning>,
    pub(crate) resume_point: ResumePoint,
    pub(crate) text: TextStream,
    /// Tokens never to be taken where the constraint does not ask for them.
    pub(crate) banned: Vec<Token>,
    pub(crate) stop_at_span_end: bool,
    pub(crate) on_context_full: ContextFull,
    /// Whether control tokens have a text.
    pub(crate) special_text: bool,
    /// Whether next tokens may be guessed.
    pub(crate) guessing: bool,
    pub(crate) sink: Sink,
}

/// The state in which a generation stopped: with slot and constraint, all that the next one needs to go on.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResumePoint {
    /// Emitted tokens that are not in the slot.
    pub(crate) pending: Vec<Token>,
    /// The remaining tokens of the leaf that was chosen as a whole, the next token last.
    pub(crate) chosen: Vec<Token>,
    /// The leaf that the span ended at, until the next token, which must be none of its children.
    pub(crate) ended_at: Option<Node>,
    /// Number of context shifts of the stream. After each the same positions are used again, with other random numbers.
    pub(crate) shifts: u64,
}

impl ResumePoint {
    /// Called when the constraint or its state was replaced.
    pub(crate) fn forget_choice(&mut self) {
        self.chosen.clear();
        self.ended_at = None;
    }
}

/// A prompt that was evaluated and waits for its generate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt {
    pub(crate) slot_id: i32,
    /// Tokens that still fit after it.
    pub(crate) room: usize,
}

/// The guarded part.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) closed: bool,
    pub(crate) command: Option<Command>,
    /// What is evaluated while there is no command.
    pub(crate) prewarms: VecDeque<Prewarm>,
    /// Whether one of them is.
    pub(crate) prewarming: bool,
    /// The pinned slots, a bit each.
    pub(crate) pinned: u32,
    /// The fault that made the engine unusable.
    pub(crate) fault: Option<Error>,
    /// A callback may be running, or its owner may not have been dropped yet.
    pub(crate) delivering: bool,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) settings: Settings,
    /// The last generation's chain in words: `+step` on the device, `-step` on the host.
    pub(crate) chain: String,
    /// Chains by slot id, which are used in place of the parameters.
    pub(crate) chains: BTreeMap<i32, Chain>,
    pub(crate) constraint: Constraint,
    pub(crate) resume_point: ResumePoint,
    /// Why the last set of a constraint failed, and what it would have been; bars generate.
    pub(crate) refused: Option<(Kind, Error)>,
    pub(crate) queue: Queue,
    /// Where the rows of texts arrive that were started and not taken.
    pub(crate) embedding: Option<Receiver<Result<Embeddings>>>,
    /// The queue's generation was not read to its end.
    pub(crate) reading: bool,
    pub(crate) usage: Usage,
    /// The model of the last prompt, where there are several.
    pub(crate) served_by: Option<PathBuf>,
    /// Tokens that were guessed, and those that were right, as far as the host was told.
    pub(crate) guesses_told: [u64; 2],
    /// The spans of the last generation, where its grammar reports them.
    pub(crate) spans: SpanTracker,
    pub(crate) sampled: BTreeMap<i32, Sampled>,
    /// The error of the last call or generation to finish.
    pub(crate) failure: Option<Error>,
    /// The latest error that was not taken.
    pub(crate) untaken: Option<Error>,
}

impl State {
    /// Fails unless settings, constraint and engine are free to be used.
    pub(crate) fn check_idle(&self) -> Result<()> {
        if self.closed {
            return Err(Error::Busy("the session is closed".into()));
        }
        match self.phase {
            Phase::Idle => Ok(()),
            Phase::Prefilling => Err(Error::Busy("a prefill is running".into())),
            Phase::Generating => Err(Error::Busy("a generation is running".into())),
        }
    }

    /// Fails after a constraint was refused.
    pub(crate) fn check_constraint(&self) -> Result<()> {
        self.refused.as_ref().map_or(Ok(()), |(_, failure)| Err(failure.clone()))
    }

    /// Puts a constraint in the place of the one before, or bars generate with the error that is there instead.
    pub(crate) fn constrain(&mut self, kind: Kind, constraint: Result<Constraint>) -> Result<()> {
        match constraint {
            Ok(constraint) => {
                self.constraint = constraint;
                self.spans.restart();
                self.resume_point.forget_choice();
                self.refused = None;
                Ok(())
            }
            Err(error) => {
                self.refused = Some((kind, error.clone()));
                Err(error)
            }
        }
    }

    /// Notes how a call or a generation ended.
    pub(crate) fn note(&mut self, failure: Option<&Error>) {
        self.failure = failure.cloned();
        if failure.is_some() {
            self.untaken = failure.cloned();
        }
    }
}

/// The shared half of a session.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Notified when there is a command or the session was closed.
    pub(crate) work: Condvar,
    /// Notified when the queue got output, and when a command is over.
    pub(crate) arrival: Condvar,
    /// Asks the running prefill or generation to stop.
    pub(crate) cancel: Arc<AtomicBool>,
    /// Asks the running prewarm to stop.
    pub(crate) give_way: Arc<AtomicBool>,
    /// Number of cancels. Work on the caller's own thread (tokenize) ends when the number changes: it may begin while
    /// the flag above is still set for the worker, and must not clear it.
    cancels: AtomicU64,
    pub(crate) arena: Arc<Arena>,
}

impl Shared {
    pub(crate) fn new(settings: Settings) -> Shared {
        Shared {
            state: Mutex::new(State { settings, ..State::default() }),
            work: Condvar::new(),
            arrival: Condvar::new(),
            cancel: Arc::default(),
            give_way: Arc::default(),
            cancels: AtomicU64::new(0),
            arena: Arc::new(Arena::new()),
        }
    }

    /// Asks everything that runs now to stop.
    pub(crate) fn cancel(&self) {
        self.cancel.store(true, Ordering::Release);
        self.give_way.store(true, Ordering::Release);
        self.cancels.fetch_add(1, Ordering::Release);
    }

    /// Wakes the worker for a command, which no earlier cancel ends.
    pub(crate) fn begin(&self) {
        self.cancel.store(false, Ordering::Release);
        self.give_way.store(true, Ordering::Release);
        self.work.notify_all();
    }

    /// A function that returns whether there was a cancel after this call.
    pub(crate) fn cancelled_since_now(&self) -> impl Fn() -> bool + '_ {
        let before = self.cancels.load(Ordering::Acquire);
        move || self.cancels.load(Ordering::Acquire) != before
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
