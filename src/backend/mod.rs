//! The backend trait, the registry that scores devices, and the backends themselves.
//!
//! A backend owns weights in its own layout, the KV cache and the workspace of an engine, and turns a run of graph
//! nodes into a program. A program runs one batch; everything that changes between batches (tokens, positions,
//! cells, sequences, which rows are wanted) comes in as [`Batch`], so that programs are compiled once at open.

pub mod cpu;

use crate::gguf::File;
use crate::graph::{Graph, WeightSpec};
use crate::quant::TensorType;
use crate::{Error, Result, Token};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The largest batch of one pass; longer prompts run in chunks.
pub const MAX_ROWS: usize = 512;

/// What kind of device a backend drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
}

/// A device as `eliza-inference devices` lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceInfo {
    /// Name, e.g. `CPU (AVX-512 VNNI)`.
    pub name: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Higher is preferred.
    pub score: u32,
    /// Why it has this score.
    pub reason: String,
}

/// Hears the fraction of a load that is done; returns false to cancel it.
pub type LoadProgress<'a> = Option<&'a mut (dyn FnMut(f32) -> bool + Send)>;

/// A model's weights in a backend's layout; only that backend can look inside.
#[derive(Clone)]
pub struct Weights(pub Arc<dyn Any + Send + Sync>);

/// Shape of an engine's KV cache.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheSpec {
    /// Element type: F16, F32 or Q8_0.
    pub ty: TensorType,
    /// Cells, a multiple of 16.
    pub cells: usize,
    /// Per layer: key and value heads, width of a key head, width of a value head.
    pub layers: Vec<(usize, usize, usize)>,
}

/// One batch: a row per token. All slices but the cells' have one entry per row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Batch<'a> {
    /// Token ids.
    pub tokens: &'a [Token],
    /// Position of each row in its sequence.
    pub positions: &'a [i32],
    /// Sequences each row belongs to, one bit each.
    pub sequences: &'a [u32],
    /// Cell that each row's key and value go to.
    pub cells: &'a [u32],
    /// Rows that are wanted, ascending.
    pub outputs: &'a [u32],
    /// Position of every cell.
    pub cell_positions: &'a [i32],
    /// Sequences of every cell, one bit each; 0 marks a free cell. The batch's own cells are already entered.
    pub cell_sequences: &'a [u32],
    /// One past the last cell in use.
    pub n_kv: usize,
}

/// The nodes a backend is asked to compile, and where their rows live.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The weight table that the graph's nodes name.
    pub specs: &'a [WeightSpec],
    /// Byte offset of each node in the workspace.
    pub offsets: &'a [usize],
    /// Largest number of batch rows.
    pub max_rows: usize,
    /// Largest number of output rows.
    pub max_out_rows: usize,
    /// The nodes to run.
    pub nodes: (u32, u32),
}

/// A device with its kernels.
pub trait Backend: Send + Sync {
    /// The device.
    fn device(&self) -> DeviceInfo;

    /// Bring a model's weights into the device's layout, on up to `threads` host threads.
    fn load(&self, file: &File, specs: &[WeightSpec], threads: usize, progress: LoadProgress<'_>) -> Result<Weights>;

    /// KV cache and workspace for one engine that runs on `threads` host threads.
    fn new_state(&self, cache: &CacheSpec, threads: usize) -> Result<Box<dyn State>>;

    /// Compile nodes into a program over these weights.
    fn compile(&self, work: &Work<'_>, weights: &Weights) -> Result<Box<dyn Program>>;
}

/// What an engine keeps on a device between runs.
pub trait State: Send {
    /// Make room for what a program needs. Called at open, for every plan, so that no run allocates.
    fn reserve(&mut self, program: &dyn Program, workspace_bytes: usize) -> Result<()>;

    /// Rows of the workspace as the host sees them: `len` floats from byte `offset`.
    fn rows(&mut self, offset: usize, len: usize) -> Result<&mut [f32]>;

    /// For the owning backend.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// A compiled run of nodes.
pub trait Program: Send + Sync {
    /// Run one batch. `out_rows` is the number of output rows, `batch.outputs.len()` where the batch has tokens.
    ///
    /// `cancel` is looked at several times a layer; a run that saw it returns [`Error::Cancelled`], with the cells of the
    /// batch in an undefined state.
    fn run(&self, state: &mut dyn State, batch: &Batch<'_>, out_rows: usize, cancel: &AtomicBool) -> Result<()>;

    /// For the owning backend.
    fn as_any(&self) -> &dyn Any;
}

/// Cells that a range of positions may use, for callers that size a cache.
pub fn cells_for(context: usize) -> usize {
    context.next_multiple_of(cpu::CELL_BLOCK)
}

/// Every device this build can use, best first.
pub fn devices() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(cpu::CpuBackend::new())]
}

/// The backend for a request: `gpu_layers` other than 0 asks for a GPU, `device` narrows the choice by name.
///
/// Asking for a GPU where none works is an error with the reason, never a silent run on the CPU.
pub fn choose(gpu_layers: i32, device: Option<&str>) -> Result<Arc<dyn Backend>> {
    let named = device.map(str::to_string).or_else(|| std::env::var("ELIZA_BACKEND").ok()).filter(|s| !s.is_empty());
    let all = devices();
    if gpu_layers != 0 {
        let what = if gpu_layers < 0 { "All layers".to_string() } else { format!("{gpu_layers} layers") };
        return Err(Error::Unsupported(format!("{what} on a GPU: this build has no GPU backend (0 runs on the CPU)")));
    }
    let Some(named) = named else {
        return all.into_iter().next().ok_or_else(|| Error::Unsupported("No device".into()));
    };
    let wanted = named.to_lowercase();
    let matches = |d: &DeviceInfo| d.name.to_lowercase().contains(&wanted);
    let names: Vec<String> = all.iter().map(|b| b.device().name).collect();
    all.into_iter()
        .find(|b| matches(&b.device()))
        .ok_or_else(|| Error::Unsupported(format!("Device `{named}` (known: {})", names.join(", "))))
}
