//! A grammar compiled for a vocabulary, with what is known of its states.

use super::code::Code;
use super::lazy::{Trigger, Triggers};
use super::repeats;
use super::rules::Rules;
use super::span_plan::SpanPlan;
use super::tables::{Step, Stop, Tables};
use super::vocabulary::Tree;
use crate::vocab::Vocab;
use crate::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What is done with text that the grammar forces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JumpAhead {
    /// Nothing: every token is sampled.
    Off,
    /// A token is taken without sampling where it is the only legal one.
    Tokens,
    /// Forced bytes are tokenized at once, as the vocabulary writes that text.
    #[default]
    Bytes,
}

/// How a grammar is used.
#[derive(Debug, Clone, Default)]
pub struct GrammarOptions {
    /// Whether it waits for a trigger.
    pub lazy: bool,
    /// What it waits for.
    pub triggers: Vec<Trigger>,
    /// What is done with forced text.
    pub jump_ahead: JumpAhead,
    /// The spans that marked rules belong to.
    pub spans: Option<Arc<SpanPlan>>,
    /// Whether generations note where spans begin and end.
    pub events: bool,
}

/// What is known of a grammar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrammarCounts {
    /// States that are known now.
    pub states: u64,
    /// Masks that were computed since the grammar was made.
    pub masks: u64,
}

/// A grammar for a vocabulary. Any number of streams may follow it at once; what one finds out of it helps the others.
pub struct Grammar {
    pub(super) tree: Arc<Tree>,
    pub(super) vocab: Weak<Vocab>,
    pub(super) triggers: Option<Triggers>,
    pub(super) jump_ahead: JumpAhead,
    pub(super) allows_all: bool,
    spans: Option<Arc<SpanPlan>>,
    reports_spans: bool,
    has_tokens: bool,
    tables: Mutex<Tables>,
    fixed_bytes: usize,
    bytes: AtomicUsize,
}

impl Grammar {
    /// Compiles rules for a vocabulary.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for token references that the vocabulary does not have and triggers that cannot be
    /// used, [`Error::OutOfMemory`] also beyond the limits of a grammar.
    pub fn new(rules: Rules, vocab: &Arc<Vocab>, options: GrammarOptions) -> Result<Arc<Grammar>> {
        let triggers = if options.lazy { Some(Triggers::new(&options.triggers)?) } else { None };
        let allows_all = rules.allows_all;
        let rules = if allows_all { Rules::parse("root ::=", "root")? } else { rules };
        let mut code = Code::compile(&rules, vocab)?;
        repeats::find(&mut code)?;
        let code = Arc::new(code);
        let (fixed_bytes, has_tokens) = (code.bytes(), code.has_tokens);
        let tables = Tables::new(code).map_err(limit)?;
        Ok(Arc::new(Grammar {
            tree: Tree::of(vocab)?,
            vocab: Arc::downgrade(vocab),
            triggers,
            jump_ahead: options.jump_ahead,
            allows_all,
            reports_spans: options.events && options.spans.is_some(),
            spans: options.spans,
            has_tokens,
            tables: Mutex::new(tables),
            fixed_bytes,
            bytes: AtomicUsize::new(fixed_bytes),
        }))
    }

    /// Whether the grammar refers to whole tokens, which no text alone can match.
    pub fn has_tokens(&self) -> bool {
        self.has_tokens
    }

    /// The spans that marked rules belong to; their numbers are what [`GrammarState::span`](super::GrammarState::span)
    /// returns.
    pub fn spans(&self) -> Option<&Arc<SpanPlan>> {
        self.spans.as_ref()
    }

    /// Whether it has spans whose beginnings and ends are to be noted.
    pub fn reports_spans(&self) -> bool {
        self.reports_spans
    }

    /// Whether it waits for a trigger.
    pub fn is_lazy(&self) -> bool {
        self.triggers.is_some()
    }

    /// What is done with forced text.
    pub fn jump_ahead(&self) -> JumpAhead {
        self.jump_ahead
    }

    /// Whether the grammar was made for this vocabulary.
    pub fn is_for(&self, vocab: &Arc<Vocab>) -> bool {
        std::ptr::eq(self.vocab.as_ptr(), Arc::as_ptr(vocab))
    }

    /// Whether its vocabulary is still there.
    pub(super) fn is_in_use(&self) -> bool {
        self.vocab.strong_count() > 0
    }

    /// Bytes of memory that it takes now, the vocabulary's trie left out.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How often its tables were full and dropped.
    pub fn rebuilt(&self) -> u64 {
        self.tables.lock().rebuilt
    }

    /// How many states of it are known now, and how many masks were computed so far.
    pub fn counts(&self) -> GrammarCounts {
        let tables = self.tables.lock();
        GrammarCounts { states: tables.n_states() as u64, masks: tables.masks }
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock()
    }

    /// Runs `work` on the tables; where they are full, once more after what is not in use was dropped.
    pub(super) fn run<T>(&self, tables: &mut Tables, mut work: impl FnMut(&mut Tables) -> Step<T>) -> Result<T> {
        tables.begin();
        let done = match work(tables) {
            Err(Stop::Full) => tables.rebuild().and_then(|()| {
                tables.begin();
                work(tables)
            }),
            done => done,
        };
        self.bytes.store(self.fixed_bytes + tables.bytes(), Ordering::Relaxed);
        done.map_err(limit)
    }
}

fn limit(stop: Stop) -> Error {
    match stop {
        Stop::Full => Error::OutOfMemory("Grammar: its states do not fit the tables".into()),
        Stop::Error(error) => error,
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
