//! Setting, arming and clearing what generations are held to: a token trie or a grammar.

use super::constraint::{Constraint, GrammarWalk, Kind};
use super::shared::{Command, Phase, State};
use super::{LeafScores, Mode, Session, Settings};
use crate::gguf::shown;
use crate::grammar;
use crate::trie::{Trie, TrieState, cache};
use crate::{Error, Result};
use std::sync::mpsc;

impl Session {
    /// Constrains what follows to the trie of a JSON payload and arms its first descriptor.
    ///
    /// It replaces a grammar. A failure other than [`Error::Busy`] bars generate until a set succeeds or the trie is
    /// cleared, so that a caller that ignores it never gets unconstrained output.
    ///
    /// # Errors
    /// [`Error::Busy`] while generating, else what is wrong with the payload, by its place.
    pub fn set_trie(&self, json: &[u8], mode: Mode) -> Result<()> {
        let mut strict = false;
        // A payload may be large: it is parsed without the lock, and only once it is known to be wanted.
        self.change(|state| {
            strict = state.settings.strict_trie;
            Ok(())
        })?;
        let loaded = self.load_trie(json, mode, strict).map(Constraint::Trie);
        self.change(|state| state.constrain(Kind::Trie, loaded))
    }

    /// Bars generate as a failed [`set_trie`](Session::set_trie) does, for a caller whose payload was refused before
    /// that call; always fails, with `error` unless busy.
    ///
    /// # Errors
    /// `error`, or [`Error::Busy`] while generating.
    pub fn refuse_trie(&self, error: Error) -> Result<()> {
        self.change(|state| state.constrain(Kind::Trie, Err(error)))
    }

    /// Removes the trie, if any, and the bar that a failed set of one left. A grammar stays.
    ///
    /// # Errors
    /// [`Error::Busy`] while generating.
    pub fn clear_trie(&self) -> Result<()> {
        self.change(|state| {
            clear(state, Kind::Trie);
            Ok(())
        })
    }

    /// Arms the descriptor with this path, or with `None` the next in payload order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is no trie or it has no such path, [`Error::Busy`] while generating.
    pub fn arm_trie(&self, path: Option<&str>) -> Result<()> {
        self.change(|state| match state.constraint.trie_mut() {
            Some(trie) => {
                trie.arm(path)?;
                state.resume_point.forget_choice();
                Ok(())
            }
            None => Err(Error::InvalidArgument("there is no token trie to arm".into())),
        })
    }

    /// Scores every leaf of the descriptor armed last as a continuation of the prompt, the most probable first, and
    /// blocks until that is done. The session is unchanged: a generate may follow.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no trie, [`Error::Busy`] when no prefill succeeded since the
    /// last generate (or from inside the token callback), [`Error::OutOfMemory`] when the context has no room for the
    /// leaves, and [`Error::Cancelled`].
    pub fn score_trie(&self) -> Result<LeafScores> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.change(|state| {
            state.check_constraint()?;
            let none = || Error::InvalidArgument("there is no token trie to score".into());
            let trie = state.constraint.trie().cloned().ok_or_else(none)?;
            state.prompt.ok_or_else(|| Error::Busy("scoring needs a prefill of its own first".into()))?;
            self.check_worker(state, "scoring")?;
            state.phase = Phase::Prefilling;
            self.schedule(state, Command::Score { trie, reply });
            Ok(())
        })?;
        answer.recv().map_err(|_| Error::Internal("the worker ended without an answer".into())).flatten()
    }

    /// Holds what follows to a grammar, from its start: a JSON object that [`grammar::load`] reads.
    ///
    /// It replaces a token trie. A failure other than [`Error::Busy`] bars generate until a set succeeds or the grammar
    /// is cleared, so that a caller that ignores it never gets unconstrained output.
    ///
    /// # Errors
    /// [`Error::Busy`] while generating, else what is wrong with the grammar, by its place.
    pub fn set_grammar(&self, json: &[u8]) -> Result<()> {
        // A grammar may be large: it is read without the lock, and only once it is known to be wanted.
        self.change(|_| Ok(()))?;
        let loaded = self.load_grammar(json);
        self.change(|state| state.constrain(Kind::Grammar, loaded))
    }

    /// Bars generate as a failed [`set_grammar`](Session::set_grammar) does; always fails, with `error` unless busy.
    ///
    /// # Errors
    /// `error`, or [`Error::Busy`] while generating.
    pub fn refuse_grammar(&self, error: Error) -> Result<()> {
        self.change(|state| state.constrain(Kind::Grammar, Err(error)))
    }

    /// Removes the grammar, if any, and the bar that a failed set of one left. A token trie stays.
    ///
    /// # Errors
    /// [`Error::Busy`] while generating.
    pub fn clear_grammar(&self) -> Result<()> {
        self.change(|state| {
            clear(state, Kind::Grammar);
            Ok(())
        })
    }

    /// As [`configure`](Session::configure), and sets a grammar in GBNF whose root is `root`; an empty one clears it.
    ///
    /// # Errors
    /// As [`configure`](Session::configure); as [`set_grammar`](Session::set_grammar), which bars generate and leaves
    /// the settings as they were.
    pub fn configure_guided(&self, settings: Settings, gbnf: &str) -> Result<()> {
        if gbnf.is_empty() {
            self.configure(settings)?;
            return self.clear_grammar();
        }
        self.change(|_| Ok(()))?;
        let source = serde_json::json!({ "gbnf": gbnf }).to_string();
        let loaded = self.load_grammar(source.as_bytes());
        self.configure_with(settings, Some(loaded))
    }

    /// A payload compiled and checked against this model.
    fn load_trie(&self, json: &[u8], mode: Mode, strict: bool) -> Result<TrieState> {
        let trie = cache::load(json, |trie| self.check_trie(trie, strict))?;
        for warning in trie.warnings() {
            log::warn!("Token trie: {warning}");
        }
        Ok(TrieState::new(trie, mode))
    }

    fn check_trie(&self, trie: &Trie, strict: bool) -> Result<()> {
        trie.check_vocab(self.info.n_vocab)?;
        let id = trie.model_id();
        if !id.is_empty() && !self.info.ids.iter().any(|known| known == id) {
            let known: Vec<String> = self.info.ids.iter().map(|id| shown(id)).collect();
            let problem = format!("\"{}\" is none of this model's names ({})", shown(id), known.join(", "));
            doubtful(strict, "modelId", problem)?;
        }
        let misspelt =
            cache::spelling(trie, &self.vocab, |vocab, token, special, out| vocab.piece(token, special, out));
        misspelt.map_or(Ok(()), |problem| doubtful(strict, "descriptors", problem))
    }

    fn load_grammar(&self, json: &[u8]) -> Result<Constraint> {
        let grammar = grammar::load(json, &self.vocab)?;
        Ok(Constraint::Grammar(Box::new(GrammarWalk::new(grammar, json))))
    }
}

/// Removes the constraint, and the bar of a refused one, if they are of this kind.
fn clear(state: &mut State, kind: Kind) {
    if state.constraint.kind() == Some(kind) {
        state.constraint = Constraint::None;
        state.spans.restart();
        state.resume_point.forget_choice();
    }
    state.refused.take_if(|(refused, _)| *refused == kind);
}

/// Refuses a doubtful payload when strict, warns otherwise.
fn doubtful(strict: bool, place: &str, problem: String) -> Result<()> {
    if strict {
        return Err(Error::Trie { place: place.into(), problem });
    }
    log::warn!("Token trie: {place}: {problem}");
    Ok(())
}
