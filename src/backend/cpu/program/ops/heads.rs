//! Products with a matrix for each head.

use crate::Result;
use crate::backend::cpu::kernels::activations;
use crate::backend::cpu::kernels::matmul::{Columns, matmul as multiply};
use crate::backend::cpu::packed::{ActivationKind, PANEL};
use crate::backend::cpu::program::demand::Area;
use crate::backend::cpu::program::lower::Lowering;
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::graph::{Linear, NodeId, Rows, WeightId};

/// Appends a product with a matrix for each head.
pub fn head_matmul(to: &mut Lowering<'_>, id: NodeId, weight: WeightId, heads: usize, keep: usize) -> Result<()> {
    let x = to.source(id)?;
    let (src, rows, n_in) = (to.span(x), to.node(id).rows, to.spec(weight).n_in);
    let step = HeadMatMul { weight, heads, keep, n_in, src, out: to.span(id), rows };
    if to.multiplied([&Linear::plain(weight)]).q8 {
        to.lend(Area::Main, to.most_rows(id) * heads, n_in);
        to.push(QuantiseHeads(step));
    }
    to.push(step);
    Ok(())
}

#[derive(Clone, Copy)]
struct HeadMatMul {
    weight: WeightId,
    heads: usize,
    keep: usize,
    n_in: usize,
    src: RowSpan,
    out: RowSpan,
    rows: Rows,
}

/// Quantises what is multiplied of each head to [`Area::Main`].
struct QuantiseHeads(HeadMatMul);

impl Step for QuantiseHeads {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let HeadMatMul { heads, n_in, src, rows, .. } = self.0;
        for claimed in run.pieces(ctx, run.rows(rows) * heads, 4) {
            for unit in claimed {
                let (r, head) = (unit / heads, unit % heads);
                // SAFETY: the source row is complete; each row of the area is claimed once.
                unsafe {
                    let from = &run.row(src, r)[head * (src.width / heads)..][..n_in];
                    activations::quantize_row(run.isa, from, run.activation_row_mut(Area::Main, n_in, unit));
                }
            }
        }
    }
}

impl Step for HeadMatMul {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let HeadMatMul { heads, keep, n_in, src, out, .. } = *self;
        let (Ok(w), rows) = (run.weights.matrix(self.weight), run.rows(self.rows)) else { return };
        if rows == 0 {
            return;
        }
        let (from_width, to_width) = (src.width / heads, out.width / heads);
        let panels = (to_width - keep) / PANEL;
        for claimed in run.pieces(ctx, heads * panels, (panels / 4).max(1)) {
            let mut at = claimed.start;
            while at < claimed.end {
                let head = at / panels;
                let end = claimed.end.min((head + 1) * panels);
                let columns = match w.activation_kind() {
                    ActivationKind::F32 => Columns {
                        data: run.state.workspace(src.offset).wrapping_add(head * from_width).cast(),
                        row_bytes: src.width * 4,
                        count: rows,
                    },
                    ActivationKind::Q8 => {
                        let bytes = activations::row_bytes(n_in);
                        let data = run.state.area(Area::Main).wrapping_add(head * bytes);
                        Columns { data, row_bytes: heads * bytes, count: rows }
                    }
                };
                // SAFETY: the input is complete; panels of a head write columns of this head, which this claim alone
                // has: panel `p` of the matrix is at column `p * PANEL` of the shifted pointer.
                unsafe {
                    let to = run.state.workspace(out.offset).wrapping_add(head * to_width);
                    let to = to.wrapping_sub(head * panels * PANEL);
                    multiply(run.isa, w, at..end, columns, to, out.width, false);
                    if end == (head + 1) * panels {
                        for r in 0..rows {
                            let kept = &run.row(src, r)[head * from_width + n_in..][..keep];
                            let first = head * to_width + panels * PANEL;
                            run.columns_mut(out, r, first..first + keep).copy_from_slice(kept);
                        }
                    }
                }
                at = end;
            }
        }
    }
}
