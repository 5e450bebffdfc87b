#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::kernel::dispatch::{FRAME_CELLS, FRAME_STATES, RunCounts};
use crate::backend::gpu::kernel::strands::records;
use crate::backend::gpu::testing::fixture::{Fixture, Numbers};
use crate::backend::gpu::testing::harness::{devices, floats, storage};
use crate::backend::known_recurrence::{Case, RULES, Shape};
use crate::backend::{NO_STATE, StateRows};

/// Rows of a run, and the state cells.
struct Given<'a> {
    states: &'a [StateRows],
    parents: &'a [u32],
    cells: &'a [f32],
}

/// Run a step over rows of a source, and return the rows of the result and the state cells.
fn run(gpu: &Gpu, step: Step, source: &[f32], results: usize, given: &Given<'_>) -> [Vec<f32>; 2] {
    let (mut words, mut frame) = (Vec::new(), vec![1; FRAME_CELLS]);
    let strands = records(given.states, given.parents, &mut words);
    frame[FRAME_STATES..][..words.len()].copy_from_slice(&words);
    let workspace = [source, &vec![f32::NAN; results]].concat();
    let mut fixture = Fixture::new(gpu, &workspace, &frame, [&[], &[]], 16);
    fixture.state = storage(gpu, bytemuck::cast_slice(given.cells));
    let rows = words.len() as u32 / 4;
    gpu.compiled([&step.kernel]).unwrap();
    fixture.run(&[step], RunCounts { rows, outputs: 0, splits: [1; 2], listed: 0, strands });
    let workspace = fixture.workspace(workspace.len());
    [workspace[source.len()..].to_vec(), floats(gpu, &fixture.state, given.cells.len())]
}

const ROWS: usize = 6;
/// The tree of the rows: 0 - 1 - 2, 1 - 3 - 4, and 5 by itself.
const PARENTS: [u32; ROWS] = [NO_STATE, 0, 1, 1, 3, NO_STATE];

/// The rows of a tree up to this one, from the state on.
fn path(row: usize) -> Vec<usize> {
    let mut path = vec![row];
    while PARENTS[path[0]] != NO_STATE {
        path.insert(0, PARENTS[path[0]] as usize);
    }
    path
}

fn sequence(rows: usize, to: u32) -> [StateRows; 1] {
    [StateRows { first: 0, rows: rows as u32, from: 1, to }]
}

/// The rows of trees, and of sequences that are cut anywhere, have the bits that they have in one piece. `step` makes a
/// step for so many rows.
fn rows_do_not_depend_on_the_batch(
    gpu: &Gpu,
    step: &dyn Fn(usize) -> Step,
    source: &[f32],
    (width, out): (usize, usize),
    cells: &[f32],
) {
    let run = |rows: &[usize], states: &[StateRows], parents: &[u32], cells: &[f32]| {
        let source: Vec<f32> = rows.iter().flat_map(|row| &source[row * width..][..width]).copied().collect();
        run(gpu, step(rows.len()), &source, rows.len() * out, &Given { states, parents, cells })
    };
    let all: Vec<usize> = (0..ROWS).collect();
    let [tree, untouched] = run(&all, &sequence(ROWS, NO_STATE), &PARENTS, cells);
    assert_eq!(untouched, cells);
    for row in 0..ROWS {
        let path = path(row);
        let [alone, _] = run(&path, &sequence(path.len(), NO_STATE), &[], cells);
        assert_eq!(alone[alone.len() - out..], tree[row * out..][..out], "row {row} of a tree");
    }
    let [whole, kept] = run(&all, &sequence(ROWS, 0), &[], cells);
    for cut in 1..ROWS {
        let [first, between] = run(&all[..cut], &sequence(cut, 2), &[], cells);
        let rest = [StateRows { from: 2, ..sequence(ROWS - cut, 0)[0] }];
        let [second, after] = run(&all[cut..], &rest, &[], &between);
        assert_eq!([first, second].concat(), whole, "cut after {cut}");
        let one = cells.len() / 3;
        assert_eq!(after[..one], kept[..one], "cut after {cut}");
        // In one run, with the state in the middle.
        let both = [sequence(cut, 2)[0], StateRows { first: cut as u32, ..rest[0] }];
        let [rows, states] = run(&all, &both, &[], cells);
        assert_eq!(rows, whole, "a state after {cut}");
        assert_eq!((&states[..one], &states[2 * one..]), (&kept[..one], &between[2 * one..]), "a state after {cut}");
    }
    // Beside another sequence that begins.
    let two: Vec<usize> = [4, 2].into_iter().chain(0..ROWS).collect();
    let new = StateRows { first: 0, rows: 2, from: NO_STATE, to: 2 };
    let [beside, _] = run(&two, &[new, StateRows { first: 2, ..sequence(ROWS, 0)[0] }], &[], cells);
    assert_eq!(beside[2 * out..], whole);
}

#[test]
fn rows_of_convolutions_do_not_depend_on_the_batch() {
    for (gpu, taps) in devices().iter().flat_map(|gpu| [2, 4].map(|taps| (gpu, taps))) {
        let (width, channels) = (40, 32);
        let mut numbers = Numbers(3);
        let (source, cells) = (numbers.take(ROWS * width), numbers.take(3 * (taps - 1) * channels));
        let factors = numbers.take(taps * channels);
        let step = |rows: usize| {
            let factors = BufferRef::Weight(storage(gpu, bytemuck::cast_slice(&factors)), 0, 4 * factors.len() as u64);
            let job = Conv {
                state: 0,
                x: RowSpan { offset: 0, width },
                first: 4,
                taps,
                factors: (taps > 2).then_some(factors),
                bias: None,
                act: Activation::Silu,
                dst: RowSpan { offset: 4 * rows * width, width: channels },
            };
            conv(gpu, &job).unwrap()
        };
        rows_do_not_depend_on_the_batch(gpu, &step, &source, (width, channels), &cells);
    }
}

#[test]
fn rows_of_recurrences_do_not_depend_on_the_batch() {
    for (gpu, rule) in devices().iter().flat_map(|gpu| RULES.map(|rule| (gpu, rule))) {
        let case = Case::new(rule, Shape { heads: 2, keys: 16, values: 16, key_heads: 2, tiled: false }, ROWS);
        let cells = Numbers(5).take(3 * case.spec.state_values());
        let bound = |numbers: &[f32]| {
            Some(BufferRef::Weight(storage(gpu, bytemuck::cast_slice(numbers)), 0, 4 * numbers.len() as u64))
        };
        let step = |rows: usize| {
            let job = Recur {
                spec: &case.spec,
                sources: &[RowSpan { offset: 0, width: case.width }],
                decay: bound(&case.decay),
                bias: bound(&case.bias),
                own: bound(&case.own),
                dst: RowSpan { offset: 4 * rows * case.width, width: case.spec.width() },
            };
            recur(gpu, &job).unwrap()
        };
        rows_do_not_depend_on_the_batch(gpu, &step, &case.source, (case.width, case.spec.width()), &cells);
    }
}
