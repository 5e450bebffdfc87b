//! Graph nodes on their way to steps: where their rows are, and in which form.
//!
//! Besides fusing nothing that the graph did not fuse already, lowering decides where activations are needed as `f32`
//! and where in eight bits: matrices of quantised weights read rows that were quantised once, by the step that produced
//! them where it can. Quantised rows live in scratch areas: one for what a norm or a plain quantise step leaves, one
//! for the gated product, which is written while the first is still read, and one for rows sorted by expert. An area
//! holds the rows of one node at a time; a reader that comes when they were overwritten quantises them again.
//!
//! Lowering needs the weights' types and shapes only, so it also says what memory a program will need before they are
//! loaded.

use super::demand::{AREAS, Area, Demand};
use super::run::{RowSpan, Step};
use crate::backend::Work;
use crate::backend::cpu::packed::ActivationKind;
use crate::graph::{Linear, Node, NodeId, Op, WeightId, WeightSpec};
use crate::{Error, Result};

/// The forms in which a node's readers want its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Forms {
    pub f32: bool,
    pub q8: bool,
}

/// The steps of a program, and the memory that they need.
pub(super) struct Lowering<'a> {
    pub work: &'a Work<'a>,
    pub steps: Vec<Box<dyn Step>>,
    pub demand: Demand,
    /// The node whose rows each area holds.
    holders: [Option<NodeId>; AREAS],
}

impl<'a> Lowering<'a> {
    /// Without steps.
    pub fn new(work: &'a Work<'a>) -> Lowering<'a> {
        let rope_bytes = work.graph.ropes.iter().map(|rope| rope.n_rot * work.max_rows * 4).sum();
        let demand = Demand::new((work.max_rows, work.max_out_rows), rope_bytes);
        Lowering { work, steps: Vec::new(), demand, holders: [None; AREAS] }
    }

    /// The nodes that the program computes.
    pub fn nodes(&self) -> &'a [Node] {
        &self.work.graph.nodes[self.work.nodes.0 as usize..self.work.nodes.1 as usize]
    }

    /// Appends a step.
    pub fn push(&mut self, step: impl Step + 'static) {
        step.size(&mut self.demand);
        self.steps.push(Box::new(step));
    }

    /// Says that an area holds the rows of a node from now on: `per_row` rows of `width` values for each of its rows.
    pub fn hold(&mut self, area: Area, id: NodeId, per_row: usize, width: usize) {
        self.demand.area(area, self.most_rows(id) * per_row, width);
        self.holders[area as usize] = Some(id);
    }

    /// Says that an area holds nobody's rows from now on, but so many of `width` values that only the next step reads.
    pub fn lend(&mut self, area: Area, rows: usize, width: usize) {
        self.demand.area(area, rows, width);
        self.holders[area as usize] = None;
    }

    /// Whether an area holds the rows of a node.
    pub fn holds(&self, area: Area, id: NodeId) -> bool {
        self.holders[area as usize] == Some(id)
    }

    /// The most rows of a node.
    pub fn most_rows(&self, id: NodeId) -> usize {
        self.work.max_rows(self.node(id).rows)
    }

    pub fn spec(&self, id: WeightId) -> &'a WeightSpec {
        &self.work.specs[id.0 as usize]
    }

    pub fn node(&self, id: NodeId) -> &'a Node {
        self.work.graph.node(id)
    }

    /// The first source of a node.
    pub fn source(&self, id: NodeId) -> Result<NodeId> {
        let source = self.node(id).src.first().copied();
        source.ok_or_else(|| Error::Internal(format!("Node {} has no input", id.0)))
    }

    /// Where the rows of a node are.
    pub fn span(&self, id: NodeId) -> RowSpan {
        RowSpan { offset: self.work.offsets[id.0 as usize], width: self.node(id).width }
    }

    /// Where the rows are that are added to a node's.
    pub fn residual(&self, id: NodeId) -> Option<RowSpan> {
        self.node(id).residual().map(|residual| self.span(residual))
    }

    /// How the readers of `id` want it.
    pub fn forms(&self, id: NodeId) -> Forms {
        let mut forms = Forms { f32: self.node(id).output.is_some(), q8: false };
        for &reader in self.work.readers.of_node(id) {
            // Readers on another device take a copy as `f32`.
            let here = self.work.computes(reader);
            let reader = self.node(reader);
            for (i, _) in reader.src.iter().enumerate().filter(|(_, s)| **s == id) {
                let wanted = match (&reader.op, i) {
                    (Op::MatMul(parts), 0) if here => self.multiplied(parts),
                    (Op::GatedMatMul { gate, up, .. }, 0) if here => self.multiplied([gate].into_iter().chain(up)),
                    (Op::ExpertGate { gate, up, .. }, 0) if here => {
                        self.multiplied([gate].into_iter().chain(up).map(|stack| &stack.linear))
                    }
                    (Op::ExpertDown { down, .. }, 0) if here => self.multiplied([&down.linear]),
                    _ => Forms { f32: true, q8: false },
                };
                forms = Forms { f32: forms.f32 | wanted.f32, q8: forms.q8 | wanted.q8 };
            }
        }
        forms
    }

    /// The forms of the rows that these matrices multiply.
    pub fn multiplied<'l>(&self, parts: impl IntoIterator<Item = &'l Linear>) -> Forms {
        parts.into_iter().fold(Forms::default(), |forms, part| match ActivationKind::of(self.spec(part.weight).ty) {
            ActivationKind::F32 => Forms { f32: true, ..forms },
            ActivationKind::Q8 => Forms { q8: true, ..forms },
        })
    }
}
