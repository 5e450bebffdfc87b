//! Products of matrices, and quantising what they multiply.

use crate::Result;
use crate::backend::MAX_ROWS;
use crate::backend::cpu::kernels::matmul::{Columns, matmul as multiply};
use crate::backend::cpu::kernels::{activations, glu, norm};
use crate::backend::cpu::packed::{ActivationKind, PANEL, PackedMatrix};
use crate::backend::cpu::program::demand::{Area, Demand};
use crate::backend::cpu::program::lower::{Forms, Lowering};
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::graph::{Activation, NodeId, Op, Part, Rows, WeightId};
use std::ops::Range;

/// Floats of a thread's scratch for one of the two products of a gated step.
const GATED_FLOATS: usize = 64 * MAX_ROWS;

/// Input rows of a product: as `f32` in the workspace, and where a quantised matrix reads them, in an area.
#[derive(Clone, Copy)]
struct Input {
    area: Area,
    src: RowSpan,
    rows: Rows,
}

impl Input {
    /// The input of the product `id`, after a quantise step if the producer did not leave it quantised.
    fn of(to: &mut Lowering<'_>, id: NodeId, weights: &[WeightId]) -> Result<Input> {
        let x = to.source(id)?;
        let (node, src, q8, here) = (to.node(x), to.span(x), to.multiplied(weights).q8, to.work.computes(x));
        if q8 {
            to.activation_rows(src.width);
        }
        let area = match node.op {
            Op::GatedMatMul { .. } if here => Area::Gated,
            Op::RmsNorm { .. } if here && node.output.is_none() => Area::Main,
            _ if q8 => {
                to.push(Quantise { src, rows: node.rows });
                Area::Main
            }
            _ => Area::Main,
        };
        Ok(Input { area, src, rows: to.node(id).rows })
    }

    /// The rows in the form that these panels multiply.
    fn columns(&self, run: &Run<'_>, w: &PackedMatrix) -> Columns {
        let (width, count) = (self.src.width, run.rows(self.rows));
        match w.activation_kind() {
            ActivationKind::F32 => {
                Columns { data: run.state.workspace(self.src.offset).cast(), row_bytes: width * 4, count }
            }
            ActivationKind::Q8 => {
                Columns { data: run.state.activations(self.area), row_bytes: activations::row_bytes(width), count }
            }
        }
    }
}

/// Appends a product of matrices side by side.
pub fn matmul(to: &mut Lowering<'_>, id: NodeId, weights: &[WeightId], biases: &[Option<WeightId>]) -> Result<()> {
    let x = Input::of(to, id, weights)?;
    let mut parts = Vec::with_capacity(weights.len());
    let mut column = 0;
    for (&weight, &bias) in weights.iter().zip(biases) {
        parts.push(MatMulPart { weight, bias, column });
        column += to.spec(weight).n_out;
    }
    let logits = to.node(id).part == Part::Head;
    to.push(MatMul { parts, x, residual: to.residual(id), out: to.span(id), logits });
    Ok(())
}

/// Appends a gated product.
pub fn gated(to: &mut Lowering<'_>, id: NodeId, gate: WeightId, up: WeightId, activation: Activation) -> Result<()> {
    let x = Input::of(to, id, &[gate, up])?;
    let (out, forms) = (to.span(id), to.forms(id));
    if forms.q8 {
        to.activation_rows(out.width);
    }
    to.push(Gated { gate, up, activation, x, out, forms });
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

/// A matrix of a product, with its bias and the first column that it gives.
struct MatMulPart {
    weight: WeightId,
    bias: Option<WeightId>,
    column: usize,
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
        let panels = |part: &MatMulPart| run.weights.matrix(part.weight).map_or(0, PackedMatrix::n_panels);
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
        for &MatMulPart { weight, bias, column } in &self.parts {
            let Ok(w) = run.weights.matrix(weight) else { return };
            let panels = claimed.start.clamp(first, first + w.n_panels()) - first
                ..claimed.end.clamp(first, first + w.n_panels()) - first;
            first += w.n_panels();
            if panels.is_empty() {
                continue;
            }
            let columns = column + panels.start * PANEL..column + (panels.end * PANEL).min(w.n_out());
            if let Some(residual) = self.residual.filter(|&residual| residual != out) {
                for r in 0..rows {
                    // SAFETY: these columns belong to this claim alone; the residual is complete.
                    unsafe {
                        let from = &run.row(residual, r)[columns.clone()];
                        run.columns_mut(out, r, columns.clone()).copy_from_slice(from);
                    }
                }
            }
            // SAFETY: the input is complete and the output has `rows` rows of `width`; the columns of these
            // panels belong to this claim alone.
            unsafe {
                let to = run.state.workspace(out.offset).add(column);
                multiply(run.isa, w, panels, self.x.columns(run, w), to, out.width, self.residual.is_some());
            }
            if let Some(bias) = bias.and_then(|b| run.weights.vector(b).ok()) {
                let bias = &bias[columns.start - column..columns.end - column];
                for r in 0..rows {
                    // SAFETY: as above.
                    let out = unsafe { run.columns_mut(out, r, columns.clone()) };
                    norm::add_row(run.isa, bias, out);
                }
            }
        }
    }
}

/// Both products of a piece go to the thread's scratch, so that they are gated and quantised while in cache.
struct Gated {
    gate: WeightId,
    up: WeightId,
    activation: Activation,
    x: Input,
    out: RowSpan,
    /// How the rows are left; quantised in [`Area::Gated`].
    forms: Forms,
}

impl Step for Gated {
    fn size(&self, demand: &mut Demand) {
        demand.thread(3 * GATED_FLOATS * 4);
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let (Ok(gate), Ok(up)) = (run.weights.matrix(self.gate), run.weights.matrix(self.up)) else { return };
        let (x, out, rows) = (self.x, self.out, run.rows(self.x.rows));
        if rows == 0 {
            return;
        }
        const UNIT: usize = activations::BLOCK / PANEL;
        let units = gate.n_panels().div_ceil(UNIT);
        let most = (GATED_FLOATS / (rows * activations::BLOCK)).max(1);
        for claimed in run.shrinking_pieces(ctx, units, most) {
            let panels = claimed.start * UNIT..(claimed.end * UNIT).min(gate.n_panels());
            let columns = panels.start * PANEL..(panels.end * PANEL).min(out.width);
            let stride = columns.len();
            // SAFETY: the scratch is this thread's alone and holds three times GATED_FLOATS floats, of which a product
            // takes `rows * stride`; the kernel writes from column `columns.start` of the shifted pointer on.
            let (lower, upper, gated) = unsafe {
                let first = run.state.thread_scratch(ctx.worker.index()).0;
                let [lower, upper, gated] = [0, 1, 2].map(|i| first.add(i * GATED_FLOATS));
                let shifted = |p: *mut f32| p.wrapping_sub(columns.start);
                multiply(run.isa, gate, panels.clone(), x.columns(run, gate), shifted(lower), stride, false);
                multiply(run.isa, up, panels.clone(), x.columns(run, up), shifted(upper), stride, false);
                let n = rows * stride;
                let read = |p: *mut f32| std::slice::from_raw_parts(p, n);
                (read(lower), read(upper), std::slice::from_raw_parts_mut(gated, n))
            };
            match self.activation {
                Activation::Silu => glu::swiglu(run.isa, lower, upper, gated),
                Activation::Gelu => glu::geglu(run.isa, lower, upper, gated),
            }
            for (r, row) in gated.chunks_exact(stride).enumerate() {
                // SAFETY: these columns, and the blocks of 32 that they are, belong to this claim alone.
                unsafe {
                    if self.forms.f32 {
                        run.columns_mut(out, r, columns.clone()).copy_from_slice(row);
                    }
                    if self.forms.q8 {
                        let to = run.state.activations(Area::Gated).add(r * activations::row_bytes(out.width));
                        activations::quantize_blocks(run.isa, row, to, out.width, columns.start / activations::BLOCK);
                    }
                }
            }
        }
    }
}
