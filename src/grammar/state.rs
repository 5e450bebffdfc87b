//! Where one stream is in a grammar.

use super::compiled::Grammar;
use super::lazy::{Begin, Collected};
use super::mask::Mask;
use super::tables::{DEAD, Tables};
use super::walk;
use crate::gguf::shown;
use crate::{Error, Result, Token};
use std::sync::Arc;

/// A stream's place in a grammar. A clone is a fork, and a way back to here.
pub struct GrammarState {
    pub(super) grammar: Arc<Grammar>,
    /// Its place in the grammar's tables, which holds its state.
    pub(super) place: u32,
    is_waiting: bool,
    collected: Collected,
}

impl GrammarState {
    /// The start of a grammar.
    pub fn new(grammar: Arc<Grammar>) -> GrammarState {
        let place = {
            let mut tables = grammar.tables();
            let start = tables.state_at(0);
            tables.add_place(start)
        };
        let is_waiting = grammar.is_lazy();
        GrammarState { grammar, place, is_waiting, collected: Collected::default() }
    }

    /// The grammar.
    pub fn grammar(&self) -> &Arc<Grammar> {
        &self.grammar
    }

    /// Back to the start, as at every new prompt.
    pub fn rearm(&mut self) {
        let mut tables = self.grammar.tables();
        let start = tables.state_at(0);
        tables.set_place(self.place, start);
        self.is_waiting = self.grammar.is_lazy();
        self.collected.clear();
    }

    /// Whether the grammar constrains what comes next: not while a lazy one waits for its trigger.
    pub fn in_force(&self) -> bool {
        !self.is_waiting && !self.grammar.allows_all
    }

    /// The legal tokens; `None` where all are. Tokens that end a generation are among them where the grammar may end.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], also where the grammar is too ambiguous for its limits.
    pub fn mask(&mut self) -> Result<Option<Arc<Mask>>> {
        if !self.in_force() {
            return Ok(None);
        }
        let mut tables = self.grammar.tables();
        let state = tables.state_at(self.place);
        if let Some(mask) = &tables.state(state).mask {
            return Ok(Some(mask.clone()));
        }
        let grammar = &self.grammar;
        let place = self.place;
        let mask = grammar.run(&mut tables, |tables| {
            let state = tables.state_at(place);
            walk::kept(tables, &grammar.tree, state)
        })?;
        Ok(Some(mask))
    }

    /// Follows a token. One that ends the generation changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a token that does not fit, also one that completes a trigger with text after it
    /// that does not; [`Error::OutOfMemory`] as in [`GrammarState::mask`]. The state is then as it was.
    pub fn accept(&mut self, token: Token) -> Result<()> {
        let tree = self.grammar.tree.clone();
        if usize::try_from(token).map_or(true, |token| token >= tree.n_vocab) {
            let problem = format!("Grammar: token {token} is not in the vocabulary, which has {}", tree.n_vocab);
            return Err(Error::InvalidArgument(problem));
        }
        if tree.is_eog(token) {
            return if !self.in_force() || self.may_end() { Ok(()) } else { Err(self.refused(token)) };
        }
        if self.grammar.allows_all {
            return Ok(());
        }
        if self.is_waiting {
            return self.collect(Some(token), tree.text(token));
        }
        if !tree.has(token) {
            return Err(self.refused(token));
        }
        let place = self.place;
        let mut tables = self.grammar.tables();
        let next = self.grammar.run(&mut tables, |tables| {
            let state = tables.state_at(place);
            tables.after_token(state, token, tree.text(token))
        })?;
        if next == DEAD {
            drop(tables);
            return Err(self.refused(token));
        }
        tables.set_place(place, next);
        Ok(())
    }

    fn refused(&self, token: Token) -> Error {
        let text = String::from_utf8_lossy(self.grammar.tree.text(token)).into_owned();
        Error::InvalidArgument(format!("Grammar: token {token} (\"{}\") does not fit", shown(&text)))
    }

    /// Adds to the text before the trigger, and begins the grammar where that completes one.
    fn collect(&mut self, token: Option<Token>, text: &[u8]) -> Result<()> {
        let grammar = self.grammar.clone();
        let Some(triggers) = &grammar.triggers else { return Ok(()) };
        let Some(Begin { piece, mut skip }) = self.collected.add(triggers, token, text)? else { return Ok(()) };
        let mut tables = grammar.tables();
        let collected = &self.collected;
        let replayed = grammar.run(&mut tables, |tables| {
            let mut state = tables.state_at(0);
            for (token, text) in collected.pieces(piece) {
                let text = &text[std::mem::take(&mut skip)..];
                state = match token {
                    // A token that was cut is text.
                    Some(token) if text.len() == grammar.tree.text(token).len() => {
                        tables.after_token(state, token, text)?
                    }
                    _ => tables.after_text(state, text)?,
                };
            }
            Ok(state)
        });
        match replayed {
            Ok(state) if state != DEAD => {
                tables.set_place(self.place, state);
                self.is_waiting = false;
                self.collected.clear();
                Ok(())
            }
            other => {
                self.collected.take_back();
                let text = String::from_utf8_lossy(text).into_owned();
                other.and(Err(Error::InvalidArgument(format!(
                    "Grammar: \"{}\" completes a trigger, but the text from there on does not fit",
                    shown(&text)
                ))))
            }
        }
    }

    /// Whether the grammar is complete here, or not in force.
    pub fn may_end(&self) -> bool {
        if !self.in_force() {
            return true;
        }
        let tables = self.grammar.tables();
        tables.state(tables.state_at(self.place)).may_end
    }

    /// Whether tokens that end the generation are the only legal ones.
    ///
    /// # Errors
    /// As [`GrammarState::mask`].
    pub fn must_end(&mut self) -> Result<bool> {
        if !self.in_force() || !self.may_end() {
            return Ok(false);
        }
        {
            let tables = self.grammar.tables();
            let state = tables.state(tables.state_at(self.place));
            if state.live == [0; 4] && !state.has_tokens {
                return Ok(true);
            }
        }
        let ends = self.grammar.tree.eog.len();
        Ok(self.mask()?.is_some_and(|mask| mask.count() as usize == ends))
    }

    /// The smallest of the spans that the text here may belong to; see [`super::Rules::mark`].
    pub fn span(&self) -> Option<u32> {
        if !self.in_force() {
            return None;
        }
        let tables = self.grammar.tables();
        tables.state(tables.state_at(self.place)).mark.checked_sub(1)
    }

    /// The smallest of the spans that a byte here may belong to.
    pub fn span_of(&self, byte: u8) -> Option<u32> {
        if !self.in_force() {
            return None;
        }
        let tables = self.grammar.tables();
        tables.mark_of(tables.state_at(self.place), byte).checked_sub(1)
    }

    /// Follows bytes one by one as far as they fit, and returns how many did. `each` is called after each, with its
    /// index and the span then.
    pub fn advance_bytes(&mut self, bytes: &[u8], each: &mut dyn FnMut(usize, Option<u32>)) -> usize {
        for (index, &byte) in bytes.iter().enumerate() {
            if self.grammar.allows_all {
            } else if self.is_waiting {
                if self.collect(None, &[byte]).is_err() {
                    return index;
                }
            } else {
                let place = self.place;
                let mut tables = self.grammar.tables();
                let next = self.grammar.run(&mut tables, |tables| {
                    let state = tables.state_at(place);
                    tables.next(state, byte)
                });
                match next {
                    Ok(next) if next != DEAD => tables.set_place(place, next),
                    _ => return index,
                }
            }
            each(index, self.span());
        }
        bytes.len()
    }

    /// Follows a text by the longest tokens that it begins with, special ones too, as far as they fit, and returns how
    /// many bytes did.
    pub fn advance_pieces(&mut self, text: &[u8]) -> usize {
        let mut at = 0;
        while let Some(token) = self.grammar.tree.longest(&text[at..]) {
            if self.accept(token).is_err() {
                break;
            }
            at += self.grammar.tree.text(token).len();
        }
        at
    }

    /// Runs `work` from this state.
    pub(super) fn with<T>(&self, work: impl Fn(&mut Tables, u32) -> super::tables::Step<T>) -> Result<T> {
        let mut tables = self.grammar.tables();
        self.grammar.run(&mut tables, |tables| {
            let state = tables.state_at(self.place);
            work(tables, state)
        })
    }
}

impl Clone for GrammarState {
    fn clone(&self) -> Self {
        let place = {
            let mut tables = self.grammar.tables();
            let state = tables.state_at(self.place);
            tables.add_place(state)
        };
        let (grammar, collected) = (self.grammar.clone(), self.collected.clone());
        GrammarState { grammar, place, is_waiting: self.is_waiting, collected }
    }
}

impl Drop for GrammarState {
    fn drop(&mut self) {
        self.grammar.tables().free_place(self.place);
    }
}

impl std::fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarState").field("in_force", &self.in_force()).finish_non_exhaustive()
    }
}
