//! From graph nodes to steps.
//!
//! Short batches are products of one matrix with a few columns; there a norm costs no step of its own, because the product
//! behind it sums the squares while it reads the row anyway. The lowering decides which norms go that way: those that
//! only products read, and whose input still stands when the product runs.

use super::device::Gpu;
use super::heads::Norms;
use super::kv::{KvLayout, MAX_HEAD};
use super::matrix::Vector;
use super::product::{self, Embed, Gated, MatMul, VECTOR_ROWS};
use super::rows::Place;
use super::step::Step;
use super::weights::GpuWeights;
use super::{attend, heads, rows};
use crate::backend::Work;
use crate::graph::{Graph, Node, NodeId, Op, Rows, WeightId, WeightSpec};
use crate::{Error, Result};
use std::collections::HashMap;

/// Lowers the nodes of one program.
pub struct Lowering<'a> {
    gpu: &'a Gpu,
    work: &'a Work<'a>,
    weights: &'a GpuWeights,
    /// The dispatches so far.
    pub steps: Vec<Step>,
    /// Bytes for partial results of attention.
    pub partial_bytes: u64,
    /// Norms without a step of their own: input, weight, epsilon.
    fused: HashMap<NodeId, (NodeId, &'a Vector, f32)>,
}

impl<'a> Lowering<'a> {
    /// Lower the nodes that `work` computes.
    pub fn new(gpu: &'a Gpu, work: &'a Work<'a>, weights: &'a GpuWeights) -> Result<Lowering<'a>> {
        let (steps, fused) = (Vec::new(), HashMap::new());
        let mut lowering = Lowering { gpu, work, weights, steps, partial_bytes: 0, fused };
        for i in work.nodes.0..work.nodes.1 {
            lowering.node(NodeId(i))?;
        }
        Ok(lowering)
    }

    fn graph(&self) -> &'a Graph {
        self.work.graph
    }

    fn offset(&self, id: NodeId) -> u64 {
        self.work.offsets[id.0 as usize] as u64
    }

    fn place(&self, id: NodeId) -> Place {
        Place { offset: self.work.offsets[id.0 as usize], width: self.graph().node(id).width }
    }

    fn max_rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Batch => self.work.max_rows,
            Rows::Output => self.work.max_out_rows,
        }
    }

    /// Whether the products behind a norm can compute it themselves.
    fn can_fuse(&self, id: NodeId, node: &Node) -> bool {
        let readers = |of: NodeId| {
            let nodes = self.graph().nodes.iter().enumerate();
            nodes.filter(move |(_, n)| n.src.contains(&of)).map(|(i, n)| (NodeId(i as u32), n))
        };
        let product = |(reader, n): (NodeId, &Node)| {
            let multiplies = matches!(n.op, Op::MatMul { .. } | Op::GatedMatMul { .. });
            multiplies && n.src.first() == Some(&id) && !n.src[1..].contains(&id) && self.work.computes(reader)
        };
        let Some(last) = readers(id).map(|(reader, _)| reader).max() else { return false };
        // The input is not overwritten before the last product has run, because somebody reads it later still.
        let stands = |x: NodeId| readers(x).any(|(reader, _)| reader > last && self.work.computes(reader));
        let plain = node.src.len() == 1 && node.output.is_none() && self.max_rows(node.rows) <= VECTOR_ROWS;
        plain && readers(id).all(product) && stands(node.src[0])
    }

    /// Where a product finds its rows, and the norm it applies to them.
    fn input(&self, x: NodeId) -> (u64, Option<(&'a Vector, f32)>) {
        match self.fused.get(&x) {
            Some(&(source, weight, eps)) => (self.offset(source), Some((weight, eps))),
            None => (self.offset(x), None),
        }
    }

    fn node(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph().node(id);
        let (gpu, work, weights) = (self.gpu, self.work, self.weights);
        let (dst, width, rows, max_rows) = (self.offset(id), node.width, node.rows, self.max_rows(node.rows));
        let source = node.src.first().copied();
        let residual = node.src.get(1).map(|&r| self.offset(r));
        let x = || source.ok_or_else(|| Error::Internal(format!("Node {} has no input", id.0)));
        match &node.op {
            Op::Hidden => {}
            Op::Embed { table, scale } => {
                let table = weights.matrix(*table)?;
                self.steps.extend(product::embed(gpu, &Embed { table, scale: *scale, dst, width })?);
            }
            Op::SelectRows => self.steps.push(rows::select(gpu, self.place(x()?), self.place(id))?),
            Op::RmsNorm { weight, eps } => {
                let weight = weights.vector(*weight)?;
                if self.can_fuse(id, node) {
                    self.fused.insert(id, (x()?, weight, *eps));
                } else {
                    let residual = node.src.get(1).map(|&r| self.place(r));
                    let (x, dst) = (self.place(x()?), self.place(id));
                    self.steps.push(rows::norm(gpu, x, weight.bound(), *eps, residual, dst, rows)?);
                }
            }
            Op::MatMul { weights: ids, biases } => {
                let matrices = weights.matrices(ids)?;
                let biases = biases.iter().map(|b| b.map(|id| weights.vector(id)).transpose());
                let biases = biases.collect::<Result<Vec<_>>>()?;
                // Joined matrices have no biases.
                let parts: Vec<_> = matrices.into_iter().zip(biases).collect();
                let (x, norm) = self.input(x()?);
                let x_width = self.graph().node(node.src[0]).width;
                let parts = &parts;
                let job = MatMul { parts, norm, x, x_width, residual, dst, width, rows, max_rows };
                self.steps.extend(product::matmul(gpu, &job)?);
            }
            Op::GatedMatMul { gate, up, act } => {
                let (gate, up) = (weights.matrix(*gate)?, weights.matrix(*up)?);
                let (x, norm) = self.input(x()?);
                let x_width = self.graph().node(node.src[0]).width;
                let job = Gated { gate, up, act: *act, norm, x, x_width, dst, width, rows, max_rows };
                self.steps.extend(product::gated(gpu, &job)?);
            }
            Op::Attention(spec) => {
                let (qkv, out) = (self.place(x()?), self.place(id));
                let (heads, dk, dv) = (spec.n_head_kv, spec.head_dim_k, spec.head_dim_v);
                let layout = KvLayout::new(work.cache.ty, heads, dk, dv, work.cache.cells)?;
                let turns = weights.turns(gpu, work.graph, spec.rope)?;
                let norm = |id: Option<_>| id.map(|id| weights.vector(id).map(Vector::bound)).transpose();
                let norms = Norms { q: norm(spec.q_norm)?, k: norm(spec.k_norm)? };
                self.steps.push(heads::step(gpu, spec, &layout, &turns, &norms, qkv)?);
                self.steps.extend(attend::steps(gpu, spec, &layout, qkv, out, max_rows)?);
                self.partial_bytes = self.partial_bytes.max(attend::partial_bytes(spec.n_head, dv));
            }
            Op::SoftCap { cap } => {
                self.steps.push(rows::softcap(gpu, self.place(x()?), self.place(id), *cap, rows)?);
            }
        }
        Ok(())
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
        Op::Attention(spec) => {
            let dims = [spec.head_dim_k, spec.head_dim_v];
            dims.into_iter().try_for_each(|n| quads("heads", n))?;
            match dims.into_iter().find(|&n| n > MAX_HEAD) {
                Some(n) => Err(format!("heads of {n} values, the kernels take at most {MAX_HEAD}")),
                None => Ok(()),
            }
        }
    }
}
