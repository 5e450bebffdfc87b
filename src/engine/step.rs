//! Tokens of several slots in one pass: the next token of some, parts of prompts of others.
//!
//! A pass has slots that the device samples after their tokens, slots whose logits the host reads, and slots of which
//! more tokens follow, in any mix. The device's rows come first and those without a result last, so that the logits are
//! read as one piece. A row's bits do not depend on the others.

use super::device_sampling::problem;
use super::plans::MOST_HEAD_ROWS;
use super::{Engine, SlotId};
use crate::backend::{Batch, Legal, MAX_LISTED, MAX_SEQUENCES, SampleResult, SampleRow};
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

/// One slot's part in a pass.
#[derive(Debug, Clone, Copy)]
pub struct SlotTokens<'a> {
    /// The slot.
    pub slot: SlotId,
    /// The tokens to append, at least one.
    pub tokens: &'a [Token],
    /// What is wanted after them.
    pub then: Then<'a>,
}

/// What is wanted after a slot's tokens.
#[derive(Debug, Clone, Copy)]
pub enum Then<'a> {
    /// Nothing: more tokens follow.
    Nothing,
    /// The logits of these tokens, as in [`Engine::next_logits`]; all where the slice is empty.
    Logits(&'a [Token]),
    /// All logits before and after each of so many last tokens, fewer than the part has.
    Ahead(usize),
    /// A token that the device samples, under this mask.
    Sample(Option<Legal<'a>>),
}

/// The result after a slot's token.
#[derive(Debug)]
pub enum SlotOutcome<'a> {
    /// The token that the device sampled, with the candidates that the slot's chain reports; or no token and the
    /// candidates that the host goes on with.
    Sampled(&'a SampleResult, &'a [(Token, f32, f32)]),
    /// The logits, one per token of the vocabulary; of several tokens one row after the other. The caller may change
    /// them.
    Logits(&'a mut [f32]),
}

/// Takes the result of a slot by the index of its part.
pub type Each<'a> = &'a mut dyn FnMut(usize, Result<SlotOutcome<'_>>);

/// Why a pass was not made: the error, and the index of the part whose it is, where the others could go on without.
pub type PassError = (Option<usize>, Error);

impl Engine {
    /// Append a token to each of these slots, all different, and call `each` with the index of the slot in `turns` and
    /// its result, in no set order: a sampled token where [`Engine::start_sampling`] was called for the slot, else
    /// logits. As many as [`Engine::most_results`] take a pass.
    ///
    /// An error of one row (NaN among its logits, no candidate) is passed to `each`, and the other rows go on. After an
    /// error of the step the slots of that pass are unchanged.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slot that is named twice or a token outside the vocabulary,
    /// [`Error::OutOfMemory`] where the context has no room, [`Error::Cancelled`], and [`Error::Device`] where a device
    /// fails. Errors of a single row are passed to `each`.
    pub fn step(&mut self, turns: &[SlotToken<'_>], cancel: &AtomicBool, each: Each<'_>) -> Result<()> {
        self.rollback()?;
        let mut busy = 0u32;
        for turn in turns {
            self.check_tokens(&[turn.token])?;
            if busy & turn.slot.bit() != 0 {
                return Err(Error::InvalidArgument(format!("Slot {} has two turns in one step", turn.slot.0)));
            }
            busy |= turn.slot.bit();
        }
        let most = self.plans.head_rows();
        for (i, turns) in turns.chunks(most).enumerate() {
            let mut parts = [SlotTokens { slot: SlotId(0), tokens: &[], then: Then::Nothing }; MOST_HEAD_ROWS];
            for (part, turn) in parts.iter_mut().zip(turns) {
                let sampled = self.sampling.known(turn.slot).is_some();
                let then = if sampled { Then::Sample(turn.legal) } else { Then::Logits(&[]) };
                *part = SlotTokens { slot: turn.slot, tokens: std::slice::from_ref(&turn.token), then };
            }
            let mut each = |turn: usize, outcome: Result<SlotOutcome<'_>>| each(i * most + turn, outcome);
            self.run_parts(&parts[..turns.len()], busy, cancel, &mut each).map_err(|(_, error)| error)?;
        }
        Ok(())
    }

    /// Append tokens to each of these slots, all different, in one pass, and call `each` with the index of the part and
    /// its result, for those that want one, in no set order. At most [`Engine::batch`] tokens, and at most
    /// [`Engine::most_results`] results. What a slot samples on the device is as [`Engine::start_sampling`] says.
    ///
    /// An error of one row (NaN among its logits, no candidate) is passed to `each`, and the other rows go on. After an
    /// error of the pass all slots are unchanged.
    ///
    /// # Errors
    /// As [`Engine::step`], with the index of the part that has no room, or whose earlier tokens could not be evaluated
    /// again: the others may go on without it.
    pub fn pass(
        &mut self,
        parts: &[SlotTokens<'_>],
        cancel: &AtomicBool,
        each: Each<'_>,
    ) -> std::result::Result<(), PassError> {
        let all = |error| (None, error);
        self.rollback().map_err(all)?;
        let (mut busy, mut rows, mut results) = (0u32, 0, 0);
        for (i, part) in parts.iter().enumerate() {
            let of_part = |error| (Some(i), error);
            self.check_tokens(part.tokens).map_err(of_part)?;
            if part.tokens.is_empty() || busy & part.slot.bit() != 0 {
                return Err(of_part(Error::InvalidArgument(format!("Slot {} has no part of its own", part.slot.0))));
            }
            if part.then.results() > part.tokens.len() {
                let (tokens, results) = (part.tokens.len(), part.then.results());
                return Err(of_part(Error::InvalidArgument(format!("{results} results after {tokens} tokens"))));
            }
            busy |= part.slot.bit();
            rows += part.tokens.len();
            results += part.then.results();
        }
        if rows > self.plans.batch() || results > self.plans.head_rows() || parts.len() > MAX_SEQUENCES {
            let problem = format!("A pass of {} slots with {rows} tokens and {results} results", parts.len());
            return Err(all(Error::InvalidArgument(problem)));
        }
        self.run_parts(parts, busy, cancel, each)
    }

    /// The most results of a pass.
    pub fn most_results(&self) -> usize {
        self.plans.head_rows()
    }

    fn run_parts(
        &mut self,
        parts: &[SlotTokens<'_>],
        busy: u32,
        cancel: &AtomicBool,
        each: Each<'_>,
    ) -> std::result::Result<(), PassError> {
        let all = |error| (None, error);
        let mut order = [0; MAX_SEQUENCES];
        let order = &mut order[..parts.len()];
        order.iter_mut().enumerate().for_each(|(i, part)| *part = i);
        order.sort_unstable_by_key(|&i| (parts[i].then.rank(), i));
        let with_rank = |rank| parts.iter().filter(|part| part.then.rank() == rank).count();
        let (sampled, read) = (with_rank(0), with_rank(1));
        let results: usize = parts.iter().map(|part| part.then.results()).sum();
        for (i, part) in parts.iter().enumerate() {
            self.make_ready(part, busy, cancel).map_err(|error| (Some(i), error))?;
        }
        self.inputs.clear();
        for &i in &*order {
            let SlotTokens { slot, tokens, then } = parts[i];
            if let Err(error) = self.enter_tokens(slot, tokens, then.results().saturating_sub(1), busy) {
                self.free_input_cells();
                return Err((Some(i), error));
            }
            let end = self.inputs.tokens.len();
            self.inputs.outputs.extend((end - then.results()..end).map(|row| row as u32));
            if let Then::Sample(_) = then {
                let row = self.inputs.sample.len() as u32;
                self.inputs.sample.push(SampleRow { sequence: slot.0 as u32, row });
            }
        }
        self.list_logits(parts);
        // Each row has a result: body and head are one plan.
        let single = self.inputs.tokens.len() == results;
        // From here on the kept hidden row belongs to another slot, and making a plan may replace its memory.
        self.hidden_of = None;
        let done = self.run_entered(single, (parts, &order[..sampled]), results, cancel);
        if done.is_err() {
            self.free_input_cells();
        }
        let mut first = 0;
        for &i in &*order {
            let SlotTokens { slot, tokens, then } = parts[i];
            let rows = first..first + tokens.len();
            first = rows.end;
            if done.is_ok() {
                self.keep_entered(slot, tokens, rows);
            }
            // The device has tokens that are not in the slot, or does not have those that are.
            if done.is_err() || !matches!(then, Then::Sample(_)) {
                self.sampling.end(slot);
            }
        }
        done.map_err(all)?;
        if sampled > 0 {
            let (sampling, state) = self.sampling_device();
            sampling.read(state).map_err(all)?;
            for (row, &i) in sampling.rows().iter().zip(&order[..sampled]) {
                let outcome = SlotOutcome::Sampled(&row.result, &row.candidates);
                each(i, problem(&row.result).map_or(Ok(outcome), Err));
            }
        }
        if read > 0 {
            let n_vocab = self.model.n_vocab();
            let head = &mut self.states[self.model.outline().places().logits];
            let at = self.plans.kept().logits_offset() + sampled * n_vocab * 4;
            let mut rest = head.rows(at, (results - sampled) * n_vocab).map_err(all)?;
            for &i in &order[sampled..][..read] {
                let (logits, others) = rest.split_at_mut(parts[i].then.results() * n_vocab);
                rest = others;
                each(i, Ok(SlotOutcome::Logits(logits)));
            }
        }
        Ok(())
    }

    /// Makes what a part's tokens go on from.
    fn make_ready(&mut self, part: &SlotTokens<'_>, busy: u32, cancel: &AtomicBool) -> Result<()> {
        self.catch_up(part.slot, cancel)?;
        self.spare_window(part.slot, self.position(part.slot) + part.tokens.len())?;
        self.unstick(part.slot, busy)
    }

    /// Enters the tokens whose logits are wanted, where these are few for all results together.
    fn list_logits(&mut self, parts: &[SlotTokens<'_>]) {
        let mut wanted = 0;
        for part in parts {
            match part.then {
                Then::Nothing => {}
                Then::Logits(listed) if !listed.is_empty() => wanted += listed.len(),
                _ => return,
            }
        }
        if wanted > MAX_LISTED {
            return;
        }
        let listed = &mut self.inputs.listed;
        for part in parts {
            if let Then::Logits(tokens) = part.then {
                listed.extend_from_slice(tokens);
            }
        }
        listed.sort_unstable();
        listed.dedup();
    }

    /// Runs the plan for what was entered, and that of the head where it is another one.
    fn run_entered(
        &mut self,
        single: bool,
        (parts, sampled): (&[SlotTokens<'_>], &[usize]),
        results: usize,
        cancel: &AtomicBool,
    ) -> Result<()> {
        if single && !self.plans.has_decode(results) {
            self.plans.add_decode(&self.model, &mut self.states, results)?;
        }
        for part in sampled.iter().map(|&i| &parts[i]) {
            let Then::Sample(legal) = part.then else { continue };
            let (sampling, state) = self.sampling_device();
            sampling.tell(state, part.slot, part.tokens, legal)?;
        }
        self.run_inputs(!single, cancel)?;
        if single || results == 0 {
            return Ok(());
        }
        let batch = Batch { listed: &self.inputs.listed, sample: &self.inputs.sample, ..Batch::default() };
        let head = if results == 1 { self.plans.head()? } else { self.plans.head_many()? };
        head.run(&mut self.states, &batch, results, cancel)?;
        self.stats.head_passes += 1;
        self.count_logits(results, self.inputs.listed.len());
        Ok(())
    }
}

impl Then<'_> {
    /// How many rows have a result.
    fn results(&self) -> usize {
        match self {
            Then::Nothing => 0,
            Then::Logits(_) | Then::Sample(_) => 1,
            Then::Ahead(tokens) => 1 + tokens,
        }
    }

    /// In which order the rows stand.
    fn rank(&self) -> u8 {
        match self {
            Then::Sample(_) => 0,
            Then::Logits(_) | Then::Ahead(_) => 1,
            Then::Nothing => 2,
        }
    }
}
