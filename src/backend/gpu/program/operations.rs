//! The operations of a graph, a row each: whether there are kernels for it, its memory, and its dispatches with the
//! probe of their kernels. A new operation is a line in [`operation`] and its row.

use super::fusion::Fusions;
use super::lower::Lowering;
use crate::backend::Work;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::ops::attention::Queries;
use crate::backend::gpu::ops::kv_cache::{MAX_HEAD, Shift};
use crate::backend::gpu::ops::matmul::{self, Embed, Gated, Heads, MatMul, Term};
use crate::backend::gpu::ops::qkv::{Norms, Preparation, Source, Vectors};
use crate::backend::gpu::ops::rows::PartColumns;
use crate::backend::gpu::ops::streams::{self, By};
use crate::backend::gpu::ops::{attention, experts, kv_cache, rows, states};
use crate::backend::gpu::probe::Probe;
use crate::backend::gpu::weights::GpuWeights;
use crate::backend::gpu::weights::layout::Layout;
use crate::backend::gpu::weights::matrix::Matrix;
use crate::graph::{
    Activation, AttentionSpec, Coefficients, ConvSpec, Function, HeadNorm, Index, Linear, Node, NodeId, NormKind,
    NormSpan, NormSpec, Op, Part, RecurSpec, RouteSpec, Stack, WeightId, WeightSpec,
};
use crate::{Error, Result};
use std::collections::BTreeSet;

/// One operation.
trait Operation {
    /// Whether there are kernels for a node; `Err` says why not.
    fn supports(&self, _: &Gpu, node: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        quads("rows", node.width)
    }

    /// Adds a node's dispatches and memory.
    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.steps += 1;
        Ok(())
    }

    /// Appends a node's steps and the probes of their kernels.
    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()>;
}

/// The row of an operation.
fn operation(op: &Op) -> Box<dyn Operation + '_> {
    match op {
        Op::Hidden => Box::new(Hidden),
        Op::Embed { table, scale, index } => Box::new(Embedding { table: *table, scale: *scale, index: *index }),
        Op::SelectRows => Box::new(SelectRows),
        Op::Norm { norm, groups } => Box::new(Norm { norm: *norm, groups: *groups }),
        Op::MatMul(parts) => Box::new(Product(parts)),
        Op::GatedMatMul { gate, up, act } => Box::new(GatedProduct { gate: *gate, up: *up, act: *act }),
        Op::Map(function) => Box::new(Map(*function)),
        Op::Add { scale } => Box::new(Add(*scale)),
        Op::Gate { act, first } => Box::new(Gate { act: *act, first: *first }),
        Op::Mix { parts, sums, coefficients } => Box::new(Mix { parts: *parts, sums: *sums, coefficients }),
        Op::Equalize => Box::new(Equalize),
        Op::Sparsify { deviations } => Box::new(Sparsify(*deviations)),
        Op::Columns { parts, first } => Box::new(Columns { parts: *parts, first: *first }),
        Op::Conv(spec) => Box::new(Conv(spec)),
        Op::Recur(spec) => Box::new(Recur(spec)),
        Op::Attention(spec) => Box::new(Attention(spec)),
        Op::HeadMatMul { weight, heads, keep } => Box::new(HeadProduct { weight: *weight, heads: *heads, keep: *keep }),
        Op::Route(spec) => Box::new(Route(spec)),
        Op::ExpertGate { gate, up, act, weighted } => {
            Box::new(ExpertGate { gate, up: up.as_ref(), act: *act, weighted: *weighted })
        }
        Op::ExpertDown { down, weighted } => Box::new(ExpertDown { down, weighted: *weighted }),
        Op::WriteKeys(_) => Box::new(WriteKeys),
        Op::ShiftKeys(spec) => Box::new(ShiftKeys(spec)),
        Op::CopyCells(spec) => Box::new(CopyCells(spec)),
    }
}

/// Whether there are kernels for a node; `Err` says why not.
pub fn supports(gpu: &Gpu, node: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
    operation(&node.op).supports(gpu, node, specs)
}

/// Lowers the nodes that `work` computes.
pub fn lower<'a>(gpu: &'a Gpu, work: &'a Work<'a>, weights: &'a GpuWeights) -> Result<Lowering<'a>> {
    let mut lowering = Lowering::new(gpu, work, weights);
    for id in (work.nodes.0..work.nodes.1).map(NodeId) {
        operation(&work.graph.node(id).op).lower(id, &mut lowering)?;
    }
    Ok(lowering)
}

/// The dispatches and memory of some work's nodes, without lowering them.
pub struct Size<'a> {
    gpu: &'a Gpu,
    work: &'a Work<'a>,
    fusions: Fusions,
    /// The number of dispatches of a product of these matrices.
    slices: &'a dyn Fn(&[WeightId]) -> Result<usize>,
    /// Dispatches.
    pub steps: usize,
    /// Bytes for partial results of attention.
    pub partial_bytes: u64,
    /// The rotary embeddings in use, by their index in the graph.
    pub ropes: BTreeSet<usize>,
}

impl<'a> Size<'a> {
    /// The size of `work`, where a product of matrices `ids` is `slices(ids)` dispatches.
    pub fn new(gpu: &'a Gpu, work: &'a Work<'a>, slices: &'a dyn Fn(&[WeightId]) -> Result<usize>) -> Result<Size<'a>> {
        let fusions = Fusions::new(gpu, work);
        let mut size = Size { gpu, work, fusions, slices, steps: 0, partial_bytes: 0, ropes: BTreeSet::new() };
        for id in (work.nodes.0..work.nodes.1).map(NodeId) {
            operation(&work.graph.node(id).op).size(id, &mut size)?;
        }
        Ok(size)
    }

    /// Bytes of the workspace.
    pub fn workspace_bytes(&self) -> usize {
        self.fusions.workspace_bytes
    }

    fn product(&mut self, ids: &[WeightId]) -> Result<()> {
        self.steps += (self.slices)(ids)?;
        Ok(())
    }
}

/// Rows are read four values at a time.
fn quads(what: &str, n: usize) -> std::result::Result<(), String> {
    match n.is_multiple_of(4) {
        true => Ok(()),
        false => Err(format!("{what} of {n} values, the kernels need a multiple of 4")),
    }
}

/// Whether there are kernels for an attention and for its cache.
fn attends(spec: &AttentionSpec) -> std::result::Result<(), String> {
    if spec.distance.is_some() {
        return Err("no kernel for biases by distance".into());
    }
    let dims = [spec.head_dim_k, spec.head_dim_v];
    dims.into_iter().try_for_each(|n| quads("heads", n))?;
    if let Some(n) = dims.into_iter().find(|&n| n > MAX_HEAD) {
        return Err(format!("heads of {n} values, the kernels take at most {MAX_HEAD}"));
    }
    for HeadNorm { span, .. } in [spec.q_norm, spec.k_norm].into_iter().flatten() {
        if let NormSpan::Head(width) = span {
            quads("norms of heads", width)?;
        }
    }
    match spec.v_norm {
        Some(norm) if norm.kind != NormKind::Rms || norm.weight.or(norm.bias).is_some() => {
            Err("values with another norm than an RMS norm without weights".into())
        }
        _ => Ok(()),
    }
}

struct Hidden;

impl Operation for Hidden {
    fn size(&self, _: NodeId, _: &mut Size<'_>) -> Result<()> {
        Ok(())
    }

    fn lower(&self, _: NodeId, _: &mut Lowering<'_>) -> Result<()> {
        Ok(())
    }
}

struct Embedding {
    table: WeightId,
    scale: f32,
    index: Index,
}

impl Operation for Embedding {
    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.product(&[self.table])
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, table) = (to.gpu, to.weights.matrix(self.table)?);
        let (dst, residual) = (to.span(id), to.residual(id).map(|span| span.offset as u64));
        let (scale, index) = (self.scale, self.index);
        let job = Embed { table, scale, index, residual, dst: dst.offset as u64, width: dst.width };
        to.push(matmul::embed(gpu, &job)?, 1, || Probe::embed(gpu, &job))
    }
}

struct SelectRows;

impl Operation for SelectRows {
    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let gpu = to.gpu;
        let step = rows::select(gpu, to.span(to.source(id)?), to.span(id))?;
        to.push(vec![step], 1, || Probe::select(gpu))
    }
}

struct Norm {
    norm: NormSpec,
    groups: usize,
}

impl Operation for Norm {
    fn supports(&self, _: &Gpu, node: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        quads("rows", node.width / self.groups)
    }

    fn size(&self, id: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.steps += usize::from(!size.fusions.is_fused(id));
        Ok(())
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        if to.fusions.is_fused(id) {
            return Ok(());
        }
        let (gpu, node) = (to.gpu, to.node(id));
        let (x, dst, residual) = (to.span(to.source(id)?), to.span(id), to.residual(id));
        let norm = to.rows_norm(&self.norm, node.width / self.groups, self.groups)?;
        let step = rows::norm(gpu, x, &norm, residual, dst, node.rows)?;
        to.push(vec![step], 1, || Probe::norm(gpu, &norm, residual.is_some()))
    }
}

struct Product<'a>(&'a [Linear]);

impl Product<'_> {
    fn weights(&self) -> Vec<WeightId> {
        self.0.iter().map(|part| part.weight).collect()
    }
}

impl Operation for Product<'_> {
    fn supports(&self, _: &Gpu, node: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
        let spec = |part: &Linear| &specs[part.weight.0 as usize];
        if node.width != 1 || node.residual().is_some() {
            quads("outputs", node.width)?;
        }
        self.0.iter().try_for_each(|part| quads("inputs", spec(part).n_in))?;
        let (_, but_last) = self.0.split_last().ok_or("a product without matrices")?;
        but_last.iter().try_for_each(|part| quads("outputs beside others", spec(part).n_out))
    }

    fn size(&self, id: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.steps += usize::from(size.fusions.narrow(id).is_some());
        size.product(&self.weights())
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, node, weights) = (to.gpu, to.node(id), to.weights);
        let parts = match weights.joined(&self.weights()) {
            // Joined matrices have neither factors nor biases.
            Some(matrix) => vec![Term::plain(matrix)],
            None => self.0.iter().map(|part| to.term(part)).collect::<Result<_>>()?,
        };
        let dst = to.span(id);
        let job = MatMul {
            parts: &parts,
            input: to.input(id, to.source(id)?)?,
            residual: to.residual(id).map(|span| span.offset as u64),
            dst: dst.offset as u64,
            width: dst.width,
            rows: node.rows,
            max_rows: to.max_rows(node.rows),
            logits: node.part == Part::Head,
        };
        to.push(matmul::matmul(gpu, &job)?, job.max_rows, || Probe::matmul(gpu, &job))
    }
}

struct GatedProduct {
    gate: Linear,
    up: Option<Linear>,
    act: Activation,
}

impl Operation for GatedProduct {
    fn supports(&self, _: &Gpu, _: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
        let spec = |linear: &Linear| &specs[linear.weight.0 as usize];
        let gate = spec(&self.gate);
        quads("inputs", gate.n_in).and(quads("outputs", gate.n_out))?;
        match self.up.as_ref().map(spec).filter(|up| up.ty != gate.ty) {
            Some(up) => Err(format!("a gate of {} beside a matrix of {}", gate.ty, up.ty)),
            None => Ok(()),
        }
    }

    fn size(&self, id: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.steps += usize::from(size.fusions.narrow(id).is_some());
        size.product(&[self.gate.weight])
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, node, dst) = (to.gpu, to.node(id), to.span(id));
        let job = Gated {
            gate: to.term(&self.gate)?,
            up: self.up.map(|up| to.term(&up)).transpose()?,
            act: self.act,
            input: to.input(id, to.source(id)?)?,
            dst: dst.offset as u64,
            width: dst.width,
            rows: node.rows,
            max_rows: to.max_rows(node.rows),
        };
        to.push(matmul::gated(gpu, &job)?, job.max_rows, || Probe::gated(gpu, &job))
    }
}

struct HeadProduct {
    weight: WeightId,
    heads: usize,
    keep: usize,
}

impl Operation for HeadProduct {
    fn supports(&self, _: &Gpu, _: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
        quads("inputs", specs[self.weight.0 as usize].n_in).and(quads("ends of heads", self.keep))
    }

    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.steps += usize::from(self.keep > 0);
        size.product(&[self.weight])
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, node) = (to.gpu, to.node(id));
        let job = Heads {
            matrix: to.weights.matrix(self.weight)?,
            heads: self.heads,
            keep: self.keep,
            x: to.span(to.source(id)?),
            dst: to.span(id),
            rows: node.rows,
            max_rows: to.max_rows(node.rows),
        };
        to.push(matmul::heads(gpu, &job)?, job.max_rows, || Probe::heads(gpu, &job))
    }
}

struct Route<'a>(&'a RouteSpec);

impl Operation for Route<'_> {
    fn supports(&self, _: &Gpu, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        match self.0.used > experts::MAX_USED {
            true => Err(format!("{} experts of a row, the kernel chooses at most {}", self.0.used, experts::MAX_USED)),
            false => Ok(()),
        }
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, spec, rows) = (to.gpu, self.0, to.node(id).rows);
        let bias = spec.bias.map(|id| to.weights.vector(id)).transpose()?;
        let logits = to.span(to.source(id)?);
        let step = experts::route(gpu, spec, bias, logits, to.span(id), rows)?;
        to.push(vec![step], 1, || Probe::route(gpu, spec, logits.width, rows))
    }
}

/// Whether there are kernels for products with these stacks.
fn stacks(gpu: &Gpu, stacks: &[&Stack], specs: &[WeightSpec]) -> std::result::Result<(), String> {
    let spec = |stack: &Stack| &specs[stack.linear.weight.0 as usize];
    let (Some(first), Some(last)) = (stacks.first(), stacks.last()) else { return Ok(()) };
    quads("inputs", spec(first).n_in)?;
    if first.experts > experts::MAX_EXPERTS {
        return Err(format!("{} experts, the kernels take at most {}", first.experts, experts::MAX_EXPERTS));
    }
    if spec(first).ty != spec(last).ty {
        return Err(format!("gates of {} beside matrices of {}", spec(first).ty, spec(last).ty));
    }
    let layout = Layout::new(spec(first).ty, spec(first).n_in).map_err(|error| error.to_string())?;
    let vectors = stacks.iter().flat_map(|stack| [stack.linear.scale, stack.linear.bias]).flatten().count();
    if experts::buffers(layout.is_narrow(), stacks.len(), vectors) > experts::MAX_BUFFERS {
        return Err(format!("{vectors} factors and biases of experts beside matrices of {}", spec(first).ty));
    }
    let place = |stack: &Stack| (stack.first, stack.stride, spec(stack).n_out);
    let slices = |spec: &WeightSpec| {
        Matrix::slice_bytes(gpu, &spec.name, spec.ty, spec.n_in, spec.n_out).map(|slices| slices.len())
    };
    let whole = |stack: &Stack| slices(spec(stack)).is_ok_and(|slices| slices == 1);
    if place(first) != place(last) && !(whole(first) && whole(last)) {
        return Err("experts whose gates and matrices are in several buffers".into());
    }
    Ok(())
}

struct ExpertGate<'a> {
    gate: &'a Stack,
    up: Option<&'a Stack>,
    act: Activation,
    weighted: bool,
}

impl Operation for ExpertGate<'_> {
    fn supports(&self, gpu: &Gpu, _: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
        match self.up {
            Some(up) => stacks(gpu, &[self.gate, up], specs),
            None => Err("experts without a gate".into()),
        }
    }

    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.product(&[self.gate.linear.weight])
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let gpu = to.gpu;
        let up = self.up.ok_or_else(|| Error::Internal("Experts without a gate on a GPU".into()))?;
        let job = experts::Gate {
            gate: to.stack(self.gate)?,
            up: to.stack(up)?,
            act: self.act,
            weighted: self.weighted,
            x: to.span(to.source(id)?),
            route: to.second(id)?,
            dst: to.span(id),
            rows: to.node(id).rows,
        };
        to.push(experts::gate(gpu, &job)?, 1, || Probe::expert_gate(gpu, &job))
    }
}

struct ExpertDown<'a> {
    down: &'a Stack,
    weighted: bool,
}

impl Operation for ExpertDown<'_> {
    fn supports(&self, gpu: &Gpu, _: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
        stacks(gpu, &[self.down], specs)
    }

    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.product(&[self.down.linear.weight])
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let gpu = to.gpu;
        let job = experts::Down {
            down: to.stack(self.down)?,
            weighted: self.weighted,
            x: to.span(to.source(id)?),
            route: to.second(id)?,
            residual: to.residual(id).map(|span| span.offset as u64),
            dst: to.span(id),
            rows: to.node(id).rows,
        };
        to.push(experts::down(gpu, &job)?, 1, || Probe::expert_down(gpu, &job))
    }
}

struct Attention<'a>(&'a AttentionSpec);

impl Operation for Attention<'_> {
    fn supports(&self, _: &Gpu, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        attends(self.0)
    }

    fn size(&self, id: NodeId, size: &mut Size<'_>) -> Result<()> {
        let spec = self.0;
        size.steps += attention::count(size.gpu, spec, size.work.max_rows(size.work.graph.node(id).rows))?;
        size.partial_bytes = size.partial_bytes.max(attention::partial_bytes(spec.n_head, spec.head_dim_v));
        size.ropes.extend(spec.rope);
        Ok(())
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (spec, gpu, node) = (self.0, to.gpu, to.node(id));
        let max_rows = to.max_rows(node.rows);
        let q = to.span(to.source(id)?);
        let (kv, kv_first) = match node.src.get(1) {
            Some(&kv) => (to.span(kv), 0),
            None => (q, spec.q_width()),
        };
        let source = Source { q, kv, kv_first: if spec.writes { kv_first } else { 0 }, rows: node.rows };
        let vectors = |norm: Option<HeadNorm>| -> Result<Vectors> {
            let (weight, bias) = norm.map_or((None, None), |norm| (norm.norm.weight, norm.norm.bias));
            Ok(Vectors { weight: to.bound(weight)?, bias: to.bound(bias)? })
        };
        let norms = Norms { q: vectors(spec.q_norm)?, k: vectors(spec.k_norm)? };
        let layout = to.layout(spec)?;
        let table = spec.rope.map(|rope| to.rope_table(rope)).transpose()?;
        let preparation = Preparation { spec, layout: &layout, rope: table.as_deref(), norms: &norms, source: &source };
        let (out, rows, sinks) = (to.span(id), node.rows, to.bound(spec.sinks)?);
        let steps = attention::steps(gpu, &preparation, &Queries { q, out, rows, max_rows, sinks })?;
        to.partial_bytes = to.partial_bytes.max(attention::partial_bytes(spec.n_head, spec.head_dim_v));
        let turns = spec.rope.map(|rope| to.rope(rope));
        to.push(steps, max_rows, || Probe::attention(gpu, spec, &layout, turns, rows, max_rows))
    }
}

struct Mix<'a> {
    parts: usize,
    sums: usize,
    coefficients: &'a Coefficients,
}

impl Operation for Mix<'_> {
    fn supports(&self, _: &Gpu, node: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        quads("parts of rows", node.width / self.sums)?;
        match self.coefficients {
            Coefficients::OfRow { .. } => quads("rows of coefficients", self.parts * self.sums),
            Coefficients::Fixed(values) if values.len() > streams::MAX_FIXED => {
                Err(format!("{} coefficients, the kernel takes at most {}", values.len(), streams::MAX_FIXED))
            }
            _ => Ok(()),
        }
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, node) = (to.gpu, to.node(id));
        let by = match self.coefficients {
            Coefficients::Fixed(values) => By::Fixed(values.clone()),
            Coefficients::OfRow { plus } => By::Row(to.second(id)?, *plus),
        };
        let job = streams::Mix {
            x: to.span(to.source(id)?),
            parts: self.parts,
            by,
            residual: to.residual(id),
            dst: to.span(id),
            rows: node.rows,
        };
        to.push(vec![streams::mix(gpu, &job)?], 1, || Probe::mix(gpu, &job))
    }
}

struct Equalize;

impl Operation for Equalize {
    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, x, y) = (to.gpu, to.span(to.source(id)?), to.second(id)?);
        let step = streams::equalize(gpu, x, y, to.span(id), to.node(id).rows)?;
        to.push(vec![step], 1, || Probe::equalize(gpu))
    }
}

struct Sparsify(f32);

impl Operation for Sparsify {
    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let gpu = to.gpu;
        let step = rows::sparsify(gpu, to.span(to.source(id)?), self.0, to.span(id), to.node(id).rows)?;
        to.push(vec![step], 1, || Probe::sparsify(gpu))
    }
}

struct Columns {
    parts: usize,
    first: usize,
}

impl Operation for Columns {
    fn supports(&self, _: &Gpu, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        Ok(())
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, node, parts) = (to.gpu, to.node(id), self.parts);
        let x = PartColumns { of: to.span(to.source(id)?), first: self.first };
        let dst = PartColumns { of: to.span(id), first: 0 };
        let step = rows::columns(gpu, x, dst, parts, node.width / parts, node.rows)?;
        to.push(vec![step], 1, || Probe::columns(gpu))
    }
}

struct Conv<'a>(&'a ConvSpec);

impl Operation for Conv<'_> {
    fn supports(&self, _: &Gpu, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        quads("convolved columns after others", self.0.first)
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (spec, gpu) = (self.0, to.gpu);
        let job = states::Conv {
            state: spec.state,
            x: to.span(to.source(id)?),
            first: spec.first,
            taps: spec.taps,
            factors: to.bound(spec.weight)?,
            bias: to.bound(spec.bias)?,
            act: spec.act,
            dst: to.span(id),
        };
        to.push(vec![states::conv(gpu, &job)?], 1, || Probe::conv(gpu, &job))
    }
}

struct Recur<'a>(&'a RecurSpec);

impl Operation for Recur<'_> {
    fn supports(&self, _: &Gpu, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        Ok(())
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (spec, gpu) = (self.0, to.gpu);
        let sources: Vec<_> = to.node(id).src.iter().map(|&source| to.span(source)).collect();
        let job = states::Recur {
            spec,
            sources: &sources,
            decay: to.bound(spec.decay)?,
            bias: to.bound(spec.bias)?,
            own: to.bound(spec.rule.own())?,
            dst: to.span(id),
        };
        to.push(vec![states::recur(gpu, &job)?], 1, || Probe::recur(gpu, &job))
    }
}

struct Map(Function);

impl Operation for Map {
    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let map = match self.0 {
            Function::ScaleBy(weight) if to.weights.vector(weight)?.len > 1 => return columns(id, weight, to),
            Function::Scale(factor) => rows::Map::Scale(factor),
            Function::ScaleBy(weight) => rows::Map::Scale(to.weights.number(weight)?),
            Function::SoftCap(cap) => rows::Map::SoftCap(cap),
            Function::Clamp(limit) => rows::Map::Clamp(limit),
        };
        to.map(id, map)
    }
}

/// Appends factors of columns.
fn columns(id: NodeId, factors: WeightId, to: &mut Lowering<'_>) -> Result<()> {
    let (gpu, x, factors) = (to.gpu, to.span(to.source(id)?), to.weights.vector(factors)?.bound());
    let step = rows::multiply(gpu, x, factors, to.span(id), to.node(id).rows)?;
    to.push(vec![step], 1, || Probe::multiply(gpu))
}

struct Add(f32);

impl Operation for Add {
    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        to.map(id, rows::Map::Scale(self.0))
    }
}

struct Gate {
    act: Activation,
    first: usize,
}

impl Operation for Gate {
    fn supports(&self, _: &Gpu, node: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        quads("rows", node.width).and(quads("rows from a column on, after others", self.first))
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, node) = (to.gpu, to.node(id));
        let job = rows::Gate {
            x: to.span(to.source(id)?),
            act: self.act,
            y: to.second(id)?,
            first: self.first,
            residual: to.residual(id),
            dst: to.span(id),
            rows: node.rows,
        };
        to.push(vec![rows::gate(gpu, &job)?], 1, || Probe::gate(gpu, &job))
    }
}

struct ShiftKeys<'a>(&'a AttentionSpec);

impl ShiftKeys<'_> {
    /// Factors that a norm after the rotation left on the keys, which are not turned.
    fn factors(&self) -> Option<WeightId> {
        let spec = self.0;
        let head = |norm: &HeadNorm| norm.span == NormSpan::Head(spec.head_dim_k);
        spec.k_norm.filter(|norm| spec.norm_after_rope && head(norm)).and_then(|norm| norm.norm.weight)
    }
}

/// Keys and values of a text that another attends to.
struct WriteKeys;

impl Operation for WriteKeys {
    fn supports(&self, _: &Gpu, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        Err("keys that are only written".into())
    }

    fn lower(&self, _: NodeId, _: &mut Lowering<'_>) -> Result<()> {
        Err(Error::Internal("Keys that are only written have no kernel".into()))
    }
}

impl Operation for ShiftKeys<'_> {
    fn supports(&self, _: &Gpu, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        attends(self.0)
    }

    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.steps += usize::from(self.0.rope.is_some());
        Ok(())
    }

    fn lower(&self, _: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (spec, gpu, layout) = (self.0, to.gpu, to.layout(self.0)?);
        let Some(rope) = spec.rope else { return Ok(()) };
        let factors = to.bound(self.factors())?;
        let table = to.rope_table(rope)?;
        let step = kv_cache::shift(gpu, &layout, spec.layer, &Shift { rope: &table, first: spec.rope_first, factors })?;
        let turns = to.rope(rope);
        to.push(vec![step], 1, || Probe::shift(gpu, spec, &layout, turns))
    }
}

struct CopyCells<'a>(&'a AttentionSpec);

impl Operation for CopyCells<'_> {
    fn supports(&self, _: &Gpu, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        attends(self.0)
    }

    fn lower(&self, _: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, layout) = (to.gpu, to.layout(self.0)?);
        let step = kv_cache::copy(gpu, &layout, self.0.layer)?;
        to.push(vec![step], 1, || Probe::copy(gpu, &layout))
    }
}
