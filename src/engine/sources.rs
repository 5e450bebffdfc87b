//! Prompts that an encoder has read: of every slot of an encoder-decoder the tokens, and the cells that hold what the
//! decoder's layers have of them.
//!
//! The cells are in the second table, [`Table::Window`], which nothing else uses in such a model; all rows of the slot
//! see them. They are kept until the slot gets another prompt or other slots need cells.
//!
//! [`Table::Window`]: crate::backend::Table::Window

use super::cells::Cells;
use crate::{Result, Token, reserve};

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
    /// For `count` slots, which share `cells` cells, `limit` of which may be in use; zeros where no encoder reads
    /// prompts.
    pub fn new(count: usize, cells: usize, limit: usize) -> Result<Sources> {
        let source = |_| {
            let (tokens, cells) = (reserve::list(limit, PROMPTS)?, reserve::list(limit, PROMPTS)?);
            Ok(Source { tokens, cells })
        };
        let slots = (0..count).map(source).collect::<Result<_>>()?;
        Ok(Sources { cells: Cells::new(count, cells, limit)?, slots })
    }

    /// Whether an encoder reads prompts.
    pub fn any(&self) -> bool {
        !self.cells.positions().is_empty()
    }

    /// The tokens of a slot's prompt.
    pub fn tokens(&self, slot: usize) -> &[Token] {
        &self.slots[slot].tokens
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
    pub fn replace(&mut self, slot: usize, tokens: &[Token]) -> Option<&[u32]> {
        self.clear(slot);
        for position in 0..tokens.len() {
            let Some(cell) = self.cells.enter(slot, position, position as i32, 1 << slot) else {
                self.clear(slot);
                return None;
            };
            self.slots[slot].cells.push(cell);
        }
        let source = &mut self.slots[slot];
        source.tokens.extend_from_slice(tokens);
        Some(&source.cells)
    }

    /// Takes a slot's prompt from it.
    pub fn clear(&mut self, slot: usize) {
        let source = &mut self.slots[slot];
        source.tokens.clear();
        source.cells.drain(..).for_each(|cell| self.cells.free(cell));
        self.cells.trim(slot, 0);
    }
}
