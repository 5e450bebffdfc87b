//! A dispatch as data: which kernel, over which buffers, with which numbers, in how many workgroups.
//!
//! Kernels read three kinds of numbers: constants of the shader's text (shapes that select code), the words of a
//! uniform that never change after compiling (offsets, widths), and the *frame*, a small storage buffer written once
//! per run with everything that differs from batch to batch. A program is a list of steps; a run writes the frame and
//! dispatches them all in one submission.

use crate::backend::gpu::kernel::Kernel;
use crate::backend::{MAX_LISTED, MAX_ROWS};
use std::sync::Arc;

/// Words of the frame's head: rows, output rows, cells in use, splits of attention, cells per split, listed logits,
/// then zeros.
pub const FRAME_HEAD: usize = 16;
/// Word of the first row record: token, position, sequences, cell.
pub const FRAME_ROWS: usize = FRAME_HEAD;
/// Word of the first output row's index.
pub const FRAME_OUTPUTS: usize = FRAME_ROWS + 4 * MAX_ROWS;
/// Word of the number of listed logits.
pub const FRAME_N_LISTED: usize = 5;
/// Word of the first listed logit's token.
pub const FRAME_LISTED: usize = FRAME_OUTPUTS + MAX_ROWS;
/// Word of the first cell record: position, sequences.
pub const FRAME_CELLS: usize = FRAME_LISTED + MAX_LISTED;

/// The places of the frame, for shader texts.
pub const FRAME_CONSTANTS: [(&str, u32); 3] =
    [("FRAME_ROWS", FRAME_ROWS as u32), ("FRAME_OUTPUTS", FRAME_OUTPUTS as u32), ("FRAME_CELLS", FRAME_CELLS as u32)];

/// Words of the uniform that each step owns; its bytes fit the largest alignment that a device may ask for.
pub const PARAM_WORDS: usize = 64;

/// A buffer of a step, in the order of its kernel's bindings.
#[derive(Clone)]
pub enum BufferRef {
    /// The engine's workspace: `array<vec4<f32>>` or `array<f32>`.
    Workspace,
    /// This step's own words.
    Params,
    /// The frame: `array<u32>`.
    Frame,
    /// Keys of a layer.
    Keys(usize),
    /// Values of a layer.
    Values(usize),
    /// Partial results of attention, `array<f32>`.
    Partials,
    /// The token that the run before sampled, in word 0: `array<u32>`.
    Sampled,
    /// A part of a weight: buffer, byte offset, bytes.
    Weight(wgpu::Buffer, u64, u64),
}

/// A number of workgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupCount {
    /// Always the same.
    Fixed(u32),
    /// So many per batch row, divided by the second number and rounded up.
    Rows(u32, u32),
    /// So many per output row, divided likewise.
    Outputs(u32, u32),
    /// One per split of attention.
    Splits,
    /// One per listed logit; where none is listed, so many.
    Listed(u32),
    /// One where logits are listed, else so many.
    Unlisted(u32),
}

/// What a run's counts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCounts {
    /// Batch rows.
    pub rows: u32,
    /// Output rows.
    pub outputs: u32,
    /// Splits of attention.
    pub splits: u32,
    /// Listed logits.
    pub listed: u32,
}

impl GroupCount {
    /// The number for a run.
    pub fn of(self, counts: &RunCounts) -> u32 {
        match self {
            GroupCount::Fixed(n) => n,
            GroupCount::Rows(times, by) => (counts.rows * times).div_ceil(by),
            GroupCount::Outputs(times, by) => (counts.outputs * times).div_ceil(by),
            GroupCount::Splits => counts.splits,
            GroupCount::Listed(all) if counts.listed == 0 => all,
            GroupCount::Listed(_) => counts.listed,
            GroupCount::Unlisted(all) => {
                if counts.listed == 0 {
                    all
                } else {
                    1
                }
            }
        }
    }
}

/// One dispatch.
pub struct Step {
    /// The pipeline.
    pub kernel: Arc<Kernel>,
    /// Its buffers.
    pub buffers: Vec<BufferRef>,
    /// At most [`PARAM_WORDS`] words.
    pub params: Vec<u32>,
    /// Workgroups in x, y and z.
    pub groups: [GroupCount; 3],
}
