//! Prompts that an encoder has read: of every slot of an encoder-decoder the tokens, and the cells that hold what the
//! decoder's layers have of them.
//!
//! A prompt is read in one pass. Its cells are in the second table, [`Table::Window`], which nothing else uses in such a
//! model; all rows of the slot see them. They are kept until the slot gets another prompt or other slots need cells. A
//! slot's tokens are those of the decoder alone, from the one that begins an answer.
//!
//! [`Table::Window`]: crate::backend::Table::Window

use super::cells::Cells;
use super::{Engine, Prefill, SlotId};
use crate::{Error, Result, Token, reserve};
use std::sync::atomic::AtomicBool;

/// What memory is reserved for, in errors.
const PROMPTS: &str = "prompts of slots";

/// The prompts of all slots.
pub(super) struct Sources {
    cells: Cells,
    slots: Vec<Source>,
}

/// The prompt of a slot; empty without one.
#[derive(Default)]
struct Source {
    tokens: Vec<Token>,
    cells: Vec<u32>,
}

impl Sources {
    /// For so many slots, which share `cells` cells, `limit` of which may be in use; zeros where no encoder reads
    /// prompts.
    pub fn new(slots: usize, cells: usize, limit: usize) -> Result<Sources> {
        let source = |_| {
            let (tokens, cells) = (reserve::list(limit, PROMPTS)?, reserve::list(limit, PROMPTS)?);
            Ok(Source { tokens, cells })
        };
        let slots = (0..slots).map(source).collect::<Result<_>>()?;
        Ok(Sources { cells: Cells::new(cells, limit)?, slots })
    }

    /// Whether an encoder reads prompts.
    pub fn any(&self) -> bool {
        !self.cells.positions().is_empty()
    }

    /// The tokens of a slot's prompt.
    pub fn tokens(&self, slot: SlotId) -> &[Token] {
        &self.slots[slot.0].tokens
    }

    /// All cells.
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    /// Notes that every device has the cells as they are now.
    pub fn commit(&mut self) {
        self.cells.commit();
    }

    /// Takes a cell for each token of a prompt in place of the slot's; `None`, and the slot has none, where there are
    /// too few.
    pub fn replace(&mut self, slot: SlotId, tokens: &[Token]) -> Option<&[u32]> {
        self.clear(slot);
        for position in 0..tokens.len() {
            let Some(cell) = self.cells.take(position as i32, slot.bit()) else {
                self.clear(slot);
                return None;
            };
            self.slots[slot.0].cells.push(cell);
        }
        let source = &mut self.slots[slot.0];
        source.tokens.extend_from_slice(tokens);
        Some(&source.cells)
    }

    /// Takes a slot's prompt from it.
    pub fn clear(&mut self, slot: SlotId) {
        let source = &mut self.slots[slot.0];
        source.tokens.clear();
        source.cells.drain(..).for_each(|cell| self.cells.free(cell));
    }
}

impl Engine {
    /// [`Engine::prefill`] of an encoder-decoder: the encoder reads the prompt where the slot does not have it, and the
    /// slot's tokens become the one that begins an answer.
    pub(super) fn prefill_source(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<Prefill> {
        let n = tokens.len();
        self.truncate(slot, 0);
        let before = self.stats.forward_passes;
        let reused = if self.slots.sources().tokens(slot) == tokens { n } else { 0 };
        if reused == 0 {
            self.encode(slot, tokens, cancel)?;
        }
        let begin = self.model.answer_begins()?;
        self.append_chunks(slot, &[begin], cancel)?;
        if let Some(error) = self.states.iter_mut().find_map(|state| state.finish().err()) {
            self.truncate(slot, 0);
            self.slots.sources_mut().clear(slot);
            return Err(error);
        }
        let passes = (self.stats.forward_passes - before) as usize;
        Ok(Prefill { tokens: n, reused, restored: 0, passes })
    }

    /// Encodes a prompt for an empty slot; after an error or a cancel the slot has none.
    fn encode(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<()> {
        let (n, max) = (tokens.len(), self.longest_text());
        if n > max {
            return Err(Error::OutOfMemory(format!(
                "A prompt of {n} tokens, which an encoder reads at once, above {max}"
            )));
        }
        self.slots.touch(slot);
        self.slots.sources_mut().clear(slot);
        while let Some(victim) = self.slots.source_victim(slot, n) {
            self.truncate(victim, 0);
            self.slots.sources_mut().clear(victim);
        }
        let context = self.context();
        let cells = self.slots.sources_mut().replace(slot, tokens).ok_or_else(|| {
            Error::OutOfMemory(format!("A prompt of {n} tokens in a context of {context} that pinned slots fill"))
        })?;
        self.inputs.clear();
        for (position, (&token, &cell)) in tokens.iter().zip(cells).enumerate() {
            self.inputs.push(token, position as i32, slot.bit(), cell);
            self.inputs.window.push(cell);
        }
        self.hidden_of = None;
        let batch = self.inputs.batch(&self.slots);
        let done = self.plans.encode(n).and_then(|plan| plan.run(&mut self.states, &batch, 0, cancel));
        self.stats.forward_passes += 1;
        self.stats.rows += n as u64;
        match done {
            Ok(()) => self.slots.commit_cells(),
            Err(_) => self.slots.sources_mut().clear(slot),
        }
        done
    }

    /// An error where the slot has no prompt that an encoder has read, and should have one.
    pub(super) fn check_source(&self, slot: SlotId) -> Result<()> {
        let sources = self.slots.sources();
        match sources.any() && sources.tokens(slot).is_empty() {
            true => Err(Error::InvalidArgument(format!("Slot {} has no prompt yet, which the encoder reads", slot.0))),
            false => Ok(()),
        }
    }

    /// An error where an encoder reads prompts.
    pub(super) fn check_no_source(&self, what: &str) -> Result<()> {
        match self.slots.sources().any() {
            true => Err(Error::Unsupported(format!("An encoder-decoder has no {what}"))),
            false => Ok(()),
        }
    }
}
