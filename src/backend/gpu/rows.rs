//! Operations on whole rows of the workspace: RMS norm, choosing the output rows, soft cap.
//!
//! The numbers of rows are those of the run's counts, so that no row beyond them is touched.

use super::device::Gpu;
use super::kernel::{Kernel, Slot, compose};
use super::step::{Bound, Count, FRAME_CONSTANTS, Step};
use crate::graph::Rows;
use crate::{Error, Result};
use std::sync::Arc;

/// Rows in the workspace, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Byte offset of the first, a multiple of 16.
    pub offset: usize,
    /// Values in each, a multiple of 4.
    pub width: usize,
}

impl Place {
    /// Offset and width in units of four values, as kernels count.
    pub fn quads(&self) -> Result<[u32; 2]> {
        if !self.offset.is_multiple_of(16) || !self.width.is_multiple_of(4) {
            return Err(Error::Internal(format!("{self:?} is not made of groups of four values")));
        }
        Ok([(self.offset / 16) as u32, (self.width / 4) as u32])
    }
}

/// Workgroups of one row each.
fn row_count(rows: Rows) -> Count {
    match rows {
        Rows::Batch => Count::Rows(1, 1),
        Rows::Output => Count::Outputs(1, 1),
    }
}

/// `dst = x / sqrt(mean(x²) + eps) · weight`, plus `residual`, which may stand where `dst` stands, as may `x`.
pub fn norm(
    gpu: &Gpu,
    x: Place,
    weight: Bound,
    eps: f32,
    residual: Option<Place>,
    dst: Place,
    rows: Rows,
) -> Result<Step> {
    let flags: &[&str] = if residual.is_some() { &["RESIDUAL"] } else { &[] };
    let constants = [("THREADS", gpu.caps.max_threads.clamp(128, 256))];
    let text = compose(include_str!("shaders/norm.wgsl"), flags, &constants)?;
    let ([from, quads], [to, _], [added, _]) = (x.quads()?, dst.quads()?, residual.unwrap_or(dst).quads()?);
    Ok(Step {
        kernel: gpu.kernel("norm", &text, &[Slot::Write, Slot::Uniform, Slot::Read])?,
        buffers: vec![Bound::Workspace, Bound::Params, weight],
        params: vec![from, added, to, quads, eps.to_bits(), 0, 0, 0],
        groups: [row_count(rows), Count::Fixed(1), Count::Fixed(1)],
    })
}

/// The rows of `x` that the frame names as output rows.
pub fn select(gpu: &Gpu, x: Place, dst: Place) -> Result<Step> {
    let mut constants = FRAME_CONSTANTS.to_vec();
    constants.push(("THREADS", THREADS));
    let text = compose(include_str!("shaders/select.wgsl"), &[], &constants)?;
    let kernel = gpu.kernel("select", &text, &[Slot::Write, Slot::Uniform, Slot::Read])?;
    let ([from, quads], [to, _]) = (x.quads()?, dst.quads()?);
    let buffers = vec![Bound::Workspace, Bound::Params, Bound::Frame];
    Ok(spread(kernel, buffers, vec![from, to, quads, 0], quads, Rows::Output))
}

/// `dst = cap · tanh(x / cap)`; `dst` may be `x`.
pub fn softcap(gpu: &Gpu, x: Place, dst: Place, cap: f32, rows: Rows) -> Result<Step> {
    let text = compose(include_str!("shaders/softcap.wgsl"), &[], &[("THREADS", THREADS)])?;
    let kernel = gpu.kernel("softcap", &text, &[Slot::Write, Slot::Uniform])?;
    let ([from, quads], [to, _]) = (x.quads()?, dst.quads()?);
    Ok(spread(kernel, vec![Bound::Workspace, Bound::Params], vec![from, to, quads, cap.to_bits()], quads, rows))
}

/// Threads of the kernels that work on each value by itself.
const THREADS: u32 = 128;

/// A step with one thread for each four values.
fn spread(kernel: Arc<Kernel>, buffers: Vec<Bound>, params: Vec<u32>, quads: u32, rows: Rows) -> Step {
    let groups = [Count::Fixed(quads.div_ceil(THREADS)), row_count(rows), Count::Fixed(1)];
    Step { kernel, buffers, params, groups }
}

#[cfg(test)]
mod tests;
