//! Known-answer tests of products and look-ups of every kind that a model's steps have: with fused norms, biases,
//! residuals, gates, logit subsets, several matrices side by side, and for one row, a few or many.
//!
//! A kernel's text does not depend on sizes, except on whether rows are whole groups; so the matrices are small, of the
//! model's types.

use super::source::{Random, Source, activation, normed};
use super::{Expected, Probe, Run, TOLERANCE};
use crate::Result;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{FRAME_LISTED, FRAME_N_LISTED, FRAME_ROWS, Step};
use crate::backend::gpu::ops::matmul::{self, Added, Embed, Gated, Input, MatMul, Norm, VECTOR_ROWS};
use crate::backend::gpu::weights::layout::GROUP;
use crate::backend::gpu::weights::matrix::{Loader, Vector};
use crate::graph::Rows;
use crate::quant::TensorType;

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
        let width = n_parts * N_OUT;
        let (mut parts, mut names, mut results) = (Vec::new(), Vec::new(), vec![(0.0, 0.0); rows * width]);
        for (i, (matrix, bias)) in like.parts.iter().enumerate() {
            let source = Source::new(i as u64, matrix.ty, fed.n_in, N_OUT)?;
            let numbers = bias.map(|_| fed.random.units(N_OUT));
            for (at, (value, off)) in source.product(&fed.x, rows).into_iter().enumerate() {
                let (row, column) = (at / N_OUT, at % N_OUT);
                let value = value + numbers.as_ref().map_or(0.0, |bias| bias[column].into());
                results[row * width + i * N_OUT + column] = (value, off * fed.roundings());
            }
            let bias = numbers.map(|numbers| vector(gpu, &numbers)).transpose()?;
            parts.push((source.load(gpu)?, bias));
            names.push(matrix.ty.to_string());
        }
        let residual = like.residual.map(|_| fed.workspace.len() as u64 * 4);
        if residual.is_some() {
            let numbers = fed.random.units(rows * width);
            results.iter_mut().zip(&numbers).for_each(|((value, _), &more)| *value += f64::from(more));
            fed.workspace.extend(numbers);
        }
        let job = MatMul {
            parts: &parts.iter().map(|(matrix, bias)| (matrix, bias.as_ref())).collect::<Vec<_>>(),
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
        let fed = Fed::new(gpu, &like.input, like.max_rows)?;
        let gate = Source::new(1, like.gate.ty, fed.n_in, N_OUT)?;
        let up = Source::new(2, like.up.ty, fed.n_in, N_OUT)?;
        let pairs = gate.product(&fed.x, fed.rows).into_iter().zip(up.product(&fed.x, fed.rows));
        let results = pairs.map(|((gate, gate_off), (up, up_off))| {
            let (act, act_off) = activation(like.act, (gate, gate_off * fed.roundings()));
            let up_off = up_off * fed.roundings();
            (act * up, act_off * (up.abs() + up_off) + act.abs() * up_off + (act * up).abs() * 2f64.powi(-23))
        });
        let results = results.collect();
        let (gate, up) = (gate.load(gpu)?, up.load(gpu)?);
        let job = Gated {
            gate: &gate,
            up: &up,
            act: like.act,
            input: fed.input(),
            dst: fed.dst(),
            width: N_OUT,
            rows: Rows::Batch,
            max_rows: fed.max_rows,
        };
        let steps = matmul::gated(gpu, &job)?;
        Ok(fed.probe(&format!("{}, gated by {:?}", gate.ty, like.act), steps, results))
    }

    /// Rows of a table of this type: three by their tokens, and one by the token that was sampled last.
    pub fn embed(gpu: &Gpu, ty: TensorType) -> Result<Probe> {
        let (source, scale) = (Source::new(1, ty, N_IN, N_OUT)?, 1.5);
        let rows = [0, 1, 2, 0].into_iter().flat_map(|token| &source.weights[token * N_IN..][..N_IN]);
        let expected: Vec<_> = rows.map(|&w| f64::from(w * scale)).map(|x| (x, x.abs() * 2f64.powi(-22))).collect();
        let job = Embed { table: &source.load(gpu)?, scale, dst: 0, width: N_IN };
        let steps = matmul::embed(gpu, &job)?;
        let mut run = Run::new(Vec::new(), expected.len() / N_IN, expected);
        // Sequence 0 sampled token 0.
        run.frame[FRAME_ROWS + 4 * 3] = u32::MAX;
        Ok(Probe::new(format!("rows of {ty}"), steps, run))
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
            _ => (37, 64),
        };
        let mut random = Random(rows as u64);
        let mut workspace = random.units(rows * n_in);
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
        Ok(Fed { n_in, rows, max_rows, random, workspace, norm, x, sums })
    }

    fn input(&self) -> Input<'_> {
        let (y, sum) = ((self.rows * self.n_in) as u64 * 4, self.workspace.len() as u64 * 4);
        let norm = self.norm.as_ref().map(|(weight, added)| {
            let added = added.as_ref().map(|weight| Added { y, weight, eps: EPS[1], sum });
            Norm { weight, eps: EPS[0], added }
        });
        Input { x: 0, width: self.n_in, norm }
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
