//! From graph nodes to steps.
//!
//! Norms that `fusion.rs` gives to the products behind them become no steps; the places of nodes are those of the plan,
//! except where it moved them.

use super::fusion::Fusions;
use crate::backend::Work;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::Step;
use crate::backend::gpu::ops::kv_cache::{KvLayout, MAX_HEAD};
use crate::backend::gpu::ops::matmul::{self, Added, Embed, Gated, Input, MatMul, Norm};
use crate::backend::gpu::ops::qkv::Norms;
use crate::backend::gpu::ops::rows::RowSpan;
use crate::backend::gpu::ops::{attention, kv_cache, qkv, rows};
use crate::backend::gpu::probe::{self, Probe};
use crate::backend::gpu::weights::GpuWeights;
use crate::backend::gpu::weights::matrix::Vector;
use crate::graph::{AttentionSpec, Graph, Node, NodeId, Op, Part, RopeKind, Rows, WeightId, WeightSpec};
use crate::{Error, Result};

/// Lowers the nodes of one program.
pub struct Lowering<'a> {
    gpu: &'a Gpu,
    work: &'a Work<'a>,
    weights: &'a GpuWeights,
    /// The dispatches so far.
    pub steps: Vec<Step>,
    /// Bytes for partial results of attention.
    pub partial_bytes: u64,
    /// Norms without a step of their own.
    pub fusions: Fusions,
    /// Whether some kernel is not tried here.
    pub left_out: bool,
}

impl<'a> Lowering<'a> {
    /// Lower the nodes that `work` computes.
    pub fn new(gpu: &'a Gpu, work: &'a Work<'a>, weights: &'a GpuWeights) -> Result<Lowering<'a>> {
        let (steps, fusions) = (Vec::new(), Fusions::new(work));
        let mut lowering = Lowering { gpu, work, weights, steps, partial_bytes: 0, fusions, left_out: false };
        for i in work.nodes.0..work.nodes.1 {
            lowering.node(NodeId(i))?;
        }
        Ok(lowering)
    }

    fn graph(&self) -> &'a Graph {
        self.work.graph
    }

    fn offset(&self, id: NodeId) -> u64 {
        self.place(id).offset as u64
    }

    fn place(&self, id: NodeId) -> RowSpan {
        let planned = self.work.offsets[id.0 as usize];
        RowSpan { offset: self.fusions.place(id, planned), width: self.graph().node(id).width }
    }

    /// A norm's weight and epsilon.
    fn norm(&self, id: NodeId) -> Result<(&'a Vector, f32)> {
        match self.graph().node(id).op {
            Op::RmsNorm { weight, eps } => Ok((self.weights.vector(weight)?, eps)),
            _ => Err(Error::Internal(format!("Node {} is no norm", id.0))),
        }
    }

    /// Where a product finds its rows, and the norms that it applies to them.
    fn input(&self, product: NodeId, x: NodeId) -> Result<Input<'a>> {
        if !self.fusions.is_fused(x) {
            let RowSpan { offset, width } = self.place(x);
            return Ok(Input { x: offset as u64, width, norm: None });
        }
        let source = self.graph().node(x).src[0];
        let joined = self.fusions.joined(product).map(|sum| {
            let [y, residual] = [0, 1].map(|i| self.graph().node(sum).src[i]);
            let (weight, eps) = self.norm(sum)?;
            Ok((residual, Added { y: self.offset(y), weight, eps, sum: self.offset(sum) }))
        });
        let (source, added) = joined.transpose()?.map_or((source, None), |(x, added)| (x, Some(added)));
        let (weight, eps) = self.norm(x)?;
        let RowSpan { offset, width } = self.place(source);
        Ok(Input { x: offset as u64, width, norm: Some(Norm { weight, eps, added }) })
    }

    /// Pairing and number of the values that a layer's heads rotate.
    fn rope(&self, spec: &AttentionSpec) -> (RopeKind, usize) {
        let rope = &self.graph().ropes[spec.rope];
        (rope.kind, rope.n_rot)
    }

    fn layout(&self, spec: &AttentionSpec) -> Result<KvLayout> {
        let cache = self.work.cache;
        KvLayout::new(cache.types, spec.n_head_kv, spec.head_dim_k, spec.head_dim_v, cache.cells)
    }

    /// Have the kernels of these steps tried, which are made for `max_rows` rows, or for any number, which is 1.
    fn push(&mut self, steps: Vec<Step>, max_rows: usize, make: impl FnOnce() -> Result<Probe>) -> Result<()> {
        if probe::left_out(self.gpu, max_rows) {
            self.left_out = true;
        } else {
            self.gpu.add_trial(steps.iter().map(|step| &step.kernel), make)?;
        }
        self.steps.extend(steps);
        Ok(())
    }

    fn node(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph().node(id);
        let (gpu, work, weights) = (self.gpu, self.work, self.weights);
        let (dst, width, rows, max_rows) = (self.offset(id), node.width, node.rows, max_rows(work, node.rows));
        let source = node.src.first().copied();
        let residual = node.src.get(1).map(|&r| self.offset(r));
        let x = || source.ok_or_else(|| Error::Internal(format!("Node {} has no input", id.0)));
        match &node.op {
            Op::Hidden => {}
            Op::Embed { table, scale } => {
                let table = weights.matrix(*table)?;
                let steps = matmul::embed(gpu, &Embed { table, scale: *scale, dst, width })?;
                self.push(steps, 1, || Probe::embed(gpu, table.ty))?;
            }
            Op::SelectRows => {
                let step = rows::select(gpu, self.place(x()?), self.place(id))?;
                self.push(vec![step], 1, || Probe::select(gpu))?;
            }
            Op::RmsNorm { .. } if self.fusions.is_fused(id) => {}
            Op::RmsNorm { weight, eps } => {
                let weight = weights.vector(*weight)?;
                let residual = node.src.get(1).map(|&r| self.place(r));
                let (x, dst) = (self.place(x()?), self.place(id));
                let step = rows::norm(gpu, x, weight.bound(), *eps, residual, dst, rows)?;
                self.push(vec![step], 1, || Probe::norm(gpu, residual.is_some()))?;
            }
            Op::MatMul { weights: ids, biases } => {
                let matrices = weights.matrices(ids)?;
                let biases = biases.iter().map(|b| b.map(|id| weights.vector(id)).transpose());
                let biases = biases.collect::<Result<Vec<_>>>()?;
                // Joined matrices have no biases.
                let parts: Vec<_> = matrices.into_iter().zip(biases).collect();
                let (input, logits) = (self.input(id, x()?)?, node.part == Part::Head);
                let job = MatMul { parts: &parts, input, residual, dst, width, rows, max_rows, logits };
                self.push(matmul::matmul(gpu, &job)?, max_rows, || Probe::matmul(gpu, &job))?;
            }
            Op::GatedMatMul { gate, up, act } => {
                let (gate, up) = (weights.matrix(*gate)?, weights.matrix(*up)?);
                let job = Gated { gate, up, act: *act, input: self.input(id, x()?)?, dst, width, rows, max_rows };
                self.push(matmul::gated(gpu, &job)?, max_rows, || Probe::gated(gpu, &job))?;
            }
            Op::Attention(spec) => {
                let (qkv, out) = (self.place(x()?), self.place(id));
                let layout = self.layout(spec)?;
                let table = weights.rope_table(gpu, work.graph, spec.rope)?;
                let norm = |id: Option<_>| id.map(|id| weights.vector(id).map(Vector::bound)).transpose();
                let norms = Norms { q: norm(spec.q_norm)?, k: norm(spec.k_norm)? };
                let mut steps = vec![qkv::step(gpu, spec, &layout, &table, &norms, qkv)?];
                steps.extend(attention::steps(gpu, spec, &layout, qkv, out, max_rows)?);
                self.partial_bytes = self.partial_bytes.max(attention::partial_bytes(spec.n_head, spec.head_dim_v));
                let rope = self.rope(spec);
                self.push(steps, max_rows, || Probe::attention(gpu, spec, &layout, rope, max_rows))?;
            }
            Op::SoftCap { cap } => {
                let step = rows::softcap(gpu, self.place(x()?), self.place(id), *cap, rows)?;
                self.push(vec![step], 1, || Probe::softcap(gpu))?;
            }
            Op::ShiftKeys(spec) => {
                let (layout, table) = (self.layout(spec)?, weights.rope_table(gpu, work.graph, spec.rope)?);
                let step = kv_cache::shift(gpu, &layout, spec.layer, &table)?;
                let rope = self.rope(spec);
                self.push(vec![step], 1, || Probe::shift(gpu, spec, &layout, rope))?;
            }
            Op::CopyCells(spec) => {
                let layout = self.layout(spec)?;
                self.push(vec![kv_cache::copy(gpu, &layout, spec.layer)?], 1, || Probe::copy(gpu, &layout))?;
            }
        }
        Ok(())
    }
}

/// How many steps the lowering of `work` makes where a product of matrices `ids` is `slices(ids)` dispatches.
pub fn count(work: &Work<'_>, slices: impl Fn(&[WeightId]) -> Result<usize>) -> Result<usize> {
    let fusions = Fusions::new(work);
    let steps = |id: NodeId| {
        let node = work.graph.node(id);
        match &node.op {
            Op::Hidden => Ok(0),
            Op::SelectRows | Op::SoftCap { .. } | Op::ShiftKeys(_) | Op::CopyCells(_) => Ok(1),
            Op::RmsNorm { .. } => Ok(usize::from(!fusions.is_fused(id))),
            Op::Embed { table, .. } => slices(&[*table]),
            Op::MatMul { weights, .. } => slices(weights),
            Op::GatedMatMul { gate, .. } => slices(&[*gate]),
            Op::Attention(_) => Ok(1 + attention::STEPS),
        }
    };
    (work.nodes.0..work.nodes.1).map(|i| steps(NodeId(i))).sum()
}

/// The most rows of a node.
fn max_rows(work: &Work<'_>, rows: Rows) -> usize {
    match rows {
        Rows::Batch => work.max_rows,
        Rows::Output => work.max_out_rows,
    }
}

/// Whether there are kernels for a node; `Err` says why not.
pub fn supports(node: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
    let spec = |id: &WeightId| &specs[id.0 as usize];
    // Rows are read four values at a time.
    let quads = |what: &str, n: usize| match n.is_multiple_of(4) {
        true => Ok(()),
        false => Err(format!("{what} of {n} values, the kernels need a multiple of 4")),
    };
    match &node.op {
        Op::Hidden | Op::Embed { .. } | Op::SelectRows | Op::RmsNorm { .. } => quads("rows", node.width),
        Op::SoftCap { .. } => quads("logits", node.width),
        Op::MatMul { weights, .. } => {
            weights.iter().try_for_each(|id| quads("inputs", spec(id).n_in))?;
            let (_, but_last) = weights.split_last().ok_or("a product without matrices")?;
            but_last.iter().try_for_each(|id| quads("outputs beside others", spec(id).n_out))
        }
        Op::GatedMatMul { gate, up, .. } => {
            let (gate, up) = (spec(gate), spec(up));
            quads("inputs", gate.n_in).and(quads("outputs", gate.n_out))?;
            if gate.ty == up.ty { Ok(()) } else { Err(format!("a gate of {} beside a matrix of {}", gate.ty, up.ty)) }
        }
        Op::Attention(spec) | Op::ShiftKeys(spec) | Op::CopyCells(spec) => {
            let dims = [spec.head_dim_k, spec.head_dim_v];
            dims.into_iter().try_for_each(|n| quads("heads", n))?;
            match dims.into_iter().find(|&n| n > MAX_HEAD) {
                Some(n) => Err(format!("heads of {n} values, the kernels take at most {MAX_HEAD}")),
                None => Ok(()),
            }
        }
    }
}
