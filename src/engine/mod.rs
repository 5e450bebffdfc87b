//! A loaded model ready to decode: KV cache, slots, batches, cached plans.
//!
//! One engine belongs to one stream handle and is used by one thread. It owns `context` cells of KV memory, shared by
//! up to 16 slots; a slot is a token sequence with the cells that hold its keys and values. Plans for every row bucket
//! are made when the engine opens; after that no pass allocates, schedules or compiles (but see `plans.rs` on steps of
//! several slots).
//!
//! [`Engine`] has four parts with invariants of their own: the slots and their cells (`slots.rs`), the plans
//! (`plans.rs`), the record of the device that samples (`device_sampling.rs`), and the inputs of a pass (`inputs.rs`).
//! `passes.rs` goes from tokens to logits and lists the stages in their order; the other operations on slots have a
//! file each: `step.rs`, `sampling.rs`, `trie_walk.rs`, `score.rs`, `last.rs`, `rearrange.rs`, `slot_io.rs`.
//!
//! Invariants: after an error or a cancel the slot holds exactly the tokens whose cells are valid. Cells are reused for
//! another prompt only where they were computed after the tokens that precede them now.

mod assistant;
mod cells;
mod device_sampling;
mod embed;
mod encode;
mod graphs;
mod held_trie;
mod hidden;
mod inputs;
mod last;
mod memory;
mod options;
mod passes;
mod plans;
mod reading;
mod rearrange;
mod report;
mod sampling;
mod score;
mod slot_file;
mod slot_io;
mod slots;
mod sources;
mod states;
mod step;
mod trie_walk;
mod windows;

pub use crate::backend::memory::{Bytes, Component, Memory};
pub use crate::backend::{DeviceInfo, DeviceKind, LoadProgress, Traffic, devices};
pub use crate::model::Pooling;
pub use crate::model::{TensorDevice, TensorSplit};
pub use device_sampling::Speculation;
pub use embed::{EmbedOptions, Embeddings};
pub use graphs::{Bucket, GraphNode, GraphPlan, plan_graphs};
pub use hidden::HiddenRows;
pub use memory::{DraftBytes, Estimate, MemoryPlan, Need, plan_memory};
pub use options::{EngineOptions, KvType, context_for, default_thread_count};
pub use report::{devices_json, plan_json};
pub use score::LeafScore;
pub use slot_file::SavedSlot;
pub use slots::SlotId;
pub use step::{PassError, SlotOutcome, SlotToken, SlotTokens, Then};

use crate::backend::{Backend, KvTypes, LIST_BLOCK, LayerCache, MAX_LISTED, State, TABLES, WALK_CELLS};
use crate::gguf::File;
use crate::model::{Model, Outline, load, load_shared};
use crate::schedule::Device;
use crate::{Error, Result, Token};
use device_sampling::DeviceSampling;
use inputs::{How, Inputs, OutputRows, Reading};
use plans::{Assistant, MOST_HEAD_ROWS, Plans, can_leave, head_rows};
use slots::Slots;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// What a prefill did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prefill {
    /// Tokens in the slot now: all given tokens.
    pub tokens: usize,
    /// Tokens that were already in the slot and not evaluated again.
    pub reused: usize,
    /// Those of them that came from a file.
    pub restored: usize,
    /// Forward passes made.
    pub passes: usize,
}

/// Counters of an engine since it opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Passes through the layers.
    pub forward_passes: u64,
    /// Rows evaluated in them.
    pub rows: u64,
    /// Runs of the output head alone.
    pub head_passes: u64,
    /// Logits computed: rows of the output matrix times output rows.
    pub logits: u64,
    /// Earlier recurrent states and windows of sliding layers that are kept now.
    pub snapshots: u64,
    /// Requests to a server that has the model.
    pub requests: u64,
    /// Tokens of the last prompt that such a server still had.
    pub cached: u64,
    /// Work submitted to the devices.
    pub traffic: Traffic,
}

impl EngineStats {
    /// What was counted since an earlier reading; snapshots are those of now.
    pub(crate) fn since(self, before: &EngineStats) -> EngineStats {
        EngineStats {
            forward_passes: self.forward_passes - before.forward_passes,
            rows: self.rows - before.rows,
            head_passes: self.head_passes - before.head_passes,
            logits: self.logits - before.logits,
            snapshots: self.snapshots,
            requests: self.requests - before.requests,
            cached: self.cached,
            traffic: self.traffic - before.traffic,
        }
    }

    /// Adds what was counted since.
    pub(crate) fn add(&mut self, more: &EngineStats) {
        *self = EngineStats {
            forward_passes: self.forward_passes + more.forward_passes,
            rows: self.rows + more.rows,
            head_passes: self.head_passes + more.head_passes,
            logits: self.logits + more.logits,
            snapshots: more.snapshots,
            requests: self.requests + more.requests,
            cached: more.cached,
            traffic: self.traffic + more.traffic,
        };
    }
}

/// Called after a pass over a part of a prompt.
pub(crate) type EachPass<'a> = &'a mut dyn FnMut(&Engine) -> Result<()>;

/// A loaded model with its KV cache, its slots and the plans it runs.
pub struct Engine {
    model: Arc<Model>,
    /// One per device of the model.
    states: Vec<Box<dyn State>>,
    plans: Plans,
    slots: Slots,
    sampling: DeviceSampling,
    inputs: Inputs,
    /// Where streams share the engine and a pass can be left.
    reading: Option<Reading>,
    /// Moves of cells, (from, to).
    moves: Vec<(u32, u32)>,
    threads: usize,
    /// The most tokens of several texts that share a pass.
    packed: usize,
    /// The slot to whose last position the kept hidden row belongs.
    hidden_of: Option<SlotId>,
    /// The hidden rows of the last pass, where somebody reads them.
    pass_rows: Option<HiddenRows>,
    /// A draft model that reads them, and this model's keys and values.
    assistant: Option<Assistant>,
    stats: EngineStats,
}

/// The model at `path`, shared with all who have it open with the same placement.
///
/// # Errors
/// Those of [`plan_memory`]; [`Error::OutOfMemory`] with the needed and the available bytes, before anything is loaded;
/// [`Error::Busy`] from the `progress` of a load of the same model; [`Error::Cancelled`] where `progress` returned
/// false.
pub fn open_model(path: &Path, options: &EngineOptions, progress: LoadProgress<'_>) -> Result<Arc<Model>> {
    open_drafted_model(path, None, options, progress)
}

/// As [`open_model`], for a session in which the file at `draft` guesses: with its block that predicts further tokens
/// where both are one file, see [`Model::nextn`].
///
/// # Errors
/// Those of [`open_model`]; [`Error::Unsupported`] for such a block of an architecture whose blocks are not known.
pub fn open_drafted_model(
    path: &Path,
    draft: Option<&Path>,
    options: &EngineOptions,
    progress: LoadProgress<'_>,
) -> Result<Arc<Model>> {
    let (placement, threads) = (options.placement_beside(path, draft), load_threads(options)?);
    load_shared(path, &placement, threads, &admit(options), progress)
}

/// The model of a file that is open or in memory, shared with nobody.
///
/// # Errors
/// As [`open_model`].
pub fn load_model(file: File, options: &EngineOptions, progress: LoadProgress<'_>) -> Result<Arc<Model>> {
    let (placement, threads) = (options.placement(), load_threads(options)?);
    load(file, &placement, threads, &admit(options), progress)
}

/// Refuses what does not fit, and asks `progress` meanwhile whether to go on.
fn admit(
    options: &EngineOptions,
) -> impl Fn(&File, &Outline, &[Arc<dyn Backend>], &mut LoadProgress<'_>) -> Result<()> {
    |file, outline, on, progress| memory::admit(file, outline, on, options, &mut || go_on(progress, 0.0))
}

/// [`Error::Cancelled`] where the host cancels the load.
fn go_on(progress: &mut LoadProgress<'_>, done: f32) -> Result<()> {
    match progress.as_mut().is_none_or(|progress| progress(done)) {
        true => Ok(()),
        false => Err(Error::Cancelled),
    }
}

/// The weights are shared by engines of any number of threads, so a load uses all fast cores.
fn load_threads(options: &EngineOptions) -> Result<usize> {
    Ok(options.threads()?.max(default_thread_count() as usize))
}

impl Engine {
    /// Reserve all memory that decoding `model` needs.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn new(model: Arc<Model>, options: &EngineOptions) -> Result<Engine> {
        Engine::open(model, options, None)
    }

    /// As [`Engine::new`]; `progress`, which was called during the model's load, may cancel this too.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the needed and the available bytes, [`Error::InvalidArgument`] for options out of
    /// range, [`Error::Unsupported`] where a device has no cache of the requested types, [`Error::Cancelled`] where
    /// `progress` returned false, and [`Error::Device`] where a device fails.
    pub fn open(model: Arc<Model>, options: &EngineOptions, mut progress: LoadProgress<'_>) -> Result<Engine> {
        memory::check_answers(model.outline())?;
        let mut look = || go_on(&mut progress, 1.0);
        let context = context_for(options.context, model.train_context());
        let n_slots = options.sequences()?;
        let (threads, batch) = (options.threads()?, memory::batch_of(model.outline(), options)?);
        memory::admit_engine(&model, options, &mut look)?;
        let (cache, windows) = memory::cache_of(model.outline(), options)?;
        let state = |(i, device): (usize, &Device)| {
            device.backend.new_state(&memory::share_of(&cache, model.outline(), i), threads)
        };
        let [cells, sources] = TABLES.map(|table| cache.cells[table as usize]);
        let sources = if model.outline().answers() { sources } else { 0 };
        let (parallel, streams) = (options.parallel()?, options.streams()?);
        if options.shares()? && model.outline().answers() {
            return Err(Error::Unsupported("Streams of an encoder-decoder share no engine".into()));
        }
        let slots = Slots::new((n_slots, parallel), (cells, cache.state_cells), (windows, sources), context)?;
        // Before the states, so that a device's known-answer tests need no memory in addition to them.
        let plans = Plans::new(&model, cache.clone(), (batch, head_rows(streams)), &mut look)?;
        let mut states = model.devices().iter().enumerate().map(state).collect::<Result<Vec<_>>>()?;
        plans.reserve(model.outline(), &mut states)?;
        let can_leave = can_leave(model.outline(), streams, states.len());
        let mut reading = can_leave.then(|| Reading::new(&states, batch)).flatten();
        if let Some(reading) = &mut reading {
            plans.reserve_reading(&mut reading.states)?;
        }
        let rows = batch.max(WALK_CELLS);
        Ok(Engine {
            model,
            states,
            plans,
            slots,
            sampling: DeviceSampling::new(n_slots),
            inputs: Inputs::new(rows, MOST_HEAD_ROWS),
            reading,
            moves: Vec::with_capacity(rows.max(windows.reach).max(LIST_BLOCK)),
            threads,
            packed: options.batch()?.min(context),
            hidden_of: None,
            pass_rows: None,
            assistant: None,
            stats: EngineStats::default(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Context in tokens, shared by all slots.
    pub fn context(&self) -> usize {
        self.slots.context()
    }

    /// Number of host threads that compute.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The most tokens of a prompt that one pass evaluates.
    pub fn batch(&self) -> usize {
        self.plans.batch()
    }

    /// Element types of the KV cache.
    pub fn kv_types(&self) -> KvTypes {
        self.plans.cache().types
    }

    /// Bytes of the keys and values that a token after `tokens` others reads, over all layers: in sliding layers those
    /// of a window. (Q8_0 with scales of 32 bits, as in a saved slot.)
    pub fn cache_bytes_read(&self, tokens: usize) -> u64 {
        let (cache, reaches) = (self.plans.cache(), self.model.outline().reaches());
        let layers = cache.layers.iter().zip(reaches).filter_map(|(layer, reach)| Some((layer.as_ref()?, reach)));
        let bytes = |(layer, reach): (&LayerCache, Option<usize>)| {
            (layer.row_bytes(cache.types) * reach.map_or(tokens, |reach| reach.min(tokens))) as u64
        };
        layers.map(bytes).sum()
    }

    /// Number of slots that share the context; of each seat, where there are several.
    pub fn slots(&self) -> usize {
        self.slots.count()
    }

    /// Counters since open.
    pub fn stats(&self) -> EngineStats {
        let traffic = self.states.iter().map(|s| s.traffic()).fold(Traffic::default(), |all, one| all + one);
        EngineStats { traffic, snapshots: self.slots.snapshots() as u64, ..self.stats }
    }

    /// The slot with this number, or for -1 a fresh one: an empty slot, else the least recently used that is not
    /// pinned, emptied.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slot that does not exist, and where every slot is pinned.
    pub fn take_slot(&mut self, slot_id: i32) -> Result<SlotId> {
        let slot = self.slots.find(slot_id)?;
        if slot_id == -1 {
            self.truncate(slot, 0);
        }
        self.slots.touch(slot);
        Ok(slot)
    }

    /// The slot for a prompt: the one with this number; for -1 the one whose tokens the prompt goes on from, else an
    /// empty one, else the least recently used that is not pinned.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slot that does not exist, and where every slot is pinned.
    pub fn slot_for(&mut self, slot_id: i32, tokens: &[Token]) -> Result<SlotId> {
        let slot = if slot_id == -1 { self.slots.find_for(tokens)? } else { self.slots.find(slot_id)? };
        self.slots.touch(slot);
        Ok(slot)
    }

    /// Whether a slot (-1: any) begins with all of these tokens, and a prompt can go on after them.
    pub fn holds(&self, slot_id: i32, tokens: &[Token]) -> bool {
        self.slots.holds(slot_id, tokens)
    }

    /// Pins these slots, a bit each, and no others: a pinned one keeps its tokens when other slots need cells, and is
    /// no fresh slot for a prompt.
    pub fn pin(&mut self, slots: u32) {
        self.slots.pin(slots);
    }

    /// Tokens in the slot.
    pub fn tokens(&self, slot: SlotId) -> &[Token] {
        self.slots.tokens(slot)
    }

    /// Number of tokens in the slot, which is the position of the next one.
    pub fn position(&self, slot: SlotId) -> usize {
        self.slots.position(slot)
    }

    /// Tokens that the slot can still take. Cells of other slots count as free: they are evicted when needed.
    pub fn room(&self, slot: SlotId) -> usize {
        self.slots.room(slot)
    }

    /// Remove the slot's tokens from `n_tokens` on.
    pub fn truncate(&mut self, slot: SlotId, n_tokens: usize) {
        if self.slots.truncate(slot, n_tokens) {
            self.sampling.end(slot);
            self.hidden_of = self.hidden_of.filter(|&whose| whose != slot);
        }
    }

    /// From now on a wait for a device also ends with [`Error::Cancelled`], some time after `cancel` was set, so that a
    /// device that hangs can be abandoned.
    pub fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.states.iter_mut().for_each(|state| state.watch(cancel));
    }

    /// Make the slot hold exactly `tokens`: the longest common prefix with what it, or another slot, holds is reused,
    /// the rest is evaluated in chunks of at most [`Engine::batch`], and the last position's hidden row is kept for
    /// [`Engine::head`].
    ///
    /// The encoder of an encoder-decoder reads `tokens` in one pass, or not at all where the slot had the same prompt
    /// before. The slot then holds the token that begins an answer.
    ///
    /// A cancel or an error leaves the slot with the tokens evaluated so far.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no tokens or a token outside the vocabulary, [`Error::OutOfMemory`] for more
    /// tokens than the context, [`Error::Io`] where the model's file was changed, [`Error::Cancelled`], and
    /// [`Error::Device`] where a device fails.
    pub fn prefill(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<Prefill> {
        self.prefill_each(slot, tokens, cancel, &mut |_| Ok(()))
    }

    /// As [`Engine::prefill`]; `each` is called after each pass, and its error ends the prefill.
    pub(crate) fn prefill_each(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        cancel: &AtomicBool,
        each: EachPass<'_>,
    ) -> Result<Prefill> {
        self.check_prompt(tokens)?;
        self.rollback()?;
        if self.slots.sources().any() {
            return self.prefill_source(slot, tokens, cancel);
        }
        let (reused, restored) = self.begin_prompt(slot, tokens)?;
        let before = self.stats.forward_passes;
        self.append_each(slot, &tokens[reused..], cancel, each)?;
        self.end_prompt(slot, reused)?;
        let passes = (self.stats.forward_passes - before) as usize;
        Ok(Prefill { tokens: tokens.len(), reused, restored, passes })
    }

    /// An error for a prompt that no slot can hold.
    pub(crate) fn check_prompt(&self, tokens: &[Token]) -> Result<()> {
        self.check_tokens(tokens)?;
        if tokens.is_empty() {
            return Err(Error::InvalidArgument("A prompt without tokens".into()));
        }
        if tokens.len() > self.context() {
            let (n, max) = (tokens.len(), self.context());
            return Err(Error::OutOfMemory(format!("A prompt of {n} tokens in a context of {max}")));
        }
        Ok(())
    }

    /// The first part of [`Engine::prefill`]: the slot has the longest beginning of `tokens` that it, or another slot,
    /// holds. Returns how many tokens that are, and how many of them came from a file.
    pub(crate) fn begin_prompt(&mut self, slot: SlotId, tokens: &[Token]) -> Result<(usize, usize)> {
        self.rollback()?;
        let (whose, reused) = self.slots.longest_prefix(slot, tokens);
        match whose == slot {
            true => self.truncate(slot, reused),
            false => self.share(whose, slot, reused)?,
        }
        Ok((self.position(slot), self.slots.restored(slot)))
    }

    /// The last part of [`Engine::prefill`], after the tokens of the prompt were appended. After an error of a device
    /// the slot has its first `reused` tokens.
    pub(crate) fn end_prompt(&mut self, slot: SlotId, reused: usize) -> Result<()> {
        if let Some(error) = self.states.iter_mut().find_map(|state| state.finish().err()) {
            self.truncate(slot, reused);
            return Err(error);
        }
        self.slots.mark(slot, self.position(slot));
        if self.slots.cells().is_scattered() {
            self.defragment()?;
        }
        Ok(())
    }

    /// From now on slot numbers are those of this seat: [`EngineOptions::parallel`] seats have as many slots each. It
    /// may use this slot alone, or else all of them but those with streams of their own.
    pub(crate) fn sit(&mut self, seat: usize, only: Option<SlotId>) {
        self.slots.sit(seat, only);
    }

    /// Gives a slot of the seat a stream of its own: the one with this number; for -1 one that is no other's, `current`
    /// last. Its tokens stay. Where it is `current`, another one takes that place.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slot that does not exist or has one, where every slot is pinned, and for the
    /// last one without; [`Error::Busy`] for `current` where it `is_kept`.
    pub(crate) fn part(&mut self, slot_id: i32, current: &mut SlotId, is_kept: bool) -> Result<SlotId> {
        self.slots.part(slot_id, current, is_kept)
    }

    /// The slot that is in use: it keeps its tokens when others need cells.
    pub(crate) fn hold(&mut self, slot: SlotId) {
        self.slots.hold(slot);
    }

    /// The slots that are held no longer until they are held again, a bit each.
    pub(crate) fn resting(&self) -> &Arc<AtomicU32> {
        self.slots.resting()
    }

    /// Ends a stream's use of the slots that may be used now: pins and holds none of them, and one that is the
    /// stream's own is the seat's again. They keep their tokens.
    pub(crate) fn leave(&mut self) {
        self.slots.pin(0);
        self.slots.release();
        self.slots.join();
    }

    /// Empties the slots of the seat.
    pub(crate) fn vacate(&mut self) {
        for slot in self.slots.numbered(-1) {
            self.truncate(slot, 0);
        }
    }

    /// How many tokens of a prompt [`Engine::begin_prompt`] finds for the slot.
    pub(crate) fn reusable(&self, slot: SlotId, tokens: &[Token]) -> usize {
        self.slots.longest_prefix(slot, tokens).1
    }

    /// Whether the kept hidden row is the slot's, as [`Engine::score`] and others need it.
    pub(crate) fn is_last(&self, slot: SlotId) -> bool {
        self.hidden_of == Some(slot)
    }

    /// The number of a slot in the seat.
    pub(crate) fn number(&self, slot: SlotId) -> i32 {
        self.slots.number(slot)
    }

    /// Append tokens without computing logits; the last position's hidden row is kept.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a token outside the vocabulary, [`Error::OutOfMemory`] where the context has no
    /// room, [`Error::Io`] where the model's file was changed, [`Error::Cancelled`], and [`Error::Device`] where a
    /// device fails.
    pub fn append(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<()> {
        self.check_tokens(tokens)?;
        self.rollback()?;
        self.append_chunks(slot, tokens, cancel)
    }

    /// Logits of the slot's last position, after a prefill or an append: one per token of the vocabulary. The caller
    /// may change the row.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slot that was not evaluated last, and [`Error::Device`] where a device fails.
    pub fn head(&mut self, slot: SlotId) -> Result<&mut [f32]> {
        self.next_logits(slot, &[], &[], &AtomicBool::new(false))
    }

    /// Append one token and return the logits after it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a token outside the vocabulary, [`Error::OutOfMemory`] where the context has no
    /// room, [`Error::Io`] where the model's file was changed, [`Error::Cancelled`], and [`Error::Device`] where a
    /// device fails.
    pub fn decode(&mut self, slot: SlotId, token: Token, cancel: &AtomicBool) -> Result<&mut [f32]> {
        self.next_logits(slot, &[token], &[], cancel)
    }

    /// Append tokens, all in one pass (none after a prefill or an append), and return the logits after them: one per
    /// token of the vocabulary. The caller may change the row.
    ///
    /// Where `listed` is not empty (at most 512 tokens, ascending) only those logits are computed, with the same bits
    /// as in a whole row; the rest of the row is undefined.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a token outside the vocabulary, for `listed` tokens that are not ascending or
    /// more than 512, and without tokens for a slot that was not evaluated last; else as [`Engine::append`].
    pub fn next_logits(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        listed: &[Token],
        cancel: &AtomicBool,
    ) -> Result<&mut [f32]> {
        self.check_tokens(tokens)?;
        self.check_listed(listed)?;
        self.rollback()?;
        match tokens {
            [_] => {
                self.catch_up(slot, cancel)?;
                self.append_chunk(slot, tokens, OutputRows::Last(1), How::Logits(listed), cancel)?;
            }
            _ => {
                self.append_chunks(slot, tokens, cancel)?;
                self.run_head(slot, listed, &[], cancel)?;
            }
        }
        self.logits(1)
    }

    /// Evaluate `tokens` in a fresh slot and call `each` with every position's number and logits.
    ///
    /// # Errors
    /// As [`Engine::append`], and the error of `each`.
    pub fn logits_all(
        &mut self,
        tokens: &[Token],
        cancel: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.check_tokens(tokens)?;
        self.check_no_source("logits of its prompt")?;
        self.rollback()?;
        let slot = self.take_slot(-1)?;
        let mut row = 0;
        for chunk in tokens.chunks(self.plans.batch()) {
            self.append_chunk(slot, chunk, OutputRows::All, How::Body, cancel)?;
            self.each_logits(chunk.len(), cancel, &mut |i, logits| each(row + i, logits))?;
            row += chunk.len();
        }
        Ok(())
    }

    pub(super) fn check_tokens(&self, tokens: &[Token]) -> Result<()> {
        let n_vocab = self.model.n_vocab();
        match tokens.iter().position(|&t| usize::try_from(t).map_or(true, |t| t >= n_vocab)) {
            None => Ok(()),
            Some(i) => {
                let id = tokens[i];
                Err(Error::InvalidArgument(format!("Token {id} at index {i} (0 to {} are possible)", n_vocab - 1)))
            }
        }
    }

    fn check_listed(&self, listed: &[Token]) -> Result<()> {
        if !listed.is_sorted_by(|a, b| a < b) {
            return Err(Error::InvalidArgument("Tokens whose logits are asked for are not in ascending order".into()));
        }
        if listed.len() > MAX_LISTED {
            let n = listed.len();
            return Err(Error::InvalidArgument(format!("{n} tokens whose logits are asked for, above {MAX_LISTED}")));
        }
        self.check_tokens(listed)
    }
}
