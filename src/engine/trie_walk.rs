//! A span that the device decodes without the host (a trie walk).
//!
//! After a token that is sampled under a trie's mask the device finds the child, evaluates the forced tokens together
//! with the next choice, samples there among the children, and so on, for several passes without the host. The host
//! asks for one choice after the other, as without a walk; each is served from the walk's results as long as the host's
//! tokens are those of the walk. When the host asks for something else, the rest of the walk is rolled back.
//!
//! Invariant: cells of a walk belong to no slot until the host has asked for the choice after them.

use super::device_sampling::{Speculation, WalkInFlight};
use super::{Engine, SlotId};
use crate::backend::{Legal, LegalTokens, MAX_LISTED, WALK_CELLS, WALK_PASSES, Walk};
use crate::trie::{Node, Trie};
use crate::{Error, Result, Token};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl Engine {
    /// Upload a trie to the device that samples, so that it can be walked there; it replaces the one before. Nothing
    /// happens where the device has this trie already. Takes 16 bytes per node on the device.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] naming what the memory is for, and [`crate::Error::Device`] where a device fails.
    pub fn hold_trie(&mut self, trie: &Arc<Trie>) -> Result<()> {
        if self.sampling.holds(trie) {
            return Ok(());
        }
        self.rollback()?;
        let places = self.model.outline().places();
        let stays = places.embedding == places.logits && !self.slots.states().any();
        if !stays || !self.plans.walk()?.is_whole() {
            return Ok(());
        }
        let (sampling, state) = self.sampling_device();
        sampling.hold(state, trie)
    }

    /// Start a walk after the choice in flight, whose legal tokens are the children of `node`. Starts none where the
    /// device cannot walk, or where nothing follows.
    pub(super) fn start_walk(
        &mut self,
        slot: SlotId,
        trie: &Trie,
        node: Node,
        legal: Legal<'_>,
        tokens: usize,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let reach = self.sampling.reach(trie, node);
        let (room, free) = (self.room(slot), self.slots.free_for(slot));
        let rows = WALK_CELLS.min(reach.rows as usize).min(tokens).min(room).min(free);
        let listed = matches!(legal.tokens, LegalTokens::List(tokens) if tokens.len() <= MAX_LISTED);
        let (sampling, state) = self.sampling_device();
        if rows == 0 || !listed || !sampling.can_walk(state, slot)? {
            return Ok(());
        }
        let done = self.run_walk(slot, node, WALK_PASSES.min(reach.passes as usize), rows, cancel);
        self.hidden_of = None;
        if let Err(error) = done {
            let (sampling, state) = self.sampling_device();
            return sampling.drop_step(state, slot).and(Err(error));
        }
        self.sampling.start_walk(slot, &self.inputs.cells);
        Ok(())
    }

    /// Leaves the walk's cells in the inputs; after an error they are free again.
    fn run_walk(&mut self, slot: SlotId, node: Node, passes: usize, rows: usize, cancel: &AtomicBool) -> Result<()> {
        let (first, bit) = (self.position(slot), slot.bit());
        self.spare_window(slot, first + rows)?;
        self.unstick(slot, 0)?;
        self.inputs.clear();
        let place = self.slots.next_place(slot);
        for (i, position) in (first..first + rows).enumerate() {
            let Some(cell) = self.slots.take_cell(slot, place + i, position as i32, bit) else { break };
            self.inputs.cells.push(cell);
            self.inputs.positions.push(position as i32);
            self.inputs.sequences.push(bit);
        }
        let taken = first..first + self.inputs.cells.len();
        if self.enter_window(slot, taken, bit).is_none() {
            self.free_input_cells();
            return Err(Error::OutOfMemory(format!("{rows} more tokens in windows that other slots fill")));
        }
        let batch = self.inputs.batch(&self.slots);
        let walk = Walk { sequence: slot.0, node, passes };
        let done = self.plans.walk()?.walk(&mut self.states, &batch, &walk, cancel);
        match done {
            Ok(()) => self.slots.commit_cells(),
            Err(_) => self.free_input_cells(),
        }
        done
    }

    /// Whether the choice after these tokens is the next one of the walk. Then the tokens are appended to the slot, and
    /// the choice is the first result.
    pub(super) fn serve_walk(
        &mut self,
        walk: &mut WalkInFlight,
        slot: SlotId,
        tokens: &[Token],
        speculation: Speculation<'_>,
    ) -> Result<bool> {
        self.read_walk(walk)?;
        let Speculation::Walk(trie, node, _) = speculation else { return Ok(false) };
        if !self.sampling.holds(trie) {
            return Ok(false);
        }
        let cells = self.sampling.serve_walk(walk, slot, tokens, node);
        Ok(cells.map(|cells| self.slots.append(slot, tokens, cells)).is_some())
    }

    fn read_walk(&mut self, walk: &mut WalkInFlight) -> Result<()> {
        let state = &mut *self.states[self.model.outline().places().logits];
        if let Some(walked) = self.sampling.read_walk(state, walk)? {
            self.stats.forward_passes += u64::from(walked.passes);
            self.stats.rows += u64::from(walked.rows);
            self.stats.logits += u64::from(walked.logits);
        }
        Ok(())
    }

    /// Rolls back the part of the walk that the host did not ask for.
    pub(super) fn end_walk(&mut self, mut walk: WalkInFlight) -> Result<()> {
        let slot = walk.slot;
        let done = self.read_walk(&mut walk);
        let (cells, rows) = self.sampling.end_walk(walk);
        self.slots.free_cells(cells);
        done?;
        if rows == 0 {
            return Ok(());
        }
        let last = self.tokens(slot).last().copied();
        let (sampling, state) = self.sampling_device();
        sampling.roll_back(state, slot, rows, last)
    }
}
