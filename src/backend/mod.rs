//! The traits that a device implements for an engine.
//!
//! A [`Backend`] owns weights in its own layout, the KV cache and the workspace of an engine ([`State`]), and turns a
//! run of graph nodes into a [`Program`]. A program runs one batch; everything that changes between batches (tokens,
//! positions, cells, sequences, which rows are wanted) comes in as [`Batch`], so that programs are compiled once at
//! open. A device that can sample tokens has a [`DeviceSampler`].
//!
//! The other files hold the inputs and results: `batch.rs` (cache, nodes, rows), `weights.rs`, `device.rs`, `chain.rs`
//! (the steps of a sampler), `device_sampling.rs` (a chain on a device and its results), `trie_walk.rs`, `memory.rs`;
//! and what both backends must agree on: `rope.rs`, `kv_rows.rs`, `known_recurrence.rs`, `tree_mask.rs`, `own_files.rs`
//! (what is kept on disk). `kernel_times.rs` has what kernels took, where that is measured. `registry.rs` lists the
//! devices and opens the backends, `cpu/` and `gpu/`.

mod batch;
mod breakers;
mod chain;
pub mod cpu;
mod device;
mod device_sampling;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod kernel_times;
#[cfg(any(test, feature = "gpu"))]
mod known_recurrence;
pub mod kv_rows;
pub mod memory;
mod own_files;
mod registry;
pub mod rope;
mod step_numbers;
mod tree_mask;
mod trie_walk;
mod weights;

pub use cpu::host::default_thread_count;
pub use cpu::host::pool::MAX_THREADS;

pub use batch::{
    Batch, CELL_BLOCK, CacheSpec, KvTypes, LIST_BLOCK, LayerCache, MAX_LISTED, MAX_ROWS, MAX_SEQUENCES, MAX_TEXT_ROWS,
    NO_BLOCK, NO_CELL, NO_STATE, SUM_RANGE, SampleRow, StateRows, TABLES, Table, TableCells, Work, cells_for,
    sampled_by,
};
pub use breakers::{BreakerHead, Breakers};
pub use chain::{ChainStep, DRY_BREAKERS, Dry, Generator, MIROSTAT_M, mask_place};
pub use device::{DeviceInfo, DeviceKind, Traffic};
pub use device_sampling::{Followed, Legal, LegalTokens, SampleProblem, SampleResult, SampleSpec, SampledRow};
pub use registry::{choose, devices};
pub use step_numbers::{DynamicRange, MAX_XTC_THRESHOLD, deviations, xtc_limit};
pub use tree_mask::{MAX_TREE_NODES, TREE, sees, tree_cell, tree_row};
pub use trie_walk::{WALK_CELLS, WALK_PASSES, WALK_ROWS, Walk, WalkNode, Walked, WalkedStep};
pub use weights::{LoadProgress, Wanted, WeightBytes, Weights};

use crate::gguf::File;
use crate::graph::{Node, WeightSpec};
use crate::{Error, Result, Token};
use memory::{Bytes, Memory};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A device with its kernels.
pub trait Backend: Send + Sync {
    /// The device's description.
    fn device(&self) -> DeviceInfo;

    /// Whether the device can compute this node. A node that it cannot compute is computed on the CPU.
    ///
    /// # Errors
    /// The reason why the device cannot, as text.
    fn supports(&self, node: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String>;

    /// Read the weights from the file and repack them into the device's layout, on up to `threads` host threads.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for; [`Error::Unsupported`] for a type or shape without
    /// kernels; [`Error::Io`] where the file cannot be read or was changed; [`Error::Model`] for a weight that is not a
    /// finite number, on a GPU; [`Error::Device`] where the device fails; [`Error::Cancelled`] where `progress`
    /// returned false.
    fn load(
        &self,
        file: &File,
        specs: &[WeightSpec],
        wanted: &Wanted,
        threads: usize,
        progress: LoadProgress<'_>,
    ) -> Result<Weights>;

    /// Allocate KV cache and workspace for one engine that runs on `threads` host threads.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for; [`Error::Unsupported`] for element types or head widths
    /// that the device's cache does not have; [`Error::Device`] where the device fails or a kernel fails its
    /// known-answer test.
    fn new_state(&self, cache: &CacheSpec, threads: usize) -> Result<Box<dyn State>>;

    /// Compile nodes into a program over these weights.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an operation without kernels, [`Error::OutOfMemory`] naming what the memory is for,
    /// [`Error::Device`] where the device fails.
    fn compile(&self, work: &Work<'_>, weights: &Weights) -> Result<Box<dyn Program>>;

    /// The bytes that [`Backend::load`] will allocate.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type or shape without kernels, [`Error::OutOfMemory`] for a matrix whose size
    /// overflows.
    fn weight_bytes(&self, specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes>;

    /// Start adding up the bytes that an engine will allocate here.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for element types or head widths that the device's cache does not have,
    /// [`Error::OutOfMemory`] for a buffer that is larger than the device allows.
    fn sizing(&self, cache: &CacheSpec, wanted: &Wanted, threads: usize) -> Result<Box<dyn Sizing>>;

    /// The device's memory bandwidth in bytes per second. Measures it, which takes about a second and some memory;
    /// `threads` is the number of host threads that would compute.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for, [`Error::Device`] where the device fails.
    fn bandwidth(&self, threads: usize) -> Result<f64>;

    /// The device's memory: used, total, available.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where `ELIZA_MEMORY_LIMIT` is not a number of bytes.
    fn memory(&self) -> Result<Memory>;
}

/// Adds up the bytes of an engine's state and programs on a device without allocating them: those of
/// [`Backend::new_state`], [`Backend::compile`], [`Program::reserve`] and [`State::reserve_reads`].
pub trait Sizing {
    /// Count a program of these nodes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an operation without kernels, [`Error::OutOfMemory`] for a buffer that is larger than
    /// the device allows.
    fn program(&mut self, work: &Work<'_>) -> Result<()>;

    /// Count reads of at most `bytes` bytes.
    fn reads(&mut self, bytes: usize);

    /// The sum, by component.
    fn bytes(&self) -> Bytes;
}

/// What an engine keeps on a device between runs.
pub trait State: Send {
    /// Rows of the workspace: `len` floats from byte `offset` on. On a device with memory of its own this is a copy,
    /// and what the caller writes to it does not reach the device.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails; [`Error::Cancelled`] where the wait was cancelled, see
    /// [`State::watch`].
    fn rows(&mut self, offset: usize, len: usize) -> Result<&mut [f32]>;

    /// Reserve memory for reads of at most `bytes` bytes by [`State::rows`], so that none allocates.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for, [`Error::Device`] where the device fails.
    fn reserve_reads(&mut self, bytes: usize) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Another state over the same KV cache, with a workspace of its own, so that a run of one may be left and gone on
    /// with after runs of the other ([`Program::run_until`]). Only one of them runs at a time. `None` where a run
    /// cannot be left.
    fn beside(&self) -> Option<Box<dyn State>> {
        None
    }

    /// Write `values` to the workspace from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    fn put(&mut self, offset: usize, values: &[f32]) -> Result<()>;

    /// Read these cells of a layer into `rows`, one cell row after the other, [`LayerCache::row_bytes`] each, in the
    /// form of [`kv_rows`]. The cells must have been written.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails; [`Error::OutOfMemory`] for staging; [`Error::Cancelled`] where the
    /// wait was cancelled, see [`State::watch`].
    fn read_cells(&mut self, layer: usize, cells: &[u32], rows: &mut [u8]) -> Result<()>;

    /// Write such cell rows into these cells; other cells stay as they are.
    ///
    /// # Errors
    /// As [`State::read_cells`].
    fn write_cells(&mut self, layer: usize, cells: &[u32], rows: &[u8]) -> Result<()>;

    /// Read one state of a state cell, as many numbers as [`CacheSpec::states`] says.
    ///
    /// # Errors
    /// As [`State::read_cells`].
    fn read_state(&mut self, state: usize, cell: u32, values: &mut [f32]) -> Result<()> {
        let _ = values;
        Err(Error::Internal(format!("State {state} was asked of a device without states (cell {cell})")))
    }

    /// Write one state of a state cell.
    ///
    /// # Errors
    /// As [`State::read_cells`].
    fn write_state(&mut self, state: usize, cell: u32, values: &[f32]) -> Result<()> {
        let _ = values;
        Err(Error::Internal(format!("State {state} was given to a device without states (cell {cell})")))
    }

    /// From now on, waits for the device also end, with [`Error::Cancelled`], some time after `cancel` was set: on a
    /// device that hangs nothing else would end them. The submitted work is then still running.
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        let _ = cancel;
    }

    /// Wait until all submitted work is done.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails; [`Error::Cancelled`] where the wait was cancelled, see
    /// [`State::watch`].
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// The sampler of this device; `None` where the host samples.
    fn sampler(&mut self) -> Option<&mut dyn DeviceSampler> {
        None
    }

    /// Counters of the work submitted so far.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// For the backend that made this state.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Samples on the device, and walks tries there.
pub trait DeviceSampler {
    /// Sample this sequence by this chain from now on, after `history`; `None` where the device can run no part of the
    /// chain.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a step that cannot be used (a token outside the vocabulary, a number that is
    /// NaN), [`Error::OutOfMemory`] naming what the memory is for, [`Error::Device`] where the device fails.
    fn start(&mut self, sequence: usize, spec: &SampleSpec, history: &[Token]) -> Result<Option<Followed>>;

    /// Set the token mask of a sequence; `None` allows all tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for tokens that are not ascending, not in the vocabulary, or none; [`Error::Device`]
    /// where the device fails.
    fn arm(&mut self, sequence: usize, legal: Option<Legal<'_>>) -> Result<()>;

    /// Append tokens that were not sampled here to a sequence's history.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    fn accept(&mut self, sequence: usize, tokens: &[Token]) -> Result<()>;

    /// The results of the oldest run that sampled and whose results were not read yet, in the order of its
    /// [`Batch::sample`]; waits for them. `rows` has an entry for every sequence; returns how many were filled.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails, [`Error::Cancelled`] where the wait for it was cancelled.
    fn sampled(&mut self, rows: &mut [SampledRow]) -> Result<usize>;

    /// Roll back the last `tokens` tokens of a sequence that were sampled here or walked over; `last` is the sequence's
    /// last token after that.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more tokens than can be rolled back; [`Error::Device`] where the device fails.
    fn roll_back(&mut self, sequence: usize, tokens: u32, last: Token) -> Result<()>;

    /// Upload a trie for [`Program::walk`] in place of the one before. False where it cannot be walked here.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for, [`Error::Device`] where the device fails.
    fn hold_trie(&mut self, nodes: &[WalkNode]) -> Result<bool>;

    /// Whether the device can walk the trie for this sequence, given its chain and mask.
    fn walks(&mut self, sequence: usize) -> bool;

    /// The results of the last walk; waits for it.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails, [`Error::Cancelled`] where the wait for it was cancelled.
    fn walked(&mut self, walked: &mut Walked) -> Result<()>;
}

/// A compiled run of nodes.
pub trait Program: Send + Sync {
    /// Reserve memory in a state for what this program needs, and for a workspace of `workspace_bytes`. Called at open
    /// for every plan, so that no run allocates.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for, [`Error::Device`] where the device fails.
    fn reserve(&self, state: &mut dyn State, workspace_bytes: usize) -> Result<()>;

    /// Run one batch. `out_rows` is the number of output rows, `batch.outputs.len()` where the batch has tokens.
    ///
    /// `cancel` is checked several times a layer. After [`Error::Cancelled`] the content of the batch's cells is
    /// undefined.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; [`Error::Device`] where the device fails; [`Error::Io`] where rows of the embedding are
    /// read from the model's file and it was changed.
    fn run(&self, state: &mut dyn State, batch: &Batch<'_>, out_rows: usize, cancel: &AtomicBool) -> Result<()>;

    /// As [`Program::run`], from its step `from` on; left where `until` has passed, with the step to go on from. Then
    /// the rest is to be run with the same state and batch.
    ///
    /// # Errors
    /// As [`Program::run`].
    fn run_until(
        &self,
        state: &mut dyn State,
        (batch, out_rows): (&Batch<'_>, usize),
        from: usize,
        until: Instant,
        cancel: &AtomicBool,
    ) -> Result<Option<usize>> {
        let _ = (from, until);
        self.run(state, batch, out_rows, cancel).map(|()| None)
    }

    /// Walk through the trie that the state holds, after a run whose token the host does not know yet: at most
    /// [`Walk::passes`] forward passes, each from a sampled token to the next choice. The walk's rows take their cells,
    /// positions and sequences from the batch, in order; all of them are entered before, and a row sees no cell of a
    /// later row. One walk at a time.
    ///
    /// # Errors
    /// [`Error::Cancelled`], and [`Error::Device`] where the device fails.
    fn walk(&self, state: &mut dyn State, batch: &Batch<'_>, walk: &Walk, cancel: &AtomicBool) -> Result<()> {
        let _ = (state, batch, walk, cancel);
        Err(Error::Internal("A program that cannot walk".into()))
    }
}
