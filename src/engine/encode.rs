//! Encoder-decoders: the encoder reads a prompt in one pass, and the decoder answers it.
//!
//! What the decoder's layers have of a prompt is kept for its slot (`sources.rs`). A slot's tokens are those of the
//! decoder alone, from the one that begins an answer.

use super::{Engine, Prefill, SlotId};
use crate::{Error, Result, Token};
use std::sync::atomic::AtomicBool;

impl Engine {
    /// [`Engine::prefill`] of an encoder-decoder: the encoder reads the prompt where the slot does not have it, and the
    /// slot's tokens become the one that begins an answer.
    pub(super) fn prefill_source(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<Prefill> {
        let (n, max) = (tokens.len(), self.longest_text());
        if n > max {
            return Err(Error::OutOfMemory(format!(
                "A prompt of {n} tokens, which an encoder reads at once, above {max}"
            )));
        }
        self.truncate(slot, 0);
        let before = self.stats.forward_passes;
        let reused = if self.slots.sources().tokens(slot.0) == tokens { n } else { 0 };
        if reused == 0 {
            self.encode(slot, tokens, cancel)?;
        }
        let begin = self.model.answer_begins()?;
        self.append_chunks(slot, &[begin], cancel)?;
        if let Some(error) = self.states.iter_mut().find_map(|state| state.finish().err()) {
            self.truncate(slot, 0);
            self.slots.sources_mut().clear(slot.0);
            return Err(error);
        }
        let passes = (self.stats.forward_passes - before) as usize;
        Ok(Prefill { tokens: n, reused, restored: 0, passes })
    }

    /// Encodes a prompt for an empty slot; after an error or a cancel the slot has none.
    fn encode(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<()> {
        let n = tokens.len();
        self.slots.touch(slot);
        self.slots.sources_mut().clear(slot.0);
        while let Some(victim) = self.slots.source_victim(slot, n) {
            self.truncate(victim, 0);
            self.slots.sources_mut().clear(victim.0);
        }
        let context = self.context();
        let cells = self.slots.sources_mut().replace(slot.0, tokens).ok_or_else(|| {
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
            Err(_) => self.slots.sources_mut().clear(slot.0),
        }
        done
    }

    /// An error where the slot has no prompt that an encoder has read, and should have one.
    pub(super) fn check_source(&self, slot: SlotId) -> Result<()> {
        let sources = self.slots.sources();
        match sources.any() && sources.tokens(slot.0).is_empty() {
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
