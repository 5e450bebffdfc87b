//! Where one stream is in a grammar.

use super::compiled::Grammar;
use super::engine::AnyMatcher;
use super::lazy::{Begin, Collected};
use super::mask::Mask;
use crate::gguf::shown;
use crate::{Error, Result, Token};
use std::sync::Arc;

/// A stream's place in a grammar. A clone is a fork, and a way back to here.
#[derive(Clone)]
pub struct GrammarState {
    pub(super) grammar: Arc<Grammar>,
    pub(super) matcher: AnyMatcher,
    is_waiting: bool,
    collected: Collected,
}

impl GrammarState {
    /// The start of a grammar.
    pub fn new(grammar: Arc<Grammar>) -> GrammarState {
        let (matcher, is_waiting) = (grammar.engine.start(), grammar.is_lazy());
        GrammarState { grammar, matcher, is_waiting, collected: Collected::default() }
    }

    /// The grammar.
    pub fn grammar(&self) -> &Arc<Grammar> {
        &self.grammar
    }

    /// Back to the start, as at every new prompt.
    pub fn rearm(&mut self) {
        self.matcher.restart();
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
        self.matcher.mask().map(Some)
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
        if self.matcher.follow_token(token)? { Ok(()) } else { Err(self.refused(token)) }
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
        // While it waits, the matcher is at the start.
        let mut fits = Ok(true);
        for (token, text) in self.collected.pieces(piece) {
            let text = &text[std::mem::take(&mut skip)..];
            fits = match token {
                // A token that was cut is text.
                Some(token) if text.len() == grammar.tree.text(token).len() => self.matcher.follow_token(token),
                _ => self.matcher.follow_text(text),
            };
            if !matches!(fits, Ok(true)) {
                break;
            }
        }
        if fits == Ok(true) {
            self.is_waiting = false;
            self.collected.clear();
            return Ok(());
        }
        self.matcher.restart();
        self.collected.take_back();
        let text = String::from_utf8_lossy(text).into_owned();
        fits.and(Err(Error::InvalidArgument(format!(
            "Grammar: \"{}\" completes a trigger, but the text from there on does not fit",
            shown(&text)
        ))))
    }

    /// Whether the grammar is complete here, or not in force.
    pub fn may_end(&self) -> bool {
        !self.in_force() || self.matcher.may_end()
    }

    /// Whether tokens that end the generation are the only legal ones.
    ///
    /// # Errors
    /// As [`GrammarState::mask`].
    pub fn must_end(&mut self) -> Result<bool> {
        if !self.in_force() || !self.may_end() {
            return Ok(false);
        }
        if self.matcher.has_no_next() {
            return Ok(true);
        }
        let ends = self.grammar.tree.eog.len();
        Ok(self.mask()?.is_some_and(|mask| mask.count() as usize == ends))
    }

    /// The smallest of the spans that the text here may belong to; see [`super::Rules::mark`].
    pub fn span(&self) -> Option<u32> {
        if self.in_force() { self.matcher.mark().checked_sub(1) } else { None }
    }

    /// The smallest of the spans that a byte here may belong to.
    pub fn span_of(&self, byte: u8) -> Option<u32> {
        if self.in_force() { self.matcher.mark_of(byte).checked_sub(1) } else { None }
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
            } else if !matches!(self.matcher.follow_text(&[byte]), Ok(true)) {
                return index;
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
}

impl std::fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarState").field("in_force", &self.in_force()).finish_non_exhaustive()
    }
}
