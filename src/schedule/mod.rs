//! From a graph to a plan: which backend runs which nodes, and where every activation lives.
//!
//! A plan is made once per shape class at open and reused for every step; making it never depends on the data of a
//! batch. Buffers are shared by liveness: a node's bytes are free again after its last reader ran. Nodes that outlive
//! the run (the kept hidden rows, the logits) stand at fixed places below the shared area, so that one plan can read
//! what another left.
//!
//! Invariants: two nodes whose lives overlap never share bytes, except a node that takes over its residual's buffer
//! in place; every offset is a multiple of [`ALIGN`].

mod alloc;

pub use alloc::{ALIGN, Layout};

pub use crate::backend::MAX_ROWS;

use crate::backend::{Backend, Batch, Program, State, Weights, Work};
use crate::graph::{Graph, Rows, WeightSpec};
use crate::{Error, Result};
use std::sync::atomic::AtomicBool;

/// Row buckets: a batch runs in the plan of the smallest bucket that holds it.
pub const ROW_BUCKETS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Bytes reserved for what outlives a run, shared by all plans of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Rows of hidden state that can be kept.
    pub hidden_rows: usize,
    /// Values per hidden row.
    pub hidden_width: usize,
    /// Rows of logits.
    pub logit_rows: usize,
    /// Values per row of logits.
    pub logit_width: usize,
}

impl Kept {
    /// Byte offset of the hidden rows.
    pub fn hidden_offset(&self) -> usize {
        0
    }

    /// Byte offset of the logits.
    pub fn logits_offset(&self) -> usize {
        (self.hidden_rows * self.hidden_width * 4).next_multiple_of(ALIGN)
    }

    /// Where the shared area begins.
    pub fn end(&self) -> usize {
        self.logits_offset() + (self.logit_rows * self.logit_width * 4).next_multiple_of(ALIGN)
    }
}

/// A scheduled and compiled graph.
pub struct Plan {
    /// Largest number of batch rows.
    pub max_rows: usize,
    /// Largest number of output rows.
    pub max_out_rows: usize,
    /// Workspace bytes that the plan needs, kept rows included.
    pub workspace_bytes: usize,
    program: Box<dyn Program>,
}

/// What every plan of an engine shares.
pub struct Shared<'a> {
    /// The backend that holds the weights. (Placement over several backends comes with the GPU.)
    pub backend: &'a dyn Backend,
    /// The weights.
    pub weights: &'a Weights,
    /// The weight table.
    pub specs: &'a [WeightSpec],
    /// What outlives a run.
    pub kept: Kept,
}

impl Plan {
    /// Schedule `graph` for batches of up to `max_rows` rows, of which up to `max_out_rows` are output rows.
    pub fn new(graph: &Graph, max_rows: usize, max_out_rows: usize, shared: &Shared<'_>) -> Result<Plan> {
        let bytes = |rows: Rows, width: usize| match rows {
            Rows::Batch => max_rows * width * 4,
            Rows::Output => max_out_rows * width * 4,
        };
        let layout = Layout::by_liveness(graph, &shared.kept, bytes);
        let nodes = (0, graph.nodes.len() as u32);
        let work = Work { graph, specs: shared.specs, offsets: &layout.offsets, max_rows, max_out_rows, nodes };
        let program = shared.backend.compile(&work, shared.weights)?;
        Ok(Plan { max_rows, max_out_rows, workspace_bytes: layout.bytes, program })
    }

    /// Make `state` large enough for this plan, so that running it allocates nothing.
    pub fn reserve(&self, state: &mut dyn State) -> Result<()> {
        state.reserve(&*self.program, self.workspace_bytes)
    }

    /// Run one batch; see [`Program::run`].
    pub fn run(&self, state: &mut dyn State, batch: &Batch<'_>, out_rows: usize, cancel: &AtomicBool) -> Result<()> {
        if batch.tokens.len() > self.max_rows || out_rows > self.max_out_rows {
            let (rows, max) = (batch.tokens.len(), self.max_rows);
            return Err(Error::Internal(format!("A batch of {rows} rows in a plan for {max}")));
        }
        self.program.run(state, batch, out_rows, cancel)
    }
}

/// The smallest bucket that holds `rows`.
pub fn bucket(rows: usize) -> usize {
    ROW_BUCKETS.into_iter().find(|&b| b >= rows).unwrap_or(MAX_ROWS)
}
