//! Operations that take row by row: look-ups, norms, caps.

use crate::Result;
use crate::backend::cpu::kernels::{activations, glu, norm};
use crate::backend::cpu::packed::PANEL;
use crate::backend::cpu::program::demand::{Area, Demand};
use crate::backend::cpu::program::lower::Lowering;
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::graph::{Activation, Function, Index, NodeId, NormSpec, Op, Part, Rows, WeightId};
use std::ops::Range;

/// Appends a look-up of embeddings.
pub fn embed(to: &mut Lowering<'_>, id: NodeId, table: WeightId, scale: f32, index: Index) -> Result<()> {
    let (out, residual) = (to.span(id), to.residual(id));
    let first = to.nodes().iter().position(|node| matches!(node.op, Op::Embed { .. }));
    let ropes = first == Some((id.0 - to.work.nodes.0) as usize);
    to.push(Embed { table, scale, index, residual, out, ropes });
    Ok(())
}

/// Rows of a table; in the first of a program cosines and sines of the batch's positions as well.
struct Embed {
    table: WeightId,
    scale: f32,
    index: Index,
    residual: Option<RowSpan>,
    out: RowSpan,
    ropes: bool,
}

impl Step for Embed {
    fn size(&self, demand: &mut Demand) {
        if self.residual.is_some() {
            demand.thread(self.out.width * 4);
        }
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        if self.ropes {
            run.rope_tables(ctx);
        }
        for rows in run.pieces(ctx, run.batch.tokens.len(), 1) {
            for r in rows {
                let index = match self.index {
                    Index::Token => run.batch.tokens[r],
                    Index::Position => run.batch.positions[r],
                    Index::First => 0,
                };
                // SAFETY: each row is claimed once; the scratch is this thread's, and `size` asks for a row.
                let (out, row) = unsafe {
                    let out = run.row_with(self.residual, self.out, r);
                    match self.residual {
                        None => (&mut [][..], out),
                        Some(_) => {
                            let scratch = run.state.thread_scratch(ctx.worker.index()).0;
                            (out, std::slice::from_raw_parts_mut(scratch, self.out.width))
                        }
                    }
                };
                if let Err(error) = run.weights.table_row(self.table, index as usize, row) {
                    run.fail(ctx.index, error);
                    continue;
                }
                if self.scale != 1.0 {
                    norm::scale_row(run.isa, row, self.scale);
                }
                if self.residual.is_some() {
                    norm::add_row(run.isa, row, out);
                }
            }
        }
    }
}

/// Appends the rows that a run names as output rows.
pub fn select(to: &mut Lowering<'_>, id: NodeId) -> Result<()> {
    to.push(SelectRows { src: to.span(to.source(id)?), out: to.span(id) });
    Ok(())
}

struct SelectRows {
    src: RowSpan,
    out: RowSpan,
}

impl Step for SelectRows {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        for rows in run.pieces(ctx, run.out_rows, 16) {
            for r in rows {
                // SAFETY: source rows are complete since the last barrier; each output row is claimed once.
                unsafe {
                    let from = run.row(self.src, run.batch.outputs[r] as usize);
                    run.row_mut(self.out, r).copy_from_slice(from);
                }
            }
        }
    }
}

/// Appends columns of the parts of rows.
pub fn columns(to: &mut Lowering<'_>, id: NodeId, parts: usize, first: usize) -> Result<()> {
    to.push(PartColumns { parts, first, src: to.span(to.source(id)?), out: to.span(id), rows: to.node(id).rows });
    Ok(())
}

struct PartColumns {
    parts: usize,
    first: usize,
    src: RowSpan,
    out: RowSpan,
    rows: Rows,
}

impl Step for PartColumns {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let (from, to) = (self.src.width / self.parts, self.out.width / self.parts);
        for claimed in run.pieces(ctx, run.rows(self.rows), 4) {
            for r in claimed {
                // SAFETY: the source is complete, each row is claimed once.
                let (x, out) = unsafe { (run.row(self.src, r), run.row_mut(self.out, r)) };
                for (x, out) in x.chunks_exact(from).zip(out.chunks_exact_mut(to)) {
                    out.copy_from_slice(&x[self.first..][..to]);
                }
            }
        }
    }
}

/// Appends a norm, and quantises its rows where products read them.
pub fn norm(to: &mut Lowering<'_>, id: NodeId, norm: NormSpec, groups: usize) -> Result<()> {
    let node = to.node(id);
    let (src, residual, out) = (to.span(to.source(id)?), to.residual(id), to.span(id));
    // Rows that outlive the run are quantised by whoever reads them, here or in a later run.
    let q8 = to.forms(id).q8 && node.output.is_none();
    if q8 {
        to.hold(Area::Main, id, 1, out.width);
    }
    to.push(Norm { norm, groups, src, residual, out, rows: node.rows, q8 });
    Ok(())
}

struct Norm {
    norm: NormSpec,
    groups: usize,
    src: RowSpan,
    residual: Option<RowSpan>,
    out: RowSpan,
    rows: Rows,
    /// Leave the rows quantised in [`Area::Main`] as well.
    q8: bool,
}

impl Step for Norm {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let (norm, width) = (run.norm(&self.norm), self.out.width / self.groups);
        for claimed in run.pieces(ctx, run.rows(self.rows), 4) {
            for r in claimed {
                // SAFETY: sources are complete, each row is claimed once. A residual that stands where the output goes
                // is added to in place.
                unsafe {
                    let (x, out) = (run.row(self.src, r), run.row_with(self.residual, self.out, r));
                    for (i, (x, out)) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate() {
                        let norm = norm.part(i, width);
                        match self.residual {
                            None => norm.row(run.isa, x, out),
                            Some(_) => norm.add_row(run.isa, x, out),
                        }
                    }
                    if self.q8 {
                        let area = run.activation_row_mut(Area::Main, self.out.width, r);
                        activations::quantize_row(run.isa, out, area);
                    }
                }
            }
        }
    }
}

/// Appends a sum.
pub fn add(to: &mut Lowering<'_>, id: NodeId, scale: f32) -> Result<()> {
    let (src, residual) = (to.span(to.source(id)?), to.residual(id));
    to.push(Add { scale, src, residual, out: to.span(id), rows: to.node(id).rows });
    Ok(())
}

struct Add {
    scale: f32,
    src: RowSpan,
    residual: Option<RowSpan>,
    out: RowSpan,
    rows: Rows,
}

impl Step for Add {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        for claimed in run.pieces(ctx, run.rows(self.rows), 4) {
            for r in claimed {
                // SAFETY: as in `Norm`.
                unsafe {
                    let (x, out) = (run.row(self.src, r), run.row_with(self.residual, self.out, r));
                    norm::add_scaled_row(run.isa, x, self.scale, out);
                }
            }
        }
    }
}

/// Appends a gate.
pub fn gate(to: &mut Lowering<'_>, id: NodeId, act: Activation, first: usize) -> Result<()> {
    let node = to.node(id);
    let gated = node.src.get(1).copied().unwrap_or(id);
    let (src, gated, residual) = (to.span(to.source(id)?), to.span(gated), to.residual(id));
    to.push(Gate { act, first, src, gated, residual, out: to.span(id), rows: node.rows });
    Ok(())
}

struct Gate {
    act: Activation,
    first: usize,
    src: RowSpan,
    gated: RowSpan,
    residual: Option<RowSpan>,
    out: RowSpan,
    rows: Rows,
}

impl Step for Gate {
    fn size(&self, demand: &mut Demand) {
        demand.thread(self.out.width * 4);
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let Gate { act, first, src, gated, residual, out, rows } = *self;
        for claimed in run.pieces(ctx, run.rows(rows), 4) {
            for r in claimed {
                // SAFETY: as in `Norm`; the scratch is this thread's, and `size` asks for a row.
                unsafe {
                    let scratch = run.state.thread_scratch(ctx.worker.index()).0;
                    let result = std::slice::from_raw_parts_mut(scratch, out.width);
                    let (x, y) = (run.row(src, r), &run.row(gated, r)[first..first + out.width]);
                    if src.width == 1 {
                        let mut factor = [0.0];
                        glu::gated(run.isa, act, x, None, &mut factor);
                        result.copy_from_slice(y);
                        norm::scale_row(run.isa, result, factor[0]);
                    } else {
                        glu::gated(run.isa, act, x, Some(y), result);
                    }
                    if let Some(residual) = residual {
                        norm::add_row(run.isa, run.row(residual, r), result);
                    }
                    run.row_mut(out, r).copy_from_slice(result);
                }
            }
        }
    }
}

/// Appends what leaves only the largest values of a row.
pub fn sparsify(to: &mut Lowering<'_>, id: NodeId, deviations: f32) -> Result<()> {
    to.push(Sparsify { deviations, src: to.span(to.source(id)?), out: to.span(id), rows: to.node(id).rows });
    Ok(())
}

struct Sparsify {
    deviations: f32,
    src: RowSpan,
    out: RowSpan,
    rows: Rows,
}

impl Step for Sparsify {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        for claimed in run.pieces(ctx, run.rows(self.rows), 4) {
            for r in claimed {
                // SAFETY: the source is complete; each row is claimed once.
                unsafe { norm::sparsify_row(run.isa, run.row(self.src, r), self.deviations, run.row_mut(self.out, r)) }
            }
        }
    }
}

/// Appends a function of each value.
pub fn map(to: &mut Lowering<'_>, id: NodeId, function: Function) -> Result<()> {
    let node = to.node(id);
    let logits = node.part == Part::Head;
    to.push(Map { function, src: to.span(to.source(id)?), out: to.span(id), rows: node.rows, logits });
    Ok(())
}

struct Map {
    function: Function,
    src: RowSpan,
    out: RowSpan,
    rows: Rows,
    /// The rows are logits, of which a run may want only those that are listed.
    logits: bool,
}

impl Map {
    /// The function of the values of these columns.
    fn apply(&self, run: &Run<'_>, values: &mut [f32], columns: Range<usize>) {
        match self.function {
            Function::Scale(factor) => norm::scale_row(run.isa, values, factor),
            Function::ScaleBy(weight) => {
                match run.weights.vector(weight) {
                    Ok(&[factor]) => norm::scale_row(run.isa, values, factor),
                    Ok(factors) => norm::multiply_row(run.isa, &factors[columns], values),
                    // That it is there was checked when the program was made.
                    Err(_) => values.fill(f32::NAN),
                }
            }
            Function::SoftCap(cap) => norm::softcap_row(run.isa, values, cap),
            Function::Clamp(limit) => norm::clamp_row(run.isa, values, limit),
        }
    }
}

impl Step for Map {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        const PIECE: usize = 256 * PANEL;
        let (width, listed) = (self.out.width, if self.logits { run.batch.listed.len() } else { 0 });
        let pieces = if listed > 0 { listed } else { width.div_ceil(PIECE) };
        for claimed in run.pieces(ctx, pieces * run.rows(self.rows), 1) {
            for piece in claimed {
                let (r, i) = (piece / pieces, piece % pieces);
                let columns = match run.listed_panel(i).filter(|_| listed > 0) {
                    Some(panel) => panel * PANEL..((panel + 1) * PANEL).min(width),
                    None if listed > 0 => continue,
                    None => i * PIECE..((i + 1) * PIECE).min(width),
                };
                // SAFETY: the source is complete; each piece is claimed once.
                unsafe {
                    let out = run.columns_mut(self.out, r, columns.clone());
                    out.copy_from_slice(&run.row(self.src, r)[columns.clone()]);
                    self.apply(run, out, columns);
                }
            }
        }
    }
}
