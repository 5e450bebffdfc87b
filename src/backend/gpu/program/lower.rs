//! The state of lowering, for the operations of `operations.rs`: the places of nodes' rows, and the steps so far.
//!
//! Norms that `fusion.rs` fused into the products after them have no steps; nodes are at the plan's offsets, except
//! those that it moved.

use super::fusion::Fusions;
use crate::backend::Work;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{BufferRef, Step};
use crate::backend::gpu::ops::experts;
use crate::backend::gpu::ops::kv_cache::KvLayout;
use crate::backend::gpu::ops::matmul::{Added, Input, Norm, Term};
use crate::backend::gpu::ops::rows::{self, RowSpan};
use crate::backend::gpu::probe::{self, Probe};
use crate::backend::gpu::weights::GpuWeights;
use crate::backend::gpu::weights::matrix::Vector;
use crate::backend::gpu::weights::rope_table::RopeTable;
use crate::graph::{AttentionSpec, Linear, Node, NodeId, NormSpec, Op, RopeKind, Rows, Stack, WeightId};
use crate::{Error, Result};
use std::sync::Arc;

/// The lowering of one program.
pub struct Lowering<'a> {
    pub gpu: &'a Gpu,
    work: &'a Work<'a>,
    pub weights: &'a GpuWeights,
    /// The dispatches so far.
    pub steps: Vec<Step>,
    /// Bytes for partial results of attention.
    pub partial_bytes: u64,
    /// Norms without a step of their own, and products whose rows are made narrow.
    pub fusions: Fusions,
    /// Whether some kernel is not tested on this device.
    pub left_out: bool,
}

impl<'a> Lowering<'a> {
    /// For the nodes that `work` computes.
    pub fn new(gpu: &'a Gpu, work: &'a Work<'a>, weights: &'a GpuWeights) -> Lowering<'a> {
        let (steps, fusions) = (Vec::new(), Fusions::new(gpu, work));
        Lowering { gpu, work, weights, steps, partial_bytes: 0, fusions, left_out: false }
    }

    /// A node of the graph.
    pub fn node(&self, id: NodeId) -> &'a Node {
        self.work.graph.node(id)
    }

    /// A node's first input.
    pub fn source(&self, id: NodeId) -> Result<NodeId> {
        let source = self.node(id).src.first();
        source.copied().ok_or_else(|| Error::Internal(format!("Node {} has no input", id.0)))
    }

    /// The most rows of a node with these rows.
    pub fn max_rows(&self, rows: Rows) -> usize {
        self.work.max_rows(rows)
    }

    fn offset(&self, id: NodeId) -> u64 {
        self.span(id).offset as u64
    }

    /// Where the rows of a node are.
    pub fn span(&self, id: NodeId) -> RowSpan {
        let planned = self.work.offsets[id.0 as usize];
        RowSpan { offset: self.fusions.place(id, planned), width: self.node(id).width }
    }

    /// Where the rows are that are added to a node's result.
    pub fn residual(&self, id: NodeId) -> Option<RowSpan> {
        self.node(id).residual().map(|residual| self.span(residual))
    }

    /// A matrix with what belongs to it.
    pub fn term(&self, linear: &Linear) -> Result<Term<'a>> {
        let weights = self.weights;
        Ok(Term {
            scale: linear.scale.map(|id| weights.number(id)).transpose()?,
            bias: linear.bias.map(|id| weights.vector(id)).transpose()?,
            ..Term::plain(weights.matrix(linear.weight)?)
        })
    }

    /// The matrices of all experts.
    pub fn stack(&self, stack: &Stack) -> Result<experts::Stack<'a>> {
        let weights = self.weights;
        Ok(experts::Stack {
            matrix: weights.matrix(stack.linear.weight)?,
            first: stack.first,
            stride: stack.stride,
            rows: stack.rows,
            scales: stack.linear.scale.map(|id| weights.vector(id)).transpose()?,
            biases: stack.linear.bias.map(|id| weights.vector(id)).transpose()?,
        })
    }

    /// A vector for a step, where there is one.
    pub fn bound(&self, id: Option<WeightId>) -> Result<Option<BufferRef>> {
        id.map(|id| self.weights.vector(id).map(Vector::bound)).transpose()
    }

    /// The rows of a node's second source.
    pub fn second(&self, id: NodeId) -> Result<RowSpan> {
        let second = self.node(id).src.get(1).map(|&second| self.span(second));
        second.ok_or_else(|| Error::Internal(format!("Node {} has no second input", id.0)))
    }

    /// A norm of so many parts of rows, of so many values each.
    pub fn rows_norm(&self, norm: &NormSpec, width: usize, parts: usize) -> Result<rows::Norm> {
        let (weight, bias) = (self.bound(norm.weight)?, self.bound(norm.bias)?);
        let own = norm.weight.is_some_and(|weight| self.work.specs[weight.0 as usize].n_in > width);
        Ok(rows::Norm { kind: norm.kind, weight, bias, eps: norm.eps, width, parts, own })
    }

    /// Appends a function of a node's source, plus its residual.
    pub fn map(&mut self, id: NodeId, map: rows::Map) -> Result<()> {
        let (gpu, x, residual) = (self.gpu, self.span(self.source(id)?), self.residual(id));
        let step = rows::map(gpu, x, map, residual, self.span(id), self.node(id).rows)?;
        self.push(vec![step], 1, || Probe::map(gpu, map, residual.is_some()))
    }

    /// The weight and epsilon of an RMS norm that has nothing else.
    fn norm(&self, id: NodeId) -> Result<(&'a Vector, f32)> {
        match self.node(id).op {
            Op::Norm { norm: NormSpec { weight: Some(weight), eps, .. }, .. } => {
                Ok((self.weights.vector(weight)?, eps))
            }
            _ => Err(Error::Internal(format!("Node {} is no norm with a weight", id.0))),
        }
    }

    /// The input rows of a product, and the norms that it applies to them.
    pub fn input(&self, product: NodeId, x: NodeId) -> Result<Input<'a>> {
        if !self.fusions.is_fused(x) {
            let RowSpan { offset, width } = self.span(x);
            let narrow = self.fusions.narrow(product).map(|(narrow, at)| (narrow, at as u64));
            return Ok(Input { x: offset as u64, width, norm: None, narrow });
        }
        let source = self.node(x).src[0];
        let joined = self.fusions.joined(product).map(|sum| {
            let [y, residual] = [0, 1].map(|i| self.node(sum).src[i]);
            let (weight, eps) = self.norm(sum)?;
            Ok((residual, Added { y: self.offset(y), weight, eps, sum: self.offset(sum) }))
        });
        let (source, added) = joined.transpose()?.map_or((source, None), |(x, added)| (x, Some(added)));
        let (weight, eps) = self.norm(x)?;
        let RowSpan { offset, width } = self.span(source);
        Ok(Input { x: offset as u64, width, norm: Some(Norm { weight, eps, added }), narrow: None })
    }

    /// Pairing and number of the values that a rotary embedding rotates.
    pub fn rope(&self, rope: usize) -> (RopeKind, usize) {
        let rope = &self.work.graph.ropes[rope];
        (rope.kind, rope.n_rot)
    }

    /// The cache of a layer.
    pub fn layout(&self, spec: &AttentionSpec) -> Result<KvLayout> {
        let (cache, cells) = (self.work.cache, self.work.cache.cells_of(spec.layer));
        let layout = KvLayout::new(cache.types, spec.n_head_kv, spec.head_dim_k, spec.head_dim_v, cells)?;
        Ok(layout.of(cache.table_of(spec.layer)))
    }

    /// The frequencies of a rotary embedding on the device.
    pub fn rope_table(&self, rope: usize) -> Result<Arc<RopeTable>> {
        self.weights.rope_table(self.gpu, self.work.graph, rope, self.work.cache.context)
    }

    /// Append these steps and a known-answer test of their kernels. The kernels are made for `max_rows` rows; 1 means
    /// any number.
    pub fn push(&mut self, steps: Vec<Step>, max_rows: usize, make: impl FnOnce() -> Result<Probe>) -> Result<()> {
        if probe::left_out(self.gpu, max_rows) {
            self.left_out = true;
        } else {
            self.gpu.add_trial(steps.iter().map(|step| &step.kernel), make)?;
        }
        self.steps.extend(steps);
        Ok(())
    }
}
