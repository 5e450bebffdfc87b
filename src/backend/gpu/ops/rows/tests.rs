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
                let plain = Norm {
                    kind: NormKind::Rms,
                    weight: Some(weight()),
                    bias: None,
                    eps: 1e-5,
                    width,
                    parts: 1,
                    own: false,
                };
                let step = norm(gpu, place(x), &plain, residual.map(place), place(dst), rows).unwrap();
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
            let step = map(gpu, x, Map::SoftCap(30.0), None, RowSpan { offset: 4 * dst, width }, rows).unwrap();
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

/// Norms of all kinds, of parts of rows that are longer, against the definition.
#[test]
fn parts_of_rows_are_normed() {
    let (x_width, dst_width, rows) = (96, 80, 3);
    let mut numbers = Numbers(3);
    let ws: Vec<f32> = numbers.take(rows * (x_width + 2 * dst_width)).iter().map(|x| x + 0.5).collect();
    let vectors = [numbers.take(80), numbers.take(80)];
    let cases = [
        (NormKind::Layer, true, true, 1, 80, true, false),
        (NormKind::Layer, true, false, 4, 20, false, false),
        (NormKind::Layer, true, true, 4, 20, true, true),
        (NormKind::Layer, false, false, 2, 40, false, false),
        (NormKind::Rms, false, false, 5, 16, true, false),
        (NormKind::Rms, true, true, 2, 12, false, false),
        (NormKind::Rms, true, false, 2, 12, false, true),
    ];
    for (gpu, (kind, weighted, biased, parts, width, adds, own)) in
        devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case)))
    {
        let columns = if own { parts * width } else { width };
        let bound = |i: usize| {
            let numbers = storage(gpu, bytemuck::cast_slice(&vectors[i][..columns]));
            BufferRef::Weight(numbers, 0, 4 * columns as u64)
        };
        let (weight, bias) = (weighted.then(|| bound(0)), biased.then(|| bound(1)));
        let job = Norm { kind, weight, bias, eps: 1e-2, width, parts, own };
        let x = RowSpan { offset: 0, width: x_width };
        let [added, dst] = [0, 1].map(|i| rows * (x_width + i * dst_width));
        let place = |at: usize| RowSpan { offset: 4 * at, width: dst_width };
        let step = norm(gpu, x, &job, adds.then(|| place(added)), place(dst), Rows::Batch).unwrap();
        let got = run(gpu, &ws, step);
        for (r, i) in (0..rows).flat_map(|r| (0..dst_width).map(move |i| (r, i))) {
            let y = got[dst + r * dst_width + i];
            if i >= parts * width {
                assert_eq!(y, ws[dst + r * dst_width + i], "{kind:?} row {r} column {i}");
                continue;
            }
            let part = &ws[r * x_width + i / width * width..][..width];
            let n = width as f64;
            let mean = match kind {
                NormKind::Rms => 0.0,
                NormKind::Layer => part.iter().map(|&x| f64::from(x)).sum::<f64>() / n,
            };
            let squares = part.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
            let mut exact = (f64::from(ws[r * x_width + i]) - mean) / (squares / n + f64::from(1e-2f32)).sqrt();
            exact *= if weighted { f64::from(vectors[0][i % columns]) } else { 1.0 };
            exact += if biased { f64::from(vectors[1][i % columns]) } else { 0.0 };
            exact += if adds { f64::from(ws[added + r * dst_width + i]) } else { 0.0 };
            assert!((f64::from(y) - exact).abs() < 3e-6, "{kind:?} {parts} row {r} column {i}: {y} {exact}");
        }
        assert_eq!(got[..dst], ws[..dst], "{kind:?} wrote elsewhere");
    }
}

#[test]
fn values_are_scaled_limited_and_added() {
    let (width, rows) = (132, 3);
    let mut ws: Vec<f32> = Numbers(6).take(3 * rows * width).iter().map(|x| x * 9.0).collect();
    ws[1] = f32::NAN;
    let place = |i: usize| RowSpan { offset: 4 * i * rows * width, width };
    for gpu in devices() {
        for (function, residual, dst) in [
            (Map::Scale(-0.3), None, 0),
            (Map::Scale(2.0), Some(1), 1),
            (Map::Clamp(4.0), None, 2),
            (Map::SoftCap(3.0), Some(1), 2),
        ] {
            let step = map(gpu, place(0), function, residual.map(place), place(dst), Rows::Batch).unwrap();
            let got = run(gpu, &ws, step);
            for i in 0..rows * width {
                let (x, y) = (f64::from(ws[i]), f64::from(got[dst * rows * width + i]));
                let exact = match function {
                    Map::Scale(factor) => x * f64::from(factor),
                    Map::Clamp(limit) => x.clamp((-limit).into(), limit.into()),
                    Map::SoftCap(cap) => f64::from(cap) * (x / f64::from(cap)).tanh(),
                } + residual.map_or(0.0, |n: usize| f64::from(ws[n * rows * width + i]));
                assert!((y - exact).abs() < 4e-6 || i == 1 && y.is_nan(), "{function:?} {i}: {y} {exact}");
            }
            let written = dst * rows * width..(dst + 1) * rows * width;
            assert!((0..ws.len()).all(|i| written.contains(&i) || got[i].to_bits() == ws[i].to_bits()), "{function:?}");
        }
    }
}

#[test]
fn columns_have_factors() {
    let (width, rows) = (132, 3);
    let mut numbers = Numbers(6);
    let (ws, factors) = (numbers.take(2 * rows * width), numbers.take(width));
    let place = |i: usize| RowSpan { offset: 4 * i * rows * width, width };
    for (gpu, dst) in devices().iter().flat_map(|gpu| [0, 1].map(|dst| (gpu, dst))) {
        let bound = BufferRef::Weight(storage(gpu, bytemuck::cast_slice(&factors)), 0, 4 * width as u64);
        let got = run(gpu, &ws, multiply(gpu, place(0), bound, place(dst), Rows::Batch).unwrap());
        let at = dst * rows * width;
        assert!((0..rows * width).all(|i| got[at + i] == ws[i] * factors[i % width]));
        assert!((0..ws.len()).all(|i| (at..at + rows * width).contains(&i) || got[i] == ws[i]), "wrote elsewhere");
    }
}

#[test]
fn what_is_below_the_threshold_is_zero() {
    for (gpu, width) in devices().iter().flat_map(|gpu| [4, 1028].map(|width| (gpu, width))) {
        let ws = Numbers(8).take(6 * width);
        for dst in [0, 3 * width] {
            let place = |at: usize| RowSpan { offset: 4 * at, width };
            let got = run(gpu, &ws, sparsify(gpu, place(0), 0.5, place(dst), Rows::Batch).unwrap());
            for r in 0..3 {
                let row = &ws[r * width..][..width];
                let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
                let threshold = mean + 0.5 * (squares / (width - 1) as f64).sqrt();
                for (i, &x) in row.iter().enumerate() {
                    let y = f64::from(got[dst + r * width + i]);
                    assert!((y - (f64::from(x) - threshold).max(0.0)).abs() < 4e-6, "{width} row {r} at {i}: {y}");
                }
            }
            let written = dst..dst + 3 * width;
            assert!((0..ws.len()).all(|i| written.contains(&i) || got[i] == ws[i]), "{width} wrote elsewhere");
        }
    }
}

#[test]
fn columns_are_gated() {
    use crate::backend::gpu::probe::source::gated;
    let (rows, width, first) = (3usize, 132usize, 8);
    let y_width = width + 12;
    let xielu = Activation::Xielu { positive: 0.8, negative: 0.9, linear: 0.5, eps: -1e-6 };
    let cases = [
        (Activation::Sigmoid, width, true),
        (Activation::Silu, width, false),
        (Activation::Sigmoid, 1, true),
        (xielu, width, false),
        (Activation::Relu2, 1, false),
        (Activation::Gelu, width, true),
        (Activation::ClampedSwiglu, width, false),
    ];
    for (gpu, (act, x_width, adds)) in devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case))) {
        let y_at = (rows * x_width).next_multiple_of(4);
        let dst = y_at + rows * y_width;
        let ws: Vec<f32> = Numbers(9).take(dst + rows * width).iter().map(|x| x * 9.0).collect();
        let place = |at: usize, width| RowSpan { offset: 4 * at, width };
        let job = Gate {
            x: place(0, x_width),
            act,
            y: place(y_at, y_width),
            first,
            residual: adds.then(|| place(dst, width)),
            dst: place(dst, width),
            rows: Rows::Batch,
        };
        let got = run(gpu, &ws, gate(gpu, &job).unwrap());
        for i in 0..rows * width {
            let (row, column) = (i / width, i % width);
            let x = ws[row * x_width + column.min(x_width - 1)];
            let y = ws[y_at + row * y_width + first + column];
            let (value, off) = gated(act, (x.into(), 0.0), (y.into(), 0.0));
            let exact = value + if adds { f64::from(ws[dst + i]) } else { 0.0 };
            let y = f64::from(got[dst + i]);
            assert!((y - exact).abs() <= off + exact.abs() * U + 1e-25, "{act:?} {x_width} value {i}: {y} {exact}");
        }
        assert_eq!(got[..dst], ws[..dst], "{act:?} wrote elsewhere");
    }
}

#[test]
fn places_are_whole_quads() {
    for place in [RowSpan { offset: 8, width: 4 }, RowSpan { offset: 16, width: 6 }] {
        assert!(matches!(place.quads(), Err(Error::Internal(_))));
    }
    assert_eq!(RowSpan { offset: 64, width: 8 }.quads().unwrap(), [4, 2]);
}
