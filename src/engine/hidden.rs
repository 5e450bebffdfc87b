//! Hidden rows that go in and out: what a block that predicts further tokens reads of its model.
//!
//! The engine of the model keeps the hidden rows of its last pass in the host's memory ([`Engine::keep_hidden_rows`]);
//! the engine of the block is given them, a row for each token, before the pass over those tokens
//! ([`Engine::put_hidden_rows`]). After that pass the block's own hidden row is in the place of the first, where the
//! next token's is expected.

use super::inputs::OutputRows;
use super::plans::HIDDEN;
use super::{Engine, SlotId};
use crate::{Error, Result, Token, reserve};

/// The hidden rows of a slot's last pass.
pub struct HiddenRows {
    /// The slot.
    pub slot: SlotId,
    /// The position of the first of its tokens.
    pub first: usize,
    /// The tokens of the pass.
    pub tokens: Vec<Token>,
    /// The hidden row after each token, one after the other.
    pub rows: Vec<f32>,
}

impl Engine {
    /// From now on the hidden rows of all tokens of a pass over one slot are computed and kept until the next.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn keep_hidden_rows(&mut self) -> Result<()> {
        let tokens = reserve::list(self.batch(), "tokens of a pass")?;
        let rows = reserve::list(self.batch() * self.model.hparams().n_embd, HIDDEN)?;
        self.pass_rows = Some(HiddenRows { slot: SlotId(0), first: 0, tokens, rows });
        Ok(())
    }

    /// The hidden rows of the last pass over one slot, where [`Engine::keep_hidden_rows`] was called.
    pub fn hidden_rows(&self) -> Option<&HiddenRows> {
        self.pass_rows.as_ref()
    }

    /// Keeps the hidden rows of a pass over tokens after the slot's, and leaves those of its output rows where the head
    /// reads them.
    pub(super) fn keep_pass_rows(&mut self, slot: SlotId, tokens: &[Token], outputs: OutputRows) -> Result<()> {
        let (first, width, at) = (self.position(slot), self.model.hparams().n_embd, self.plans.kept().hidden_offset());
        let Some(pass) = &mut self.pass_rows else { return Ok(()) };
        let state = &mut self.states[self.model.outline().places().hidden];
        pass.tokens.clear();
        pass.rows.clear();
        pass.rows.extend_from_slice(state.rows(at, tokens.len() * width)?);
        pass.tokens.extend_from_slice(tokens);
        (pass.slot, pass.first) = (slot, first);
        match outputs {
            OutputRows::Last(wanted) if wanted < tokens.len() => {
                state.put(at, &pass.rows[(tokens.len() - wanted) * width..])
            }
            _ => Ok(()),
        }
    }

    /// Puts a hidden row for each token of the next pass, at most [`Engine::batch`], into the place where a block that
    /// predicts further tokens reads them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for values that are no rows or too many, and [`Error::Device`] where a device fails.
    pub fn put_hidden_rows(&mut self, rows: &[f32]) -> Result<()> {
        let (width, kept) = (self.model.hparams().n_embd, self.plans.kept());
        if !rows.len().is_multiple_of(width) || rows.len() > kept.hidden_rows * width {
            let (n, max) = (rows.len(), kept.hidden_rows);
            return Err(Error::InvalidArgument(format!("{n} values of hidden rows of {width}, of which {max} fit")));
        }
        self.hidden_of = None;
        self.states[self.model.outline().places().hidden].put(kept.hidden_offset(), rows)
    }
}
