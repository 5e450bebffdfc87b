//! Sampling on the device, and the step that runs ahead.
//!
//! Where a device samples by itself, a decode step is one submission from token to token. The token also stays on the
//! device, where the embedding of the next step reads it, so that step is submitted before the host has read its token:
//! the device never waits for the host. When the next token is not what the step ahead assumed (a forced token, a mask,
//! the end), the step is rolled back: its cell is freed, its sampling undone.
//!
//! Inside a span the device may go on by itself from choice to choice, see `trie_walk.rs`.
//!
//! Invariants: the cells of what is in flight belong to no slot. Everything else the engine does rolls it back first.

use super::device_sampling::{DeviceSampling, InFlight, Known, Speculation};
use super::inputs::{How, OutputRows};
use super::{Engine, SlotId};
use crate::backend::{Legal, SampleRow, SampleSpec, SampledRow, State, sampled_by};
use crate::{Result, Token};
use std::sync::atomic::AtomicBool;

impl Engine {
    /// Sample the slot's tokens on its device by this chain from now on. Says how many of the chain's steps the device
    /// follows: with all of them it draws; with fewer, results come with the candidates that the host goes on with
    /// ([`crate::sampling::Sampler::resume`]); with none, logits have to be asked for. A prefill or a truncation ends
    /// it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], and [`Error::Device`] where a device fails.
    pub fn start_sampling(&mut self, slot: SlotId, spec: &SampleSpec) -> Result<usize> {
        self.rollback()?;
        let state = &mut *self.states[self.model.outline().places().logits];
        self.sampling.start(state, slot, spec, self.slots.tokens(slot))
    }

    /// Whether the logits are on a device that can sample, some chains at least: any but the CPU, where sampling is the
    /// host's.
    pub fn has_sampler(&self) -> bool {
        self.model.outline().places().logits != 0
    }

    /// Append tokens (possibly none) and sample the one after them on the device, as [`Engine::start_sampling`] has
    /// set. Only `legal` tokens may win, where there are any. The `speculation` on the sampled token is started as
    /// well, where it can be. The row has the best candidates, as many as the chain reports, or those that the host
    /// goes on with; in that case there is no token, and nothing can follow.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the context has no room, [`Error::Cancelled`], and [`Error::Device`] where a device
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
            // The step ahead was this one.
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
        let stays = places.embedding == places.logits;
        match (speculation, legal) {
            (Speculation::Step, None) if stays && self.room(slot) > 0 && self.slots.cells().n_free() > 0 => {
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

    /// Start the step after the one under way.
    fn run_ahead(&mut self, slot: SlotId, cancel: &AtomicBool) -> Result<()> {
        if let Err(error) = self.run_chunk(slot, &[sampled_by(slot.0)], OutputRows::Last, How::Sample(&[]), cancel) {
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
        // A run ends the sampling of its slot, but the device knows of this one. After an error it stays ended.
        let known = sampling.known(slot);
        sampling.end(slot);
        let masks_first = known.is_some_and(|Known { masks_first, .. }| masks_first);
        let listed = legal.map_or(&[][..], |legal| legal.listed(masks_first));
        if let [_] = tokens {
            self.append_chunk(slot, tokens, OutputRows::Last, How::Sample(listed), cancel)?;
        } else {
            self.append_chunks(slot, tokens, cancel)?;
            self.run_head(slot, listed, &[SampleRow { sequence: slot.0 as u32, row: 0 }], cancel)?;
        }
        self.sampling.resume(slot, known);
        Ok(())
    }

    /// Rolls back what was started for a token that nobody has asked for, if anything: its cells are free, and the
    /// device's sampling is where the host is.
    ///
    /// # Errors
    /// [`Error::Device`] where a device fails.
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

    /// The device that samples, and what is known of it.
    pub(super) fn sampling_device(&mut self) -> (&mut DeviceSampling, &mut dyn State) {
        let head = self.model.outline().places().logits;
        (&mut self.sampling, &mut *self.states[head])
    }
}
