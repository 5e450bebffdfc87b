//! Mixtures of experts: which experts a row goes to, and products with their matrices.
//!
//! Each row's chosen experts are multiplied by themselves, whatever other rows chose: a decoded token reads the
//! matrices of its own experts alone. A row's results do not depend on other rows.

use super::activation::{activation_flags, curve};
use super::matmul::{HEAD_ROWS, NONE, Text, Words};
use super::rows::{RowSpan, fold, quads};
use crate::backend::gpu::kernel::dispatch::{BufferRef, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::backend::gpu::weights::layout::{GROUP, TILE};
use crate::backend::gpu::weights::matrix::{Matrix, Vector};
use crate::graph::{Activation, Gating, MAX_EXPERT_GROUPS, RouteSpec, Rows};
use crate::{Error, Result};

const EXPERTS: &str = include_str!("../shaders/ops/experts.wgsl");
/// Lanes along K of a workgroup.
const K_LANES: usize = 16;
/// Threads that choose experts; at least as many as there may be groups.
const ROUTE_THREADS: usize = 128;
/// The most experts that are chosen from: their numbers fit into workgroup memory.
pub const MAX_EXPERTS: usize = 1024;
/// The most experts of a row.
pub const MAX_USED: usize = 64;
/// Sums of weights are at least this, the smallest normal number of half precision.
pub const LEAST_SUM: f32 = 6.103_515_6e-5;
/// Storage buffers that every device can bind.
pub const MAX_BUFFERS: usize = 8;

const _: () = assert!(ROUTE_THREADS >= MAX_EXPERT_GROUPS);

/// Matrices of all experts, one after the other in one matrix.
#[derive(Clone, Copy)]
pub struct Stack<'a> {
    /// The matrix.
    pub matrix: &'a Matrix,
    /// Row of the first expert's matrix.
    pub first: usize,
    /// Rows from one expert's matrix to the next one's.
    pub stride: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// A factor for each expert.
    pub scales: Option<&'a Vector>,
    /// Added to the products, a number for each row of the matrix.
    pub biases: Option<&'a Vector>,
}

/// `dst = act(gate_e · x) ⊙ (up_e · x)` for each chosen expert e, side by side.
pub struct Gate<'a> {
    /// The gates.
    pub gate: Stack<'a>,
    /// The up matrices, of the same layout.
    pub up: Stack<'a>,
    /// Activation of the gate.
    pub act: Activation,
    /// Whether the weights of the route are on `x`.
    pub weighted: bool,
    /// The input.
    pub x: RowSpan,
    /// For each row its experts, then their weights.
    pub route: RowSpan,
    /// The results.
    pub dst: RowSpan,
    /// Which rows.
    pub rows: Rows,
}

/// `dst = Σ w_e (down_e · x_e) + residual` over the chosen experts e.
pub struct Down<'a> {
    /// The matrices.
    pub down: Stack<'a>,
    /// Whether the weights of the route were on the input of the gates.
    pub weighted: bool,
    /// What [`gate`] left.
    pub x: RowSpan,
    /// For each row its experts, then their weights.
    pub route: RowSpan,
    /// Byte offset of rows to add, as wide as `dst`; may be `dst`.
    pub residual: Option<u64>,
    /// The results.
    pub dst: RowSpan,
    /// Which rows.
    pub rows: Rows,
}

/// Storage buffers of a product with stacks of a layout, which have so many factors and biases altogether.
pub fn buffers(narrow: bool, stacks: usize, vectors: usize) -> usize {
    2 + stacks * (1 + usize::from(narrow)) + vectors
}

/// The steps of gated products.
pub fn gate(gpu: &Gpu, g: &Gate<'_>) -> Result<Vec<Step>> {
    let (gate, up) = (&g.gate, &g.up);
    if gate.matrix.layout.format != up.matrix.layout.format {
        let problem = format!("Gates of type {} beside matrices of type {} on a GPU", gate.matrix.ty, up.matrix.ty);
        return Err(Error::Unsupported(problem));
    }
    let same = (gate.first, gate.stride, gate.matrix.n_out) == (up.first, up.stride, up.matrix.n_out);
    if gate.matrix.slices.len() != up.matrix.slices.len() || gate.matrix.slices.len() > 1 && !same {
        return Err(Error::Unsupported("Experts whose gates are in other buffers than what they gate".into()));
    }
    if (gate.matrix.n_in, gate.rows) != (up.matrix.n_in, up.rows) {
        return Err(Error::Internal("Gates and their matrices have different sizes".into()));
    }
    let product = Product {
        first: gate,
        second: Some((up, g.act)),
        weighted: g.weighted,
        x: g.x,
        route: g.route,
        residual: None,
        dst: g.dst,
        rows: g.rows,
    };
    product.steps(gpu)
}

/// The steps of the sum of the experts' results.
pub fn down(gpu: &Gpu, d: &Down<'_>) -> Result<Vec<Step>> {
    let product = Product {
        first: &d.down,
        second: None,
        weighted: !d.weighted,
        x: d.x,
        route: d.route,
        residual: d.residual,
        dst: d.dst,
        rows: d.rows,
    };
    product.steps(gpu)
}

struct Product<'a> {
    first: &'a Stack<'a>,
    second: Option<(&'a Stack<'a>, Activation)>,
    /// Whether the weights of the route are on the products.
    weighted: bool,
    x: RowSpan,
    route: RowSpan,
    residual: Option<u64>,
    dst: RowSpan,
    rows: Rows,
}

impl Product<'_> {
    fn steps(&self, gpu: &Gpu) -> Result<Vec<Step>> {
        let (matrix, used) = (self.first.matrix, self.route.width / 2);
        let (x_width, dst_width) = match self.second {
            Some(_) => (matrix.n_in, used * self.first.rows),
            None => (used * matrix.n_in, self.first.rows),
        };
        let fits = |stack: &Stack<'_>| {
            let parts = [stack.first, stack.stride, stack.rows];
            parts.iter().all(|n| n.is_multiple_of(HEAD_ROWS))
                && stack.stride > 0
                && stack.matrix.n_out.is_multiple_of(stack.stride)
                && stack.first + stack.rows <= stack.stride
                && stack.scales.is_none_or(|scales| scales.len == stack.matrix.n_out / stack.stride)
                && stack.biases.is_none_or(|biases| biases.len == stack.matrix.n_out)
        };
        if (self.x.width, self.dst.width) != (x_width, dst_width)
            || ![Some(self.first), self.second.map(|(up, _)| up)].into_iter().flatten().all(fits)
        {
            return Err(Error::Internal(format!("Rows of {} and {} for experts", self.x.width, self.dst.width)));
        }
        let mut steps = Vec::new();
        for (i, slice) in matrix.slices.iter().enumerate() {
            let mut text = Text::new(&matrix.layout);
            let mut words = Words::of(matrix, slice);
            text.matrix(["WIDE_FIRST", "NARROW_FIRST"], slice);
            let names = ["SCALE_FIRST", "BIND_SCALE_FIRST", "BIAS_FIRST", "BIND_BIAS_FIRST"];
            vectors(&mut text, self.first, names);
            (words.stack, words.stack_rows) = (self.first.first as u32, self.first.stride as u32);
            if let Some((up, act)) = self.second {
                text.matrix(["WIDE_SECOND", "NARROW_SECOND"], &up.matrix.slices[i]);
                let names = ["SCALE_SECOND", "BIND_SCALE_SECOND", "BIAS_SECOND", "BIND_BIAS_SECOND"];
                vectors(&mut text, up, names);
                (words.second_stack, words.second_rows) = (up.first as u32, up.stride as u32);
                text.flags.push("GATED");
                text.flags.extend(activation_flags(act));
                words.curve = curve(act);
            }
            text.flags.extend(self.weighted.then_some("WEIGHTED"));
            text.flags.extend((!matrix.n_in.is_multiple_of(GROUP)).then_some("RAGGED"));
            text.constant("NONE", NONE as usize);
            text.constant("K_LANES", K_LANES);
            text.constant("THREADS", K_LANES * TILE);
            text.constant("SIDES", 1 + usize::from(self.second.is_some()));
            let x = self.x.quads()?;
            let dst = self.dst.quads()?;
            (words.x, words.x_stride, words.dst, words.dst_stride) = (x[0], x[1], dst[0], dst[1]);
            // What earlier slices left is added to.
            let residual = if i > 0 { Some(self.dst.offset as u64) } else { self.residual };
            words.residual = residual.map_or(Ok(NONE), |at| quads("residual", at, 16))?;
            (words.used, words.route) = (used as u32, quads("a route", self.route.offset as u64, 16)?);
            words.part_x = quads("an expert's values", matrix.n_in as u64, 4)?;
            words.part_dst = quads("an expert's results", self.first.rows as u64, 4)?;
            let [tiles, more] = fold(gpu, self.first.rows / TILE)?;
            words.fold = tiles;
            let times = if self.second.is_some() { used as u32 } else { 1 };
            let each = GroupCount::per_row(self.rows, times, 1);
            let groups = [GroupCount::Fixed(tiles), GroupCount::Fixed(more), each];
            steps.push(text.step(gpu, "experts", EXPERTS, &words, groups)?);
        }
        Ok(steps)
    }
}

fn vectors(text: &mut Text, stack: &Stack<'_>, [scaled, bind_scales, biased, bind_biases]: [&'static str; 4]) {
    let pairs = [(stack.scales, scaled, bind_scales), (stack.biases, biased, bind_biases)];
    for (vector, flag, bind) in pairs.into_iter().filter_map(|(vector, flag, bind)| Some((vector?, flag, bind))) {
        text.flags.push(flag);
        text.bind(bind, Binding::Read, vector.bound());
    }
}

/// The step that chooses experts by the rows of `logits`: to `route` go the experts of each row, largest first, then
/// their weights.
pub fn route(
    gpu: &Gpu,
    spec: &RouteSpec,
    bias: Option<&Vector>,
    logits: RowSpan,
    route: RowSpan,
    rows: Rows,
) -> Result<Step> {
    let (experts, used) = (logits.width, spec.used);
    if experts > MAX_EXPERTS || used > MAX_USED.min(experts) || route.width != 2 * used {
        return Err(Error::Internal(format!("{used} of {experts} experts in rows of {}", route.width)));
    }
    // The results of so many rows are whole vec4s.
    let each = if used.is_multiple_of(2) { 1 } else { 2 };
    let mut flags = vec![match spec.gating {
        Gating::Softmax => "SOFTMAX",
        Gating::Sigmoid => "SIGMOID",
        Gating::SoftmaxOfChosen => "CHOSEN",
        Gating::SqrtSoftplus => "SOFTPLUS",
    }];
    flags.extend((spec.groups > 1).then_some("GROUPED"));
    flags.extend(spec.normalize.then_some("NORMALIZE"));
    flags.extend(bias.map(|_| "BIAS"));
    let constants = [
        ("THREADS", ROUTE_THREADS),
        ("EXPERTS", experts),
        ("USED", used),
        ("EACH", each),
        ("GROUPS", spec.groups),
        ("GROUPS_USED", spec.groups_used),
        ("COUNT_AT", usize::from(rows == Rows::Output)),
    ];
    let text =
        compose(include_str!("../shaders/ops/route.wgsl"), &flags, &constants.map(|(name, n)| (name, n as u32)))?;
    let mut bindings = vec![Binding::Write, Binding::Uniform, Binding::Read];
    let mut buffers = vec![BufferRef::Workspace, BufferRef::Params, BufferRef::Frame];
    if let Some(bias) = bias {
        bindings.push(Binding::Read);
        buffers.push(bias.bound());
    }
    let count = GroupCount::per_row(rows, 1, each as u32);
    let [from, to] = [logits, route].map(|span| quads("rows of experts", span.offset as u64, 16));
    Ok(Step {
        kernel: gpu.kernel("route", &text, &bindings)?,
        buffers,
        params: vec![from?, to?, spec.scale.to_bits(), LEAST_SUM.to_bits()],
        groups: [count, GroupCount::Fixed(1), GroupCount::Fixed(1)],
    })
}

#[cfg(test)]
mod tests;
