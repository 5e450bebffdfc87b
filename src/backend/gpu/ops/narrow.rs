//! Batch rows made narrow, for products of many rows.
//!
//! As bytes, for integer dot products (`matmul_int8.wgsl`): 32 values of a row are 32 signed bytes with one scale,
//! their greatest size over 127, so the error of a value is at most half a step. The CPU's products and llama.cpp's
//! take their inputs like that, too.
//!
//! As halves, for matrix instructions (`matmul_halves.wgsl`): each row has a factor, a power of two, so that no value
//! leaves the range of f16. A value is off by at most 2^-11 of itself, or, where it is small beside the row's largest,
//! by 2^-38 of that.

use super::rows::{fold, quads};
use crate::Result;
use crate::backend::gpu::kernel::dispatch::{BufferRef, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::backend::gpu::weights::layout::{Format, GROUP};
use crate::graph::Rows;

/// Bytes of 32 values as bytes: their codes, then a scale and two sums in a vec4.
const BYTES_OF_GROUP: usize = 48;
/// Rows and groups of a workgroup that quantises.
const ROWS: usize = 16;
const GROUPS: usize = 4;
/// Bytes of 32 values as halves, and of a row's factor.
const HALVES_OF_GROUP: usize = 64;
const FACTOR: usize = 16;
/// Threads that make halves of a row.
const THREADS: usize = 128;

/// What becomes of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrow {
    /// Bytes with scales, for integer dot products.
    Bytes,
    /// Halves, for matrix instructions.
    Halves,
}

/// Rows that become narrow.
pub struct Wide {
    /// Their byte offset.
    pub x: u64,
    /// Values of a row.
    pub width: usize,
    /// Byte offset of room of [`Narrow::bytes`] for what they become.
    pub room: u64,
    /// Which rows.
    pub rows: Rows,
    /// The most rows of a run.
    pub max_rows: usize,
}

impl Narrow {
    /// What this device makes of the rows of products of many rows with matrices of this format.
    pub fn of(gpu: &Gpu, format: &Format) -> Option<Narrow> {
        let has = [(Narrow::Halves, gpu.caps.matrices.is_some()), (Narrow::Bytes, gpu.caps.int8_dots)];
        let best = has.into_iter().find(|(_, has)| *has).map(|(narrow, _)| narrow);
        best.filter(|narrow| narrow.suits(format))
    }

    /// Whether such rows are multiplied with matrices of this format: bytes with weights that are integers, halves with
    /// all but those of 32 bits, which are used as they are.
    pub fn suits(self, format: &Format) -> bool {
        match self {
            Narrow::Bytes => format.scales > 0,
            Narrow::Halves => format.flag != "F32",
        }
    }

    /// Bytes that `max_rows` rows of `width` values take in the workspace.
    pub fn bytes(self, width: usize, max_rows: usize) -> usize {
        let groups = width.div_ceil(GROUP);
        let row = match self {
            Narrow::Bytes => groups * BYTES_OF_GROUP,
            Narrow::Halves => groups * HALVES_OF_GROUP + FACTOR,
        };
        row * max_rows
    }

    /// The step that makes rows narrow.
    ///
    /// # Errors
    /// [`Error`](crate::Error) of a kernel that cannot be made, or of rows at no whole quads.
    pub fn step(self, gpu: &Gpu, wide: &Wide) -> Result<Step> {
        let groups = wide.width.div_ceil(GROUP);
        let (name, source, threads, rows, [y, z]) = match self {
            Narrow::Bytes => {
                let source = include_str!("../shaders/ops/quantize.wgsl");
                ("quantize", source, ROWS * GROUPS, ROWS, fold(gpu, groups.div_ceil(GROUPS))?)
            }
            Narrow::Halves => ("halve", include_str!("../shaders/ops/halve.wgsl"), THREADS, 1, [1, 1]),
        };
        let text = compose(source, &[], &[("THREADS", threads as u32), ("ROWS", rows as u32)])?;
        let width = quads("x width", wide.width as u64, 4)?;
        let (x, room) = (quads("x", wide.x, 16)?, quads("room", wide.room, 16)?);
        let count_at = u32::from(wide.rows == Rows::Output);
        Ok(Step {
            kernel: gpu.kernel(name, &text, &[Binding::Write, Binding::Read, Binding::Uniform])?,
            buffers: vec![BufferRef::Workspace, BufferRef::Frame, BufferRef::Params],
            params: vec![x, width, room, wide.max_rows as u32, width, groups as u32, count_at, y],
            groups: [GroupCount::per_row(wide.rows, 1, rows as u32), GroupCount::Fixed(y), GroupCount::Fixed(z)],
        })
    }
}

#[cfg(test)]
mod tests;
