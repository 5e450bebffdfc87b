//! Known-answer tests of operations that keep a state.
//!
//! The rows are those of two sequences: one goes on from a state cell, and its new state is kept in another; the other
//! one begins. A second run compares the kept state.

use super::ops::{bound, weight};
use super::source::gated;
use super::{Expected, From, Probe, Run, TOLERANCE, input};
use crate::Result;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{FRAME_STATES, Step};
use crate::backend::gpu::kernel::strands::records;
use crate::backend::gpu::ops::rows::RowSpan;
use crate::backend::gpu::ops::states::{self, Conv, Recur};
use crate::backend::known_recurrence::{Case, Shape};
use crate::backend::{NO_STATE, StateRows};

/// Rows of the sequence that goes on, and of both.
const OLD: usize = 3;
const ROWS: usize = 5;
/// The cell that it goes on from, that it is kept in, and how many there are.
const FROM: usize = 2;
const TO: usize = 1;
const CELLS: usize = 3;

impl Probe {
    /// A convolution like this one.
    pub fn conv(gpu: &Gpu, like: &Conv) -> Result<Probe> {
        // More than a workgroup has threads, four channels for each.
        const CHANNELS: usize = 528;
        const FIRST: usize = 8;
        let (width, taps) = (FIRST + CHANNELS, like.taps);
        let workspace: Vec<f32> = (0..ROWS * width).map(input).collect();
        let state: Vec<f32> = (0..CELLS * (taps - 1) * CHANNELS).map(|i| input(i + 77)).collect();
        let factors: Vec<f32> = (0..CHANNELS * taps).map(weight).collect();
        let biases: Vec<f32> = (0..CHANNELS).map(|i| input(i + 55)).collect();
        let kept = |row: usize| &state[(FROM * (taps - 1) + row) * CHANNELS..][..CHANNELS];
        // The rows of each sequence, after those that came before.
        let row = |row: usize| &workspace[row * width + FIRST..][..CHANNELS];
        let old: Vec<&[f32]> = (0..taps - 1).map(kept).chain((0..OLD).map(row)).collect();
        let zeros = [0.0; CHANNELS];
        let new: Vec<&[f32]> = (1..taps).map(|_| &zeros[..]).chain((OLD..ROWS).map(row)).collect();
        let result = |met: &[&[f32]], channel: usize| -> Expected {
            let factor = |j: usize| match like.factors {
                Some(_) => f64::from(factors[channel * taps + j]),
                None => 1.0 - 2.0 * j as f64,
            };
            let first = if like.bias.is_some() { f64::from(biases[channel]) } else { 0.0 };
            let terms = || met.iter().enumerate().map(|(j, row)| factor(j) * f64::from(row[channel]));
            let size = first.abs() + terms().map(f64::abs).sum::<f64>();
            gated(like.act, (first + terms().sum::<f64>(), size * 2f64.powi(-20)), (1.0, 0.0))
        };
        let rows = old.windows(taps).chain(new.windows(taps));
        let expected = rows.flat_map(|met| (0..CHANNELS).map(move |channel| result(met, channel))).collect();
        let after = old[OLD..].iter().flat_map(|row| row.iter().map(|&x| (x.into(), 0.0))).collect();
        let job = Conv {
            state: 0,
            x: RowSpan { offset: 0, width },
            first: FIRST,
            taps,
            factors: like.factors.is_some().then(|| bound(gpu, &factors)).transpose()?,
            bias: like.bias.is_some().then(|| bound(gpu, &biases)).transpose()?,
            act: like.act,
            dst: RowSpan { offset: 4 * workspace.len(), width: CHANNELS },
        };
        let what = format!("convolutions of {taps} rows with {:?}", like.act);
        Ok(with_state(what, states::conv(gpu, &job)?, workspace, state, [expected, after]))
    }

    /// A recurrence like this one.
    pub fn recur(gpu: &Gpu, like: &Recur<'_>) -> Result<Probe> {
        let spec = like.spec;
        let key_heads = if spec.heads == spec.key_heads { 4 } else { 2 };
        let shape = Shape { heads: 4, keys: spec.keys, values: 32, key_heads, tiled: spec.tiled };
        let mut case = Case::new(spec.rule, shape, ROWS);
        if like.bias.is_none() {
            case.bias.fill(0.0);
        }
        let values = case.spec.state_values();
        let state: Vec<f32> = (0..CELLS * values).map(input).collect();
        let mut old = case.zeros();
        for (i, &x) in state[FROM * values..].iter().enumerate() {
            let [head, key, value] = case.entry(i);
            old[head][key][value] = x.into();
        }
        let mut results = case.through(0..OLD, &mut old);
        results.extend(case.through(OLD..ROWS, &mut case.zeros()));
        let after: Vec<f64> =
            (0..values).map(|i| case.entry(i)).map(|[head, key, value]| old[head][key][value]).collect();
        let near = |numbers: Vec<f64>| {
            let largest = numbers.iter().fold(0f64, |most, x| most.max(x.abs()));
            numbers.into_iter().map(|x| (x, largest * TOLERANCE)).collect()
        };
        let vector = |like: &Option<_>, numbers: &[f32]| like.as_ref().map(|_| bound(gpu, numbers)).transpose();
        let job = Recur {
            spec: &case.spec,
            sources: &[RowSpan { offset: 0, width: case.width }],
            decay: vector(&like.decay, &case.decay)?,
            bias: vector(&like.bias, &case.bias)?,
            own: vector(&like.own, &case.own)?,
            dst: RowSpan { offset: 4 * case.source.len(), width: case.spec.width() },
        };
        let what = format!("recurrences with {:?}", spec.rule);
        let expected = [near(results), near(after)];
        Ok(with_state(what, states::recur(gpu, &job)?, case.source.clone(), state, expected))
    }
}

/// A probe of a step with the rows of two sequences: their results, and the state that is kept of the first one.
fn with_state(
    what: String,
    step: Step,
    workspace: Vec<f32>,
    state: Vec<f32>,
    [expected, after]: [Vec<Expected>; 2],
) -> Probe {
    let cell = after.len();
    let mut run = Run::new(workspace, ROWS, expected);
    let of =
        |first: usize, end: usize, from, to| StateRows { first: first as u32, rows: (end - first) as u32, from, to };
    let mut words = Vec::new();
    let sequences = [of(0, OLD, FROM as u32, TO as u32), of(OLD, ROWS, NO_STATE, NO_STATE)];
    run.counts.strands = records(&sequences, &[], &mut words);
    run.frame[FRAME_STATES..FRAME_STATES + words.len()].copy_from_slice(&words);
    let kept = Run { from: From::State, dst: TO * cell, expected: after, ..run.clone() };
    let mut probe = Probe::new(what, vec![step], run);
    probe.runs.push(kept);
    probe.cache[3] = state;
    probe
}
