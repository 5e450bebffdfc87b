//! Rows as bytes and as halves against the rows themselves.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::gpu::probe::source::Random;
use crate::backend::gpu::testing::harness::devices;
use crate::backend::gpu::testing::workspace::{CANARY, Run};
use half::f16;

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
        let wide = Wide { x: 0, width, room: room as u64, rows: Rows::Batch, max_rows };
        let step = Narrow::Bytes.step(gpu, &wide).unwrap();
        let canaries = Narrow::Bytes.bytes(width, max_rows) / 4;
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
        let wide = Wide { x: 0, width, room: 4 * x.len() as u64, rows: Rows::Batch, max_rows };
        let step = Narrow::Halves.step(gpu, &wide).unwrap();
        let canaries = Narrow::Halves.bytes(width, max_rows) / 4;
        let after = Run::of(rows).over_floats(gpu, &[step], &x, canaries);
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
