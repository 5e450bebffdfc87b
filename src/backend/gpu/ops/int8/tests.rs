//! Rows as bytes against the rows themselves.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::probe::source::Random;
use crate::backend::gpu::testing::harness::devices;
use crate::backend::gpu::testing::workspace::{CANARY, Run};

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
        let after = Run::of(rows).over_floats(gpu, &[step], &x, canaries);
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
