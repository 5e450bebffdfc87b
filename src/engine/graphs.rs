//! Which device would compute which nodes of a model's graphs, and what is copied between devices; from the header of
//! the file.
//!
//! Every graph is scheduled once for each size of batch ([`crate::schedule::ROW_BUCKETS`]); the cuts do not depend on
//! the size, the number of copied bytes does.

use super::memory::{batch_of, cache_of, check_answers};
use super::options::EngineOptions;
use super::plans::{Plans, head_rows};
use crate::Result;
use crate::backend::Backend;
use crate::gguf::File;
use crate::graph::{Node, Part};
use crate::model::Outline;
use crate::schedule::{Draft, ROW_BUCKETS, Split};
use std::path::Path;

/// A graph of a model as an engine schedules it.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphPlan {
    /// What it computes: `encode` what a decoder's layers have of a prompt, `body` the layers for a batch of tokens,
    /// `head` logits of hidden rows, `decode` both for one token of each of several sequences, `walk` both for a run of
    /// tokens with the logits of the last; `shift` rotates cached keys to other positions (K-shift), `copy` copies
    /// cells.
    pub name: &'static str,
    /// Its nodes in the order in which they are computed.
    pub nodes: Vec<GraphNode>,
    /// Its cuts: the nodes that one device computes in a row. Bytes are for the largest bucket.
    pub splits: Vec<Split>,
    /// The batch sizes it is planned for, ascending.
    pub buckets: Vec<Bucket>,
}

/// A node of a [`GraphPlan`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphNode {
    /// What it computes, see [`crate::graph::Op::name`].
    pub op: &'static str,
    /// Where in the model.
    pub part: Part,
    /// Values in a row.
    pub width: usize,
}

/// A size of batch that a graph is planned for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The most batch rows.
    pub rows: usize,
    /// The most output rows.
    pub out_rows: usize,
    /// Bytes that are copied between devices in a run with the most rows.
    pub copied_bytes: usize,
    /// Bytes of the workspace on each device.
    pub workspace_bytes: Vec<usize>,
}

/// A graph for one size of batch.
struct Drafted {
    nodes: Vec<GraphNode>,
    splits: Vec<Split>,
    bucket: Bucket,
}

impl Drafted {
    fn new(draft: &Draft<'_>, n_devices: usize) -> Drafted {
        let node = |node: &Node| GraphNode { op: node.op.name(), part: node.part, width: node.width };
        let splits: Vec<Split> = draft.splits().collect();
        let (rows, out_rows) = draft.max_rows();
        let bucket = Bucket {
            rows,
            out_rows,
            copied_bytes: splits.iter().flat_map(|split| &split.copies).map(|(_, bytes)| bytes).sum(),
            workspace_bytes: (0..n_devices).map(|device| draft.workspace_bytes(device)).collect(),
        };
        Drafted { nodes: draft.graph().nodes.iter().map(node).collect(), splits, bucket }
    }
}

/// The graphs that an engine over the model at `path` would run with these options, and the names of the devices that
/// [`Split::device`] counts.
///
/// # Errors
/// As [`plan_memory`](super::plan_memory).
pub fn plan_graphs(path: &Path, options: &EngineOptions) -> Result<(Vec<String>, Vec<GraphPlan>)> {
    let file = File::open(path)?;
    let placement = options.placement();
    let backends = placement.backends()?;
    let outline = Outline::read(&file, &backends, &placement).map_err(|error| error.in_file(path))?;
    check_answers(&outline)?;
    let (cache, _) = cache_of(&outline, options)?;
    let plain: Vec<&dyn Backend> = backends.iter().map(|backend| &**backend).collect();
    let drafted = |draft: Draft<'_>| Ok(Drafted::new(&draft, plain.len()));
    let rows = (batch_of(&outline, options)?, head_rows(options.streams()?));
    let mut plans = Plans::make(&outline, &plain, cache, rows, drafted)?;
    let continues = outline.pooled().is_none();
    for rows in ROW_BUCKETS.into_iter().filter(|&n| continues && n <= rows.1) {
        if !plans.has_decode(rows) {
            plans.make_decode(&outline, &plain, rows, drafted)?;
        }
    }
    let plan = |(name, sizes): (&'static str, Vec<Drafted>)| {
        let buckets = sizes.iter().map(|size| size.bucket.clone()).collect();
        let largest = sizes.into_iter().next_back()?;
        Some(GraphPlan { name, nodes: largest.nodes, splits: largest.splits, buckets })
    };
    let devices = backends.iter().map(|backend| backend.device().name).collect();
    Ok((devices, plans.by_graph().into_iter().filter_map(plan).collect()))
}
