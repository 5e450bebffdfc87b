//! Operations that keep a state of a sequence between runs: convolutions and recurrences, see
//! [`ConvSpec`](crate::graph::ConvSpec) and [`RecurSpec`]. A state is a buffer of cells, each laid out as the CPU's.

use super::activation::activation_flags;
use super::rows::{RowSpan, THREADS, spread};
use crate::backend::gpu::kernel::dispatch::{BufferRef, GroupCount, Step};
use crate::backend::gpu::kernel::strands::STRAND_CONSTANTS;
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::graph::{Activation, Columns, RecurSpec, Rows, Rule};
use crate::{Error, Result};

/// Columns of a head's state that a workgroup has.
const LANES: usize = 16;

/// A causal convolution of columns of rows.
pub struct Conv {
    /// The state.
    pub state: usize,
    /// The rows.
    pub x: RowSpan,
    /// Their first column, a multiple of 4.
    pub first: usize,
    /// Rows that a result is made of.
    pub taps: usize,
    /// Factors; `None` for the difference of the row before.
    pub factors: Option<BufferRef>,
    /// Added per channel.
    pub bias: Option<BufferRef>,
    /// What follows.
    pub act: Activation,
    /// The result, a column for each channel.
    pub dst: RowSpan,
}

/// The step of a convolution.
pub fn conv(gpu: &Gpu, conv: &Conv) -> Result<Step> {
    let Conv { x, dst, .. } = *conv;
    if conv.first + dst.width > x.width {
        return Err(Error::Internal(format!("A convolution of {} columns in rows of {}", dst.width, x.width)));
    }
    let vectors = [(&conv.factors, "FACTORS", "BIND_FACTORS"), (&conv.bias, "BIAS", "BIND_BIAS")];
    let mut kernel = WithState::new(conv.state, &vectors);
    kernel.flags.extend(activation_flags(conv.act));
    kernel.constants.extend([("THREADS", THREADS), ("TAPS", conv.taps as u32)]);
    let text = compose(include_str!("../shaders/ops/conv.wgsl"), &kernel.flags, &kernel.constants)?;
    let [from, _] = RowSpan { offset: x.offset + 4 * conv.first, ..x }.quads()?;
    let ([_, x_stride], [to, quads]) = (x.quads()?, dst.quads()?);
    let made = gpu.kernel("conv", &text, &kernel.bindings)?;
    Ok(spread(made, kernel.buffers, vec![from, x_stride, to, quads], quads, Rows::Batch))
}

/// A recurrence.
pub struct Recur<'a> {
    /// What it does.
    pub spec: &'a RecurSpec,
    /// The rows that its columns are of.
    pub sources: &'a [RowSpan],
    /// [`RecurSpec::decay`].
    pub decay: Option<BufferRef>,
    /// [`RecurSpec::bias`].
    pub bias: Option<BufferRef>,
    /// The rule's own vector.
    pub own: Option<BufferRef>,
    /// The result.
    pub dst: RowSpan,
}

/// The step of a recurrence.
pub fn recur(gpu: &Gpu, recur: &Recur<'_>) -> Result<Step> {
    let spec = recur.spec;
    let vectors = [
        (&recur.decay, "DECAY", "BIND_DECAY"),
        (&recur.bias, "BIAS", "BIND_BIAS"),
        (&recur.own, "OWN_VECTOR", "BIND_OWN"),
    ];
    let mut kernel = WithState::new(spec.state, &vectors);
    kernel.flags.extend(rule_flags(&spec.rule));
    kernel.constants.extend([("THREADS", THREADS), ("KEYS", spec.keys as u32)]);
    let text = compose(include_str!("../shaders/ops/recur.wgsl"), &kernel.flags, &kernel.constants)?;
    let place = |columns: Columns| {
        let span = recur.sources.get(columns.src);
        let span = span.ok_or_else(|| Error::Internal(format!("A recurrence without source {}", columns.src)))?;
        Ok([(span.offset / 4 + columns.first) as u32, span.width as u32])
    };
    // What a rule does not read is not looked at.
    let none = spec.query;
    let (more, rate, eps) = match spec.rule {
        Rule::Delta { write, eps } => (write, none, eps),
        Rule::Wkv7 { removed, rate, .. } => (removed, rate, 0.0),
        _ => (none, none, 0.0),
    };
    let columns = [spec.query, spec.key, spec.value, spec.step, more, rate];
    let mut params = columns.into_iter().map(place).collect::<Result<Vec<_>>>()?.concat();
    params.extend([recur.dst.offset / 4, recur.dst.width].map(|n| n as u32));
    params.extend([spec.heads, spec.key_heads, spec.values].map(|n| n as u32));
    params.extend([eps.to_bits(), u32::from(spec.tiled), 0]);
    let groups = [spec.values / LANES, spec.heads].map(|n| GroupCount::Fixed(n as u32));
    Ok(Step {
        kernel: gpu.kernel("recur", &text, &kernel.bindings)?,
        buffers: kernel.buffers,
        params,
        groups: [groups[0], groups[1], GroupCount::Strands],
    })
}

/// The flags that choose a rule: its name, and what its steps belong to.
fn rule_flags(rule: &Rule) -> &'static [&'static str] {
    match rule {
        Rule::Delta { .. } => &["DELTA", "BY_HEAD"],
        Rule::Ssd { .. } => &["SSD", "BY_HEAD", "STEPPED"],
        Rule::Scan { .. } => &["SCAN", "STEPPED"],
        Rule::Wkv6 { .. } => &["WKV6", "BY_KEY"],
        Rule::Wkv7 { .. } => &["WKV7", "BY_KEY"],
    }
}

/// What the kernels of a state have in common: workspace, parameters, frame and state, then vectors.
struct WithState {
    flags: Vec<&'static str>,
    constants: Vec<(&'static str, u32)>,
    bindings: Vec<Binding>,
    buffers: Vec<BufferRef>,
}

impl WithState {
    /// With these vectors, of those that there are, each by its flag and the constant of its binding.
    fn new(state: usize, vectors: &[(&Option<BufferRef>, &'static str, &'static str)]) -> WithState {
        let mut kernel = WithState {
            flags: Vec::new(),
            constants: STRAND_CONSTANTS.to_vec(),
            bindings: vec![Binding::Write, Binding::Uniform, Binding::Read, Binding::Write],
            buffers: vec![BufferRef::Workspace, BufferRef::Params, BufferRef::Frame, BufferRef::State(state)],
        };
        for &(vector, flag, bind) in vectors {
            if let Some(vector) = vector {
                kernel.flags.push(flag);
                kernel.constants.push((bind, kernel.bindings.len() as u32));
                kernel.bindings.push(Binding::Read);
                kernel.buffers.push(vector.clone());
            }
        }
        kernel
    }
}

#[cfg(test)]
mod tests;
