//! What an engine keeps in memory between runs: KV cache, workspace, scratch.
//!
//! All of it is anonymous mappings, zeroed by the system on first touch: a long context or a large bucket that is
//! never used costs address space, not memory. Mappings only grow, and only in [`CpuState::reserve`], before any run.
//!
//! Two states may have the same caches and states ([`State::beside`]). Whoever has them runs and reads one at a time.

use super::demand::{AREAS, Area, Demand};
use crate::backend::cpu::host::memory::account;
use crate::backend::cpu::host::pool::Counter;
use crate::backend::cpu::host::region::Region;
use crate::backend::cpu::kernels::attention::{SplitShare, SplitSpace};
use crate::backend::cpu::kv::{KvLayout, rows};
use crate::backend::memory::{Component, Held};
use crate::backend::{Batch, CacheSpec, NO_STATE, State, Table};
use crate::{Error, Result, reserve};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Keys and values of one layer.
struct LayerBuffers {
    layout: KvLayout,
    table: Table,
    k_offset: usize,
    v_offset: usize,
}

/// The caches of the layers that are here, in one piece of memory.
pub(super) struct Caches {
    layers: Vec<LayerBuffers>,
    /// Where in `layers` each layer of the model is; `None` for those whose cache is on another device.
    index_of: Vec<Option<usize>>,
    pub bytes: usize,
    /// Of each state where it begins in a state cell, and its numbers; `None` for those on another device.
    states: Vec<Option<(usize, usize)>>,
    /// Numbers of a state cell.
    state_values: usize,
    state_cells: usize,
}

impl Caches {
    pub fn new(cache: &CacheSpec) -> Result<Caches> {
        let mut layers = Vec::with_capacity(cache.layers.len());
        let mut bytes = 0usize;
        let [all, _] = cache.cells;
        let too_large = || Error::OutOfMemory(format!("A KV cache of {all} cells is too large"));
        let mut index_of = Vec::with_capacity(cache.layers.len());
        for shape in &cache.layers {
            index_of.push(shape.map(|_| layers.len()));
            let Some(shape) = shape else { continue };
            let cells = cache.cells[shape.table as usize];
            let layout = KvLayout::new(cache.types, shape.heads, shape.head_dim_k, shape.head_dim_v, cells)?;
            let k_offset = bytes;
            let v_offset = k_offset.checked_add(layout.k_bytes()).ok_or_else(too_large)?.next_multiple_of(64);
            bytes = v_offset.checked_add(layout.v_bytes()).ok_or_else(too_large)?.next_multiple_of(64);
            layers.push(LayerBuffers { layout, table: shape.table, k_offset, v_offset });
        }
        let mut state_values = 0usize;
        let mut states = Vec::with_capacity(cache.states.len());
        for &values in &cache.states {
            states.push(values.map(|values| (state_values, values)));
            state_values = state_values.saturating_add(values.unwrap_or(0).next_multiple_of(16));
        }
        let fits = state_values.checked_mul(4).and_then(|bytes| bytes.checked_mul(cache.state_cells));
        fits.filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| {
            Error::OutOfMemory(format!("{} states of {state_values} numbers are too large", cache.state_cells))
        })?;
        Ok(Caches { layers, index_of, bytes, states, state_values, state_cells: cache.state_cells })
    }

    /// Bytes of all state cells.
    pub fn state_bytes(&self) -> usize {
        self.state_values * 4 * self.state_cells
    }

    /// The layer is on this device: [`Caches::check`] has seen the program.
    fn layer(&self, layer: usize) -> &LayerBuffers {
        &self.layers[self.index_of[layer].unwrap_or(usize::MAX)]
    }

    pub fn layout(&self, layer: usize) -> &KvLayout {
        &self.layer(layer).layout
    }

    /// An error for a program whose layers are not all here.
    pub fn check(&self, demand: &Demand) -> Result<()> {
        let here = |layer: usize| self.index_of.get(layer).copied().flatten().is_some();
        if let Some(spec) = demand.attentions.iter().find(|spec| !here(spec.layer)) {
            return Err(Error::Internal(format!("Layer {} has no KV cache on this device", spec.layer)));
        }
        let has = |&(state, n): &(usize, usize)| self.states.get(state).copied().flatten().is_some_and(|(_, m)| m == n);
        match demand.states.iter().find(|state| !has(state)) {
            Some((state, n)) => Err(Error::Internal(format!("State {state} of {n} numbers is not on this device"))),
            None => Ok(()),
        }
    }
}

/// Keys, values and recurrent states.
struct CacheMemory {
    cache: Region,
    states: Region,
    caches: Caches,
}

/// The state of an engine on the CPU.
pub struct CpuState {
    memory: RunMemory,
    split: SplitSpace,
    /// Whether its account has the caches; else that of the state has which this one is beside.
    counts_caches: bool,
    /// What is allocated, on the account.
    held: Vec<Held>,
}

/// What the threads of a run share.
pub(super) struct RunMemory {
    threads: usize,
    workspace: Region,
    areas: [Region; AREAS],
    /// What [`RunMemory::routing`] gives.
    routing: Region,
    /// Positions and sequences of the output rows.
    outputs: (Vec<i32>, Vec<u32>),
    /// Per rotary embedding and row: cosines, then sines.
    rope: Region,
    scratch: Region,
    thread_bytes: usize,
    kept: Arc<CacheMemory>,
    /// For the two loops that one step may have.
    pub counters: [Counter; 2],
    /// Rows that a step has done, for whoever does the last; 0 between steps.
    pub done: AtomicUsize,
}

impl CpuState {
    pub fn new(cache: &CacheSpec, threads: usize) -> Result<CpuState> {
        let caches = Caches::new(cache)?;
        let [all, window] = cache.cells;
        let of_window = if window > 0 { format!(", {window} in sliding layers,") } else { String::new() };
        let what = format!("KV cache ({all} cells{of_window} of type {})", cache.types);
        let kept = CacheMemory {
            cache: Region::new(&what, caches.bytes)?,
            states: Region::new("states", caches.state_bytes())?,
            caches,
        };
        Ok(CpuState::over(Arc::new(kept), threads, true))
    }

    fn over(kept: Arc<CacheMemory>, threads: usize, counts_caches: bool) -> CpuState {
        let memory = RunMemory {
            threads,
            workspace: Region::default(),
            areas: Default::default(),
            routing: Region::default(),
            outputs: (Vec::new(), Vec::new()),
            rope: Region::default(),
            scratch: Region::default(),
            thread_bytes: 0,
            kept,
            counters: [Counter::new(), Counter::new()],
            done: AtomicUsize::new(0),
        };
        let mut state = CpuState { memory, split: SplitSpace::default(), counts_caches, held: Vec::new() };
        state.count();
        state
    }

    /// Put what is allocated now on the account.
    fn count(&mut self) {
        let m = &self.memory;
        let areas: usize = m.areas.iter().map(|area| area.bytes).sum();
        let scratch = areas + m.routing.bytes + m.rope.bytes + m.scratch.bytes + self.split.bytes();
        let cache = if self.counts_caches { m.kept.cache.bytes + m.kept.states.bytes } else { 0 };
        let parts = [(Component::Cache, cache), (Component::Workspace, m.workspace.bytes), (Component::Other, scratch)];
        self.held = parts.map(|(component, bytes)| account().hold(component, bytes as u64)).into();
    }

    /// A layer's keys and values, which no run uses while the state is borrowed.
    fn layer(&mut self, layer: usize) -> Result<(KvLayout, [&mut [u8]; 2])> {
        let m = &self.memory;
        if m.kept.caches.index_of.get(layer).copied().flatten().is_none() {
            return Err(Error::Internal(format!("Layer {layer} has no KV cache on this device")));
        }
        let (layout, (keys, values)) = (*m.layout(layer), m.cache(layer));
        // SAFETY: both lie in the mapping, which the state keeps, one after the other; a state beside this one is not
        // used meanwhile (`State::beside`).
        let sides = unsafe {
            [
                std::slice::from_raw_parts_mut(keys, layout.k_bytes()),
                std::slice::from_raw_parts_mut(values, layout.v_bytes()),
            ]
        };
        Ok((layout, sides))
    }

    /// The `n` numbers of a state in a state cell.
    fn state_values(&mut self, state: usize, cell: u32, n: usize) -> Result<&mut [f32]> {
        let m = &self.memory;
        let known = m.kept.caches.states.get(state).copied().flatten().is_some_and(|(_, values)| values == n);
        let place = m.state(cell, state).filter(|_| known && (cell as usize) < m.kept.caches.state_cells);
        let place = place.ok_or_else(|| Error::Internal(format!("State {state} is not in state cell {cell} here")))?;
        // SAFETY: the numbers lie in the mapping, which no run uses while the state is borrowed, nor one beside it.
        Ok(unsafe { std::slice::from_raw_parts_mut(place, n) })
    }

    /// Make room for a program, and for a workspace of so many bytes.
    pub(super) fn reserve(&mut self, demand: &Demand, workspace_bytes: usize) -> Result<()> {
        let m = &mut self.memory;
        m.kept.caches.check(demand)?;
        m.workspace.grow("workspace", workspace_bytes)?;
        for (area, &bytes) in m.areas.iter_mut().zip(&demand.area_bytes) {
            area.grow("activations", bytes)?;
        }
        m.routing.grow("rows by expert", demand.routing * 4)?;
        let (_, out_rows) = demand.max_rows;
        if m.outputs.0.capacity() < out_rows {
            m.outputs = (reserve::list(out_rows, "output rows")?, reserve::list(out_rows, "output rows")?);
        }
        m.rope.grow("rotary tables", demand.rope_bytes)?;
        m.thread_bytes = m.thread_bytes.max(demand.thread_bytes(|layer| m.kept.caches.layout(layer)));
        m.scratch.grow("scratch", m.thread_bytes * m.threads)?;
        for spec in &demand.attentions {
            self.split.reserve(m.kept.caches.layout(spec.layer), spec.n_head)?;
        }
        self.count();
        Ok(())
    }

    /// The memory and the split space for one run of a program that was reserved for.
    pub(super) fn begin(&mut self, demand: &Demand, batch: &Batch<'_>) -> Result<(&RunMemory, SplitShare<'_>)> {
        let m = &mut self.memory;
        let inside = |layer: &LayerBuffers| batch.cells[layer.table as usize].is_within(layer.layout.n_cells());
        let fits = m.areas.iter().zip(&demand.area_bytes).all(|(area, &bytes)| bytes <= area.bytes)
            && demand.routing * 4 <= m.routing.bytes
            && demand.rope_bytes <= m.rope.bytes
            && demand.thread_bytes(|layer| m.layout(layer)) * m.threads <= m.scratch.bytes
            && batch.tokens.len() <= demand.max_rows.0
            && batch.outputs.len() <= m.outputs.0.capacity().min(m.outputs.1.capacity())
            && m.kept.caches.layers.iter().all(inside)
            && (demand.states.is_empty() || batch.has_states(m.kept.caches.state_cells));
        if !fits {
            return Err(Error::Internal("A program for which no memory was reserved".into()));
        }
        let (positions, sequences) = &mut m.outputs;
        *m.done.get_mut() = 0;
        positions.clear();
        positions.extend(batch.outputs.iter().map(|&row| batch.positions[row as usize]));
        sequences.clear();
        sequences.extend(batch.outputs.iter().map(|&row| batch.sequences[row as usize]));
        Ok((&self.memory, self.split.share()))
    }
}

impl RunMemory {
    /// Where a state begins in a state cell; `None` for [`NO_STATE`]. State and cell were checked when the run began.
    pub fn state(&self, cell: u32, state: usize) -> Option<*mut f32> {
        let (at, _) = self.kept.caches.states.get(state).copied().flatten().filter(|_| cell != NO_STATE)?;
        Some(self.kept.states.base.wrapping_add((cell as usize * self.kept.caches.state_values + at) * 4).cast())
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The workspace from a byte offset that the scheduler gave.
    pub fn workspace(&self, offset: usize) -> *mut f32 {
        self.workspace.base.wrapping_add(offset).cast()
    }

    /// An area of rows that products read.
    pub fn area(&self, area: Area) -> *mut u8 {
        self.areas[area as usize].base
    }

    /// Rows sorted by expert, as the route of a mixture of experts leaves them (`ops/experts.rs`): for each expert
    /// where its entries begin, and one past the last; how many experts have entries, and a place for each expert's
    /// number; the entries.
    pub fn routing(&self) -> *mut u32 {
        self.routing.base.cast()
    }

    /// Positions and sequences of the output rows.
    pub fn outputs(&self) -> (&[i32], &[u32]) {
        (&self.outputs.0, &self.outputs.1)
    }

    pub fn rope(&self) -> *mut f32 {
        self.rope.base.cast()
    }

    /// A thread's own scratch memory, and its length in floats.
    pub fn thread_scratch(&self, index: usize) -> (*mut f32, usize) {
        (self.scratch.base.wrapping_add(index * self.thread_bytes).cast(), self.thread_bytes / 4)
    }

    /// The layout of a layer's cache. The layer is on this device: [`CpuState::reserve`] has checked it for the
    /// program.
    pub fn layout(&self, layer: usize) -> &KvLayout {
        self.kept.caches.layout(layer)
    }

    /// The table that a layer's cells are in.
    pub fn table(&self, layer: usize) -> Table {
        self.kept.caches.layer(layer).table
    }

    /// A layer's key and value buffers.
    pub fn cache(&self, layer: usize) -> (*mut u8, *mut u8) {
        let l = self.kept.caches.layer(layer);
        (self.kept.cache.base.wrapping_add(l.k_offset), self.kept.cache.base.wrapping_add(l.v_offset))
    }
}

impl State for CpuState {
    fn rows(&mut self, offset: usize, len: usize) -> Result<&mut [f32]> {
        let m = &self.memory;
        let end = len.checked_mul(4).and_then(|n| n.checked_add(offset));
        if !offset.is_multiple_of(4) || end.is_none_or(|end| end > m.workspace.bytes) {
            return Err(Error::Internal(format!("{len} values at byte {offset} are outside the workspace")));
        }
        // SAFETY: the range lies in the mapping, and no run is under way while the state is borrowed.
        Ok(unsafe { std::slice::from_raw_parts_mut(m.workspace(offset), len) })
    }

    fn beside(&self) -> Option<Box<dyn State>> {
        Some(Box::new(CpuState::over(self.memory.kept.clone(), self.memory.threads, false)))
    }

    fn put(&mut self, offset: usize, values: &[f32]) -> Result<()> {
        self.rows(offset, values.len())?.copy_from_slice(values);
        Ok(())
    }

    fn read_cells(&mut self, layer: usize, cells: &[u32], rows: &mut [u8]) -> Result<()> {
        let (layout, [keys, values]) = self.layer(layer)?;
        for (&cell, row) in cells.iter().zip(rows.chunks_exact_mut(rows::bytes(&layout))) {
            rows::read(&layout, [&*keys, &*values], cell as usize, row);
        }
        Ok(())
    }

    fn write_cells(&mut self, layer: usize, cells: &[u32], rows: &[u8]) -> Result<()> {
        let (layout, [keys, values]) = self.layer(layer)?;
        for (&cell, row) in cells.iter().zip(rows.chunks_exact(rows::bytes(&layout))) {
            rows::write(&layout, [&mut *keys, &mut *values], cell as usize, row);
        }
        Ok(())
    }

    fn read_state(&mut self, state: usize, cell: u32, values: &mut [f32]) -> Result<()> {
        values.copy_from_slice(self.state_values(state, cell, values.len())?);
        Ok(())
    }

    fn write_state(&mut self, state: usize, cell: u32, values: &[f32]) -> Result<()> {
        self.state_values(state, cell, values.len())?.copy_from_slice(values);
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
