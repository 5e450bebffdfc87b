//! What a step does, on every thread of a run.
//!
//! Threads claim pieces of a step's work from its counter, so a slow core never holds the others. Between two steps
//! all threads meet at a barrier; nothing a step writes is read before it. Buffers are raw memory that all threads
//! share: each piece of work writes rows or columns that no other piece touches.

use super::state::RunMemory;
use super::step::{Area, GATED_FLOATS, MatMulPart, Step};
use crate::backend::Batch;
use crate::backend::cpu::host::pool::{Counter, SharedMut, Worker};
use crate::backend::cpu::kernels::attention::{Attention, SplitShare};
use crate::backend::cpu::kernels::matmul::{Columns, matmul};
use crate::backend::cpu::kernels::rope::rotate_heads;
use crate::backend::cpu::kernels::{activations, glu, norm};
use crate::backend::cpu::kv;
use crate::backend::cpu::packed::weights::CpuWeights;
use crate::backend::cpu::packed::{ActivationKind, PANEL, PackedMatrix};
use crate::backend::rope::Rope;
use crate::graph::{Activation, AttentionSpec, RopeKind, Rows, WeightId};
use crate::simd::Isa;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Pieces per thread that a matrix product is cut into, so that uneven threads even out.
const PIECES_PER_THREAD: usize = 8;

/// One thread at one step.
#[derive(Clone, Copy)]
pub(super) struct StepContext<'a> {
    pub worker: &'a Worker<'a>,
    /// The step's index in the program.
    pub index: usize,
}

/// Rows in the workspace.
#[derive(Clone, Copy)]
struct RowSpan {
    offset: usize,
    width: usize,
}

/// Input rows of a product: as `f32` at byte `src`, and where a quantised matrix reads them, in an area.
struct Input {
    area: Area,
    src: usize,
    width: usize,
    rows: usize,
}

/// One run of a program: where everything is. Shared by the run's threads.
pub(super) struct Run<'a> {
    isa: Isa,
    weights: &'a CpuWeights,
    /// The rotary embeddings.
    ropes: &'a [(RopeKind, Rope)],
    /// Rows of the largest batch.
    max_rows: usize,
    batch: &'a Batch<'a>,
    out_rows: usize,
    state: &'a RunMemory,
    split: SplitShare<'a>,
    cancel: &'a AtomicBool,
    /// Index of the step after which every thread leaves; `usize::MAX` while there is none. It is a number and not a
    /// flag because a fast thread may be one step ahead: what it decides there must not make a slow thread, which is
    /// still looking after the last barrier, leave a step early.
    stop_after: AtomicUsize,
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
        let (stop_after, failed) = (AtomicUsize::new(usize::MAX), Mutex::new(None));
        Run { isa, weights, ropes, max_rows, batch, out_rows, state, split, cancel, stop_after, failed }
    }

    pub fn threads(&self) -> usize {
        self.state.threads()
    }

    pub fn finish(self) -> Result<()> {
        match self.failed.into_inner() {
            Some(error) => Err(error),
            None if self.stop_after.into_inner() != usize::MAX => Err(Error::Cancelled),
            None => Ok(()),
        }
    }

    fn fail(&self, index: usize, error: Error) {
        self.failed.lock().get_or_insert(error);
        self.stop_after.fetch_min(index, Ordering::Relaxed);
    }

    /// Whether the run ends with the step `index`; asked after that step's barrier, all threads hear the same.
    pub fn ends_after(&self, index: usize) -> bool {
        self.stop_after.load(Ordering::Relaxed) <= index
    }

    /// Pieces of the step's work that this thread claims, none any more once the run is cancelled. What a cancelled
    /// step leaves undone is never read: all threads leave after its barrier.
    fn pieces<'c>(
        &'c self,
        ctx: StepContext<'c>,
        counter: &'c Counter,
        total: usize,
        grain: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<'c> {
        ctx.worker.chunks(counter, total, grain).take_while(move |_| {
            let cancelled = self.cancel.load(Ordering::Relaxed);
            if cancelled {
                self.stop_after.fetch_min(ctx.index, Ordering::Relaxed);
            }
            !cancelled
        })
    }

    fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Batch => self.batch.tokens.len(),
            Rows::Output => self.out_rows,
        }
    }

    /// Row `r` of a node whose rows begin at byte `offset`.
    ///
    /// # Safety
    /// Nobody writes the row while the slice lives.
    unsafe fn row(&self, offset: usize, width: usize, r: usize) -> &[f32] {
        // SAFETY: the scheduler placed `max_rows` rows of `width` at `offset`, inside the reserved workspace.
        unsafe { std::slice::from_raw_parts(self.state.workspace(offset).add(r * width), width) }
    }

    /// Columns of a row, for writing.
    ///
    /// # Safety
    /// As [`Run::row`], and nobody else reads these columns meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn columns_mut(&self, offset: usize, width: usize, r: usize, columns: Range<usize>) -> &mut [f32] {
        // SAFETY: as in `row`; the caller is alone with these columns.
        unsafe {
            let first = self.state.workspace(offset).add(r * width + columns.start);
            std::slice::from_raw_parts_mut(first, columns.len())
        }
    }

    /// Do this thread's part of a step.
    pub fn step(&self, ctx: StepContext<'_>, step: &Step) {
        let counter = &self.state.counters[0];
        match step {
            Step::Rope => self.rope_tables(ctx),
            Step::Embed { table, scale, dst, width } => {
                self.rope_tables(ctx);
                for rows in self.pieces(ctx, counter, self.batch.tokens.len(), 1) {
                    for r in rows {
                        // SAFETY: each row is claimed once.
                        let out = unsafe { self.columns_mut(*dst, *width, r, 0..*width) };
                        match self.weights.table_row(*table, self.batch.tokens[r] as usize, out) {
                            Ok(()) if *scale != 1.0 => norm::scale_row(self.isa, out, *scale),
                            Ok(()) => {}
                            Err(error) => self.fail(ctx.index, error),
                        }
                    }
                }
            }
            Step::SelectRows { src, dst, width } => {
                for rows in self.pieces(ctx, counter, self.out_rows, 16) {
                    for r in rows {
                        // SAFETY: source rows are complete since the last barrier; each output row is claimed once.
                        unsafe {
                            let out = self.columns_mut(*dst, *width, r, 0..*width);
                            out.copy_from_slice(self.row(*src, *width, self.batch.outputs[r] as usize));
                        }
                    }
                }
            }
            Step::Norm { weight, eps, src, residual, dst, width, rows, q8 } => {
                let Ok(weight) = self.weights.vector(*weight) else { return };
                for claimed in self.pieces(ctx, counter, self.rows(*rows), 4) {
                    for r in claimed {
                        // SAFETY: sources are complete, each row is claimed once. A residual that stands where the
                        // output goes is added to in place.
                        unsafe {
                            let (x, out) = (self.row(*src, *width, r), self.columns_mut(*dst, *width, r, 0..*width));
                            match residual {
                                None => norm::rms_norm_row(self.isa, x, Some(weight), *eps, out),
                                Some(at) => {
                                    if at != dst {
                                        out.copy_from_slice(self.row(*at, *width, r));
                                    }
                                    norm::rms_norm_add_row(self.isa, x, weight, *eps, out);
                                }
                            }
                            if *q8 {
                                activations::quantize_row(
                                    self.isa,
                                    out,
                                    self.activation_row_mut(Area::Main, *width, r),
                                );
                            }
                        }
                    }
                }
            }
            Step::Quantise { src, width, rows } => {
                for claimed in self.pieces(ctx, counter, self.rows(*rows), 4) {
                    for r in claimed {
                        // SAFETY: the source row is complete; each row of the area is claimed once.
                        unsafe {
                            let out = self.activation_row_mut(Area::Main, *width, r);
                            activations::quantize_row(self.isa, self.row(*src, *width, r), out);
                        }
                    }
                }
            }
            Step::MatMul { parts, area, src, x_width, residual, dst, width, rows, logits } => {
                let x = Input { area: *area, src: *src, width: *x_width, rows: self.rows(*rows) };
                let out = RowSpan { offset: *dst, width: *width };
                if x.rows == 0 {
                    return;
                }
                if *logits && !self.batch.listed.is_empty() {
                    for claimed in self.pieces(ctx, counter, self.batch.listed.len(), 4) {
                        for panel in claimed.filter_map(|i| self.listed_panel(i)) {
                            self.matmul_panels(parts, &x, *residual, out, panel..panel + 1);
                        }
                    }
                    return;
                }
                let panels = |part: &MatMulPart| self.weights.matrix(part.0).map_or(0, PackedMatrix::n_panels);
                let total = parts.iter().map(panels).sum();
                for claimed in self.pieces(ctx, counter, total, self.grain(total)) {
                    self.matmul_panels(parts, &x, *residual, out, claimed);
                }
            }
            Step::Gated { gate, up, activation, area, src, x_width, dst, width, rows, f32, q8 } => {
                let (Ok(gate), Ok(up)) = (self.weights.matrix(*gate), self.weights.matrix(*up)) else { return };
                let x = Input { area: *area, src: *src, width: *x_width, rows: self.rows(*rows) };
                let out = RowSpan { offset: *dst, width: *width };
                self.gated_step(ctx, counter, (gate, up, *activation), x, out, *f32, *q8);
            }
            Step::Heads { spec, qkv, qkv_width } => {
                self.heads_step(ctx, counter, spec, RowSpan { offset: *qkv, width: *qkv_width });
            }
            Step::Attend { spec, qkv, qkv_width, dst, width } => {
                let (qkv, out) = (RowSpan { offset: *qkv, width: *qkv_width }, RowSpan { offset: *dst, width: *width });
                self.attend_step(ctx, counter, spec, qkv, out);
            }
            Step::SoftCap { cap, src, dst, width, rows } => {
                const PIECE: usize = 256 * PANEL;
                let listed = self.batch.listed.len();
                let pieces = if listed > 0 { listed } else { width.div_ceil(PIECE) };
                for claimed in self.pieces(ctx, counter, pieces * self.rows(*rows), 1) {
                    for piece in claimed {
                        let (r, i) = (piece / pieces, piece % pieces);
                        let columns = match self.listed_panel(i) {
                            Some(panel) => panel * PANEL..((panel + 1) * PANEL).min(*width),
                            None if listed > 0 => continue,
                            None => i * PIECE..((i + 1) * PIECE).min(*width),
                        };
                        // SAFETY: the source is complete; each piece is claimed once.
                        unsafe {
                            let out = self.columns_mut(*dst, *width, r, columns.clone());
                            out.copy_from_slice(&self.row(*src, *width, r)[columns]);
                            norm::softcap_row(self.isa, out, *cap);
                        }
                    }
                }
            }
            Step::ShiftKeys(spec) => self.shift_step(ctx, counter, spec),
            Step::CopyCells(spec) => self.copy_step(ctx, counter, spec),
        }
    }

    /// The quantised row `r` of an area, for writing.
    ///
    /// # Safety
    /// Nobody else touches the row while the slice lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn activation_row_mut(&self, area: Area, width: usize, r: usize) -> &mut [u8] {
        let bytes = activations::row_bytes(width);
        // SAFETY: every area holds `max_rows` rows of the widest quantised input.
        unsafe { std::slice::from_raw_parts_mut(self.state.activations(area).add(r * bytes), bytes) }
    }

    /// The input rows in the form that these panels multiply.
    fn columns(&self, w: &PackedMatrix, x: &Input) -> Columns {
        match w.activation_kind() {
            ActivationKind::F32 => {
                Columns { data: self.state.workspace(x.src).cast(), row_bytes: x.width * 4, count: x.rows }
            }
            ActivationKind::Q8 => Columns {
                data: self.state.activations(x.area),
                row_bytes: activations::row_bytes(x.width),
                count: x.rows,
            },
        }
    }

    /// The panel of the `i`th listed logit, unless it is also that of the one before.
    fn listed_panel(&self, i: usize) -> Option<usize> {
        let panel = |i: usize| self.batch.listed.get(i).map(|&token| token as usize / PANEL);
        panel(i).filter(|_| i == 0 || panel(i - 1) != panel(i))
    }

    /// The product with these panels, which are counted through all parts.
    fn matmul_panels(
        &self,
        parts: &[MatMulPart],
        x: &Input,
        residual: Option<usize>,
        out: RowSpan,
        claimed: Range<usize>,
    ) {
        let mut first = 0;
        for &(weight, bias, column) in parts {
            let Ok(w) = self.weights.matrix(weight) else { return };
            let panels = claimed.start.clamp(first, first + w.n_panels()) - first
                ..claimed.end.clamp(first, first + w.n_panels()) - first;
            first += w.n_panels();
            if panels.is_empty() {
                continue;
            }
            let columns = column + panels.start * PANEL..column + (panels.end * PANEL).min(w.n_out());
            if let Some(at) = residual.filter(|&at| at != out.offset) {
                for r in 0..x.rows {
                    // SAFETY: these columns belong to this claim alone; the residual is complete.
                    unsafe {
                        let from = &self.row(at, out.width, r)[columns.clone()];
                        self.columns_mut(out.offset, out.width, r, columns.clone()).copy_from_slice(from);
                    }
                }
            }
            // SAFETY: the input is complete and the output has `rows` rows of `width`; the columns of these
            // panels belong to this claim alone.
            unsafe {
                let to = self.state.workspace(out.offset).add(column);
                matmul(self.isa, w, panels, self.columns(w, x), to, out.width, residual.is_some());
            }
            if let Some(bias) = bias.and_then(|b| self.weights.vector(b).ok()) {
                let bias = &bias[columns.start - column..columns.end - column];
                for r in 0..x.rows {
                    // SAFETY: as above.
                    let out = unsafe { self.columns_mut(out.offset, out.width, r, columns.clone()) };
                    norm::add_row(self.isa, bias, out);
                }
            }
        }
    }

    /// Both products of a piece go to the thread's scratch, so that they are gated and quantised while in cache.
    #[allow(clippy::too_many_arguments)]
    fn gated_step(
        &self,
        ctx: StepContext<'_>,
        counter: &Counter,
        (gate, up, activation): (&PackedMatrix, &PackedMatrix, Activation),
        x: Input,
        out: RowSpan,
        f32: bool,
        q8: bool,
    ) {
        if x.rows == 0 {
            return;
        }
        const UNIT: usize = activations::BLOCK / PANEL;
        let units = gate.n_panels().div_ceil(UNIT);
        let most = (GATED_FLOATS / (x.rows * activations::BLOCK)).max(1);
        for claimed in self.pieces(ctx, counter, units, self.grain(units).min(most)) {
            let panels = claimed.start * UNIT..(claimed.end * UNIT).min(gate.n_panels());
            let columns = panels.start * PANEL..(panels.end * PANEL).min(out.width);
            let stride = columns.len();
            // SAFETY: the scratch is this thread's alone and holds three times GATED_FLOATS floats, of which a product
            // takes `rows * stride`; the kernel writes from column `columns.start` of the shifted pointer on.
            let (lower, upper, gated) = unsafe {
                let first = self.state.thread_scratch(ctx.worker.index()).0;
                let [lower, upper, gated] = [0, 1, 2].map(|i| first.add(i * GATED_FLOATS));
                let shifted = |p: *mut f32| p.wrapping_sub(columns.start);
                matmul(self.isa, gate, panels.clone(), self.columns(gate, &x), shifted(lower), stride, false);
                matmul(self.isa, up, panels.clone(), self.columns(up, &x), shifted(upper), stride, false);
                let n = x.rows * stride;
                let read = |p: *mut f32| std::slice::from_raw_parts(p, n);
                (read(lower), read(upper), std::slice::from_raw_parts_mut(gated, n))
            };
            match activation {
                Activation::Silu => glu::swiglu(self.isa, lower, upper, gated),
                Activation::Gelu => glu::geglu(self.isa, lower, upper, gated),
            }
            for (r, row) in gated.chunks_exact(stride).enumerate() {
                // SAFETY: these columns, and the blocks of 32 that they are, belong to this claim alone.
                unsafe {
                    if f32 {
                        self.columns_mut(out.offset, out.width, r, columns.clone()).copy_from_slice(row);
                    }
                    if q8 {
                        let to = self.state.activations(Area::Gated).add(r * activations::row_bytes(out.width));
                        activations::quantize_blocks(self.isa, row, to, out.width, columns.start / activations::BLOCK);
                    }
                }
            }
        }
    }

    /// Pieces of this many units make `PIECES_PER_THREAD` pieces for each thread.
    fn grain(&self, units: usize) -> usize {
        (units / (self.threads() * PIECES_PER_THREAD)).max(1)
    }

    /// Cosines and sines of every row's position, for each rotary embedding.
    fn rope_tables(&self, ctx: StepContext<'_>) {
        for rows in self.pieces(ctx, &self.state.counters[1], self.batch.tokens.len(), 8) {
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
    unsafe fn cos_sin(&self, rope: usize, r: usize) -> (&[f32], &[f32]) {
        let (row, n_rot) = self.rope_row(rope, r);
        // SAFETY: inside the tables; only read, as the caller promises.
        unsafe { std::slice::from_raw_parts(row, n_rot) }.split_at(n_rot / 2)
    }

    /// A unit of this step is one row and one key head with its query heads.
    fn heads_step(&self, ctx: StepContext<'_>, counter: &Counter, spec: &AttentionSpec, qkv: RowSpan) {
        let (n_kv, k_dim, v_dim) = (spec.n_head_kv, spec.head_dim_k, spec.head_dim_v);
        let group = spec.n_head / n_kv * k_dim;
        let layout = self.state.layout(spec.layer);
        // SAFETY: no two units write the same head of the same cell.
        let (k_cache, v_cache) = unsafe { self.cache(spec.layer) };
        let norm = |id: Option<WeightId>| id.and_then(|id| self.weights.vector(id).ok());
        let (q_norm, k_norm) = (norm(spec.q_norm), norm(spec.k_norm));
        let kind = self.ropes[spec.rope].0;
        let units = self.batch.tokens.len() * n_kv;
        for claimed in self.pieces(ctx, counter, units, self.grain(units)) {
            for unit in claimed {
                let (r, head) = (unit / n_kv, unit % n_kv);
                let cell = self.batch.cells[r] as usize;
                let k_first = spec.q_width() + head * k_dim;
                let v_first = spec.q_width() + spec.k_width() + head * v_dim;
                // SAFETY: the unit's columns and its part of the cell are its own; the tables are complete.
                unsafe {
                    let q = self.columns_mut(qkv.offset, qkv.width, r, head * group..(head + 1) * group);
                    let k = self.columns_mut(qkv.offset, qkv.width, r, k_first..k_first + k_dim);
                    let v = self.columns_mut(qkv.offset, qkv.width, r, v_first..v_first + v_dim);
                    let (cos, sin) = self.cos_sin(spec.rope, r);
                    if let Some(weight) = q_norm {
                        norm::rms_norm_heads(self.isa, q, weight, spec.norm_eps);
                    }
                    if let Some(weight) = k_norm {
                        norm::rms_norm_heads(self.isa, k, weight, spec.norm_eps);
                    }
                    rotate_heads(self.isa, kind, cos, sin, q, k_dim);
                    rotate_heads(self.isa, kind, cos, sin, k, k_dim);
                    kv::store_k(self.isa, layout, k_cache, cell, head, k);
                    kv::store_v(self.isa, layout, v_cache, cell, head, v);
                }
            }
        }
    }

    /// A layer's keys and values, shared by all threads.
    ///
    /// # Safety
    /// No two threads write the same head of the same cell, and what one writes no other reads.
    unsafe fn cache(&self, layer: usize) -> (SharedMut<'_, u8>, SharedMut<'_, u8>) {
        let layout = self.state.layout(layer);
        let (k, v) = self.state.cache(layer);
        // SAFETY: the buffers have the layout's sizes, and the threads of a run share them.
        unsafe { (SharedMut::from_raw(k, layout.k_bytes()), SharedMut::from_raw(v, layout.v_bytes())) }
    }

    fn shift_step(&self, ctx: StepContext<'_>, counter: &Counter, spec: &AttentionSpec) {
        let layout = self.state.layout(spec.layer);
        let (kind, rope) = &self.ropes[spec.rope];
        // The keys hold the embedding's magnitude already.
        let plain = (1.0 / rope.magnitude()) as f32;
        let (scratch, _) = self.state.thread_scratch(ctx.worker.index());
        // SAFETY: the scratch is this thread's, and longer than any head.
        let key = unsafe { std::slice::from_raw_parts_mut(scratch, spec.head_dim_k) };
        // SAFETY: a cell is in one row, and a row is claimed once.
        let (k_cache, _) = unsafe { self.cache(spec.layer) };
        for claimed in self.pieces(ctx, counter, self.batch.tokens.len(), 4) {
            for r in claimed {
                let cell = self.batch.cells[r] as usize;
                for head in 0..spec.n_head_kv {
                    // SAFETY: the cell is this thread's alone; the tables are complete.
                    unsafe {
                        let (cos, sin) = self.cos_sin(spec.rope, r);
                        kv::load_k(layout, k_cache, cell, head, key);
                        rotate_heads(self.isa, *kind, cos, sin, key, spec.head_dim_k);
                        norm::scale_row(self.isa, &mut key[..rope.n_rot()], plain);
                        kv::store_k(self.isa, layout, k_cache, cell, head, key);
                    }
                }
            }
        }
    }

    fn copy_step(&self, ctx: StepContext<'_>, counter: &Counter, spec: &AttentionSpec) {
        let layout = self.state.layout(spec.layer);
        // SAFETY: no cell is both read and written, and each is written by one row, which is claimed once.
        let (k_cache, v_cache) = unsafe { self.cache(spec.layer) };
        for claimed in self.pieces(ctx, counter, self.batch.tokens.len(), 4) {
            for r in claimed {
                let (from, to) = (self.batch.positions[r] as usize, self.batch.cells[r] as usize);
                // SAFETY: as above.
                unsafe { kv::copy_cell(layout, k_cache, v_cache, from, to) };
            }
        }
    }

    fn attend_step(&self, ctx: StepContext<'_>, counter: &Counter, spec: &AttentionSpec, qkv: RowSpan, out: RowSpan) {
        let rows = self.batch.tokens.len();
        let layout = self.state.layout(spec.layer);
        let (k, v) = self.state.cache(spec.layer);
        let (scratch, scratch_len) = self.state.thread_scratch(ctx.worker.index());
        // SAFETY: keys, values and queries are complete since the last barrier and nobody writes them in this step;
        // the scratch is this thread's; the output's rows are written by tasks that share no element.
        let (k, v, q, scratch, out) = unsafe {
            (
                std::slice::from_raw_parts(k, layout.k_bytes()),
                std::slice::from_raw_parts(v, layout.v_bytes()),
                std::slice::from_raw_parts(self.state.workspace(qkv.offset), rows * qkv.width),
                std::slice::from_raw_parts_mut(scratch, scratch_len),
                SharedMut::from_raw(self.state.workspace(out.offset), rows * out.width),
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
            row_pos: self.batch.positions,
            row_seq: self.batch.sequences,
            cell_pos: self.batch.cell_positions,
            cell_seq: self.batch.cell_sequences,
            n_kv: self.batch.n_kv,
        };
        let tasks = attention.tasks(ctx.worker.count());
        for claimed in self.pieces(ctx, counter, tasks.count, 1) {
            for task in claimed {
                // SAFETY: the counter hands out every task once; the split space belongs to this step.
                unsafe { attention.run(self.isa, &tasks, task, scratch, self.split, out) };
            }
        }
    }
}
