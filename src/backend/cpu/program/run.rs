//! A run of a program on all its threads: the trait of its steps, and what they work on.
//!
//! Threads claim pieces of a step's work from its counter, so a slow core never holds the others. Between two steps
//! all threads meet at a barrier; nothing a step writes is read before it. Buffers are raw memory that all threads
//! share: each piece of work writes rows or columns that no other piece touches.

use super::demand::{Area, Demand};
use super::state::RunMemory;
use crate::backend::cpu::host::pool::{Chunks, Worker};
use crate::backend::cpu::kernels::attention::SplitShare;
use crate::backend::cpu::kernels::norm::Norm;
use crate::backend::cpu::packed::PANEL;
use crate::backend::cpu::packed::weights::CpuWeights;
use crate::backend::rope::Rope;
use crate::backend::{Batch, TableCells};
use crate::graph::{NormSpec, RopeKind, Rows, WeightId};
use crate::simd::Isa;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Pieces per thread that a matrix product is cut into, so that uneven threads even out.
const PIECES_PER_THREAD: usize = 8;

/// A step of a program: what all threads do between two barriers.
pub(super) trait Step: Send + Sync {
    /// Adds the memory that it needs besides the workspace and areas of quantised rows.
    fn size(&self, _: &mut Demand) {}

    /// Does this thread's part.
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>);
}

/// One thread at one step.
#[derive(Clone, Copy)]
pub(super) struct StepContext<'a> {
    pub worker: &'a Worker<'a>,
    /// The step's index in the program.
    pub index: usize,
}

/// Rows in the workspace: the first byte, and the values of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RowSpan {
    pub offset: usize,
    pub width: usize,
}

/// One run of a program: where everything is. Shared by the run's threads.
pub(super) struct Run<'a> {
    pub isa: Isa,
    pub weights: &'a CpuWeights,
    /// The rotary embeddings.
    pub ropes: &'a [(RopeKind, Rope)],
    /// Rows of the largest batch.
    pub max_rows: usize,
    pub batch: &'a Batch<'a>,
    pub out_rows: usize,
    pub state: &'a RunMemory,
    pub split: SplitShare<'a>,
    cancel: &'a AtomicBool,
    /// Index of the step after which every thread leaves; `usize::MAX` while there is none. It is a number and not a
    /// flag because a fast thread may be one step ahead: what it decides there must not make a slow thread, which is
    /// still looking after the last barrier, leave a step early.
    stop_after: AtomicUsize,
    cancelled: AtomicBool,
    failed: Mutex<Option<Error>>,
}

impl<'a> Run<'a> {
    pub fn new(
        isa: Isa,
        weights: &'a CpuWeights,
        (ropes, max_rows): (&'a [(RopeKind, Rope)], usize),
        (state, split): (&'a RunMemory, SplitShare<'a>),
        (batch, out_rows): (&'a Batch<'a>, usize),
        cancel: &'a AtomicBool,
    ) -> Run<'a> {
        let (stop_after, cancelled, failed) = (AtomicUsize::new(usize::MAX), AtomicBool::new(false), Mutex::new(None));
        Run { isa, weights, ropes, max_rows, batch, out_rows, state, split, cancel, stop_after, cancelled, failed }
    }

    pub fn threads(&self) -> usize {
        self.state.threads()
    }

    /// After a run of `steps` steps: the step to go on from, where it was left.
    pub fn finish(self, steps: usize) -> Result<Option<usize>> {
        match self.failed.into_inner() {
            Some(error) => Err(error),
            None if self.cancelled.into_inner() => Err(Error::Cancelled),
            None => Ok(self.stop_after.into_inner().checked_add(1).filter(|&next| next < steps)),
        }
    }

    /// Leaves the run after the step `index`, to go on later.
    pub fn leave_after(&self, index: usize) {
        self.stop_after.fetch_min(index, Ordering::Relaxed);
    }

    /// Makes the run fail with `error`, after the step `index`.
    pub fn fail(&self, index: usize, error: Error) {
        self.failed.lock().get_or_insert(error);
        self.stop_after.fetch_min(index, Ordering::Relaxed);
    }

    /// Whether the run ends with the step `index`; asked after that step's barrier, all threads hear the same.
    pub fn ends_after(&self, index: usize) -> bool {
        self.stop_after.load(Ordering::Relaxed) <= index
    }

    /// Pieces of the step's work that this thread claims, none any more once the run is cancelled. What a cancelled
    /// step leaves undone is never read: all threads leave after its barrier.
    pub fn pieces<'c>(
        &'c self,
        ctx: StepContext<'c>,
        total: usize,
        grain: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<'c> {
        self.unless_cancelled(ctx, ctx.worker.chunks(&self.state.counters[0], total, grain))
    }

    /// As [`Run::pieces`], in pieces of at most `most` that shrink with what is left, so that slow cores even out.
    pub fn shrinking_pieces<'c>(
        &'c self,
        ctx: StepContext<'c>,
        total: usize,
        most: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<'c> {
        self.unless_cancelled(ctx, ctx.worker.shrinking_chunks(&self.state.counters[0], total, most))
    }

    fn unless_cancelled<'c>(
        &'c self,
        ctx: StepContext<'c>,
        chunks: Chunks<'c>,
    ) -> impl Iterator<Item = Range<usize>> + use<'c> {
        chunks.take_while(move |_| {
            let cancelled = self.cancel.load(Ordering::Relaxed);
            if cancelled {
                self.cancelled.store(true, Ordering::Relaxed);
                self.stop_after.fetch_min(ctx.index, Ordering::Relaxed);
            }
            !cancelled
        })
    }

    /// How many rows a node with such rows has in this run.
    pub fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Batch => self.batch.tokens.len(),
            Rows::Output => self.out_rows,
        }
    }

    /// The cells of a layer's cache.
    pub fn cells(&self, layer: usize) -> &TableCells<'a> {
        &self.batch.cells[self.state.table(layer) as usize]
    }

    /// The batch row that is row `r` of a node with such rows.
    pub fn batch_row(&self, rows: Rows, r: usize) -> usize {
        match rows {
            Rows::Batch => r,
            Rows::Output => self.batch.outputs[r] as usize,
        }
    }

    /// Positions and sequences of a node's rows.
    pub fn positions(&self, rows: Rows) -> (&'a [i32], &'a [u32]) {
        match rows {
            Rows::Batch => (self.batch.positions, self.batch.sequences),
            Rows::Output => self.state.outputs(),
        }
    }

    /// A norm with its weights. That they are there was checked when the program was made.
    pub fn norm(&self, spec: &NormSpec) -> Norm<'a> {
        let of = |id: Option<WeightId>| id.and_then(|id| self.weights.vector(id).ok());
        Norm { kind: spec.kind, weight: of(spec.weight), bias: of(spec.bias), eps: spec.eps }
    }

    /// Row `r` of a node.
    ///
    /// # Safety
    /// Nobody writes the row while the slice lives.
    pub unsafe fn row(&self, rows: RowSpan, r: usize) -> &[f32] {
        // SAFETY: the scheduler placed `max_rows` rows of this width at the offset, inside the reserved workspace.
        unsafe { std::slice::from_raw_parts(self.state.workspace(rows.offset).add(r * rows.width), rows.width) }
    }

    /// Columns of a row, for writing.
    ///
    /// # Safety
    /// As [`Run::row`], and nobody else reads these columns meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn columns_mut(&self, rows: RowSpan, r: usize, columns: Range<usize>) -> &mut [f32] {
        // SAFETY: as in `row`; the caller is alone with these columns.
        unsafe {
            let first = self.state.workspace(rows.offset).add(r * rows.width + columns.start);
            std::slice::from_raw_parts_mut(first, columns.len())
        }
    }

    /// A whole row, for writing.
    ///
    /// # Safety
    /// As [`Run::columns_mut`].
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row_mut(&self, rows: RowSpan, r: usize) -> &mut [f32] {
        // SAFETY: the caller's promise is that of `columns_mut`.
        unsafe { self.columns_mut(rows, r, 0..rows.width) }
    }

    /// A whole row, for adding to: it holds the residual's row where there is a residual, which may stand in its place.
    ///
    /// # Safety
    /// As [`Run::columns_mut`], and the residual is complete.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row_with(&self, residual: Option<RowSpan>, rows: RowSpan, r: usize) -> &mut [f32] {
        // SAFETY: the caller's promise; a residual elsewhere shares no value with the row.
        unsafe {
            let out = self.row_mut(rows, r);
            if let Some(residual) = residual.filter(|residual| *residual != rows) {
                out.copy_from_slice(self.row(residual, r));
            }
            out
        }
    }

    /// Row `r` of an area with rows of this width, which are quantised, in [`Area::ExpertsF32`] `f32`, for writing.
    ///
    /// # Safety
    /// Nobody else touches the row while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn activation_row_mut(&self, area: Area, width: usize, r: usize) -> &mut [u8] {
        let bytes = area.row_bytes(width);
        // SAFETY: `Lowering::area_rows` has asked for the rows of this width.
        unsafe { std::slice::from_raw_parts_mut(self.state.area(area).add(r * bytes), bytes) }
    }

    /// The panel of the `i`th listed logit, unless it is also that of the one before.
    pub fn listed_panel(&self, i: usize) -> Option<usize> {
        let panel = |i: usize| self.batch.listed.get(i).map(|&token| token as usize / PANEL);
        panel(i).filter(|_| i == 0 || panel(i - 1) != panel(i))
    }

    /// Pieces of this many units make `PIECES_PER_THREAD` pieces for each thread.
    pub fn grain(&self, units: usize) -> usize {
        (units / (self.threads() * PIECES_PER_THREAD)).max(1)
    }

    /// Cosines and sines of every row's position, for each rotary embedding.
    pub fn rope_tables(&self, ctx: StepContext<'_>) {
        // The second of the two loops that a step may have.
        let chunks = ctx.worker.chunks(&self.state.counters[1], self.batch.tokens.len(), 8);
        for rows in self.unless_cancelled(ctx, chunks) {
            for r in rows {
                for (i, (_, rope)) in self.ropes.iter().enumerate() {
                    let (row, n_rot) = self.rope_row(i, r);
                    // SAFETY: each row's tables are written by the one thread that claimed the row.
                    let (cos, sin) = unsafe { std::slice::from_raw_parts_mut(row, n_rot) }.split_at_mut(n_rot / 2);
                    rope.fill(self.batch.positions[r], cos, sin);
                }
            }
        }
    }

    /// Where cosines and then sines of one row stand, and how many they are together: the tables hold `max_rows` rows
    /// of every rotary embedding, one embedding after the other.
    fn rope_row(&self, rope: usize, r: usize) -> (*mut f32, usize) {
        let n_rot = self.ropes[rope].1.n_rot();
        let before: usize = self.ropes[..rope].iter().map(|(_, rope)| rope.n_rot() * self.max_rows).sum();
        (self.state.rope().wrapping_add(before + r * n_rot), n_rot)
    }

    /// Cosines and sines of one row.
    ///
    /// # Safety
    /// They are complete: nobody writes them while they are read.
    pub unsafe fn cos_sin(&self, rope: usize, r: usize) -> (&[f32], &[f32]) {
        let (row, n_rot) = self.rope_row(rope, r);
        // SAFETY: inside the tables; only read, as the caller promises.
        unsafe { std::slice::from_raw_parts(row, n_rot) }.split_at(n_rot / 2)
    }
}
