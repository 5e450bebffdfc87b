//! Batch rows as halves, for products of many rows by matrix instructions (`matmul_halves.wgsl`).
//!
//! Each row has a factor, a power of two, so that no value leaves the range of f16: a value is off by at most 2^-11 of
//! itself, or, where it is small beside the row's largest, by 2^-38 of that.

use super::rows::quads;
use crate::Result;
use crate::backend::gpu::kernel::dispatch::{BufferRef, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::backend::gpu::weights::layout::GROUP;
use crate::graph::Rows;

/// Bytes of 32 values, and of a row's factor.
const GROUP_BYTES: usize = 64;
const FACTOR_BYTES: usize = 16;
/// Threads of a row.
const THREADS: u32 = 128;

/// Bytes that `max_rows` rows of `width` values take in the workspace.
pub fn bytes(width: usize, max_rows: usize) -> usize {
    (width.div_ceil(GROUP) * GROUP_BYTES + FACTOR_BYTES) * max_rows
}

/// The step that makes halves of rows: `x` is the byte offset of the rows, `room` that of room of [`bytes`].
pub fn halve(gpu: &Gpu, x: u64, width: usize, room: u64, rows: Rows, max_rows: usize) -> Result<Step> {
    let text = compose(include_str!("../shaders/ops/halve.wgsl"), &[], &[("THREADS", THREADS)])?;
    let kernel = gpu.kernel("halve", &text, &[Binding::Write, Binding::Read, Binding::Uniform])?;
    let groups = width.div_ceil(GROUP) as u32;
    let width = quads("x width", width as u64, 4)?;
    let (x, room) = (quads("x", x, 16)?, quads("room", room, 16)?);
    Ok(Step {
        kernel,
        buffers: vec![BufferRef::Workspace, BufferRef::Frame, BufferRef::Params],
        params: vec![x, width, room, max_rows as u32, width, groups, u32::from(rows == Rows::Output), 0],
        groups: [GroupCount::per_row(rows, 1, 1), GroupCount::Fixed(1), GroupCount::Fixed(1)],
    })
}

#[cfg(test)]
mod tests;
