//! Products of matrices, and quantising what they multiply.

use crate::Result;
use crate::backend::MAX_ROWS;
use crate::backend::cpu::kernels::matmul::{Columns, matmul as multiply};
use crate::backend::cpu::kernels::{activations, glu, norm};
use crate::backend::cpu::packed::{ActivationKind, PANEL, PackedMatrix};
use crate::backend::cpu::program::demand::{Area, Demand};
use crate::backend::cpu::program::lower::{Forms, Lowering};
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::graph::{Activation, Linear, NodeId, Part, Rows, WeightId};
use std::ops::Range;

/// Floats of a thread's scratch for one of the two products of a gated step, for batches of so many rows: room for a
/// block of columns at least.
pub(super) fn gated_floats(max_rows: usize) -> usize {
    (64 * MAX_ROWS).max(activations::BLOCK * max_rows)
}

/// Input rows of a product: as `f32` in the workspace, and where a quantised matrix reads them, in an area.
#[derive(Clone, Copy)]
pub(super) struct Input {
    pub area: Area,
    pub src: RowSpan,
    pub rows: Rows,
}

impl Input {
    /// The input of the product `id`, after a quantise step where no area holds it quantised.
    pub fn of(to: &mut Lowering<'_>, id: NodeId, forms: Forms) -> Result<Input> {
        let x = to.source(id)?;
        let (src, rows) = (to.span(x), to.node(x).rows);
        let area = match [Area::Main, Area::Gated].into_iter().find(|&area| to.holds(area, x)) {
            Some(area) => area,
            None => {
                if forms.q8 {
                    to.hold(Area::Main, x, 1, src.width);
                    to.push(Quantise { src, rows });
                }
                Area::Main
            }
        };
        Ok(Input { area, src, rows: to.node(id).rows })
    }

    /// The rows in the form that these panels multiply.
    pub fn columns(&self, run: &Run<'_>, w: &PackedMatrix) -> Columns {
        let (width, count) = (self.src.width, run.rows(self.rows));
        match w.activation_kind() {
            ActivationKind::F32 => {
                Columns { data: run.state.workspace(self.src.offset).cast(), row_bytes: width * 4, count }
            }
            ActivationKind::Q8 => {
                Columns { data: run.state.area(self.area), row_bytes: activations::row_bytes(width), count }
            }
        }
    }
}

/// Appends a product of matrices side by side.
pub fn matmul(to: &mut Lowering<'_>, id: NodeId, linears: &[Linear]) -> Result<()> {
    let x = Input::of(to, id, to.multiplied(linears))?;
    let mut parts = Vec::with_capacity(linears.len());
    let mut column = 0;
    for &linear in linears {
        parts.push(MatMulPart { linear, column });
        column += to.spec(linear.weight).n_out;
    }
    let logits = to.node(id).part == Part::Head;
    to.push(MatMul { parts, x, residual: to.residual(id), out: to.span(id), logits });
    Ok(())
}

/// Appends a gated product.
pub fn gated(to: &mut Lowering<'_>, id: NodeId, gate: Linear, up: Option<Linear>, act: Activation) -> Result<()> {
    let x = Input::of(to, id, to.multiplied([&gate].into_iter().chain(&up)))?;
    let (out, forms) = (to.span(id), to.forms(id));
    if forms.q8 {
        to.hold(Area::Gated, id, 1, out.width);
    }
    to.push(Gated { gate, up, act, x, out, forms });
    Ok(())
}

/// Quantises rows to [`Area::Main`].
struct Quantise {
    src: RowSpan,
    rows: Rows,
}

impl Step for Quantise {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        for claimed in run.pieces(ctx, run.rows(self.rows), 4) {
            for r in claimed {
                // SAFETY: the source row is complete; each row of the area is claimed once.
                unsafe {
                    let out = run.activation_row_mut(Area::Main, self.src.width, r);
                    activations::quantize_row(run.isa, run.row(self.src, r), out);
                }
            }
        }
    }
}

/// A matrix of a product, and the first column that it gives.
struct MatMulPart {
    linear: Linear,
    column: usize,
}

/// Multiplies rows of a product's scratch or output by its factor and adds its bias, from row `first` of the matrix on.
pub(super) fn finish(run: &Run<'_>, linear: &Linear, expert: usize, first: usize, row: &mut [f32]) {
    let vector = |id: Option<WeightId>| id.and_then(|id| run.weights.vector(id).ok());
    if let Some(scales) = vector(linear.scale) {
        norm::scale_row(run.isa, row, scales[expert]);
    }
    if let Some(bias) = vector(linear.bias) {
        norm::add_row(run.isa, &bias[first..first + row.len()], row);
    }
}

struct MatMul {
    parts: Vec<MatMulPart>,
    x: Input,
    residual: Option<RowSpan>,
    out: RowSpan,
    /// The output is logits, of which a run may want only those that are listed.
    logits: bool,
}

impl Step for MatMul {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        if run.rows(self.x.rows) == 0 {
            return;
        }
        if self.logits && !run.batch.listed.is_empty() {
            for claimed in run.pieces(ctx, run.batch.listed.len(), 4) {
                for panel in claimed.filter_map(|i| run.listed_panel(i)) {
                    self.panels(run, panel..panel + 1);
                }
            }
            return;
        }
        let panels = |part: &MatMulPart| run.weights.matrix(part.linear.weight).map_or(0, PackedMatrix::n_panels);
        let total = self.parts.iter().map(panels).sum();
        for claimed in run.shrinking_pieces(ctx, total, total) {
            self.panels(run, claimed);
        }
    }
}

impl MatMul {
    /// The product with these panels, which are counted through all parts.
    fn panels(&self, run: &Run<'_>, claimed: Range<usize>) {
        let (out, rows) = (self.out, run.rows(self.x.rows));
        let mut first = 0;
        for MatMulPart { linear, column } in &self.parts {
            let Ok(w) = run.weights.matrix(linear.weight) else { return };
            let panels = claimed.start.clamp(first, first + w.n_panels()) - first
                ..claimed.end.clamp(first, first + w.n_panels()) - first;
            first += w.n_panels();
            if panels.is_empty() {
                continue;
            }
            let first_row = panels.start * PANEL;
            let columns = column + first_row..column + (panels.end * PANEL).min(w.n_out());
            // A factor is on the product alone, so the sum comes after it.
            let add = self.residual.is_some() && linear.scale.is_none();
            if let Some(residual) = self.residual.filter(|&residual| add && residual != out) {
                for r in 0..rows {
                    // SAFETY: these columns belong to this claim alone; the residual is complete.
                    unsafe {
                        let from = &run.row(residual, r)[columns.clone()];
                        run.columns_mut(out, r, columns.clone()).copy_from_slice(from);
                    }
                }
            }
            if linear.scale.is_some() && self.residual.is_some() {
                self.scaled(run, linear, w, panels, columns);
                continue;
            }
            // SAFETY: the input is complete and the output has `rows` rows of `width`; the columns of these
            // panels belong to this claim alone.
            unsafe {
                let to = run.state.workspace(out.offset).add(*column);
                multiply(run.isa, w, panels, self.x.columns(run, w), to, out.width, add);
            }
            if linear.bias.is_some() || linear.scale.is_some() {
                for r in 0..rows {
                    // SAFETY: as above.
                    let out = unsafe { run.columns_mut(out, r, columns.clone()) };
                    finish(run, linear, 0, first_row, out);
                }
            }
        }
    }

    /// The product of some panels with its factor and bias, which is then added to the residual: row by row, by way of
    /// an array, since a residual that stands where the output goes must not be overwritten.
    fn scaled(&self, run: &Run<'_>, linear: &Linear, w: &PackedMatrix, panels: Range<usize>, columns: Range<usize>) {
        let x = self.x.columns(run, w);
        for r in 0..run.rows(self.x.rows) {
            for panel in panels.clone() {
                let start = columns.start + (panel - panels.start) * PANEL;
                let columns = start..(start + PANEL).min(columns.end);
                let (mut lanes, first) = ([0f32; PANEL], panel * PANEL);
                let one = Columns { data: x.data.wrapping_add(r * x.row_bytes), count: 1, ..x };
                // SAFETY: one row of the input; one panel writes at most PANEL results, from `lanes`.
                unsafe {
                    let to = lanes.as_mut_ptr().wrapping_sub(first);
                    multiply(run.isa, w, panel..panel + 1, one, to, 0, false);
                }
                let product = &mut lanes[..columns.len()];
                finish(run, linear, 0, first, product);
                // SAFETY: these columns belong to this claim alone; the residual is complete.
                unsafe {
                    if let Some(residual) = self.residual {
                        norm::add_row(run.isa, &run.row(residual, r)[columns.clone()], product);
                    }
                    run.columns_mut(self.out, r, columns).copy_from_slice(product);
                }
            }
        }
    }
}

/// Both products of a piece go to the thread's scratch, so that they are gated and quantised while in cache.
struct Gated {
    gate: Linear,
    up: Option<Linear>,
    act: Activation,
    x: Input,
    out: RowSpan,
    /// How the rows are left; quantised in [`Area::Gated`].
    forms: Forms,
}

impl Step for Gated {
    fn size(&self, demand: &mut Demand) {
        demand.thread(3 * gated_floats(demand.max_rows.0) * 4);
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let (x, out, rows) = (self.x, self.out, run.rows(self.x.rows));
        let Ok(gate) = run.weights.matrix(self.gate.weight) else { return };
        if rows == 0 {
            return;
        }
        const UNIT: usize = activations::BLOCK / PANEL;
        let units = gate.n_panels().div_ceil(UNIT);
        let room = gated_floats(run.max_rows);
        let most = (room / (rows * activations::BLOCK)).max(1);
        // SAFETY: the scratch is this thread's alone and holds three times so many floats.
        let scratch = unsafe {
            let first = run.state.thread_scratch(ctx.worker.index()).0;
            [0, 1, 2].map(|i| std::slice::from_raw_parts_mut(first.add(i * room), room))
        };
        let [lower, upper, gated] = scratch;
        for claimed in run.shrinking_pieces(ctx, units, most) {
            let panels = claimed.start * UNIT..(claimed.end * UNIT).min(gate.n_panels());
            let columns = panels.start * PANEL..(panels.end * PANEL).min(out.width);
            let stride = columns.len();
            let n = rows * stride;
            let (lower, upper, gated) = (&mut lower[..n], &mut upper[..n], &mut gated[..n]);
            let product = |linear: &Linear, to: &mut [f32]| {
                let Ok(w) = run.weights.matrix(linear.weight) else { return };
                // SAFETY: the kernel writes `rows` rows of `stride`, from column `columns.start` of the shifted
                // pointer.
                unsafe {
                    let to = to.as_mut_ptr().wrapping_sub(columns.start);
                    multiply(run.isa, w, panels.clone(), x.columns(run, w), to, stride, false);
                }
                if linear.scale.is_some() || linear.bias.is_some() {
                    to.chunks_exact_mut(stride).for_each(|row| finish(run, linear, 0, columns.start, row));
                }
            };
            product(&self.gate, lower);
            if let Some(up) = &self.up {
                product(up, upper);
            }
            glu::gated(run.isa, self.act, lower, self.up.map(|_| &*upper), gated);
            for (r, row) in gated.chunks_exact(stride).enumerate() {
                // SAFETY: these columns, and the blocks of 32 that they are, belong to this claim alone.
                unsafe {
                    if self.forms.f32 {
                        run.columns_mut(out, r, columns.clone()).copy_from_slice(row);
                    }
                    if self.forms.q8 {
                        let to = run.state.area(Area::Gated).add(r * activations::row_bytes(out.width));
                        activations::quantize_blocks(run.isa, row, to, out.width, columns.start / activations::BLOCK);
                    }
                }
            }
        }
    }
}
