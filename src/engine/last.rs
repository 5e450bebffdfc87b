//! The logits of positions that were evaluated before.
//!
//! Only the last position's hidden row is kept, so earlier positions are evaluated again, after the same tokens and
//! into the same cells. A row does not depend on the other rows of its pass, so those cells hold the same numbers
//! afterwards.

use super::plans::HIDDEN;
use super::{Engine, SlotId};
use crate::{Error, Result, reserve};
use std::sync::atomic::AtomicBool;

impl Engine {
    /// Call `each` with the model's own logits of each of the slot's last `n` positions, in order; a row has a number
    /// per token of the vocabulary. The slot must be the one that was evaluated last. It is unchanged, and its next
    /// logits are those of its last position.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for `n` 0 or more than the slot has, for a slot that was not evaluated last, and for
    /// more than the last position of a slot from which tokens were removed: the later tokens were computed after
    /// tokens that are gone. [`Error::Cancelled`], [`Error::Device`] where a device fails, and the error of `each`.
    pub fn last_logits(
        &mut self,
        slot: SlotId,
        n: usize,
        cancel: &AtomicBool,
        each: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.rollback()?;
        self.check_last(slot)?;
        let len = self.position(slot);
        if n == 0 || n > len {
            return Err(Error::InvalidArgument(format!("Logits of the last {n} positions of a slot of {len}")));
        }
        if n == 1 {
            self.run_head(slot, &[], &[], cancel)?;
            return each(self.logits(1)?);
        }
        if let Some(from) = self.slots.stale_from(slot) {
            let problem =
                format!("Logits of the last {n} positions of a slot with a gap at {from}: only the last one's");
            return Err(Error::InvalidArgument(problem));
        }
        let last = self.last_hidden()?;
        let done = self.logits_from(slot, len - n, cancel, each);
        self.put_last_hidden(slot, &last)?;
        done
    }

    /// Call `each` with the logits of each position from `wanted` on. Evaluates them again, and those before them from
    /// the last place on after which the slot can go on.
    fn logits_from(
        &mut self,
        slot: SlotId,
        wanted: usize,
        cancel: &AtomicBool,
        each: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let len = self.position(slot);
        let first = self.slots.nearest(slot, wanted);
        self.bring_back_window(slot, first)?;
        for first in (first..len).step_by(self.plans.batch()) {
            let rows = self.evaluate_again(slot, first, wanted, cancel)?;
            self.each_logits(rows, cancel, &mut |_, logits| each(logits))?;
        }
        Ok(())
    }

    /// The kept hidden row, of the last position of the slot that was evaluated last.
    pub(super) fn last_hidden(&mut self) -> Result<Vec<f32>> {
        let (device, width) = (self.model.outline().places().hidden, self.model.hparams().n_embd);
        reserve::copied(self.states[device].rows(self.plans.kept().hidden_offset(), width)?, HIDDEN)
    }

    /// Keep this row as the hidden row of the slot's last position.
    pub(super) fn put_last_hidden(&mut self, slot: SlotId, row: &[f32]) -> Result<()> {
        self.hidden_of = None;
        let device = self.model.outline().places().hidden;
        self.states[device].put(self.plans.kept().hidden_offset(), row)?;
        self.hidden_of = Some(slot);
        Ok(())
    }
}
