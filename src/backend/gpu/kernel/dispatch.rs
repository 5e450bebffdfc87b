//! A dispatch as data: the kernel, its buffers, its parameters, and the number of workgroups.
//!
//! Kernels read three kinds of numbers: constants of the shader's text (shapes that select code), the words of a
//! uniform that never change after compiling (offsets, widths), and the *frame*, a small storage buffer written once
//! per run with everything that differs from batch to batch. A program is a list of steps; a run writes the frame and
//! dispatches them all in one submission.

use crate::backend::gpu::kernel::Kernel;
use crate::backend::{MAX_LISTED, MAX_ROWS, MAX_TEXT_ROWS, TABLES, Table};
use crate::graph::Rows;
use std::sync::Arc;

/// Words (u32) of the frame's head: rows, output rows, cells in use, splits of attention, cells per split, size of the
/// logit subset, then zeros.
pub const FRAME_HEAD: usize = 16;
/// Index of the word of the first row record; a record is token, position, sequences, cell.
pub const FRAME_ROWS: usize = FRAME_HEAD;
/// Index of the word of the first output row's row number.
pub const FRAME_OUTPUTS: usize = FRAME_ROWS + 4 * MAX_TEXT_ROWS;
/// Index of the word that holds the size of the logit subset.
pub const FRAME_N_LISTED: usize = 5;
/// Index of the word of the logit subset's first token.
pub const FRAME_LISTED: usize = FRAME_OUTPUTS + MAX_TEXT_ROWS;
/// Index of the word of the first row's record of states, see [`super::strands`].
pub const FRAME_STATES: usize = FRAME_LISTED + MAX_LISTED;
/// Index of the word of the first cell record; a record is position, sequences.
pub const FRAME_CELLS: usize = FRAME_STATES + 4 * MAX_ROWS;

/// The indices in the frame, for shader texts.
pub const FRAME_CONSTANTS: [(&str, u32); 3] =
    [("FRAME_ROWS", FRAME_ROWS as u32), ("FRAME_OUTPUTS", FRAME_OUTPUTS as u32), ("FRAME_CELLS", FRAME_CELLS as u32)];

/// Words of the uniform that each step owns; its size is a multiple of the largest alignment that a device may require.
pub const PARAM_WORDS: usize = 64;

/// A buffer of a step, in the order of its kernel's bindings.
#[derive(Clone)]
pub enum BufferRef {
    /// The engine's workspace: `array<vec4<f32>>` or `array<f32>`.
    Workspace,
    /// This step's uniform.
    Params,
    /// The frame, with the cells of [`Table::All`]: `array<u32>`.
    Frame,
    /// The frame of the same batch with the cells of [`Table::Window`].
    WindowFrame,
    /// Keys of a layer.
    Keys(usize),
    /// Values of a layer.
    Values(usize),
    /// The cells of a state of the model, [`CacheSpec::states`](crate::backend::CacheSpec::states): `array<vec4<f32>>`
    /// or `array<f32>`.
    State(usize),
    /// Partial results of attention, `array<f32>`.
    Partials,
    /// The token that each sequence sampled last, a word per sequence: `array<u32>`.
    Sampled,
    /// A part of a weight: buffer, byte offset, bytes.
    Weight(wgpu::Buffer, u64, u64),
}

/// A number of workgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupCount {
    /// Always the same.
    Fixed(u32),
    /// The first number times the batch rows, divided by the second number and rounded up.
    Rows(u32, u32),
    /// The first number times the output rows, divided by the second number and rounded up.
    Outputs(u32, u32),
    /// One per split of attention over the cells of a table.
    Splits(Table),
    /// The number given where there is more than one such split, else none.
    Joins(Table, u32),
    /// One per token of the logit subset; without a subset, the number given.
    Listed(u32),
    /// One where there is a logit subset, else the number given.
    Unlisted(u32),
    /// One per strand of rows, see [`super::strands`].
    Strands,
}

/// The counts of a run that numbers of workgroups depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCounts {
    /// Batch rows.
    pub rows: u32,
    /// Output rows.
    pub outputs: u32,
    /// Splits of attention over the cells of each table.
    pub splits: [u32; TABLES.len()],
    /// Tokens of the logit subset, 0 for all logits.
    pub listed: u32,
    /// Strands of rows, 0 for models without states.
    pub strands: u32,
}

impl GroupCount {
    /// `times` the rows of this kind, divided by `by` and rounded up.
    pub fn per_row(rows: Rows, times: u32, by: u32) -> GroupCount {
        match rows {
            Rows::Batch => GroupCount::Rows(times, by),
            Rows::Output => GroupCount::Outputs(times, by),
        }
    }

    /// The number for a run.
    pub fn of(self, counts: &RunCounts) -> u32 {
        match self {
            GroupCount::Fixed(n) => n,
            GroupCount::Rows(times, by) => (counts.rows * times).div_ceil(by),
            GroupCount::Outputs(times, by) => (counts.outputs * times).div_ceil(by),
            GroupCount::Splits(table) => counts.splits[table as usize],
            GroupCount::Joins(table, n) => {
                if counts.splits[table as usize] > 1 {
                    n
                } else {
                    0
                }
            }
            GroupCount::Listed(all) if counts.listed == 0 => all,
            GroupCount::Listed(_) => counts.listed,
            GroupCount::Unlisted(all) => {
                if counts.listed == 0 {
                    all
                } else {
                    1
                }
            }
            GroupCount::Strands => counts.strands,
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
