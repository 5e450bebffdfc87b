//! Activations for quantised weights: rows of 8-bit blocks of 32.
//!
//! One layout serves every weight format. A row of `n_in` values is `n_in` codes (`i8`), then 16 bytes of
//! [`Meta`] for each block of 32: the scale and the negated sums of codes, which turn the zero points and minimums
//! of weight formats into one addition per block. A value is `scale * code`, the code rounded to nearest, so it is
//! off by at most half of `scale = largest magnitude / 127`. Every instruction set writes the same bytes.
//!
//! A block that holds an infinity or NaN gets a scale that is not finite, so it reaches the logits as NaN instead of
//! passing unseen. A block whose largest magnitude is below 1e-30 counts as zero.

use std::mem::size_of;

use crate::simd::{Isa, compiled_for};

/// Values in a block.
pub const BLOCK: usize = 32;

/// What a row keeps for each block beside its codes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Meta {
    /// Value of one code step.
    pub(crate) scale: f32,
    /// Minus the sum of the first 16 codes.
    pub(crate) first: i32,
    /// Minus the sum of the last 16 codes.
    pub(crate) last: i32,
    /// Minus the sum of all 32 codes.
    pub(crate) all: i32,
}

/// Magnitudes below this are taken for zero: their reciprocal scale would overflow.
const TINY: f32 = 1e-30;

/// Adding 1.5 * 2^23 rounds to the nearest integer (ties to even) and leaves it in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Bytes of a quantised row of `n_in` values; a multiple of 64.
pub const fn row_bytes(n_in: usize) -> usize {
    (n_in + n_in / BLOCK * size_of::<Meta>()).next_multiple_of(64)
}

/// Quantises a row.
///
/// # Panics
/// When `x` is no multiple of 32 long or `out` is shorter than [`row_bytes`].
pub fn quantize_row(isa: Isa, x: &[f32], out: &mut [u8]) {
    assert!(x.len().is_multiple_of(BLOCK), "a row of {} values is no whole number of blocks", x.len());
    assert!(out.len() >= row_bytes(x.len()), "{} bytes for a row of {} values", out.len(), x.len());
    // SAFETY: the row fits `out`, and the blocks are all of it.
    unsafe { quantize_blocks(isa, x, out.as_mut_ptr(), x.len(), 0) }
}

/// Quantises some blocks of a row, beginning with block `first`, so that the producers of a row may each write
/// their own part.
///
/// # Safety
/// `row` is writable for `row_bytes(n_in)` bytes, `x` holds whole blocks that end within the row, and nobody else
/// touches these blocks meanwhile.
pub unsafe fn quantize_blocks(isa: Isa, x: &[f32], row: *mut u8, n_in: usize, first: usize) {
    debug_assert!(x.len().is_multiple_of(BLOCK) && first * BLOCK + x.len() <= n_in);
    let blocks = x.as_chunks::<BLOCK>().0;
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for (at, block) in (first..).zip(blocks) {
                let (codes, meta) = quantize_block(block);
                // SAFETY: the caller's promise that block `at` lies in the row, which holds `n_in` codes and then one
                // `Meta` for each block; the row may have any alignment.
                unsafe {
                    row.add(at * BLOCK).cast::<[u8; BLOCK]>().write_unaligned(codes);
                    row.add(n_in + at * size_of::<Meta>()).cast::<Meta>().write_unaligned(meta);
                }
            }
        },
    );
}

/// Straight loops that the compiler turns into vector code of whatever instruction set they are inlined into.
#[inline(always)]
fn quantize_block(x: &[f32; BLOCK]) -> ([u8; BLOCK], Meta) {
    // As bits, magnitudes order like numbers, with infinity and then NaN on top.
    let mut largest = 0;
    for value in x {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    let mut largest = f32::from_bits(largest);
    if largest < TINY {
        largest = 0.0;
    }
    let inverse = if largest == 0.0 { 0.0 } else { 127.0 / largest };
    let mut codes = [0; BLOCK];
    let mut halves = [0i32; 2];
    for (half, sum) in halves.iter_mut().enumerate() {
        for i in 16 * half..16 * half + 16 {
            let bits = (x[i] * inverse + ROUND).to_bits();
            codes[i] = bits as u8;
            *sum += i32::from(bits as u8 as i8);
        }
    }
    let [first, last] = [-halves[0], -halves[1]];
    (codes, Meta { scale: largest / 127.0, first, last, all: first + last })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize) -> Vec<f32> {
        let mut state = 1u32;
        (0..n)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / 8_388_608.0 - 1.0) * (i as f32 / 40.0 - 8.0).exp2()
            })
            .collect()
    }

    fn read(row: &[u8], n_in: usize, block: usize) -> (Vec<i8>, Meta) {
        let codes = row[block * BLOCK..][..BLOCK].iter().map(|&b| b as i8).collect();
        let meta = &row[n_in + block * size_of::<Meta>()..][..size_of::<Meta>()];
        let word = |i: usize| [meta[4 * i], meta[4 * i + 1], meta[4 * i + 2], meta[4 * i + 3]];
        let int = |i: usize| i32::from_ne_bytes(word(i));
        (codes, Meta { scale: f32::from_ne_bytes(word(0)), first: int(1), last: int(2), all: int(3) })
    }

    #[test]
    fn codes_round_to_nearest_and_sums_are_exact() {
        let x = rows(640);
        for isa in Isa::available() {
            let mut row = vec![0xaa; row_bytes(x.len())];
            quantize_row(isa, &x, &mut row);
            for block in 0..x.len() / BLOCK {
                let (codes, meta) = read(&row, x.len(), block);
                let values = &x[block * BLOCK..][..BLOCK];
                let largest = values.iter().fold(0f32, |a, v| a.max(v.abs()));
                assert_eq!(meta.scale, largest / 127.0);
                for (code, value) in codes.iter().zip(values) {
                    let exact = f64::from(*value) / f64::from(largest) * 127.0;
                    // Two roundings of the scaled value move it by less than 127 * 2^-23.
                    assert!((f64::from(*code) - exact).abs() <= 0.5 + 2e-5, "{code} for {exact}");
                }
                let sum = |part: &[i8]| -part.iter().map(|&c| i32::from(c)).sum::<i32>();
                assert_eq!((meta.first, meta.last, meta.all), (sum(&codes[..16]), sum(&codes[16..]), sum(&codes)));
            }
        }
    }

    #[test]
    fn every_level_writes_the_same_bytes_whole_or_in_parts() {
        let x = rows(320);
        let mut expected = vec![0; row_bytes(x.len())];
        quantize_row(Isa::Portable, &x, &mut expected);
        for isa in Isa::available() {
            let mut row = vec![0; row_bytes(x.len())];
            for (first, part) in [(7, &x[224..]), (0, &x[..32]), (1, &x[32..224])] {
                // SAFETY: the parts lie in the row, which has the length the layout asks for.
                unsafe { quantize_blocks(isa, part, row.as_mut_ptr(), x.len(), first) };
            }
            assert_eq!(row, expected, "{}", isa.name());
        }
    }

    #[test]
    fn zero_tiny_and_non_finite_blocks() {
        for isa in Isa::available() {
            let scale_of = |x: [f32; 32]| {
                let mut row = vec![0; row_bytes(32)];
                quantize_row(isa, &x, &mut row);
                let (codes, meta) = read(&row, 32, 0);
                (codes, meta.scale)
            };
            assert_eq!(scale_of([0.0; 32]), (vec![0; 32], 0.0));
            assert_eq!(scale_of([1e-38; 32]), (vec![0; 32], 0.0));
            assert_eq!(scale_of([-f32::MAX; 32]), (vec![-127; 32], f32::MAX / 127.0));
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = [1.0; 32];
                x[19] = bad;
                assert!(!scale_of(x).1.is_finite(), "{bad} at {}", isa.name());
            }
        }
    }
}
