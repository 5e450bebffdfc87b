//! Memory that a program needs, which is known before the weights are loaded.

use crate::backend::cpu::kernels::attention;
use crate::backend::cpu::kv::KvLayout;
use crate::graph::AttentionSpec;

/// A scratch area of quantised rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// From norms and quantise steps.
    Main,
    /// From gated products.
    Gated,
}

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
    /// Bytes of scratch memory that a step needs for each thread, besides attentions.
    step_bytes: usize,
}

impl Demand {
    /// Of a program without steps.
    pub fn new(max_rows: usize, rope_bytes: usize) -> Demand {
        Demand { max_rows, activation_bytes: 0, rope_bytes, attentions: Vec::new(), step_bytes: 0 }
    }

    /// Adds scratch memory that a step needs for each thread.
    pub fn thread(&mut self, bytes: usize) {
        self.step_bytes = self.step_bytes.max(bytes);
    }

    /// Bytes of scratch memory that each thread needs, a multiple of the page size; `layout` gives a layer's cache.
    pub fn thread_bytes<'a>(&self, layout: impl Fn(usize) -> &'a KvLayout) -> usize {
        let attention = self.attentions.iter().map(|s| attention::scratch_bytes(layout(s.layer), s.n_head)).max();
        self.step_bytes.max(attention.unwrap_or(0)).next_multiple_of(4096)
    }
}
