//! A draft model that reads another model's hidden rows and attends to its keys and values
//! ([`Outline::assists`](crate::model::Outline::assists)): it has no cache and no slots, so its plan runs on the states
//! of the model's engine.
//!
//! Its input is a token's embedding, which the model's own table gives, and the hidden row after the token before. Its
//! hidden row stands for the model's in the next guess. All guesses are made at the position of the first, as in
//! training (<https://huggingface.co/docs/transformers/model_doc/gemma4_assistant>).

use super::plans::Assistant;
use super::{Engine, SlotId};
use crate::backend::Batch;
use crate::model::Model;
use crate::{Error, Result, Token};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl Engine {
    /// Takes up a draft model that reads this model's rows, which is on the CPU as this model is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a draft model of another model, [`Error::OutOfMemory`], and
    /// [`Error::Unsupported`] where the model is on another device.
    pub fn attach(&mut self, assistant: &Arc<Model>) -> Result<()> {
        if self.model.devices().len() > 1 {
            return Err(Error::Unsupported("A draft model guesses where the model is on the CPU".into()));
        }
        let [n, has] = [assistant, &self.model].map(|model| model.n_vocab());
        if n != has {
            return Err(Error::InvalidArgument(format!("a draft model with {n} tokens for a model with {has}")));
        }
        let assistant = Assistant::new(&self.model, assistant, (self.plans.kept(), self.plans.cache()))?;
        for plan in [&assistant.embedding, &assistant.plan] {
            plan.reserve(&mut self.states)?;
        }
        // A plan may need the final place of the memory of all.
        self.plans.reserve(self.model.outline(), &mut self.states)?;
        self.keep_hidden_rows()?;
        self.assistant = Some(assistant);
        Ok(())
    }

    /// Gives the attached draft model the hidden row after the slot's last token, which only the last of `text`
    /// follows. Returns whether the last pass left that row.
    pub fn assist_from(&mut self, slot: SlotId, text: &[Token]) -> bool {
        let (Some(Assistant { row, .. }), Some(pass)) = (&mut self.assistant, &self.pass_rows) else { return false };
        let Some((_, before)) = text.split_last() else { return false };
        let of_pass = before.get(pass.first..).unwrap_or_default();
        let there = pass.slot == slot && self.slots.position(slot) == before.len() && pass.tokens.starts_with(of_pass);
        let width = row.len() / 2;
        let last =
            of_pass.len().checked_sub(1).filter(|_| there).and_then(|at| pass.rows.get(at * width..)?.get(..width));
        last.map(|last| row[width..].copy_from_slice(last)).is_some()
    }

    /// What the attached draft model says after a token that follows the slot's last one and the hidden row it has: the
    /// logits, one per token of its vocabulary. It has its own hidden row then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a token outside the vocabulary, [`Error::Cancelled`], and [`Error::Device`] where
    /// a device fails.
    pub fn assist(&mut self, slot: SlotId, token: Token, cancel: &AtomicBool) -> Result<&mut [f32]> {
        self.check_tokens(&[token])?;
        self.rollback()?;
        self.hidden_of = None;
        let (position, width) = (self.position(slot) as i32, self.model.hparams().n_embd);
        let (at, kept) = (self.plans.kept().hidden_offset(), self.model.outline().places().hidden);
        let Some(Assistant { embedding, plan, row }) = &mut self.assistant else {
            return Err(Error::Internal("A draft model that is not there was asked".into()));
        };
        let (tokens, positions, sequences, rows) = ([token], [position], [slot.bit()], [0]);
        // It writes no keys, so its row is in no cell.
        let cells = [self.slots.cells().table(&[]), self.slots.second_table(&[])];
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &rows,
            cells,
            ..Batch::default()
        };
        embedding.run(&mut self.states, &batch, 1, cancel)?;
        row[..width].copy_from_slice(self.states[kept].rows(at, width)?);
        self.states[kept].put(at, row)?;
        plan.run(&mut self.states, &batch, 1, cancel)?;
        row[width..].copy_from_slice(self.states[kept].rows(at, width)?);
        self.logits(1)
    }
}
