//! The backend trait, the registry that scores devices, and the backends themselves.
//!
//! A backend owns weights in its own layout, the KV cache and the workspace of an engine, and turns a run of graph
//! nodes into a program. A program runs one batch; everything that changes between batches (tokens, positions,
//! cells, sequences, which rows are wanted) comes in as [`Batch`], so that programs are compiled once at open.

pub mod cell_rows;
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod memory;
mod sample;
mod tree;
mod walk;

pub use tree::{MAX_TREE_NODES, TREE, sees, tree_cell, tree_row};

pub use sample::{Children, Followed, SampleOp, SampleProblem, SampleResult, SampleRow, SampleSpec, SampledRow};
pub use walk::{WALK_CELLS, WALK_PASSES, WALK_ROWS, Walk, WalkNode, Walked, WalkedStep};

use crate::gguf::{File, shown};
use crate::graph::{Graph, Node, NodeId, Readers, WeightId, WeightSpec, WeightUse};
use crate::quant::TensorType;
use crate::{Error, Result, Token};
use memory::{Bytes, Component, Memory};
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
    /// A graphics processor.
    Gpu,
}

/// A device as `eliza-inference devices` lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceInfo {
    /// Name, e.g. `CPU (avx512)`.
    pub name: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Higher is preferred.
    pub score: u32,
    /// Why it has this score.
    pub reason: String,
    /// What compiles shaders before the driver does, where that is chosen: `DXC` or `FXC`, with DX12.
    pub shader_compiler: Option<&'static str>,
}

/// Hears the fraction of a load that is done; returns false to cancel it.
pub type LoadProgress<'a> = Option<&'a mut (dyn FnMut(f32) -> bool + Send)>;

/// A model's weights in a backend's layout; only that backend can look inside.
#[derive(Clone)]
pub struct Weights(pub Arc<dyn Any + Send + Sync>);

/// What a device needs of a model's weights.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wanted {
    /// How each weight of the table is used on this device; `None` stays away.
    pub uses: Vec<Option<WeightUse>>,
    /// To which component each weight is counted.
    pub components: Vec<Component>,
    /// Matrices without biases that one node multiplies with one input, in the order of their outputs.
    pub together: Vec<Vec<WeightId>>,
}

/// Shape of an engine's KV cache.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheSpec {
    /// Element types.
    pub types: KvTypes,
    /// Cells, a multiple of 16.
    pub cells: usize,
    /// Sequences that share the cells; each can have a sampler chain.
    pub sequences: usize,
    /// The layers whose cache is on the device; `None` for those that are elsewhere.
    pub layers: Vec<Option<LayerCache>>,
}

/// Element types of a KV cache, each F16, F32 or Q8_0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvTypes {
    /// Of the keys.
    pub k: TensorType,
    /// Of the values.
    pub v: TensorType,
}

impl KvTypes {
    /// Of the keys, or else of the values.
    pub fn of(&self, key: bool) -> TensorType {
        if key { self.k } else { self.v }
    }

    /// [`Error::Unsupported`] where a device has no cache of these types.
    fn check(&self, place: &str) -> Result<()> {
        let known = [TensorType::F32, TensorType::F16, TensorType::Q8_0];
        match [self.k, self.v].into_iter().find(|ty| !known.contains(ty)) {
            None => Ok(()),
            Some(ty) => Err(Error::Unsupported(format!("KV cache of type {ty}{place} (known: F32, F16, Q8_0)"))),
        }
    }
}

impl From<TensorType> for KvTypes {
    fn from(ty: TensorType) -> KvTypes {
        KvTypes { k: ty, v: ty }
    }
}

impl std::fmt::Display for KvTypes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.k == self.v {
            true => write!(f, "{}", self.k),
            false => write!(f, "{} (keys) and {} (values)", self.k, self.v),
        }
    }
}

/// Shape of one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerCache {
    /// Key and value heads.
    pub heads: usize,
    /// Width of a key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
}

impl LayerCache {
    /// A layer with this many key and value heads of these widths.
    pub fn new(heads: usize, head_dim_k: usize, head_dim_v: usize) -> LayerCache {
        LayerCache { heads, head_dim_k, head_dim_v }
    }
}

/// The most logits of [`Batch::listed`].
pub const MAX_LISTED: usize = 512;

/// One batch: a row per token. All slices but the cells' have one entry per row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Batch<'a> {
    /// Token ids.
    pub tokens: &'a [Token],
    /// Position of each row in its sequence.
    pub positions: &'a [i32],
    /// Sequences each row belongs to, one bit each of the lowest 16, or the words of a tree's rows ([`tree_row`]).
    pub sequences: &'a [u32],
    /// Cell that each row's key and value go to.
    pub cells: &'a [u32],
    /// Rows that are wanted, ascending.
    pub outputs: &'a [u32],
    /// Position of every cell.
    pub cell_positions: &'a [i32],
    /// Sequences of every cell, one bit each, or the words of a tree's cells ([`tree_cell`]); 0 marks a free cell. The
    /// batch's own cells are already entered.
    pub cell_sequences: &'a [u32],
    /// One past the last cell in use.
    pub n_kv: usize,
    /// The cells whose position or sequences may differ from those of the last batch that ran without an error.
    pub changed_cells: (usize, usize),
    /// Rows of logits to sample from as well, by the chains of [`State::start_sampling`].
    pub sample: &'a [SampleRow],
    /// The only tokens whose logits are wanted, ascending, at most [`MAX_LISTED`]; none wants all. The logits are the
    /// same bits as in a whole row, and stand where they stand there; what stands elsewhere in the row is undefined.
    pub listed: &'a [Token],
}

/// The token of a batch row that is the one that `sequence` sampled last, which the host may not know yet.
pub const fn sampled_by(sequence: usize) -> Token {
    -1 - sequence as Token
}

/// The nodes a backend is asked to compile, and where their rows live.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Who reads each of its nodes.
    pub readers: &'a Readers,
    /// The weight table that the graph's nodes name.
    pub specs: &'a [WeightSpec],
    /// Byte offset of each node in the workspace.
    pub offsets: &'a [usize],
    /// Bytes of the workspace.
    pub workspace_bytes: usize,
    /// Largest number of batch rows.
    pub max_rows: usize,
    /// Largest number of output rows.
    pub max_out_rows: usize,
    /// The nodes to run.
    pub nodes: (u32, u32),
    /// The cache that attention nodes read, with all layers, wherever they are.
    pub cache: &'a CacheSpec,
}

impl Work<'_> {
    /// Whether the program computes this node itself.
    pub fn computes(&self, id: NodeId) -> bool {
        (self.nodes.0..self.nodes.1).contains(&id.0)
    }
}

/// A device with its kernels.
pub trait Backend: Send + Sync {
    /// The device.
    fn device(&self) -> DeviceInfo;

    /// Whether the device can compute this node; `Err` says why not, and the node goes to the CPU.
    fn supports(&self, node: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String>;

    /// Bring weights into the device's layout, on up to `threads` host threads.
    fn load(
        &self,
        file: &File,
        specs: &[WeightSpec],
        wanted: &Wanted,
        threads: usize,
        progress: LoadProgress<'_>,
    ) -> Result<Weights>;

    /// KV cache and workspace for one engine that runs on `threads` host threads.
    fn new_state(&self, cache: &CacheSpec, threads: usize) -> Result<Box<dyn State>>;

    /// Compile nodes into a program over these weights.
    fn compile(&self, work: &Work<'_>, weights: &Weights) -> Result<Box<dyn Program>>;

    /// What [`Backend::load`] will allocate.
    fn weight_bytes(&self, specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes>;

    /// Begin to add up what an engine will allocate here.
    fn sizing(&self, cache: &CacheSpec, wanted: &Wanted, threads: usize) -> Result<Box<dyn Sizing>>;

    /// Bytes per second that the device's memory gives, measured now, which takes a second and some memory. `threads`
    /// is the number of host threads that would compute.
    fn bandwidth(&self, threads: usize) -> Result<f64>;

    /// How the device's memory stands.
    fn memory(&self) -> Result<Memory>;
}

/// Memory of a model's weights on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WeightBytes {
    /// What is allocated.
    pub allocated: Bytes,
    /// Bytes of the file that are looked up in it again and again: pages that the system keeps as long as it has room.
    pub file_backed: u64,
}

/// Adds up what an engine's state and programs take on a device, without taking it: of [`Backend::new_state`],
/// [`Backend::compile`], [`State::reserve`] and [`State::reserve_reads`].
pub trait Sizing {
    /// A program of these nodes.
    fn program(&mut self, work: &Work<'_>) -> Result<()>;

    /// Reads of at most so many bytes.
    fn reads(&mut self, bytes: usize);

    /// The sum.
    fn bytes(&self) -> Bytes;
}

/// What an engine asked of a device since it opened; all zero for the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Kernels started.
    pub dispatches: u64,
    /// Command buffers submitted.
    pub submissions: u64,
    /// Times the host waited for the device.
    pub waits: u64,
    /// Bytes written to the device.
    pub bytes_uploaded: u64,
    /// Bytes read from it.
    pub bytes_read: u64,
}

impl std::ops::Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic {
            dispatches: self.dispatches + other.dispatches,
            submissions: self.submissions + other.submissions,
            waits: self.waits + other.waits,
            bytes_uploaded: self.bytes_uploaded + other.bytes_uploaded,
            bytes_read: self.bytes_read + other.bytes_read,
        }
    }
}

impl std::ops::Sub for Traffic {
    type Output = Traffic;

    /// What was asked between two readings; `other` is the earlier one.
    fn sub(self, other: Traffic) -> Traffic {
        Traffic {
            dispatches: self.dispatches - other.dispatches,
            submissions: self.submissions - other.submissions,
            waits: self.waits - other.waits,
            bytes_uploaded: self.bytes_uploaded - other.bytes_uploaded,
            bytes_read: self.bytes_read - other.bytes_read,
        }
    }
}

/// What an engine keeps on a device between runs.
pub trait State: Send {
    /// Make room for what a program needs. Called at open, for every plan, so that no run allocates.
    fn reserve(&mut self, program: &dyn Program, workspace_bytes: usize) -> Result<()>;

    /// Rows of the workspace as the host sees them: `len` floats from byte `offset`. On a device with memory of its own
    /// this is a copy; what the caller writes to it stays there.
    fn rows(&mut self, offset: usize, len: usize) -> Result<&mut [f32]>;

    /// Make room for reads of at most so many bytes by [`State::rows`], so that none allocates.
    fn reserve_reads(&mut self, bytes: usize) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Write rows of the workspace from byte `offset` on.
    fn put(&mut self, offset: usize, values: &[f32]) -> Result<()>;

    /// The rows of these cells of a layer, one behind the other: [`LayerCache::row_bytes`] each, as [`cell_rows`] says.
    /// For cells that were written.
    fn read_cells(&mut self, layer: usize, cells: &[u32], rows: &mut [u8]) -> Result<()>;

    /// Write such rows into these cells, and nothing else.
    fn write_cells(&mut self, layer: usize, cells: &[u32], rows: &[u8]) -> Result<()>;

    /// From now on waits for the device end with [`Error::Cancelled`] too, some time after `cancel` was set: on a
    /// device that hangs nothing else would end them. What was asked for is then still under way.
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        let _ = cancel;
    }

    /// Wait until everything that runs were asked for is done, and report what went wrong with it.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Sample this sequence by this chain from now on, behind `history`; `None` where the device takes no part of it.
    fn start_sampling(&mut self, sequence: usize, spec: &SampleSpec, history: &[Token]) -> Result<Option<Followed>> {
        let _ = (sequence, spec, history);
        Ok(None)
    }

    /// Let only these tokens win in a sequence from now on; `None` lets all.
    fn arm(&mut self, sequence: usize, children: Option<Children<'_>>) -> Result<()> {
        let _ = (sequence, children);
        Err(no_sampler())
    }

    /// Take note of tokens of a sequence that were not sampled here.
    fn accept(&mut self, sequence: usize, tokens: &[Token]) -> Result<()> {
        let _ = (sequence, tokens);
        Err(no_sampler())
    }

    /// What the oldest run that sampled and was not asked about yet found, in the order of its [`Batch::sample`].
    /// `rows` has an entry for every sequence; says how many were filled.
    fn sampled(&mut self, rows: &mut [SampledRow]) -> Result<usize> {
        let _ = rows;
        Err(no_sampler())
    }

    /// Take back the last tokens of a sequence that were sampled here or walked over, so many: the next one follows
    /// `last` again.
    fn take_back(&mut self, sequence: usize, tokens: u32, last: Token) -> Result<()> {
        let _ = (sequence, tokens, last);
        Err(no_sampler())
    }

    /// Keep a trie for [`Program::walk`], in the place of the one before. False where it cannot be walked here.
    fn hold_trie(&mut self, nodes: &[WalkNode]) -> Result<bool> {
        let _ = nodes;
        Ok(false)
    }

    /// Whether a sequence's chain and the children that are armed let the device walk on by itself.
    fn walks(&mut self, sequence: usize) -> bool {
        let _ = sequence;
        false
    }

    /// What the last walk found; waits for it.
    fn walked(&mut self, walked: &mut Walked) -> Result<()> {
        let _ = walked;
        Err(no_sampler())
    }

    /// What was asked of the device so far.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// For the owning backend.
    fn as_any(&mut self) -> &mut dyn Any;
}

fn no_sampler() -> Error {
    Error::Internal("A device without a sampler was asked to sample".into())
}

/// A compiled run of nodes.
pub trait Program: Send + Sync {
    /// Run one batch. `out_rows` is the number of output rows, `batch.outputs.len()` where the batch has tokens.
    ///
    /// `cancel` is looked at several times a layer; a run that saw it returns [`Error::Cancelled`], with the cells of
    /// the batch in an undefined state.
    fn run(&self, state: &mut dyn State, batch: &Batch<'_>, out_rows: usize, cancel: &AtomicBool) -> Result<()>;

    /// Walk on through the trie that the state holds, behind a run whose token is not known yet: at most so many
    /// passes, each from a token that was sampled to the next choice. The rows' cells, positions and sequences are the
    /// batch's, in order, as far as the walk goes; all are entered, and none is seen by a row before its own. One walk
    /// at a time.
    fn walk(&self, state: &mut dyn State, batch: &Batch<'_>, walk: &Walk, cancel: &AtomicBool) -> Result<()> {
        let _ = (state, batch, walk, cancel);
        Err(no_sampler())
    }

    /// For the owning backend.
    fn as_any(&self) -> &dyn Any;
}

/// Cells that a range of positions may use, for callers that size a cache: a whole number of every backend's blocks.
pub fn cells_for(context: usize) -> usize {
    context.next_multiple_of(CELL_BLOCK)
}

/// Cells of a cache are a multiple of this on every backend.
pub const CELL_BLOCK: usize = 64;

/// Every device this machine has and how its memory stands, best first; those with score 0 cannot be used, for the
/// reason given.
pub fn devices() -> Result<Vec<(DeviceInfo, Memory)>> {
    let cpu = cpu::CpuBackend::new();
    let mut all = vec![(cpu.device(), cpu.memory()?)];
    #[cfg(feature = "gpu")]
    all.extend(gpu::devices());
    all.sort_by_key(|(device, _)| std::cmp::Reverse(device.score));
    Ok(all)
}

/// The backends for a request: the CPU first, then the GPU where layers go to one.
///
/// `gpu_layers` other than 0 asks for a GPU; `device` (or else `ELIZA_BACKEND`) narrows the choice by name. Asking for
/// a GPU where none works is an error with the reason, never a silent run on the CPU.
pub fn choose(gpu_layers: i32, device: Option<&str>) -> Result<Vec<Arc<dyn Backend>>> {
    let named = device.map(str::to_string).or_else(|| std::env::var("ELIZA_BACKEND").ok()).filter(|s| !s.is_empty());
    let cpu: Arc<dyn Backend> = Arc::new(cpu::CpuBackend::new());
    if gpu_layers == 0 {
        let wanted = named.as_deref().unwrap_or_default().to_lowercase();
        let name = cpu.device().name;
        if !name.to_lowercase().contains(&wanted) {
            let wanted = shown(&wanted);
            let problem = format!("Device `{wanted}` for 0 GPU layers: without GPU layers only {name} is used");
            return Err(Error::Unsupported(problem));
        }
        return Ok(vec![cpu]);
    }
    let gpu = gpu(gpu_layers, named.as_deref().filter(|name| !name.eq_ignore_ascii_case("gpu")))?;
    Ok(vec![cpu, gpu])
}

#[cfg(feature = "gpu")]
fn gpu(_: i32, named: Option<&str>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(gpu::GpuBackend::open(named)?))
}

#[cfg(not(feature = "gpu"))]
fn gpu(layers: i32, _: Option<&str>) -> Result<Arc<dyn Backend>> {
    let what = if layers < 0 { "All layers".to_string() } else { format!("{layers} layers") };
    Err(Error::Unsupported(format!("{what} on a GPU: this build has no GPU backend (0 runs on the CPU)")))
}
