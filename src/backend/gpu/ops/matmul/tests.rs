//! Every format in every kernel on both devices, against `f64` over `quant::dequantize`.
//!
//! The workspace has canaries around the operands: a step that reads beyond its rows gets a wrong result, and one that
//! writes beyond them is found.

use super::*;
use crate::backend::gpu::device::adapters;
use crate::backend::gpu::device::test_limits::TestLimits;
use crate::backend::gpu::probe::source::{Random, Source, gated as gated_value, normed};
use crate::backend::gpu::testing::harness::devices;
use crate::backend::gpu::testing::workspace::{Run, Space};
use crate::backend::gpu::weights::matrix::{Loader, Stored};
use crate::quant::{TensorType, dequantize};

fn types() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.iter().copied().filter(|&ty| dequantize(ty, &[], &mut []).is_ok())
}

fn load(gpu: &Gpu, ty: TensorType, n_in: usize, parts: &[&[u8]]) -> Matrix {
    let mut done = 0;
    let mut progress = |bytes| {
        done += bytes;
        Ok(())
    };
    let mut loader = Loader::new(gpu, &mut progress);
    let rows: Vec<_> = parts.iter().map(|part| Stored::Here(part)).collect();
    let matrix = loader.matrix("test", ty, n_in, &rows).unwrap();
    loader.finish().unwrap();
    assert_eq!(done, parts.iter().map(|part| part.len() as u64).sum::<u64>());
    matrix
}

fn vector(gpu: &Gpu, values: &[f32]) -> Vector {
    let mut progress = |_| Ok(());
    let mut loader = Loader::new(gpu, &mut progress);
    let vector = loader.vector("test", values).unwrap();
    loader.finish().unwrap();
    vector
}

/// The result rows are near the expected values, and nothing else has changed.
fn check(what: &str, space: &Space, after: &[u32], dst: u64, width: usize, rows: usize, expected: &[(f64, f64)]) {
    let mut rest = space.0.clone();
    let start = dst as usize / 4;
    let columns = expected.len() / rows;
    for (i, &(value, off)) in expected.iter().enumerate() {
        let (row, column) = (i / columns, i % columns);
        let at = start + row * width + column;
        let got = f64::from(f32::from_bits(after[at]));
        assert!((got - value).abs() <= off + 1e-25, "{what}: row {row} column {column}: {got}, not {value} +- {off:e}");
        rest[at] = after[at];
    }
    // The columns up to the next multiple of 4 are written too.
    for row in 0..rows {
        let end = start + row * width;
        let pad = end + columns..end + columns.next_multiple_of(4);
        rest[pad.clone()].copy_from_slice(&after[pad]);
    }
    let changed = rest.iter().zip(after).position(|(a, b)| a != b);
    assert_eq!(changed, None, "{what}: word changed, results are at {start}");
}

/// An input without a norm.
fn input(x: u64, width: usize) -> Input<'static> {
    Input { x, width, norm: None, narrow: None }
}

/// The bucket that a run of so many rows is compiled for.
fn bucket(rows: usize) -> usize {
    rows.next_power_of_two()
}

/// Shapes and row counts to try with a type. Making a kernel costs a software driver most of a second, so what depends
/// on the count of rows and not on the format is tried with two formats, and the checked device takes those and a third
/// (what is particular to each format is tried on both devices by looking rows up).
fn shapes(ty: TensorType, checked: bool) -> &'static [(usize, usize, &'static [usize])] {
    const ALL: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 70];
    match ty {
        TensorType::F32 => &[(172, 64, ALL), (172, 5, ALL)],
        TensorType::Q5_K => &[(256, 1, ALL), (1024, 100, ALL)],
        TensorType::Q6_K => &[(256, 5, &[1, 6, 33]), (1024, 100, &[1, 6, 33])],
        _ if checked => &[],
        TensorType::F16 => &[(1024, 100, &[1, 33]), (64, 1, &[1, 33])],
        TensorType::BF16 => &[(172, 5, &[6, 33]), (172, 100, &[6, 33])],
        _ if ty.block_len() == 32 => {
            &[(64, 1, &[6, 33]), (64, 5, &[6, 33]), (256, 64, &[5, 33]), (1024, 100, &[7, 33])]
        }
        _ => &[(256, 1, &[1, 33]), (256, 64, &[1, 40]), (1024, 100, &[1, 70])],
    }
}

#[test]
fn products_of_all_types() {
    for gpu in devices() {
        for ty in types() {
            for &(n_in, n_out, counts) in shapes(ty, gpu.checked) {
                products(gpu, &Source::new(1, ty, n_in, n_out).unwrap(), counts);
            }
        }
    }
}

/// Products of so many rows each.
fn products(gpu: &Gpu, source: &Source, counts: &[usize]) {
    let Source { ty, n_in, n_out, .. } = *source;
    let (most, width) = (*counts.iter().max().unwrap(), n_out.next_multiple_of(4));
    let mut random = Random(7);
    let (all_x, all_residual) = (random.units(most * n_in), random.units(most * width));
    let products = source.product(&all_x, most);
    let matrix = source.load(gpu).unwrap();
    for &rows in counts {
        let mut space = Space::new();
        let x = space.put(&all_x[..rows * n_in]);
        // No residual, one elsewhere, one in place.
        let residual = (rows % 3 > 0).then(|| space.put(&all_residual[..rows * width]));
        let dst = residual.filter(|_| rows % 3 == 2).unwrap_or_else(|| space.add(rows * width));
        let m = MatMul {
            parts: &[Term::plain(&matrix)],
            input: input(x, n_in),
            residual,
            dst,
            width,
            rows: Rows::Batch,
            max_rows: bucket(rows),
            logits: false,
        };
        let after = Run::of(rows).over(gpu, &matmul(gpu, &m).unwrap(), &space);
        let expected: Vec<_> = products[..rows * n_out]
            .iter()
            .enumerate()
            .map(|(i, &(value, off))| {
                let added = residual.map_or(0.0, |_| f64::from(all_residual[i / n_out * width + i % n_out]));
                (value + added, off + (value + added).abs() * 2f64.powi(-23))
            })
            .collect();
        check(&format!("{ty} {n_in}x{n_out}, {rows} rows"), &space, &after, dst, width, rows, &expected);
    }
}

#[test]
fn table_rows_of_all_types() {
    for ty in types() {
        let n_in = if ty.block_len() == 1 { 172 } else { 512 };
        let (source, rows, scale) = (Source::new(1, ty, n_in, 37).unwrap(), 5, 1.5);
        let tokens = [36, 0, !2, 7, !0];
        let run = Run { rows, outputs: 1, tokens: &tokens, positions: &[], sampled: [33, 35, 34], listed: &[] };
        for gpu in devices() {
            let table = source.load(gpu).unwrap();
            let mut space = Space::new();
            let dst = space.add(8 * n_in);
            let steps =
                embed(gpu, &Embed { table: &table, scale, index: Index::Token, residual: None, dst, width: n_in })
                    .unwrap();
            let after = run.over(gpu, &steps, &space);
            let expected: Vec<_> = tokens
                .iter()
                .map(|&token| if token < SAMPLED_TOKEN { token } else { run.sampled[!token as usize] } as usize)
                .flat_map(|token| &source.weights[token * n_in..(token + 1) * n_in])
                .map(|&w| f64::from(w) * f64::from(scale))
                // One rounding of the weight, one of the product.
                .map(|w| (w, w.abs() * 2f64.powi(-23)))
                .collect();
            check(&format!("{ty}"), &space, &after, dst, n_in, rows, &expected);
        }
    }
}

#[test]
fn a_norm_is_taken_along() {
    // Rows that end within a group, and that fill the workgroup's memory twice and begin it once more; all spreads.
    let cases = [
        (TensorType::F32, 172, 20),
        (TensorType::F32, 4396, 20),
        (TensorType::Q4_K, 5120, 20),
        (TensorType::Q4_K, 1024, SOME_ROWS + 8),
        (TensorType::Q8_0, 1024, MANY_ROWS),
    ];
    for (ty, n_in, n_out) in cases {
        let (source, eps) = (Source::new(1, ty, n_in, n_out).unwrap(), 1e-3);
        let mut random = Random(3);
        let (x, norm) = (random.units(n_in), random.units(n_in));
        // Small rows, for which epsilon matters.
        let x: Vec<f32> = x.iter().map(|x| x * 0.05).collect();
        // The sum of squares is off by as much as a product, its root by half, the rounded reference by one rounding.
        let expected: Vec<_> =
            source.product(&normed(&x, &norm, eps), 1).into_iter().map(|(value, off)| (value, 2.0 * off)).collect();
        for gpu in devices() {
            let (matrix, norm) = (source.load(gpu).unwrap(), vector(gpu, &norm));
            let mut space = Space::new();
            let (at, dst) = (space.put(&x), space.add(n_out));
            let mut m = MatMul {
                parts: &[Term::plain(&matrix)],
                input: Input { norm: Some(Norm { weight: &norm, eps, added: None }), ..input(at, n_in) },
                residual: None,
                dst,
                width: n_out,
                rows: Rows::Output,
                max_rows: 1,
                logits: false,
            };
            let run = Run { rows: 2, outputs: 1, tokens: &[], positions: &[], sampled: [0; 3], listed: &[] };
            let after = run.over(gpu, &matmul(gpu, &m).unwrap(), &space);
            check(&format!("{ty} {n_out}x{n_in}"), &space, &after, dst, n_out, 1, &expected);
            m.max_rows = 2;
            assert!(matches!(matmul(gpu, &m), Err(Error::Internal(_))));
        }
    }
}

/// Two matrices of different types are two steps: both compute the sum, one stores it.
#[test]
fn a_normed_sum_is_taken_along_and_stored() {
    let (n_in, eps, sum_eps) = (172, 1e-3, 1e-2);
    let sources =
        [Source::new(1, TensorType::BF16, n_in, 20).unwrap(), Source::new(1, TensorType::F32, n_in, 12).unwrap()];
    let mut random = Random(13);
    let (x, y) = (random.units(n_in), random.units(n_in));
    let y: Vec<f32> = y.iter().map(|y| y * 0.05).collect();
    let (norm, added) = (random.units(n_in), random.units(n_in));
    let sum: Vec<f32> = x.iter().zip(normed(&y, &added, sum_eps)).map(|(x, y)| x + y).collect();
    // One rounding more than a norm alone, and the other norm's.
    let products = sources.each_ref().map(|source| source.product(&normed(&sum, &norm, eps), 1));
    let expected: Vec<_> = products.concat().into_iter().map(|(value, off)| (value, 3.0 * off)).collect();
    for gpu in devices() {
        let (a, b) = (sources[0].load(gpu).unwrap(), sources[1].load(gpu).unwrap());
        let (norm, added) = (vector(gpu, &norm), vector(gpu, &added));
        let mut space = Space::new();
        let (at, y) = (space.put(&x), space.put(&y));
        let (sum_at, dst) = (space.add(n_in), space.add(32));
        let added = Added { y, weight: &added, eps: sum_eps, sum: sum_at };
        let m = MatMul {
            parts: &[Term::plain(&a), Term::plain(&b)],
            input: Input { norm: Some(Norm { weight: &norm, eps, added: Some(added) }), ..input(at, n_in) },
            residual: None,
            dst,
            width: 32,
            rows: Rows::Batch,
            max_rows: 1,
            logits: false,
        };
        let after = Run::of(1).over(gpu, &matmul(gpu, &m).unwrap(), &space);
        let sums = sum_at as usize / 4..sum_at as usize / 4 + n_in;
        for (i, (&got, expected)) in after[sums.clone()].iter().zip(&sum).enumerate() {
            let got = f32::from_bits(got);
            assert!((got - expected).abs() <= 1e-5, "sum {i}: {got}, not {expected}");
        }
        space.0[sums.clone()].copy_from_slice(&after[sums]);
        check("a normed sum", &space, &after, dst, 32, 1, &expected);
    }
}

#[test]
fn gated_products() {
    // Rows to try, and whether with a norm.
    type RunCounts = &'static [(usize, bool)];
    let cases: [(_, _, _, _, _, RunCounts); 5] = [
        (TensorType::BF16, TensorType::BF16, 172, Activation::Silu, 1.0, &[(1, true), (9, false)]),
        (TensorType::F32, TensorType::F32, 64, Activation::Silu, 1e6, &[(1, false), (20, false)]),
        (TensorType::F32, TensorType::F32, 64, Activation::Gelu, 1e6, &[(1, false)]),
        (TensorType::Q6_K, TensorType::Q6_K, 256, Activation::Gelu, 1.0, &[(1, true), (7, false), (33, false)]),
        // One layout for the file's two types.
        (TensorType::Q5_0, TensorType::Q3_K, 256, Activation::Silu, 1.0, &[(3, false)]),
    ];
    for (gate_ty, up_ty, n_in, act, size, counts) in cases {
        let n_out = 100;
        let (gate, up) = (Source::new(1, gate_ty, n_in, n_out).unwrap(), Source::new(2, up_ty, n_in, n_out).unwrap());
        let (most, eps) = (33, 1e-5);
        let mut random = Random(11);
        let x: Vec<f32> = random.units(most * n_in).iter().map(|x| x * size).collect();
        let norm: Vec<f32> = random.units(n_in).iter().map(|x| x * size).collect();
        let expected = |x: &[f32], more: f64| -> Vec<(f64, f64)> {
            let up = up.product(x, most);
            let pairs = gate.product(x, most).into_iter().zip(up);
            pairs.map(|(gate, up)| gated_value(act, (gate.0, gate.1 * more), (up.0, up.1 * more))).collect()
        };
        let (plain, normal) = (expected(&x, 1.0), expected(&normed(&x, &norm, eps), 2.0));
        for gpu in devices() {
            let (gate, up, norm) = (gate.load(gpu).unwrap(), up.load(gpu).unwrap(), vector(gpu, &norm));
            for &(rows, with) in counts {
                let mut space = Space::new();
                let at = space.put(&x[..rows * n_in]);
                let dst = space.add(rows * n_out);
                let g = Gated {
                    gate: Term::plain(&gate),
                    up: Some(Term::plain(&up)),
                    act,
                    input: Input { norm: with.then_some(Norm { weight: &norm, eps, added: None }), ..input(at, n_in) },
                    dst,
                    width: n_out,
                    rows: Rows::Batch,
                    max_rows: bucket(rows),
                };
                let after = Run::of(rows).over(gpu, &gated(gpu, &g).unwrap(), &space);
                let expected = if with { &normal } else { &plain };
                let what = format!("{gate_ty} {up_ty} {act:?} {size} {rows} rows");
                check(&what, &space, &after, dst, n_out, rows, &expected[..rows * n_out]);
            }
        }
    }
}

/// Factors and biases on both matrices, and products that nothing gates, with every activation.
#[test]
#[ignore = "long on a software GPU, which compiles many shaders: part of make deep"]
fn activations_with_factors_and_biases() {
    const XIELU: Activation = Activation::Xielu { positive: 0.8, negative: 0.9, linear: 0.5, eps: -1e-6 };
    let cases = [
        (TensorType::F32, Activation::Silu, 2),
        (TensorType::Q8_0, Activation::ClampedSwiglu, 2),
        (TensorType::Q4_0, Activation::Sigmoid, 2),
        (TensorType::F16, Activation::Relu2, 1),
        (TensorType::F32, XIELU, 1),
        (TensorType::F32, Activation::Gelu, 1),
    ];
    let (n_in, n_out) = (64, 20);
    for (ty, act, sides) in cases {
        let sources = [1, 2].map(|seed| Source::new(seed, ty, n_in, n_out).unwrap());
        let mut random = Random(4);
        let x: Vec<f32> = random.units(20 * n_in).iter().map(|x| x * 4.0).collect();
        let (biases, scales) = ([random.units(n_out), random.units(n_out)], [1.5, -0.75]);
        let side = |i: usize, rows: usize| -> Vec<(f64, f64)> {
            let product = sources[i].product(&x, rows).into_iter().enumerate();
            let (scale, bias) = (f64::from(scales[i]), |at: usize| f64::from(biases[i][at % n_out]));
            product.map(|(at, (y, off))| (y * scale + bias(at), off * 2.0 + bias(at).abs() * 1e-6)).collect()
        };
        for gpu in devices() {
            let matrices = sources.each_ref().map(|source| source.load(gpu).unwrap());
            let vectors = biases.each_ref().map(|bias| vector(gpu, bias));
            let term = |i: usize| Term { scale: Some(scales[i]), bias: Some(&vectors[i]), ..Term::plain(&matrices[i]) };
            for rows in [1, 3, 20] {
                let mut space = Space::new();
                let at = space.put(&x[..rows * n_in]);
                let dst = space.add(rows * n_out);
                let g = Gated {
                    gate: term(0),
                    up: (sides == 2).then(|| term(1)),
                    act,
                    input: input(at, n_in),
                    dst,
                    width: n_out,
                    rows: Rows::Batch,
                    max_rows: bucket(rows),
                };
                let after = Run::of(rows).over(gpu, &gated(gpu, &g).unwrap(), &space);
                let ups = if sides == 2 { side(1, rows) } else { vec![(1.0, 0.0); rows * n_out] };
                let expected: Vec<_> =
                    side(0, rows).into_iter().zip(ups).map(|(gate, up)| gated_value(act, gate, up)).collect();
                check(&format!("{ty} {act:?} {rows} rows"), &space, &after, dst, n_out, rows, &expected);
            }
        }
    }
}

#[test]
fn a_factor_is_on_the_product_alone() {
    let (n_in, n_out) = (64, 12);
    let source = Source::new(1, TensorType::Q8_0, n_in, n_out).unwrap();
    let mut random = Random(8);
    let (x, bias, residual) = (random.units(9 * n_in), random.units(n_out), random.units(9 * n_out));
    for gpu in devices() {
        let (matrix, bound) = (source.load(gpu).unwrap(), vector(gpu, &bias));
        for rows in [1, 9] {
            let mut space = Space::new();
            let at = space.put(&x[..rows * n_in]);
            let dst = space.put(&residual[..rows * n_out]);
            let m = MatMul {
                parts: &[Term { scale: Some(2.5), bias: Some(&bound), ..Term::plain(&matrix) }],
                input: input(at, n_in),
                residual: Some(dst),
                dst,
                width: n_out,
                rows: Rows::Batch,
                max_rows: bucket(rows),
                logits: false,
            };
            let after = Run::of(rows).over(gpu, &matmul(gpu, &m).unwrap(), &space);
            let of = |(i, (y, off)): (usize, (f64, f64))| {
                let more = f64::from(bias[i % n_out]) + f64::from(residual[i]);
                (y * 2.5 + more, off * 2.5 + (y.abs() + 2.0) * 1e-6)
            };
            let expected: Vec<_> = source.product(&x, rows).into_iter().enumerate().map(of).collect();
            check(&format!("{rows} rows"), &space, &after, dst, n_out, rows, &expected);
        }
    }
}

/// Rows of positions, added in place to what is there.
#[test]
fn table_rows_of_positions_are_added() {
    let (n_in, rows, scale) = (64, 3, 0.5);
    let source = Source::new(1, TensorType::F16, n_in, 37).unwrap();
    let residual = Random(3).units(rows * n_in);
    let positions = [36, 0, 9];
    for gpu in devices() {
        let table = source.load(gpu).unwrap();
        let mut space = Space::new();
        let dst = space.put(&residual);
        let e = Embed { table: &table, scale, index: Index::Position, residual: Some(dst), dst, width: n_in };
        let run = Run { rows, outputs: 1, tokens: &[5, 5, 5], positions: &positions, sampled: [0; 3], listed: &[] };
        let after = run.over(gpu, &embed(gpu, &e).unwrap(), &space);
        let weights = positions.iter().flat_map(|&p| &source.weights[p as usize * n_in..][..n_in]);
        let sum = |(&w, &x): (&f32, &f32)| (f64::from(w) * f64::from(scale) + f64::from(x), 1e-6);
        let expected: Vec<_> = weights.zip(&residual).map(sum).collect();
        check("positions", &space, &after, dst, n_in, rows, &expected);
    }
}

#[test]
fn parts_stand_side_by_side_with_their_biases() {
    let n_in = 256;
    let sources = [(TensorType::Q4_K, 64), (TensorType::Q6_K, 4), (TensorType::Q4_K, 9)]
        .map(|(ty, n_out)| Source::new(1, ty, n_in, n_out).unwrap());
    let mut random = Random(5);
    let (x, width) = (random.units(40 * n_in), 80);
    let biases = [random.units(64), Vec::new(), random.units(9)];
    let products: Vec<_> = sources.iter().map(|source| source.product(&x, 40)).collect();
    for gpu in devices() {
        let matrices: Vec<_> = sources.iter().map(|source| source.load(gpu).unwrap()).collect();
        let vectors: Vec<_> = biases.iter().map(|bias| (!bias.is_empty()).then(|| vector(gpu, bias))).collect();
        let parts = matrices.iter().zip(&vectors).map(|(m, bias)| Term { bias: bias.as_ref(), ..Term::plain(m) });
        let parts: Vec<_> = parts.collect();
        // The first and the last are one matrix for a device, too.
        let joined = load(gpu, TensorType::Q4_K, n_in, &[&sources[0].bytes, &sources[2].bytes]);
        let joined_bias = vector(gpu, &[&biases[0][..], &biases[2]].concat());
        let joined = [Term { bias: Some(&joined_bias), ..Term::plain(&joined) }];
        for rows in [2, 40] {
            for (parts, places) in [(&parts[..], &[0, 64, 68][..]), (&joined, &[0, 0, 64])] {
                let mut space = Space::new();
                let at = space.put(&x[..rows * n_in]);
                let dst = space.put(&vec![1.0; rows * width]);
                let m = MatMul {
                    parts,
                    input: input(at, n_in),
                    residual: Some(dst),
                    dst,
                    width,
                    rows: Rows::Batch,
                    max_rows: bucket(rows),
                    logits: false,
                };
                let after = Run::of(rows).over(gpu, &matmul(gpu, &m).unwrap(), &space);
                let skipped = parts.len() == 1;
                let end = if skipped { 73 } else { 77 };
                let mut expected = vec![(0.0, 0.0); rows * end];
                for (p, source) in sources.iter().enumerate().filter(|(p, _)| !(skipped && *p == 1)) {
                    for (i, (value, off)) in products[p][..rows * source.n_out].iter().enumerate() {
                        let (row, column) = (i / source.n_out, i % source.n_out);
                        let value = value + 1.0 + biases[p].get(column).map_or(0.0, |&b| f64::from(b));
                        let off = off + (value.abs() + 3.0) * 2f64.powi(-23);
                        expected[row * end + places[p] + column] = (value, off);
                    }
                }
                check(&format!("{} parts, {rows} rows", parts.len()), &space, &after, dst, width, rows, &expected);
            }
        }
    }
}

#[test]
fn slices_and_folded_dispatches_change_nothing() {
    let Some(best) = adapters().into_iter().find(|c| c.score > 0) else { return };
    let mut gpu = Gpu::new(&best, &TestLimits::parse("checked=on").unwrap()).unwrap();
    gpu.caps.max_workgroups = 4;
    let n_out = 150;
    // A binding of 64 or of 128 rows: two or three slices, the last one not full.
    for (ty, n_in, binding) in [(TensorType::Q6_K, 256, 64 * 300), (TensorType::F16, 44, 64 * 128)] {
        gpu.caps.max_binding = binding;
        let (gate, up) = (Source::new(1, ty, n_in, n_out).unwrap(), Source::new(1, ty, n_in, n_out + 2).unwrap());
        let (gate_matrix, bytes) = (gate.load(&gpu).unwrap(), n_out * up.bytes.len() / (n_out + 2));
        let up_matrix = load(&gpu, ty, n_in, &[&up.bytes[..bytes]]);
        assert_eq!(gate_matrix.slices.len(), if binding == 64 * 300 { 2 } else { 3 });
        let mut random = Random(13);
        let (x, bias, width) = (random.units(20 * n_in), random.units(n_out), 152);
        let bias_vector = vector(&gpu, &bias);
        let product = gate.product(&x, 20);
        let ups: Vec<_> = up.product(&x, 20).chunks(n_out + 2).flat_map(|row| row[..n_out].to_vec()).collect();
        for rows in [3, 20] {
            let mut space = Space::new();
            let at = space.put(&x[..rows * n_in]);
            let residual = space.put(&vec![2.0; rows * width]);
            let (dst, gated_dst) = (space.add(rows * width), space.add(rows * width));
            let m = MatMul {
                parts: &[Term { bias: Some(&bias_vector), ..Term::plain(&gate_matrix) }],
                input: input(at, n_in),
                residual: Some(residual),
                dst,
                width,
                rows: Rows::Batch,
                max_rows: bucket(rows),
                logits: false,
            };
            let after = Run::of(rows).over(&gpu, &matmul(&gpu, &m).unwrap(), &space);
            let expected: Vec<_> = (0..rows * n_out)
                .map(|i| {
                    (product[i].0 + 2.0 + f64::from(bias[i % n_out]), product[i].1 + product[i].0.abs() * 1e-6 + 1e-6)
                })
                .collect();
            check(&format!("{ty} {rows} rows"), &space, &after, dst, width, rows, &expected);
            if rows <= VECTOR_ROWS {
                // A few of every slice; tiles without a listed row are left alone.
                let listed = [5, 63, 64, 149];
                let run = Run { listed: &listed, ..Run::of(rows) };
                let few = run.over(&gpu, &matmul(&gpu, &MatMul { logits: true, ..m }).unwrap(), &space);
                let first = dst as usize / 4;
                for at in 0..rows * width {
                    let (i, token) = (first + at, (at % width) as u32);
                    if listed.contains(&token) {
                        assert_eq!(few[i], after[i], "{ty} {rows} rows, token {token}");
                    }
                    if (80..112).contains(&token) {
                        assert_eq!(few[i], space.0[i], "{ty} {rows} rows, token {token} was computed");
                    }
                }
            }

            let g = Gated {
                gate: Term::plain(&gate_matrix),
                up: Some(Term::plain(&up_matrix)),
                act: Activation::Silu,
                input: input(at, n_in),
                dst: gated_dst,
                width,
                rows: Rows::Batch,
                max_rows: bucket(rows),
            };
            let after = Run::of(rows).over(&gpu, &gated(&gpu, &g).unwrap(), &space);
            let expected: Vec<_> = product[..rows * n_out]
                .iter()
                .zip(&ups)
                .map(|(&gate, &up)| gated_value(Activation::Silu, gate, up))
                .map(|(value, off)| (value, off + value.abs() * 1e-6))
                .collect();
            check(&format!("gated {ty} {rows} rows"), &space, &after, gated_dst, width, rows, &expected);
        }
        let tokens = [149, 0, 63, 64, 127, 128];
        let mut space = Space::new();
        let dst = space.add(6 * n_in);
        let steps = embed(
            &gpu,
            &Embed { table: &gate_matrix, scale: 1.0, index: Index::Token, residual: None, dst, width: n_in },
        )
        .unwrap();
        // More rows than this device may have workgroups in a dimension: two runs' worth.
        for tokens in tokens.chunks(3) {
            let after = Run { rows: 3, outputs: 0, tokens, positions: &[], sampled: [0; 3], listed: &[] }
                .over(&gpu, &steps, &space);
            let rows = tokens.iter().flat_map(|&t| &gate.weights[t as usize * n_in..][..n_in]);
            let expected: Vec<_> = rows.map(|&w| (f64::from(w), f64::from(w.abs()) * 2f64.powi(-23))).collect();
            check(&format!("table {ty}"), &space, &after, dst, n_in, 3, &expected);
        }
    }
    gpu.caps.max_binding = 4096;
    let mut progress = |_| Ok(());
    let refused =
        Loader::new(&gpu, &mut progress).matrix("a wide one", TensorType::F32, 64, &[Stored::Here(&[0; 256])]);
    assert!(matches!(refused, Err(Error::Unsupported(message)) if message.contains("a wide one")));
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let Some(gpu) = devices().first() else { return };
    let refused = |ty: TensorType, n_in: usize, bytes: &[u8]| {
        let mut progress = |_| Ok(());
        Loader::new(gpu, &mut progress).matrix("blk.0", ty, n_in, &[Stored::Here(bytes)]).map(drop).unwrap_err()
    };
    assert!(matches!(refused(TensorType::F32, 6, &[0; 48]), Error::Unsupported(m) if m.contains("Rows of 6 weights")));
    assert!(matches!(refused(TensorType::Q4_K, 64, &[0; 36]), Error::Unsupported(m) if m.contains("64 weights")));
    assert!(matches!(refused(TensorType::Q8_K, 256, &[0; 292]), Error::Unsupported(m) if m.contains("Q8_K")));
    assert!(matches!(refused(TensorType::Q8_0, 32, &[0; 33]), Error::Internal(m) if m.contains("blk.0")));
    // A weight or scale that is infinite, in each format: all bits set.
    for ty in types().filter(|&ty| ty != TensorType::MXFP4 && ty != TensorType::NVFP4) {
        let n_in = ty.block_len().max(32);
        let bytes = vec![0xff; ty.row_bytes(n_in as u64).unwrap() as usize];
        assert!(matches!(refused(ty, n_in, &bytes), Error::Model(m) if m.contains("blk.0")), "{ty}");
    }
    let mut progress = |_| Ok(());
    assert!(matches!(Loader::new(gpu, &mut progress).vector("norm", &[f32::NAN]), Err(Error::Model(_))));
    let mut cancelled = |_| Err(Error::Cancelled);
    let mut loader = Loader::new(gpu, &mut cancelled);
    assert!(matches!(loader.matrix("blk.0", TensorType::F32, 4, &[Stored::Here(&[0; 16])]), Err(Error::Cancelled)));

    let (a, b) = (
        Source::new(1, TensorType::Q4_0, 64, 4).unwrap().load(gpu).unwrap(),
        Source::new(1, TensorType::Q8_0, 64, 4).unwrap().load(gpu).unwrap(),
    );
    let g = Gated {
        gate: Term::plain(&a),
        up: Some(Term::plain(&b)),
        act: Activation::Silu,
        input: input(0, 64),
        dst: 0,
        width: 4,
        rows: Rows::Batch,
        max_rows: 1,
    };
    let Err(Error::Unsupported(message)) = gated(gpu, &g) else { panic!("two layouts in one gate") };
    assert!(message.contains("Q4_0") && message.contains("Q8_0"), "{message}");
}

#[test]
fn formats_keep_their_size() {
    for (ty, block) in [
        (TensorType::F32, 1024),
        (TensorType::F16, 512),
        (TensorType::Q8_0, 8 * 34),
        (TensorType::Q4_0, 8 * 18),
        (TensorType::Q4_K, 144),
        (TensorType::Q5_K, 176),
        (TensorType::Q6_K, 210),
        (TensorType::MXFP4, 8 * 18),
        (TensorType::IQ4_NL, 8 * 18),
        (TensorType::Q3_K, 8 * 48),
    ] {
        for gpu in devices() {
            // But for the alignment of the second binding, and of the buffer.
            let bytes: u64 = Matrix::slice_bytes(gpu, "test", ty, 512, 13).unwrap().iter().sum();
            assert!((16 * 2 * block..16 * 2 * block + 256 + 16).contains(&bytes), "{ty}: {bytes}");
        }
    }
}

/// The kernels that `tools/gpu_lab.py` judges, for small and large matrices of the usual types; nothing is computed.
#[test]
#[ignore = "makes texts for tools/gpu_lab.py"]
fn texts_for_the_lab() {
    if devices().is_empty() {
        return;
    }
    let gpu = &*Gpu::best().unwrap();
    use TensorType::{F16, MXFP4, Q4_0, Q4_K, Q6_K, Q8_0};
    let n_in = 1024;
    let numbers = vector(gpu, &vec![1.0; n_in]);
    let added = Added { y: 1 << 20, weight: &numbers, eps: 1e-6, sum: 1 << 21 };
    let normed = Input { norm: Some(Norm { weight: &numbers, eps: 1e-6, added: None }), ..input(0, n_in) };
    let made = |narrow| Input { narrow: Some((narrow, 1 << 23)), ..input(0, n_in) };
    let summed = Input { norm: Some(Norm { weight: &numbers, eps: 1e-6, added: Some(added) }), ..input(0, n_in) };
    for ty in [Q4_0, Q8_0, Q4_K, Q6_K, MXFP4, F16] {
        for n_out in [1024, 4096] {
            let matrix = Source::new(1, ty, n_in, n_out).unwrap().load(gpu).unwrap();
            let (dst, width, rows) = (1 << 22, n_out, Rows::Batch);
            let m = MatMul {
                parts: &[Term::plain(&matrix)],
                input: input(0, n_in),
                residual: None,
                dst,
                width,
                rows,
                max_rows: 1,
                logits: false,
            };
            let gate = Term::plain(&matrix);
            let g = Gated { gate, up: Some(gate), act: Activation::Silu, input: normed, dst, width, rows, max_rows: 1 };
            let products = [
                MatMul { ..m },
                MatMul { input: normed, ..m },
                MatMul { input: summed, ..m },
                MatMul { input: normed, logits: true, ..m },
                MatMul { max_rows: 8, ..m },
                MatMul { max_rows: 16, ..m },
                MatMul { max_rows: 64, ..m },
            ];
            products.iter().for_each(|product| drop(matmul(gpu, product).unwrap()));
            if let Some(narrow) = Narrow::of(gpu, matrix.layout.format) {
                for max_rows in [16, 512] {
                    matmul(gpu, &MatMul { input: made(narrow), max_rows, ..m }).unwrap();
                    gated(gpu, &Gated { input: made(narrow), max_rows, ..g }).unwrap();
                }
            }
            let many = Gated { input: input(0, n_in), max_rows: 64, ..g };
            let gates = [Gated { ..g }, Gated { input: summed, ..g }, many];
            gates.iter().for_each(|gate| drop(gated(gpu, gate).unwrap()));
        }
    }
}
