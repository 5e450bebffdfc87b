//! What a generation is held to: a token trie, a grammar, or nothing. They replace each other.

use crate::backend::Legal;
use crate::grammar::{Grammar, GrammarCounts, GrammarState, JumpAhead, Mask, SpanPlan, SpanSampling};
use crate::sampling::legal_of;
use crate::trie::{Mode, TrieState};
use crate::{Error, Result, Token};
use std::sync::Arc;

/// Tokens before a forced text that its tokenization may depend on.
const TAIL: usize = 32;

/// What a generation is held to.
#[derive(Clone, Default)]
pub(crate) enum Constraint {
    /// Nothing.
    #[default]
    None,
    /// A token trie.
    Trie(TrieState),
    /// A grammar.
    Grammar(Box<GrammarWalk>),
}

/// A kind of constraint, which calls name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Trie,
    Grammar,
}

impl Constraint {
    pub(crate) fn kind(&self) -> Option<Kind> {
        match self {
            Constraint::None => None,
            Constraint::Trie(_) => Some(Kind::Trie),
            Constraint::Grammar(_) => Some(Kind::Grammar),
        }
    }

    pub(crate) fn trie(&self) -> Option<&TrieState> {
        match self {
            Constraint::Trie(trie) => Some(trie),
            _ => None,
        }
    }

    pub(crate) fn trie_mut(&mut self) -> Option<&mut TrieState> {
        match self {
            Constraint::Trie(trie) => Some(trie),
            _ => None,
        }
    }

    /// What is known of the grammar, if there is one.
    pub(crate) fn counts(&self) -> GrammarCounts {
        match self {
            Constraint::Grammar(grammar) => grammar.state.grammar().counts(),
            _ => GrammarCounts::default(),
        }
    }

    /// Back to the start, as each prefill does.
    pub(crate) fn rearm(&mut self) {
        match self {
            Constraint::None => {}
            Constraint::Trie(trie) => trie.rearm(),
            Constraint::Grammar(grammar) => grammar.rearm(),
        }
    }

    /// The token mask of the next token; `None` where any token is legal.
    pub(crate) fn legal(&self) -> Option<Legal<'_>> {
        match self {
            Constraint::None => None,
            Constraint::Trie(trie) => legal_of(trie),
            Constraint::Grammar(grammar) => grammar.mask.as_deref().map(|mask| match mask.few() {
                Some(few) => Legal::list(few, grammar.is_greedy),
                None => Legal::mask(mask.bits(), mask.number(), grammar.is_greedy),
            }),
        }
    }

    /// The spans of the grammar, if it has any.
    pub(crate) fn spans(&self) -> Option<&SpanPlan> {
        match self {
            Constraint::Grammar(grammar) => grammar.state.grammar().spans().map(AsRef::as_ref),
            _ => None,
        }
    }

    /// Whether a grammar matches the texts of control tokens: one in force that asks for no whole tokens.
    pub(crate) fn spells_control_tokens(&self) -> bool {
        match self {
            Constraint::Grammar(grammar) => grammar.state.in_force() && !grammar.state.grammar().has_tokens(),
            _ => false,
        }
    }

    /// The number of the way in which the next token is sampled, where it is neither the session's nor greedy.
    pub(crate) fn span_sampling(&self) -> Option<usize> {
        match self {
            Constraint::Grammar(grammar) => grammar.sampling.filter(|_| !grammar.is_greedy),
            _ => None,
        }
    }

    /// Whether some choices of tokens are greedy whatever the chain is.
    pub(crate) fn has_greedy(&self) -> bool {
        match self {
            Constraint::None => false,
            Constraint::Trie(trie) => trie.mode() != Mode::Sampled,
            Constraint::Grammar(_) => self.spans().is_some_and(|plan| plan.samplings().contains(&SpanSampling::Greedy)),
        }
    }

    /// Where the grammar is, if it reports its spans.
    pub(crate) fn reporting(&self) -> Option<GrammarState> {
        match self {
            Constraint::Grammar(grammar) if grammar.state.grammar().reports_spans() => Some(grammar.state.clone()),
            _ => None,
        }
    }

    /// How many tokens are legal next; `None` where any is.
    pub(crate) fn allowed(&self) -> Option<usize> {
        match self {
            Constraint::None => None,
            Constraint::Trie(trie) => trie.mask().map(<[Token]>::len),
            Constraint::Grammar(grammar) => match grammar.forced {
                true => Some(1),
                false => grammar.mask.as_ref().map(|mask| mask.count() as usize),
            },
        }
    }
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// One of several tokens.
    Choice,
    /// This token: no other is legal.
    Forced(Token),
    /// Nothing: the grammar is complete and cannot go on.
    End,
}

/// A grammar and how far a generation has come in it.
#[derive(Clone)]
pub(crate) struct GrammarWalk {
    state: GrammarState,
    /// What it was made of, for an engine elsewhere.
    #[cfg(feature = "remote")]
    source: Arc<[u8]>,
    /// The rest of a forced text, the next token last.
    run: Vec<Token>,
    /// The last tokens of the stream.
    tail: Vec<Token>,
    /// Whether [`Self::next`] found no choice.
    forced: bool,
    /// The mask of the next token where there is a choice; `None` where any token is legal.
    mask: Option<Arc<Mask>>,
    /// How the next token is sampled, by its number in the grammar's spans; `None` is as the session says.
    sampling: Option<usize>,
    /// Whether that is greedy.
    is_greedy: bool,
}

impl GrammarWalk {
    /// At the start of a grammar.
    pub(crate) fn new(grammar: Arc<Grammar>, source: &[u8]) -> GrammarWalk {
        #[cfg(not(feature = "remote"))]
        let _ = source;
        GrammarWalk {
            state: GrammarState::new(grammar),
            #[cfg(feature = "remote")]
            source: source.into(),
            run: Vec::new(),
            tail: Vec::new(),
            forced: false,
            mask: None,
            sampling: None,
            is_greedy: false,
        }
    }

    /// What the grammar was made of.
    #[cfg(feature = "remote")]
    pub(super) fn source(&self) -> &[u8] {
        &self.source
    }

    #[cfg(feature = "remote")]
    pub(super) fn state(&self) -> &GrammarState {
        &self.state
    }

    /// Back to the start.
    pub(crate) fn rearm(&mut self) {
        self.state.rearm();
        self.run.clear();
        self.forced = false;
        self.mask = None;
    }

    /// Takes note of the tokens of the stream so far.
    pub(crate) fn begin<'a>(&mut self, stream: impl DoubleEndedIterator<Item = &'a Token>) {
        self.tail.clear();
        self.tail.reserve(2 * TAIL);
        self.tail.extend(stream.rev().take(TAIL));
        self.tail.reverse();
    }

    /// As [`Self::next`], without a mask, where the engine holds to the grammar by itself.
    pub(crate) fn next_elsewhere(&mut self) -> Result<Next> {
        (self.mask, self.forced, self.sampling, self.is_greedy) = (None, false, None, false);
        Ok(if self.state.in_force() && self.state.must_end()? { Next::End } else { Next::Choice })
    }

    /// Finds what comes next. Where there is a choice, its mask is kept until the token is accepted.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where no token of the vocabulary is legal; [`Error::OutOfMemory`] where the grammar's
    /// states grow beyond their limits.
    pub(crate) fn next(&mut self) -> Result<Next> {
        self.mask = None;
        self.forced = false;
        (self.sampling, self.is_greedy) = (None, false);
        if self.run.is_empty() {
            if !self.state.in_force() {
                return Ok(Next::Choice);
            }
            if self.state.must_end()? {
                return Ok(Next::End);
            }
            self.state.forced_tokens(&self.tail, &mut self.run)?;
            self.run.reverse();
        }
        if let Some(token) = self.run.pop() {
            self.forced = true;
            return Ok(Next::Forced(token));
        }
        self.mask = self.state.mask()?;
        if let Some(plan) = self.state.grammar().spans() {
            self.sampling = plan.sampling(self.state.span());
            let way = self.sampling.and_then(|number| plan.samplings().get(number));
            self.is_greedy = way == Some(&SpanSampling::Greedy);
        }
        match &self.mask {
            Some(mask) if mask.count() == 0 => {
                Err(Error::InvalidArgument("The grammar allows no token of the vocabulary here".into()))
            }
            Some(mask) if self.state.grammar().jump_ahead() != JumpAhead::Off => match mask.few() {
                Some(&[token]) => {
                    self.forced = true;
                    Ok(Next::Forced(token))
                }
                _ => Ok(Next::Choice),
            },
            _ => Ok(Next::Choice),
        }
    }

    /// Moves on by a token.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming a token that the grammar does not allow.
    pub(crate) fn accept(&mut self, token: Token) -> Result<()> {
        self.state.accept(token)?;
        if self.tail.len() >= 2 * TAIL {
            self.tail.drain(..TAIL);
        }
        self.tail.push(token);
        Ok(())
    }
}
