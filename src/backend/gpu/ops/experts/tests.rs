#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::device::adapters;
use crate::backend::gpu::device::test_limits::TestLimits;
use crate::backend::gpu::probe::source::{Random, Source};
use crate::backend::gpu::testing::fixture::{Fixture, Frame};
use crate::quant::TensorType;

/// Experts in several buffers, one of which ends within an expert, and dispatches that are folded.
#[test]
fn slices_and_folded_dispatches_change_nothing() {
    let Some(best) = adapters().into_iter().find(|c| c.score > 0) else { return };
    let mut gpu = Gpu::new(&best, &TestLimits::parse("checked=on").unwrap()).unwrap();
    gpu.caps.max_workgroups = 3;
    // 64 rows of a matrix.
    gpu.caps.max_binding = 64 * 64 * 4;
    let (n_in, experts, rows, used, n_rows) = (64, 4, 48, 2, 3);
    let [gates, ups] = [1, 2].map(|seed| Source::new(seed, TensorType::F32, n_in, experts * rows).unwrap());
    let matrices = [&gates, &ups].map(|source| source.load(&gpu).unwrap());
    assert_eq!(matrices.each_ref().map(|matrix| matrix.slices.len()), [3, 3]);
    let stack = |i: usize| Stack { matrix: &matrices[i], first: 0, stride: rows, rows, scales: None, biases: None };
    let chosen = [[0, 3], [1, 2], [2, 1]];
    let weights = [[0.5, 0.25], [2.0, -1.0], [0.75, 0.125]];
    let mut random = Random(9);
    // Inputs of two kinds, routes, results of both.
    let mut ws = random.units(n_rows * (n_in + used * n_in));
    let (x, wide) = (ws[..n_rows * n_in].to_vec(), ws[n_rows * n_in..].to_vec());
    let span = |at: usize, width| RowSpan { offset: 4 * at, width };
    let route = span(ws.len(), 2 * used);
    for (chosen, weights) in chosen.iter().zip(&weights) {
        ws.extend(chosen.iter().map(|&e| e as f32).chain(*weights));
    }
    let (gated_at, down_at) = (ws.len(), ws.len() + n_rows * used * rows);
    ws.resize(down_at + n_rows * rows, 1.0);
    let frame = Frame { rows: vec![(0, 1, 0); n_rows], splits: (1, 64), ..Frame::default() };
    let fixture = Fixture::new(&gpu, &ws, &frame.words(), [&[], &[]], 16);
    let job = Gate {
        gate: stack(0),
        up: stack(1),
        act: Activation::Relu2,
        weighted: false,
        x: span(0, n_in),
        route,
        dst: span(gated_at, used * rows),
        rows: Rows::Batch,
    };
    let sum = Down {
        down: stack(1),
        weighted: false,
        x: span(n_rows * n_in, used * n_in),
        route,
        residual: Some(4 * down_at as u64),
        dst: span(down_at, rows),
        rows: Rows::Batch,
    };
    fixture.run(
        &[gate(&gpu, &job).unwrap(), down(&gpu, &sum).unwrap()].into_iter().flatten().collect::<Vec<_>>(),
        frame.counts(),
    );
    let got = fixture.workspace(ws.len());
    assert_eq!(got[..gated_at], ws[..gated_at]);
    for r in 0..n_rows {
        let mut sums = vec![1.0; rows];
        for (c, &expert) in chosen[r].iter().enumerate() {
            let product = |source: &Source, x: &[f32]| {
                source.product(x, 1)[expert * rows..][..rows].iter().map(|(value, _)| *value).collect::<Vec<_>>()
            };
            let x = &x[r * n_in..][..n_in];
            for (i, (gate, up)) in product(&gates, x).into_iter().zip(product(&ups, x)).enumerate() {
                let (got, exact) = (f64::from(got[gated_at + (r * used + c) * rows + i]), gate.max(0.0).powi(2) * up);
                assert!(
                    (got - exact).abs() <= exact.abs() * 1e-4 + 1e-4,
                    "row {r} choice {c} value {i}: {got} {exact}"
                );
            }
            let of_down = product(&ups, &wide[(r * used + c) * n_in..][..n_in]);
            sums.iter_mut().zip(of_down).for_each(|(sum, value)| *sum += f64::from(weights[r][c]) * value);
        }
        for (i, exact) in sums.into_iter().enumerate() {
            let got = f64::from(got[down_at + r * rows + i]);
            assert!((got - exact).abs() <= 1e-4, "row {r} sum {i}: {got} {exact}");
        }
    }
    // What is in other buffers than its gate cannot be multiplied.
    let apart = Gate { up: Stack { first: 16, rows: 32, ..stack(1) }, gate: Stack { rows: 32, ..stack(0) }, ..job };
    assert!(matches!(gate(&gpu, &apart), Err(Error::Unsupported(_))));
}
