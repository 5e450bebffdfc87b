//! Memory that a program needs, which is known before the weights are loaded.

use crate::backend::cpu::kernels::{activations, attention};
use crate::backend::cpu::kv::KvLayout;
use crate::graph::AttentionSpec;

/// A scratch area of rows that products read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// Quantised rows from norms and quantise steps.
    Main,
    /// Quantised rows from gated products.
    Gated,
    /// Quantised rows, sorted by the expert that they go to.
    Experts,
    /// The same as `f32`.
    ExpertsF32,
}

/// How many areas there are.
pub(super) const AREAS: usize = 4;

impl Area {
    /// Bytes of a row of so many values.
    pub fn row_bytes(self, width: usize) -> usize {
        match self {
            Area::Main | Area::Gated | Area::Experts => activations::row_bytes(width),
            Area::ExpertsF32 => width * 4,
        }
    }
}

/// Memory that a program needs besides workspace and cache.
pub(super) struct Demand {
    /// Rows of the largest batch, and how many of them are output rows.
    pub max_rows: (usize, usize),
    /// Bytes of each area.
    pub area_bytes: [usize; AREAS],
    /// Bytes of the rotary tables.
    pub rope_bytes: usize,
    /// Numbers of the list of rows by expert, see [`super::state::RunMemory::routing`].
    pub routing: usize,
    /// The attentions whose caches the program works on.
    pub attentions: Vec<AttentionSpec>,
    /// The states that the program works on, and their numbers.
    pub states: Vec<(usize, usize)>,
    /// Bytes of scratch memory that a step needs for each thread, besides attentions.
    step_bytes: usize,
}

impl Demand {
    /// Of a program without steps.
    pub fn new(max_rows: (usize, usize), rope_bytes: usize) -> Demand {
        let area_bytes = [0; AREAS];
        let (attentions, states) = (Vec::new(), Vec::new());
        Demand { max_rows, area_bytes, rope_bytes, routing: 0, attentions, states, step_bytes: 0 }
    }

    /// Makes an area large enough for so many rows of `width` values.
    pub fn area(&mut self, area: Area, rows: usize, width: usize) {
        let bytes = (area.row_bytes(width) * rows).next_multiple_of(64);
        let have = &mut self.area_bytes[area as usize];
        *have = bytes.max(*have);
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
