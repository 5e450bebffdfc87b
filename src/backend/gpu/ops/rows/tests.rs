#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::testing::fixture::{Fixture, Frame, Numbers};
use crate::backend::gpu::testing::harness::{devices, storage};

/// Half a unit in the last place of 1.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Run one step over a workspace, for three batch rows and two output rows: rows 2 and 0.
fn run(gpu: &Gpu, ws: &[f32], step: Step) -> Vec<f32> {
    let frame = Frame { rows: vec![(0, 1, 0); 3], outputs: vec![2, 0], splits: (1, 64), ..Frame::default() };
    let fixture = Fixture::new(gpu, ws, &frame.words(), [&[], &[]], 16);
    fixture.run(&[step], frame.counts());
    fixture.workspace(ws.len())
}

#[test]
fn rows_are_normed() {
    for (gpu, width) in devices().iter().flat_map(|gpu| [4, 64, 516, 1152, 4096].map(|width| (gpu, width))) {
        let mut numbers = Numbers(width as u64);
        let ws = numbers.take(16 + 3 * 4 * width);
        let weights = numbers.take(width);
        let weight = || BufferRef::Weight(storage(gpu, bytemuck::cast_slice(&weights)), 0, 4 * width as u64);
        let place = |i: usize| RowSpan { offset: 64 + i * 16 * width, width };
        let at = |i: usize| 16 + i * 4 * width;
        // A place has four rows, of which the run has three or two: (x, residual, dst).
        let uses = [(0, None, 1), (0, None, 0), (0, Some(1), 2), (0, Some(1), 1), (1, Some(0), 1)];
        for (x, residual, dst) in uses {
            for (rows, count) in [(Rows::Batch, 3), (Rows::Output, 2)] {
                let step = norm(gpu, place(x), weight(), 1e-5, residual.map(place), place(dst), rows).unwrap();
                let got = run(gpu, &ws, step);
                for r in 0..count {
                    let row = &ws[at(x) + r * width..][..width];
                    let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / width as f64;
                    let scale = 1.0 / (mean + f64::from(1e-5f32)).sqrt();
                    // Half of: each thread's sums of at least 128 threads, the tree, 4 products, quotient, eps; then
                    // the root (2 units) and two products.
                    let relative = ((width as f64 / 512.0).ceil() + 8.0 + 4.0 + 2.0) / 2.0 * U + 6.0 * U;
                    for i in 0..width {
                        let plain = f64::from(row[i]) * scale * f64::from(weights[i]);
                        let exact = plain + residual.map_or(0.0, |n| f64::from(ws[at(n) + r * width + i]));
                        let bound = plain.abs() * relative + exact.abs() * U * 1.01;
                        let y = f64::from(got[at(dst) + r * width + i]);
                        assert!(
                            (y - exact).abs() <= bound,
                            "{width} {x} {residual:?} {dst} row {r} at {i}: {y} {exact}"
                        );
                    }
                }
                let written = at(dst)..at(dst) + count * width;
                assert!((0..ws.len()).all(|i| written.contains(&i) || got[i] == ws[i]), "{width} wrote elsewhere");
            }
        }
    }
}

#[test]
fn output_rows_are_chosen() {
    for (gpu, width) in devices().iter().flat_map(|gpu| [4, 640, 1152].map(|width| (gpu, width))) {
        let ws = Numbers(5).take(6 * width);
        let (x, dst) = (RowSpan { offset: 0, width }, RowSpan { offset: 12 * width, width });
        let got = run(gpu, &ws, select(gpu, x, dst).unwrap());
        let expected = [&ws[..3 * width], &ws[2 * width..3 * width], &ws[..width], &ws[5 * width..]].concat();
        assert_eq!(got, expected);
    }
}

#[test]
fn caps_are_soft() {
    for (gpu, width) in devices().iter().flat_map(|gpu| [4, 1028].map(|width| (gpu, width))) {
        let mut ws: Vec<f32> = Numbers(6).take(8 * width).iter().map(|x| x * 90.0).collect();
        ws[..4].copy_from_slice(&[0.0, 1e-3, 3e38, -3e38]);
        ws[width] = f32::NAN;
        let x = RowSpan { offset: 0, width };
        for (dst, rows, count) in [(0, Rows::Batch, 3), (4 * width, Rows::Batch, 3), (4 * width, Rows::Output, 2)] {
            let step = softcap(gpu, x, RowSpan { offset: 4 * dst, width }, 30.0, rows).unwrap();
            let got = run(gpu, &ws, step);
            for i in 0..count * width {
                if i == width {
                    assert!(got[dst + i].is_nan());
                    continue;
                }
                let exact = 30.0 * (f64::from(ws[i]) / 30.0).tanh();
                // The function's own error, and a rounding of the quotient and of the product.
                let bound = 30.0 * 4e-7 + 2.0 * 30.0 * U;
                assert!((f64::from(got[dst + i]) - exact).abs() <= bound, "{} gives {}", ws[i], got[dst + i]);
            }
            let same = |i: usize| got[i] == ws[i] || i == width;
            assert!((0..ws.len()).all(|i| (dst..dst + count * width).contains(&i) || same(i)), "wrote elsewhere");
        }
    }
}

#[test]
fn places_are_whole_quads() {
    for place in [RowSpan { offset: 8, width: 4 }, RowSpan { offset: 16, width: 6 }] {
        assert!(matches!(place.quads(), Err(Error::Internal(_))));
    }
    assert_eq!(RowSpan { offset: 64, width: 8 }.quads().unwrap(), [4, 2]);
}
