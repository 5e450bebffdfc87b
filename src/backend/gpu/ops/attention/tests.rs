#![allow(clippy::unwrap_used)]

use super::qkv::{Norms, Source, Vectors};
use super::*;
use crate::backend::KvTypes;
use crate::backend::gpu::testing::fixture::{Fixture, Frame, Head, Numbers};
use crate::backend::gpu::testing::harness::{devices, storage};
use crate::backend::gpu::weights::rope_table::RopeTable;
use crate::backend::rope::Rope;
use crate::graph::{HeadNorm, NormSpan, NormSpec, RopeKind, RopeScaling, Values, WeightId};
use crate::quant::TensorType::{self, F16, F32, Q8_0};

/// Half a unit in the last place of 1.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// A kernel, and the batches to run on it: rows, cells in use, window.
struct Case {
    types: KvTypes,
    heads: (usize, usize),
    dims: (usize, usize),
    softcap: Option<f32>,
    max_rows: usize,
    batches: &'static [(usize, usize, u32)],
    bidirectional: bool,
    /// Factor of the scores.
    sharp: f32,
    /// One sequence has all cells.
    alone: bool,
    /// A cell that some rows see has NaN for values.
    broken: bool,
}

/// Decodes: all the numbers of cells around blocks, with windows that end within a block and before it.
const ONE: &[(usize, usize, u32)] =
    &[(1, 1, 0), (1, 63, 0), (1, 64, 1), (1, 65, 0), (1, 65, 20), (1, 300, 0), (1, 1000, 0), (1, 1000, 200)];
const FEW: &[(usize, usize, u32)] = &[(1, 65, 0), (2, 300, 70), (2, 1000, 0)];
const SOME: &[(usize, usize, u32)] = &[(5, 64, 0), (5, 300, 0), (3, 1000, 130)];
const MANY: &[(usize, usize, u32)] = &[(33, 65, 0), (33, 300, 40), (20, 1000, 0)];
/// More cells than are looked through at once, four times over.
const LONG: &[(usize, usize, u32)] = &[(1, 9000, 0), (1, 9000, 1000), (2, 9000, 5000)];

/// A cell's key and value.
type KeyValue = (Vec<f64>, Vec<f64>);

const fn case(
    ty: TensorType,
    heads: (usize, usize),
    dims: (usize, usize),
    softcap: Option<f32>,
    max_rows: usize,
    batches: &'static [(usize, usize, u32)],
) -> Case {
    Case {
        types: KvTypes { k: ty, v: ty },
        heads,
        dims,
        softcap,
        max_rows,
        batches,
        bidirectional: false,
        sharp: 1.0,
        alone: false,
        broken: false,
    }
}

fn check_all(cases: &[Case]) {
    for gpu in devices() {
        cases.iter().for_each(|case| check(gpu, case));
    }
}

#[test]
fn one_row_of_single_heads() {
    check_all(&[
        case(F16, (2, 2), (64, 64), None, 1, ONE),
        case(F32, (4, 2), (8, 8), None, 1, ONE),
        case(Q8_0, (3, 1), (40, 256), Some(5.0), 1, ONE),
    ]);
}

#[test]
#[ignore = "long on a software GPU, which compiles many shaders: part of make deep"]
fn keys_and_values_of_different_types() {
    for (k, v) in [(F32, F16), (F32, Q8_0), (F16, F32), (F16, Q8_0), (Q8_0, F32), (Q8_0, F16)] {
        let types = KvTypes { k, v };
        check_all(&[
            Case { types, ..case(k, (3, 1), (40, 64), None, 2, FEW) },
            Case { types, ..case(k, (8, 2), (64, 40), Some(5.0), 64, SOME) },
        ]);
    }
}

#[test]
fn one_row_of_groups() {
    check_all(&[case(F16, (8, 2), (128, 128), None, 1, ONE), case(Q8_0, (7, 1), (80, 80), None, 1, ONE)]);
}

#[test]
fn few_rows() {
    check_all(&[
        case(F16, (1, 1), (80, 80), Some(8.0), 2, FEW),
        case(Q8_0, (4, 2), (64, 128), None, 2, FEW),
        case(F16, (4, 1), (256, 256), Some(3.0), 8, SOME),
        case(F32, (1, 1), (8, 12), None, 2, LONG),
    ]);
}

#[test]
fn many_rows() {
    check_all(&[
        case(F16, (4, 2), (128, 128), None, 64, MANY),
        case(F32, (1, 1), (40, 24), None, 64, MANY),
        case(Q8_0, (7, 1), (128, 64), None, 64, MANY),
    ]);
}

#[test]
fn rows_that_see_what_follows() {
    let both = |case| Case { bidirectional: true, ..case };
    check_all(&[
        both(case(F16, (4, 2), (64, 64), None, 64, MANY)),
        both(case(F32, (1, 1), (40, 24), Some(5.0), 8, SOME)),
        both(case(Q8_0, (4, 1), (64, 64), None, 1, ONE)),
    ]);
}

/// Blocks of all sizes, with heads of other sizes than these, and without matrix instructions where the cache is F32.
#[test]
fn attention_by_matrix_instructions() {
    for gpu in devices() {
        if gpu.caps.matrices.is_none() {
            println!("skipped: {} has no matrix instructions", gpu.info.name);
            continue;
        }
        let wide: &[(usize, usize, u32)] = &[(9, 200, 0), (64, 300, 0)];
        let long: &[(usize, usize, u32)] = &[(9, 3500, 1000)];
        let cases = [
            case(F16, (4, 2), (128, 128), None, 64, MANY),
            case(F16, (1, 1), (64, 64), None, 16, &[(9, 65, 0), (16, 300, 70)]),
            case(Q8_0, (7, 1), (128, 64), None, 64, MANY),
            case(F16, (8, 2), (64, 128), Some(5.0), 64, SOME),
            Case { bidirectional: true, ..case(Q8_0, (4, 2), (64, 64), None, 64, SOME) },
            Case { types: KvTypes { k: F16, v: Q8_0 }, ..case(F16, (3, 1), (192, 128), None, 64, MANY) },
            Case { sharp: 8.0, ..case(F16, (2, 2), (256, 256), None, 64, wide) },
            Case { sharp: 20.0, ..case(Q8_0, (4, 1), (128, 128), None, 64, wide) },
            case(F16, (2, 1), (64, 32), None, 16, long),
            Case { alone: true, ..case(F16, (2, 1), (128, 128), None, 64, &[(33, 300, 0), (64, 500, 150)]) },
            Case { alone: true, sharp: 8.0, ..case(Q8_0, (1, 1), (64, 64), Some(5.0), 64, &[(40, 320, 0)]) },
            Case { alone: true, bidirectional: true, ..case(F16, (1, 1), (64, 64), None, 64, &[(64, 330, 90)]) },
            Case { broken: true, ..case(F16, (2, 1), (64, 64), None, 64, &[(33, 300, 0)]) },
            Case { broken: true, ..case(Q8_0, (1, 1), (64, 64), None, 64, &[(40, 120, 0)]) },
            case(F32, (4, 2), (128, 128), None, 64, &[(33, 65, 0)]),
            case(F16, (1, 1), (80, 80), None, 64, &[(33, 65, 0)]),
        ];
        cases.iter().for_each(|case| check(gpu, case));
    }
}

fn spec(case: &Case, window: u32) -> AttentionSpec {
    let plain = AttentionSpec::new(0, case.heads.0, case.heads.1, case.dims.0);
    AttentionSpec {
        bidirectional: case.bidirectional,
        head_dim_v: case.dims.1,
        softcap: case.softcap,
        window,
        scale: plain.scale * case.sharp,
        ..plain
    }
}

/// Three sequences in a pseudorandom order, a prefix that two of them share, and free cells in between. The rows have
/// cells of the last third; where there are several rows, one belongs to a sequence without cells.
fn batch(rows: usize, n_kv: usize, cells: usize, numbers: &mut Numbers) -> Frame {
    let mut next = [0i32; 3];
    let mut frame = Frame { n_kv, ..Frame::default() };
    for cell in 0..cells {
        // Nothing in a free cell or beyond those in use may be seen.
        let mut record = (0, if cell < n_kv { 0 } else { 0xff });
        if cell < n_kv && (cell + 1 == n_kv || numbers.below(6) != 0) {
            let s = numbers.below(3);
            record = (next[s], 1 << s);
            if cell < n_kv / 8 && s < 2 {
                record.1 = 3;
                next[1 - s] += 1;
            }
            next[s] += 1;
        }
        frame.cells.push(record);
    }
    for row in 0..rows {
        let cell = (n_kv - 1).saturating_sub(numbers.below(1 + n_kv / 3) * usize::from(rows > 1));
        let (position, sequences) = frame.cells[cell];
        // A free cell's row looks at the third sequence from wherever its position is.
        let sequences = if rows > 1 && row == 1 { 1 << 9 } else { sequences };
        let (position, sequences) = if sequences == 0 { (next[2] / 2, 4) } else { (position, sequences) };
        frame.rows.push((position, sequences, cell as u32));
    }
    frame
}

/// The last rows of a prompt, whose cells are in order.
fn prompt(rows: usize, n_kv: usize, cells: usize) -> Frame {
    let cells = (0..cells).map(|cell| if cell < n_kv { (cell as i32, 1) } else { (0, 0xff) }).collect();
    let rows = (n_kv - rows..n_kv).map(|cell| (cell as i32, 1, cell as u32)).collect();
    Frame { n_kv, cells, rows, ..Frame::default() }
}

fn check(gpu: &Gpu, case: &Case) {
    let (n_head, n_head_kv) = case.heads;
    let (dk, dv) = case.dims;
    let cells = case.batches.iter().map(|batch| batch.1).max().unwrap() + 24;
    let layout = KvLayout::new(case.types, n_head_kv, dk, dv, cells).unwrap();
    let mut numbers = Numbers((dk + n_head) as u64);
    for (i, &(rows, n_kv, window)) in case.batches.iter().enumerate() {
        let mut frame = match case.alone {
            true => prompt(rows, n_kv, layout.cells),
            false => batch(rows, n_kv, layout.cells, &mut numbers),
        };
        // Cells that nobody may see hold NaN: all bits, which is -1 times NaN in Q8_0.
        let mut cache = [layout.k_bytes(), layout.v_bytes()].map(|n| vec![0xffu8; n as usize]);
        for (side, key) in [true, false].into_iter().enumerate() {
            for (head, cell) in (0..n_head_kv).flat_map(|h| (0..n_kv).map(move |c| (h, c))) {
                if frame.cells[cell].1 != 0 {
                    let head = Head { layout: &layout, key, head, cell };
                    head.encode(&mut cache[side], &numbers.take(head.dim()));
                }
            }
        }
        if case.broken {
            let cell = (0..n_kv).find(|&cell| frame.cells[cell].1 == frame.rows[0].1).unwrap();
            for head in 0..n_head_kv {
                Head { layout: &layout, key: false, head, cell }.encode(&mut cache[1], &vec![f32::NAN; dv]);
            }
        }
        // Queries, something beside them, and room for one row more than there is.
        let (width, out_width) = (n_head * dk + 8, n_head * dv);
        let mut ws: Vec<f32> = numbers.take((rows + 1) * width).iter().map(|x| x * 6.0).collect();
        let out = ws.len();
        ws.extend(vec![-7.0; (rows + 1) * out_width]);
        let queries = Queries {
            q: RowSpan { offset: 0, width },
            out: RowSpan { offset: out * 4, width: out_width },
            rows: Rows::Batch,
            max_rows: case.max_rows,
            sinks: None,
        };
        let spec = spec(case, window);
        let steps = attend(gpu, &spec, &layout, &queries, None).unwrap();
        let suits = |ty| ty != F32;
        let halves = gpu.caps.matrices.is_some_and(|m| {
            let aligned = dk % m.block as usize == 0 && dv % (2 * m.block as usize) == 0;
            aligned && suits(case.types.k) && suits(case.types.v) && case.max_rows > VECTOR_ROWS
        });
        assert_eq!(steps[0].kernel.name, if halves { "attention_halves" } else { "attention" });
        let expected = reference(&spec, &layout, &frame, &cache, &ws, width, halves);

        let whole = n_kv.next_multiple_of(BLOCK) as u32;
        let blocks = whole / BLOCK as u32;
        let chosen = splits(rows, n_kv);
        let several = (blocks.div_ceil(3), 3 * BLOCK as u32);
        let ways = [(1, whole), chosen, several, (blocks, BLOCK as u32)];
        // All ways on the first and last batch, one way on the others.
        let all = i == 0 || i + 1 == case.batches.len();
        for (n, &way) in ways.iter().enumerate() {
            if !all && n != i % ways.len() {
                continue;
            }
            frame.splits = way;
            let partials = partial_bytes(n_head, dv);
            assert!(rows as u64 * u64::from(way.0) <= 512, "the test's own splits fit the partials");
            let fixture = Fixture::new(gpu, &ws, &frame.words(), [&cache[0], &cache[1]], partials);
            fixture.run(&steps, frame.counts());
            let got = fixture.workspace(ws.len());
            let what = format!(
                "{} {:?} {:?} rows {rows} cells {n_kv} window {window} splits {way:?}",
                case.types, case.heads, case.dims
            );
            assert_eq!(got[..out], ws[..out], "{what}: queries changed");
            assert!(got[out + rows * out_width..].iter().all(|&x| x == -7.0), "{what}: rows beyond were written");
            for (i, (&y, &(exact, bound))) in got[out..].iter().zip(&expected).enumerate() {
                let (row, head, at) = (i / out_width, i % out_width / dv, i % dv);
                let off = (f64::from(y) - exact).abs();
                assert!(
                    off <= bound || y.is_nan() && exact.is_nan(),
                    "{what}: row {row} head {head} value {at}: {y} for {exact}, bound {bound:e}"
                );
            }
        }
    }
}

/// Attention by its definition, with the error that f32 may make, and halves where there are some.
fn reference(
    spec: &AttentionSpec,
    layout: &KvLayout,
    frame: &Frame,
    cache: &[Vec<u8>; 2],
    ws: &[f32],
    width: usize,
    halves: bool,
) -> Vec<(f64, f64)> {
    let (dk, dv) = (spec.head_dim_k, spec.head_dim_v);
    let decode =
        |key: bool, head: usize, cell: usize| Head { layout, key, head, cell }.decode(&cache[usize::from(!key)]);
    let mut out = Vec::new();
    let used = |cell: &usize| frame.cells[*cell].1 != 0;
    let decoded: Vec<Vec<Option<KeyValue>>> = (0..spec.n_head_kv)
        .map(|h| {
            let both = |cell| Some((decode(true, h, cell), decode(false, h, cell)));
            (0..frame.n_kv).map(|cell| if used(&cell) { both(cell) } else { None }).collect()
        })
        .collect();
    for (row, &(position, sequences, _)) in frame.rows.iter().enumerate() {
        for head in 0..spec.n_head {
            let q = &ws[row * width + head * dk..][..dk];
            let cache = &decoded[head / (spec.n_head / spec.n_head_kv)];
            // Score, sum of its terms' magnitudes, value.
            let mut seen: Vec<(f64, f64, &[f64])> = Vec::new();
            for (cell, pair) in cache.iter().enumerate() {
                let (cell_position, cell_sequences) = frame.cells[cell];
                let back = position - cell_position;
                let near = match spec.bidirectional {
                    true => spec.window == 0 || back.abs() <= spec.window as i32 / 2,
                    false => back >= 0 && (spec.window == 0 || back < spec.window as i32),
                };
                let Some((k, v)) = pair.as_ref().filter(|_| cell_sequences & sequences != 0 && near) else {
                    continue;
                };
                let terms = || q.iter().zip(k).map(|(&q, k)| f64::from(q) * k * f64::from(spec.scale));
                let (plain, magnitude) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                let score = spec.softcap.map_or(plain, |cap| f64::from(cap) * (plain / f64::from(cap)).tanh());
                seen.push((score, magnitude, v));
            }
            let top = seen.iter().map(|s| s.0).fold(f64::NEG_INFINITY, f64::max);
            let least = seen.iter().map(|s| s.0).fold(f64::INFINITY, f64::min);
            let weights: Vec<f64> = seen.iter().map(|s| (s.0 - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            let blocks = frame.n_kv.div_ceil(BLOCK) as f64;
            let log2 = std::f64::consts::LOG2_E;
            for i in 0..dv {
                if seen.is_empty() {
                    out.push((0.0, 0.0));
                    continue;
                }
                let y = seen.iter().zip(&weights).map(|(s, w)| w * s.2[i]).sum::<f64>() / total;
                let mut bound = 0.0;
                for (s, w) in seen.iter().zip(&weights) {
                    // The score: factor, products, sums; the cap's function; the score's own rounding.
                    let mut e = (dk as f64 + 8.0) * U * s.1 + 4.0 * U * top.abs().max(least.abs());
                    e += spec.softcap.map_or(0.0, |cap| f64::from(cap) * 5e-7);
                    // Powers of two to 3 + 2|x| units of the last place: the weight's own, and a factor for each block
                    // and split, whose exponents together span the scores at most twice.
                    e += 2.0 * U * (3.0 + 2.0 * log2 * (top - s.0));
                    e += 2.0 * U * (3.0 * 2.0 * blocks + 4.0 * log2 * (top - least));
                    // Sums of weights and of weighted values.
                    e += (frame.n_kv as f64 + 8.0) * U;
                    // Queries, keys and values, and weights, of which the smallest may be taken for zero.
                    let (half, least_half) = if halves { (2f64.powi(-10), 2f64.powi(-22)) } else { (0.0, 0.0) };
                    e += half * (s.1 + 2.0);
                    bound += (w * e + least_half) * (s.2[i].abs() + y.abs()) + w * 256.0 * least_half;
                }
                out.push((y, bound / total));
            }
        }
    }
    out
}

/// In one dispatch less, the same results and the same cell.
#[test]
fn heads_prepared_by_attention_are_those_prepared_before() {
    let plain = |heads: (usize, usize), dims: (usize, usize)| AttentionSpec {
        head_dim_v: dims.1,
        ..AttentionSpec::new(0, heads.0, heads.1, dims.0)
    };
    let norm = |dk| Some(HeadNorm { norm: NormSpec::rms(WeightId(0), 1e-5), span: NormSpan::Head(dk) });
    let cases = [
        (AttentionSpec { q_norm: norm(128), k_norm: norm(128), ..plain((4, 2), (128, 128)) }, F16),
        (AttentionSpec { window: 200, ..plain((14, 2), (64, 64)) }, Q8_0),
        (AttentionSpec { softcap: Some(5.0), ..plain((8, 1), (256, 256)) }, F16),
        (AttentionSpec { writes: false, q_norm: norm(40), ..plain((3, 1), (40, 256)) }, F32),
        (AttentionSpec { values: Values::KeyPrefix, ..plain((4, 1), (72, 64)) }, F32),
    ];
    for (gpu, (spec, ty)) in devices().iter().flat_map(|gpu| cases.iter().map(move |case| (gpu, case))) {
        let (dk, n_kv) = (spec.head_dim_k, 500);
        let layout = KvLayout::new(*ty, spec.n_head_kv, dk, spec.head_dim_v, n_kv).unwrap();
        let mut numbers = Numbers(dk as u64);
        let mut frame = batch(1, n_kv, layout.cells, &mut numbers);
        let mut cache = [layout.k_bytes(), layout.v_bytes()].map(|n| vec![0u8; n as usize]);
        for (side, key) in [true, false].into_iter().enumerate() {
            for (head, cell) in (0..spec.n_head_kv).flat_map(|h| (0..n_kv).map(move |c| (h, c))) {
                let head = Head { layout: &layout, key, head, cell };
                head.encode(&mut cache[side], &numbers.take(head.dim()));
            }
        }
        let width = spec.q_width() + if spec.writes { spec.kv_width() } else { 0 };
        let ws = numbers.take(width + spec.n_head * spec.head_dim_v);
        let table = RopeTable::new(gpu, RopeKind::Neox, &Rope::new(dk / 2, 1e4, &[], RopeScaling::None)).unwrap();
        let weights = numbers.take(dk);
        let weight = || BufferRef::Weight(storage(gpu, bytemuck::cast_slice(&weights)), 0, 4 * dk as u64);
        let vectors = |norm: Option<HeadNorm>| Vectors { weight: norm.map(|_| weight()), bias: None };
        let norms = Norms { q: vectors(spec.q_norm), k: vectors(spec.k_norm) };
        let q = RowSpan { offset: 0, width };
        let source = Source::side_by_side(spec, q);
        let preparation = Preparation { spec, layout: &layout, rope: Some(&table), norms: &norms, source: &source };
        let out = RowSpan { offset: 4 * width, width: spec.n_head * spec.head_dim_v };
        let queries = Queries { q, out, rows: Rows::Batch, max_rows: 1, sinks: None };
        let mut apart = preparation.steps(gpu).unwrap();
        apart.extend(attend(gpu, spec, &layout, &queries, None).unwrap());
        let ways = [steps(gpu, &preparation, &queries).unwrap(), apart];
        assert_eq!(ways.each_ref().map(Vec::len), [2, 3]);
        assert_eq!(count(gpu, spec, 1).unwrap(), 2);

        for splits in [(1, 512), (3, 192), (8, 64)] {
            frame.splits = splits;
            let [together, apart] = ways.each_ref().map(|steps| {
                let partials = partial_bytes(spec.n_head, spec.head_dim_v);
                let fixture = Fixture::new(gpu, &ws, &frame.words(), [&cache[0], &cache[1]], partials);
                fixture.run(steps, frame.counts());
                (fixture.workspace(ws.len()), fixture.cache(&layout))
            });
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
            for (i, (&a, &b)) in together.0.iter().zip(&apart.0).enumerate().skip(width) {
                assert!(close(a.into(), b.into()), "{spec:?} {splits:?} result {}: {a} {b}", i - width);
            }
            // The row's cell and no other; a number near the middle between two steps of its type may fall to either.
            let new = frame.rows[0].2 as usize;
            for (side, key) in [true, false].into_iter().enumerate() {
                for (head, cell) in (0..spec.n_head_kv).flat_map(|h| (0..n_kv).map(move |c| (h, c))) {
                    let place = Head { layout: &layout, key, head, cell };
                    let of = |bytes: &[Vec<u8>; 2]| place.decode(&bytes[side]);
                    let (got, expected) = (of(&together.1), of(&apart.1));
                    if cell == new {
                        let step = 2.0 * place.rounding(&expected).into_iter().fold(1e-5, f64::max);
                        assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= step), "{spec:?} {splits:?}");
                        assert_eq!(got != of(&cache), spec.writes, "{spec:?}");
                    } else {
                        assert_eq!(got, of(&cache), "{spec:?} {splits:?} cell {cell}");
                    }
                }
            }
        }
    }
}

#[test]
fn splits_fill_the_device_and_fit_the_partials() {
    for rows in [1, 2, 5, 8, 33, 64, 300, 512] {
        for n_kv in [1, 63, 64, 65, 1000, 4096, 131_072] {
            let (count, each) = splits(rows, n_kv);
            assert!(count >= 1 && each >= 64 && each % 64 == 0, "{rows} {n_kv}");
            assert!(count * each >= n_kv as u32 && (count - 1) * each < n_kv as u32, "{rows} {n_kv}: an empty split");
            assert!(count == 1 || rows as u32 * count <= 512, "{rows} {n_kv}");
        }
    }
    assert_eq!([splits(1, 64).0, splits(1, 512).0, splits(1, 4096).0, splits(512, 4096).0], [1, 8, 64, 1]);
}

#[test]
fn every_head_has_a_tile_that_fits() {
    for (k, v) in (1..=64).flat_map(|k| (1..=64).map(move |v| (k, v))) {
        let counts = [1, 2, 3, 4, 7, 8, 16, 71, 512];
        for (vectors, few) in counts.into_iter().flat_map(|vectors| [(vectors, false), (vectors, true)]) {
            let tile = Tile::new(k, v, vectors, few).unwrap();
            assert!(tile.memory() <= MEMORY && tile.threads <= 128, "{k} {v} {vectors}: {tile:?}");
            assert!(tile.packs * tile.shares <= tile.threads && tile.packs.is_multiple_of(tile.columns), "{tile:?}");
            assert!(tile.columns * tile.parts * v <= tile.threads && tile.parts >= 1, "{k} {v} {vectors}: {tile:?}");
            let pack_lanes = tile.threads / (BLOCK / tile.cells);
            assert!(tile.packs.is_multiple_of(pack_lanes) && tile.packs >= pack_lanes, "{tile:?}");
        }
    }
}

/// Attention by matrix instructions of usual heads, which `tools/gpu_lab.py` judges; nothing is computed.
#[test]
#[ignore = "makes texts for tools/gpu_lab.py"]
fn texts_for_the_lab() {
    if devices().is_empty() {
        return;
    }
    let gpu = &*Gpu::best().unwrap();
    if gpu.caps.matrices.is_none() {
        return;
    }
    for (ty, dim) in [(F16, 64), (F16, 128), (F16, 256), (Q8_0, 128)] {
        let spec = AttentionSpec::new(0, 2, 1, dim);
        let layout = KvLayout::new(KvTypes { k: ty, v: ty }, 1, dim, dim, 1024).unwrap();
        let q = RowSpan { offset: 0, width: 2 * dim };
        let queries = Queries { q, out: q, rows: Rows::Batch, max_rows: 512, sinks: None };
        attend(gpu, &spec, &layout, &queries, None).unwrap();
    }
}
