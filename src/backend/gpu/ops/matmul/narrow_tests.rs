//! Products of many rows that become narrow first, against `f64` over the rows themselves: bytes lose nothing of them,
//! halves and the weights beside those are rounded.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::device::adapters;
use crate::backend::gpu::device::test_limits::TestLimits;
use crate::backend::gpu::probe::source::{Random, Source, coded, gated as gated_value};
use crate::backend::gpu::testing::harness::devices;
use crate::backend::gpu::testing::workspace::{CANARY, Run};
use crate::backend::gpu::weights::matrix::Loader;
use crate::quant::{TensorType, dequantize};
use std::sync::Arc;

/// The devices whose hardware the kernels need: all for dot products, which any driver can do.
fn devices_for(narrow: Narrow) -> impl Iterator<Item = &'static Arc<Gpu>> {
    devices().iter().filter(move |gpu| {
        let has = narrow == Narrow::Bytes || gpu.caps.matrices.is_some();
        if !has {
            println!("skipped: {} has no matrix instructions", gpu.info.name);
        }
        has
    })
}

/// Input rows that bytes lose nothing of, or any.
fn rows_of(random: &mut Random, narrow: Narrow, n_in: usize, rows: usize) -> Vec<f32> {
    let x = random.units(rows * n_in);
    if narrow == Narrow::Bytes { coded(&x, n_in) } else { x }
}

/// Types that such rows suit, by layout: one of each, with all shapes of tiles for two.
fn cases(narrow: Narrow) -> Vec<(TensorType, &'static [usize])> {
    let mut seen = Vec::new();
    let mut cases = Vec::new();
    for ty in TensorType::ALL.iter().copied().filter(|&ty| dequantize(ty, &[], &mut []).is_ok()) {
        let Ok(Layout { format, .. }) = Layout::new(ty, 1024) else { continue };
        if narrow.suits(format) && !seen.contains(&format.flag) {
            seen.push(format.flag);
            let all = matches!(ty, TensorType::Q4_K | TensorType::Q8_0);
            cases.push((ty, if all { &[9, 20, 33, 70, 200][..] } else { &[70] }));
        }
    }
    cases
}

fn check_products(narrow: Narrow, kernels: [&str; 2]) {
    for (ty, counts) in cases(narrow) {
        // An odd number of groups, where a block is no more.
        let shapes = if ty.block_len() > 32 { [(256, 5), (768, 100)] } else { [(96, 5), (1024, 100)] };
        for ((n_in, n_out), &rows) in shapes.into_iter().flat_map(|shape| counts.iter().map(move |rows| (shape, rows)))
        {
            let source = Source::new(1, ty, n_in, n_out).unwrap();
            let mut random = Random(7);
            let (x, width) = (rows_of(&mut random, narrow, n_in, rows), n_out.next_multiple_of(4));
            let residual = random.units(rows * width);
            let products = source.product_of(&x, rows, Some(narrow));
            for gpu in devices_for(narrow) {
                let matrix = source.load(gpu).unwrap();
                let max_rows = rows.next_power_of_two();
                let at = 4 * x.len() as u64;
                let room = at + 4 * residual.len() as u64;
                let dst = room + narrow.bytes(n_in, max_rows) as u64;
                let m = MatMul {
                    parts: &[Term::plain(&matrix)],
                    input: Input { x: 0, width: n_in, norm: None, narrow: Some((narrow, room)) },
                    residual: Some(at),
                    dst,
                    width,
                    rows: Rows::Batch,
                    max_rows,
                    logits: false,
                };
                let steps = matmul(gpu, &m).unwrap();
                let names: Vec<_> = steps.iter().map(|step| step.kernel.name).collect();
                assert_eq!(names, kernels);
                let before = [&x[..], &residual].concat();
                let canaries = dst as usize / 4 - before.len() + rows * width + 64;
                let after = Run::of(rows).over_floats(gpu, &steps, &before, canaries);
                assert_eq!(after[..before.len()], before[..]);
                let (results, rest) = after[dst as usize / 4..].split_at(rows * width);
                let what = format!("{ty} {n_in}x{n_out}, {rows} rows");
                let (mut squares, mut sizes) = (0.0, 0.0);
                for (i, &(value, off)) in products.iter().enumerate() {
                    let at = i / n_out * width + i % n_out;
                    let (value, off) = (value + f64::from(residual[at]), off + 1e-6);
                    let got = f64::from(results[at]);
                    assert!((got - value).abs() <= off, "{what}: {got}, not {value} at {i}");
                    (squares, sizes) = (squares + (got - value).powi(2), sizes + value.powi(2));
                }
                // Halves are not all rounded in one direction.
                assert!(squares <= sizes * 2f64.powi(-20), "{what}: {squares} of {sizes}");
                assert!(rest.iter().all(|x| x.to_bits() == CANARY), "{what}");
            }
        }
    }
}

#[test]
fn products_with_bytes() {
    check_products(Narrow::Bytes, ["quantize", "matmul_int8"]);
}

#[test]
fn products_by_matrix_instructions() {
    check_products(Narrow::Halves, ["halve", "matmul_halves"]);
}

fn check_gated(narrow: Narrow, cases: &[(TensorType, TensorType, usize, usize)]) {
    for &(gate_ty, up_ty, n_in, rows) in cases {
        let (n_out, max_rows) = (100, rows.next_power_of_two());
        let sources = [(1, gate_ty), (2, up_ty)].map(|(seed, ty)| Source::new(seed, ty, n_in, n_out).unwrap());
        let mut random = Random(11);
        let (x, bias) = (rows_of(&mut random, narrow, n_in, rows), random.units(n_out));
        let [gates, ups] = sources.each_ref().map(|source| source.product_of(&x, rows, Some(narrow)));
        for gpu in devices_for(narrow) {
            let [gate, up] = sources.each_ref().map(|source| source.load(gpu).unwrap());
            let bound: Vector = Loader::new(gpu, &mut |_| Ok(())).vector("test", &bias).unwrap();
            let room = 4 * x.len() as u64;
            let dst = room + narrow.bytes(n_in, max_rows) as u64;
            let g = Gated {
                gate: Term { scale: Some(1.5), bias: Some(&bound), ..Term::plain(&gate) },
                up: Some(Term::plain(&up)),
                act: Activation::Silu,
                input: Input { x: 0, width: n_in, norm: None, narrow: Some((narrow, room)) },
                dst,
                width: n_out,
                rows: Rows::Batch,
                max_rows,
            };
            let canaries = (dst - room) as usize / 4 + rows * n_out;
            let after = Run::of(rows).over_floats(gpu, &gated(gpu, &g).unwrap(), &x, canaries);
            for (i, (&(value, off), &up)) in gates.iter().zip(&ups).enumerate() {
                let gate = (value * 1.5 + f64::from(bias[i % n_out]), off * 2.0 + 1e-6);
                let (value, off) = gated_value(Activation::Silu, gate, up);
                let got = f64::from(after[dst as usize / 4 + i]);
                assert!((got - value).abs() <= off + 1e-6, "{gate_ty} {up_ty} {rows} rows: {got}, not {value} at {i}");
            }
        }
    }
}

const GATED: [(TensorType, TensorType, usize, usize); 3] = [
    (TensorType::Q6_K, TensorType::Q6_K, 256, 20),
    (TensorType::Q5_0, TensorType::Q3_K, 256, 9),
    (TensorType::Q8_0, TensorType::Q8_0, 96, 70),
];

#[test]
fn gated_products_with_bytes() {
    check_gated(Narrow::Bytes, &GATED);
}

#[test]
fn gated_products_by_matrix_instructions() {
    let more = [(TensorType::F16, TensorType::F16, 96, 130), (TensorType::MXFP4, TensorType::MXFP4, 96, 70)];
    check_gated(Narrow::Halves, &[&GATED[..], &more].concat());
}

#[test]
fn rows_become_narrow_for_what_the_device_has() {
    let Some(best) = adapters().into_iter().find(|adapter| adapter.score > 0) else { return };
    let format = |ty| Layout::new(ty, 256).unwrap().format;
    let all = [TensorType::Q4_K, TensorType::F16, TensorType::F32];
    let (bytes, halves) = (Some(Narrow::Bytes), Some(Narrow::Halves));
    for (text, expected) in [
        ("dots=on,matrices=off", [bytes, None, None]),
        ("dots=off,matrices=off", [None; 3]),
        ("dots=on,matrices=off,registers=few", [None; 3]),
        ("dots=on,matrices=16", [halves, halves, None]),
        ("dots=off,matrices=16", [halves, halves, None]),
    ] {
        let gpu = Gpu::new(&best, &TestLimits::parse(text).unwrap()).unwrap();
        assert_eq!(all.map(|ty| Narrow::of(&gpu, format(ty))), expected, "{text}");
    }
}
