//! Buffers by liveness: a linear scan over the nodes with a free list.
//!
//! The list holds the free ranges below the high-water mark, sorted and merged. A node takes the smallest range that
//! fits, else grows the mark. Costs are quadratic in the number of live buffers (a handful), not in nodes.

use super::Kept;
use crate::graph::{Graph, Op, Output, Rows};

/// Alignment of every buffer: a cache line, and the widest vector register.
pub const ALIGN: usize = 64;

/// The place of each node's rows in the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Byte offset per node.
    pub offsets: Vec<usize>,
    /// Size of the workspace in bytes.
    pub bytes: usize,
}

impl Layout {
    /// Place every node of a device; `bytes` gives a node's size from its rows and width. A device has the nodes that
    /// it computes and copies of those that it reads; `devices` has the device of every node. The offsets of other
    /// nodes are undefined.
    pub fn by_liveness(
        graph: &Graph,
        devices: &[usize],
        device: usize,
        kept: &Kept,
        bytes: impl Fn(Rows, usize) -> usize,
    ) -> Layout {
        let last_use = last_uses(graph, devices, device);
        let mut free = FreeList { ranges: Vec::new(), end: kept.end() };
        let mut offsets = vec![0; graph.nodes.len()];
        // The nodes that own bytes of the free list; a node that took over its source's buffer owns it instead of the
        // source.
        let mut owned: Vec<Option<(usize, usize)>> = vec![None; graph.nodes.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            let (computed, size) = (devices[i] == device, bytes(node.rows, node.width).next_multiple_of(ALIGN));
            let residual = node.in_place_source().map(|s| s.0 as usize);
            let in_place =
                residual.filter(|&s| computed && last_use[s] == i && owned[s].is_some() && node.output.is_none());
            if let Some(offset) = fixed_place(&node.op, node.output, kept) {
                offsets[i] = offset;
            } else if let Some(s) = in_place {
                owned[i] = owned[s].take();
                offsets[i] = offsets[s];
            } else if computed || last_use[i] > i {
                offsets[i] = free.take(size);
                owned[i] = Some((offsets[i], size));
            }
            for s in node.src.iter().map(|s| s.0 as usize).chain([i]) {
                if last_use[s] <= i
                    && let Some((at, len)) = owned[s].take()
                {
                    free.give(at, len);
                }
            }
        }
        Layout { offsets, bytes: free.end }
    }
}

fn fixed_place(op: &Op, output: Option<Output>, kept: &Kept) -> Option<usize> {
    match (op, output) {
        (Op::Hidden, _) | (_, Some(Output::Hidden)) => Some(kept.hidden_offset()),
        (_, Some(Output::Logits)) => Some(kept.logits_offset()),
        _ => None,
    }
}

/// For each node the last node that reads it on this device (itself where none does). A node that is computed here is
/// copied from here directly before other devices read it; a copy is read by the nodes here.
fn last_uses(graph: &Graph, devices: &[usize], device: usize) -> Vec<usize> {
    let mut last: Vec<usize> = (0..graph.nodes.len()).collect();
    for (i, node) in graph.nodes.iter().enumerate() {
        for s in node.src.iter().map(|s| s.0 as usize) {
            if devices[i] == device || devices[s] == device {
                last[s] = i;
            }
        }
    }
    last
}

struct FreeList {
    ranges: Vec<(usize, usize)>,
    end: usize,
}

impl FreeList {
    fn take(&mut self, size: usize) -> usize {
        let best = (0..self.ranges.len()).filter(|&i| self.ranges[i].1 >= size).min_by_key(|&i| self.ranges[i].1);
        if let Some(i) = best {
            let (at, len) = self.ranges[i];
            if len == size {
                self.ranges.remove(i);
            } else {
                self.ranges[i] = (at + size, len - size);
            }
            return at;
        }
        // Grow from the last free range when it touches the end.
        if let Some(&(at, len)) = self.ranges.last()
            && at + len == self.end
        {
            self.ranges.pop();
            self.end = at + size;
            return at;
        }
        let at = self.end;
        self.end += size;
        at
    }

    fn give(&mut self, at: usize, len: usize) {
        let i = self.ranges.partition_point(|r| r.0 < at);
        self.ranges.insert(i, (at, len));
        if i + 1 < self.ranges.len() && at + len == self.ranges[i + 1].0 {
            self.ranges[i].1 += self.ranges.remove(i + 1).1;
        }
        if i > 0 && self.ranges[i - 1].0 + self.ranges[i - 1].1 == at {
            self.ranges[i - 1].1 += self.ranges.remove(i).1;
        }
    }
}
