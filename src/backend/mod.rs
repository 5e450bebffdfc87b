//! What a device has to do for an engine: the traits.
//!
//! A [`Backend`] owns weights in its own layout, the KV cache and the workspace of an engine ([`State`]), and turns a
//! run of graph nodes into a [`Program`]. A program runs one batch; everything that changes between batches (tokens,
//! positions, cells, sequences, which rows are wanted) comes in as [`Batch`], so that programs are compiled once at
//! open. A device that can sample has a [`DeviceSampler`].
//!
//! The files beside this one are the data that go in and out: `batch.rs` (cache, nodes, rows), `weights.rs`,
//! `device.rs`, `chain.rs` (the steps of a sampler), `device_sampling.rs` (a chain on a device, and what it found),
//! `trie_walk.rs`, `memory.rs`; and what both backends must agree on: `rope.rs`, `kv_rows.rs`, `tree_mask.rs`.
//! `registry.rs` knows the backends, `cpu/` and `gpu/`.

mod batch;
mod chain;
pub mod cpu;
mod device;
mod device_sampling;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod kv_rows;
pub mod memory;
mod registry;
pub mod rope;
mod tree_mask;
mod trie_walk;
mod weights;

pub use cpu::host::default_thread_count;
pub use cpu::host::pool::MAX_THREADS;

pub use batch::{
    Batch, CELL_BLOCK, CacheSpec, KvTypes, LayerCache, MAX_LISTED, MAX_ROWS, SampleRow, Work, cells_for, sampled_by,
};
pub use chain::{ChainStep, mask_place};
pub use device::{DeviceInfo, DeviceKind, Traffic};
pub use device_sampling::{Followed, Legal, SampleProblem, SampleResult, SampleSpec, SampledRow};
pub use registry::{choose, devices};
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

/// A device with its kernels.
pub trait Backend: Send + Sync {
    /// The device.
    fn device(&self) -> DeviceInfo;

    /// Whether the device can compute this node; `Err` says why not, and the node goes to the CPU.
    ///
    /// # Errors
    /// Why not.
    fn supports(&self, node: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String>;

    /// Bring weights into the device's layout, on up to `threads` host threads.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for, [`Error::Unsupported`] for a type without kernels, those
    /// of reading the file, [`Error::Cancelled`] where `progress` said so.
    fn load(
        &self,
        file: &File,
        specs: &[WeightSpec],
        wanted: &Wanted,
        threads: usize,
        progress: LoadProgress<'_>,
    ) -> Result<Weights>;

    /// KV cache and workspace for one engine that runs on `threads` host threads.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for.
    fn new_state(&self, cache: &CacheSpec, threads: usize) -> Result<Box<dyn State>>;

    /// Compile nodes into a program over these weights.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an operation without kernels, [`Error::Device`] where the device fails.
    fn compile(&self, work: &Work<'_>, weights: &Weights) -> Result<Box<dyn Program>>;

    /// What [`Backend::load`] will allocate.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type without kernels.
    fn weight_bytes(&self, specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes>;

    /// Begin to add up what an engine will allocate here.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a cache that cannot be.
    fn sizing(&self, cache: &CacheSpec, wanted: &Wanted, threads: usize) -> Result<Box<dyn Sizing>>;

    /// Bytes per second that the device's memory gives, measured now, which takes a second and some memory. `threads`
    /// is the number of host threads that would compute.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for, [`Error::Device`] where the device fails.
    fn bandwidth(&self, threads: usize) -> Result<f64>;

    /// How the device's memory stands.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an artificial limit that is no size.
    fn memory(&self) -> Result<Memory>;
}

/// Adds up what an engine's state and programs take on a device, without taking it: of [`Backend::new_state`],
/// [`Backend::compile`], [`Program::reserve`] and [`State::reserve_reads`].
pub trait Sizing {
    /// A program of these nodes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an operation without kernels.
    fn program(&mut self, work: &Work<'_>) -> Result<()>;

    /// Reads of at most so many bytes.
    fn reads(&mut self, bytes: usize);

    /// The sum.
    fn bytes(&self) -> Bytes;
}

/// What an engine keeps on a device between runs.
pub trait State: Send {
    /// Rows of the workspace as the host sees them: `len` floats from byte `offset`. On a device with memory of its own
    /// this is a copy; what the caller writes to it stays there.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    fn rows(&mut self, offset: usize, len: usize) -> Result<&mut [f32]>;

    /// Make room for reads of at most so many bytes by [`State::rows`], so that none allocates.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for.
    fn reserve_reads(&mut self, bytes: usize) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Write rows of the workspace from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    fn put(&mut self, offset: usize, values: &[f32]) -> Result<()>;

    /// The rows of these cells of a layer, one after the other: [`LayerCache::row_bytes`] each, as [`kv_rows`] says.
    /// For cells that were written.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    fn read_cells(&mut self, layer: usize, cells: &[u32], rows: &mut [u8]) -> Result<()>;

    /// Write such rows into these cells, and nothing else.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    fn write_cells(&mut self, layer: usize, cells: &[u32], rows: &[u8]) -> Result<()>;

    /// From now on waits for the device end with [`Error::Cancelled`] too, some time after `cancel` was set: on a
    /// device that hangs nothing else would end them. What was asked for is then still under way.
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        let _ = cancel;
    }

    /// Wait until everything that runs were asked for is done, and report what went wrong with it.
    ///
    /// # Errors
    /// What went wrong with a run.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// What samples from the logits that programs leave here; `None` where that is the host's.
    fn sampler(&mut self) -> Option<&mut dyn DeviceSampler> {
        None
    }

    /// What was asked of the device so far.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// For the owning backend.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Samples on the device, and walks tries there.
pub trait DeviceSampler {
    /// Sample this sequence by this chain from now on, after `history`; `None` where the device takes no part of it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for, [`Error::Device`] where the device fails.
    fn start(&mut self, sequence: usize, spec: &SampleSpec, history: &[Token]) -> Result<Option<Followed>>;

    /// Let only these tokens win in a sequence from now on; `None` lets all.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    fn arm(&mut self, sequence: usize, legal: Option<Legal<'_>>) -> Result<()>;

    /// Take note of tokens of a sequence that were not sampled here.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    fn accept(&mut self, sequence: usize, tokens: &[Token]) -> Result<()>;

    /// What the oldest run that sampled and was not asked about yet found, in the order of its [`Batch::sample`].
    /// `rows` has an entry for every sequence; says how many were filled.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails, [`Error::Cancelled`] where the wait for it was cancelled.
    fn sampled(&mut self, rows: &mut [SampledRow]) -> Result<usize>;

    /// Roll back the last tokens of a sequence that were sampled here or walked over, so many: the next one follows
    /// `last` again.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    fn roll_back(&mut self, sequence: usize, tokens: u32, last: Token) -> Result<()>;

    /// Keep a trie for [`Program::walk`], in the place of the one before. False where it cannot be walked here.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for.
    fn hold_trie(&mut self, nodes: &[WalkNode]) -> Result<bool>;

    /// Whether a sequence's chain and the children that are armed let the device walk on by itself.
    fn walks(&mut self, sequence: usize) -> bool;

    /// What the last walk found; waits for it.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails, [`Error::Cancelled`] where the wait for it was cancelled.
    fn walked(&mut self, walked: &mut Walked) -> Result<()>;
}

/// A compiled run of nodes.
pub trait Program: Send + Sync {
    /// Make room in a state for what this program needs, and for a workspace of so many bytes. Called at open, for
    /// every plan, so that no run allocates.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for.
    fn reserve(&self, state: &mut dyn State, workspace_bytes: usize) -> Result<()>;

    /// Run one batch. `out_rows` is the number of output rows, `batch.outputs.len()` where the batch has tokens.
    ///
    /// `cancel` is looked at several times a layer; a run that saw it returns [`Error::Cancelled`], with the cells of
    /// the batch in an undefined state.
    ///
    /// # Errors
    /// [`Error::Cancelled`], and [`Error::Device`] where the device fails.
    fn run(&self, state: &mut dyn State, batch: &Batch<'_>, out_rows: usize, cancel: &AtomicBool) -> Result<()>;

    /// Walk on through the trie that the state holds, after a run whose token is not known yet: at most so many
    /// passes, each from a token that was sampled to the next choice. The rows' cells, positions and sequences are the
    /// batch's, in order, as far as the walk goes; all are entered, and none is seen by a row before its own. One walk
    /// at a time.
    ///
    /// # Errors
    /// [`Error::Cancelled`], and [`Error::Device`] where the device fails.
    fn walk(&self, state: &mut dyn State, batch: &Batch<'_>, walk: &Walk, cancel: &AtomicBool) -> Result<()> {
        let _ = (state, batch, walk, cancel);
        Err(Error::Internal("A program that cannot walk".into()))
    }
}
