//! Known-answer tests of attention with its cache, and of operations on whole rows.
//!
//! Shapes that are part of a kernel's text are the model's; other parameters (numbers of cells, scales, windows,
//! frequencies, weights of norms) are chosen so that a fault shows.

use super::{Expected, From, Probe, Run, TOLERANCE, input};
use crate::Result;
use crate::backend::KvTypes;
use crate::backend::gpu::device::STORAGE;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{BufferRef, FRAME_CELLS, FRAME_ROWS};
use crate::backend::gpu::ops::attention;
use crate::backend::gpu::ops::kv_cache::{self, BLOCK, KvLayout};
use crate::backend::gpu::ops::qkv::{self, Norms};
use crate::backend::gpu::ops::rows::{self, RowSpan};
use crate::backend::gpu::weights::rope_table::RopeTable;
use crate::backend::rope::Rope;
use crate::graph::{AttentionSpec, HeadNorm, NormSpec, RopeKind, RopeScaling, Rows};
use crate::quant::TensorType;
use half::f16;

/// Values of a row: more than a workgroup has threads, four for each.
const WIDTH: usize = 1028;
/// Rows of it.
const ROWS: usize = 3;
/// Runs of an attention, each with its rows after those of the run before.
const RUNS: usize = 4;
/// Copies from cell to cell.
const MOVES: [(usize, usize); 4] = [(127, 0), (64, 63), (2, 65), (7, 8)];
/// A soft cap that changes the scores and the rows clearly.
const CAP: f32 = 2.0;
/// Epsilon of the norms of heads.
const EPS: f32 = 1e-2;

impl Probe {
    /// RMS norm of rows, with or without a residual.
    pub fn norm(gpu: &Gpu, adds: bool) -> Result<Probe> {
        let eps = 1e-2;
        let (weight, size) = ((0..WIDTH).map(weight).collect::<Vec<f32>>(), ROWS * WIDTH);
        // Rows, then what is added to them.
        let workspace: Vec<f32> = (0..2 * size).map(input).collect();
        let (x, added) = workspace.split_at(size);
        let normed = x.chunks_exact(WIDTH).flat_map(|x| norm(x.iter().copied().map(f64::from), &weight, eps));
        let added = added.iter().map(|&y| if adds { f64::from(y) } else { 0.0 });
        let expected: Vec<_> = normed.zip(added).map(|(x, y)| (x + y, 4.0 * TOLERANCE)).collect();
        let place = |i| RowSpan { offset: i * size * 4, width: WIDTH };
        let residual = adds.then_some(place(1));
        let step = rows::norm(gpu, place(0), bound(gpu, &weight)?, eps, residual, place(2), Rows::Batch)?;
        Ok(Probe::new("RMS norms".into(), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// The choice of output rows.
    pub fn select(gpu: &Gpu) -> Result<Probe> {
        let workspace: Vec<f32> = (0..ROWS * WIDTH).map(input).collect();
        let expected = workspace.chunks_exact(WIDTH).rev().flatten().map(|&x| (f64::from(x), 0.0)).collect();
        let place = |i| RowSpan { offset: i * ROWS * WIDTH * 4, width: WIDTH };
        let step = rows::select(gpu, place(0), place(1))?;
        Ok(Probe::new("output rows".into(), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// The soft cap of rows.
    pub fn softcap(gpu: &Gpu) -> Result<Probe> {
        let workspace: Vec<f32> = (0..ROWS * WIDTH).map(|i| 5.0 * input(i)).collect();
        let expected = workspace.iter().map(|&x| (capped(x.into()), f64::from(CAP) * TOLERANCE)).collect();
        let place = |i| RowSpan { offset: i * ROWS * WIDTH * 4, width: WIDTH };
        let step = rows::softcap(gpu, place(0), place(1), CAP, Rows::Batch)?;
        Ok(Probe::new("soft caps".into(), vec![step], Run::new(workspace, ROWS, expected)))
    }

    /// Attention of heads of this shape, from queries, keys and values to its result.
    pub fn attention(
        gpu: &Gpu,
        spec: &AttentionSpec,
        layout: &KvLayout,
        rope: (RopeKind, usize),
        max_rows: usize,
    ) -> Result<Probe> {
        Probe::attends(gpu, spec, layout, rope, max_rows, false)
    }

    /// Keys rotated again (K-shift), as attention sees them.
    pub fn shift(gpu: &Gpu, spec: &AttentionSpec, layout: &KvLayout, rope: (RopeKind, usize)) -> Result<Probe> {
        Probe::attends(gpu, spec, layout, rope, 1, true)
    }

    /// Cells copied to others, from block to block and within one.
    pub fn copy(gpu: &Gpu, layout: &KvLayout) -> Result<Probe> {
        let (dk, dv) = (layout.head_dim_k, layout.head_dim_v);
        let layout = KvLayout::new(layout.types, layout.n_kv_heads, dk, dv, 2 * BLOCK)?;
        // Any words: a copy changes none.
        let cache = [layout.k_bytes(), layout.v_bytes()].map(|bytes| (0..bytes as usize / 4).map(input).collect());
        let runs = [From::Keys, From::Values].into_iter().zip(&cache).map(|(from, words): (_, &Vec<f32>)| {
            let key = matches!(from, From::Keys);
            let mut after = words.clone();
            for (source, to) in MOVES {
                let [source, to] = [source, to].map(|cell| layout.words(key, cell));
                source.zip(to).for_each(|(source, to)| after[to] = words[source]);
            }
            let mut run = Run::new(Vec::new(), MOVES.len(), after.into_iter().map(|x| (x.into(), 0.0)).collect());
            for (row, (source, to)) in MOVES.into_iter().enumerate() {
                run.frame[FRAME_ROWS + 4 * row..][..4].copy_from_slice(&[0, source as u32, 1, to as u32]);
            }
            Run { from, ..run }
        });
        let runs = runs.collect();
        let [keys, values] = cache;
        let steps = vec![kv_cache::copy(gpu, &layout, 0)?];
        Ok(Probe { what: format!("copies of {} cells", layout.types), steps, cache: [keys, values, Vec::new()], runs })
    }

    /// Attention whose keys are rotated twice where it `shifts`.
    fn attends(
        gpu: &Gpu,
        spec: &AttentionSpec,
        layout: &KvLayout,
        (kind, n_rot): (RopeKind, usize),
        max_rows: usize,
        shifts: bool,
    ) -> Result<Probe> {
        let (dk, dv) = (layout.head_dim_k, layout.head_dim_v);
        let layout = KvLayout::new(layout.types, layout.n_kv_heads, dk, dv, 2 * BLOCK)?;
        let rows = max_rows.min(ROWS);
        let spec = AttentionSpec {
            scale: 2.0 / (dk as f32).sqrt(),
            softcap: spec.softcap.map(|_| CAP),
            // The first rows are outside the window of the last row.
            window: 2 * rows as u32 + 1,
            q_norm: spec.q_norm.map(with_eps),
            k_norm: spec.k_norm.map(with_eps),
            ..spec.clone()
        };
        let (width, out_width) = (spec.q_width() + spec.k_width() + spec.v_width(), spec.n_head * dv);
        let rope = Rope::new(n_rot, 1e4, &[], RopeScaling::None);
        let (table, weight) = (RopeTable::new(gpu, kind, &rope)?, (0..dk).map(weight).collect::<Vec<f32>>());
        let norm_of = |norm: Option<_>| norm.map(|_| bound(gpu, &weight)).transpose();
        let norms = Norms { q: norm_of(spec.q_norm)?, k: norm_of(spec.k_norm)? };
        let (qkv, out) = (RowSpan { offset: 0, width }, RowSpan { offset: rows * width * 4, width: out_width });
        let mut steps = vec![qkv::step(gpu, &spec, &layout, &table, &norms, qkv)?];
        if shifts {
            // With the same rows: each new key is rotated by its position once more.
            steps.push(kv_cache::shift(gpu, &layout, spec.layer, &table)?);
        }
        steps.extend(attention::steps(gpu, &spec, &layout, qkv, out, max_rows)?);

        // Queries, keys and values of all positions so far.
        let mut past: Vec<[Vec<Vec<f64>>; 3]> = Vec::new();
        let mut runs = Vec::with_capacity(RUNS);
        for run in 0..RUNS {
            let workspace: Vec<f32> = (run * rows * width..(run + 1) * rows * width).map(input).collect();
            let mut expected = Vec::with_capacity(rows * out_width);
            for row in workspace.chunks_exact(width) {
                let (q, kv) = row.split_at(spec.q_width());
                let (k, v) = kv.split_at(spec.k_width());
                let head = |x: &[f32], normed: bool| {
                    let x = x.iter().copied().map(f64::from);
                    let x = if normed { norm(x, &weight, EPS) } else { x.collect() };
                    turned(x, &rope, kind, past.len())
                };
                let q = q.chunks_exact(dk).map(|x| head(x, spec.q_norm.is_some())).collect();
                let key = |x: &[f32]| {
                    let key = stored(layout.types.k, head(x, spec.k_norm.is_some()));
                    if shifts { stored(layout.types.k, turned(key, &rope, kind, past.len())) } else { key }
                };
                let k = k.chunks_exact(dk).map(key).collect();
                let v = v.chunks_exact(dv).map(|x| stored(layout.types.v, x.iter().copied().map(f64::from).collect()));
                past.push([q, k, v.collect()]);
                expected.extend(attention(&spec, layout.types, &past));
            }
            let mut run = Run::new(workspace, rows, expected);
            // One split of the cells and two in turn; both blocks have positions.
            let splits = 1 + runs.len() % 2;
            run.counts.splits = splits as u32;
            run.frame[2..5].copy_from_slice(&[layout.cells, splits, layout.cells / splits].map(|n| n as u32));
            run.frame.resize(FRAME_CELLS + 2 * layout.cells, 0);
            for position in 0..past.len() {
                let cell = position % 2 * BLOCK + position / 2;
                run.frame[FRAME_CELLS + 2 * cell..][..2].copy_from_slice(&[position as u32, 1]);
                if let Some(row) = position.checked_sub(past.len() - rows) {
                    let record = [0, position as u32, 1, cell as u32];
                    run.frame[FRAME_ROWS + 4 * row..][..4].copy_from_slice(&record);
                }
            }
            runs.push(run);
        }
        // Partial results of two splits for every row.
        let partials = 2 * rows * spec.n_head * (dv / 4 + 1) * 16;
        let turned = if shifts { "turned " } else { "" };
        let what = format!("attention of up to {max_rows} rows over {turned}{} heads of {dk} and {dv}", layout.types);
        let cache = [layout.k_bytes() as usize, layout.v_bytes() as usize, partials].map(|bytes| vec![0.0; bytes / 4]);
        Ok(Probe { what, steps, cache, runs })
    }
}

fn with_eps(head: HeadNorm) -> HeadNorm {
    HeadNorm { norm: NormSpec { eps: EPS, ..head.norm }, ..head }
}

/// Attention of the last position, by its definition.
fn attention(spec: &AttentionSpec, types: KvTypes, past: &[[Vec<Vec<f64>>; 3]]) -> Vec<Expected> {
    let off = |ty| match ty {
        TensorType::F32 => 4.0 * TOLERANCE,
        // A driver may round to f16 either way.
        TensorType::F16 => 4e-3,
        // Some values are halfway between two quantisation steps.
        _ => 2e-2,
    };
    let off = f64::max(off(types.k), off(types.v));
    let seen = &past[past.len().saturating_sub(spec.window as usize)..];
    let mut out = Vec::with_capacity(spec.n_head * spec.head_dim_v);
    for (head, q) in past.last().into_iter().flat_map(|[q, ..]| q.iter().enumerate()) {
        let its = head / (spec.n_head / spec.n_head_kv);
        let weight = |[_, k, _]: &[Vec<Vec<f64>>; 3]| {
            let score = q.iter().zip(&k[its]).map(|(q, k)| q * k).sum::<f64>() * f64::from(spec.scale);
            if spec.softcap.is_some() { capped(score) } else { score }.exp()
        };
        let weights: Vec<f64> = seen.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let value = |i| seen.iter().zip(&weights).map(|([_, _, v], w)| v[its][i] * w).sum::<f64>() / total;
        out.extend((0..spec.head_dim_v).map(|i| (value(i), off)));
    }
    out
}

fn norm(x: impl Iterator<Item = f64> + Clone, weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.clone().map(|x| x * x).sum::<f64>() / weight.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.zip(weight).map(|(x, &w)| x * scale * f64::from(w)).collect()
}

fn turned(mut x: Vec<f64>, rope: &Rope, kind: RopeKind, position: usize) -> Vec<f64> {
    for (i, frequency) in rope.frequencies().iter().enumerate() {
        let (a, b) = match kind {
            RopeKind::Norm => (2 * i, 2 * i + 1),
            RopeKind::Neox => (i, i + rope.n_rot() / 2),
        };
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
    }
    x
}

/// A head after it was stored in a cache of this type.
fn stored(ty: TensorType, mut x: Vec<f64>) -> Vec<f64> {
    match ty {
        TensorType::F32 => {}
        TensorType::F16 => x.iter_mut().for_each(|x| *x = f16::from_f64(*x).to_f64()),
        _ => {
            for group in x.chunks_mut(32) {
                let scale = group.iter().fold(0f64, |most, x| most.max(x.abs())) / 127.0;
                group.iter_mut().for_each(|x| *x = (*x / scale).round() * scale);
            }
        }
    }
    x
}

fn capped(x: f64) -> f64 {
    f64::from(CAP) * (x / f64::from(CAP)).tanh()
}

/// Weights of a norm.
fn weight(i: usize) -> f32 {
    1.0 + input(i) / 2.0
}

fn bound(gpu: &Gpu, weight: &[f32]) -> Result<BufferRef> {
    let bytes = weight.len() as u64 * 4;
    let buffer = gpu.buffer("probe", bytes, STORAGE)?;
    gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(weight));
    Ok(BufferRef::Weight(buffer.clone(), 0, bytes))
}
