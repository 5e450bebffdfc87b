//! Attention and what moves the cells of its cache.

use crate::Result;
use crate::backend::NO_CELL;
use crate::backend::cpu::host::pool::SharedMut;
use crate::backend::cpu::kernels::attention::{Attention, Distances, Scoring};
use crate::backend::cpu::kernels::norm::{self, Norm};
use crate::backend::cpu::kernels::rope::rotate_heads;
use crate::backend::cpu::kv;
use crate::backend::cpu::program::demand::Demand;
use crate::backend::cpu::program::lower::Lowering;
use crate::backend::cpu::program::run::{RowSpan, Run, Step, StepContext};
use crate::graph::{AttentionSpec, DistanceBias, HeadNorm, NodeId, NormSpan, NormSpec, Rows, Values};
use std::ops::Range;

/// Appends the two steps of an attention, and before them norms over whole rows.
pub fn attention(to: &mut Lowering<'_>, id: NodeId, spec: &AttentionSpec) -> Result<()> {
    let q = to.span(to.source(id)?);
    let (kv, kv_first) = match to.node(id).src.get(1) {
        Some(&kv) => (to.span(kv), 0),
        None => (q, spec.q_width()),
    };
    let source = Source { q: Some(q), kv, kv_first, rows: to.node(id).rows };
    let keys = kv_first..kv_first + spec.k_width();
    for (head, span, columns) in [(spec.q_norm, q, 0..spec.q_width()), (spec.k_norm.filter(|_| spec.writes), kv, keys)]
    {
        if let Some(HeadNorm { norm, span: NormSpan::Row }) = head {
            to.push(RowNorm { norm, span, columns, rows: source.rows });
        }
    }
    to.push(Heads { spec: spec.clone(), source });
    let both = if spec.bidirectional { 2 } else { 1 };
    let buckets = spec.distance.map_or(Vec::new(), |distance| DistanceBias::of_distances(distance.buckets / both));
    to.push(Attend { spec: spec.clone(), buckets, q, rows: source.rows, out: to.span(id) });
    Ok(())
}

/// Appends a write of keys and values.
pub fn write_keys(to: &mut Lowering<'_>, id: NodeId, spec: &AttentionSpec) -> Result<()> {
    let source = Source { q: None, kv: to.span(to.source(id)?), kv_first: 0, rows: to.node(id).rows };
    to.push(Heads { spec: spec.clone(), source });
    Ok(())
}

/// Where an attention's input is.
#[derive(Clone, Copy)]
struct Source {
    /// Queries, from the first column on; none where keys and values are only written.
    q: Option<RowSpan>,
    /// Keys, and values where they have columns of their own.
    kv: RowSpan,
    /// The first column of the keys.
    kv_first: usize,
    rows: Rows,
}

/// The norm of all heads of a row together, in place.
struct RowNorm {
    norm: NormSpec,
    span: RowSpan,
    columns: Range<usize>,
    rows: Rows,
}

impl Step for RowNorm {
    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let norm = run.norm(&self.norm);
        for claimed in run.pieces(ctx, run.rows(self.rows), 4) {
            for r in claimed {
                // SAFETY: each row is claimed once, and nobody else uses it in this step.
                let row = unsafe { run.columns_mut(self.span, r, self.columns.clone()) };
                norm.in_place(run.isa, row);
            }
        }
    }
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
    source: Source,
}

impl Heads {
    /// What turns and normalises heads of row `r`, the first of which is `head`.
    fn prepare(&self, run: &Run<'_>, r: usize, head: usize, norm: Option<&HeadNorm>, heads: &mut [f32]) {
        let spec = &self.spec;
        let width = spec.head_dim_k;
        let rotate = |heads: &mut [f32]| {
            if let Some(rope) = spec.rope {
                // SAFETY: the tables are complete.
                let angles = unsafe { run.cos_sin(rope, run.batch_row(self.source.rows, r)) };
                rotate_heads(run.isa, run.ropes[rope].0, angles, heads, (width, spec.rope_first));
            }
        };
        if spec.norm_after_rope {
            rotate(heads);
        }
        if let Some(HeadNorm { norm, span }) = norm {
            let norm = run.norm(norm);
            match span {
                NormSpan::Head(_) => norm.heads(run.isa, heads, width),
                NormSpan::EachHead => {
                    for (i, values) in heads.chunks_exact_mut(width).enumerate() {
                        let own = (head + i) * width..(head + i + 1) * width;
                        let weight = norm.weight.map(|weight| &weight[own.clone()]);
                        let bias = norm.bias.map(|bias| &bias[own.clone()]);
                        Norm { weight, bias, ..norm }.in_place(run.isa, values);
                    }
                }
                // By a step of its own.
                NormSpan::Row => {}
            }
        }
        if !spec.norm_after_rope {
            rotate(heads);
        }
    }
}

impl Step for Heads {
    fn size(&self, demand: &mut Demand) {
        demand.thread(self.spec.head_dim_v * 4);
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let Heads { spec, source } = self;
        let (n_kv, k_dim, v_dim) = (spec.n_head_kv, spec.head_dim_k, spec.head_dim_v);
        let group = spec.n_head / n_kv;
        let layout = run.state.layout(spec.layer);
        let cells = run.cells(spec.layer).rows;
        // SAFETY: no two units write the same head of the same cell.
        let (k_cache, v_cache) = unsafe { cache(run, spec.layer) };
        // SAFETY: the scratch is this thread's, and `size` asks for a head.
        let value = unsafe { std::slice::from_raw_parts_mut(run.state.thread_scratch(ctx.worker.index()).0, v_dim) };
        let units = run.rows(source.rows) * n_kv;
        for claimed in run.pieces(ctx, units, run.grain(units)) {
            for unit in claimed {
                let (r, head) = (unit / n_kv, unit % n_kv);
                let first = head * group;
                if let Some(q) = source.q {
                    // SAFETY: the unit's columns are its own.
                    let q = unsafe { run.columns_mut(q, r, first * k_dim..(first + group) * k_dim) };
                    self.prepare(run, r, first, spec.q_norm.as_ref(), q);
                }
                if !spec.writes {
                    continue;
                }
                let cell = cells[r] as usize;
                let k_first = source.kv_first + head * k_dim;
                let v_first = source.kv_first + spec.k_width() + head * v_dim;
                // SAFETY: as above.
                let k = unsafe { run.columns_mut(source.kv, r, k_first..k_first + k_dim) };
                match spec.values {
                    Values::Own => {
                        // SAFETY: as above.
                        value.copy_from_slice(unsafe { run.columns_mut(source.kv, r, v_first..v_first + v_dim) })
                    }
                    Values::Keys => value.copy_from_slice(&k[..v_dim]),
                    Values::KeyPrefix => {}
                }
                self.prepare(run, r, head, spec.k_norm.as_ref(), k);
                if spec.values == Values::KeyPrefix {
                    value.copy_from_slice(&k[..v_dim]);
                }
                if let Some(norm) = &spec.v_norm {
                    run.norm(norm).in_place(run.isa, value);
                }
                // SAFETY: the unit's part of the cell is its own.
                unsafe {
                    kv::store_k(run.isa, layout, k_cache, cell, head, k);
                    kv::store_v(run.isa, layout, v_cache, cell, head, value);
                }
            }
        }
    }
}

/// Attends over the cells that each row sees.
struct Attend {
    spec: AttentionSpec,
    /// Of each distance, for biases by distance.
    buckets: Vec<u32>,
    /// Queries, from the first column on.
    q: RowSpan,
    rows: Rows,
    out: RowSpan,
}

impl Step for Attend {
    fn size(&self, demand: &mut Demand) {
        demand.attentions.push(self.spec.clone());
    }

    fn run(&self, run: &Run<'_>, ctx: StepContext<'_>) {
        let Attend { spec, buckets, q, rows, out } = self;
        let (row_pos, row_seq) = run.positions(*rows);
        let rows = row_pos.len();
        if rows == 0 {
            return;
        }
        let (layout, cells) = (run.state.layout(spec.layer), run.cells(spec.layer));
        let (k, v) = run.state.cache(spec.layer);
        let (scratch, scratch_len) = run.state.thread_scratch(ctx.worker.index());
        // SAFETY: keys, values and queries are complete since the last barrier and nobody writes them in this step;
        // the scratch is this thread's; the output's rows are written by tasks that share no element.
        let (k, v, queries, scratch, out) = unsafe {
            (
                std::slice::from_raw_parts(k, layout.k_bytes()),
                std::slice::from_raw_parts(v, layout.v_bytes()),
                std::slice::from_raw_parts(run.state.workspace(q.offset), rows * q.width),
                std::slice::from_raw_parts_mut(scratch, scratch_len),
                SharedMut::from_raw(run.state.workspace(out.offset), rows * out.width),
            )
        };
        let attention = Attention {
            layout,
            n_heads: spec.n_head,
            scoring: Scoring {
                scale: spec.scale,
                temperature: spec.temperature,
                softcap: spec.softcap.unwrap_or(0.0),
                bidirectional: spec.bidirectional,
                window: spec.window,
                chunk: spec.chunk,
                alibi: spec.alibi,
                distances: spec.distance.and_then(|distance| {
                    let biases = run.weights.vector(distance.weight).ok()?;
                    let after = if spec.bidirectional { distance.buckets as u32 / 2 } else { 0 };
                    Some(Distances { biases, buckets, after })
                }),
                sinks: spec.sinks.and_then(|id| run.weights.vector(id).ok()),
            },
            k,
            v,
            q: queries,
            q_stride: q.width,
            row_pos,
            row_seq,
            cell_pos: cells.positions,
            cell_seq: cells.sequences,
            lists: cells.lists,
            n_kv: cells.end,
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
        let Some(rope_index) = spec.rope else { return };
        let (layout, cells) = (run.state.layout(spec.layer), run.cells(spec.layer).rows);
        let (kind, rope) = &run.ropes[rope_index];
        // Factors that a norm after the rotation left on the keys are not turned.
        let factors = spec.k_norm.filter(|_| spec.norm_after_rope).and_then(|head| run.norm(&head.norm).weight);
        let factors = factors.filter(|factors| factors.len() == spec.head_dim_k);
        // The keys hold the embedding's magnitude already.
        let plain = (1.0 / rope.magnitude()) as f32;
        let (scratch, _) = run.state.thread_scratch(ctx.worker.index());
        // SAFETY: the scratch is this thread's, and `size` asks for a head.
        let key = unsafe { std::slice::from_raw_parts_mut(scratch, spec.head_dim_k) };
        // SAFETY: a cell is in one row, and a row is claimed once.
        let (k_cache, _) = unsafe { cache(run, spec.layer) };
        for claimed in run.pieces(ctx, run.batch.tokens.len(), 4) {
            for r in claimed.filter(|&r| cells[r] != NO_CELL) {
                let cell = cells[r] as usize;
                for head in 0..spec.n_head_kv {
                    // SAFETY: the cell is this thread's alone; the tables are complete.
                    unsafe {
                        let angles = run.cos_sin(rope_index, r);
                        kv::load_k(layout, k_cache, cell, head, key);
                        for (x, &w) in key.iter_mut().zip(factors.unwrap_or_default()).filter(|(_, w)| **w != 0.0) {
                            *x /= w;
                        }
                        rotate_heads(run.isa, *kind, angles, key, (spec.head_dim_k, spec.rope_first));
                        norm::scale_row(run.isa, &mut key[spec.rope_first..][..rope.n_rot()], plain);
                        for (x, w) in key.iter_mut().zip(factors.unwrap_or_default()) {
                            *x *= w;
                        }
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
        let (layout, cells) = (run.state.layout(spec.layer), run.cells(spec.layer).rows);
        // SAFETY: no cell is both read and written, and each is written by one row, which is claimed once.
        let (k_cache, v_cache) = unsafe { cache(run, spec.layer) };
        for claimed in run.pieces(ctx, run.batch.tokens.len(), 4) {
            for r in claimed.filter(|&r| cells[r] != NO_CELL) {
                let (from, to) = (run.batch.positions[r] as usize, cells[r] as usize);
                // SAFETY: as above.
                unsafe { kv::copy_cell(layout, k_cache, v_cache, from, to) };
            }
        }
    }
}
