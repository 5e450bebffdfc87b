//! What an engine keeps on the GPU between runs: KV cache, states, workspace, frame.
//!
//! Buffers are made at open and grow only in [`GpuState::make_room`]; every growth begins a new generation, for which
//! programs make their bind groups again. A run of a program with bind groups of an older generation is refused: after
//! open nothing may be allocated.

use crate::backend::gpu::device::STORAGE;
use crate::backend::gpu::device::memory::Buffer;
use crate::backend::gpu::device::readback::Readback;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{
    BufferRef, FRAME_CELLS, FRAME_HEAD, FRAME_LISTED, FRAME_OUTPUTS, FRAME_ROWS, FRAME_STATES, RunCounts,
};
use crate::backend::gpu::kernel::strands;
use crate::backend::gpu::ops::kv_cache::KvLayout;
use crate::backend::gpu::ops::rows::RowSpan;
use crate::backend::gpu::ops::{attention, kv_transfer::LayerCells};
use crate::backend::gpu::sample::queue::Sampler;
use crate::backend::gpu::trie_walk::{Surroundings, Walker};
use crate::backend::memory::Component;
use crate::backend::{
    Batch, CacheSpec, DeviceSampler, Followed, Legal, MAX_LISTED, MAX_ROWS, MAX_TEXT_ROWS, SampleSpec, SampledRow,
    State, TABLES, Table, TableCells, Traffic, WALK_ROWS, Walk, WalkNode, Walked,
};
use crate::{Error, Result, Token};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The state of an engine on the GPU.
pub struct GpuState {
    gpu: Arc<Gpu>,
    /// Keys and values of the layers on this device.
    layers: Vec<Option<LayerBuffers>>,
    cells: [usize; TABLES.len()],
    /// The states on this device, all cells of each, and the numbers of a cell.
    states: Vec<Option<(Buffer, usize)>>,
    state_cells: usize,
    sequences: usize,
    workspace: Buffer,
    partials: Buffer,
    frame: Buffer,
    sampler: Option<Sampler>,
    walker: Option<Walker>,
    /// Bound as the buffer of sampled tokens where no program computes logits here.
    no_token: Buffer,
    /// Incremented whenever a buffer is replaced.
    generation: u64,
    /// Words to be written to the frame.
    words: Vec<u32>,
    /// The output rows that are in the frame.
    outputs: Vec<u32>,
    readback: Readback,
    pub traffic: Traffic,
    /// Ends the waits for what was submitted, see [`State::watch`].
    cancel: Arc<AtomicBool>,
}

/// The memory that a program needs besides the cache.
#[derive(Clone, Copy)]
pub struct Needs {
    pub workspace_bytes: u64,
    /// Bytes of partial results of attention.
    pub partial_bytes: u64,
    /// Where it writes its logits, if it computes any.
    pub logits: Option<LogitRows>,
    /// Whether it works on states.
    pub states: bool,
}

/// The rows that a program writes its logits to.
#[derive(Clone, Copy)]
pub struct LogitRows {
    /// The first row.
    pub place: RowSpan,
    /// Rows at most.
    pub rows: usize,
}

struct LayerBuffers {
    layout: KvLayout,
    keys: Buffer,
    values: Buffer,
}

impl LayerBuffers {
    fn cache(&self) -> LayerCells<'_> {
        LayerCells { layout: &self.layout, keys: &self.keys, values: &self.values }
    }
}

impl GpuState {
    /// The KV cache and everything of fixed size.
    pub fn new(gpu: Arc<Gpu>, cache: &CacheSpec) -> Result<GpuState> {
        // Before the cache is allocated, so that the probes' buffers need no memory besides it.
        gpu.run_trials()?;
        let mut layers = Vec::with_capacity(cache.layers.len());
        for (il, shape) in cache.layers.iter().enumerate() {
            layers.push(match shape {
                None => None,
                Some(shape) => {
                    let (dk, dv, cells) = (shape.head_dim_k, shape.head_dim_v, cache.cells[shape.table as usize]);
                    let layout = KvLayout::new(cache.types, shape.heads, dk, dv, cells)?;
                    layout.check(&gpu, il)?;
                    let buffer = |what: &str, bytes: u64| {
                        let what = format!("{what} of layer {il} ({cells} cells of type {})", cache.types);
                        gpu.buffer_of(Component::Cache, &what, bytes, STORAGE)
                    };
                    let (keys, values) = (buffer("keys", layout.k_bytes())?, buffer("values", layout.v_bytes())?);
                    Some(LayerBuffers { layout, keys, values })
                }
            });
        }
        let mut states = Vec::with_capacity(cache.states.len());
        for (state, values) in cache.states.iter().enumerate() {
            let what = format!("state {state} ({} cells)", cache.state_cells);
            let buffer = |values: usize| -> Result<(Buffer, usize)> {
                let bytes = state_bytes(&gpu, cache, values)?;
                Ok((gpu.buffer_of(Component::Cache, &what, bytes, STORAGE)?, values))
            };
            states.push(values.map(buffer).transpose()?);
        }
        Ok(GpuState {
            layers,
            cells: cache.cells,
            states,
            state_cells: cache.state_cells,
            sequences: cache.sequences,
            workspace: gpu.buffer_of(Component::Workspace, "workspace", 0, STORAGE)?,
            partials: gpu.buffer("partial attention", 0, STORAGE)?,
            frame: gpu.buffer("frame", frame_bytes(cache.cells), STORAGE)?,
            sampler: None,
            walker: None,
            no_token: gpu.buffer("no token", 0, STORAGE)?,
            generation: 0,
            words: Vec::with_capacity(FRAME_HEAD + 4 * MAX_TEXT_ROWS + 2 * cache.cells.iter().sum::<usize>()),
            outputs: Vec::with_capacity(MAX_TEXT_ROWS),
            readback: Readback::default(),
            traffic: Traffic::default(),
            cancel: Arc::default(),
            gpu,
        })
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    fn layer(&self, layer: usize) -> Result<&LayerBuffers> {
        let here = self.layers.get(layer).and_then(Option::as_ref);
        here.ok_or_else(|| Error::Internal(format!("Layer {layer} has no KV cache on this device")))
    }

    /// A state's cells, and the numbers of a cell.
    fn state(&self, state: usize) -> Result<&(Buffer, usize)> {
        let here = self.states.get(state).and_then(Option::as_ref);
        here.ok_or_else(|| Error::Internal(format!("State {state} is not on this device")))
    }

    /// A state's cells, and the byte at which one of `n` numbers begins.
    fn state_cell(&self, state: usize, cell: u32, n: usize) -> Result<(wgpu::Buffer, u64)> {
        let (cells, values) = self.state(state)?;
        if *values != n || cell as usize >= self.state_cells {
            return Err(Error::Internal(format!("{n} numbers of state {state} in cell {cell}")));
        }
        Ok((wgpu::Buffer::clone(cells), u64::from(cell) * n as u64 * 4))
    }

    /// The buffer that a step names; `params` is its program's.
    pub fn bound<'a>(
        &'a self,
        bound: &'a BufferRef,
        params: wgpu::BufferBinding<'a>,
    ) -> Result<wgpu::BufferBinding<'a>> {
        Ok(match bound {
            BufferRef::Workspace => self.workspace.as_entire_buffer_binding(),
            BufferRef::Params => params,
            BufferRef::Frame => self.frame.as_entire_buffer_binding(),
            BufferRef::WindowFrame => {
                let offset = window_frame(self.cells[Table::All as usize]) as u64 * 4;
                wgpu::BufferBinding { buffer: &self.frame, offset, size: None }
            }
            BufferRef::Keys(il) => self.layer(*il)?.keys.as_entire_buffer_binding(),
            BufferRef::Values(il) => self.layer(*il)?.values.as_entire_buffer_binding(),
            BufferRef::State(state) => self.state(*state)?.0.as_entire_buffer_binding(),
            BufferRef::Partials => self.partials.as_entire_buffer_binding(),
            BufferRef::Sampled => {
                self.sampler.as_ref().map_or(&*self.no_token, Sampler::tokens).as_entire_buffer_binding()
            }
            BufferRef::Weight(buffer, offset, bytes) => {
                wgpu::BufferBinding { buffer, offset: *offset, size: std::num::NonZeroU64::new(*bytes) }
            }
        })
    }

    /// Write to the frame what changed since the last batch.
    pub fn upload(&mut self, batch: &Batch<'_>, out_rows: usize, needs: &Needs) -> Result<RunCounts> {
        let rows = batch.tokens.len();
        if rows > MAX_TEXT_ROWS || out_rows > MAX_TEXT_ROWS || batch.listed.len() > MAX_LISTED {
            return Err(Error::Internal(format!("A batch of {rows} rows")));
        }
        let listed = batch.listed.len();
        let outputs = !batch.outputs.is_empty() && self.outputs != batch.outputs;
        let mut splits = [0; TABLES.len()];
        for (table, at) in self.frames() {
            let cells = &batch.cells[table as usize];
            splits[table as usize] = self.upload_head(at, cells, (rows, out_rows, listed), rows)?;
            let words = &mut self.words;
            words.clear();
            for r in 0..rows {
                words.extend([batch.tokens[r] as u32, batch.positions[r] as u32, batch.sequences[r], cells.rows[r]]);
            }
            self.gpu.queue.write_buffer(&self.frame, (at + FRAME_ROWS) as u64 * 4, bytemuck::cast_slice(words));
            self.traffic.bytes_uploaded += words.len() as u64 * 4;
            if outputs {
                let offset = (at + FRAME_OUTPUTS) as u64 * 4;
                self.gpu.queue.write_buffer(&self.frame, offset, bytemuck::cast_slice(batch.outputs));
                self.traffic.bytes_uploaded += batch.outputs.len() as u64 * 4;
            }
            if rows > 0 {
                self.upload_cells(at, cells);
            }
        }
        if outputs {
            self.outputs.clear();
            self.outputs.extend_from_slice(batch.outputs);
        }
        if listed > 0 {
            self.gpu.queue.write_buffer(&self.frame, FRAME_LISTED as u64 * 4, bytemuck::cast_slice(batch.listed));
            self.traffic.bytes_uploaded += listed as u64 * 4;
        }
        let strands = if needs.states { self.upload_states(batch)? } else { 0 };
        Ok(RunCounts { rows: rows as u32, outputs: out_rows as u32, splits, listed: listed as u32, strands })
    }

    /// Writes what the batch's rows come after; returns the number of strands.
    fn upload_states(&mut self, batch: &Batch<'_>) -> Result<u32> {
        if !batch.has_states(self.state_cells) || batch.tokens.len() > MAX_ROWS {
            return Err(Error::Internal(format!("States of a batch of {} rows", batch.tokens.len())));
        }
        let words = &mut self.words;
        let strands = strands::records(batch.states, batch.parents, words);
        self.gpu.queue.write_buffer(&self.frame, FRAME_STATES as u64 * 4, bytemuck::cast_slice(words));
        self.traffic.bytes_uploaded += words.len() as u64 * 4;
        Ok(strands)
    }

    /// Where the frame of each table that is in use begins.
    fn frames(&self) -> impl Iterator<Item = (Table, usize)> + use<> {
        let [all, window] = self.cells;
        let places = TABLES.into_iter().zip([0, window_frame(all)]);
        places.filter(move |&(table, _)| table == Table::All || window > 0)
    }

    /// Writes the head of the frame at `at`; returns the splits of attention by so many rows.
    fn upload_head(
        &mut self,
        at: usize,
        cells: &TableCells<'_>,
        (rows, outputs, listed): (usize, usize, usize),
        split_rows: usize,
    ) -> Result<u32> {
        if cells.end > cells.positions.len() {
            return Err(Error::Internal(format!("A batch over {} of {} cells", cells.end, cells.positions.len())));
        }
        let (splits, cells_per_split) = attention::splits(split_rows, cells.end);
        let mut head = [0; FRAME_HEAD];
        let words = [rows as u32, outputs as u32, cells.end as u32, splits, cells_per_split, listed as u32];
        head[..words.len()].copy_from_slice(&words);
        self.gpu.queue.write_buffer(&self.frame, at as u64 * 4, bytemuck::cast_slice(&head));
        self.traffic.bytes_uploaded += size_of_val(&head) as u64;
        Ok(splits)
    }

    /// Write the initial state of a walk.
    pub fn upload_walk(&mut self, batch: &Batch<'_>, walk: &Walk) -> Result<()> {
        let mut window = 0;
        for (table, at) in self.frames() {
            let cells = &batch.cells[table as usize];
            self.upload_head(at, cells, (0, 0, 0), WALK_ROWS)?;
            self.upload_cells(at, cells);
            window = at;
        }
        // The device changes them.
        self.outputs.clear();
        let gpu = self.gpu.clone();
        let (_, child_words) = self.sampler()?.program().walked_buffers();
        let bytes = self.walker()?.begin(&gpu, batch, walk, child_words, window)?;
        self.traffic.bytes_uploaded += bytes;
        Ok(())
    }

    fn upload_cells(&mut self, at: usize, cells: &TableCells<'_>) {
        let (first, end) = cells.changed;
        if first < end {
            let words = &mut self.words;
            words.clear();
            let cells = cells.positions[first..end].iter().zip(&cells.sequences[first..end]);
            words.extend(cells.flat_map(|(&position, &sequences)| [position as u32, sequences]));
            let offset = (at + FRAME_CELLS + 2 * first) as u64 * 4;
            self.gpu.queue.write_buffer(&self.frame, offset, bytemuck::cast_slice(words));
            self.traffic.bytes_uploaded += words.len() as u64 * 4;
        }
    }

    /// A buffer of at least this size in the place of a smaller one.
    fn grow(
        gpu: &Gpu,
        generation: &mut u64,
        buffer: &mut Buffer,
        (component, what): (Component, &str),
        bytes: u64,
    ) -> Result<()> {
        if buffer.size() < bytes {
            check_binding(gpu, what, bytes)?;
            *buffer = gpu.buffer_of(component, what, bytes, STORAGE)?;
            *generation += 1;
        }
        Ok(())
    }
}

impl State for GpuState {
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.cancel = cancel.clone();
    }

    fn rows(&mut self, offset: usize, len: usize) -> Result<&mut [f32]> {
        self.check_range(offset, len)?;
        self.traffic.submissions += 1;
        self.traffic.waits += 1;
        self.traffic.bytes_read += len as u64 * 4;
        let GpuState { gpu, readback, workspace, cancel, .. } = self;
        gpu.guard(|| readback.read(gpu, workspace, offset as u64, len, cancel))
    }

    fn reserve_reads(&mut self, bytes: usize) -> Result<()> {
        self.guarded(|state| state.readback.reserve(&state.gpu, bytes as u64))
    }

    fn put(&mut self, offset: usize, values: &[f32]) -> Result<()> {
        self.check_range(offset, values.len())?;
        self.traffic.bytes_uploaded += values.len() as u64 * 4;
        self.guarded(|state| {
            state.gpu.queue.write_buffer(&state.workspace, offset as u64, bytemuck::cast_slice(values));
            Ok(())
        })
    }

    fn read_cells(&mut self, layer: usize, cells: &[u32], rows: &mut [u8]) -> Result<()> {
        let traffic = self.guarded(|s| s.layer(layer)?.cache().read(&s.gpu, cells, rows, &s.cancel))?;
        self.traffic = self.traffic + traffic;
        Ok(())
    }

    fn write_cells(&mut self, layer: usize, cells: &[u32], rows: &[u8]) -> Result<()> {
        let traffic = self.guarded(|s| s.layer(layer)?.cache().write(&s.gpu, cells, rows, &s.cancel))?;
        self.traffic = self.traffic + traffic;
        Ok(())
    }

    fn read_state(&mut self, state: usize, cell: u32, values: &mut [f32]) -> Result<()> {
        let (cells, at) = self.state_cell(state, cell, values.len())?;
        self.traffic.submissions += 1;
        self.traffic.waits += 1;
        self.traffic.bytes_read += size_of_val(values) as u64;
        self.guarded(|s| {
            // Not the staging of rows, which would grow and stay.
            values.copy_from_slice(Readback::default().read(&s.gpu, &cells, at, values.len(), &s.cancel)?);
            Ok(())
        })
    }

    fn write_state(&mut self, state: usize, cell: u32, values: &[f32]) -> Result<()> {
        let (cells, at) = self.state_cell(state, cell, values.len())?;
        self.traffic.bytes_uploaded += size_of_val(values) as u64;
        self.guarded(|s| {
            s.gpu.queue.write_buffer(&cells, at, bytemuck::cast_slice(values));
            Ok(())
        })
    }

    fn finish(&mut self) -> Result<()> {
        self.traffic.waits += 1;
        self.gpu.wait_for(None, &self.cancel)
    }

    fn sampler(&mut self) -> Option<&mut dyn DeviceSampler> {
        match self.sampler {
            Some(_) => Some(self),
            None => None,
        }
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl DeviceSampler for GpuState {
    fn start(&mut self, sequence: usize, spec: &SampleSpec, history: &[Token]) -> Result<Option<Followed>> {
        self.guarded(|state| state.sampler()?.start(sequence, spec, history))
    }

    fn arm(&mut self, sequence: usize, legal: Option<Legal<'_>>) -> Result<()> {
        self.traffic.bytes_uploaded += self.guarded(|state| state.sampler()?.arm(sequence, legal))?;
        Ok(())
    }

    fn accept(&mut self, sequence: usize, tokens: &[Token]) -> Result<()> {
        self.guarded(|state| state.sampler()?.accept(sequence, tokens))
    }

    fn sampled(&mut self, rows: &mut [SampledRow]) -> Result<usize> {
        let cancel = self.cancel.clone();
        let (count, bytes) = self.guarded(|state| state.sampler()?.read(rows, &cancel))?;
        self.traffic.waits += 1;
        self.traffic.bytes_read += bytes;
        Ok(count)
    }

    fn roll_back(&mut self, sequence: usize, tokens: u32, last: Token) -> Result<()> {
        self.guarded(|state| state.sampler()?.roll_back(sequence, tokens, last))
    }

    fn hold_trie(&mut self, nodes: &[WalkNode]) -> Result<bool> {
        self.guarded(|state| {
            let (Some(walker), Some(sampler)) = (&mut state.walker, &mut state.sampler) else { return Ok(false) };
            if !walker.hold(&state.gpu, nodes)? {
                return Ok(false);
            }
            state.traffic.bytes_uploaded += size_of_val(nodes) as u64;
            let (buffers, _) = sampler.program().walked_buffers();
            walker.bind(&state.gpu, &Surroundings { frame: &state.frame, sampler: buffers })?;
            Ok(true)
        })
    }

    fn walks(&mut self, sequence: usize) -> bool {
        let bound = self.walker.as_ref().is_some_and(Walker::is_bound);
        bound && self.sampler.as_ref().is_some_and(|sampler| sampler.walks(sequence))
    }

    fn walked(&mut self, walked: &mut Walked) -> Result<()> {
        let (gpu, cancel) = (self.gpu.clone(), self.cancel.clone());
        let bytes = self.guarded(|state| {
            let (sequence, bytes) = state.walker()?.read(&gpu, walked, &cancel)?;
            let tokens = walked.steps.iter().map(|step| step.rows).sum();
            state.sampler()?.program().walked(sequence, tokens)?;
            Ok(bytes)
        })?;
        self.traffic.waits += 1;
        self.traffic.bytes_read += bytes;
        Ok(())
    }
}

/// [`Error::OutOfMemory`] where a device cannot bind a buffer as a whole.
pub fn check_binding(gpu: &Gpu, what: &str, bytes: u64) -> Result<()> {
    if bytes > gpu.caps.max_binding {
        let problem = format!("{bytes} bytes for the {what}: {} binds at most", gpu.info.name);
        return Err(Error::OutOfMemory(format!("{problem} {}", gpu.caps.max_binding)));
    }
    Ok(())
}

/// Bytes of all cells of a state of so many numbers.
pub fn state_bytes(gpu: &Gpu, cache: &CacheSpec, values: usize) -> Result<u64> {
    let bytes = (values as u64).saturating_mul(4).saturating_mul(cache.state_cells as u64);
    check_binding(gpu, &format!("{} cells of a state", cache.state_cells), bytes)?;
    Ok(bytes)
}

/// Bytes of the frames for so many cells of each table.
pub fn frame_bytes([all, window]: [usize; TABLES.len()]) -> u64 {
    let words = |cells: usize| FRAME_CELLS + 2 * cells;
    4 * if window > 0 { window_frame(all) + words(window) } else { words(all) } as u64
}

/// Index of the first word of the frame with the cells of windows, after the one with so many cells of all tokens.
fn window_frame(all: usize) -> usize {
    // The largest alignment that a device may require of a binding, in words.
    (FRAME_CELLS + 2 * all).next_multiple_of(64)
}

impl GpuState {
    /// As [`Gpu::guard`].
    fn guarded<T>(&mut self, work: impl FnOnce(&mut GpuState) -> Result<T>) -> Result<T> {
        let gpu = self.gpu.clone();
        gpu.guard(|| work(self))
    }

    /// Make room for a program.
    pub fn make_room(&mut self, needs: &Needs) -> Result<()> {
        let (gpu, generation) = (&self.gpu, &mut self.generation);
        let (workspace, partials) = (&mut self.workspace, &mut self.partials);
        Self::grow(gpu, generation, workspace, (Component::Workspace, "workspace"), needs.workspace_bytes)?;
        Self::grow(gpu, generation, partials, (Component::Other, "partial attention"), needs.partial_bytes)?;
        if let Some(logits) = needs.logits {
            if self.sampler.is_none() {
                self.sampler = Some(Sampler::new(gpu, logits.place.width, self.sequences)?);
                *generation += 1;
            }
            if let Some(sampler) = &mut self.sampler {
                sampler.bind(&self.workspace, logits.place.offset as u64, logits.rows)?;
            }
        }
        Ok(())
    }

    /// Make the walker, unless there is one.
    pub fn have_walker(&mut self, walker: impl FnOnce() -> Result<Walker>) -> Result<()> {
        if self.walker.is_none() {
            self.walker = Some(walker()?);
        }
        Ok(())
    }

    /// Sampled steps whose results were not read yet.
    pub fn under_way(&self) -> usize {
        self.sampler.as_ref().map_or(0, Sampler::under_way)
    }

    /// Drop what a failed run left: the results of sampled steps beyond the first `under_way`, and the record of the
    /// frame's content.
    pub fn forget(&mut self, under_way: usize) {
        self.outputs.clear();
        if let Some(sampler) = &mut self.sampler {
            sampler.forget(under_way);
        }
    }

    /// Drop what a failed walk left.
    pub fn forget_walk(&mut self) {
        self.outputs.clear();
        if let Some(walker) = &mut self.walker {
            walker.forget();
        }
    }

    pub fn sampler(&mut self) -> Result<&mut Sampler> {
        self.sampler.as_mut().ok_or_else(|| Error::Internal("No logits are computed on this device".into()))
    }

    /// Encode the sampling after a walk's pass; the pass's program has `steps` steps.
    pub fn encode_choice(&mut self, pass: &mut wgpu::ComputePass<'_>, steps: usize) -> Result<()> {
        let none = || Error::Internal("Nothing can be walked on this device".into());
        let (walker, sampler) = self.walker.as_ref().zip(self.sampler.as_mut()).ok_or_else(none)?;
        let (args, at) = walker.args(steps);
        sampler.program().encode_choice(pass, args, at);
        Ok(())
    }

    pub fn walker(&mut self) -> Result<&mut Walker> {
        self.walker.as_mut().ok_or_else(|| Error::Internal("Nothing can be walked on this device".into()))
    }

    fn check_range(&self, offset: usize, len: usize) -> Result<()> {
        let end = len.checked_mul(4).and_then(|bytes| bytes.checked_add(offset));
        if !offset.is_multiple_of(4) || end.is_none_or(|end| end as u64 > self.workspace.size()) {
            return Err(Error::Internal(format!("{len} values at byte {offset} are outside the workspace")));
        }
        Ok(())
    }
}
