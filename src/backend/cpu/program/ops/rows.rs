//! Operations that take row by row: look-ups, norms, caps.

use crate::Result;
use crate::backend::cpu::kernels::{activations, norm};
use crate::backend::cpu::packed::PANEL;
use crate::backend::cpu::program::demand::Area;
use crate::backend::cpu::program::lower::Lowering;
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::graph::{NodeId, Rows, WeightId};

/// Appends a look-up of embeddings.
pub fn embed(to: &mut Lowering<'_>, id: NodeId, table: WeightId, scale: f32) -> Result<()> {
    to.push(Embed { table, scale, out: to.span(id) });
    Ok(())
}

/// Rows of a table; cosines and sines of the batch's positions as well.
struct Embed {
    table: WeightId,
    scale: f32,
    out: RowSpan,
}

impl Step for Embed {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        run.rope_tables(ctx);
        for rows in run.pieces(ctx, run.batch.tokens.len(), 1) {
            for r in rows {
                // SAFETY: each row is claimed once.
                let out = unsafe { run.row_mut(self.out, r) };
                match run.weights.table_row(self.table, run.batch.tokens[r] as usize, out) {
                    Ok(()) if self.scale != 1.0 => norm::scale_row(run.isa, out, self.scale),
                    Ok(()) => {}
                    Err(error) => run.fail(ctx.index, error),
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

/// Appends a norm, and quantises its rows where products read them.
pub fn norm(to: &mut Lowering<'_>, id: NodeId, weight: WeightId, eps: f32) -> Result<()> {
    let node = to.node(id);
    let (src, residual, out) = (to.span(to.source(id)?), to.residual(id), to.span(id));
    // Rows that outlive the run are quantised by whoever reads them, here or in a later run.
    let q8 = to.forms(id).q8 && node.output.is_none();
    to.push(Norm { weight, eps, src, residual, out, rows: node.rows, q8 });
    Ok(())
}

struct Norm {
    weight: WeightId,
    eps: f32,
    src: RowSpan,
    residual: Option<RowSpan>,
    out: RowSpan,
    rows: Rows,
    /// Leave the rows quantised in [`Area::Main`] as well.
    q8: bool,
}

impl Step for Norm {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let Ok(weight) = run.weights.vector(self.weight) else { return };
        for claimed in run.pieces(ctx, run.rows(self.rows), 4) {
            for r in claimed {
                // SAFETY: sources are complete, each row is claimed once. A residual that stands where the output goes
                // is added to in place.
                unsafe {
                    let (x, out) = (run.row(self.src, r), run.row_mut(self.out, r));
                    match self.residual {
                        None => norm::rms_norm_row(run.isa, x, Some(weight), self.eps, out),
                        Some(residual) => {
                            if residual != self.out {
                                out.copy_from_slice(run.row(residual, r));
                            }
                            norm::rms_norm_add_row(run.isa, x, weight, self.eps, out);
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

/// Appends a soft cap of logits.
pub fn softcap(to: &mut Lowering<'_>, id: NodeId, cap: f32) -> Result<()> {
    to.push(SoftCap { cap, src: to.span(to.source(id)?), out: to.span(id), rows: to.node(id).rows });
    Ok(())
}

struct SoftCap {
    cap: f32,
    src: RowSpan,
    out: RowSpan,
    rows: Rows,
}

impl Step for SoftCap {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        const PIECE: usize = 256 * PANEL;
        let (width, listed) = (self.out.width, run.batch.listed.len());
        let pieces = if listed > 0 { listed } else { width.div_ceil(PIECE) };
        for claimed in run.pieces(ctx, pieces * run.rows(self.rows), 1) {
            for piece in claimed {
                let (r, i) = (piece / pieces, piece % pieces);
                let columns = match run.listed_panel(i) {
                    Some(panel) => panel * PANEL..((panel + 1) * PANEL).min(width),
                    None if listed > 0 => continue,
                    None => i * PIECE..((i + 1) * PIECE).min(width),
                };
                // SAFETY: the source is complete; each piece is claimed once.
                unsafe {
                    let out = run.columns_mut(self.out, r, columns.clone());
                    out.copy_from_slice(&run.row(self.src, r)[columns]);
                    norm::softcap_row(run.isa, out, self.cap);
                }
            }
        }
    }
}
