//! Lowers graph nodes to steps. A step is what all threads do between two barriers.
//!
//! Besides fusing nothing that the graph did not fuse already, lowering decides where activations are needed as
//! `f32` and where in eight bits: matrices of quantised weights read rows that were quantised once, by the step
//! that produced them where it can. Quantised rows live in two scratch areas: one for what a norm or a plain
//! quantise step leaves, one for the gated product, which is written while the first is still read.
//!
//! Lowering needs the weights' types and shapes only, so it also says what memory a program will need before they are
//! loaded.

use super::isa::Isa;
use super::kv::KvLayout;
use super::panels::ActKind;
use super::state::CpuState;
use super::steps::{GATED_FLOATS, Run, Step, Turn};
use super::weights::CpuWeights;
use super::{acts, attention, pool};
use crate::backend::rope::Rope;
use crate::backend::{Batch, Program, State, Weights, Work};
use crate::graph::{AttentionSpec, Graph, Node, NodeId, Op, Part, RopeKind, WeightId, WeightSpec, WeightUse};
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Which scratch area holds quantised rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acts {
    /// From norms and quantise steps.
    Main,
    /// From gated products.
    Gated,
}

/// How a node's readers want its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Wanted {
    f32: bool,
    q8: bool,
}

pub(super) struct CpuProgram {
    pub(super) isa: Isa,
    pub(super) weights: Arc<CpuWeights>,
    pub(super) steps: Vec<Step>,
    pub(super) ropes: Vec<(RopeKind, Rope)>,
    pub(super) demand: Demand,
}

/// Memory that a program needs besides workspace and cache.
pub(super) struct Demand {
    /// Rows of the largest batch.
    pub max_rows: usize,
    /// Bytes of one area of quantised rows.
    pub act_bytes: usize,
    /// Bytes of the rotary tables.
    pub rope_bytes: usize,
    /// The attentions whose caches the program works on.
    pub attentions: Vec<AttentionSpec>,
}

impl Demand {
    /// What the program of `work` will need.
    pub fn of(work: &Work<'_>) -> Result<Demand> {
        Lowering::of(work).map(|lowering| lowering.demand())
    }

    /// Bytes of scratch memory that each thread needs, a multiple of the page size; `layout` gives a layer's cache.
    pub fn thread_bytes<'a>(&self, layout: impl Fn(usize) -> &'a KvLayout) -> usize {
        let attention = self.attentions.iter().map(|s| attention::scratch_bytes(layout(s.layer), s.n_head)).max();
        (3 * GATED_FLOATS * 4).max(attention.unwrap_or(0)).next_multiple_of(4096)
    }
}

impl CpuProgram {
    pub fn new(isa: Isa, work: &Work<'_>, weights: &Weights) -> Result<CpuProgram> {
        let weights = Arc::downcast::<CpuWeights>(weights.0.clone())
            .map_err(|_| Error::Internal("Weights of another backend".into()))?;
        for (weight, usage) in nodes_of(work).iter().flat_map(|node| node.weights()) {
            match usage {
                WeightUse::Vector => drop(weights.vector(weight)?),
                WeightUse::MatMul => drop(weights.panels(weight)?),
                WeightUse::Rows | WeightUse::RowsAndMatMul => {}
            }
        }
        let lowering = Lowering::of(work)?;
        let (demand, steps) = (lowering.demand(), lowering.steps);
        let used = |rope| steps.iter().filter_map(Step::cache).any(|spec| spec.rope == rope);
        let ropes = work.graph.ropes.iter().enumerate().map(|(i, spec)| {
            let factors = spec.factors.filter(|_| used(i)).map_or(Ok(&[][..]), |id| weights.vector(id))?;
            Ok((spec.kind, Rope::new(spec.n_rot, spec.freq_base, factors, spec.scaling)))
        });
        let ropes = ropes.collect::<Result<_>>()?;
        Ok(CpuProgram { isa, weights, steps, ropes, demand })
    }
}

impl CpuProgram {
    /// Floats of the rotary tables in front of embedding `i`.
    pub fn rope_offset(&self, i: usize) -> usize {
        self.ropes[..i].iter().map(|(_, rope)| rope.n_rot() * self.demand.max_rows).sum()
    }
}

fn cpu_state(state: &mut dyn State) -> Result<&mut CpuState> {
    state.as_any().downcast_mut().ok_or_else(|| Error::Internal("A state of another backend".into()))
}

impl Program for CpuProgram {
    fn reserve(&self, state: &mut dyn State, workspace_bytes: usize) -> Result<()> {
        cpu_state(state)?.reserve(&self.demand, workspace_bytes)
    }

    fn run(&self, state: &mut dyn State, batch: &Batch<'_>, out_rows: usize, cancel: &AtomicBool) -> Result<()> {
        let (memory, split) = cpu_state(state)?.begin(&self.demand, batch)?;
        let run = Run::new(self, memory, split, batch, out_rows, cancel);
        let _active = pool::Pool::engine_started();
        pool::Pool::global().run(run.threads(), cancel, &|worker| {
            for (index, step) in self.steps.iter().enumerate() {
                run.step(Turn { worker, index }, step);
                worker.barrier();
                if run.ends_after(index) {
                    return;
                }
            }
        })?;
        run.finish()
    }
}

/// The nodes that a program computes.
fn nodes_of<'a>(work: &Work<'a>) -> &'a [Node] {
    &work.graph.nodes[work.nodes.0 as usize..work.nodes.1 as usize]
}

struct Lowering<'a> {
    work: &'a Work<'a>,
    steps: Vec<Step>,
    act_row_bytes: usize,
}

impl<'a> Lowering<'a> {
    fn of(work: &'a Work<'a>) -> Result<Lowering<'a>> {
        let mut lowering = Lowering { work, steps: Vec::new(), act_row_bytes: 0 };
        let any = |wanted: fn(&Op) -> bool| nodes_of(work).iter().any(|node| wanted(&node.op));
        if any(|op| matches!(op, Op::Attention(_) | Op::ShiftKeys(_))) && !any(|op| matches!(op, Op::Embed { .. })) {
            lowering.steps.push(Step::Rope);
        }
        for i in work.nodes.0..work.nodes.1 {
            lowering.node(NodeId(i))?;
        }
        Ok(lowering)
    }

    fn demand(&self) -> Demand {
        let rows = self.work.max_rows.max(self.work.max_out_rows);
        let tables: usize = self.graph().ropes.iter().map(|rope| rope.n_rot * self.work.max_rows * 4).sum();
        let attentions = nodes_of(self.work).iter().filter_map(|node| node.attention().cloned());
        Demand {
            max_rows: self.work.max_rows,
            act_bytes: (self.act_row_bytes * rows).next_multiple_of(64),
            rope_bytes: tables,
            attentions: attentions.collect(),
        }
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
    fn wanted(&self, id: NodeId) -> Wanted {
        let mut wanted = Wanted { f32: self.graph().node(id).output.is_some(), q8: false };
        for &reader in self.work.readers.of_node(id) {
            // Readers on another device take a copy as `f32`.
            let here = self.work.computes(reader);
            let reader = self.graph().node(reader);
            for (i, _) in reader.src.iter().enumerate().filter(|(_, s)| **s == id) {
                match (&reader.op, i) {
                    _ if !here => wanted.f32 = true,
                    (Op::MatMul { weights, .. }, 0) => self.add_kinds(weights, &mut wanted),
                    (Op::GatedMatMul { gate, up, .. }, 0) => self.add_kinds(&[*gate, *up], &mut wanted),
                    _ => wanted.f32 = true,
                }
            }
        }
        wanted
    }

    fn add_kinds(&self, weights: &[WeightId], wanted: &mut Wanted) {
        for &w in weights {
            match ActKind::of(self.spec(w).ty) {
                ActKind::F32 => wanted.f32 = true,
                ActKind::Q8 => wanted.q8 = true,
            }
        }
    }

    /// Where a product finds its quantised input, after a quantise step if the producer did not leave it.
    fn quantised(&mut self, x: NodeId, weights: &[WeightId]) -> Acts {
        let mut kinds = Wanted::default();
        self.add_kinds(weights, &mut kinds);
        let node = self.graph().node(x);
        let (width, rows) = (node.width, node.rows);
        if kinds.q8 {
            self.act_row_bytes = self.act_row_bytes.max(acts::row_bytes(width));
        }
        let here = self.work.computes(x);
        match node.op {
            Op::GatedMatMul { .. } if here => Acts::Gated,
            Op::RmsNorm { .. } if here && node.output.is_none() => Acts::Main,
            _ if kinds.q8 => {
                self.steps.push(Step::Quantise { src: self.offset(x), width, rows });
                Acts::Main
            }
            _ => Acts::Main,
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
                let wanted = self.wanted(id);
                // Rows that outlive the run are quantised by whoever reads them, here or in a later run.
                let q8 = wanted.q8 && node.output.is_none();
                self.steps.push(Step::Norm { weight, eps, src, residual, dst, width, rows, q8 });
            }
            Op::MatMul { weights, biases } => {
                let acts = self.quantised(input()?, &weights);
                let mut parts = Vec::with_capacity(weights.len());
                let mut column = 0;
                for (weight, bias) in weights.into_iter().zip(biases) {
                    parts.push((weight, bias, column));
                    column += self.spec(weight).n_out;
                }
                let x_width = self.graph().node(input()?).width;
                let logits = node.part == Part::Head;
                self.steps.push(Step::MatMul { parts, acts, src, x_width, residual, dst, width, rows, logits });
            }
            Op::GatedMatMul { gate, up, act } => {
                let acts = self.quantised(input()?, &[gate, up]);
                let x_width = self.graph().node(input()?).width;
                let wanted = self.wanted(id);
                if wanted.q8 {
                    self.act_row_bytes = self.act_row_bytes.max(acts::row_bytes(width));
                }
                let Wanted { f32, q8 } = wanted;
                self.steps.push(Step::Gated { gate, up, act, acts, src, x_width, dst, width, rows, f32, q8 });
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
