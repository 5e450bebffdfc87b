//! What follows a text through a grammar, whatever engine the grammar was compiled for.

use super::mask::Mask;
use crate::{Result, Token};
use std::sync::Arc;

/// A place in a grammar. It moves by whole tokens or by bytes; whatever does not fit leaves it where it was.
pub(super) trait Matcher {
    /// Back to the start of the grammar.
    fn restart(&mut self);

    /// The legal tokens, those that end a generation among them where the text may end.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] beyond the limits of the grammar.
    fn mask(&mut self) -> Result<Arc<Mask>>;

    /// Follows a token of the vocabulary's trie, and returns whether it fits.
    ///
    /// # Errors
    /// As [`Matcher::mask`].
    fn follow_token(&mut self, token: Token) -> Result<bool>;

    /// Follows the bytes of a text, and returns whether all of them fit.
    ///
    /// # Errors
    /// As [`Matcher::mask`].
    fn follow_text(&mut self, text: &[u8]) -> Result<bool>;

    /// Whether the text may end here.
    fn may_end(&self) -> bool;

    /// Whether it is known, without a mask, that nothing can come next.
    fn has_no_next(&self) -> bool;

    /// Appends the bytes that must come next: none where there is a choice, and where the text may end.
    ///
    /// # Errors
    /// As [`Matcher::mask`].
    fn forced(&mut self, out: &mut Vec<u8>) -> Result<()>;

    /// Whether a longer token may take the place of the last one of `run`: tokens that spell forced bytes.
    ///
    /// # Errors
    /// As [`Matcher::mask`].
    fn may_go_on(&self, run: &[Token]) -> Result<bool>;

    /// The smallest mark of a rule that the text here may belong to; 0 is none.
    fn mark(&self) -> u32;

    /// The smallest mark of a rule that a byte here may belong to; 0 is none.
    fn mark_of(&self, byte: u8) -> u32;
}
