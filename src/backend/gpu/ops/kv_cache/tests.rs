#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::testing::fixture::{Fixture, Frame, Head, Numbers};
use crate::backend::gpu::testing::harness::devices;
use crate::backend::rope::Rope;
use crate::graph::{RopeKind, RopeScaling};

const TYPES: [KvTypes; 6] = [
    KvTypes { k: TensorType::F32, v: TensorType::F32 },
    KvTypes { k: TensorType::F16, v: TensorType::F16 },
    KvTypes { k: TensorType::Q8_0, v: TensorType::Q8_0 },
    KvTypes { k: TensorType::F32, v: TensorType::Q8_0 },
    KvTypes { k: TensorType::Q8_0, v: TensorType::F16 },
    KvTypes { k: TensorType::F16, v: TensorType::F32 },
];

fn filled(layout: &KvLayout, numbers: &mut Numbers) -> [Vec<u8>; 2] {
    [true, false].map(|key| {
        let mut bytes = vec![0; if key { layout.k_bytes() } else { layout.v_bytes() } as usize];
        for head in 0..layout.n_kv_heads {
            for cell in 0..layout.cells {
                let head = Head { layout, key, head, cell };
                head.encode(&mut bytes, &numbers.take(head.dim()));
            }
        }
        bytes
    })
}

#[test]
fn sizes_are_what_the_description_says() {
    let bytes = |ty, dk, dv| {
        let layout = KvLayout::new(ty, 3, dk, dv, 100).unwrap();
        assert_eq!(layout.cells, 128);
        (layout.k_bytes(), layout.v_bytes())
    };
    assert_eq!(bytes(TensorType::F32, 64, 128), (3 * 128 * 256, 3 * 128 * 512));
    assert_eq!(bytes(TensorType::F16, 40, 8), (3 * 128 * 80, 3 * 128 * 16));
    assert_eq!(bytes(TensorType::Q8_0, 40, 256), (3 * 128 * 48, 3 * 128 * 288));
    for (ty, dim) in [(TensorType::Q4_0, 64), (TensorType::F16, 66), (TensorType::F16, 260), (TensorType::F16, 0)] {
        assert!(matches!(KvLayout::new(ty, 1, 64, dim, 64), Err(Error::Unsupported(_))), "{ty} {dim}");
    }
}

#[test]
fn a_layer_beyond_a_binding_is_refused_by_name() {
    for gpu in devices() {
        let limit = gpu.caps.max_binding;
        let cells = (limit / 256) as usize;
        KvLayout::new(TensorType::F16, 1, 128, 64, cells).unwrap().check(gpu, 5).unwrap();
        for (dk, dv) in [(132, 128), (128, 132)] {
            let layout = KvLayout::new(TensorType::F16, 1, dk, dv, cells).unwrap();
            let Err(Error::OutOfMemory(message)) = layout.check(gpu, 5) else { panic!("{dk} {dv}") };
            for part in ["layer 5".to_string(), limit.to_string(), (cells * 264).to_string()] {
                assert!(message.contains(&part), "{message}");
            }
        }
    }
}

#[test]
fn keys_turn_with_their_positions_and_others_stay() {
    for (gpu, ty) in devices().iter().flat_map(|gpu| TYPES.map(|ty| (gpu, ty))) {
        for (dk, n_rot, kind) in [(40, 40, RopeKind::Norm), (64, 20, RopeKind::Neox), (128, 128, RopeKind::Neox)] {
            let layout = KvLayout::new(ty, 2, dk, 8, 128).unwrap();
            let cache = filled(&layout, &mut Numbers(1));
            let rope = Rope::new(n_rot, 1e4, &[], RopeScaling::None);
            let turns = RopeTable::new(gpu, kind, &rope).unwrap();
            let mut deltas = vec![0i32; layout.cells];
            let shifts = [(0, -1), (5, -77), (63, 1), (64, -100_000), (127, 4095)];
            shifts.iter().for_each(|&(cell, delta)| deltas[cell] = delta);
            let rows = shifts.iter().map(|&(cell, delta)| (delta, 1, cell as u32)).collect();
            let frame = Frame { rows, ..Frame::default() };
            let fixture = Fixture::new(gpu, &[0.0; 4], &frame.words(), [&cache[0], &cache[1]], 16);
            let job = Shift { rope: &turns, first: 0, factors: None };
            fixture.run(&[shift(gpu, &layout, 0, &job).unwrap()], frame.counts());
            let after = fixture.cache(&layout);
            assert_eq!(after[1], cache[1]);
            for (head, cell) in (0..2).flat_map(|head| (0..layout.cells).map(move |cell| (head, cell))) {
                let place = Head { layout: &layout, key: true, head, cell };
                if deltas[cell] == 0 {
                    assert!(place.bytes().iter().all(|&at| after[0][at] == cache[0][at]), "{ty} cell {cell} changed");
                    continue;
                }
                let x = place.decode(&cache[0]);
                let (mut y, mut error) = (x.clone(), vec![0.0; dk]);
                for (i, f) in rope.frequencies().iter().enumerate() {
                    let (a, b) = match kind {
                        RopeKind::Norm => (2 * i, 2 * i + 1),
                        RopeKind::Neox => (i, i + n_rot / 2),
                    };
                    let (s, c) = (f64::from(deltas[cell]) * f).sin_cos();
                    (y[a], y[b]) = (x[a] * c - x[b] * s, x[a] * s + x[b] * c);
                    // Cosine and sine, and the roundings of two products and a sum.
                    (error[a], error[b]) = ((x[a].abs() + x[b].abs()) * 5e-7, (x[a].abs() + x[b].abs()) * 5e-7);
                }
                let rounding = place.rounding(&y);
                for (i, got) in place.decode(&after[0]).into_iter().enumerate() {
                    let bound = error[i] * 1.1 + rounding[i];
                    assert!((got - y[i]).abs() <= bound, "{ty} {kind:?} cell {cell} value {i}: {got} for {}", y[i]);
                }
            }
        }
    }
}

#[test]
fn copies_move_whole_cells_and_nothing_else() {
    for (gpu, ty) in devices().iter().flat_map(|gpu| TYPES.map(|ty| (gpu, ty))) {
        for (dk, dv) in [(8, 256), (80, 40)] {
            let layout = KvLayout::new(ty, 3, dk, dv, 192).unwrap();
            let cache = filled(&layout, &mut Numbers(2));
            let pairs = [(191, 0), (64, 63), (190, 65), (1, 2)];
            assert_copied(gpu, &layout, &cache, &pairs);
        }
    }
}

fn assert_copied(gpu: &Gpu, layout: &KvLayout, cache: &[Vec<u8>; 2], pairs: &[(usize, usize)]) {
    let rows = pairs.iter().map(|&(from, to)| (from as i32, 1, to as u32)).collect();
    let frame = Frame { rows, ..Frame::default() };
    let fixture = Fixture::new(gpu, &[0.0; 4], &frame.words(), [&cache[0], &cache[1]], 16);
    fixture.run(&[copy(gpu, layout, 0).unwrap()], frame.counts());
    let mut expected = cache.clone();
    for (side, key) in [true, false].into_iter().enumerate() {
        for head in 0..layout.n_kv_heads {
            for &(from, to) in pairs {
                let [from, to] = [from, to].map(|cell| Head { layout, key, head, cell }.bytes());
                for (from, to) in from.into_iter().zip(to) {
                    expected[side][to] = cache[side][from];
                }
            }
        }
    }
    assert!(fixture.cache(layout) == expected, "{layout:?} with {} copies", pairs.len());
}
