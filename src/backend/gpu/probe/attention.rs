//! Known-answer tests of attention with its cache.
//!
//! Shapes that are part of a kernel's text are the model's; other parameters (numbers of cells, scales, windows,
//! frequencies, weights of norms) are chosen so that a fault shows.

use super::ops::{CAP, bound, capped, doubles, known_norm, weight};
use super::{Expected, From, Probe, Run, TOLERANCE, input};
use crate::Result;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{FRAME_CELLS, FRAME_ROWS};
use crate::backend::gpu::ops::attention::{self, Queries};
use crate::backend::gpu::ops::kv_cache::{self, BLOCK, KvLayout, Shift};
use crate::backend::gpu::ops::qkv::{Norms, Preparation, Source, Vectors};
use crate::backend::gpu::ops::rows::RowSpan;
use crate::backend::gpu::weights::rope_table::RopeTable;
use crate::backend::rope::Rope;
use crate::graph::{
    AttentionSpec, HeadNorm, NormSpan, NormSpec, RopeKind, RopeScaling, Rows, Temperature, Values, alibi_slope,
};
use crate::quant::TensorType;
use half::f16;

/// Rows of a run.
const ROWS: usize = 3;
/// Runs of an attention, each with its rows after those of the run before.
const RUNS: usize = 4;
/// Copies from cell to cell.
const MOVES: [(usize, usize); 4] = [(127, 0), (64, 63), (2, 65), (7, 8)];
/// Epsilon of the norms of heads.
const EPS: f32 = 1e-2;

impl Probe {
    /// Attention of heads of this shape, from queries, keys and values to its result; `turns` is the pairing and number
    /// of the values that are rotated.
    pub fn attention(
        gpu: &Gpu,
        spec: &AttentionSpec,
        layout: &KvLayout,
        turns: Option<(RopeKind, usize)>,
        rows: Rows,
        max_rows: usize,
    ) -> Result<Probe> {
        Past::new(spec, layout, turns, max_rows)?.probe(gpu, rows, max_rows, false)
    }

    /// Keys rotated again (K-shift), as attention sees them.
    pub fn shift(gpu: &Gpu, spec: &AttentionSpec, layout: &KvLayout, turns: (RopeKind, usize)) -> Result<Probe> {
        let spec = AttentionSpec { writes: true, ..spec.clone() };
        Past::new(&spec, layout, Some(turns), 1)?.probe(gpu, Rows::Batch, 1, true)
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
        Ok(Probe {
            what: format!("copies of {} cells", layout.types),
            steps,
            cache: [keys, values, vec![], vec![]],
            runs,
        })
    }
}

/// The numbers of a norm of heads.
struct Numbers {
    weight: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
}

impl Numbers {
    fn new(norm: Option<HeadNorm>, heads: usize, dim: usize) -> Numbers {
        let numbers = |exists: bool, of: fn(usize) -> f32| {
            let n = match norm.map(|norm| norm.span) {
                Some(NormSpan::Head(width)) => width.min(dim),
                _ => heads * dim,
            };
            exists.then(|| (0..n).map(of).collect())
        };
        let norm = norm.map(|norm| norm.norm);
        Numbers {
            weight: numbers(norm.is_some_and(|norm| norm.weight.is_some()), weight),
            bias: numbers(norm.is_some_and(|norm| norm.bias.is_some()), |i| input(i + 77) / 4.0),
        }
    }

    fn bound(&self, gpu: &Gpu) -> Result<Vectors> {
        let vector = |numbers: &Option<Vec<f32>>| numbers.as_ref().map(|numbers| bound(gpu, numbers)).transpose();
        Ok(Vectors { weight: vector(&self.weight)?, bias: vector(&self.bias)? })
    }

    /// Normalises `x` with the numbers from `at` on.
    fn norm(&self, norm: &NormSpec, x: &mut [f64], at: usize) {
        let part = |numbers: &Option<Vec<f32>>| numbers.as_ref().map(|numbers| numbers[at..at + x.len()].to_vec());
        let (weight, bias) = (part(&self.weight), part(&self.bias));
        x.copy_from_slice(&known_norm(x, norm.kind, weight.as_deref(), bias.as_deref(), norm.eps));
    }
}

/// What attention has to see: by the definition, in f64.
struct Past {
    spec: AttentionSpec,
    layout: KvLayout,
    rope: Rope,
    kind: RopeKind,
    q_norm: Numbers,
    k_norm: Numbers,
    sinks: Option<Vec<f32>>,
    /// Queries, keys and values of all positions so far, by head.
    rows: Vec<[Vec<Vec<f64>>; 3]>,
}

impl Past {
    fn new(like: &AttentionSpec, layout: &KvLayout, turns: Option<(RopeKind, usize)>, max_rows: usize) -> Result<Past> {
        let (dk, dv) = (layout.head_dim_k, layout.head_dim_v);
        let layout = KvLayout::new(layout.types, layout.n_kv_heads, dk, dv, 2 * BLOCK)?;
        let rows = max_rows.min(ROWS) as u32;
        let with_eps = |head: HeadNorm| HeadNorm { norm: NormSpec { eps: EPS, ..head.norm }, ..head };
        let spec = AttentionSpec {
            scale: 2.0 / (dk as f32).sqrt(),
            softcap: like.softcap.map(|_| CAP),
            // The first rows are outside the window of the last row, and a chunk ends before it.
            window: 2 * rows + 1,
            chunk: if like.chunk > 0 { rows + 2 } else { 0 },
            temperature: like.temperature.map(|_| Temperature { scale: 0.5, length: 3, offset: 1 }),
            alibi: if like.alibi != 0.0 { 1.0 } else { 0.0 },
            q_norm: like.q_norm.map(with_eps),
            k_norm: like.k_norm.map(with_eps),
            v_norm: like.v_norm.map(|norm| NormSpec { eps: EPS, ..norm }),
            ..like.clone()
        };
        let (kind, n_rot) = turns.unwrap_or((RopeKind::Norm, 0));
        Ok(Past {
            q_norm: Numbers::new(spec.q_norm, spec.n_head, dk),
            k_norm: Numbers::new(spec.k_norm, spec.n_head_kv, dk),
            sinks: spec.sinks.map(|_| (0..spec.n_head).map(|head| 2.0 * input(head)).collect()),
            rope: Rope::new(n_rot, 1e4, &[], RopeScaling::None),
            rows: Vec::new(),
            spec,
            layout,
            kind,
        })
    }

    fn probe(mut self, gpu: &Gpu, which: Rows, max_rows: usize, shifts: bool) -> Result<Probe> {
        let (spec, layout) = (self.spec.clone(), self.layout);
        let (dk, dv, rows) = (layout.head_dim_k, layout.head_dim_v, max_rows.min(ROWS));
        // Another attention writes the cache where this one does not.
        let writer = AttentionSpec { writes: true, k_norm: spec.k_norm.filter(|_| spec.writes), ..spec.clone() };
        let (q_width, kv_width, out_width) = (spec.q_width(), writer.kv_width(), spec.n_head * dv);
        let width = q_width + kv_width;
        let place = |at: usize, width| RowSpan { offset: 4 * at, width };
        let out = place(rows * width, out_width);
        // Queries of output rows are by themselves, before the keys and values of all rows.
        let side_by_side = Source::side_by_side(&spec, place(0, width));
        let source = match which {
            Rows::Batch => side_by_side,
            Rows::Output => {
                Source { q: place(0, q_width), kv: place(rows * q_width, kv_width), kv_first: 0, rows: which }
            }
        };
        let table = match self.rope.n_rot() {
            0 => None,
            _ => Some(RopeTable::new(gpu, self.kind, &self.rope)?),
        };
        let norms = Norms { q: self.q_norm.bound(gpu)?, k: self.k_norm.bound(gpu)? };
        let mut steps = Vec::new();
        if !spec.writes {
            let source = Source { rows: Rows::Batch, ..source };
            let preparation =
                Preparation { spec: &writer, layout: &layout, rope: table.as_ref(), norms: &norms, source: &source };
            steps.extend(preparation.key_steps(gpu)?);
        }
        let preparation =
            Preparation { spec: &spec, layout: &layout, rope: table.as_ref(), norms: &norms, source: &source };
        let sinks = self.sinks.as_ref().map(|sinks| bound(gpu, sinks)).transpose()?;
        let queries = Queries { q: source.q, out, rows: which, max_rows, sinks };
        if let Some(rope) = table.as_ref().filter(|_| shifts) {
            steps.extend(preparation.steps(gpu)?);
            // With the same rows: each new key is rotated by its position once more.
            let factors = norms.k.weight.clone().filter(|_| self.factors().is_some());
            let shift = Shift { rope, first: spec.rope_first, factors };
            steps.push(kv_cache::shift(gpu, &layout, spec.layer, &shift)?);
            steps.extend(attention::attend(gpu, &spec, &layout, &queries, None)?);
        } else {
            steps.extend(attention::steps(gpu, &preparation, &queries)?);
        }

        let mut runs = Vec::with_capacity(RUNS);
        for run in 0..RUNS {
            let all: Vec<f32> = (run * rows * width..(run + 1) * rows * width).map(input).collect();
            let mut results = Vec::with_capacity(rows);
            let before = self.rows.len();
            for row in all.chunks_exact(width) {
                self.push(row, shifts);
                results.extend((!spec.bidirectional).then(|| self.attention(self.rows.len() - 1)));
            }
            if spec.bidirectional {
                results.extend((before..self.rows.len()).map(|at| self.attention(at)));
            }
            let workspace = match which {
                Rows::Batch => all,
                Rows::Output => {
                    results.reverse();
                    let q = all.chunks_exact(width).rev().flat_map(|row| &row[..q_width]);
                    q.chain(all.chunks_exact(width).flat_map(|row| &row[q_width..])).copied().collect()
                }
            };
            let mut run = Run::new(workspace, rows, results.concat());
            // One split of the cells and two in turn; both blocks have positions.
            let splits = 1 + runs.len() % 2;
            run.counts.splits = [splits as u32; 2];
            run.frame[2..5].copy_from_slice(&[layout.cells, splits, layout.cells / splits].map(|n| n as u32));
            run.frame.resize(FRAME_CELLS + 2 * layout.cells, 0);
            for position in 0..self.rows.len() {
                let cell = position % 2 * BLOCK + position / 2;
                run.frame[FRAME_CELLS + 2 * cell..][..2].copy_from_slice(&[position as u32, 1]);
                if let Some(row) = position.checked_sub(self.rows.len() - rows) {
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
        let bytes = [layout.k_bytes() as usize, layout.v_bytes() as usize, partials, 0];
        let cache = bytes.map(|bytes| vec![0.0; bytes / 4]);
        Ok(Probe { what, steps, cache, runs })
    }

    /// Factors that are on turned keys.
    fn factors(&self) -> Option<&[f32]> {
        let whole = self.spec.k_norm.is_some_and(|norm| norm.span == NormSpan::Head(self.spec.head_dim_k));
        self.k_norm.weight.as_deref().filter(|_| self.spec.norm_after_rope && whole)
    }

    /// Queries or keys of a row, by head, as attention takes them; and the heads before that, but after a norm of the
    /// row.
    fn prepared(&self, x: &[f32], norm: Option<HeadNorm>, numbers: &Numbers) -> [Vec<Vec<f64>>; 2] {
        let (dim, mut x) = (self.spec.head_dim_k, doubles(x));
        if let Some(HeadNorm { norm, span: NormSpan::Row }) = norm {
            numbers.norm(&norm, &mut x, 0);
        }
        let before: Vec<_> = x.chunks_exact(dim).map(<[f64]>::to_vec).collect();
        let head = |(i, x): (usize, &Vec<f64>)| {
            let mut x = x.clone();
            if self.spec.norm_after_rope {
                self.turn(&mut x);
            }
            match norm {
                Some(HeadNorm { norm, span: NormSpan::Head(width) }) => {
                    numbers.norm(&norm, &mut x[..width.min(dim)], 0);
                }
                Some(HeadNorm { norm, span: NormSpan::EachHead }) => numbers.norm(&norm, &mut x, i * dim),
                _ => {}
            }
            if !self.spec.norm_after_rope {
                self.turn(&mut x);
            }
            x
        };
        [before.iter().enumerate().map(head).collect(), before]
    }

    /// Rotates a head by the next position.
    fn turn(&self, x: &mut [f64]) {
        let x = &mut x[self.spec.rope_first..];
        for (i, frequency) in self.rope.frequencies().iter().enumerate() {
            let (a, b) = match self.kind {
                RopeKind::Norm => (2 * i, 2 * i + 1),
                RopeKind::Neox => (i, i + self.rope.n_rot() / 2),
            };
            let (sin, cos) = (self.rows.len() as f64 * frequency).sin_cos();
            (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
        }
    }

    /// Adds a row at the next position.
    fn push(&mut self, row: &[f32], shifts: bool) {
        let (spec, types) = (&self.spec, self.layout.types);
        let (q, kv) = row.split_at(spec.q_width());
        let (k, v) = kv.split_at(spec.k_width());
        let [q, _] = self.prepared(q, spec.q_norm, &self.q_norm);
        let [k, before] = self.prepared(k, spec.k_norm.filter(|_| spec.writes), &self.k_norm);
        let prefix = |k: &Vec<f64>| k[..spec.head_dim_v].to_vec();
        let v: Vec<Vec<f64>> = match spec.values {
            Values::Own => v.chunks_exact(spec.head_dim_v).map(doubles).collect(),
            Values::Keys => before.iter().map(prefix).collect(),
            Values::KeyPrefix => k.iter().map(prefix).collect(),
        };
        let norm = |v: Vec<f64>| match spec.v_norm {
            Some(norm) => known_norm(&v, norm.kind, None, None, norm.eps),
            None => v,
        };
        let v = v.into_iter().map(|v| stored(types.v, norm(v))).collect();
        let again = |mut k: Vec<f64>| {
            let factors = self.factors().unwrap_or_default();
            k.iter_mut().zip(factors).for_each(|(k, &f)| *k /= f64::from(f));
            self.turn(&mut k);
            k.iter_mut().zip(factors).for_each(|(k, &f)| *k *= f64::from(f));
            stored(types.k, k)
        };
        let k = k.into_iter().map(|k| stored(types.k, k)).map(|k| if shifts { again(k) } else { k }).collect();
        self.rows.push([q, k, v]);
    }

    /// Attention of a position over all that are there, by its definition.
    fn attention(&self, at: usize) -> Vec<Expected> {
        let (spec, types) = (&self.spec, self.layout.types);
        let off = |ty| match ty {
            TensorType::F32 => 4.0 * TOLERANCE,
            // A driver may round to f16 either way.
            TensorType::F16 => 4e-3,
            // Some values are halfway between two quantisation steps.
            _ => 2e-2,
        };
        let off = f64::max(off(types.k), off(types.v));
        let (window, reach) = (spec.window as usize, spec.window as usize / 2);
        let chunk = if spec.chunk > 0 { at - at % spec.chunk as usize } else { 0 };
        let seen = match spec.bidirectional {
            true => at.saturating_sub(reach)..(at + reach + 1).min(self.rows.len()),
            false => (at + 1).saturating_sub(window).max(chunk)..at + 1,
        };
        let factor = spec.temperature.map_or(1.0, |Temperature { scale, length, offset }| {
            1.0 + f64::from(scale) * (((at as u32 + offset) / length) as f64).ln_1p()
        });
        let mut out = Vec::with_capacity(spec.n_head * spec.head_dim_v);
        for (head, q) in self.rows[at][0].iter().enumerate() {
            let its = head / (spec.n_head / spec.n_head_kv);
            let slope = if spec.alibi == 0.0 { 0.0 } else { f64::from(alibi_slope(spec.alibi, head, spec.n_head)) };
            let weight = |position: usize| {
                let k = &self.rows[position][1][its];
                let product = q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(spec.scale) * factor;
                let score = product - slope * at.abs_diff(position) as f64;
                if spec.softcap.is_some() { capped(score) } else { score }.exp()
            };
            let weights: Vec<f64> = seen.clone().map(weight).collect();
            let sink = self.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let total = weights.iter().sum::<f64>() + sink;
            let value = |i: usize| {
                let terms = seen.clone().zip(&weights).map(|(position, w)| self.rows[position][2][its][i] * w);
                terms.sum::<f64>() / total
            };
            out.extend((0..spec.head_dim_v).map(|i| (value(i), off)));
        }
        out
    }
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
