//! Attention and what moves the cells of its cache.

use crate::Result;
use crate::backend::cpu::host::pool::SharedMut;
use crate::backend::cpu::kernels::attention::Attention;
use crate::backend::cpu::kernels::norm;
use crate::backend::cpu::kernels::rope::rotate_heads;
use crate::backend::cpu::kv;
use crate::backend::cpu::program::demand::Demand;
use crate::backend::cpu::program::lower::Lowering;
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::graph::{AttentionSpec, NodeId, WeightId};

/// Appends the two steps of an attention.
pub fn attention(to: &mut Lowering<'_>, id: NodeId, spec: &AttentionSpec) -> Result<()> {
    let qkv = to.span(to.source(id)?);
    to.push(Heads { spec: spec.clone(), qkv });
    to.push(Attend { spec: spec.clone(), qkv, out: to.span(id) });
    Ok(())
}

/// Cosines and sines of the batch's positions, where no look-up of embeddings makes them on the side.
pub struct RopeTables;

impl Step for RopeTables {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        run.rope_tables(ctx);
    }
}

/// A layer's keys and values, shared by all threads.
///
/// # Safety
/// No two threads write the same head of the same cell, and what one writes no other reads.
unsafe fn cache<'a>(run: &'a Run<'_>, layer: usize) -> (SharedMut<'a, u8>, SharedMut<'a, u8>) {
    let layout = run.state.layout(layer);
    let (k, v) = run.state.cache(layer);
    // SAFETY: the buffers have the layout's sizes, and the threads of a run share them.
    unsafe { (SharedMut::from_raw(k, layout.k_bytes()), SharedMut::from_raw(v, layout.v_bytes())) }
}

/// Norms and rotates q and k, writes k and v to the cache. A unit is one row and one key head with its query heads.
struct Heads {
    spec: AttentionSpec,
    qkv: RowSpan,
}

impl Step for Heads {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let spec = &self.spec;
        let (n_kv, k_dim, v_dim) = (spec.n_head_kv, spec.head_dim_k, spec.head_dim_v);
        let group = spec.n_head / n_kv * k_dim;
        let layout = run.state.layout(spec.layer);
        // SAFETY: no two units write the same head of the same cell.
        let (k_cache, v_cache) = unsafe { cache(run, spec.layer) };
        let norm = |id: Option<WeightId>| id.and_then(|id| run.weights.vector(id).ok());
        let (q_norm, k_norm) = (norm(spec.q_norm), norm(spec.k_norm));
        let kind = run.ropes[spec.rope].0;
        let units = run.batch.tokens.len() * n_kv;
        for claimed in run.pieces(ctx, units, run.grain(units)) {
            for unit in claimed {
                let (r, head) = (unit / n_kv, unit % n_kv);
                let cell = run.batch.cells[r] as usize;
                let k_first = spec.q_width() + head * k_dim;
                let v_first = spec.q_width() + spec.k_width() + head * v_dim;
                // SAFETY: the unit's columns and its part of the cell are its own; the tables are complete.
                unsafe {
                    let q = run.columns_mut(self.qkv, r, head * group..(head + 1) * group);
                    let k = run.columns_mut(self.qkv, r, k_first..k_first + k_dim);
                    let v = run.columns_mut(self.qkv, r, v_first..v_first + v_dim);
                    let (cos, sin) = run.cos_sin(spec.rope, r);
                    if let Some(weight) = q_norm {
                        norm::rms_norm_heads(run.isa, q, weight, spec.norm_eps);
                    }
                    if let Some(weight) = k_norm {
                        norm::rms_norm_heads(run.isa, k, weight, spec.norm_eps);
                    }
                    rotate_heads(run.isa, kind, cos, sin, q, k_dim);
                    rotate_heads(run.isa, kind, cos, sin, k, k_dim);
                    kv::store_k(run.isa, layout, k_cache, cell, head, k);
                    kv::store_v(run.isa, layout, v_cache, cell, head, v);
                }
            }
        }
    }
}

/// Attends over the cells that each row sees.
struct Attend {
    spec: AttentionSpec,
    qkv: RowSpan,
    out: RowSpan,
}

impl Step for Attend {
    fn size(&self, demand: &mut Demand) {
        demand.attentions.push(self.spec.clone());
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let Attend { spec, qkv, out } = self;
        let rows = run.batch.tokens.len();
        let layout = run.state.layout(spec.layer);
        let (k, v) = run.state.cache(spec.layer);
        let (scratch, scratch_len) = run.state.thread_scratch(ctx.worker.index());
        // SAFETY: keys, values and queries are complete since the last barrier and nobody writes them in this step;
        // the scratch is this thread's; the output's rows are written by tasks that share no element.
        let (k, v, q, scratch, out) = unsafe {
            (
                std::slice::from_raw_parts(k, layout.k_bytes()),
                std::slice::from_raw_parts(v, layout.v_bytes()),
                std::slice::from_raw_parts(run.state.workspace(qkv.offset), rows * qkv.width),
                std::slice::from_raw_parts_mut(scratch, scratch_len),
                SharedMut::from_raw(run.state.workspace(out.offset), rows * out.width),
            )
        };
        let attention = Attention {
            layout,
            n_heads: spec.n_head,
            scale: spec.scale,
            softcap: spec.softcap.unwrap_or(0.0),
            window: spec.window,
            k,
            v,
            q,
            q_stride: qkv.width,
            row_pos: run.batch.positions,
            row_seq: run.batch.sequences,
            cell_pos: run.batch.cell_positions,
            cell_seq: run.batch.cell_sequences,
            n_kv: run.batch.n_kv,
        };
        let tasks = attention.tasks(ctx.worker.count());
        for claimed in run.pieces(ctx, tasks.count, 1) {
            for task in claimed {
                // SAFETY: the counter hands out every task once; the split space belongs to this step.
                unsafe { attention.run(run.isa, &tasks, task, scratch, run.split, out) };
            }
        }
    }
}

/// Appends a shift of keys.
pub fn shift_keys(to: &mut Lowering<'_>, spec: &AttentionSpec) -> Result<()> {
    to.push(ShiftKeys(spec.clone()));
    Ok(())
}

/// Turns the keys of the batch's cells.
struct ShiftKeys(AttentionSpec);

impl Step for ShiftKeys {
    fn size(&self, demand: &mut Demand) {
        demand.attentions.push(self.0.clone());
        demand.thread(self.0.head_dim_k * 4);
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let spec = &self.0;
        let layout = run.state.layout(spec.layer);
        let (kind, rope) = &run.ropes[spec.rope];
        // The keys hold the embedding's magnitude already.
        let plain = (1.0 / rope.magnitude()) as f32;
        let (scratch, _) = run.state.thread_scratch(ctx.worker.index());
        // SAFETY: the scratch is this thread's, and `size` asks for a head.
        let key = unsafe { std::slice::from_raw_parts_mut(scratch, spec.head_dim_k) };
        // SAFETY: a cell is in one row, and a row is claimed once.
        let (k_cache, _) = unsafe { cache(run, spec.layer) };
        for claimed in run.pieces(ctx, run.batch.tokens.len(), 4) {
            for r in claimed {
                let cell = run.batch.cells[r] as usize;
                for head in 0..spec.n_head_kv {
                    // SAFETY: the cell is this thread's alone; the tables are complete.
                    unsafe {
                        let (cos, sin) = run.cos_sin(spec.rope, r);
                        kv::load_k(layout, k_cache, cell, head, key);
                        rotate_heads(run.isa, *kind, cos, sin, key, spec.head_dim_k);
                        norm::scale_row(run.isa, &mut key[..rope.n_rot()], plain);
                        kv::store_k(run.isa, layout, k_cache, cell, head, key);
                    }
                }
            }
        }
    }
}

/// Appends a copy of cells.
pub fn copy_cells(to: &mut Lowering<'_>, spec: &AttentionSpec) -> Result<()> {
    to.push(CopyCells(spec.clone()));
    Ok(())
}

/// Copies keys and values from cells to cells.
struct CopyCells(AttentionSpec);

impl Step for CopyCells {
    fn size(&self, demand: &mut Demand) {
        demand.attentions.push(self.0.clone());
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let spec = &self.0;
        let layout = run.state.layout(spec.layer);
        // SAFETY: no cell is both read and written, and each is written by one row, which is claimed once.
        let (k_cache, v_cache) = unsafe { cache(run, spec.layer) };
        for claimed in run.pieces(ctx, run.batch.tokens.len(), 4) {
            for r in claimed {
                let (from, to) = (run.batch.positions[r] as usize, run.batch.cells[r] as usize);
                // SAFETY: as above.
                unsafe { kv::copy_cell(layout, k_cache, v_cache, from, to) };
            }
        }
    }
}
