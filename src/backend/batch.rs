//! What a backend is given to work on: the shape of a KV cache, the nodes of a program, the rows of a batch.

use crate::graph::{Graph, NodeId, Readers, Rows, WeightSpec};
use crate::quant::TensorType;
use crate::{Error, Result, Token};

/// The most rows (tokens) of one forward pass; longer prompts run in chunks.
pub const MAX_ROWS: usize = 512;

/// The most rows of a pass of an encoder, which takes all of a text at once.
pub const MAX_TEXT_ROWS: usize = 8192;

/// The most sequences that share a cache: a set of them has 16 bits.
pub const MAX_SEQUENCES: usize = 16;

/// The number of cells of a cache for `context` tokens of so many sequences, each of which may leave a block of its
/// list in part empty, as may the two ends of a removed range; a multiple of [`CELL_BLOCK`].
pub fn cells_for(context: usize, sequences: usize) -> usize {
    (context.next_multiple_of(LIST_BLOCK) + (sequences + 1) * LIST_BLOCK).next_multiple_of(CELL_BLOCK)
}

/// The number of cells of a cache is a multiple of this on every backend.
pub const CELL_BLOCK: usize = 64;

/// Cells of a block of [`TableCells::lists`].
pub const LIST_BLOCK: usize = 16;

/// Cells of a sequence that a backend may add up together, from a multiple of this on; sums of such ranges are joined
/// in their order.
pub const SUM_RANGE: usize = 128;

/// In place of a block of [`TableCells::lists`]: a place without cells.
pub const NO_BLOCK: u32 = u32::MAX;

/// The cells that a layer's keys and values are in: all layers with the same table have a token's key and value in the
/// same cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// A cell for every token.
    All,
    /// Cells for the tokens of a sliding window, which are used again; in an encoder-decoder those of the prompt.
    Window,
}

/// Every table, in the order of their numbers.
pub const TABLES: [Table; 2] = [Table::All, Table::Window];

/// In place of a cell, for [`Op::ShiftKeys`](crate::graph::Op::ShiftKeys) and
/// [`Op::CopyCells`](crate::graph::Op::CopyCells): nothing is done in this table.
pub const NO_CELL: u32 = u32::MAX;

/// Shape of an engine's KV cache.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheSpec {
    /// Element types of keys and values.
    pub types: KvTypes,
    /// Number of cells of each table; a multiple of [`CELL_BLOCK`] on an engine, of 16 at least.
    pub cells: [usize; TABLES.len()],
    /// Number of sequences that share the cells, 1 to 16; each can have a sampler chain.
    pub sequences: usize,
    /// The most tokens of one sequence.
    pub context: usize,
    /// One entry per layer of the model; `None` where the layer's cache is on another device, another layer's, or there
    /// is none.
    pub layers: Vec<Option<LayerCache>>,
    /// Numbers of each state that layers keep of a sequence besides keys and values; `None` where it is on another
    /// device.
    pub states: Vec<Option<usize>>,
    /// Number of state cells: each holds all states of one sequence after one of its tokens.
    pub state_cells: usize,
}

/// Element types of a KV cache: F16, F32 or Q8_0 each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvTypes {
    /// Type of the keys.
    pub k: TensorType,
    /// Type of the values.
    pub v: TensorType,
}

impl KvTypes {
    /// The type of the keys where `key` is set, else of the values.
    pub fn of(&self, key: bool) -> TensorType {
        if key { self.k } else { self.v }
    }

    /// [`Error::Unsupported`] where a device has no cache of one of these types.
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
    /// Number of key and value heads.
    pub heads: usize,
    /// Values of a key head.
    pub head_dim_k: usize,
    /// Values of a value head.
    pub head_dim_v: usize,
    /// The cells that they are in.
    pub table: Table,
}

impl LayerCache {
    /// A layer with this many key and value heads of these widths, for every token.
    pub fn new(heads: usize, head_dim_k: usize, head_dim_v: usize) -> LayerCache {
        LayerCache { heads, head_dim_k, head_dim_v, table: Table::All }
    }
}

impl CacheSpec {
    /// The table of a layer's cache; that of all tokens for a layer without one.
    pub fn table_of(&self, layer: usize) -> Table {
        self.layers.get(layer).copied().flatten().map_or(Table::All, |layer| layer.table)
    }

    /// The number of cells of a layer's cache.
    pub fn cells_of(&self, layer: usize) -> usize {
        self.cells[self.table_of(layer) as usize]
    }
}

/// The most tokens in [`Batch::listed`].
pub const MAX_LISTED: usize = 512;

/// Neighbouring rows of one sequence, and the cells that hold its states before and after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateRows {
    /// The first row.
    pub first: u32,
    /// Number of rows.
    pub rows: u32,
    /// The state cell that the first row goes on from; [`NO_STATE`] at the beginning of a sequence. It may be `to` of
    /// the rows before these: all are rows of one sequence then, with a state in the middle.
    pub from: u32,
    /// The state cell that is written, not `from`; [`NO_STATE`] where nothing is kept.
    pub to: u32,
}

/// No state cell, or no row.
pub const NO_STATE: u32 = u32::MAX;

/// The cells of a table, and those that a batch's rows are in.
#[derive(Debug, Clone, Copy, Default)]
pub struct TableCells<'a> {
    /// The cell that each row's key and value are written to.
    pub rows: &'a [u32],
    /// Position of every cell of the table.
    pub positions: &'a [i32],
    /// The set of sequences of every cell, a bit each, or the words of a tree's cells ([`super::tree_cell`]); 0 marks a
    /// free cell. As many as `positions`. The batch's own cells are already entered.
    pub sequences: &'a [u32],
    /// For each sequence its cells in the order in which attention adds them up: blocks of [`LIST_BLOCK`] cells by
    /// their numbers, or [`NO_BLOCK`]. A backend that keeps to the order computes the same bits for a row wherever its
    /// cells are. Empty where cells are read in the order of their numbers, as by rows of no or several sequences.
    pub lists: &'a [Vec<u32>],
    /// One past the last cell in use: attention reads the cells below it.
    pub end: usize,
    /// First and one past the last cell whose position or sequences may differ from those of the last batch that ran
    /// without an error.
    pub changed: (usize, usize),
}

impl TableCells<'_> {
    /// Whether the cells that attention may read are among the first `cells`, and have a position and sequences.
    pub fn is_within(&self, cells: usize) -> bool {
        let there = cells.min(self.positions.len()).min(self.sequences.len());
        let mut blocks = self.lists.iter().flatten();
        self.end <= cells
            && blocks.all(|&block| block == NO_BLOCK || (block as usize + 1).saturating_mul(LIST_BLOCK) <= there)
    }
}

/// The inputs of one run: a row per token, at most [`MAX_ROWS`] rows, of an encoder [`MAX_TEXT_ROWS`]. `tokens`,
/// `positions`, `sequences` and the rows of the cells have one entry per row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Batch<'a> {
    /// Token ids, `rows` of them; those of [`sampled_by`] name a token that the device sampled.
    pub tokens: &'a [Token],
    /// Position of each row in its sequence, from 0 on; `rows` of them. For
    /// [`Op::ShiftKeys`](crate::graph::Op::ShiftKeys) the change of the cell's position, for
    /// [`Op::CopyCells`](crate::graph::Op::CopyCells) the number of the source cell.
    pub positions: &'a [i32],
    /// The set of sequences that each row belongs to, a bit each of the lowest 16, or the words of a tree's rows
    /// ([`super::tree_row`]); `rows` of them.
    pub sequences: &'a [u32],
    /// The output rows: indices of rows, ascending. Logits or hidden states are computed for these.
    pub outputs: &'a [u32],
    /// The cells of each table; the rows of [`Table::Window`] are empty where the batch writes none of its layers.
    pub cells: [TableCells<'a>; TABLES.len()],
    /// The states of the batch's sequences, in the order of their rows, which they cover; empty for models without
    /// states.
    pub states: &'a [StateRows],
    /// In a batch of a tree, which has one entry in `states`: for each row the earlier row that it comes after, or
    /// [`NO_STATE`] where it comes after the state; else empty, and a row comes after the one before it.
    pub parents: &'a [u32],
    /// The rows of logits that the device also samples from, by the chains of [`super::DeviceSampler::start`].
    pub sample: &'a [SampleRow],
    /// The logit subset: the only tokens whose logits are wanted, ascending, at most [`MAX_LISTED`]; an empty slice
    /// wants all. The logits have the same bits and the same places as in a whole row; the rest of the row is
    /// undefined.
    pub listed: &'a [Token],
}

impl Batch<'_> {
    /// Whether it names state cells that are there, of so many, for all of its rows in their order, and the parents of
    /// a tree come before their children.
    pub fn has_states(&self, state_cells: usize) -> bool {
        let here = |cell: u32| cell == NO_STATE || (cell as usize) < state_cells;
        let mut next = 0;
        let cover = self.states.iter().all(|of| {
            let first = std::mem::replace(&mut next, of.first.saturating_add(of.rows));
            of.first == first && of.rows > 0 && here(of.from) && here(of.to) && (of.from != of.to || of.to == NO_STATE)
        });
        let rows = self.tokens.len();
        let tree = self.parents.len() == rows && self.states.len() == 1;
        let after = |(row, &parent): (usize, &u32)| parent == NO_STATE || (parent as usize) < row;
        cover
            && next as usize == rows
            && (self.parents.is_empty() || tree && self.parents.iter().enumerate().all(after))
    }
}

/// A sequence, and the row of logits that it samples from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRow {
    /// The sequence.
    pub sequence: u32,
    /// The row of the logits, counted in output rows.
    pub row: u32,
}

/// A token id that means "the token that `sequence` sampled last", which the host may not know yet.
pub const fn sampled_by(sequence: usize) -> Token {
    -1 - sequence as Token
}

/// The nodes that a backend compiles to a program, and where their rows are.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The readers of each of its nodes.
    pub readers: &'a Readers,
    /// The weight table that the graph's nodes name.
    pub specs: &'a [WeightSpec],
    /// Byte offset in the workspace of each node's rows, one per node.
    pub offsets: &'a [usize],
    /// Size of the workspace in bytes.
    pub workspace_bytes: usize,
    /// Largest number of batch rows.
    pub max_rows: usize,
    /// Largest number of output rows.
    pub max_out_rows: usize,
    /// The nodes to run: the first, and one past the last.
    pub nodes: (u32, u32),
    /// The cache that attention nodes read, with the layers of all devices.
    pub cache: &'a CacheSpec,
}

impl Work<'_> {
    /// The most rows of a node with these rows.
    pub fn max_rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Batch => self.max_rows,
            Rows::Output => self.max_out_rows,
        }
    }

    /// Whether the program computes this node itself.
    pub fn computes(&self, id: NodeId) -> bool {
        (self.nodes.0..self.nodes.1).contains(&id.0)
    }
}
