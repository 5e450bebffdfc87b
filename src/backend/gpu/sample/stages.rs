//! The dispatches of a step, in their order, and which rows need them.

use super::layout::*;
use crate::Result;
use crate::backend::gpu::kernel::{Binding, Gpu, Kernel, compose};
use std::sync::Arc;

const BINDINGS: [Binding; 8] = [
    Binding::Write,
    Binding::Uniform,
    Binding::Read,
    Binding::Read,
    Binding::Write,
    Binding::Write,
    Binding::Write,
    Binding::Write,
];

/// One dispatch of a step.
pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    /// Whether all workgroups of a row take part, or one.
    pub(super) shared: bool,
    /// Whether a row that is sampled in this way needs the dispatch.
    pub(super) needed: fn(&Way) -> bool,
}

/// The way in which a sequence is sampled now.
pub(super) struct Way {
    pub(super) path: u32,
    /// Whether logits of the row change first.
    pub(super) adjusts: bool,
    /// Whether every row fits a list.
    pub(super) short: bool,
}

pub(super) const STAGES: [Stage; 8] = [
    Stage {
        name: "sample_adjust",
        text: include_str!("../shaders/sample/adjust.wgsl"),
        shared: false,
        needed: |way| way.adjusts && way.row(),
    },
    Stage {
        name: "sample_stats",
        text: include_str!("../shaders/sample/stats.wgsl"),
        shared: true,
        needed: |way| way.row(),
    },
    Stage {
        name: "sample_bins",
        text: include_str!("../shaders/sample/bins.wgsl"),
        shared: true,
        needed: |way| way.path == PATH_SELECT,
    },
    Stage {
        name: "sample_collect",
        text: include_str!("../shaders/sample/collect.wgsl"),
        shared: true,
        needed: |way| way.path == PATH_SELECT,
    },
    Stage {
        name: "sample_finish",
        text: include_str!("../shaders/sample/finish.wgsl"),
        shared: false,
        needed: |way| matches!(way.path, PATH_SELECT | PATH_CHILDREN),
    },
    Stage {
        name: "sample_exact",
        text: include_str!("../shaders/sample/exact.wgsl"),
        shared: false,
        needed: |way| way.path == PATH_ROW || way.long(),
    },
    Stage {
        name: "sample_masses",
        text: include_str!("../shaders/sample/masses.wgsl"),
        shared: true,
        needed: |way| matches!(way.path, PATH_DIRECT | PATH_ROW) || way.long(),
    },
    Stage {
        name: "sample_draw",
        text: include_str!("../shaders/sample/draw.wgsl"),
        shared: false,
        needed: |way| matches!(way.path, PATH_GREEDY | PATH_DIRECT | PATH_ROW) || way.long(),
    },
];

impl Way {
    /// Whether the row is read as a whole from the start.
    fn row(&self) -> bool {
        matches!(self.path, PATH_GREEDY | PATH_DIRECT | PATH_SELECT)
    }

    /// Whether the list may not hold what is left.
    fn long(&self) -> bool {
        self.path == PATH_SELECT && !self.short
    }
}

/// Threads of a workgroup.
pub(super) fn threads(gpu: &Gpu) -> u32 {
    if gpu.caps.max_threads >= 256 { 256 } else { 128 }
}

/// The kernels of [`STAGES`].
pub(super) fn kernels(gpu: &Gpu) -> Result<Vec<Arc<Kernel>>> {
    let constants = constants(threads(gpu));
    let kernel = |stage: &Stage| gpu.kernel(stage.name, &compose(stage.text, &[], &constants)?, &BINDINGS);
    STAGES.iter().map(kernel).collect()
}
