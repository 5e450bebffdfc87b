//! Sampling on the device, and speculative steps.
//!
//! Where a device runs a whole chain, a decode step is one submission from token to token. The token also stays on the
//! device, where the embedding of the next step reads it. So the next step is submitted before the host has read the
//! token (a speculative step), and the device does not wait for the host. When the host does not go on with that token
//! (a forced token, a mask, the end), the step is rolled back: its cell is freed and its sampling undone.
//!
//! Inside a span the device may go from choice to choice without the host, see `trie_walk.rs`.
//!
//! Invariants: the cells of what is in flight belong to no slot. Everything else the engine does rolls it back first.

use super::device_sampling::{DeviceSampling, InFlight, Known, Speculation};
use super::inputs::{How, OutputRows};
use super::{Engine, SlotId};
use crate::backend::{Legal, SampleRow, SampleSpec, SampledRow, State, sampled_by};
use crate::{Result, Token};
use std::sync::atomic::AtomicBool;

impl Engine {
    /// Sample the slot's tokens on its device by this chain from now on. Returns how many of the chain's steps the
    /// device runs. With all of them it draws; with fewer, results have the candidates that the host goes on with
    /// ([`crate::sampling::Sampler::resume`]); with 0 the host samples from logits. A prefill or a truncation ends the
    /// sampling on the device.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for a chain that cannot be used, [`crate::Error::OutOfMemory`] naming what the
    /// memory is for, and [`crate::Error::Device`] where a device fails.
    pub fn start_sampling(&mut self, slot: SlotId, spec: &SampleSpec) -> Result<usize> {
        self.rollback()?;
        let state = &mut *self.states[self.model.outline().places().logits];
        self.sampling.start(state, slot, spec, self.slots.tokens(slot))
    }

    /// Whether the logits are on a device that can sample at least some chains: a GPU.
    pub fn has_sampler(&self) -> bool {
        self.model.outline().places().logits != 0
    }

    /// Append tokens (possibly none) and sample the next one on the device by the chain of [`Engine::start_sampling`],
    /// under the mask `legal`, if any. Also starts the `speculation` on the sampled token, where that is possible. The
    /// result has the most probable candidates, as many as the chain reports, or those that the host goes on with; then
    /// it has no token, and no speculation is started.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for a token outside the vocabulary or where no token can be sampled,
    /// [`crate::Error::NanLogits`], [`crate::Error::OutOfMemory`] where the context has no room, [`crate::Error::Io`]
    /// where the model's file was changed, [`crate::Error::Cancelled`], and [`crate::Error::Device`] where a device
    /// fails.
    pub fn sample(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        legal: Option<Legal<'_>>,
        speculation: Speculation<'_>,
        cancel: &AtomicBool,
    ) -> Result<&SampledRow> {
        self.check_tokens(tokens)?;
        match self.sampling.take_in_flight() {
            // The speculative step was this one.
            Some(InFlight::Step(whose, cell))
                if whose == slot && self.sampling.sampled(slot).as_slice() == tokens && legal.is_none() =>
            {
                self.slots.append(slot, tokens, [cell]);
                self.sampling.note(slot, None);
            }
            Some(InFlight::Walk(mut walk)) => {
                let served = self.serve_walk(&mut walk, slot, tokens, speculation);
                self.sampling.put_in_flight(Some(InFlight::Walk(walk)));
                if served? {
                    return self.sampling.first_row();
                }
                self.rollback()?;
                self.submit(slot, tokens, legal, cancel)?;
            }
            step => {
                self.sampling.put_in_flight(step);
                self.rollback()?;
                self.submit(slot, tokens, legal, cancel)?;
            }
        }
        let places = self.model.outline().places();
        // What is rolled back leaves no state, so models that keep one go step by step.
        let stays = places.embedding == places.logits && !self.slots.states().any();
        match (speculation, legal) {
            (Speculation::Step, None) if stays && self.room(slot) > 0 && self.slots.free_for(slot) > 0 => {
                self.run_ahead(slot, cancel)?;
            }
            (Speculation::Walk(trie, node, most), Some(legal)) => {
                self.start_walk(slot, trie, node, legal, most, cancel)?;
            }
            _ => {}
        }
        let (sampling, state) = self.sampling_device();
        sampling.read(state)?;
        sampling.first_row()
    }

    /// Start the speculative step after the one in flight.
    fn run_ahead(&mut self, slot: SlotId, cancel: &AtomicBool) -> Result<()> {
        if let Err(error) = self.run_chunk(slot, &[sampled_by(slot.0)], OutputRows::Last(1), How::Sample(&[]), cancel) {
            let (sampling, state) = self.sampling_device();
            return sampling.drop_step(state, slot).and(Err(error));
        }
        self.sampling.put_in_flight(self.inputs.cells.first().map(|&cell| InFlight::Step(slot, cell)));
        Ok(())
    }

    /// Evaluate tokens and sample after them.
    fn submit(&mut self, slot: SlotId, tokens: &[Token], legal: Option<Legal<'_>>, cancel: &AtomicBool) -> Result<()> {
        let (sampling, state) = self.sampling_device();
        sampling.tell(state, slot, tokens, legal)?;
        // A run ends the sampling of its slot, but the device takes part in this one. After an error it stays ended.
        let known = sampling.known(slot);
        sampling.end(slot);
        let masks_first = known.is_some_and(|Known { masks_first, .. }| masks_first);
        let listed = legal.map_or(&[][..], |legal| legal.listed(masks_first));
        if let [_] = tokens {
            self.catch_up(slot, cancel)?;
            self.append_chunk(slot, tokens, OutputRows::Last(1), How::Sample(listed), cancel)?;
        } else {
            self.append_chunks(slot, tokens, cancel)?;
            self.run_head(slot, listed, &[SampleRow { sequence: slot.0 as u32, row: 0 }], cancel)?;
        }
        self.sampling.resume(slot, known);
        Ok(())
    }

    /// Rolls back speculative work that the host did not ask for, if there is any: its cells are freed, and the
    /// device's history is the host's again.
    ///
    /// # Errors
    /// [`crate::Error::Device`] where a device fails.
    pub fn rollback(&mut self) -> Result<()> {
        match self.sampling.take_in_flight() {
            None => Ok(()),
            Some(InFlight::Walk(walk)) => self.end_walk(walk),
            Some(InFlight::Step(slot, cell)) => {
                self.slots.free_cells([cell]);
                self.hidden_of = None;
                let last = self.tokens(slot).last().copied();
                let (sampling, state) = self.sampling_device();
                let known = sampling.known(slot);
                // An error ends the sampling on the device.
                sampling.read(state)?;
                sampling.resume(slot, known);
                sampling.roll_back(state, slot, 1, last)
            }
        }
    }

    /// The device that samples, and the engine's record of it.
    pub(super) fn sampling_device(&mut self) -> (&mut DeviceSampling, &mut dyn State) {
        let head = self.model.outline().places().logits;
        (&mut self.sampling, &mut *self.states[head])
    }
}
