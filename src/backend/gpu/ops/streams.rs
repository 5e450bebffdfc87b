//! Operations on rows that hold several streams side by side.

use super::rows::{RowSpan, THREADS, spread};
use crate::backend::gpu::kernel::dispatch::{BufferRef, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::graph::Rows;
use crate::{Error, Result};

/// The most coefficients that are the same for all rows: they are parameters of the kernel.
pub const MAX_FIXED: usize = 32;

/// What parts are multiplied with, see [`Coefficients`](crate::graph::Coefficients).
#[derive(Debug, Clone, PartialEq)]
pub enum By {
    /// These.
    Fixed(Vec<f32>),
    /// The values of these rows, each plus a number.
    Row(RowSpan, f32),
}

/// Sums of parts of rows, see [`Op::Mix`](crate::graph::Op::Mix).
#[derive(Debug, Clone)]
pub struct Mix {
    /// The rows.
    pub x: RowSpan,
    /// Parts of a row.
    pub parts: usize,
    /// Coefficients.
    pub by: By,
    /// Rows to add.
    pub residual: Option<RowSpan>,
    /// The result; may be `x` or the residual.
    pub dst: RowSpan,
    /// Which rows.
    pub rows: Rows,
}

/// The step of a mixture.
pub fn mix(gpu: &Gpu, mix: &Mix) -> Result<Step> {
    let Mix { x, parts, dst, rows, .. } = *mix;
    let part = RowSpan { offset: 0, width: x.width / parts };
    let sums = dst.width / part.width;
    let have = match &mix.by {
        By::Fixed(values) => values.len(),
        By::Row(by, _) => by.width,
    };
    if parts * part.width != x.width || sums * part.width != dst.width || sums * parts != have {
        return Err(Error::Internal(format!("{have} coefficients for {sums} sums of {parts} parts")));
    }
    let mut flags = Vec::new();
    flags.extend(matches!(mix.by, By::Row(..)).then_some("OF_ROW"));
    flags.extend(mix.residual.map(|_| "RESIDUAL"));
    let constants = [("THREADS", THREADS), ("PARTS", parts as u32), ("SUMS", sums as u32)];
    let text = compose(include_str!("../shaders/ops/mix.wgsl"), &flags, &constants)?;
    let kernel = gpu.kernel("mix", &text, &[Binding::Write, Binding::Uniform])?;
    let ([from, _], [to, _], [added, _]) = (x.quads()?, dst.quads()?, mix.residual.unwrap_or(dst).quads()?);
    let [_, quads] = part.quads()?;
    let (by, plus, fixed) = match &mix.by {
        By::Fixed(values) => ([0, 0], 0.0, &values[..]),
        By::Row(by, plus) => (by.quads()?, *plus, &[][..]),
    };
    let mut params = vec![from, by[0], by[1], added, to, quads, plus.to_bits(), 0];
    params.extend(fixed.iter().map(|value| value.to_bits()));
    params.resize(params.len().next_multiple_of(4), 0);
    Ok(spread(kernel, vec![BufferRef::Workspace, BufferRef::Params], params, quads, rows))
}

/// `y`, then each part of `x` of its width, scaled to its length. `dst` shares no row with them.
pub fn equalize(gpu: &Gpu, x: RowSpan, y: RowSpan, dst: RowSpan, rows: Rows) -> Result<Step> {
    let parts = x.width / y.width;
    if parts * y.width != x.width || dst.width != x.width + y.width {
        return Err(Error::Internal(format!("Rows of {} beside {} in {}", x.width, y.width, dst.width)));
    }
    let constants = [("THREADS", gpu.caps.max_threads.clamp(128, 256))];
    let text = compose(include_str!("../shaders/ops/equalize.wgsl"), &[], &constants)?;
    let ([from, _], [like, quads], [to, _]) = (x.quads()?, y.quads()?, dst.quads()?);
    Ok(Step {
        kernel: gpu.kernel("equalize", &text, &[Binding::Write, Binding::Uniform])?,
        buffers: vec![BufferRef::Workspace, BufferRef::Params],
        params: vec![from, like, to, quads, parts as u32, 0, 0, 0],
        groups: [GroupCount::per_row(rows, 1, 1), GroupCount::Fixed(parts as u32), GroupCount::Fixed(1)],
    })
}

#[cfg(test)]
mod tests;
