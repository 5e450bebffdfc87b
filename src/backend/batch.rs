//! What a backend is given to work on: the shape of a KV cache, the nodes of a program, the rows of a batch.

use crate::graph::{Graph, NodeId, Readers, WeightSpec};
use crate::quant::TensorType;
use crate::{Error, Result, Token};

/// The largest batch of one pass; longer prompts run in chunks.
pub const MAX_ROWS: usize = 512;

/// Cells that a range of positions may use, for callers that size a cache: a whole number of every backend's blocks.
pub fn cells_for(context: usize) -> usize {
    context.next_multiple_of(CELL_BLOCK)
}

/// Cells of a cache are a multiple of this on every backend.
pub const CELL_BLOCK: usize = 64;

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
    pub(super) fn check(&self, place: &str) -> Result<()> {
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
    /// Sequences each row belongs to, one bit each of the lowest 16, or the words of a tree's rows
    /// ([`super::tree_row`]).
    pub sequences: &'a [u32],
    /// Cell that each row's key and value go to.
    pub cells: &'a [u32],
    /// Rows that are wanted, ascending.
    pub outputs: &'a [u32],
    /// Position of every cell.
    pub cell_positions: &'a [i32],
    /// Sequences of every cell, one bit each, or the words of a tree's cells ([`super::tree_cell`]); 0 marks a free
    /// cell. The batch's own cells are already entered.
    pub cell_sequences: &'a [u32],
    /// One past the last cell in use.
    pub n_kv: usize,
    /// The cells whose position or sequences may differ from those of the last batch that ran without an error.
    pub changed_cells: (usize, usize),
    /// Rows of logits to sample from as well, by the chains of [`super::DeviceSampler::start`].
    pub sample: &'a [SampleRow],
    /// The only tokens whose logits are wanted, ascending, at most [`MAX_LISTED`]; none wants all. The logits are the
    /// same bits as in a whole row, and stand where they stand there; what stands elsewhere in the row is undefined.
    pub listed: &'a [Token],
}

/// Which sequence samples from which row of the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRow {
    /// The sequence.
    pub sequence: u32,
    /// The row.
    pub row: u32,
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
