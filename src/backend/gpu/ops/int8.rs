//! Batch rows as bytes, for products of many rows by integer dot products (`matmul_int8.wgsl`).
//!
//! 32 values of a row are 32 signed bytes with one scale, their greatest size over 127: the error of a value is at most
//! half a step. The CPU's products and llama.cpp's take their inputs like that, too.

use super::rows::{fold, quads};
use crate::Result;
use crate::backend::gpu::kernel::dispatch::{BufferRef, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::backend::gpu::weights::layout::GROUP;
use crate::graph::Rows;

/// Bytes of 32 values: their codes, then a scale and two sums in a vec4.
const GROUP_BYTES: usize = 48;
/// Rows and groups of a workgroup that quantises.
const ROWS: usize = 16;
const GROUPS: usize = 4;

/// Bytes that `max_rows` rows of `width` values take in the workspace.
pub fn bytes(width: usize, max_rows: usize) -> usize {
    width.div_ceil(GROUP) * GROUP_BYTES * max_rows
}

/// Where rows are quantised.
#[derive(Clone, Copy)]
pub struct Quantized {
    /// Byte offset of the rows.
    pub x: u64,
    /// Values of a row.
    pub width: usize,
    /// Byte offset of room of [`bytes`] for them.
    pub room: u64,
}

/// The step that quantises rows.
pub fn quantize(gpu: &Gpu, q: Quantized, rows: Rows, max_rows: usize) -> Result<Step> {
    let constants = [("THREADS", (ROWS * GROUPS) as u32), ("ROWS", ROWS as u32)];
    let text = compose(include_str!("../shaders/ops/quantize.wgsl"), &[], &constants)?;
    let kernel = gpu.kernel("quantize", &text, &[Binding::Write, Binding::Read, Binding::Uniform])?;
    let groups = q.width.div_ceil(GROUP);
    let [y, z] = fold(gpu, groups.div_ceil(GROUPS))?;
    let width = quads("x width", q.width as u64, 4)?;
    let (x, room) = (quads("x", q.x, 16)?, quads("room", q.room, 16)?);
    Ok(Step {
        kernel,
        buffers: vec![BufferRef::Workspace, BufferRef::Frame, BufferRef::Params],
        params: vec![x, width, room, max_rows as u32, width, groups as u32, u32::from(rows == Rows::Output), y],
        groups: [GroupCount::per_row(rows, 1, ROWS as u32), GroupCount::Fixed(y), GroupCount::Fixed(z)],
    })
}

#[cfg(test)]
mod tests;
