//! The shaders' arithmetic against the host's. The sampler as a whole is compared with the host's in
//! `tests/gpu/sampling.rs`.
#![allow(clippy::unwrap_used)]

use crate::backend::gpu::kernel::{Binding, compose};
use crate::backend::gpu::testing::harness::{devices, kernel, run, storage};

/// Runs `body` once per case: it reads `in_word(i)` and writes `out[at + i]`.
fn compute(body: &str, words_in: usize, words_out: usize, cases: &[Vec<u32>]) -> Vec<Vec<Vec<u32>>> {
    let text = format!(
        "//#include sample/numbers
        @group(0) @binding(0) var<storage, read> given: array<u32>;
        @group(0) @binding(1) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
            zero = given[0];
            if id.x >= CASES {{ return; }}
            let in_at = 1u + id.x * {words_in}u;
            let at = id.x * {words_out}u;
            {body}
        }}"
    );
    let count = cases.len();
    let text = compose(&text, &[], &[("CASES", count as u32)]).unwrap();
    let words: Vec<u32> = [0].into_iter().chain(cases.iter().flatten().copied()).collect();
    assert_eq!(words.len(), 1 + count * words_in);
    let outputs = devices().iter().map(|gpu| {
        let given = storage(gpu, bytemuck::cast_slice(&words));
        let out = storage(gpu, &vec![0; count * words_out * 4]);
        run(
            gpu,
            &kernel(gpu, &text, &[Binding::Read, Binding::Write]),
            &[&given, &out],
            [count.div_ceil(64) as u32, 1, 1],
        );
        let bytes = gpu.read(&out, 0, count * words_out * 4).unwrap();
        bytemuck::pod_collect_to_vec::<u8, u32>(&bytes).chunks(words_out).map(<[u32]>::to_vec).collect()
    });
    outputs.collect()
}

/// Numbers without pattern.
fn noise(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state ^ (state >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd)
    }
}

/// The known answers published with Random123 (`kat_vectors`, threefry2x32, 20 rounds).
#[test]
fn threefry_gives_the_published_answers() {
    let cases: [[u32; 6]; 3] = [
        [0, 0, 0, 0, 0x6b20_0159, 0x99ba_4efe],
        [u32::MAX, u32::MAX, u32::MAX, u32::MAX, 0x1cb9_96fc, 0xbb00_2be7],
        [0x1319_8a2e, 0x0370_7344, 0x243f_6a88, 0x85a3_08d3, 0xc492_3a9c, 0x483d_f7a0],
    ];
    let given: Vec<_> = cases.iter().map(|case| case[..4].to_vec()).collect();
    let body = "let r = threefry(vec2(given[in_at], given[in_at + 1u]), vec2(given[in_at + 2u], given[in_at + 3u]));
        out[at] = r.x; out[at + 1u] = r.y;";
    for out in compute(body, 4, 2, &given) {
        for (got, case) in out.iter().zip(&cases) {
            assert_eq!(got, &case[4..]);
        }
    }
}

#[test]
fn shares_and_needs_are_the_hosts() {
    let mut next = noise(1);
    let mut cases = Vec::new();
    let mut expected = Vec::new();
    for i in 0..4000u32 {
        // Sums of up to 2^23 weights; full ones, which double precision rounds, and short ones.
        let total = (next() >> 1 >> (i % 60)).max(1);
        let total = if i % 7 == 0 { u64::from(i + 1) << 40 } else { total };
        let random = if i % 11 == 0 { u32::MAX } else { next() as u32 };
        let p = match i % 5 {
            0 => 0.5,
            1 => f32::from_bits((next() % 0x3f80_0000) as u32),
            2 => 0.0,
            _ => (next() >> 40) as f32 / 16_777_217.0,
        };
        let (mantissa, shift) = super::spec::parts(p);
        cases.push(vec![total as u32, (total >> 32) as u32, random, mantissa, shift]);
        let share = ((u128::from(total) * (2 * u128::from(random) + 1)) >> 33) as u64;
        let need = ((f64::from(p) * total as f64).ceil() as u64).max(1);
        expected.push([share as u32, (share >> 32) as u32, need as u32, (need >> 32) as u32]);
    }
    let body = "let total = vec2(given[in_at], given[in_at + 1u]);
        let share = share_of(total, given[in_at + 2u]);
        let need = needed(total, given[in_at + 3u], given[in_at + 4u]);
        out[at] = share.x; out[at + 1u] = share.y; out[at + 2u] = need.x; out[at + 3u] = need.y;";
    for out in compute(body, 5, 4, &cases) {
        for ((got, expected), case) in out.iter().zip(&expected).zip(&cases) {
            assert_eq!(got, expected, "{case:?}");
        }
    }
}

#[test]
fn quotients_are_rounded_to_nearest() {
    let mut next = noise(2);
    let mut cases = Vec::new();
    let mut expected = Vec::new();
    for i in 0..4000u32 {
        // Exponents near 0, with quotients in the normal range.
        let mut float = || f32::from_bits(((next() & 0x07ff_ffff) as u32 + 0x3c00_0000) & 0x7fff_ffff);
        let (a, b) = match i % 4 {
            0 => (float(), 1.1),
            1 => (f32::from_bits(0x3f80_0000 + i), f32::from_bits(0x3f80_0000 + i * 3)),
            _ => (float(), float()),
        };
        cases.push(vec![a.to_bits(), b.to_bits()]);
        expected.push((a / b).to_bits());
    }
    let body = "out[at] = bitcast<u32>(divide(bitcast<f32>(given[in_at]), bitcast<f32>(given[in_at + 1u])));";
    for out in compute(body, 2, 1, &cases) {
        for ((got, expected), case) in out.iter().zip(&expected).zip(&cases) {
            assert_eq!(got[0], *expected, "{case:x?}");
        }
    }
}

/// Within 3 units in the last place of a total's logarithm, which is what a probability's logarithm is off by.
#[test]
fn logarithms_of_totals() {
    let mut next = noise(3);
    let mut totals: Vec<u64> = (0..2000).map(|i| (next() >> 1 >> (i % 23)).max(1 << 40)).collect();
    totals.push(1 << 40);
    let cases: Vec<_> = totals.iter().map(|total| vec![*total as u32, (total >> 32) as u32]).collect();
    let body = "out[at] = bitcast<u32>(ln_of(vec2(given[in_at], given[in_at + 1u])));";
    for out in compute(body, 2, 1, &cases) {
        for (got, total) in out.iter().zip(&totals) {
            let exact = (*total as f64 / 2f64.powi(40)).ln();
            let error = (f64::from(f32::from_bits(got[0])) - exact).abs();
            assert!(error <= 2e-7 + 3.0 * exact * f64::from(f32::EPSILON), "{total}: {error:e}");
        }
    }
}

/// Ranks order logits as numbers do, and come back.
#[test]
fn ranks_order_logits() {
    let logits = [f32::INFINITY, f32::MAX, 7.5, 1e-40, 0.0, -1e-40, -3.0, f32::MIN, f32::NEG_INFINITY];
    let mut bits: Vec<u32> = logits.iter().map(|x| x.to_bits()).collect();
    bits.extend([(-0.0f32).to_bits(), f32::NAN.to_bits(), 0xffc0_0001]);
    let cases: Vec<_> = bits.iter().map(|&bits| vec![bits]).collect();
    let body = "let rank = rank_of(given[in_at]);
        out[at] = rank; out[at + 1u] = bits_of(rank); out[at + 2u] = select(0u, 1u, rank_is_nan(rank));";
    for out in compute(body, 1, 3, &cases) {
        assert!(out[..logits.len()].windows(2).all(|pair| pair[0][0] < pair[1][0]));
        let nan = bits.iter().map(|&bits| f32::from_bits(bits).is_nan() as u32);
        for ((got, &bits), nan) in out.iter().zip(&bits).zip(nan) {
            assert_eq!(got[1..], [if bits == 0x8000_0000 { 0 } else { bits }, nan]);
        }
    }
}

/// Makes all kernels, which the tests' build translates for every platform.
#[test]
fn the_kernels_can_be_translated() {
    for gpu in devices() {
        super::SampleProgram::new(gpu, 1000, 2).unwrap();
    }
}
