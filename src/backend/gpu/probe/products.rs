//! Known-answer tests of products and look-ups of every kind that a model's steps have: with fused norms, biases,
//! residuals, gates, logit subsets, several matrices side by side, and for one row, a few or many.
//!
//! Of sizes a kernel's text depends only on whether rows are whole groups and on the spread of the model's matrix,
//! which the probe takes over; so the matrices are small, of the model's types.

use super::source::{Random, Source, coded, gated, normed};
use super::{Expected, Probe, Run, TOLERANCE};
use crate::Result;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{FRAME_LISTED, FRAME_N_LISTED, FRAME_ROWS, Step};
use crate::backend::gpu::ops::matmul::{
    self, Added, Embed, Gated, Heads, Input, MatMul, Norm, Spread, Term, VECTOR_ROWS,
};
use crate::backend::gpu::ops::narrow::Narrow;
use crate::backend::gpu::ops::rows::RowSpan;
use crate::backend::gpu::weights::layout::GROUP;
use crate::backend::gpu::weights::matrix::{Loader, Matrix, Vector};
use crate::graph::{Index, Rows};

/// Values of a matrix's row: some lanes have two groups, others one.
const N_IN: usize = 768;
/// A width whose last group is not full.
const RAGGED: usize = 748;
/// Rows of a matrix: neither the last tile nor the last workgroup is full.
const N_OUT: usize = 68;
/// The tokens of the logit subset.
const LISTED: [usize; 3] = [5, 34, 66];
/// Epsilon of the norm, and of the one before the sum.
const EPS: [f32; 2] = [1e-2, 2e-2];

impl Probe {
    /// The product of a step like this one.
    pub fn matmul(gpu: &Gpu, like: &MatMul<'_>) -> Result<Probe> {
        let mut fed = Fed::new(gpu, &like.input, like.max_rows)?;
        let (n_parts, rows) = (like.parts.len(), fed.rows);
        let n_out = if like.width == 1 { 1 } else { N_OUT };
        let width = n_parts * n_out;
        let (mut parts, mut results) = (Vec::new(), vec![(0.0, 0.0); rows * width]);
        for (i, term) in like.parts.iter().enumerate() {
            let known = Known::new(gpu, term, i as u64, n_out, &mut fed)?;
            for (at, result) in known.results.iter().enumerate() {
                results[at / n_out * width + i * n_out + at % n_out] = *result;
            }
            parts.push(known);
        }
        let names: Vec<_> = parts.iter().map(|part| part.matrix.ty.to_string()).collect();
        let residual = like.residual.map(|_| fed.workspace.len() as u64 * 4);
        if residual.is_some() {
            let numbers = fed.random.units(rows * width);
            results.iter_mut().zip(&numbers).for_each(|((value, _), &more)| *value += f64::from(more));
            fed.workspace.extend(numbers);
        }
        let job = MatMul {
            parts: &parts.iter().map(Known::term).collect::<Vec<_>>(),
            input: fed.input(),
            residual,
            dst: fed.dst(),
            width,
            rows: Rows::Batch,
            max_rows: fed.max_rows,
            logits: like.logits,
        };
        let steps = matmul::matmul(gpu, &job)?;
        let mut probe = fed.probe(&names.join(", "), steps, results);
        if like.logits && like.max_rows <= VECTOR_ROWS {
            let mut run = probe.runs[0].clone();
            let results = run.expected.len() - rows * width;
            let others = run.expected[results..].iter_mut().enumerate().filter(|(i, _)| !LISTED.contains(&(i % N_OUT)));
            others.for_each(|(_, (_, off))| *off = f64::INFINITY);
            run.counts.listed = LISTED.len() as u32;
            run.frame[FRAME_N_LISTED] = run.counts.listed;
            run.frame[FRAME_LISTED..].iter_mut().zip(LISTED).for_each(|(word, token)| *word = token as u32);
            probe.runs.push(run);
        }
        Ok(probe)
    }

    /// The gated product of a step like this one.
    pub fn gated(gpu: &Gpu, like: &Gated<'_>) -> Result<Probe> {
        let mut fed = Fed::new(gpu, &like.input, like.max_rows)?;
        let gate = Known::new(gpu, &like.gate, 1, N_OUT, &mut fed)?;
        let up = like.up.map(|up| Known::new(gpu, &up, 2, N_OUT, &mut fed)).transpose()?;
        let ups = up.iter().flat_map(|up| up.results.iter().copied()).chain(std::iter::repeat((1.0, 0.0)));
        let results = gate.results.iter().zip(ups).map(|(&gate, up)| gated(like.act, gate, up)).collect();
        let job = Gated {
            gate: gate.term(),
            up: up.as_ref().map(Known::term),
            act: like.act,
            input: fed.input(),
            dst: fed.dst(),
            width: N_OUT,
            rows: Rows::Batch,
            max_rows: fed.max_rows,
        };
        let steps = matmul::gated(gpu, &job)?;
        let how = if up.is_some() { "gated" } else { "activated" };
        Ok(fed.probe(&format!("{}, {how} by {:?}", gate.matrix.ty, like.act), steps, results))
    }

    /// Products like these with a matrix for each head.
    pub fn heads(gpu: &Gpu, like: &Heads<'_>) -> Result<Probe> {
        const HEADS: usize = 3;
        let input = Input { x: 0, width: like.matrix.n_in, norm: None, narrow: None };
        let Fed { n_in, rows, max_rows, mut random, .. } = Fed::new(gpu, &input, like.max_rows)?;
        // The kernel of many rows depends on the powers of two that heads have.
        let n_out = 1 << (like.matrix.n_out / like.heads.max(1)).trailing_zeros().clamp(4, 6);
        let keep = if like.keep > 0 { 8 } else { 0 };
        let source = Source::new(1, like.matrix.ty, n_in, HEADS * n_out)?;
        let [from, to] = [HEADS * (n_in + keep), HEADS * (n_out + keep)];
        let workspace = random.units(rows * from);
        let mut results = vec![(0.0, 0.0); rows * to];
        for head in 0..HEADS {
            let part = |row: usize| &workspace[row * from + head * (n_in + keep)..][..n_in + keep];
            let x: Vec<f32> = (0..rows).flat_map(|row| &part(row)[..n_in]).copied().collect();
            let products = source.product(&x, rows);
            for row in 0..rows {
                let product = &products[row * source.n_out + head * n_out..][..n_out];
                let kept = part(row)[n_in..].iter().map(|&x| (x.into(), 0.0));
                let results = &mut results[row * to + head * (n_out + keep)..][..n_out + keep];
                results.iter_mut().zip(product.iter().copied().chain(kept)).for_each(|(to, from)| *to = from);
            }
        }
        let matrix = source.load(gpu)?;
        let job = Heads {
            matrix: &matrix,
            heads: HEADS,
            keep,
            x: RowSpan { offset: 0, width: from },
            dst: RowSpan { offset: 4 * workspace.len(), width: to },
            rows: Rows::Batch,
            max_rows,
        };
        let steps = matmul::heads(gpu, &job)?;
        let what = format!("products of up to {max_rows} rows with heads of {}", matrix.ty);
        Ok(Probe::new(what, steps, Run::new(workspace, rows, results)))
    }

    /// Rows of a table like this one: three by their tokens and one by the token that was sampled last, or four by
    /// their positions.
    pub fn embed(gpu: &Gpu, like: &Embed<'_>) -> Result<Probe> {
        let ty = like.table.ty;
        let (source, scale) = (Source::new(1, ty, N_IN, N_OUT)?, 1.5);
        let tokens = match like.index {
            Index::Token => [0, 1, 2, 0],
            Index::Position => [5, 4, 67, 6],
            Index::First => [0; 4],
        };
        let added = like.residual.map(|_| Random(1).units(tokens.len() * N_IN)).unwrap_or_default();
        let rows = tokens.into_iter().flat_map(|token| &source.weights[token * N_IN..][..N_IN]);
        let expected: Vec<_> = rows
            .zip(added.iter().copied().chain(std::iter::repeat(0.0)))
            .map(|(&w, more)| (f64::from(w * scale) + f64::from(more), f64::from((w * scale).abs() + more.abs())))
            .map(|(x, size)| (x, size * 2f64.powi(-22)))
            .collect();
        let residual = like.residual.map(|_| 0);
        let (table, dst) = (source.load(gpu)?, added.len() as u64 * 4);
        let job = Embed { table: &table, scale, index: like.index, residual, dst, width: N_IN };
        let steps = matmul::embed(gpu, &job)?;
        let mut run = Run::new(added, tokens.len(), expected);
        for (row, token) in tokens.into_iter().enumerate() {
            let record = &mut run.frame[FRAME_ROWS + 4 * row..][..2];
            match like.index {
                // Sequence 0 sampled token 0.
                Index::Token => record[0] = if row == 3 { u32::MAX } else { token as u32 },
                Index::Position => record[1] = token as u32,
                // Whatever token and position are.
                Index::First => record.fill(7),
            }
        }
        Ok(Probe::new(format!("rows of {ty}"), steps, run))
    }
}

/// A matrix with what belongs to it, like one of a step, and the expected results.
struct Known {
    matrix: Matrix,
    scale: Option<f32>,
    bias: Option<Vector>,
    spread: Spread,
    /// Of all rows.
    results: Vec<Expected>,
}

impl Known {
    fn new(gpu: &Gpu, like: &Term<'_>, seed: u64, n_out: usize, fed: &mut Fed) -> Result<Known> {
        let source = Source::new(seed, like.matrix.ty, fed.n_in, n_out)?;
        let scale = like.scale.map(|_| -1.75);
        let bias = like.bias.map(|_| fed.random.units(n_out));
        let result = |(at, (value, off)): (usize, Expected)| {
            let factor = scale.map_or(1.0, f64::from);
            let bias = bias.as_ref().map_or(0.0, |bias| bias[at % n_out].into());
            (value * factor + bias, off * factor.abs() * fed.roundings())
        };
        let narrow = fed.narrow.map(|(narrow, _)| narrow);
        let results = source.product_of(&fed.x, fed.rows, narrow).into_iter().enumerate().map(result).collect();
        let bias = bias.as_ref().map(|bias| vector(gpu, bias)).transpose()?;
        Ok(Known { matrix: source.load(gpu)?, scale, bias, spread: like.spread, results })
    }

    fn term(&self) -> Term<'_> {
        Term { matrix: &self.matrix, scale: self.scale, bias: self.bias.as_ref(), spread: self.spread }
    }
}

/// What a product multiplies with its matrices.
struct Fed {
    n_in: usize,
    rows: usize,
    max_rows: usize,
    random: Random,
    /// Input rows, then rows that are normed and added to them, then what the product adds.
    workspace: Vec<f32>,
    /// Weights of the norm, and of the one before the sum.
    norm: Option<(Vector, Option<Vector>)>,
    /// What the product makes of its input first, and room in the workspace for that.
    narrow: Option<(Narrow, u64)>,
    /// The input after the norms.
    x: Vec<f32>,
    /// The sums that are stored before the product's results.
    sums: Vec<Expected>,
}

impl Fed {
    /// For a product with such an input.
    fn new(gpu: &Gpu, like: &Input<'_>, max_rows: usize) -> Result<Fed> {
        let n_in = if like.width.is_multiple_of(GROUP) { N_IN } else { RAGGED };
        // One size for each kernel: rows fill the columns of a vector kernel, but not the last tile of the others.
        let (rows, max_rows) = match max_rows {
            0 | 1 => (1, 1),
            n if n <= VECTOR_ROWS => (VECTOR_ROWS, VECTOR_ROWS),
            n if n <= 16 => (13, 16),
            n if n <= 32 && like.narrow.is_some() => (29, 32),
            _ => (70, 128),
        };
        let mut random = Random(rows as u64);
        let mut workspace = random.units(rows * n_in);
        if like.narrow.is_some() {
            workspace = coded(&workspace, n_in);
        }
        let (mut x, mut sums, mut norm) = (workspace.clone(), Vec::new(), None);
        if let Some(like) = like.norm {
            let (weight, y_weight, y) = (random.units(n_in), random.units(n_in), random.units(rows * n_in));
            if like.added.is_some() {
                x.iter_mut().zip(normed(&y, &y_weight, EPS[1])).for_each(|(x, y)| *x += y);
                sums = x.iter().map(|&x| (x.into(), TOLERANCE)).collect();
                workspace.extend(y);
            }
            x = normed(&x, &weight, EPS[0]);
            norm = Some((vector(gpu, &weight)?, like.added.map(|_| vector(gpu, &y_weight)).transpose()?));
        }
        let narrow = like.narrow.map(|(narrow, _)| (narrow, workspace.len() as u64 * 4));
        workspace.extend(narrow.iter().flat_map(|(narrow, _)| vec![f32::NAN; narrow.bytes(n_in, max_rows) / 4]));
        Ok(Fed { n_in, rows, max_rows, random, workspace, norm, narrow, x, sums })
    }

    fn input(&self) -> Input<'_> {
        let (y, sum) = ((self.rows * self.n_in) as u64 * 4, self.workspace.len() as u64 * 4);
        let norm = self.norm.as_ref().map(|(weight, added)| {
            let added = added.as_ref().map(|weight| Added { y, weight, eps: EPS[1], sum });
            Norm { weight, eps: EPS[0], added }
        });
        Input { x: 0, width: self.n_in, norm, narrow: self.narrow }
    }

    fn dst(&self) -> u64 {
        (self.workspace.len() + self.sums.len()) as u64 * 4
    }

    /// The factor on the tolerance of a plain product: each norm adds one, and so do bias and residual.
    fn roundings(&self) -> f64 {
        2.0 + self.norm.iter().map(|(_, added)| 1.0 + f64::from(u8::from(added.is_some()))).sum::<f64>()
    }

    fn probe(self, with: &str, steps: Vec<Step>, results: Vec<Expected>) -> Probe {
        let of = match self.norm {
            None => "",
            Some((_, None)) => " of norms",
            Some((_, Some(_))) => " of norms of sums",
        };
        let what = format!("products{of} of up to {} rows with {with}", self.max_rows);
        Probe::new(what, steps, Run::new(self.workspace, self.rows, [self.sums, results].concat()))
    }
}

/// A vector on the device.
pub fn vector(gpu: &Gpu, values: &[f32]) -> Result<Vector> {
    let mut ignored = |_| Ok(());
    Loader::new(gpu, &mut ignored).vector("probe", values)
}
