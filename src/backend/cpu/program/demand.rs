//! Memory that a program needs, which is known before the weights are loaded.

use super::lower::{Lowering, nodes_of};
use super::step::GATED_FLOATS;
use crate::Result;
use crate::backend::Work;
use crate::backend::cpu::kernels::attention;
use crate::backend::cpu::kv::KvLayout;
use crate::graph::AttentionSpec;

/// Memory that a program needs besides workspace and cache.
pub(super) struct Demand {
    /// Rows of the largest batch.
    pub max_rows: usize,
    /// Bytes of one area of quantised rows.
    pub activation_bytes: usize,
    /// Bytes of the rotary tables.
    pub rope_bytes: usize,
    /// The attentions whose caches the program works on.
    pub attentions: Vec<AttentionSpec>,
}

impl Demand {
    /// What the program of `work` will need.
    pub fn of(work: &Work<'_>) -> Result<Demand> {
        Lowering::of(work).map(|lowering| Demand::of_lowered(work, &lowering))
    }

    /// The same, where the work was lowered already.
    pub fn of_lowered(work: &Work<'_>, lowering: &Lowering<'_>) -> Demand {
        let rows = work.max_rows.max(work.max_out_rows);
        Demand {
            max_rows: work.max_rows,
            activation_bytes: (lowering.activation_row_bytes * rows).next_multiple_of(64),
            rope_bytes: work.graph.ropes.iter().map(|rope| rope.n_rot * work.max_rows * 4).sum(),
            attentions: nodes_of(work).iter().filter_map(|node| node.attention().cloned()).collect(),
        }
    }

    /// Bytes of scratch memory that each thread needs, a multiple of the page size; `layout` gives a layer's cache.
    pub fn thread_bytes<'a>(&self, layout: impl Fn(usize) -> &'a KvLayout) -> usize {
        let attention = self.attentions.iter().map(|s| attention::scratch_bytes(layout(s.layer), s.n_head)).max();
        (3 * GATED_FLOATS * 4).max(attention.unwrap_or(0)).next_multiple_of(4096)
    }
}
