//! One token of several slots in one pass.
//!
//! A step has rows of slots that the device samples and rows whose logits the host asks for, in any mix. The device's
//! rows stand first, so that the others are read as one piece.

use super::plans::HEAD_ROWS;
use super::sampling::problem;
use super::{Engine, SlotId};
use crate::backend::{Children, SampleResult, SampleRow};
use crate::{Error, Result, Token};
use std::sync::atomic::AtomicBool;

/// One slot's part in a step.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// The slot.
    pub slot: SlotId,
    /// The token to append.
    pub token: Token,
    /// The only tokens that may be sampled behind it, where the device samples the slot.
    pub children: Option<Children<'a>>,
}

/// What came out behind a turn's token.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// A token, sampled on the device, with the candidates that the slot's chain reports; or no token and the
    /// candidates that the host goes on with.
    Sampled(&'a SampleResult, &'a [(Token, f32, f32)]),
    /// The logits; scratch for the caller.
    Logits(&'a mut [f32]),
}

impl Engine {
    /// Append a token to each of these slots, all different, and hand what comes out behind it to `each`, with the
    /// turn's index, in no set order: a token where [`Engine::start_sampling`] has given the slot a chain, else logits.
    /// Turns beyond eight take a further pass.
    ///
    /// An error of one row (NaN among its logits, no candidate) goes to `each`, and the other rows live on. After an
    /// error of the step the slots of that pass are as before.
    pub fn step(
        &mut self,
        turns: &[Turn<'_>],
        cancel: &AtomicBool,
        each: &mut dyn FnMut(usize, Result<Outcome<'_>>),
    ) -> Result<()> {
        self.settle()?;
        let mut busy = 0u32;
        for turn in turns {
            self.check_tokens(&[turn.token])?;
            let bit = 1 << turn.slot.0;
            if busy & bit != 0 {
                return Err(Error::InvalidArgument(format!("Slot {} has two turns in one step", turn.slot.0)));
            }
            busy |= bit;
        }
        for (i, turns) in turns.chunks(HEAD_ROWS).enumerate() {
            self.pass(turns, busy, cancel, &mut |turn, outcome| each(i * HEAD_ROWS + turn, outcome))?;
        }
        Ok(())
    }

    fn pass(
        &mut self,
        turns: &[Turn<'_>],
        busy: u32,
        cancel: &AtomicBool,
        each: &mut dyn FnMut(usize, Result<Outcome<'_>>),
    ) -> Result<()> {
        let mut order = [0; HEAD_ROWS];
        let order = &mut order[..turns.len()];
        order.iter_mut().enumerate().for_each(|(i, turn)| *turn = i);
        order.sort_unstable_by_key(|&i| (self.slots[turns[i].slot.0].on_device.is_none(), i));
        self.inputs.clear();
        for (row, &i) in order.iter().enumerate() {
            let Turn { slot, token, .. } = turns[i];
            self.enter(slot, &[token], busy)?;
            self.inputs.outputs.push(row as u32);
            if self.slots[slot.0].on_device.is_some() {
                self.inputs.sample.push(SampleRow { sequence: slot.0 as u32, row: row as u32 });
            }
        }
        let sampled = self.inputs.sample.len();
        let tell = |engine: &mut Engine, turn: &Turn<'_>| engine.tell(turn.slot, &[turn.token], turn.children);
        let told = order[..sampled].iter().try_for_each(|&i| tell(self, &turns[i]));
        self.hidden_of = None;
        let done = told.and_then(|()| self.launch(false, cancel));
        if done.is_err() {
            self.give_back();
        }
        for (row, &i) in order.iter().enumerate() {
            let s = &mut self.slots[turns[i].slot.0];
            match done {
                Ok(()) => {
                    s.tokens.push(turns[i].token);
                    s.cells.push(self.inputs.cells[row]);
                }
                // The device was told of tokens that are not in the slot.
                Err(_) => s.on_device = None,
            }
        }
        done?;
        if sampled > 0 {
            self.read_sampled()?;
            for (row, &i) in self.found.iter().zip(&order[..sampled]) {
                let outcome = Outcome::Sampled(&row.result, &row.candidates);
                each(i, problem(&row.result).map_or(Ok(outcome), Err));
            }
        }
        if sampled < turns.len() {
            let n_vocab = self.model.n_vocab();
            let head = &mut self.states[self.model.outline().places().logits];
            let at = self.plans.kept.logits_offset() + sampled * n_vocab * 4;
            let logits = head.rows(at, (turns.len() - sampled) * n_vocab)?;
            for (logits, &i) in logits.chunks_exact_mut(n_vocab).zip(&order[sampled..]) {
                each(i, Ok(Outcome::Logits(logits)));
            }
        }
        Ok(())
    }
}
