#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::KvTypes;
use crate::backend::gpu::testing::fixture::{Fixture, Frame, Head, Numbers};
use crate::backend::gpu::testing::harness::{devices, storage};
use crate::backend::rope::Rope;
use crate::graph::{NormSpec, RopeKind, RopeScaling, WeightId};
use crate::quant::TensorType;

/// Half a unit in the last place of 1.
const U: f64 = 1.0 / (1u64 << 24) as f64;

struct Case {
    types: KvTypes,
    n_head: usize,
    n_head_kv: usize,
    dk: usize,
    dv: usize,
    n_rot: usize,
    kind: RopeKind,
    scaling: RopeScaling,
    norms: (bool, bool),
}

const YARN: RopeScaling = RopeScaling::Yarn {
    factor: 8.0,
    ext_factor: 1.0,
    attn_factor: 1.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
    original_context: 4096,
};

#[test]
fn heads_are_normed_turned_and_stored() {
    use RopeKind::{Neox, Norm};
    use TensorType::{F16, F32, Q8_0};
    let case = |ty: TensorType, (n_head, n_head_kv), (dk, dv, n_rot), kind, scaling, norms| Case {
        types: ty.into(),
        n_head,
        n_head_kv,
        dk,
        dv,
        n_rot,
        kind,
        scaling,
        norms,
    };
    let cases = [
        case(F32, (4, 2), (64, 64, 64), Norm, RopeScaling::None, (false, false)),
        case(F16, (2, 1), (128, 128, 128), Neox, RopeScaling::None, (true, true)),
        case(F16, (7, 1), (40, 8, 20), Neox, RopeScaling::Linear { factor: 4.0 }, (false, true)),
        case(Q8_0, (2, 2), (80, 80, 32), Norm, YARN, (true, false)),
        case(Q8_0, (1, 1), (8, 256, 8), Neox, RopeScaling::None, (true, true)),
        case(F16, (3, 1), (256, 40, 256), Neox, YARN, (true, true)),
        case(F32, (1, 1), (12, 128, 6), Neox, RopeScaling::None, (false, false)),
    ];
    let all = [F32, F16, Q8_0];
    let mixed = all.into_iter().flat_map(|k| all.map(|v| KvTypes { k, v })).filter(|types| types.k != types.v);
    let mixed =
        mixed.map(|types| Case { types, ..case(types.k, (2, 1), (64, 40, 32), Neox, RopeScaling::None, (true, true)) });
    let cases: Vec<Case> = cases.into_iter().chain(mixed).collect();
    for gpu in devices() {
        for case in &cases {
            check(gpu, case);
        }
    }
}

fn check(gpu: &Gpu, case: &Case) {
    let Case { types, n_head, n_head_kv, dk, dv, n_rot, kind, scaling, norms } = *case;
    let factors: Vec<f32> = (0..n_rot / 2).map(|i| 1.0 + i as f32 / 16.0).collect();
    let rope = Rope::new(n_rot, 1e6, if n_head == 7 { &factors } else { &[] }, scaling);
    let layout = KvLayout::new(types, n_head_kv, dk, dv, 192).unwrap();
    let norm = HeadNorm { norm: NormSpec::rms(WeightId(0), 1e-2), span: NormSpan::Head(dk) };
    let spec = AttentionSpec {
        head_dim_v: dv,
        q_norm: norms.0.then_some(norm),
        k_norm: norms.1.then_some(norm),
        ..AttentionSpec::new(0, n_head, n_head_kv, dk)
    };
    let mut numbers = Numbers(dk as u64);
    // Five rows and one that is not of the batch, after something else.
    let rows = [(0, 5), (131_071, 63), (1_000_000, 64), (77, 191), (4096, 0)];
    let width = n_head * dk + n_head_kv * (dk + dv);
    let before = 16;
    let ws: Vec<f32> = numbers.take(before + 6 * width).iter().map(|x| x * 3.0).collect();
    let cache = [layout.k_bytes(), layout.v_bytes()].map(|n| vec![0xa5u8; n as usize]);
    let weights = [numbers.take(dk), numbers.take(dk)];
    let bound = |i: usize| BufferRef::Weight(storage(gpu, bytemuck::cast_slice(&weights[i])), 0, 4 * dk as u64);
    let vectors = |has: bool, i| Vectors { weight: has.then(|| bound(i)), bias: None };
    let bounds = Norms { q: vectors(norms.0, 0), k: vectors(norms.1, 1) };

    let frame = Frame { rows: rows.map(|(p, cell)| (p, 1, cell)).to_vec(), splits: (1, 64), ..Frame::default() };
    let fixture = Fixture::new(gpu, &ws, &frame.words(), [&cache[0], &cache[1]], 16);
    let turns = RopeTable::new(gpu, kind, &rope).unwrap();
    let source = Source::side_by_side(&spec, RowSpan { offset: before * 4, width });
    let preparation = Preparation { spec: &spec, layout: &layout, rope: Some(&turns), norms: &bounds, source: &source };
    let steps = preparation.steps(gpu).unwrap();
    assert_eq!(steps.len(), 1);
    fixture.run(&steps, frame.counts());
    let (got, stored) = (fixture.workspace(ws.len()), fixture.cache(&layout));

    let mut own = [Vec::new(), Vec::new()];
    for (r, &(position, cell)) in rows.iter().enumerate() {
        let at = before + r * width;
        for h in 0..n_head + n_head_kv {
            let (norm, weight) = if h < n_head { (norms.0, &weights[0]) } else { (norms.1, &weights[1]) };
            let x: Vec<f64> = ws[at + h * dk..][..dk].iter().map(|&x| f64::from(x)).collect();
            let (y, error) = expected(&x, norm.then_some(weight), &rope, kind, position);
            if h < n_head {
                for i in 0..dk {
                    let y_got = f64::from(got[at + h * dk + i]);
                    assert!(
                        (y_got - y[i]).abs() <= error[i],
                        "{types} {kind:?} row {r} head {h} value {i}: {y_got} {}",
                        y[i]
                    );
                }
            } else {
                let place = Head { layout: &layout, key: true, head: h - n_head, cell: cell as usize };
                assert_stored(place, &stored[0], &y, &error);
                own[0].extend(place.bytes());
            }
        }
        for h in 0..n_head_kv {
            let values = &ws[at + (n_head + n_head_kv) * dk + h * dv..][..dv];
            let values: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
            let place = Head { layout: &layout, key: false, head: h, cell: cell as usize };
            assert_stored(place, &stored[1], &values, &vec![0.0; dv]);
            own[1].extend(place.bytes());
        }
    }
    // Keys and values, the memory before and the row after are unchanged; so are other cells.
    let untouched = |i: usize| i < before || i >= before + 5 * width || (i - before) % width >= n_head * dk;
    assert!((0..ws.len()).all(|i| !untouched(i) || got[i] == ws[i]), "{types} rows changed that should not");
    for side in 0..2 {
        let mut left = stored[side].clone();
        own[side].iter().for_each(|&at| left[at] = 0xa5);
        assert!(left.iter().all(|&b| b == 0xa5), "{types} other cells were written");
    }
}

/// The head after norm and rotation, and how far off it may be.
fn expected(x: &[f64], weight: Option<&Vec<f32>>, rope: &Rope, kind: RopeKind, position: i32) -> (Vec<f64>, Vec<f64>) {
    let n = x.len();
    let mut y = x.to_vec();
    let mut relative = 0.0;
    if let Some(weight) = weight {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / n as f64;
        let scale = 1.0 / (mean + f64::from(1e-2f32)).sqrt();
        y.iter_mut().zip(weight).for_each(|(y, &w)| *y *= scale * f64::from(w));
        // Half of: 4 products and 10 sums, quotient, eps; then the root (2 units) and two products.
        relative = 14.0 * U;
    }
    let before = y.clone();
    let mut error: Vec<f64> = y.iter().map(|y| y.abs() * relative).collect();
    for (i, f) in rope.frequencies().iter().enumerate() {
        let (a, b) = match kind {
            RopeKind::Norm => (2 * i, 2 * i + 1),
            RopeKind::Neox => (i, i + rope.n_rot() / 2),
        };
        let (s, c) = (f64::from(position) * f).sin_cos();
        let m = rope.magnitude();
        (y[a], y[b]) = (m * (before[a] * c - before[b] * s), m * (before[a] * s + before[b] * c));
        // Cosine and sine with the rounding of the magnitude, two products, a sum.
        let both = m * (before[a].abs() + before[b].abs()) * (3e-7 + 4.0 * U + relative);
        (error[a], error[b]) = (both, both);
    }
    (y, error)
}

fn assert_stored(place: Head<'_>, bytes: &[u8], y: &[f64], error: &[f64]) {
    let rounding = place.rounding(y);
    for (i, got) in place.decode(bytes).into_iter().enumerate() {
        // A rounded error is at most twice one: it may push a number over the middle between two steps.
        let bound = rounding[i] * 1.0001 + 2.0 * error[i];
        let (ty, head, cell, key) = (place.layout.types.of(place.key), place.head, place.cell, place.key);
        assert!((got - y[i]).abs() <= bound, "{ty} key {key} cell {cell} head {head} value {i}: {got} for {}", y[i]);
    }
}

#[test]
fn what_a_type_cannot_hold() {
    let row: Vec<f32> = [1e30, -1e30, f32::INFINITY, f32::NAN, 65_504.0, 65_519.0, 1e-30, -0.0].into();
    for gpu in devices() {
        for ty in [TensorType::F16, TensorType::Q8_0] {
            let layout = KvLayout::new(ty, 1, 8, 40, 64).unwrap();
            let spec = AttentionSpec { head_dim_v: 40, ..AttentionSpec::new(0, 1, 1, 8) };
            let mut ws = [vec![0.0; 16], row.clone(), vec![0.0; 32]].concat();
            // The second group of a Q8_0 head is zeros but for numbers too small for a scale.
            ws[16 + 33] = 1e-36;
            let frame = Frame { rows: vec![(9, 1, 3)], splits: (1, 64), ..Frame::default() };
            let cache = [layout.k_bytes(), layout.v_bytes()].map(|n| vec![0xa5u8; n as usize]);
            let fixture = Fixture::new(gpu, &ws, &frame.words(), [&cache[0], &cache[1]], 16);
            let turns = RopeTable::new(gpu, RopeKind::Norm, &Rope::new(8, 1e4, &[], RopeScaling::None)).unwrap();
            let source = Source::side_by_side(&spec, RowSpan { offset: 0, width: ws.len() });
            let (rope, norms) = (Some(&turns), &Norms::default());
            let steps = Preparation { spec: &spec, layout: &layout, rope, norms, source: &source }.steps(gpu).unwrap();
            fixture.run(&steps, frame.counts());
            let got = Head { layout: &layout, key: false, head: 0, cell: 3 }.decode(&fixture.cache(&layout)[1]);
            assert!(got[32..].iter().all(|x| x.abs() < 6e-8), "{ty}: {got:?}");
            if ty == TensorType::Q8_0 {
                assert!(got[..32].iter().all(|x| x.is_nan()), "{got:?}");
            } else {
                assert!(got[..3] == [65_504.0, -65_504.0, 65_504.0] && got[3].is_nan(), "{got:?}");
                assert!(got[4] == 65_504.0 && got[5] == 65_504.0 && got[6..32].iter().all(|&x| x == 0.0), "{got:?}");
            }
        }
    }
}
