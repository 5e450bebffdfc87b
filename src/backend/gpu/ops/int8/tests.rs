//! Rows as bytes against the rows themselves, and products with bytes against `f64` over rows that lose nothing by it.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::device::adapters;
use crate::backend::gpu::device::test_limits::TestLimits;
use crate::backend::gpu::ops::matmul::{self, Gated, Input, MatMul, Narrow, Term, VECTOR_ROWS};
use crate::backend::gpu::probe::source::{Random, Source, coded, gated};
use crate::backend::gpu::testing::harness::devices;
use crate::backend::gpu::testing::workspace::{CANARY, Run, Space};
use crate::backend::gpu::weights::layout::Layout;
use crate::backend::gpu::weights::matrix::{Loader, Vector};
use crate::graph::Activation;
use crate::quant::{TensorType, dequantize};

/// The workspace after steps over so many rows, which begins with `x` and then has so many canaries.
fn after(gpu: &Gpu, steps: &[Step], x: &[f32], canaries: usize, rows: usize) -> Vec<f32> {
    let words = x.iter().map(|x| x.to_bits()).chain(std::iter::repeat_n(CANARY, canaries)).collect();
    Run::of(rows).over(gpu, steps, &Space(words)).into_iter().map(f32::from_bits).collect()
}

#[test]
fn rows_become_bytes_and_scales() {
    let (rows, max_rows) = (19, 32);
    for (gpu, width) in devices().iter().flat_map(|gpu| [44, 320].map(|width| (gpu, width))) {
        let mut x = Random(3).units(rows * width);
        x[..width].fill(0.0);
        x[width..2 * width].iter_mut().for_each(|x| *x *= 1e-20);
        x[2 * width..3 * width].iter_mut().for_each(|x| *x *= 1e20);
        let room = (4 * x.len()).next_multiple_of(16);
        x.resize(room / 4, 0.0);
        let q = Quantized { x: 0, width, room: room as u64 };
        let step = quantize(gpu, q, Rows::Batch, max_rows).unwrap();
        let canaries = bytes(width, max_rows) / 4;
        let after = after(gpu, &[step], &x, canaries, rows);
        assert_eq!(after[..x.len()], x[..]);
        let mut untouched = vec![true; canaries];
        let groups = width.div_ceil(GROUP);
        for (row, group) in (0..rows).flat_map(|row| (0..groups).map(move |group| (row, group))) {
            let quad = |i: usize| ((group * 3 + i) * max_rows + row) * 4;
            (0..3).for_each(|i| untouched[quad(i)..quad(i) + 4].fill(false));
            let words = |i: usize| &after[x.len() + quad(i)..][..4];
            let codes = [0, 1].into_iter().flat_map(words).flat_map(|word| word.to_bits().to_le_bytes());
            let codes: Vec<f32> = codes.map(|byte| f32::from(byte.cast_signed())).collect();
            let &[scale, lo, hi, _] = words(2) else { panic!("a vec4") };
            assert_eq!([lo, hi], [&codes[..16], &codes[16..]].map(|half| half.iter().sum::<f32>()));
            let values = &x[row * width..(row + 1) * width][group * GROUP..];
            let values = &values[..values.len().min(GROUP)];
            let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert!((scale - most / 127.0).abs() <= most * 1e-8, "{scale} for {most}");
            for (i, &code) in codes.iter().enumerate() {
                let x = values.get(i).copied().unwrap_or(0.0);
                assert!((x - code * scale).abs() <= scale * 0.50001, "row {row}: {x} is {code} x {scale}");
            }
        }
        let room = after[x.len()..].iter().zip(untouched);
        assert!(room.filter(|(_, untouched)| *untouched).all(|(x, _)| x.to_bits() == CANARY));
    }
}

/// Types whose weights are integers, by layout: one of each, with all shapes of tiles for two.
fn cases() -> Vec<(TensorType, &'static [usize])> {
    let mut seen = Vec::new();
    let mut cases = Vec::new();
    for ty in TensorType::ALL.iter().copied().filter(|&ty| dequantize(ty, &[], &mut []).is_ok()) {
        let Ok(Layout { format, .. }) = Layout::new(ty, 1024) else { continue };
        if format.scales > 0 && !seen.contains(&format.flag) {
            seen.push(format.flag);
            let all = matches!(ty, TensorType::Q4_K | TensorType::Q8_0);
            cases.push((ty, if all { &[9, 20, 33, 70][..] } else { &[70] }));
        }
    }
    assert_eq!(cases.len(), 8);
    cases
}

#[test]
fn products_with_bytes() {
    for (ty, counts) in cases() {
        // An odd number of groups, where a block is no more.
        let shapes = if ty.block_len() > 32 { [(256, 5), (768, 100)] } else { [(96, 5), (1024, 100)] };
        for ((n_in, n_out), &rows) in shapes.into_iter().flat_map(|shape| counts.iter().map(move |rows| (shape, rows)))
        {
            let source = Source::new(1, ty, n_in, n_out).unwrap();
            let mut random = Random(7);
            let (x, width) = (coded(&random.units(rows * n_in), n_in), n_out.next_multiple_of(4));
            let residual = random.units(rows * width);
            for gpu in devices() {
                let matrix = source.load(gpu).unwrap();
                let max_rows = rows.next_power_of_two();
                let at = 4 * x.len() as u64;
                let room = at + 4 * residual.len() as u64;
                let dst = room + bytes(n_in, max_rows) as u64;
                let m = MatMul {
                    parts: &[Term::plain(&matrix)],
                    input: Input { x: 0, width: n_in, norm: None, narrow: Some((Narrow::Bytes, room)) },
                    residual: Some(at),
                    dst,
                    width,
                    rows: Rows::Batch,
                    max_rows,
                    logits: false,
                };
                let steps = matmul::matmul(gpu, &m).unwrap();
                let names: Vec<_> = steps.iter().map(|step| step.kernel.name).collect();
                assert_eq!(names, ["quantize", "matmul_int8"]);
                let before = [&x[..], &residual].concat();
                let canaries = dst as usize / 4 - before.len() + rows * width + 64;
                let after = after(gpu, &steps, &before, canaries, rows);
                assert_eq!(after[..before.len()], before[..]);
                let (results, rest) = after[dst as usize / 4..].split_at(rows * width);
                for (i, (value, off)) in source.product(&x, rows).into_iter().enumerate() {
                    let at = i / n_out * width + i % n_out;
                    let (value, off) = (value + f64::from(residual[at]), off + 1e-6);
                    let got = f64::from(results[at]);
                    assert!((got - value).abs() <= off, "{ty} {n_in}x{n_out}, {rows} rows: {got}, not {value} at {i}");
                }
                assert!(rest.iter().all(|x| x.to_bits() == CANARY), "{ty} {n_in}x{n_out}, {rows} rows");
            }
        }
    }
}

#[test]
fn gated_products_with_bytes() {
    let cases = [
        (TensorType::Q6_K, TensorType::Q6_K, 256, 20usize),
        (TensorType::Q5_0, TensorType::Q3_K, 256, 9),
        (TensorType::Q8_0, TensorType::Q8_0, 96, 70),
    ];
    for (gate_ty, up_ty, n_in, rows) in cases {
        let (n_out, max_rows) = (100, rows.next_power_of_two());
        let sources = [(1, gate_ty), (2, up_ty)].map(|(seed, ty)| Source::new(seed, ty, n_in, n_out).unwrap());
        let mut random = Random(11);
        let (x, bias) = (coded(&random.units(rows * n_in), n_in), random.units(n_out));
        let [gates, ups] = sources.each_ref().map(|source| source.product(&x, rows));
        for gpu in devices() {
            let [gate, up] = sources.each_ref().map(|source| source.load(gpu).unwrap());
            let bound: Vector = Loader::new(gpu, &mut |_| Ok(())).vector("test", &bias).unwrap();
            let room = 4 * x.len() as u64;
            let dst = room + bytes(n_in, max_rows) as u64;
            let g = Gated {
                gate: Term { scale: Some(1.5), bias: Some(&bound), ..Term::plain(&gate) },
                up: Some(Term::plain(&up)),
                act: Activation::Silu,
                input: Input { x: 0, width: n_in, norm: None, narrow: Some((Narrow::Bytes, room)) },
                dst,
                width: n_out,
                rows: Rows::Batch,
                max_rows,
            };
            let canaries = (dst - room) as usize / 4 + rows * n_out;
            let after = after(gpu, &matmul::gated(gpu, &g).unwrap(), &x, canaries, rows);
            for (i, (&(value, off), &up)) in gates.iter().zip(&ups).enumerate() {
                let gate = (value * 1.5 + f64::from(bias[i % n_out]), off * 2.0 + 1e-6);
                let (value, off) = gated(Activation::Silu, gate, up);
                let got = f64::from(after[dst as usize / 4 + i]);
                assert!((got - value).abs() <= off + 1e-6, "{gate_ty} {up_ty} {rows} rows: {got}, not {value} at {i}");
            }
        }
    }
}

#[test]
fn bytes_are_for_integers_and_many_rows_where_the_device_has_dot_products() {
    let Some(best) = adapters().into_iter().find(|adapter| adapter.score > 0) else { return };
    let format = |ty| Layout::new(ty, 256).unwrap().format;
    for (text, has) in [
        ("dots=on,matrices=off", true),
        ("dots=off,matrices=off", false),
        ("dots=on,matrices=off,registers=few", false),
    ] {
        let gpu = Gpu::new(&best, &TestLimits::parse(text).unwrap()).unwrap();
        let of = |ty, rows| Narrow::of(&gpu, format(ty), rows);
        assert_eq!(of(TensorType::Q4_K, VECTOR_ROWS + 1), has.then_some(Narrow::Bytes));
        assert_eq!((of(TensorType::Q4_K, VECTOR_ROWS), of(TensorType::F16, 64)), (None, None));
    }
}
