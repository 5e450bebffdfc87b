//! Known-answer tests of mixtures of experts: the choice of experts, and products with the matrices of those that were
//! chosen.

use super::products::vector;
use super::source::{Random, Source, gated};
use super::{Expected, Probe, Run};
use crate::Result;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::ops::experts::{self, Down, Gate, LEAST_SUM, Stack};
use crate::backend::gpu::ops::rows::RowSpan;
use crate::backend::gpu::weights::layout::GROUP;
use crate::backend::gpu::weights::matrix::{Matrix, Vector};
use crate::graph::{Gating, RouteSpec, Rows};
use crate::quant::TensorType;

/// Rows of a run.
const ROWS: usize = 3;
/// Experts of a product, and those of a row.
const EXPERTS: usize = 5;
const USED: usize = 3;
/// Rows of an expert's matrix, and from one to the next.
const OUT: usize = 32;
const STRIDE: usize = 48;

impl Probe {
    /// The choice among so many experts.
    pub fn route(gpu: &Gpu, spec: &RouteSpec, experts: usize, rows: Rows) -> Result<Probe> {
        // Logits in an order without neighbours, none twice.
        let turn = if experts.is_multiple_of(37) { 41 } else { 37 };
        let logit = |row: usize, i: usize| ((i + row) * turn % experts) as f32 / experts as f32 * 8.0 - 4.0;
        let workspace: Vec<f32> = (0..ROWS).flat_map(|row| (0..experts).map(move |i| logit(row, i))).collect();
        let bias = spec.bias.map(|_| Random(3).units(experts).iter().map(|x| x / 4.0).collect::<Vec<_>>());
        let expected = workspace.chunks_exact(experts).flat_map(|logits| chosen(spec, bias.as_deref(), logits));
        let expected = expected.collect();
        let place = |at: usize, width| RowSpan { offset: 4 * at, width };
        let mut run = Run::new(workspace, ROWS, expected);
        let from = run.workspace.len() - run.expected.len();
        // The results begin at a whole vec4.
        let dst = from.next_multiple_of(4);
        run.workspace.resize(dst + (run.expected.len() + 4).next_multiple_of(4), f32::NAN);
        run.dst = dst;
        let bound = bias.map(|bias| vector(gpu, &bias)).transpose()?;
        let (logits, route) = (place(0, experts), place(dst, 2 * spec.used));
        let step = experts::route(gpu, spec, bound.as_ref(), logits, route, rows)?;
        Ok(Probe::new(format!("{} of {experts} experts by {:?}", spec.used, spec.gating), vec![step], run))
    }

    /// Gated products of experts like these.
    pub fn expert_gate(gpu: &Gpu, like: &Gate<'_>) -> Result<Probe> {
        let mut fed = Fed::new(like.gate.matrix.n_in, 1);
        let gate = Known::new(gpu, &like.gate, 0, &mut fed)?;
        let up = Known::new(gpu, &like.up, 1, &mut fed)?;
        let mut results = Vec::with_capacity(ROWS * USED * OUT);
        for (row, choice) in (0..ROWS).flat_map(|row| (0..USED).map(move |choice| (row, choice))) {
            let (expert, weight) = fed.routed(row, choice);
            let weight = if like.weighted { weight } else { 1.0 };
            let [gate, up] = [&gate, &up].map(|side| side.results(&fed, row, 0, expert, weight));
            results.extend(gate.into_iter().zip(up).map(|(gate, up)| gated(like.act, gate, up)));
        }
        let job = Gate {
            gate: gate.stack(),
            up: up.stack(),
            act: like.act,
            weighted: like.weighted,
            x: fed.x(),
            route: fed.route(),
            dst: fed.dst(USED * OUT),
            rows: like.rows,
        };
        let steps = experts::gate(gpu, &job)?;
        let what = format!("experts of {}, gated by {:?}", gate.matrix.ty, like.act);
        Ok(Probe::new(what, steps, Run::new(fed.workspace, ROWS, results)))
    }

    /// Sums of experts' results like this one.
    pub fn expert_down(gpu: &Gpu, like: &Down<'_>) -> Result<Probe> {
        let mut fed = Fed::new(like.down.matrix.n_in, USED);
        let down = Known::new(gpu, &like.down, 1, &mut fed)?;
        let mut results = vec![(0.0, 0.0); ROWS * OUT];
        for (row, choice) in (0..ROWS).flat_map(|row| (0..USED).map(move |choice| (row, choice))) {
            let (expert, weight) = fed.routed(row, choice);
            let results = &mut results[row * OUT..][..OUT];
            for (sum, (value, off)) in results.iter_mut().zip(down.results(&fed, row, choice, expert, 1.0)) {
                let weight = if like.weighted { 1.0 } else { weight };
                *sum = (sum.0 + weight * value, sum.1 + 2.0 * weight.abs() * off);
            }
        }
        let residual = like.residual.map(|_| fed.workspace.len() as u64 * 4);
        if residual.is_some() {
            let numbers = fed.random.units(ROWS * OUT);
            results.iter_mut().zip(&numbers).for_each(|(sum, &more)| sum.0 += f64::from(more));
            fed.workspace.extend(numbers);
        }
        let job = Down {
            down: down.stack(),
            weighted: like.weighted,
            x: fed.x(),
            route: fed.route(),
            residual,
            dst: fed.dst(OUT),
            rows: like.rows,
        };
        let steps = experts::down(gpu, &job)?;
        let what = format!("sums of experts of {}", down.matrix.ty);
        Ok(Probe::new(what, steps, Run::new(fed.workspace, ROWS, results)))
    }
}

/// The experts of a row by their definition, and their weights.
fn chosen(spec: &RouteSpec, bias: Option<&[f32]>, logits: &[f32]) -> Vec<Expected> {
    let x: Vec<f64> = logits.iter().map(|&x| x.into()).collect();
    let all: f64 = x.iter().map(|x| x.exp()).sum();
    let p: Vec<f64> = x
        .iter()
        .map(|&x| match spec.gating {
            Gating::Softmax => x.exp() / all,
            Gating::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Gating::SoftmaxOfChosen => x,
            Gating::SqrtSoftplus => x.exp().ln_1p().sqrt(),
        })
        .collect();
    let score = |i: usize| p[i] + bias.map_or(0.0, |bias| f64::from(bias[i]));
    let size = p.len() / spec.groups;
    let best_two = |group: usize| {
        let mut scores: Vec<f64> = (group * size..(group + 1) * size).map(score).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        scores.iter().take(2).sum::<f64>()
    };
    let mut groups: Vec<usize> = (0..spec.groups).collect();
    groups.sort_by(|&a, &b| best_two(b).total_cmp(&best_two(a)));
    let mut order: Vec<usize> = groups[..spec.groups_used].iter().flat_map(|g| g * size..(g + 1) * size).collect();
    order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
    order.truncate(spec.used);
    let mut weights: Vec<f64> = order.iter().map(|&i| p[i]).collect();
    if spec.gating == Gating::SoftmaxOfChosen {
        let sum: f64 = weights.iter().map(|w| w.exp()).sum();
        weights.iter_mut().for_each(|w| *w = w.exp() / sum);
    }
    let sum = weights.iter().sum::<f64>().max(LEAST_SUM.into());
    let factor = f64::from(spec.scale) / if spec.normalize { sum } else { 1.0 };
    let weights = weights.iter().map(|w| (w * factor, (w * factor).abs() * 1e-4));
    order.iter().map(|&i| (i as f64, 0.0)).chain(weights).collect()
}

/// Input rows, and after them their routes.
struct Fed {
    n_in: usize,
    /// Inputs of a row: one, or one for each of its experts.
    inputs: usize,
    random: Random,
    workspace: Vec<f32>,
    route_at: usize,
}

impl Fed {
    /// Like rows of `n_in` values.
    fn new(n_in: usize, inputs: usize) -> Fed {
        let n_in = if n_in.is_multiple_of(GROUP) { 512 } else { 300 };
        let mut random = Random(5);
        let mut workspace = random.units(ROWS * inputs * n_in);
        let route_at = workspace.len();
        for row in 0..ROWS {
            workspace.extend((0..USED).map(|choice| ((2 * row + 3 * choice) % EXPERTS) as f32));
            workspace.extend(random.units(USED));
        }
        workspace.resize(workspace.len().next_multiple_of(4), 0.0);
        Fed { n_in, inputs, random, workspace, route_at }
    }

    fn x(&self) -> RowSpan {
        RowSpan { offset: 0, width: self.inputs * self.n_in }
    }

    fn route(&self) -> RowSpan {
        RowSpan { offset: 4 * self.route_at, width: 2 * USED }
    }

    /// Where the results go.
    fn dst(&self, width: usize) -> RowSpan {
        RowSpan { offset: 4 * self.workspace.len(), width }
    }

    /// A chosen expert of a row, and its weight.
    fn routed(&self, row: usize, choice: usize) -> (usize, f64) {
        let route = &self.workspace[self.route_at + row * 2 * USED..];
        (route[choice] as usize, route[USED + choice].into())
    }
}

/// Matrices of experts like those of a step.
struct Known {
    matrix: Matrix,
    source: Source,
    first: usize,
    scales: Option<(Vec<f32>, Vector)>,
    biases: Option<(Vec<f32>, Vector)>,
}

impl Known {
    fn new(gpu: &Gpu, like: &Stack<'_>, place: usize, fed: &mut Fed) -> Result<Known> {
        let ty: TensorType = like.matrix.ty;
        let source = Source::new(place as u64 + 1, ty, fed.n_in, EXPERTS * STRIDE)?;
        let mut numbers = |exists: bool, n: usize| {
            exists
                .then(|| {
                    let numbers = fed.random.units(n);
                    vector(gpu, &numbers).map(|bound| (numbers, bound))
                })
                .transpose()
        };
        let (scales, biases) =
            (numbers(like.scales.is_some(), EXPERTS)?, numbers(like.biases.is_some(), EXPERTS * STRIDE)?);
        Ok(Known { matrix: source.load(gpu)?, source, first: 16 * place, scales, biases })
    }

    fn stack(&self) -> Stack<'_> {
        Stack {
            matrix: &self.matrix,
            first: self.first,
            stride: STRIDE,
            rows: OUT,
            scales: self.scales.as_ref().map(|(_, bound)| bound),
            biases: self.biases.as_ref().map(|(_, bound)| bound),
        }
    }

    /// The results of an expert for an input of a row, times `weight` before factor and bias.
    fn results(&self, fed: &Fed, row: usize, input: usize, expert: usize, weight: f64) -> Vec<Expected> {
        let x = &fed.workspace[(row * fed.inputs + input) * fed.n_in..][..fed.n_in];
        let first = self.first + expert * STRIDE;
        let factor = weight * self.scales.as_ref().map_or(1.0, |(scales, _)| scales[expert].into());
        let result = |(i, (value, off)): (usize, Expected)| {
            let bias = self.biases.as_ref().map_or(0.0, |(biases, _)| biases[first + i].into());
            (value * factor + bias, 3.0 * off * factor.abs() + 1e-7)
        };
        self.source.product(x, 1)[first..first + OUT].iter().copied().enumerate().map(result).collect()
    }
}
