#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::testing::fixture::{Fixture, Frame, Numbers};
use crate::backend::gpu::testing::harness::devices;

const ROWS: usize = 3;

/// The workspace after one step over three batch rows.
fn run(gpu: &Gpu, ws: &[f32], step: Step) -> Vec<f32> {
    let frame = Frame { rows: vec![(0, 1, 0); ROWS], outputs: vec![2, 0], splits: (1, 64), ..Frame::default() };
    let fixture = Fixture::new(gpu, ws, &frame.words(), [&[], &[]], 16);
    fixture.run(&[step], frame.counts());
    fixture.workspace(ws.len())
}

#[test]
fn parts_are_mixed() {
    let fixed = |values: &[f32]| By::Fixed(values.to_vec());
    let by = |width| By::Row(RowSpan { offset: 0, width }, 0.0);
    // Values of a part, parts, sums, coefficients, whether there is something to add, and whether it is what is mixed.
    let cases = [
        (516, 4, 4, by(16), true, false),
        (132, 4, 4, by(16), true, true),
        (4, 1, 4, By::Row(RowSpan { offset: 0, width: 4 }, 1.0), true, false),
        (64, 4, 1, fixed(&[1.0, 0.0, 0.0, 0.0]), false, false),
        (64, 1, 4, fixed(&[0.0, 1.0, 1.0, 1.0]), true, false),
        (64, 3, 2, fixed(&[0.0, 1.0, -0.5, 0.25, 0.0, 3.0]), false, false),
    ];
    for (gpu, (width, parts, sums, by, adds, itself)) in
        devices().iter().flat_map(|gpu| cases.clone().map(|case| (gpu, case)))
    {
        // Coefficients, then x, what is added, and the result.
        let x_at = ROWS * 16;
        let added_at = if itself { x_at } else { x_at + ROWS * parts * width };
        let dst_at = x_at + ROWS * (parts + sums) * width;
        let ws = Numbers(width as u64).take(dst_at + ROWS * sums * width);
        let place = |at: usize, parts: usize| RowSpan { offset: 4 * at, width: parts * width };
        for dst in [dst_at, added_at] {
            let job = Mix {
                x: place(x_at, parts),
                parts,
                by: by.clone(),
                residual: adds.then(|| place(added_at, sums)),
                dst: place(dst, sums),
                rows: Rows::Batch,
            };
            let got = run(gpu, &ws, mix(gpu, &job).unwrap());
            for (r, t, i) in (0..ROWS).flat_map(|r| (0..sums).flat_map(move |t| (0..width).map(move |i| (r, t, i)))) {
                let column = (r * sums + t) * width + i;
                let mut exact = if adds { f64::from(ws[added_at + column]) } else { 0.0 };
                for s in 0..parts {
                    let c = match &by {
                        By::Fixed(values) => values[t * parts + s],
                        By::Row(by, plus) => ws[r * by.width + t * parts + s] + plus,
                    };
                    exact += f64::from(c) * f64::from(ws[x_at + (r * parts + s) * width + i]);
                }
                let y = f64::from(got[dst + column]);
                assert!((y - exact).abs() < 4e-6, "{width} {by:?} row {r} sum {t} at {i}: {y} {exact}");
            }
            let written = dst..dst + ROWS * sums * width;
            assert!((0..ws.len()).all(|i| written.contains(&i) || got[i] == ws[i]), "{by:?} wrote elsewhere");
        }
    }
}

#[test]
fn parts_get_the_length_of_another_row() {
    for (gpu, (width, parts)) in devices().iter().flat_map(|gpu| [(4, 1), (1028, 3)].map(|shape| (gpu, shape))) {
        let [y_at, dst_at] = [ROWS * parts * width, ROWS * (parts + 1) * width];
        let mut ws = Numbers(7).take(dst_at + ROWS * (parts + 1) * width);
        // The first part of the last row has no length.
        ws[(ROWS - 1) * parts * width..][..width].fill(0.0);
        let place = |at: usize, parts: usize| RowSpan { offset: 4 * at, width: parts * width };
        let step = equalize(gpu, place(0, parts), place(y_at, 1), place(dst_at, parts + 1), Rows::Batch).unwrap();
        let got = run(gpu, &ws, step);
        let squares = |x: &[f32]| x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        for r in 0..ROWS {
            let (y, row) = (&ws[y_at + r * width..][..width], &got[dst_at + r * (parts + 1) * width..]);
            assert_eq!(&row[..width], y);
            for s in 0..parts {
                let (x, out) = (&ws[(r * parts + s) * width..][..width], &row[(s + 1) * width..][..width]);
                let factor = if squares(x) > 0.0 { (squares(y) / squares(x)).sqrt() } else { 0.0 };
                for (i, (&x, &out)) in x.iter().zip(out).enumerate() {
                    let exact = f64::from(x) * factor;
                    assert!((f64::from(out) - exact).abs() <= exact.abs() * 2e-6, "{width} row {r} part {s} at {i}");
                }
            }
        }
        assert_eq!(got[..dst_at], ws[..dst_at], "wrote elsewhere");
    }
}
