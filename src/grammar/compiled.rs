//! A grammar compiled for a vocabulary, with what is known of its states.

use super::engine::Engine;
#[cfg(feature = "llguidance")]
use super::lark::CompiledLark;
use super::lazy::{Trigger, Triggers};
use super::rule_matcher::CompiledRules;
use super::rules::Rules;
use super::span_plan::SpanPlan;
use super::vocabulary::Tree;
use crate::Result;
use crate::vocab::Vocab;
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
    pub(super) engine: Engine,
    spans: Option<Arc<SpanPlan>>,
    reports_spans: bool,
}

impl Grammar {
    /// Compiles rules for a vocabulary.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for token references that the vocabulary does not have and triggers that
    /// cannot be used, [`crate::Error::OutOfMemory`] also beyond the limits of a grammar.
    pub fn new(rules: Rules, vocab: &Arc<Vocab>, options: GrammarOptions) -> Result<Arc<Grammar>> {
        Self::with(vocab, rules.allows_all, options, || {
            let rules = if rules.allows_all { Rules::parse("root ::=", "root")? } else { rules };
            Ok(Engine::Rules(Arc::new(CompiledRules::new(&rules, vocab)?)))
        })
    }

    /// Compiles a grammar in llguidance's dialect of Lark for a vocabulary.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for what llguidance refuses and triggers that cannot be used,
    /// [`crate::Error::OutOfMemory`].
    #[cfg(feature = "llguidance")]
    pub fn lark(text: &str, vocab: &Arc<Vocab>, options: GrammarOptions) -> Result<Arc<Grammar>> {
        Self::with(vocab, false, options, || Ok(Engine::Lark(Arc::new(CompiledLark::new(text, vocab)?))))
    }

    fn with(
        vocab: &Arc<Vocab>,
        allows_all: bool,
        options: GrammarOptions,
        compile: impl FnOnce() -> Result<Engine>,
    ) -> Result<Arc<Grammar>> {
        let triggers = if options.lazy { Some(Triggers::new(&options.triggers)?) } else { None };
        let engine = compile()?;
        Ok(Arc::new(Grammar {
            tree: Tree::of(vocab)?,
            vocab: Arc::downgrade(vocab),
            triggers,
            jump_ahead: options.jump_ahead,
            allows_all,
            engine,
            reports_spans: options.events && options.spans.is_some(),
            spans: options.spans,
        }))
    }

    /// Whether the grammar refers to whole tokens, which no text alone can match.
    pub fn has_tokens(&self) -> bool {
        self.engine.has_tokens()
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
        self.engine.bytes()
    }

    /// How often its tables were full and dropped.
    pub fn rebuilt(&self) -> u64 {
        self.engine.rebuilt()
    }

    /// How many states of it are known now, and how many masks were computed so far.
    pub fn counts(&self) -> GrammarCounts {
        let (states, masks) = self.engine.states_and_masks();
        GrammarCounts { states, masks }
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
