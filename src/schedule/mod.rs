//! From a graph to a plan: which backend computes which nodes, and where every activation is stored.
//!
//! A plan is made once per row bucket at open and reused for every step; it does not depend on the data of a batch.
//! Buffers are shared by liveness: a node's bytes are free again after its last reader ran. Nodes that outlive the run
//! (the kept hidden rows, the logits) have fixed places before the shared area, so that one plan can read what another
//! wrote.
//!
//! A graph over several devices is cut where the device changes; each piece becomes a program of its device, and rows
//! that cross a border are copied by way of the host.
//!
//! Invariants: two nodes whose lives overlap never share bytes, except a node that takes over its residual's buffer
//! in place; every offset is a multiple of [`ALIGN`].

mod alloc;
mod assign;

pub use alloc::{ALIGN, Layout};
pub use assign::{assign, wanted};

pub use crate::backend::MAX_ROWS;

use crate::backend::{Backend, Batch, CacheSpec, Program, State, Walk, Weights, Work};
use crate::graph::{Graph, Node, Readers, Rows, WeightSpec};
use crate::{Error, Result};
use assign::splits;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Row buckets: a batch runs in the plan of the smallest bucket that holds it.
pub const ROW_BUCKETS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// The area for rows that outlive a run, shared by all plans of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The most rows of hidden state that are kept.
    pub hidden_rows: usize,
    /// Values per hidden row.
    pub hidden_width: usize,
    /// The most rows of logits.
    pub logit_rows: usize,
    /// Values per row of logits: the size of the vocabulary.
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
    /// Workspace bytes that the plan needs on each device, kept rows included.
    pub workspace_bytes: Vec<usize>,
    /// Bytes of the largest copy from each device to another.
    largest_copies: Vec<usize>,
    segments: Vec<Segment>,
}

/// Nodes that one device computes in a row.
struct Segment {
    device: usize,
    /// Rows that are copied from other devices first.
    inputs: Vec<Copy>,
    program: Box<dyn Program>,
}

/// The copy of a node's rows to another device.
struct Copy {
    from: usize,
    from_offset: usize,
    to_offset: usize,
    width: usize,
    rows: Rows,
}

/// A backend with the weights that are on it.
#[derive(Clone)]
pub struct Device {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// The weights it uses.
    pub weights: Weights,
}

/// What every plan of an engine shares.
pub struct Shared<'a> {
    /// The devices' backends; the first is the CPU.
    pub backends: &'a [&'a dyn Backend],
    /// Which device should compute a node.
    pub place: &'a dyn Fn(&Node) -> usize,
    /// The weight table.
    pub specs: &'a [WeightSpec],
    /// The area for rows that outlive a run.
    pub kept: Kept,
    /// The KV cache of all layers.
    pub cache: &'a CacheSpec,
}

/// A graph that is scheduled and placed, but not compiled; needs no device.
pub struct Draft<'a> {
    graph: &'a Graph,
    readers: Readers,
    max_rows: usize,
    max_out_rows: usize,
    shared: &'a Shared<'a>,
    layouts: Vec<Layout>,
    pieces: Vec<Piece>,
}

/// Nodes that one device computes in a row, as a draft has them.
struct Piece {
    device: usize,
    nodes: (u32, u32),
    inputs: Vec<Copy>,
}

/// Nodes that one device computes one after the other, as a description of a draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The device, by its place in [`Shared::backends`].
    pub device: usize,
    /// The nodes, by their place in [`Graph::nodes`].
    pub nodes: Range<usize>,
    /// What is copied from other devices first: the device, and the bytes for the largest batch.
    pub copies: Vec<(usize, usize)>,
}

impl<'a> Draft<'a> {
    /// Schedule `graph` for batches of up to `max_rows` rows, of which up to `max_out_rows` are output rows.
    pub fn new(graph: &'a Graph, max_rows: usize, max_out_rows: usize, shared: &'a Shared<'a>) -> Draft<'a> {
        let n_devices = shared.backends.len();
        let assigned = assign(graph, shared.backends, shared.place, shared.specs);
        let bytes = |rows: Rows, width: usize| match rows {
            Rows::Batch => max_rows * width * 4,
            Rows::Output => max_out_rows * width * 4,
        };
        let layouts: Vec<_> =
            (0..n_devices).map(|device| Layout::by_liveness(graph, &assigned, device, &shared.kept, bytes)).collect();
        let mut pieces = Vec::new();
        let mut copied = vec![false; graph.nodes.len() * n_devices];
        for nodes in splits(&assigned) {
            let device = assigned[nodes.start];
            let mut inputs = Vec::new();
            for source in graph.nodes[nodes.clone()].iter().flat_map(|node| &node.src).map(|s| s.0 as usize) {
                let from = assigned[source];
                if from != device && !std::mem::replace(&mut copied[source * n_devices + device], true) {
                    let (from_offset, to_offset) = (layouts[from].offsets[source], layouts[device].offsets[source]);
                    let node = &graph.nodes[source];
                    inputs.push(Copy { from, from_offset, to_offset, width: node.width, rows: node.rows });
                }
            }
            pieces.push(Piece { device, nodes: (nodes.start as u32, nodes.end as u32), inputs });
        }
        Draft { graph, readers: Readers::of(graph), max_rows, max_out_rows, shared, layouts, pieces }
    }

    /// The programs of the plan: the device of each, and its nodes.
    pub fn works(&self) -> impl Iterator<Item = (usize, Work<'_>)> {
        self.pieces.iter().map(|piece| (piece.device, self.work(piece)))
    }

    /// The graph of the draft.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// The largest batch: its rows, and how many of them are output rows.
    pub fn max_rows(&self) -> (usize, usize) {
        (self.max_rows, self.max_out_rows)
    }

    /// Which device computes what.
    pub fn splits(&self) -> impl Iterator<Item = Split> {
        self.pieces.iter().map(|piece| Split {
            device: piece.device,
            nodes: piece.nodes.0 as usize..piece.nodes.1 as usize,
            copies: piece.inputs.iter().map(|copy| (copy.from, self.copied_bytes(copy))).collect(),
        })
    }

    /// Workspace bytes that the plan needs on a device, kept rows included.
    pub fn workspace_bytes(&self, device: usize) -> usize {
        self.layouts[device].bytes
    }

    /// Bytes of the largest copy from a device to another.
    pub fn largest_copy(&self, device: usize) -> usize {
        let copies = self.pieces.iter().flat_map(|piece| &piece.inputs).filter(|copy| copy.from == device);
        copies.map(|copy| self.copied_bytes(copy)).max().unwrap_or(0)
    }

    fn copied_bytes(&self, copy: &Copy) -> usize {
        self.rows(copy.rows) * copy.width * 4
    }

    /// Compile every piece over its device's weights.
    ///
    /// # Errors
    /// Those of [`Backend::compile`].
    pub fn compile(self, devices: &[Device]) -> Result<Plan> {
        let program = |piece: &Piece| {
            let Device { backend, weights } = &devices[piece.device];
            backend.compile(&self.work(piece), weights)
        };
        let programs = self.pieces.iter().map(program).collect::<Result<Vec<_>>>()?;
        let segment = |(piece, program): (Piece, _)| Segment { device: piece.device, inputs: piece.inputs, program };
        Ok(Plan {
            max_rows: self.max_rows,
            max_out_rows: self.max_out_rows,
            largest_copies: (0..devices.len()).map(|device| self.largest_copy(device)).collect(),
            workspace_bytes: self.layouts.iter().map(|layout| layout.bytes).collect(),
            segments: self.pieces.into_iter().zip(programs).map(segment).collect(),
        })
    }

    fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Batch => self.max_rows,
            Rows::Output => self.max_out_rows,
        }
    }

    fn work(&self, piece: &Piece) -> Work<'_> {
        Work {
            graph: self.graph,
            readers: &self.readers,
            specs: self.shared.specs,
            offsets: &self.layouts[piece.device].offsets,
            workspace_bytes: self.layouts[piece.device].bytes,
            max_rows: self.max_rows,
            max_out_rows: self.max_out_rows,
            nodes: piece.nodes,
            cache: self.shared.cache,
        }
    }
}

impl Plan {
    /// Make the states, one per device, large enough for this plan, so that running it allocates nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], naming what the memory is for.
    pub fn reserve(&self, states: &mut [Box<dyn State>]) -> Result<()> {
        for segment in &self.segments {
            segment.program.reserve(&mut *states[segment.device], self.workspace_bytes[segment.device])?;
        }
        for (state, bytes) in states.iter_mut().zip(&self.largest_copies) {
            state.reserve_reads(*bytes)?;
        }
        Ok(())
    }

    /// Run one batch; see [`Program::run`].
    ///
    /// # Errors
    /// As [`Program::run`].
    pub fn run(
        &self,
        states: &mut [Box<dyn State>],
        batch: &Batch<'_>,
        out_rows: usize,
        cancel: &AtomicBool,
    ) -> Result<()> {
        if batch.tokens.len() > self.max_rows || out_rows > self.max_out_rows {
            let (rows, max) = (batch.tokens.len(), self.max_rows);
            return Err(Error::Internal(format!("A batch of {rows} rows in a plan for {max}")));
        }
        for segment in &self.segments {
            for copy in &segment.inputs {
                let rows = match copy.rows {
                    Rows::Batch => batch.tokens.len(),
                    Rows::Output => out_rows,
                };
                let Ok([from, to]) = states.get_disjoint_mut([copy.from, segment.device]) else {
                    return Err(Error::Internal("A plan for other devices".into()));
                };
                to.put(copy.to_offset, from.rows(copy.from_offset, rows * copy.width)?)?;
            }
            segment.program.run(&mut *states[segment.device], batch, out_rows, cancel)?;
        }
        Ok(())
    }

    /// As [`Plan::run`]; where one device computes all nodes, see [`Program::run_until`].
    ///
    /// # Errors
    /// As [`Program::run`].
    pub fn run_until(
        &self,
        states: &mut [Box<dyn State>],
        (batch, out_rows): (&Batch<'_>, usize),
        from: usize,
        until: Instant,
        cancel: &AtomicBool,
    ) -> Result<Option<usize>> {
        match &self.segments[..] {
            [segment] if batch.tokens.len() <= self.max_rows && out_rows <= self.max_out_rows => {
                segment.program.run_until(&mut *states[segment.device], (batch, out_rows), from, until, cancel)
            }
            _ => self.run(states, batch, out_rows, cancel).map(|()| None),
        }
    }

    /// Whether one device computes all nodes.
    pub fn is_whole(&self) -> bool {
        self.segments.len() == 1
    }

    /// Walk through a trie after a run of this or another plan; see [`Program::walk`].
    ///
    /// # Errors
    /// As [`Program::walk`].
    pub fn walk(
        &self,
        states: &mut [Box<dyn State>],
        batch: &Batch<'_>,
        walk: &Walk,
        cancel: &AtomicBool,
    ) -> Result<()> {
        match &self.segments[..] {
            [segment] => segment.program.walk(&mut *states[segment.device], batch, walk, cancel),
            _ => Err(Error::Internal("A walk over several devices".into())),
        }
    }
}
