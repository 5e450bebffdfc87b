//! Lowers graph nodes to steps. A step is what all threads do between two barriers.
//!
//! Besides fusing nothing that the graph did not fuse already, lowering decides where activations are needed as
//! `f32` and where in eight bits: matrices of quantised weights read rows that were quantised once, by the step
//! that produced them where it can. Quantised rows live in two scratch areas: one for what a norm or a plain
//! quantise step leaves, one for the gated product, which is written while the first is still read.
//!
//! Lowering needs the weights' types and shapes only, so it also says what memory a program will need before they are
//! loaded.

use super::step::{Area, Step};
use crate::backend::Work;
use crate::backend::cpu::kernels::activations;
use crate::backend::cpu::packed::ActivationKind;
use crate::graph::{Graph, Node, NodeId, Op, Part, WeightId, WeightSpec};
use crate::{Error, Result};

/// The forms in which a node's readers want its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Forms {
    f32: bool,
    q8: bool,
}

/// The nodes that a program computes.
pub(super) fn nodes_of<'a>(work: &Work<'a>) -> &'a [Node] {
    &work.graph.nodes[work.nodes.0 as usize..work.nodes.1 as usize]
}

/// The steps of a program, and what was learnt on the way.
pub(super) struct Lowering<'a> {
    work: &'a Work<'a>,
    pub steps: Vec<Step>,
    /// Bytes of the widest quantised row.
    pub activation_row_bytes: usize,
}

impl<'a> Lowering<'a> {
    /// Lower the nodes of `work`.
    pub fn of(work: &'a Work<'a>) -> Result<Lowering<'a>> {
        let mut lowering = Lowering { work, steps: Vec::new(), activation_row_bytes: 0 };
        let any = |test: fn(&Op) -> bool| nodes_of(work).iter().any(|node| test(&node.op));
        if any(|op| matches!(op, Op::Attention(_) | Op::ShiftKeys(_))) && !any(|op| matches!(op, Op::Embed { .. })) {
            lowering.steps.push(Step::Rope);
        }
        for i in work.nodes.0..work.nodes.1 {
            lowering.node(NodeId(i))?;
        }
        Ok(lowering)
    }

    fn spec(&self, id: WeightId) -> &'a WeightSpec {
        &self.work.specs[id.0 as usize]
    }

    fn graph(&self) -> &'a Graph {
        self.work.graph
    }

    fn offset(&self, id: NodeId) -> usize {
        self.work.offsets[id.0 as usize]
    }

    /// How the readers of `id` want it.
    fn forms(&self, id: NodeId) -> Forms {
        let mut forms = Forms { f32: self.graph().node(id).output.is_some(), q8: false };
        for &reader in self.work.readers.of_node(id) {
            // Readers on another device take a copy as `f32`.
            let here = self.work.computes(reader);
            let reader = self.graph().node(reader);
            for (i, _) in reader.src.iter().enumerate().filter(|(_, s)| **s == id) {
                match (&reader.op, i) {
                    _ if !here => forms.f32 = true,
                    (Op::MatMul { weights, .. }, 0) => self.add_kinds(weights, &mut forms),
                    (Op::GatedMatMul { gate, up, .. }, 0) => self.add_kinds(&[*gate, *up], &mut forms),
                    _ => forms.f32 = true,
                }
            }
        }
        forms
    }

    fn add_kinds(&self, weights: &[WeightId], forms: &mut Forms) {
        for &w in weights {
            match ActivationKind::of(self.spec(w).ty) {
                ActivationKind::F32 => forms.f32 = true,
                ActivationKind::Q8 => forms.q8 = true,
            }
        }
    }

    /// Where a product finds its quantised input, after a quantise step if the producer did not leave it.
    fn quantised(&mut self, x: NodeId, weights: &[WeightId]) -> Area {
        let mut kinds = Forms::default();
        self.add_kinds(weights, &mut kinds);
        let node = self.graph().node(x);
        let (width, rows) = (node.width, node.rows);
        if kinds.q8 {
            self.activation_row_bytes = self.activation_row_bytes.max(activations::row_bytes(width));
        }
        let here = self.work.computes(x);
        match node.op {
            Op::GatedMatMul { .. } if here => Area::Gated,
            Op::RmsNorm { .. } if here && node.output.is_none() => Area::Main,
            _ if kinds.q8 => {
                self.steps.push(Step::Quantise { src: self.offset(x), width, rows });
                Area::Main
            }
            _ => Area::Main,
        }
    }

    fn node(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph().node(id).clone();
        let (dst, width, rows) = (self.offset(id), node.width, node.rows);
        let x = node.src.first().copied();
        let src = x.map_or(0, |x| self.offset(x));
        let residual = node.src.get(1).map(|&r| self.offset(r));
        let input = || x.ok_or_else(|| Error::Internal(format!("Node {} has no input", id.0)));
        match node.op {
            Op::Hidden => {}
            Op::Embed { table, scale } => self.steps.push(Step::Embed { table, scale, dst, width }),
            Op::SelectRows => self.steps.push(Step::SelectRows { src, dst, width }),
            Op::RmsNorm { weight, eps } => {
                let forms = self.forms(id);
                // Rows that outlive the run are quantised by whoever reads them, here or in a later run.
                let q8 = forms.q8 && node.output.is_none();
                self.steps.push(Step::Norm { weight, eps, src, residual, dst, width, rows, q8 });
            }
            Op::MatMul { weights, biases } => {
                let area = self.quantised(input()?, &weights);
                let mut parts = Vec::with_capacity(weights.len());
                let mut column = 0;
                for (weight, bias) in weights.into_iter().zip(biases) {
                    parts.push((weight, bias, column));
                    column += self.spec(weight).n_out;
                }
                let x_width = self.graph().node(input()?).width;
                let logits = node.part == Part::Head;
                self.steps.push(Step::MatMul { parts, area, src, x_width, residual, dst, width, rows, logits });
            }
            Op::GatedMatMul { gate, up, act: activation } => {
                let area = self.quantised(input()?, &[gate, up]);
                let x_width = self.graph().node(input()?).width;
                let forms = self.forms(id);
                if forms.q8 {
                    self.activation_row_bytes = self.activation_row_bytes.max(activations::row_bytes(width));
                }
                let Forms { f32, q8 } = forms;
                self.steps.push(Step::Gated { gate, up, activation, area, src, x_width, dst, width, rows, f32, q8 });
            }
            Op::Attention(spec) => {
                let qkv_width = self.graph().node(input()?).width;
                self.steps.push(Step::Heads { spec: spec.clone(), qkv: src, qkv_width });
                self.steps.push(Step::Attend { spec, qkv: src, qkv_width, dst, width });
            }
            Op::SoftCap { cap } => self.steps.push(Step::SoftCap { cap, src, dst, width, rows }),
            Op::ShiftKeys(spec) => self.steps.push(Step::ShiftKeys(spec)),
            Op::CopyCells(spec) => self.steps.push(Step::CopyCells(spec)),
        }
        Ok(())
    }
}
