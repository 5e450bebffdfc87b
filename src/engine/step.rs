//! One token of several slots in one pass.
//!
//! A step has rows of slots that the device samples and rows whose logits the host reads, in any mix. The device's rows
//! come first, so that the others are read as one piece.

use super::device_sampling::problem;
use super::plans::HEAD_ROWS;
use super::{Engine, SlotId};
use crate::backend::{Legal, NO_STATE, SampleResult, SampleRow};
use crate::{Error, Result, Token};
use std::sync::atomic::AtomicBool;

/// One slot's part in a step.
#[derive(Debug, Clone, Copy)]
pub struct SlotToken<'a> {
    /// The slot.
    pub slot: SlotId,
    /// The token to append.
    pub token: Token,
    /// The token mask for the token after it, where the device samples the slot.
    pub legal: Option<Legal<'a>>,
}

/// The result after a slot's token.
#[derive(Debug)]
pub enum SlotOutcome<'a> {
    /// The token that the device sampled, with the candidates that the slot's chain reports; or no token and the
    /// candidates that the host goes on with.
    Sampled(&'a SampleResult, &'a [(Token, f32, f32)]),
    /// The logits, one per token of the vocabulary; the caller may change them.
    Logits(&'a mut [f32]),
}

impl Engine {
    /// Append a token to each of these slots, all different, and call `each` with the index of the slot in `turns` and
    /// its result, in no set order: a sampled token where [`Engine::start_sampling`] was called for the slot, else
    /// logits. Every eight slots take a pass.
    ///
    /// An error of one row (NaN among its logits, no candidate) is passed to `each`, and the other rows go on. After an
    /// error of the step the slots of that pass are unchanged.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slot that is named twice or a token outside the vocabulary,
    /// [`Error::OutOfMemory`] where the context has no room, [`Error::Cancelled`], and [`Error::Device`] where a device
    /// fails. Errors of a single row are passed to `each`.
    pub fn step(
        &mut self,
        turns: &[SlotToken<'_>],
        cancel: &AtomicBool,
        each: &mut dyn FnMut(usize, Result<SlotOutcome<'_>>),
    ) -> Result<()> {
        self.rollback()?;
        let mut busy = 0u32;
        for turn in turns {
            self.check_tokens(&[turn.token])?;
            if busy & turn.slot.bit() != 0 {
                return Err(Error::InvalidArgument(format!("Slot {} has two turns in one step", turn.slot.0)));
            }
            busy |= turn.slot.bit();
        }
        for (i, turns) in turns.chunks(HEAD_ROWS).enumerate() {
            self.pass(turns, busy, cancel, &mut |turn, outcome| each(i * HEAD_ROWS + turn, outcome))?;
        }
        Ok(())
    }

    fn pass(
        &mut self,
        turns: &[SlotToken<'_>],
        busy: u32,
        cancel: &AtomicBool,
        each: &mut dyn FnMut(usize, Result<SlotOutcome<'_>>),
    ) -> Result<()> {
        let mut order = [0; HEAD_ROWS];
        let order = &mut order[..turns.len()];
        order.iter_mut().enumerate().for_each(|(i, turn)| *turn = i);
        order.sort_unstable_by_key(|&i| (self.sampling.known(turns[i].slot).is_none(), i));
        for turn in turns {
            self.catch_up(turn.slot, cancel)?;
            self.spare_window(turn.slot, self.position(turn.slot) + 1)?;
        }
        self.inputs.clear();
        for (row, &i) in order.iter().enumerate() {
            let SlotToken { slot, token, .. } = turns[i];
            self.enter_tokens(slot, &[token], busy).inspect_err(|_| self.free_input_cells())?;
            self.inputs.outputs.push(row as u32);
            if self.sampling.known(slot).is_some() {
                self.inputs.sample.push(SampleRow { sequence: slot.0 as u32, row: row as u32 });
            }
        }
        let sampled = self.inputs.sample.len();
        // From here on the kept hidden row belongs to another slot, and making a plan may replace its memory.
        self.hidden_of = None;
        let planned = match self.plans.has_decode(turns.len()) {
            true => Ok(()),
            false => self.plans.add_decode(&self.model, &mut self.states, turns.len()),
        };
        let told = planned.and_then(|()| {
            order[..sampled].iter().try_for_each(|&i| {
                let (sampling, state) = self.sampling_device();
                sampling.tell(state, turns[i].slot, &[turns[i].token], turns[i].legal)
            })
        });
        let done = told.and_then(|()| self.run_inputs(false, cancel));
        if done.is_err() {
            self.free_input_cells();
        }
        for (row, &i) in order.iter().enumerate() {
            match done {
                Ok(()) => {
                    let state = self.inputs.states.get(row).map_or(NO_STATE, |of| of.to);
                    self.slots.append(turns[i].slot, &[turns[i].token], [self.inputs.cells[row]], state);
                }
                // The device has tokens that are not in the slot.
                Err(_) => self.sampling.end(turns[i].slot),
            }
        }
        done?;
        if sampled > 0 {
            let (sampling, state) = self.sampling_device();
            sampling.read(state)?;
            for (row, &i) in sampling.rows().iter().zip(&order[..sampled]) {
                let outcome = SlotOutcome::Sampled(&row.result, &row.candidates);
                each(i, problem(&row.result).map_or(Ok(outcome), Err));
            }
        }
        if sampled < turns.len() {
            let n_vocab = self.model.n_vocab();
            let head = &mut self.states[self.model.outline().places().logits];
            let at = self.plans.kept().logits_offset() + sampled * n_vocab * 4;
            let logits = head.rows(at, (turns.len() - sampled) * n_vocab)?;
            for (logits, &i) in logits.chunks_exact_mut(n_vocab).zip(&order[sampled..]) {
                each(i, Ok(SlotOutcome::Logits(logits)));
            }
        }
        Ok(())
    }
}
