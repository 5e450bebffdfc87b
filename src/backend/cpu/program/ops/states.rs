//! Operations over the rows of a sequence that keep a state between runs: convolutions and recurrences.
//!
//! A piece of work is a block of columns of the state. It goes through all rows of the batch by itself, sequence by
//! sequence, so that a block stays in the nearest cache and no thread waits for another. The state is read from one
//! cell and written to another: a run that is cancelled leaves the state that it began with.

use crate::Result;
use crate::backend::cpu::kernels::recurrence::{Block, CHANNELS, Conv as Convolution, Vectors};
use crate::backend::cpu::program::demand::Demand;
use crate::backend::cpu::program::lower::Lowering;
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::backend::{NO_STATE, StateRows};
use crate::graph::{ConvSpec, MAX_SOURCES, MAX_TAPS, NodeId, RecurSpec, WeightId};
use crate::simd::LANES;
use std::ops::Range;
use std::ptr;

/// Appends a convolution.
pub fn conv(to: &mut Lowering<'_>, id: NodeId, spec: &ConvSpec) -> Result<()> {
    to.push(Conv { spec: *spec, src: to.span(to.source(id)?), out: to.span(id) });
    Ok(())
}

struct Conv {
    spec: ConvSpec,
    src: RowSpan,
    out: RowSpan,
}

/// Where a row that a convolution meets is.
#[derive(Clone, Copy)]
enum Met {
    Row(usize),
    /// A row of the state, the oldest first.
    State(usize),
}

impl Conv {
    /// What the row `steps` before row `r` is, where `before` names the row that a row comes after.
    fn met(&self, r: usize, steps: usize, before: impl Fn(usize) -> Option<usize>) -> Met {
        let mut row = r;
        for left in (1..=steps).rev() {
            match before(row) {
                Some(earlier) => row = earlier,
                None => return Met::State(self.spec.taps - 1 - left),
            }
        }
        Met::Row(row)
    }

    /// Takes some channels through a sequence's rows.
    fn through(&self, run: &Run<'_>, channels: &Range<usize>, of: &StateRows) {
        let (ConvSpec { taps, first, channels: all, act, .. }, isa) = (self.spec, run.isa);
        let weight = self.spec.weight.and_then(|weight| run.weights.vector(weight).ok());
        let weight = weight.map(|weight| &weight[channels.start * taps..channels.end * taps]);
        let bias = self.spec.bias.and_then(|bias| run.weights.vector(bias).ok()).map(|bias| &bias[channels.clone()]);
        let conv = Convolution { weight, bias, act };
        let rows = of.first as usize..(of.first + of.rows) as usize;
        let parents = run.batch.parents;
        let before = |row: usize| match parents.get(row) {
            None => (row > rows.start).then(|| row - 1),
            Some(&parent) => (parent != NO_STATE).then_some(parent as usize),
        };
        let from = run.state.state(of.from, self.spec.state);
        let place = |met: Met| -> *const f32 {
            match met {
                Met::Row(row) => {
                    // SAFETY: the rows are complete since the last barrier.
                    let row = unsafe { run.row(self.src, row) };
                    row[first + channels.start..].as_ptr()
                }
                Met::State(row) => {
                    from.map_or(ptr::null(), |state| state.wrapping_add(row * all + channels.start).cast_const())
                }
            }
        };
        let met = |row: usize| {
            let mut places = [ptr::null(); MAX_TAPS];
            for (j, at) in places[..taps].iter_mut().enumerate() {
                *at = place(self.met(row, taps - 1 - j, before));
            }
            places
        };
        // SAFETY: each row of the result has these channels, which this piece of work alone writes. The state's rows
        // are as wide as the channels.
        unsafe {
            let out = |row: usize| run.columns_mut(self.out, row, channels.clone()).as_mut_ptr();
            conv.run(isa, channels.len(), rows.clone(), met, out);
            if let Some(to) = run.state.state(of.to, self.spec.state) {
                for j in 0..taps - 1 {
                    let kept = std::slice::from_raw_parts_mut(to.add(j * all + channels.start), channels.len());
                    match place(self.met(rows.end - 1, taps - 2 - j, before)) {
                        from if from.is_null() => kept.fill(0.0),
                        from => kept.copy_from_slice(std::slice::from_raw_parts(from, channels.len())),
                    }
                }
            }
        }
    }
}

impl Step for Conv {
    fn size(&self, demand: &mut Demand) {
        demand.states.push((self.spec.state, self.spec.state_values()));
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let all = self.spec.channels;
        for claimed in run.pieces(ctx, all.div_ceil(CHANNELS), 1) {
            for piece in claimed {
                let channels = piece * CHANNELS..((piece + 1) * CHANNELS).min(all);
                run.batch.states.iter().for_each(|of| self.through(run, &channels, of));
            }
        }
    }
}

/// Appends a recurrence.
pub fn recur(to: &mut Lowering<'_>, id: NodeId, spec: &RecurSpec) -> Result<()> {
    let sources = to.node(id).src.iter().map(|&src| to.span(src)).collect();
    to.push(Recur { spec: *spec, sources, out: to.span(id), rows: to.most_rows(id) });
    Ok(())
}

struct Recur {
    spec: RecurSpec,
    sources: Vec<RowSpan>,
    out: RowSpan,
    /// The most rows.
    rows: usize,
}

impl Recur {
    /// Takes a block through a sequence's rows. In a tree each row goes on from a copy of its parent's state; the
    /// copies are in this thread's scratch memory.
    fn through(&self, run: &Run<'_>, ctx: StepContext<'_>, block: &Block<'_>, of: &StateRows) {
        let values = Block::state_values(&self.spec);
        let at = (block.head * self.spec.values + block.value) / LANES * values;
        let [from, to] = [of.from, of.to].map(|cell| run.state.state(cell, self.spec.state));
        let from = from.map_or(ptr::null(), |state| state.wrapping_add(at).cast_const());
        let scratch = run.state.thread_scratch(ctx.worker.index()).0;
        let rows = of.first as usize..(of.first + of.rows) as usize;
        // SAFETY: each block of the state and its columns belong to one piece of work; `size` asks for a block of
        // scratch memory for each row and one more.
        unsafe {
            let copy = |from: *const f32, to: *mut f32| match from.is_null() {
                true => to.write_bytes(0, values),
                false => to.copy_from_nonoverlapping(from, values),
            };
            match run.batch.parents {
                [] => {
                    let state = to.map_or(scratch, |state| state.add(at));
                    copy(from, state);
                    block.run(run.isa, rows, state);
                }
                parents => {
                    for row in rows {
                        let state = scratch.add(row * values);
                        match parents[row] {
                            NO_STATE => copy(from, state),
                            parent => copy(scratch.add(parent as usize * values), state),
                        }
                        block.run(run.isa, row..row + 1, state);
                    }
                }
            }
        }
    }
}

impl Step for Recur {
    fn size(&self, demand: &mut Demand) {
        demand.states.push((self.spec.state, self.spec.state_values()));
        demand.thread(Block::state_values(&self.spec) * self.rows * 4);
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let vector = |id: Option<WeightId>| id.and_then(|id| run.weights.vector(id).ok()).unwrap_or_default();
        let vectors =
            Vectors { decay: vector(self.spec.decay), bias: vector(self.spec.bias), own: vector(self.spec.rule.own()) };
        let mut sources = [(ptr::null(), 0); MAX_SOURCES];
        for (source, span) in sources.iter_mut().zip(&self.sources) {
            *source = (run.state.workspace(span.offset).cast_const(), span.width);
        }
        let out = (run.state.workspace(self.out.offset), self.out.width);
        let blocks = self.spec.values / LANES;
        for claimed in run.pieces(ctx, self.spec.heads * blocks, 1) {
            for piece in claimed {
                let (head, value) = (piece / blocks, piece % blocks * LANES);
                let block = Block { spec: &self.spec, vectors, sources: &sources, out, head, value };
                run.batch.states.iter().for_each(|of| self.through(run, ctx, &block, of));
            }
        }
    }
}
