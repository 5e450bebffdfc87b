//! Operations on whole rows of the workspace: RMS norm (Zhang and Sennrich, <https://arxiv.org/abs/1910.07467>),
//! choosing the output rows, soft cap.
//!
//! The numbers of rows are those of the run's counts, so that no row beyond them is touched.

use crate::backend::gpu::kernel::dispatch::{BufferRef, FRAME_CONSTANTS, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, Kernel, compose};
use crate::graph::Rows;
use crate::{Error, Result};
use std::sync::Arc;

/// Rows in the workspace, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpan {
    /// Byte offset of the first, a multiple of 16.
    pub offset: usize,
    /// Values in each, a multiple of 4.
    pub width: usize,
}

impl RowSpan {
    /// Offset and width in units of four values, as kernels count.
    pub fn quads(&self) -> Result<[u32; 2]> {
        if !self.offset.is_multiple_of(16) || !self.width.is_multiple_of(4) {
            return Err(Error::Internal(format!("{self:?} is not made of groups of four values")));
        }
        Ok([(self.offset / 16) as u32, (self.width / 4) as u32])
    }
}

/// Workgroups of one row each.
fn row_count(rows: Rows) -> GroupCount {
    match rows {
        Rows::Batch => GroupCount::Rows(1, 1),
        Rows::Output => GroupCount::Outputs(1, 1),
    }
}

/// `dst = x / sqrt(mean(x²) + eps) · weight`, plus `residual`. `x` and `residual` may be `dst`.
pub fn norm(
    gpu: &Gpu,
    x: RowSpan,
    weight: BufferRef,
    eps: f32,
    residual: Option<RowSpan>,
    dst: RowSpan,
    rows: Rows,
) -> Result<Step> {
    let flags: &[&str] = if residual.is_some() { &["RESIDUAL"] } else { &[] };
    let constants = [("THREADS", gpu.caps.max_threads.clamp(128, 256))];
    let text = compose(include_str!("../shaders/ops/norm.wgsl"), flags, &constants)?;
    let ([from, quads], [to, _], [added, _]) = (x.quads()?, dst.quads()?, residual.unwrap_or(dst).quads()?);
    Ok(Step {
        kernel: gpu.kernel("norm", &text, &[Binding::Write, Binding::Uniform, Binding::Read])?,
        buffers: vec![BufferRef::Workspace, BufferRef::Params, weight],
        params: vec![from, added, to, quads, eps.to_bits(), 0, 0, 0],
        groups: [row_count(rows), GroupCount::Fixed(1), GroupCount::Fixed(1)],
    })
}

/// Copies the rows of `x` that the frame names as output rows to `dst`.
pub fn select(gpu: &Gpu, x: RowSpan, dst: RowSpan) -> Result<Step> {
    let mut constants = FRAME_CONSTANTS.to_vec();
    constants.push(("THREADS", THREADS));
    let text = compose(include_str!("../shaders/ops/select.wgsl"), &[], &constants)?;
    let kernel = gpu.kernel("select", &text, &[Binding::Write, Binding::Uniform, Binding::Read])?;
    let ([from, quads], [to, _]) = (x.quads()?, dst.quads()?);
    let buffers = vec![BufferRef::Workspace, BufferRef::Params, BufferRef::Frame];
    Ok(spread(kernel, buffers, vec![from, to, quads, 0], quads, Rows::Output))
}

/// `dst = cap · tanh(x / cap)`; `dst` may be `x`.
pub fn softcap(gpu: &Gpu, x: RowSpan, dst: RowSpan, cap: f32, rows: Rows) -> Result<Step> {
    let text = compose(include_str!("../shaders/ops/softcap.wgsl"), &[], &[("THREADS", THREADS)])?;
    let kernel = gpu.kernel("softcap", &text, &[Binding::Write, Binding::Uniform])?;
    let ([from, quads], [to, _]) = (x.quads()?, dst.quads()?);
    Ok(spread(kernel, vec![BufferRef::Workspace, BufferRef::Params], vec![from, to, quads, cap.to_bits()], quads, rows))
}

/// Threads of the kernels that work on each value by itself.
const THREADS: u32 = 128;

/// A step with one thread for every four values.
fn spread(kernel: Arc<Kernel>, buffers: Vec<BufferRef>, params: Vec<u32>, quads: u32, rows: Rows) -> Step {
    let groups = [GroupCount::Fixed(quads.div_ceil(THREADS)), row_count(rows), GroupCount::Fixed(1)];
    Step { kernel, buffers, params, groups }
}

#[cfg(test)]
mod tests;
