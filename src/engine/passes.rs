//! From tokens to hidden rows and logits.
//!
//! The stages of an evaluation, in their order; each calls the next:
//! 1. [`Engine::append_each`] cuts tokens into chunks, one for each pass;
//! 2. [`Engine::append_chunk`] evaluates a chunk and adds it to its slot;
//! 3. [`Engine::run_chunk`] runs a pass over a chunk; after an error its cells are free again;
//! 4. [`Engine::enter_tokens`] takes a cell for each token and writes the inputs;
//! 5. [`Engine::run_inputs`] runs the plan for so many rows.
//!
//! The last position's hidden row is kept, so that its logits can be computed afterwards ([`Engine::run_head`]).

use super::inputs::{How, OutputRows};
use super::plans::HIDDEN;
use super::{EachPass, Engine, SlotId};
use crate::backend::{Batch, NO_STATE, SampleRow, StateRows};
use crate::{Error, Result, Token, reserve};
use std::iter;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

impl Engine {
    /// Evaluates tokens after the slot's, in as many passes as they take.
    pub(super) fn append_chunks(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<()> {
        self.append_each(slot, tokens, cancel, &mut |_| Ok(()))
    }

    /// As [`Engine::append_chunks`]; calls `each` after each pass.
    pub(super) fn append_each(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        cancel: &AtomicBool,
        each: EachPass<'_>,
    ) -> Result<()> {
        self.catch_up(slot, cancel)?;
        let mut chunks = tokens.chunks(self.plans.batch()).peekable();
        while let Some(chunk) = chunks.next() {
            let outputs = if chunks.peek().is_none() { OutputRows::Last(1) } else { OutputRows::None };
            self.append_chunk(slot, chunk, outputs, How::Body, cancel)?;
            each(self)?;
        }
        Ok(())
    }

    /// Evaluates one chunk and adds it to the slot; after an error the slot is as before. Ends the sampling on the
    /// device, which does not know of these tokens.
    pub(super) fn append_chunk(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        outputs: OutputRows,
        how: How<'_>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.run_chunk(slot, tokens, outputs, how, cancel)?;
        self.keep_entered(slot, tokens, 0..tokens.len());
        self.sampling.end(slot);
        Ok(())
    }

    /// Adds tokens to the slot that were evaluated in these rows of the inputs, with their cells and the states after
    /// them.
    pub(super) fn keep_entered(&mut self, slot: SlotId, tokens: &[Token], rows: Range<usize>) {
        let before = self.position(slot);
        self.slots.append(slot, tokens, self.inputs.cells[rows.clone()].iter().copied());
        for of in self.inputs.states.iter().filter(|of| rows.contains(&(of.first as usize))) {
            let after = (of.first + of.rows) as usize - rows.start;
            self.slots.states_mut().keep(slot.0, before + after, of.to);
        }
    }

    /// Evaluates one chunk after the slot's tokens. Its cells are those of the inputs; after an error they are free
    /// again.
    pub(super) fn run_chunk(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        outputs: OutputRows,
        how: How<'_>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.spare_window(slot, self.position(slot) + tokens.len())?;
        self.unstick(slot, 0)?;
        self.inputs.clear();
        let guesses = if let OutputRows::Last(n) = outputs { n - 1 } else { 0 };
        self.enter_tokens(slot, tokens, guesses, 0).inspect_err(|_| self.free_input_cells())?;
        let rows = tokens.len() as u32;
        let computed = if self.pass_rows.is_some() { OutputRows::All } else { outputs };
        match computed {
            OutputRows::None => {}
            OutputRows::Last(n) => self.inputs.outputs.extend(rows - n as u32..rows),
            OutputRows::All => self.inputs.outputs.extend(0..rows),
        }
        if let How::Sample(_) = how {
            self.inputs.sample.push(SampleRow { sequence: slot.0 as u32, row: 0 });
        }
        if let How::Logits(listed) | How::Sample(listed) = how {
            self.inputs.listed.extend_from_slice(listed);
        }
        let done = self.run_inputs(matches!(how, How::Body), cancel);
        let done = done.and_then(|()| self.keep_pass_rows(slot, tokens, outputs));
        if done.is_err() {
            self.free_input_cells();
        }
        self.hidden_of = (outputs == OutputRows::Last(1) && done.is_ok()).then_some(slot);
        done
    }

    /// Enters tokens after the slot's into the inputs, with a cell for each; the last `guesses` of them may be taken
    /// back again. Slots in the set `busy`, a bit each, are not evicted for them. After an error the cells of the
    /// inputs are still to be freed.
    pub(super) fn enter_tokens(&mut self, slot: SlotId, tokens: &[Token], guesses: usize, busy: u32) -> Result<()> {
        if self.model.outline().pooled().is_some() {
            return Err(Error::Unsupported("This model gives embeddings: it cannot continue a text".into()));
        }
        self.check_source(slot)?;
        let (first, max) = (self.position(slot), self.context());
        if tokens.len() > self.room(slot) {
            let n = tokens.len();
            return Err(Error::OutOfMemory(format!("{n} more tokens after {first} in a context of {max}")));
        }
        if !self.slots.windows().holds(slot.0, first) {
            return Err(Error::Internal(format!("Slot {} has no window before token {first}", slot.0)));
        }
        self.slots.touch(slot);
        self.make_room(slot, tokens.len(), busy);
        let place = self.slots.next_place(slot);
        let no_room = || {
            let n = tokens.len();
            Error::OutOfMemory(format!("{n} more tokens in a context of {max} that other slots fill"))
        };
        for (i, &token) in tokens.iter().enumerate() {
            let position = (first + i) as i32;
            let cell = self.slots.take_cell(slot, place + i, position, slot.bit()).ok_or_else(no_room)?;
            self.inputs.push(token, position, slot.bit(), cell);
        }
        self.enter_window(slot, first..first + tokens.len(), busy).ok_or_else(no_room)?;
        if self.slots.states().any() {
            self.enter_states(slot, first, tokens.len(), guesses)?;
        }
        Ok(())
    }

    /// Enters the cells of sliding layers for positions of the slot, where there are such layers; `None` where other
    /// slots leave none.
    pub(super) fn enter_window(&mut self, slot: SlotId, positions: Range<usize>, busy: u32) -> Option<()> {
        let busy = busy | self.slots.held();
        if self.slots.windows().any() {
            for position in positions {
                let cell = self.slots.windows_mut().enter(slot.0, position, position as i32, slot.bit(), busy)?;
                self.inputs.window.push(cell);
            }
        }
        Some(())
    }

    /// Enters the state of the slot after its first `position` tokens for the last `rows` rows of the inputs, and state
    /// cells for the states after them: before the last `guesses` rows, and after each of those.
    pub(super) fn enter_states(&mut self, slot: SlotId, position: usize, rows: usize, guesses: usize) -> Result<()> {
        let mut first = (self.inputs.tokens.len() - rows) as u32;
        let (at, mut from) = self.slots.states().nearest(slot.0, position);
        if at != position {
            return Err(Error::Internal(format!("Slot {} has no state after {position} tokens, after {at}", slot.0)));
        }
        for rows in iter::once((rows - guesses) as u32).chain(iter::repeat_n(1, guesses)) {
            let inputs = &mut self.inputs.states;
            let at = inputs.len();
            inputs.push(StateRows { first, rows, from, to: NO_STATE });
            let to = self.slots.states_mut().take(inputs);
            from = to.ok_or_else(|| Error::Internal("No state cell is left".into()))?;
            inputs[at].to = from;
            first += rows;
        }
        Ok(())
    }

    /// Makes what the slot's next token goes on from, where it is not there: the state after its last token, and the
    /// windows of sliding layers. For that the tokens are evaluated again that follow the last place where both are,
    /// into their own cells. Their keys and values stay the same, since a row does not depend on the others.
    ///
    /// A cancel or an error leaves what was made so far.
    pub(super) fn catch_up(&mut self, slot: SlotId, cancel: &AtomicBool) -> Result<()> {
        let len = self.position(slot);
        let first = self.slots.nearest(slot, len);
        self.bring_back_window(slot, first)?;
        for first in (first..len).step_by(self.plans.batch()) {
            self.evaluate_again(slot, first, len, cancel)?;
        }
        Ok(())
    }

    /// Evaluates tokens of a slot again, into their own cells: those from `first` on, as many as a pass takes; the
    /// positions from `wanted` on are output rows. Returns how many those are.
    pub(super) fn evaluate_again(
        &mut self,
        slot: SlotId,
        first: usize,
        wanted: usize,
        cancel: &AtomicBool,
    ) -> Result<usize> {
        let rows = self.plans.batch().min(self.position(slot) - first);
        self.slots.touch(slot);
        self.spare_window(slot, first + rows)?;
        let (inputs, slots) = (&mut self.inputs, &self.slots);
        inputs.clear();
        inputs.tokens.extend_from_slice(&slots.tokens(slot)[first..first + rows]);
        inputs.cells.extend_from_slice(&slots.cells_of(slot)[first..first + rows]);
        inputs.positions.extend((first..first + rows).map(|position| position as i32));
        inputs.sequences.resize(rows, slot.bit());
        inputs.outputs.extend(wanted.saturating_sub(first) as u32..rows as u32);
        if self.enter_window(slot, first..first + rows, slot.bit()).is_none() {
            return Err(Error::OutOfMemory(format!(
                "{rows} tokens to evaluate again, where other slots fill the cells"
            )));
        }
        if self.slots.states().any() {
            self.enter_states(slot, first, rows, 0)?;
        }
        let outputs = self.inputs.outputs.len();
        if outputs > 0 {
            self.hidden_of = None;
        }
        let done = self.run_inputs(true, cancel);
        let to = self.inputs.states.first().map_or(NO_STATE, |of| of.to);
        match done {
            Ok(()) => self.slots.keep(slot, first + rows, to),
            Err(_) => self.slots.states_mut().free(to),
        }
        done.map(|()| outputs)
    }

    /// Frees the cells and the new state cells of the inputs.
    pub(super) fn free_input_cells(&mut self) {
        self.slots.free_cells(self.inputs.cells.iter().copied());
        self.slots.windows_mut().clear(&self.inputs.window);
        if let Some((slot, end)) = self.is_reading() {
            self.slots.windows_mut().expect(slot.0, end);
        }
        self.inputs.states.drain(..).for_each(|of| self.slots.states_mut().free(of.to));
    }

    /// Evaluates the inputs: the body alone, or logits of the output rows as well.
    pub(super) fn run_inputs(&mut self, body_alone: bool, cancel: &AtomicBool) -> Result<()> {
        let batch = self.inputs.batch(&self.slots);
        let (rows, outputs, listed) = (batch.tokens.len(), batch.outputs.len(), batch.listed.len());
        let plan = if body_alone { self.plans.body(rows) } else { self.plans.decode(rows)? };
        let done = plan.run(&mut self.states, &batch, outputs, cancel);
        self.stats.forward_passes += 1;
        if !body_alone {
            self.count_logits(outputs, listed);
        }
        self.stats.rows += rows as u64;
        if done.is_ok() {
            self.slots.commit_cells();
        }
        done
    }

    /// Evicts slots other than this one and the busy ones, the least recently used first, until the slot can take `n`
    /// more tokens.
    pub(super) fn make_room(&mut self, slot: SlotId, n: usize, busy: u32) {
        while let Some(victim) = self.slots.victim(slot, n, busy | slot.bit()) {
            self.truncate(victim, 0);
        }
    }

    /// An error where the kept hidden row is not this slot's.
    pub(super) fn check_last(&self, slot: SlotId) -> Result<()> {
        match self.hidden_of == Some(slot) {
            true => Ok(()),
            false => Err(Error::InvalidArgument("Logits were asked for a slot that was not evaluated last".into())),
        }
    }

    /// Compute logits from the kept hidden row, which must be this slot's.
    pub(super) fn run_head(
        &mut self,
        slot: SlotId,
        listed: &[Token],
        sample: &[SampleRow],
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.check_last(slot)?;
        let batch = Batch { listed, sample, ..Batch::default() };
        self.plans.head()?.run(&mut self.states, &batch, 1, cancel)?;
        self.stats.head_passes += 1;
        self.count_logits(1, listed.len());
        Ok(())
    }

    pub(super) fn count_logits(&mut self, rows: usize, listed: usize) {
        self.stats.logits += (rows * if listed > 0 { listed } else { self.model.n_vocab() }) as u64;
    }

    /// Call `each` with the number and the logits of each kept hidden row. The hidden rows are overwritten.
    pub(super) fn each_logits(
        &mut self,
        rows: usize,
        cancel: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.hidden_of = None;
        let (n_vocab, width) = (self.model.n_vocab(), self.model.hparams().n_embd);
        let hidden_at = self.plans.kept().hidden_offset();
        let head_rows = self.plans.head_rows();
        for first in (0..rows).step_by(head_rows) {
            let n = head_rows.min(rows - first);
            // The head reads the first hidden rows; those before `first` are not needed any more.
            let head = &mut self.states[self.model.outline().places().hidden];
            let hidden = reserve::copied(head.rows(hidden_at + first * width * 4, n * width)?, HIDDEN)?;
            head.put(hidden_at, &hidden)?;
            self.plans.head_many()?.run(&mut self.states, &Batch::default(), n, cancel)?;
            self.count_logits(n, 0);
            for (i, logits) in self.logits(n)?.chunks_exact(n_vocab).enumerate() {
                each(first + i, logits)?;
            }
        }
        Ok(())
    }

    /// How many tokens a pass may evaluate that may be taken back again: as many as it has logits for beside those of
    /// the next token. A model with states keeps one after each, in the cells for snapshots. None where the device
    /// samples.
    pub(crate) fn most_guesses(&self) -> usize {
        let states = self.slots.states();
        let most = if self.has_sampler() { 0 } else { self.plans.head_rows() - 1 };
        if states.any() { most.min(states.spare()) } else { most }
    }

    /// Appends tokens in one pass, the last `guesses` of which may be taken back again, for the logits before and after
    /// each of those, as [`Engine::next_logits`] has them: [`Engine::row_ahead`] gives them until the engine does
    /// anything else.
    pub(crate) fn logits_ahead(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        guesses: usize,
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.check_tokens(tokens)?;
        self.rollback()?;
        let rows = 1 + guesses;
        if tokens.len() < rows || guesses > self.most_guesses() || tokens.len() > self.plans.batch() {
            return Err(Error::InvalidArgument(format!(
                "{} tokens in a pass, {guesses} of them guessed",
                tokens.len()
            )));
        }
        self.catch_up(slot, cancel)?;
        self.append_chunk(slot, tokens, OutputRows::Last(rows), How::Body, cancel)?;
        let kept = self.position(slot) - guesses;
        self.hidden_of = None;
        let head = if rows == 1 { self.plans.head()? } else { self.plans.head_many()? };
        if let Err(error) = head.run(&mut self.states, &Batch::default(), rows, cancel) {
            self.truncate(slot, kept);
            return Err(error);
        }
        self.stats.head_passes += 1;
        self.count_logits(rows, 0);
        Ok(())
    }

    /// The logits after so many guesses of [`Engine::logits_ahead`].
    pub(crate) fn row_ahead(&mut self, guesses: usize) -> Result<&mut [f32]> {
        let n_vocab = self.model.n_vocab();
        Ok(&mut self.logits(guesses + 1)?[guesses * n_vocab..])
    }

    pub(super) fn logits(&mut self, rows: usize) -> Result<&mut [f32]> {
        let head = &mut self.states[self.model.outline().places().logits];
        head.rows(self.plans.kept().logits_offset(), rows * self.model.n_vocab())
    }
}
