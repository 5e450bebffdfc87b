//! A loaded model ready to decode: KV cache, slots, batches, cached plans.
//!
//! One engine serves one stream handle and is driven by one thread. It owns `context` cells of KV memory, shared by
//! up to 16 slots; a slot is a token sequence with the cells that hold its keys and values. Plans for every row
//! bucket are made when the engine opens; after that no step allocates, schedules or compiles.
//!
//! Invariants: `slot.tokens` and `slot.cells` have equal length, and cell `slot.cells[i]` holds position `i`; a cell
//! belongs to exactly one slot; after an error or a cancel the slot holds exactly the tokens whose cells are valid.
//! Only cells that were computed behind the tokens that still stand in front of them are reused for another prompt.

mod batch;
mod cells;
mod graphs;
mod last;
mod memory;
mod options;
mod plans;
mod rearrange;
mod report;
mod sampling;
mod save;
mod saved;
mod score;
mod walk;

pub use crate::backend::memory::{Bytes, Component, Memory};
pub use crate::backend::{DeviceInfo, DeviceKind, LoadProgress, Traffic};
pub use batch::{Outcome, Turn};
pub use graphs::{Bucket, GraphNode, GraphPlan, plan_graphs};
pub use memory::{Estimate, MemoryPlan, Need, plan_memory};
pub use options::{EngineOptions, KvType, context_for};
pub use report::{devices_json, plan_json};
pub use sampling::Following;
pub use saved::SavedSlot;
pub use score::LeafScore;

use crate::backend::{
    self, Backend, Batch, CacheSpec, KvTypes, MAX_LISTED, SampleRow, SampledRow, State, WALK_CELLS, WALK_PASSES, Walked,
};
use crate::gguf::File;
use crate::model::{Model, Outline, load, load_shared};
use crate::schedule::Device;
use crate::{Error, Result, Token, reserve};
use cells::Cells;
use plans::{HEAD_ROWS, Plans};
use sampling::{Ahead, OnDevice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What memory is reserved for, in errors: values of rows that are kept.
const HIDDEN: &str = "hidden values";

/// A slot of an engine, as [`Engine::take_slot`] gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotId(usize);

impl SlotId {
    /// The number that [`Engine::take_slot`] knows it by.
    pub fn number(self) -> i32 {
        self.0 as i32
    }
}

/// What a prefill did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prefill {
    /// Tokens in the slot now: all that were given.
    pub tokens: usize,
    /// Tokens whose cells were already there.
    pub reused: usize,
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
    /// Times the output head ran on its own.
    pub head_passes: u64,
    /// Logits computed: rows of the output matrix, for each row of a batch.
    pub logits: u64,
    /// What was asked of the devices.
    pub traffic: Traffic,
}

#[derive(Default)]
struct Slot {
    tokens: Vec<Token>,
    cells: Vec<u32>,
    last_used: u64,
    /// Tokens from here on were computed behind others than those that stand in front of them; `None` = none were.
    patched: Option<usize>,
    /// What the device knows of it where that samples.
    on_device: Option<OnDevice>,
}

/// The inputs of a batch, kept so that no step allocates.
struct Inputs {
    tokens: Vec<Token>,
    positions: Vec<i32>,
    sequences: Vec<u32>,
    cells: Vec<u32>,
    outputs: Vec<u32>,
    sample: Vec<SampleRow>,
    listed: Vec<Token>,
}

impl Inputs {
    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.cells.clear();
        self.outputs.clear();
        self.sample.clear();
        self.listed.clear();
    }
}

/// A loaded model with its KV cache, its slots and the plans it runs.
pub struct Engine {
    model: Arc<Model>,
    /// One per device of the model.
    states: Vec<Box<dyn State>>,
    plans: Plans,
    /// The shape of the cache, wherever its layers are.
    cache: CacheSpec,
    slots: Vec<Slot>,
    cells: Cells,
    inputs: Inputs,
    /// Cells on their way to others.
    moves: Vec<(u32, u32)>,
    context: usize,
    threads: usize,
    /// The most tokens of a prompt that one pass evaluates.
    batch: usize,
    clock: u64,
    /// Whose last position the kept hidden row is.
    hidden_of: Option<SlotId>,
    /// Steps under way whose tokens are still on the device.
    ahead: Option<Ahead>,
    /// The trie that the device holds.
    held: Option<walk::Held>,
    /// What the last walk found, and room for the cells of the next.
    walked: Walked,
    walk_cells: Vec<u32>,
    /// What a step sampled, with room for a row of every slot.
    found: Vec<SampledRow>,
    stats: EngineStats,
}

/// The model at `path`, shared with everyone who has it open with the same placement.
pub fn open_model(path: &Path, options: &EngineOptions, progress: LoadProgress<'_>) -> Result<Arc<Model>> {
    let (placement, threads) = (options.placement(), load_threads(options)?);
    load_shared(path, &placement, threads, &admit(options), progress)
}

/// The model of a file that is open or in memory, shared with nobody.
pub fn load_model(file: File, options: &EngineOptions, progress: LoadProgress<'_>) -> Result<Arc<Model>> {
    let (placement, threads) = (options.placement(), load_threads(options)?);
    load(file, &placement, threads, &admit(options), progress)
}

/// Refuses what does not fit, asking whether to go on while it finds out.
fn admit(
    options: &EngineOptions,
) -> impl Fn(&File, &Outline, &[Arc<dyn Backend>], &mut LoadProgress<'_>) -> Result<()> {
    |file, outline, on, progress| memory::admit(file, outline, on, options, &mut || go_on(progress, 0.0))
}

/// An error where the host says that a load is not to go on.
fn go_on(progress: &mut LoadProgress<'_>, done: f32) -> Result<()> {
    match progress.as_mut().is_none_or(|progress| progress(done)) {
        true => Ok(()),
        false => Err(Error::Cancelled),
    }
}

/// The weights are shared by engines of any number of threads, so a load takes all cores it finds useful.
fn load_threads(options: &EngineOptions) -> Result<usize> {
    Ok(options.threads()?.max(default_thread_count() as usize))
}

/// Threads that an engine uses when the host names none: the performance cores.
pub fn default_thread_count() -> u32 {
    backend::default_thread_count() as u32
}

/// The devices of this machine and how their memory stands, best first.
pub fn devices() -> Result<Vec<(DeviceInfo, Memory)>> {
    backend::devices()
}

impl Engine {
    /// Reserve everything that decoding `model` needs.
    pub fn new(model: Arc<Model>, options: &EngineOptions) -> Result<Engine> {
        Engine::open(model, options, None)
    }

    /// As [`Engine::new`]; `progress`, which has heard of the model's load, may cancel this too.
    pub fn open(model: Arc<Model>, options: &EngineOptions, mut progress: LoadProgress<'_>) -> Result<Engine> {
        let mut look = || go_on(&mut progress, 1.0);
        let context = context_for(options.context, model.train_context());
        let n_slots = options.slots()?;
        let (threads, batch) = (options.threads()?, options.batch()?);
        memory::admit_engine(&model, options, &mut look)?;
        let cache = memory::cache_of(model.outline(), options)?;
        let state = |(i, device): (usize, &Device)| {
            device.backend.new_state(&memory::share_of(&cache, model.outline(), i), threads)
        };
        // Before the states, so that what a device tries of the programs needs no room beside them.
        let plans = Plans::new(&model, &cache, batch, &mut look)?;
        let mut states = model.devices().iter().enumerate().map(state).collect::<Result<Vec<_>>>()?;
        plans.reserve(model.outline(), &mut states)?;
        let slot = |_| {
            let (tokens, cells) =
                (reserve::list(context, "tokens of a slot")?, reserve::list(context, "cells of a slot")?);
            Ok(Slot { tokens, cells, ..Slot::default() })
        };
        let slots = (0..n_slots).map(slot).collect::<Result<_>>()?;
        let rows = batch.max(WALK_CELLS);
        let inputs = Inputs {
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            sequences: Vec::with_capacity(rows),
            cells: Vec::with_capacity(rows),
            outputs: Vec::with_capacity(rows),
            sample: Vec::with_capacity(HEAD_ROWS),
            listed: Vec::with_capacity(MAX_LISTED),
        };
        Ok(Engine {
            cells: Cells::new(cache.cells, context)?,
            model,
            states,
            plans,
            cache,
            slots,
            inputs,
            moves: Vec::with_capacity(rows),
            context,
            threads,
            batch,
            clock: 0,
            hidden_of: None,
            ahead: None,
            held: None,
            walked: Walked { steps: Vec::with_capacity(WALK_PASSES), ..Walked::default() },
            walk_cells: Vec::with_capacity(WALK_CELLS),
            found: vec![SampledRow::default(); n_slots as usize],
            stats: EngineStats::default(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Tokens that fit, over all slots.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Host threads in use.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The most tokens of a prompt that one pass evaluates.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Element types of the KV cache.
    pub fn kv_types(&self) -> KvTypes {
        self.cache.types
    }

    /// Slots that share the context.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Counters since open.
    pub fn stats(&self) -> EngineStats {
        let traffic = self.states.iter().map(|s| s.traffic()).fold(Traffic::default(), |all, one| all + one);
        EngineStats { traffic, ..self.stats }
    }

    /// The slot with this number, or for -1 a fresh one: an empty slot, else the least recently used, emptied.
    pub fn take_slot(&mut self, slot_id: i32) -> Result<SlotId> {
        let slot = match usize::try_from(slot_id) {
            Ok(i) if i < self.slots.len() => SlotId(i),
            Err(_) if slot_id == -1 => {
                let oldest = (0..self.slots.len()).min_by_key(|&i| match self.slots[i].tokens.is_empty() {
                    true => (0, 0),
                    false => (1, self.slots[i].last_used),
                });
                let slot = SlotId(oldest.ok_or_else(|| Error::Internal("An engine without slots".into()))?);
                self.truncate(slot, 0);
                slot
            }
            _ => {
                let max = self.slots.len() - 1;
                return Err(Error::InvalidArgument(format!("Slot {slot_id} (-1 to {max} are possible)")));
            }
        };
        self.touch(slot);
        Ok(slot)
    }

    fn touch(&mut self, slot: SlotId) {
        self.clock += 1;
        self.slots[slot.0].last_used = self.clock;
    }

    /// Tokens in the slot.
    pub fn tokens(&self, slot: SlotId) -> &[Token] {
        &self.slots[slot.0].tokens
    }

    /// Number of tokens in the slot, which is the position of the next one.
    pub fn position(&self, slot: SlotId) -> usize {
        self.slots[slot.0].tokens.len()
    }

    /// Tokens that the slot can still take. Cells of other slots count as free: they are evicted when needed.
    pub fn room(&self, slot: SlotId) -> usize {
        self.context - self.position(slot)
    }

    /// Remove the slot's tokens from `n_tokens` on.
    pub fn truncate(&mut self, slot: SlotId, n_tokens: usize) {
        let s = &mut self.slots[slot.0];
        if n_tokens >= s.tokens.len() {
            return;
        }
        for cell in s.cells.drain(n_tokens..) {
            self.cells.free(cell);
        }
        s.tokens.truncate(n_tokens);
        s.on_device = None;
        s.patched = s.patched.filter(|&from| from < n_tokens);
        if self.hidden_of == Some(slot) {
            self.hidden_of = None;
        }
    }

    /// From now on a wait for a device ends with [`Error::Cancelled`] too, some time after `cancel` was set, so that
    /// one that hangs can be left.
    pub fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.states.iter_mut().for_each(|state| state.watch(cancel));
    }

    /// Make the slot hold exactly `tokens`: the longest common prefix with what it holds is reused, the rest is
    /// evaluated in chunks of at most [`Engine::batch`], and the last position's hidden row is kept for
    /// [`Engine::head`].
    ///
    /// A cancel or an error leaves the slot with the tokens evaluated so far.
    pub fn prefill(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<Prefill> {
        self.check_tokens(tokens)?;
        self.settle()?;
        if tokens.is_empty() {
            return Err(Error::InvalidArgument("A prompt without tokens".into()));
        }
        if tokens.len() > self.context {
            let (n, max) = (tokens.len(), self.context);
            return Err(Error::OutOfMemory(format!("A prompt of {n} tokens in a context of {max}")));
        }
        let common = self.tokens(slot).iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let usable = self.slots[slot.0].patched.unwrap_or(common);
        // The last position is evaluated again even when it is there, for its hidden row.
        let reused = common.min(usable).min(tokens.len() - 1);
        self.truncate(slot, reused);
        let before = self.stats.forward_passes;
        self.evaluate(slot, &tokens[reused..], cancel)?;
        if let Some(error) = self.states.iter_mut().find_map(|state| state.finish().err()) {
            self.truncate(slot, reused);
            return Err(error);
        }
        let passes = (self.stats.forward_passes - before) as usize;
        if self.cells.is_scattered() {
            self.defragment()?;
        }
        Ok(Prefill { tokens: tokens.len(), reused, passes })
    }

    /// Append tokens without computing logits; the last position's hidden row is kept.
    pub fn append(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<()> {
        self.check_tokens(tokens)?;
        self.settle()?;
        self.evaluate(slot, tokens, cancel)
    }

    /// Logits of the slot's last position, after a prefill or an append. The row is scratch: the caller may change it.
    pub fn head(&mut self, slot: SlotId) -> Result<&mut [f32]> {
        self.next_logits(slot, &[], &[], &AtomicBool::new(false))
    }

    /// Append one token and return the logits after it.
    pub fn decode(&mut self, slot: SlotId, token: Token, cancel: &AtomicBool) -> Result<&mut [f32]> {
        self.next_logits(slot, &[token], &[], cancel)
    }

    /// Append tokens (possibly none, behind a prefill or an append), all in one pass, and return the logits behind
    /// them. The row is scratch: the caller may change it.
    ///
    /// Where tokens are `listed`, at most 512 in ascending order, only their logits are computed, to the same bits as
    /// with the whole row; what stands elsewhere in it is undefined.
    pub fn next_logits(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        listed: &[Token],
        cancel: &AtomicBool,
    ) -> Result<&mut [f32]> {
        self.check_tokens(tokens)?;
        self.check_listed(listed)?;
        self.settle()?;
        match tokens {
            [_] => self.run(slot, tokens, OutputRows::Last, How::Logits(listed), cancel)?,
            _ => {
                self.evaluate(slot, tokens, cancel)?;
                self.run_head(slot, listed, &[], cancel)?;
            }
        }
        self.logits(1)
    }

    /// Compute logits from the kept hidden row, which must be this slot's.
    fn run_head(&mut self, slot: SlotId, listed: &[Token], sample: &[SampleRow], cancel: &AtomicBool) -> Result<()> {
        if self.hidden_of != Some(slot) {
            return Err(Error::InvalidArgument("Logits were asked for a slot that was not evaluated last".into()));
        }
        let batch = Batch { listed, sample, ..Batch::default() };
        self.plans.head.run(&mut self.states, &batch, 1, cancel)?;
        self.stats.head_passes += 1;
        self.count_logits(1, listed.len());
        Ok(())
    }

    fn count_logits(&mut self, rows: usize, listed: usize) {
        self.stats.logits += (rows * if listed > 0 { listed } else { self.model.n_vocab() }) as u64;
    }

    /// Evaluate `tokens` in a fresh slot and hand every position's logits to `each`, with its row number.
    pub fn logits_all(
        &mut self,
        tokens: &[Token],
        cancel: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.check_tokens(tokens)?;
        self.settle()?;
        let slot = self.take_slot(-1)?;
        let mut row = 0;
        for chunk in tokens.chunks(self.batch) {
            self.run(slot, chunk, OutputRows::All, How::Body, cancel)?;
            self.each_logits(chunk.len(), cancel, &mut |i, logits| each(row + i, logits))?;
            row += chunk.len();
        }
        Ok(())
    }

    /// Hand the logits of the kept hidden rows, so many, to `each`, with their numbers. The hidden rows are used up.
    fn each_logits(
        &mut self,
        rows: usize,
        cancel: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.hidden_of = None;
        let (n_vocab, width) = (self.model.n_vocab(), self.model.hparams().n_embd);
        let hidden_at = self.plans.kept.hidden_offset();
        for first in (0..rows).step_by(HEAD_ROWS) {
            let n = HEAD_ROWS.min(rows - first);
            // The head reads the first hidden rows; those before `first` are done with.
            let head = &mut self.states[self.model.outline().places().hidden];
            let hidden = reserve::copied(head.rows(hidden_at + first * width * 4, n * width)?, HIDDEN)?;
            head.put(hidden_at, &hidden)?;
            self.plans.head_many.run(&mut self.states, &Batch::default(), n, cancel)?;
            self.count_logits(n, 0);
            for (i, logits) in self.logits(n)?.chunks_exact(n_vocab).enumerate() {
                each(first + i, logits)?;
            }
        }
        Ok(())
    }

    fn logits(&mut self, rows: usize) -> Result<&mut [f32]> {
        let head = &mut self.states[self.model.outline().places().logits];
        head.rows(self.plans.kept.logits_offset(), rows * self.model.n_vocab())
    }

    fn check_tokens(&self, tokens: &[Token]) -> Result<()> {
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

    fn evaluate(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<()> {
        let mut chunks = tokens.chunks(self.batch).peekable();
        while let Some(chunk) = chunks.next() {
            let outputs = if chunks.peek().is_none() { OutputRows::Last } else { OutputRows::None };
            self.run(slot, chunk, outputs, How::Body, cancel)?;
        }
        Ok(())
    }

    /// Evaluate one chunk and append it to the slot; after an error the slot is as before. Ends the sampling on the
    /// device, which does not know of these tokens.
    fn run(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        outputs: OutputRows,
        how: How<'_>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.compute(slot, tokens, outputs, how, cancel)?;
        let s = &mut self.slots[slot.0];
        s.tokens.extend_from_slice(tokens);
        s.cells.extend_from_slice(&self.inputs.cells);
        s.on_device = None;
        Ok(())
    }

    /// Evaluate one chunk behind the slot's tokens. Its cells stand in `inputs`; after an error they are free again.
    fn compute(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        outputs: OutputRows,
        how: How<'_>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.inputs.clear();
        self.enter(slot, tokens, 0)?;
        let rows = tokens.len() as u32;
        match outputs {
            OutputRows::None => {}
            OutputRows::Last => self.inputs.outputs.push(rows - 1),
            OutputRows::All => self.inputs.outputs.extend(0..rows),
        }
        if let How::Sample(_) = how {
            self.inputs.sample.push(SampleRow { sequence: slot.0 as u32, row: 0 });
        }
        if let How::Logits(listed) | How::Sample(listed) = how {
            self.inputs.listed.extend_from_slice(listed);
        }
        let done = self.launch(matches!(how, How::Body), cancel);
        if done.is_err() {
            self.give_back();
        }
        self.hidden_of = (outputs == OutputRows::Last && done.is_ok()).then_some(slot);
        done
    }

    /// Enter tokens behind the slot's into the inputs, with a cell for each. Slots of `busy`, a bit each, are not
    /// evicted for them.
    fn enter(&mut self, slot: SlotId, tokens: &[Token], busy: u32) -> Result<()> {
        let bit = 1u32 << slot.0;
        if tokens.len() > self.room(slot) {
            let (n, have, max) = (tokens.len(), self.position(slot), self.context);
            return Err(Error::OutOfMemory(format!("{n} more tokens after {have} in a context of {max}")));
        }
        self.touch(slot);
        self.make_room(tokens.len(), busy | bit);
        let first = self.position(slot);
        for (i, &token) in tokens.iter().enumerate() {
            let position = (first + i) as i32;
            let Some(cell) = self.cells.take(position, bit) else {
                self.give_back();
                let (n, max) = (tokens.len(), self.context);
                return Err(Error::OutOfMemory(format!("{n} more tokens in a context of {max} that other slots fill")));
            };
            let inputs = &mut self.inputs;
            inputs.tokens.push(token);
            inputs.positions.push(position);
            inputs.sequences.push(bit);
            inputs.cells.push(cell);
        }
        Ok(())
    }

    /// Free the cells of the inputs.
    fn give_back(&mut self) {
        for &cell in &self.inputs.cells {
            self.cells.free(cell);
        }
    }

    /// Evaluate the inputs: the body alone, or logits of the output rows as well.
    fn launch(&mut self, body_alone: bool, cancel: &AtomicBool) -> Result<()> {
        let inputs = &self.inputs;
        let rows = inputs.tokens.len();
        let batch = Batch {
            tokens: &inputs.tokens,
            positions: &inputs.positions,
            sequences: &inputs.sequences,
            cells: &inputs.cells,
            outputs: &inputs.outputs,
            cell_positions: self.cells.positions(),
            cell_sequences: self.cells.sequences(),
            n_kv: self.cells.end(),
            changed_cells: self.cells.changed(),
            sample: &inputs.sample,
            listed: &inputs.listed,
        };
        let plan = if body_alone { self.plans.body(rows) } else { self.plans.decode(rows) };
        let (outputs, listed) = (inputs.outputs.len(), inputs.listed.len());
        let done = plan.run(&mut self.states, &batch, outputs, cancel);
        self.stats.forward_passes += 1;
        if !body_alone {
            self.count_logits(outputs, listed);
        }
        self.stats.rows += rows as u64;
        if done.is_ok() {
            self.cells.settle();
        }
        done
    }

    /// Evict slots other than the busy ones, the least recently used first, until `n` cells are free.
    fn make_room(&mut self, n: usize, busy: u32) {
        while self.cells.n_free() < n {
            let idle = |&i: &usize| busy & 1 << i == 0 && !self.slots[i].tokens.is_empty();
            let oldest = (0..self.slots.len()).filter(idle).min_by_key(|&i| self.slots[i].last_used);
            let Some(victim) = oldest else { return };
            self.truncate(SlotId(victim), 0);
        }
    }
}

/// What is computed of a chunk of a slot's tokens.
#[derive(Clone, Copy)]
enum How<'a> {
    /// Hidden rows.
    Body,
    /// Logits as well: those of these tokens, or all where there are none.
    Logits(&'a [Token]),
    /// Such logits of the last row, and a token sampled from them on the device.
    Sample(&'a [Token]),
}

/// Which rows of a batch are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputRows {
    None,
    Last,
    All,
}
