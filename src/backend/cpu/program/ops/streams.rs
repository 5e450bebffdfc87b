//! Operations on rows that hold several streams side by side.

use crate::Result;
use crate::backend::cpu::kernels::norm;
use crate::backend::cpu::program::lower::Lowering;
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::graph::{Coefficients, NodeId, Rows};

/// Appends sums of parts of rows.
pub fn mix(
    to: &mut Lowering<'_>,
    id: NodeId,
    (parts, sums): (usize, usize),
    coefficients: &Coefficients,
) -> Result<()> {
    let node = to.node(id);
    let by = match coefficients {
        Coefficients::Fixed(values) => By::Fixed(values.clone()),
        Coefficients::OfRow { plus } => By::Row(to.span(node.src.get(1).copied().unwrap_or(id)), *plus),
    };
    let (src, residual, out) = (to.span(to.source(id)?), to.residual(id), to.span(id));
    to.push(Mix { parts, sums, by, src, residual, out, rows: node.rows });
    Ok(())
}

enum By {
    Fixed(Vec<f32>),
    /// The values of these rows, each plus a number.
    Row(RowSpan, f32),
}

struct Mix {
    parts: usize,
    sums: usize,
    by: By,
    src: RowSpan,
    residual: Option<RowSpan>,
    out: RowSpan,
    rows: Rows,
}

impl Step for Mix {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let (width, sums) = (self.src.width / self.parts, self.sums);
        for claimed in run.pieces(ctx, sums * run.rows(self.rows), 1) {
            for (r, sum) in claimed.map(|piece| (piece / sums, piece % sums)) {
                let columns = sum * width..(sum + 1) * width;
                // SAFETY: sources are complete; each sum of a row is claimed once. A residual may stand where the
                // output goes, what is mixed does not.
                unsafe {
                    let (x, out) = (run.row(self.src, r), run.columns_mut(self.out, r, columns.clone()));
                    match self.residual {
                        None => out.fill(0.0),
                        Some(residual) if residual == self.out => {}
                        Some(residual) => out.copy_from_slice(&run.row(residual, r)[columns]),
                    }
                    let (coefficients, plus) = match &self.by {
                        By::Fixed(values) => (&values[..], 0.0),
                        By::Row(by, plus) => (run.row(*by, r), *plus),
                    };
                    let coefficients = &coefficients[sum * self.parts..][..self.parts];
                    for (x, &c) in x.chunks_exact(width).zip(coefficients) {
                        if matches!(self.by, By::Row(..)) || c != 0.0 {
                            norm::add_scaled_row(run.isa, x, c + plus, out);
                        }
                    }
                }
            }
        }
    }
}

/// Appends parts of rows that get the length of others, after those.
pub fn equalize(to: &mut Lowering<'_>, id: NodeId) -> Result<()> {
    let node = to.node(id);
    let like = to.span(node.src.get(1).copied().unwrap_or(id));
    to.push(Equalize { src: to.span(to.source(id)?), like, out: to.span(id), rows: node.rows });
    Ok(())
}

struct Equalize {
    src: RowSpan,
    like: RowSpan,
    out: RowSpan,
    rows: Rows,
}

impl Step for Equalize {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        for claimed in run.pieces(ctx, run.rows(self.rows), 1) {
            for r in claimed {
                // SAFETY: sources are complete; each row is claimed once.
                unsafe {
                    let (x, like) = (run.row(self.src, r), run.row(self.like, r));
                    let (first, others) = run.row_mut(self.out, r).split_at_mut(like.len());
                    first.copy_from_slice(like);
                    for (x, out) in x.chunks_exact(like.len()).zip(others.chunks_exact_mut(like.len())) {
                        norm::equalize_row(run.isa, x, like, out);
                    }
                }
            }
        }
    }
}
