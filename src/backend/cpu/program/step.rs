//! The steps of a program, as data. A step is what all threads do between two barriers.

use crate::backend::MAX_ROWS;
use crate::graph::{Activation, AttentionSpec, Rows, WeightId};

/// Floats of a thread's scratch for one of the two products of a gated step.
pub(super) const GATED_FLOATS: usize = 64 * MAX_ROWS;

/// A scratch area of quantised rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// From norms and quantise steps.
    Main,
    /// From gated products.
    Gated,
}

/// Matrix, bias, first column of the output.
pub(super) type MatMulPart = (WeightId, Option<WeightId>, usize);

pub(super) enum Step {
    /// Cosines and sines of the batch's positions, where no look-up of embeddings makes them on the side.
    Rope,
    /// Rows of a table; cosines and sines of the batch's positions as well.
    Embed {
        table: WeightId,
        scale: f32,
        dst: usize,
        width: usize,
    },
    SelectRows {
        src: usize,
        dst: usize,
        width: usize,
    },
    Norm {
        weight: WeightId,
        eps: f32,
        src: usize,
        residual: Option<usize>,
        dst: usize,
        width: usize,
        rows: Rows,
        /// Leave the rows quantised in [`Area::Main`] as well.
        q8: bool,
    },
    Quantise {
        src: usize,
        width: usize,
        rows: Rows,
    },
    MatMul {
        parts: Vec<MatMulPart>,
        area: Area,
        src: usize,
        x_width: usize,
        residual: Option<usize>,
        dst: usize,
        width: usize,
        rows: Rows,
        /// The output is logits, of which a run may want only those that are listed.
        logits: bool,
    },
    Gated {
        gate: WeightId,
        up: WeightId,
        activation: Activation,
        area: Area,
        src: usize,
        x_width: usize,
        dst: usize,
        width: usize,
        rows: Rows,
        /// Leave the rows as `f32`.
        f32: bool,
        /// Leave them quantised in [`Area::Gated`].
        q8: bool,
    },
    /// Norms and rotates q and k, writes k and v to the cache.
    Heads {
        spec: Box<AttentionSpec>,
        qkv: usize,
        qkv_width: usize,
    },
    Attend {
        spec: Box<AttentionSpec>,
        qkv: usize,
        qkv_width: usize,
        dst: usize,
        width: usize,
    },
    /// Of logits.
    SoftCap {
        cap: f32,
        src: usize,
        dst: usize,
        width: usize,
        rows: Rows,
    },
    ShiftKeys(Box<AttentionSpec>),
    CopyCells(Box<AttentionSpec>),
}

impl Step {
    /// The attention whose cache the step works on.
    pub fn cache(&self) -> Option<&AttentionSpec> {
        match self {
            Step::Heads { spec, .. } | Step::Attend { spec, .. } => Some(spec),
            Step::ShiftKeys(spec) | Step::CopyCells(spec) => Some(spec),
            _ => None,
        }
    }
}
