//! Prompts that are read beside the tokens of others: in passes that are left when their time is over, and gone on with
//! after passes of other slots.
//!
//! Such a pass has a workspace and inputs of its own, and its slot's cells are entered when it begins, so the passes in
//! between disturb nothing of it: they take other cells, and a row reads none but those of its own slot. The slot has
//! the tokens when the pass is over.

use super::inputs::Reading;
use super::plans::READING_ROWS;
use super::{Engine, SlotId};
use crate::{Error, Result, Token};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

impl Engine {
    /// Whether [`Engine::read`] can leave a pass.
    pub fn can_leave(&self) -> bool {
        self.reading.is_some()
    }

    /// How many tokens [`Engine::read`] takes at most.
    pub fn most_read(&self) -> usize {
        READING_ROWS.min(self.plans.batch())
    }

    /// Evaluates tokens after a slot's until `until`, at least a little: true when the slot has them, after which no
    /// logits are there; else to be called again, with the same tokens, or ended by [`Engine::stop_reading`]. Until
    /// then others may be evaluated, in other slots. Where a pass cannot be left it is made as a whole.
    ///
    /// # Errors
    /// As [`Engine::append`], after which nothing is read, and the slot is as before.
    pub fn read(&mut self, slot: SlotId, tokens: &[Token], until: Instant, cancel: &AtomicBool) -> Result<bool> {
        let now = self.reading.as_ref().map(|reading| reading.now);
        let from = match now {
            None => {
                self.append(slot, tokens, cancel)?;
                return Ok(true);
            }
            Some(Some((of, from))) if of == slot => from,
            Some(Some((of, _))) => {
                let problem = format!("Slot {} was to be read while slot {} is", slot.0, of.0);
                return Err(Error::Internal(problem));
            }
            Some(None) => {
                self.begin_reading(slot, tokens, cancel)?;
                0
            }
        };
        let Some(reading) = &mut self.reading else { return Ok(true) };
        reading.now = Some((slot, from));
        let batch = reading.inputs.batch(&self.slots);
        let plan = self.plans.body(batch.tokens.len());
        match plan.run_until(&mut reading.states, (&batch, 0), from, until, cancel) {
            Ok(Some(next)) => {
                reading.now = Some((slot, next));
                Ok(false)
            }
            Ok(None) => {
                reading.now = None;
                self.slots.set_entering(None);
                self.slots.append(slot, tokens, reading.inputs.cells.iter().copied());
                self.sampling.end(slot);
                self.stats.forward_passes += 1;
                self.stats.rows += tokens.len() as u64;
                Ok(true)
            }
            Err(error) => {
                self.stop_reading();
                Err(error)
            }
        }
    }

    /// Ends the pass that was left, if there is one: its slot is as before.
    pub fn stop_reading(&mut self) {
        if let Some(Reading { inputs, now: now @ Some(_), .. }) = &mut self.reading {
            *now = None;
            self.slots.set_entering(None);
            std::mem::swap(&mut self.inputs, inputs);
            self.free_input_cells();
            self.swap_inputs();
        }
    }

    /// The slot and the position after the tokens that a pass has which was left.
    pub(super) fn is_reading(&self) -> Option<(SlotId, usize)> {
        let reading = self.reading.as_ref()?;
        let (slot, _) = reading.now?;
        Some((slot, self.position(slot) + reading.inputs.tokens.len()))
    }

    fn begin_reading(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<()> {
        self.check_tokens(tokens)?;
        if tokens.is_empty() || tokens.len() > self.most_read() {
            return Err(Error::InvalidArgument(format!("{} tokens to be read in one pass", tokens.len())));
        }
        self.rollback()?;
        self.catch_up(slot, cancel)?;
        self.spare_window(slot, self.position(slot) + tokens.len())?;
        self.unstick(slot, 0)?;
        self.swap_inputs();
        self.inputs.clear();
        let entered = self.enter_tokens(slot, tokens, 0, 0);
        match entered {
            Ok(()) => self.slots.set_entering(Some(slot)),
            Err(_) => self.free_input_cells(),
        }
        self.swap_inputs();
        entered
    }

    fn swap_inputs(&mut self) {
        if let Some(reading) = &mut self.reading {
            std::mem::swap(&mut self.inputs, &mut reading.inputs);
        }
    }
}
