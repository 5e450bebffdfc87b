//! Operations on whole rows of the workspace: norms, choosing the output rows, functions of each value, sums, gates.
//!
//! The numbers of rows are those of the run's counts, so that no row beyond them is touched.

use super::activation::{activation_flags, curve};
use crate::backend::gpu::kernel::dispatch::{BufferRef, FRAME_CONSTANTS, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, Kernel, compose};
use crate::graph::{Activation, NormKind, Rows};
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

/// A number of workgroups in two dimensions that a device can dispatch.
pub(super) fn fold(gpu: &Gpu, groups: usize) -> Result<[u32; 2]> {
    let most = gpu.caps.max_workgroups as usize;
    let y = groups.div_ceil(most).max(1);
    let x = groups.div_ceil(y);
    if y > most {
        return Err(Error::Unsupported(format!("{groups} workgroups on {}", gpu.info.name)));
    }
    Ok([x as u32, y as u32])
}

/// An offset or width of the workspace in vec4s, from units of which `by` make one vec4.
pub(super) fn quads(what: &str, n: u64, by: u64) -> Result<u32> {
    let whole = n.is_multiple_of(by).then(|| u32::try_from(n / by).ok()).flatten().filter(|&n| n != u32::MAX);
    whole.ok_or_else(|| Error::Internal(format!("{what} of {n} in the workspace")))
}

/// A norm of parts of rows, see [`NormSpec`](crate::graph::NormSpec).
#[derive(Clone)]
pub struct Norm {
    /// What it divides by.
    pub kind: NormKind,
    /// Factor per column of a part, or of the row.
    pub weight: Option<BufferRef>,
    /// Added per column of a part, or of the row.
    pub bias: Option<BufferRef>,
    /// Added to the mean square.
    pub eps: f32,
    /// Values of a part.
    pub width: usize,
    /// Parts of a row, from its first value on.
    pub parts: usize,
    /// Whether each part has factors of its own.
    pub own: bool,
}

/// The norm of parts of `x`, plus `residual`, which is as wide as `dst`. `x` and `residual` may be `dst`.
pub fn norm(gpu: &Gpu, x: RowSpan, norm: &Norm, residual: Option<RowSpan>, dst: RowSpan, rows: Rows) -> Result<Step> {
    if norm.width * norm.parts > x.width.min(dst.width) {
        return Err(Error::Internal(format!("{} norms of {} values in rows of {}", norm.parts, norm.width, x.width)));
    }
    let mut flags = Vec::new();
    let mut bindings = vec![Binding::Write, Binding::Uniform];
    let mut buffers = vec![BufferRef::Workspace, BufferRef::Params];
    let mut constants = vec![("THREADS", gpu.caps.max_threads.clamp(128, 256))];
    for (vector, flag, bind) in [(&norm.weight, "WEIGHT", "BIND_WEIGHT"), (&norm.bias, "BIAS", "BIND_BIAS")] {
        if let Some(vector) = vector {
            flags.push(flag);
            constants.push((bind, bindings.len() as u32));
            bindings.push(Binding::Read);
            buffers.push(vector.clone());
        }
    }
    flags.extend((norm.kind == NormKind::Layer).then_some("LAYER"));
    flags.extend(residual.map(|_| "RESIDUAL"));
    let text = compose(include_str!("../shaders/ops/norm.wgsl"), &flags, &constants)?;
    let part = RowSpan { offset: 0, width: norm.width }.quads()?[1];
    let ([from, x_stride], [to, stride], [added, _]) = (x.quads()?, dst.quads()?, residual.unwrap_or(dst).quads()?);
    Ok(Step {
        kernel: gpu.kernel("norm", &text, &bindings)?,
        buffers,
        params: vec![from, x_stride, added, to, stride, part, norm.eps.to_bits(), if norm.own { part } else { 0 }],
        groups: [GroupCount::per_row(rows, 1, 1), GroupCount::Fixed(norm.parts as u32), GroupCount::Fixed(1)],
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

/// Columns of each of a row's equal parts.
#[derive(Debug, Clone, Copy)]
pub struct PartColumns {
    /// The rows.
    pub of: RowSpan,
    /// The first column of a part.
    pub first: usize,
}

/// Copies `width` columns of each of `parts` parts of rows of `x` to as many of `dst`.
pub fn columns(gpu: &Gpu, x: PartColumns, dst: PartColumns, parts: usize, width: usize, rows: Rows) -> Result<Step> {
    let [x_part, dst_part] = [x, dst].map(|columns| columns.of.width / parts.max(1));
    if x.first + width > x_part || dst.first + width > dst_part {
        return Err(Error::Internal(format!("{width} columns of parts of {x_part}, for parts of {dst_part}")));
    }
    let text = compose(include_str!("../shaders/ops/columns.wgsl"), &[], &[("THREADS", THREADS)])?;
    let kernel = gpu.kernel("columns", &text, &[Binding::Write, Binding::Uniform])?;
    let place = |c: PartColumns, part: usize| [c.of.offset / 4 + c.first, c.of.width, part].map(|n| n as u32);
    let all = (parts * width) as u32;
    let params = [&place(x, x_part)[..], &place(dst, dst_part), &[width as u32, all]].concat();
    Ok(spread(kernel, vec![BufferRef::Workspace, BufferRef::Params], params, all, rows))
}

/// A function of each value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Map {
    /// `x · factor`.
    Scale(f32),
    /// `cap · tanh(x / cap)`.
    SoftCap(f32),
    /// `x` limited to ± this.
    Clamp(f32),
}

/// `dst = map(x) + residual`; `x` and `residual` may be `dst`.
pub fn map(gpu: &Gpu, x: RowSpan, map: Map, residual: Option<RowSpan>, dst: RowSpan, rows: Rows) -> Result<Step> {
    let (flag, number) = match map {
        Map::Scale(factor) => ("SCALE", factor),
        Map::SoftCap(cap) => ("SOFTCAP", cap),
        Map::Clamp(limit) => ("CLAMP", limit),
    };
    let mut flags = vec![flag];
    flags.extend(residual.map(|_| "RESIDUAL"));
    let text = compose(include_str!("../shaders/ops/map.wgsl"), &flags, &[("THREADS", THREADS)])?;
    let kernel = gpu.kernel("map", &text, &[Binding::Write, Binding::Uniform])?;
    let ([from, quads], [to, _], [added, _]) = (x.quads()?, dst.quads()?, residual.unwrap_or(dst).quads()?);
    let params = vec![from, added, to, quads, number.to_bits(), 0, 0, 0];
    Ok(spread(kernel, vec![BufferRef::Workspace, BufferRef::Params], params, quads, rows))
}

/// `dst = x ⊙ factors`, a factor for each column; `x` may be `dst`.
pub fn multiply(gpu: &Gpu, x: RowSpan, factors: BufferRef, dst: RowSpan, rows: Rows) -> Result<Step> {
    let text = compose(include_str!("../shaders/ops/map.wgsl"), &["FACTORS"], &[("THREADS", THREADS)])?;
    let kernel = gpu.kernel("map", &text, &[Binding::Write, Binding::Uniform, Binding::Read])?;
    let ([from, quads], [to, _]) = (x.quads()?, dst.quads()?);
    let buffers = vec![BufferRef::Workspace, BufferRef::Params, factors];
    Ok(spread(kernel, buffers, vec![from, to, to, quads, 0, 0, 0, 0], quads, rows))
}

/// What `x` has above so many standard deviations over its mean, see [`Op::Sparsify`](crate::graph::Op::Sparsify); `x`
/// may be `dst`.
pub fn sparsify(gpu: &Gpu, x: RowSpan, deviations: f32, dst: RowSpan, rows: Rows) -> Result<Step> {
    let constants = [("THREADS", gpu.caps.max_threads.clamp(128, 256))];
    let text = compose(include_str!("../shaders/ops/sparsify.wgsl"), &[], &constants)?;
    let ([from, quads], [to, _]) = (x.quads()?, dst.quads()?);
    Ok(Step {
        kernel: gpu.kernel("sparsify", &text, &[Binding::Write, Binding::Uniform])?,
        buffers: vec![BufferRef::Workspace, BufferRef::Params],
        params: vec![from, to, quads, deviations.to_bits()],
        groups: [GroupCount::per_row(rows, 1, 1), GroupCount::Fixed(1), GroupCount::Fixed(1)],
    })
}

/// `dst = act(x) ⊙ y + residual`, y being as many columns of its rows as `dst` has; `x` may have one value a row.
pub struct Gate {
    /// What is activated.
    pub x: RowSpan,
    /// Activation of `x`.
    pub act: Activation,
    /// Rows that hold y.
    pub y: RowSpan,
    /// The first column of y, a multiple of 4.
    pub first: usize,
    /// Rows to add.
    pub residual: Option<RowSpan>,
    /// The result; may be the residual.
    pub dst: RowSpan,
    /// Which rows.
    pub rows: Rows,
}

/// The step of a gate.
pub fn gate(gpu: &Gpu, gate: &Gate) -> Result<Step> {
    let Gate { x, y, dst, rows, .. } = *gate;
    let one = x.width == 1;
    if !one && x.width != dst.width || gate.first + dst.width > y.width {
        return Err(Error::Internal(format!("A gate of {} columns from {} of {}", dst.width, gate.first, y.width)));
    }
    let mut flags = activation_flags(gate.act);
    flags.extend(one.then_some("ONE"));
    flags.extend(gate.residual.map(|_| "RESIDUAL"));
    let text = compose(include_str!("../shaders/ops/gate.wgsl"), &flags, &[("THREADS", THREADS)])?;
    let kernel = gpu.kernel("gate", &text, &[Binding::Write, Binding::Uniform])?;
    let [from, _] = RowSpan { width: if one { 4 } else { x.width }, ..x }.quads()?;
    let ([y_from, _], [_, y_stride]) = (RowSpan { offset: y.offset + 4 * gate.first, ..y }.quads()?, y.quads()?);
    let ([to, quads], [added, _]) = (dst.quads()?, gate.residual.unwrap_or(dst).quads()?);
    let mut params = vec![from, y_from, y_stride, added, to, quads, 0, 0];
    params.extend(curve(gate.act).map(f32::to_bits));
    Ok(spread(kernel, vec![BufferRef::Workspace, BufferRef::Params], params, quads, rows))
}

/// Threads of the kernels that work on each value by itself.
pub(super) const THREADS: u32 = 128;

/// A step with so many threads for each row.
pub(super) fn spread(kernel: Arc<Kernel>, buffers: Vec<BufferRef>, params: Vec<u32>, threads: u32, rows: Rows) -> Step {
    let groups = [GroupCount::Fixed(threads.div_ceil(THREADS)), GroupCount::per_row(rows, 1, 1), GroupCount::Fixed(1)];
    Step { kernel, buffers, params, groups }
}

#[cfg(test)]
mod tests;
