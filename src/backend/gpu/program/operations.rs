//! The operations of a graph, a row each: whether there are kernels for it, its memory, and its dispatches with the
//! probe of their kernels. A new operation is a line in [`operation`] and its row.

use super::fusion::Fusions;
use super::lower::Lowering;
use crate::backend::Work;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::ops::kv_cache::MAX_HEAD;
use crate::backend::gpu::ops::matmul::{self, Embed, Gated, MatMul};
use crate::backend::gpu::ops::qkv::Norms;
use crate::backend::gpu::ops::{attention, kv_cache, qkv, rows};
use crate::backend::gpu::probe::Probe;
use crate::backend::gpu::weights::GpuWeights;
use crate::backend::gpu::weights::matrix::Vector;
use crate::graph::{
    Activation, AttentionSpec, Function, HeadNorm, Index, Linear, Node, NodeId, NormKind, NormSpan, NormSpec, Op, Part,
    Values, WeightId, WeightSpec,
};
use crate::{Error, Result};
use std::collections::BTreeSet;

/// One operation.
trait Operation {
    /// Whether there are kernels for a node; `Err` says why not.
    fn supports(&self, node: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
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
        Op::Map(Function::SoftCap(cap)) => Box::new(SoftCap(*cap)),
        Op::Attention(spec) => Box::new(Attention(spec)),
        Op::Map(_)
        | Op::Add { .. }
        | Op::Gate { .. }
        | Op::HeadMatMul { .. }
        | Op::Route(_)
        | Op::ExpertGate { .. }
        | Op::ExpertDown { .. } => Box::new(Unknown(op)),
        Op::ShiftKeys(spec) => Box::new(ShiftKeys(spec)),
        Op::CopyCells(spec) => Box::new(CopyCells(spec)),
    }
}

/// Whether there are kernels for a node; `Err` says why not.
pub fn supports(node: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
    operation(&node.op).supports(node, specs)
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
    pub fn new(work: &Work<'_>, slices: &'a dyn Fn(&[WeightId]) -> Result<usize>) -> Result<Size<'a>> {
        let fusions = Fusions::new(work);
        let mut size = Size { fusions, slices, steps: 0, partial_bytes: 0, ropes: BTreeSet::new() };
        for id in (work.nodes.0..work.nodes.1).map(NodeId) {
            operation(&work.graph.node(id).op).size(id, &mut size)?;
        }
        Ok(size)
    }

    /// Bytes of the workspace that the fusions need, or 0.
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

fn heads(spec: &AttentionSpec) -> std::result::Result<(), String> {
    let dims = [spec.head_dim_k, spec.head_dim_v];
    dims.into_iter().try_for_each(|n| quads("heads", n))?;
    match dims.into_iter().find(|&n| n > MAX_HEAD) {
        Some(n) => Err(format!("heads of {n} values, the kernels take at most {MAX_HEAD}")),
        None => Ok(()),
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

/// An operation without a kernel.
struct Unknown<'a>(&'a Op);

impl Operation for Unknown<'_> {
    fn supports(&self, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        Err(format!("there is no kernel for {}", self.0.name()))
    }

    fn lower(&self, _: NodeId, _: &mut Lowering<'_>) -> Result<()> {
        Err(Error::Unsupported(format!("Operation {} on a GPU", self.0.name())))
    }
}

struct Embedding {
    table: WeightId,
    scale: f32,
    index: Index,
}

impl Operation for Embedding {
    fn supports(&self, node: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        quads("rows", node.width)?;
        match self.index == Index::Token && node.src.is_empty() {
            true => Ok(()),
            false => Err("rows of positions, or rows that are added".into()),
        }
    }

    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.product(&[self.table])
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, table) = (to.gpu, to.weights.matrix(self.table)?);
        let dst = to.span(id);
        let job = Embed { table, scale: self.scale, dst: dst.offset as u64, width: dst.width };
        to.push(matmul::embed(gpu, &job)?, 1, || Probe::embed(gpu, table.ty))
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
    fn supports(&self, node: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        quads("rows", node.width)?;
        match self.norm.plain().is_some() && self.groups == 1 {
            true => Ok(()),
            false => Err(format!("{:?} in {} groups", self.norm, self.groups)),
        }
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
        let weight = self.norm.weight.ok_or_else(|| Error::Internal(format!("Norm {} has no weight", id.0)))?;
        let weight = to.weights.vector(weight)?.bound();
        let residual = node.src.get(1).map(|&r| to.span(r));
        let (x, dst) = (to.span(to.source(id)?), to.span(id));
        let step = rows::norm(gpu, x, weight, self.norm.eps, residual, dst, node.rows)?;
        to.push(vec![step], 1, || Probe::norm(gpu, residual.is_some()))
    }
}

struct Product<'a>(&'a [Linear]);

impl Product<'_> {
    fn weights(&self) -> Vec<WeightId> {
        self.0.iter().map(|part| part.weight).collect()
    }
}

impl Operation for Product<'_> {
    fn supports(&self, _: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
        let spec = |part: &Linear| &specs[part.weight.0 as usize];
        if self.0.iter().any(|part| part.scale.is_some()) {
            return Err("a factor on a product".into());
        }
        self.0.iter().try_for_each(|part| quads("inputs", spec(part).n_in))?;
        let (_, but_last) = self.0.split_last().ok_or("a product without matrices")?;
        but_last.iter().try_for_each(|part| quads("outputs beside others", spec(part).n_out))
    }

    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.product(&self.weights())
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, node, weights) = (to.gpu, to.node(id), to.weights);
        let biases = self.0.iter().map(|part| part.bias.map(|id| weights.vector(id)).transpose());
        let biases = biases.collect::<Result<Vec<_>>>()?;
        // Joined matrices have no biases.
        let parts: Vec<_> = weights.matrices(&self.weights())?.into_iter().zip(biases).collect();
        let dst = to.span(id);
        let job = MatMul {
            parts: &parts,
            input: to.input(id, to.source(id)?)?,
            residual: node.src.get(1).map(|&r| to.span(r).offset as u64),
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

impl GatedProduct {
    /// Gate and up matrix, where there is nothing else.
    fn plain(&self) -> std::result::Result<[WeightId; 2], String> {
        match (self.gate, self.up, self.act) {
            (
                Linear { weight: gate, scale: None, bias: None },
                Some(Linear { weight: up, scale: None, bias: None }),
                Activation::Silu | Activation::Gelu,
            ) => Ok([gate, up]),
            _ => Err(format!("a gate of {:?} with or without another matrix, factors and biases", self.act)),
        }
    }
}

impl Operation for GatedProduct {
    fn supports(&self, _: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
        let [gate, up] = self.plain()?.map(|id| &specs[id.0 as usize]);
        quads("inputs", gate.n_in).and(quads("outputs", gate.n_out))?;
        if gate.ty == up.ty { Ok(()) } else { Err(format!("a gate of {} beside a matrix of {}", gate.ty, up.ty)) }
    }

    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.product(&[self.gate.weight])
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, node, dst) = (to.gpu, to.node(id), to.span(id));
        let [gate, up] = self.plain().map_err(Error::Unsupported)?;
        let job = Gated {
            gate: to.weights.matrix(gate)?,
            up: to.weights.matrix(up)?,
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

struct Attention<'a>(&'a AttentionSpec);

impl Attention<'_> {
    /// The number of the rotary embedding.
    fn rope(&self) -> Result<usize> {
        self.0.rope.ok_or_else(|| Error::Unsupported("Attention without rotation on a GPU".into()))
    }
}

impl Operation for Attention<'_> {
    fn supports(&self, node: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        let spec = self.0;
        heads(spec)?;
        let norm = |norm: &Option<HeadNorm>| {
            norm.is_none_or(|HeadNorm { norm, span }| {
                norm.plain().is_some() && span == NormSpan::Head(spec.head_dim_k) && norm.kind == NormKind::Rms
            })
        };
        let unknown = [
            (spec.rope.is_none() || spec.rope_first > 0, "heads that are not rotated from their first value on"),
            (!spec.writes, "an earlier layer's cache"),
            (node.src.len() != 1, "keys and values beside the queries"),
            (spec.values != Values::Own || spec.v_norm.is_some(), "values that are made of keys, or normalised"),
            (!norm(&spec.q_norm) || !norm(&spec.k_norm) || spec.norm_after_rope, "these norms of heads"),
            (spec.temperature.is_some(), "a temperature"),
            (spec.chunk > 0 || spec.alibi != 0.0 || spec.sinks.is_some(), "chunks, slopes or sinks"),
        ];
        unknown.into_iter().find(|(is, _)| *is).map_or(Ok(()), |(_, what)| Err(format!("attention with {what}")))
    }

    fn size(&self, _: NodeId, size: &mut Size<'_>) -> Result<()> {
        size.steps += 1 + attention::STEPS;
        size.partial_bytes = size.partial_bytes.max(attention::partial_bytes(self.0.n_head, self.0.head_dim_v));
        size.ropes.insert(self.rope()?);
        Ok(())
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (spec, gpu, weights) = (self.0, to.gpu, to.weights);
        let max_rows = to.max_rows(to.node(id).rows);
        let (x, out) = (to.span(to.source(id)?), to.span(id));
        let layout = to.layout(spec)?;
        let norm = |norm: Option<HeadNorm>| {
            let weight = norm.and_then(|norm| norm.norm.weight);
            weight.map(|id| weights.vector(id).map(Vector::bound)).transpose()
        };
        let norms = Norms { q: norm(spec.q_norm)?, k: norm(spec.k_norm)? };
        let rope = self.rope()?;
        let mut steps = vec![qkv::step(gpu, spec, &layout, &*to.rope_table(rope)?, &norms, x)?];
        steps.extend(attention::steps(gpu, spec, &layout, x, out, max_rows)?);
        to.partial_bytes = to.partial_bytes.max(attention::partial_bytes(spec.n_head, spec.head_dim_v));
        let rope = to.rope(rope);
        to.push(steps, max_rows, || Probe::attention(gpu, spec, &layout, rope, max_rows))
    }
}

struct SoftCap(f32);

impl Operation for SoftCap {
    fn supports(&self, node: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        quads("logits", node.width)
    }

    fn lower(&self, id: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let gpu = to.gpu;
        let step = rows::softcap(gpu, to.span(to.source(id)?), to.span(id), self.0, to.node(id).rows)?;
        to.push(vec![step], 1, || Probe::softcap(gpu))
    }
}

struct ShiftKeys<'a>(&'a AttentionSpec);

impl Operation for ShiftKeys<'_> {
    fn supports(&self, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        heads(self.0)
    }

    fn lower(&self, _: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (spec, gpu, layout, rope) = (self.0, to.gpu, to.layout(self.0)?, Attention(self.0).rope()?);
        let step = kv_cache::shift(gpu, &layout, spec.layer, &*to.rope_table(rope)?)?;
        let rope = to.rope(rope);
        to.push(vec![step], 1, || Probe::shift(gpu, spec, &layout, rope))
    }
}

struct CopyCells<'a>(&'a AttentionSpec);

impl Operation for CopyCells<'_> {
    fn supports(&self, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        heads(self.0)
    }

    fn lower(&self, _: NodeId, to: &mut Lowering<'_>) -> Result<()> {
        let (gpu, layout) = (to.gpu, to.layout(self.0)?);
        let step = kv_cache::copy(gpu, &layout, self.0.layer)?;
        to.push(vec![step], 1, || Probe::copy(gpu, &layout))
    }
}
