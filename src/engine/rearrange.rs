//! Changes of the KV cache without a forward pass: removing a range of a slot's tokens (context shift), and
//! defragmentation.
//!
//! Both run as plans of their own, over batches whose rows are cells, in pieces of at most [`Engine::batch`]. They
//! cannot be cancelled: a partly done one would leave keys at wrong positions. After an error of a device the slots
//! concerned are empty.

use super::plans::Plans;
use super::{Engine, SlotId};
use crate::backend::{LIST_BLOCK, NO_CELL};
use crate::schedule::Plan;
use crate::{Error, Result, Token, reserve};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

/// Selects the plan that rearranges.
type Choice = fn(&Plans) -> Result<&Plan>;

impl Engine {
    /// Remove the tokens of `range` from a slot (context shift). Later tokens move up: their keys are rotated to the
    /// new positions (K-shift, as in llama.cpp), so that a full context can go on. They were still computed after the
    /// removed tokens, so a later prefill reuses the slot at most up to the gap. A state cannot forget: where the model
    /// keeps one the later tokens are evaluated again, and are as in a fresh run; also where they are fewer than a
    /// sliding window has.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a range that the slot does not have; [`Error::Unsupported`] where tokens follow
    /// it and the model has learned positions, whose keys cannot be moved; [`Error::Device`] where a device fails.
    pub fn remove(&mut self, slot: SlotId, range: Range<usize>) -> Result<()> {
        self.rollback()?;
        let len = self.position(slot);
        if range.start > range.end || range.end > len {
            let problem = format!("Tokens {} to {} of a slot of {len}", range.start, range.end);
            return Err(Error::InvalidArgument(problem));
        }
        if range.is_empty() {
            return Ok(());
        }
        if range.end == len {
            self.truncate(slot, range.start);
            return Ok(());
        }
        if self.model.outline().learns_positions() {
            let problem = "Tokens cannot be removed before others: this model has learned positions (no context shift)";
            return Err(Error::Unsupported(problem.into()));
        }
        // Of a window that begins before the range there is nothing to move up to.
        let short = self.slots.windows().any() && self.slots.windows().seen_from(len) < range.end;
        if self.slots.states().any() || short || self.slots.shares_after(slot, range.end) {
            let later = reserve::copied(&self.tokens(slot)[range.end..], "tokens")?;
            self.truncate(slot, range.start);
            let done = self.append_chunks(slot, &later, &AtomicBool::new(false));
            return done.inspect_err(|_| self.truncate(slot, 0));
        }
        let delta = -(range.len() as i32);
        for first in (range.end..len).step_by(self.plans.batch()) {
            let last = (first + self.plans.batch()).min(len);
            self.inputs.clear();
            self.inputs.cells.extend_from_slice(&self.slots.cells_of(slot)[first..last]);
            if self.slots.windows().any() {
                let held = self.slots.windows().held(slot.0);
                let cell = |p| if held.contains(&p) { self.slots.windows().cell(slot.0, p) } else { NO_CELL };
                self.inputs.window.extend((first..last).map(cell));
            }
            self.inputs.positions.resize(last - first, delta);
            if let Err(error) = self.rearrange(Plans::shift) {
                self.truncate(slot, 0);
                return Err(error);
            }
        }
        self.slots.remove(slot, range);
        self.sampling.end(slot);
        self.hidden_of = None;
        Ok(())
    }

    /// Defragment the cache: move the blocks in use to its beginning, so that a device that reads all cells in their
    /// order reads no holes. A prefill does so where more than half of the cells that it would read are free.
    ///
    /// # Errors
    /// [`Error::Device`] where a device fails.
    pub fn defragment(&mut self) -> Result<()> {
        self.rollback()?;
        // Its cells stay where they are until it is over.
        if self.is_reading().is_some() {
            return Ok(());
        }
        loop {
            let size = LIST_BLOCK as u32;
            let blocks = self.slots.cells().gathering((self.moves.capacity() / LIST_BLOCK).max(1));
            if blocks.is_empty() {
                return Ok(());
            }
            self.moves.clear();
            for &(from, to) in &blocks {
                let cells = self.slots.cells().in_block(from);
                self.moves.extend(cells.map(|cell| (cell, to * size + cell % size)));
            }
            self.copy_cells()?;
            blocks.iter().for_each(|&(from, to)| self.slots.move_block(from, to));
        }
    }

    /// Copies the cells that `moves` lists.
    fn copy_cells(&mut self) -> Result<()> {
        let moves = std::mem::take(&mut self.moves);
        let windows = self.slots.windows().any();
        let done = moves.chunks(self.plans.batch()).try_for_each(|moves| {
            self.inputs.clear();
            self.inputs.positions.extend(moves.iter().map(|&(from, _)| from as i32));
            self.inputs.cells.extend(moves.iter().map(|&(_, to)| to));
            if windows {
                self.inputs.window.resize(moves.len(), NO_CELL);
            }
            self.rearrange(Plans::copy)
        });
        self.moves = moves;
        done
    }

    /// Makes it possible for the slot to go on after its last token where another slot has the cells there, or one in
    /// the set `busy`, a bit each, is about to: its last tokens, fewer than a block, are copied. Busy slots are not
    /// evicted for them.
    pub(super) fn unstick(&mut self, slot: SlotId, busy: u32) -> Result<()> {
        let stuck = self.slots.stuck(slot, busy);
        if stuck == 0 {
            return Ok(());
        }
        self.make_room(slot, LIST_BLOCK, busy);
        let max = self.context();
        let no_room = || Error::OutOfMemory(format!("{stuck} tokens to copy in a context of {max} that others fill"));
        self.slots.unstick(slot, &mut self.moves).ok_or_else(no_room)?;
        self.copy_cells().inspect_err(|_| self.truncate(slot, self.position(slot) - stuck))
    }

    /// Gives a slot, in place of what it holds, the first `n` tokens of another, after which that one could go on. Both
    /// have the same cells then.
    pub(super) fn share(&mut self, from: SlotId, to: SlotId, n: usize) -> Result<()> {
        self.truncate(to, 0);
        if self.slots.share(from, to, n, &mut self.moves).is_none() {
            // Its tokens are evaluated.
            return Ok(());
        }
        self.copy_windows().inspect_err(|_| self.truncate(to, 0))
    }

    /// Copies the windows of sliding layers at the slot's mark, where tokens up to `end` would overwrite them.
    pub(super) fn spare_window(&mut self, slot: SlotId, end: usize) -> Result<()> {
        self.slots.windows_mut().spare(slot.0, end, &mut self.moves);
        self.copy_windows().inspect_err(|_| self.slots.windows_mut().forget_copy())
    }

    /// Brings the windows of a token at `position` back to where attention reads them, if they are not there and there
    /// is a copy.
    pub(super) fn bring_back_window(&mut self, slot: SlotId, position: usize) -> Result<()> {
        if self.slots.windows_mut().bring_back(slot.0, position, &mut self.moves).is_none() {
            self.slots.windows_mut().empty(slot.0);
            let max = self.context();
            return Err(Error::OutOfMemory(format!("A window before token {position} in a context of {max}")));
        }
        self.copy_windows().inspect_err(|_| self.slots.windows_mut().empty(slot.0))
    }

    /// Copies the cells of sliding layers that `moves` lists.
    fn copy_windows(&mut self) -> Result<()> {
        let moves = std::mem::take(&mut self.moves);
        let done = moves.chunks(self.plans.batch()).try_for_each(|moves| {
            self.inputs.clear();
            self.inputs.positions.extend(moves.iter().map(|&(from, _)| from as i32));
            self.inputs.window.extend(moves.iter().map(|&(_, to)| to));
            self.inputs.cells.resize(moves.len(), NO_CELL);
            self.rearrange(Plans::copy)
        });
        self.moves = moves;
        done
    }

    /// Run a plan over the cells of the inputs.
    fn rearrange(&mut self, plan: Choice) -> Result<()> {
        let inputs = &mut self.inputs;
        inputs.tokens.resize(inputs.cells.len(), Token::default());
        inputs.sequences.resize(inputs.cells.len(), 0);
        let mut batch = inputs.batch(&self.slots);
        batch.cells.iter_mut().for_each(|table| table.changed = (0, 0));
        plan(&self.plans)?.run(&mut self.states, &batch, 0, &AtomicBool::new(false))
    }
}
