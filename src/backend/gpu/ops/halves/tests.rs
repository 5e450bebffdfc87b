//! Rows as halves against the rows themselves, and products by matrix instructions against `f64`.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::ops::matmul::{self, Gated, Input, MatMul, Narrow, Term};
use crate::backend::gpu::probe::source::{Random, Source, gated};
use crate::backend::gpu::testing::harness::devices;
use crate::backend::gpu::testing::workspace::{CANARY, Run, Space};
use crate::backend::gpu::weights::layout::Layout;
use crate::graph::Activation;
use crate::quant::{TensorType, dequantize};
use half::f16;

/// The workspace after steps over so many rows, which begins with `x` and then has so many canaries.
fn after(gpu: &Gpu, steps: &[Step], x: &[f32], canaries: usize, rows: usize) -> Vec<f32> {
    let words = x.iter().map(|x| x.to_bits()).chain(std::iter::repeat_n(CANARY, canaries)).collect();
    Run::of(rows).over(gpu, steps, &Space(words)).into_iter().map(f32::from_bits).collect()
}

#[test]
fn rows_become_halves_and_a_factor() {
    let (rows, max_rows) = (19, 32);
    for (gpu, width) in devices().iter().flat_map(|gpu| [44, 1600].map(|width| (gpu, width))) {
        let mut x = Random(3).units(rows * width);
        x[..width].fill(0.0);
        x[width..2 * width].iter_mut().for_each(|x| *x *= 1e-30);
        x[2 * width..3 * width].iter_mut().for_each(|x| *x *= 1e37);
        x[3 * width] = f32::NAN;
        x.resize(x.len().next_multiple_of(4), 0.0);
        let step = halve(gpu, 0, width, 4 * x.len() as u64, Rows::Batch, max_rows).unwrap();
        let canaries = bytes(width, max_rows) / 4;
        let after = after(gpu, &[step], &x, canaries, rows);
        assert!(after.iter().zip(&x).all(|(a, b)| a.to_bits() == b.to_bits()));
        let mut untouched = vec![true; canaries];
        let quads = width.div_ceil(GROUP) * 4;
        for row in 0..rows {
            let quad = |i: usize| (i * max_rows + row) * 4;
            (0..=quads).for_each(|i| untouched[quad(i)..quad(i) + 4].fill(false));
            let words = |i: usize| &after[x.len() + quad(i)..][..4];
            let halves = (0..quads).flat_map(words).flat_map(|word| {
                [word.to_bits() as u16, (word.to_bits() >> 16) as u16].map(|half| f16::from_bits(half).to_f64())
            });
            let halves: Vec<f64> = halves.collect();
            let factor = f64::from(words(quads)[0]);
            assert_eq!(factor.log2().fract(), 0.0);
            let values: Vec<f64> = x[row * width..(row + 1) * width].iter().map(|&x| x.into()).collect();
            let most = values.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let greatest = halves.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            if row == 3 {
                assert!(halves[0].is_nan(), "{}", halves[0]);
                continue;
            }
            assert!(row == 0 || (8191.0..=16384.0).contains(&greatest), "row {row}: {greatest}");
            for (i, &half) in halves.iter().enumerate() {
                let value = values.get(i).copied().unwrap_or(0.0);
                let off = value.abs() * 2f64.powi(-11) + most * 2f64.powi(-37);
                assert!((half * factor - value).abs() <= off, "row {row}: {half} times {factor} is not {value}");
            }
        }
        let room = after[x.len()..].iter().zip(untouched);
        assert!(room.filter(|(_, untouched)| *untouched).all(|(x, _)| x.to_bits() == CANARY));
    }
}

/// Types by layout, one of each but F32, with all shapes of batches for two.
fn cases() -> Vec<(TensorType, &'static [usize])> {
    let mut seen = vec!["F32"];
    let mut cases = Vec::new();
    for ty in TensorType::ALL.iter().copied().filter(|&ty| dequantize(ty, &[], &mut []).is_ok()) {
        let Ok(Layout { format, .. }) = Layout::new(ty, 1024) else { continue };
        if !seen.contains(&format.flag) {
            seen.push(format.flag);
            let all = matches!(ty, TensorType::Q4_K | TensorType::F16);
            cases.push((ty, if all { &[9, 64, 70, 200][..] } else { &[70] }));
        }
    }
    cases
}

#[test]
fn products_by_matrix_instructions() {
    for (gpu, (ty, counts)) in devices().iter().flat_map(|gpu| cases().into_iter().map(move |case| (gpu, case))) {
        if gpu.caps.matrices.is_none() {
            println!("skipped: {} has no matrix instructions", gpu.info.name);
            break;
        }
        // An odd number of groups, where a block is no more.
        let shapes = if ty.block_len() > 32 { [(256, 5), (768, 100)] } else { [(96, 5), (1024, 100)] };
        for ((n_in, n_out), &rows) in shapes.into_iter().flat_map(|shape| counts.iter().map(move |rows| (shape, rows)))
        {
            let source = Source::new(1, ty, n_in, n_out).unwrap();
            let matrix = source.load(gpu).unwrap();
            let mut random = Random(7);
            let (x, width) = (random.units(rows * n_in), n_out.next_multiple_of(4));
            let residual = random.units(rows * width);
            let max_rows = rows.next_power_of_two();
            let at = 4 * x.len() as u64;
            let room = at + 4 * residual.len() as u64;
            let dst = room + bytes(n_in, max_rows) as u64;
            let m = MatMul {
                parts: &[Term::plain(&matrix)],
                input: Input { x: 0, width: n_in, norm: None, narrow: Some((Narrow::Halves, room)) },
                residual: Some(at),
                dst,
                width,
                rows: Rows::Batch,
                max_rows,
                logits: false,
            };
            let steps = matmul::matmul(gpu, &m).unwrap();
            let names: Vec<_> = steps.iter().map(|step| step.kernel.name).collect();
            assert_eq!(names, ["halve", "matmul_halves"]);
            let before = [&x[..], &residual].concat();
            let canaries = dst as usize / 4 - before.len() + rows * width + 64;
            let after = after(gpu, &steps, &before, canaries, rows);
            assert_eq!(after[..before.len()], before[..]);
            let (results, rest) = after[dst as usize / 4..].split_at(rows * width);
            let (mut squares, mut sizes) = (0.0, 0.0);
            for (i, (value, off)) in source.product_of(&x, rows, Some(Narrow::Halves)).into_iter().enumerate() {
                let at = i / n_out * width + i % n_out;
                let (value, off) = (value + f64::from(residual[at]), off + 1e-6);
                let got = f64::from(results[at]);
                assert!((got - value).abs() <= off, "{ty} {n_in}x{n_out}, {rows} rows: {got}, not {value} at {i}");
                (squares, sizes) = (squares + (got - value).powi(2), sizes + value.powi(2));
            }
            // Roundings of both factors, not all in one direction.
            assert!(squares <= sizes * 2f64.powi(-20), "{ty} {n_in}x{n_out}, {rows} rows: {squares} of {sizes}");
            assert!(rest.iter().all(|x| x.to_bits() == CANARY), "{ty} {n_in}x{n_out}, {rows} rows");
        }
    }
}

#[test]
fn gated_products_by_matrix_instructions() {
    let cases = [
        (TensorType::Q6_K, TensorType::Q6_K, 256, 20usize),
        (TensorType::Q5_0, TensorType::Q3_K, 256, 9),
        (TensorType::F16, TensorType::F16, 96, 70),
        (TensorType::MXFP4, TensorType::MXFP4, 96, 130),
    ];
    for (gpu, (gate_ty, up_ty, n_in, rows)) in devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case))) {
        if gpu.caps.matrices.is_none() {
            println!("skipped: {} has no matrix instructions", gpu.info.name);
            break;
        }
        let (n_out, max_rows) = (100, rows.next_power_of_two());
        let sources = [(1, gate_ty), (2, up_ty)].map(|(seed, ty)| Source::new(seed, ty, n_in, n_out).unwrap());
        let x = Random(11).units(rows * n_in);
        let [gates, ups] = sources.each_ref().map(|source| source.product_of(&x, rows, Some(Narrow::Halves)));
        let [gate, up] = sources.each_ref().map(|source| source.load(gpu).unwrap());
        let room = 4 * x.len() as u64;
        let dst = room + bytes(n_in, max_rows) as u64;
        let g = Gated {
            gate: Term { scale: Some(1.5), ..Term::plain(&gate) },
            up: Some(Term::plain(&up)),
            act: Activation::Silu,
            input: Input { x: 0, width: n_in, norm: None, narrow: Some((Narrow::Halves, room)) },
            dst,
            width: n_out,
            rows: Rows::Batch,
            max_rows,
        };
        let canaries = (dst - room) as usize / 4 + rows * n_out;
        let after = after(gpu, &matmul::gated(gpu, &g).unwrap(), &x, canaries, rows);
        for (i, (&(value, off), &up)) in gates.iter().zip(&ups).enumerate() {
            let (value, off) = gated(Activation::Silu, (value * 1.5, off * 2.0), up);
            let got = f64::from(after[dst as usize / 4 + i]);
            assert!((got - value).abs() <= off + 1e-6, "{gate_ty} {up_ty} {rows} rows: {got}, not {value} at {i}");
        }
    }
}
