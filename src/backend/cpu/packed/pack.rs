//! From the rows of a GGUF tensor to panels: the writing side of [`super::format`].
//!
//! Source rows are read as 4-byte words at the same place in 16 rows at once; all rearranging of bits is then done
//! on such vectors, byte by byte within words, so that a plain copy is a transpose and nothing is decoded value by
//! value. The loops are compiled for the instruction set they run on ([`crate::simd::compiled_for`]).
//!
//! Rows of a type with code books are taken apart first ([`spread`]), so that several types share a format.

use super::format::{
    BIT_PLANE, Format, Iq1, Iq2, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, NIBBLE_PLANE, Nvfp4, PAIR_PLANE, Q1_0, Q2K, Q3K,
    Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, SIX_BIT_PLANE, Ternary,
};
use crate::quant::{Blocks, GROUP, TensorType, nvfp4_scale};
use crate::simd::{BYTE_ZERO, LANES};

/// The same place in 16 source rows.
pub(crate) type Sources = [*const u8; LANES];

/// A word of every row.
type Words = [u32; LANES];

/// A format that can be written.
pub(crate) trait Pack: Format {
    /// Bytes of a chunk of one row in the file, or as [`spread`] writes it.
    const SOURCE: usize;

    /// Packs one chunk of 16 rows.
    ///
    /// # Safety
    /// Every source is readable for `SOURCE` bytes and `out` writable for `BYTES`.
    unsafe fn pack(rows: &Sources, out: *mut u8);
}

/// The word at byte `at` of every row.
///
/// # Safety
/// Every row is readable for 4 bytes from `at`. (The helpers below: for the bytes they say they read, and `out` is
/// writable for those they write.)
#[inline(always)]
unsafe fn words(rows: &Sources, at: usize) -> Words {
    let mut out = [0; LANES];
    for (out, row) in out.iter_mut().zip(rows) {
        // SAFETY: the caller's promise.
        *out = u32::from_le(unsafe { row.add(at).cast::<u32>().read_unaligned() });
    }
    out
}

/// `N` consecutive words of every row.
///
/// # Safety
/// As `words`, for `4 * N` bytes.
#[inline(always)]
unsafe fn run<const N: usize>(rows: &Sources, at: usize) -> [Words; N] {
    let mut out = [[0; LANES]; N];
    for (i, out) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *out = unsafe { words(rows, at + 4 * i) };
    }
    out
}

/// # Safety
/// `out` is writable for 64 bytes.
#[inline(always)]
unsafe fn put(out: *mut u8, x: Words) {
    // SAFETY: the caller's promise.
    unsafe { out.cast::<Words>().write_unaligned(map(x, u32::to_le)) }
}

/// Copies the 16-bit number at byte `at` of every row: 32 bytes.
///
/// # Safety
/// As `words`, for 2 bytes read and 32 written.
#[inline(always)]
pub(crate) unsafe fn halves(rows: &Sources, at: usize, out: *mut u8) {
    for (r, row) in rows.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { out.add(2 * r).cast::<[u8; 2]>().write(row.add(at).cast::<[u8; 2]>().read()) }
    }
}

/// Copies the word at byte `at` of every row: 64 bytes.
///
/// # Safety
/// As `words`, and 64 bytes written.
#[inline(always)]
pub(crate) unsafe fn copy(rows: &Sources, at: usize, out: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { put(out, words(rows, at)) }
}

/// Writes the four bytes of every word as four rows of 16 bytes.
///
/// # Safety
/// `out` is writable for 64 bytes.
#[inline(always)]
unsafe fn put_bytes(out: *mut u8, x: Words) {
    for byte in 0..4 {
        let mut column = [0; LANES];
        for (to, x) in column.iter_mut().zip(&x) {
            *to = (x >> (8 * byte)) as u8;
        }
        // SAFETY: the caller's promise.
        unsafe { out.add(LANES * byte).cast::<[u8; LANES]>().write(column) }
    }
}

/// `f` of every row's word. A loop, unlike `array::map`, always inlines and vectorises.
#[inline(always)]
fn map(mut a: Words, f: impl Fn(u32) -> u32) -> Words {
    for a in &mut a {
        *a = f(*a);
    }
    a
}

/// `f` of every row's two words.
#[inline(always)]
fn zip(mut a: Words, b: Words, f: impl Fn(u32, u32) -> u32) -> Words {
    for (a, b) in a.iter_mut().zip(&b) {
        *a = f(*a, *b);
    }
    a
}

/// `mask` in every byte.
const fn every(mask: u8) -> u32 {
    u32::from_ne_bytes([mask; 4])
}

/// A block's nibble plane from its 8 groups, the codes at bit `from` (0 or 4) of each byte.
///
/// # Safety
/// `out` is writable for the plane.
#[inline(always)]
unsafe fn put_nibbles(out: *mut u8, groups: &[Words; 8], from: u32) {
    for v in 0..4 {
        let both = zip(groups[v], groups[v + 4], |a, b| (a >> from) & every(15) | ((b >> from) & every(15)) << 4);
        // SAFETY: the caller's promise.
        unsafe { put(out.add(64 * v), both) }
    }
}

/// A block's pair plane from its 8 groups, the codes at bit `from` of each byte.
///
/// # Safety
/// `out` is writable for the plane.
#[inline(always)]
unsafe fn put_pairs(out: *mut u8, groups: &[Words; 8], from: u32) {
    for half in 0..2 {
        let mut all = [0; LANES];
        for v in 0..4 {
            all = zip(all, groups[4 * half + v], |all, x| all | ((x >> from) & every(3)) << (2 * v));
        }
        // SAFETY: the caller's promise.
        unsafe { put(out.add(64 * half), all) }
    }
}

/// A block's bit plane from its 8 groups, the bits at bit `from` of each byte.
///
/// # Safety
/// `out` is writable for the plane.
#[inline(always)]
unsafe fn put_bits(out: *mut u8, groups: &[Words; 8], from: u32) {
    let mut all = [0; LANES];
    for (g, group) in groups.iter().enumerate() {
        all = zip(all, *group, |all, x| all | ((x >> from) & every(1)) << g);
    }
    // SAFETY: the caller's promise.
    unsafe { put(out, all) }
}

/// A block's plane of six bits from its 8 groups of codes.
///
/// # Safety
/// `out` is writable for the plane.
#[inline(always)]
unsafe fn put_sixes(out: *mut u8, codes: &[Words; 8]) {
    for half in 0..2 {
        let [own @ .., spread] = codes.as_chunks::<4>().0[half];
        for (v, own) in own.into_iter().enumerate() {
            let both = zip(own, spread, |own, spread| own | ((spread >> (2 * v)) & every(3)) << 6);
            // SAFETY: the caller's promise.
            unsafe { put(out.add(64 * (3 * half + v)), both) }
        }
    }
}

/// Moves even bits to the low half and odd bits to the high half.
#[inline(always)]
fn unshuffle(mut x: u32) -> u32 {
    for (shift, mask) in [(1, 0x2222_2222), (2, 0x0c0c_0c0c), (4, 0x00f0_00f0), (8, 0x0000_ff00)] {
        let swap = (x ^ (x >> shift)) & mask;
        x ^= swap ^ (swap << shift);
    }
    x
}

/// Types whose codes lie in the file as in the panel: `scales` two-byte numbers, then 4 words of nibbles.
macro_rules! pack_nibbles {
    ($name:ident, $source:literal, scales $scales:literal) => {
        impl Pack for $name {
            const SOURCE: usize = $source;

            #[inline(always)]
            unsafe fn pack(rows: &Sources, out: *mut u8) {
                // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
                unsafe {
                    for i in 0..$scales {
                        halves(rows, 2 * i, out.add(32 * i));
                    }
                    for v in 0..4 {
                        copy(rows, 2 * $scales + 4 * v, out.add(Self::HEADER + 64 * v));
                    }
                }
            }
        }
    };
}

pack_nibbles!(Q4_0, 18, scales 1);
pack_nibbles!(Q4_1, 20, scales 2);
pack_nibbles!(Iq4Nl, 18, scales 1);

/// As above with the fifth bits between: bit j of one word is that of weight j.
macro_rules! pack_fives {
    ($name:ident, $source:literal, scales $scales:literal) => {
        impl Pack for $name {
            const SOURCE: usize = $source;

            #[inline(always)]
            unsafe fn pack(rows: &Sources, out: *mut u8) {
                // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
                unsafe {
                    for i in 0..$scales {
                        halves(rows, 2 * i, out.add(32 * i));
                    }
                    for v in 0..4 {
                        copy(rows, 2 * $scales + 4 + 4 * v, out.add(Self::HEADER + 64 * v));
                    }
                    // Weight 4 g + b goes to bit g of byte b: two unshuffles rotate the bit's index by two.
                    let bits = map(words(rows, 2 * $scales), |x| unshuffle(unshuffle(x)));
                    put(out.add(Self::HEADER + NIBBLE_PLANE), bits);
                }
            }
        }
    };
}

pack_fives!(Q5_0, 22, scales 1);
pack_fives!(Q5_1, 24, scales 2);

impl Pack for Q8_0 {
    const SOURCE: usize = 34;

    #[inline(always)]
    unsafe fn pack(rows: &Sources, out: *mut u8) {
        // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
        unsafe {
            halves(rows, 0, out);
            for g in 0..8 {
                put(out.add(Self::HEADER + 64 * g), map(words(rows, 2 + 4 * g), |x| x ^ every(BYTE_ZERO)));
            }
        }
    }
}

impl Pack for Mxfp4 {
    const SOURCE: usize = 17;

    #[inline(always)]
    unsafe fn pack(rows: &Sources, out: *mut u8) {
        // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
        unsafe {
            for (r, row) in rows.iter().enumerate() {
                // 2^(e - 128) as the upper half of an f32; the two smallest are subnormal.
                let scale: u16 = match row.read() {
                    0 => 0x0020,
                    1 => 0x0040,
                    e => (u16::from(e) - 1) << 7,
                };
                out.add(2 * r).cast::<u16>().write_unaligned(scale);
            }
            for v in 0..4 {
                copy(rows, 1 + 4 * v, out.add(Self::HEADER + 64 * v));
            }
        }
    }
}

/// The 8 scales and 8 minimums of Q4_K and Q5_K, 6 bits each in 12 bytes at `at`, one byte each.
///
/// # Safety
/// As `words` for 12 bytes; `out` is writable for 256.
#[inline(always)]
unsafe fn unpack_sixes(rows: &Sources, at: usize, out: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b, c] = run::<3>(rows, at);
        put_bytes(out, map(a, |a| a & every(63)));
        put_bytes(out.add(64), zip(a, c, |a, c| c & every(15) | ((a >> 6) & every(3)) << 4));
        put_bytes(out.add(128), map(b, |b| b & every(63)));
        put_bytes(out.add(192), zip(b, c, |b, c| (c >> 4) & every(15) | ((b >> 6) & every(3)) << 4));
    }
}

/// The 256 nibbles of Q4_K and Q5_K: of each 32 bytes at `at` the low ones are one block, the high ones the next.
///
/// # Safety
/// As `words` for 128 bytes; `out` is writable for 8 blocks `stride` apart.
#[inline(always)]
unsafe fn split_nibbles(rows: &Sources, at: usize, out: *mut u8, stride: usize) {
    for pair in 0..4 {
        // SAFETY: the caller's promise.
        unsafe {
            let groups = run::<8>(rows, at + 32 * pair);
            put_nibbles(out.add(2 * pair * stride), &groups, 0);
            put_nibbles(out.add((2 * pair + 1) * stride), &groups, 4);
        }
    }
}

impl Pack for Q4K {
    const SOURCE: usize = 144;

    #[inline(always)]
    unsafe fn pack(rows: &Sources, out: *mut u8) {
        // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
        unsafe {
            halves(rows, 0, out);
            halves(rows, 2, out.add(32));
            unpack_sixes(rows, 4, out.add(Self::SCALES));
            split_nibbles(rows, 16, out.add(Self::HEADER), Self::PLANES);
        }
    }
}

impl Pack for Q5K {
    const SOURCE: usize = 176;

    #[inline(always)]
    unsafe fn pack(rows: &Sources, out: *mut u8) {
        // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
        unsafe {
            halves(rows, 0, out);
            halves(rows, 2, out.add(32));
            unpack_sixes(rows, 4, out.add(Self::SCALES));
            split_nibbles(rows, 48, out.add(Self::HEADER), Self::PLANES);
            let high = run::<8>(rows, 16);
            for block in 0..8 {
                put_bits(out.add(Self::HEADER + block * Self::PLANES + NIBBLE_PLANE), &high, block as u32);
            }
        }
    }
}

impl Pack for Q6K {
    const SOURCE: usize = 210;

    #[inline(always)]
    unsafe fn pack(rows: &Sources, out: *mut u8) {
        // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
        unsafe {
            halves(rows, 208, out);
            for i in 0..4 {
                put_bytes(out.add(Self::SCALES + 64 * i), words(rows, 192 + 4 * i));
            }
            for half in 0..2 {
                let planes = out.add(Self::HEADER + 4 * half * Self::PLANES);
                let high = run::<8>(rows, 128 + 32 * half);
                for block in 0..4 {
                    let low = run::<8>(rows, 64 * half + 32 * (block % 2));
                    let mut codes = [[0; LANES]; 8];
                    for g in 0..8 {
                        codes[g] = zip(low[g], high[g], |low, high| {
                            (low >> (4 * (block / 2))) & every(15) | ((high >> (2 * block)) & every(3)) << 4
                        });
                    }
                    put_sixes(planes.add(block * Self::PLANES), &codes);
                }
            }
        }
    }
}

impl Pack for Q3K {
    const SOURCE: usize = 110;

    #[inline(always)]
    unsafe fn pack(rows: &Sources, out: *mut u8) {
        // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
        unsafe {
            halves(rows, 108, out);
            let [a, b, c] = run::<3>(rows, 96);
            for (i, low) in [a, b, map(a, |a| a >> 4), map(b, |b| b >> 4)].into_iter().enumerate() {
                let code = zip(low, c, |low, c| low & every(15) | ((c >> (2 * i)) & every(3)) << 4);
                // 32 less, as a signed byte, without a borrow from the next.
                put_bytes(out.add(Self::SCALES + 64 * i), map(code, |x| ((x | every(128)) - every(32)) ^ every(128)));
            }
            let mask = run::<8>(rows, 0);
            for half in 0..2 {
                let codes = run::<8>(rows, 32 + 32 * half);
                for part in 0..4 {
                    let block = 4 * half + part;
                    let planes = out.add(Self::HEADER + block * Self::PLANES);
                    put_pairs(planes, &codes, 2 * part as u32);
                    put_bits(planes.add(PAIR_PLANE), &mask, block as u32);
                }
            }
        }
    }
}

impl Pack for Q2K {
    const SOURCE: usize = 84;

    #[inline(always)]
    unsafe fn pack(rows: &Sources, out: *mut u8) {
        // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
        unsafe {
            halves(rows, 80, out);
            halves(rows, 82, out.add(32));
            for i in 0..4 {
                let both = words(rows, 4 * i);
                put_bytes(out.add(Self::SCALES + 64 * i), map(both, |x| x & every(15)));
                put_bytes(out.add(Self::SCALES + 256 + 64 * i), map(both, |x| (x >> 4) & every(15)));
            }
            for half in 0..2 {
                let codes = run::<8>(rows, 16 + 32 * half);
                for part in 0..4 {
                    put_pairs(out.add(Self::HEADER + (4 * half + part) * Self::PLANES), &codes, 2 * part as u32);
                }
            }
        }
    }
}

impl Pack for Nvfp4 {
    const SOURCE: usize = 36;

    #[inline(always)]
    unsafe fn pack(rows: &Sources, out: *mut u8) {
        // SAFETY: all offsets lie in the block of SOURCE bytes and the chunk of BYTES.
        unsafe {
            for group in 0..4 {
                for (r, row) in rows.iter().enumerate() {
                    let scale = half::f16::from_f32(nvfp4_scale(row.add(group).read()));
                    out.add(32 * group + 2 * r).cast::<[u8; 2]>().write(scale.to_le_bytes());
                }
            }
            for block in 0..2 {
                // Of 16 weights the first 8 are low nibbles.
                let [a, b, c, d] = run::<4>(rows, 4 + 16 * block);
                let high = |x| map(x, |x| x >> 4);
                let groups = [a, b, high(a), high(b), c, d, high(c), high(d)];
                put_nibbles(out.add(Self::HEADER + block * NIBBLE_PLANE), &groups, 0);
            }
        }
    }
}

/// Bytes that [`spread`] writes for so many weights.
pub(crate) const fn spread_bytes(chunk: usize) -> usize {
    2 + chunk / GROUP + chunk
}

/// Writes a row of the file as chunks of so many weights: the unit, the steps, then a byte for each code.
pub(crate) fn spread(blocks: &Blocks, ty: TensorType, chunk: usize, row: &[u8], out: &mut [u8]) {
    let bytes = spread_bytes(chunk);
    for (block, out) in row.chunks_exact(ty.block_bytes()).zip(out.chunks_exact_mut(ty.block_len() / chunk * bytes)) {
        let parts = blocks.take_apart(block);
        let steps = parts.steps.chunks_exact(chunk / GROUP);
        for ((out, steps), codes) in out.chunks_exact_mut(bytes).zip(steps).zip(parts.codes.chunks_exact(chunk)) {
            out[..2].copy_from_slice(&parts.unit.to_le_bytes());
            for (to, step) in out[2..].iter_mut().zip(steps) {
                *to = step.cast_unsigned();
            }
            out[2 + steps.len()..].copy_from_slice(codes);
        }
    }
}

/// Formats of spread rows: the steps, where there are any, then the planes of each block from its 8 groups of codes.
macro_rules! pack_spread {
    ($name:ident, $steps:expr, |$out:ident, $groups:ident| $planes:expr) => {
        impl Pack for $name {
            const SOURCE: usize = spread_bytes(Self::CHUNK);

            #[inline(always)]
            unsafe fn pack(rows: &Sources, out: *mut u8) {
                // SAFETY: all offsets lie in the chunk of SOURCE bytes and that of BYTES.
                unsafe {
                    halves(rows, 0, out);
                    // A step of 32 weights is there twice.
                    let stride = if Self::HALVES { 1 } else { 2 };
                    for (i, group) in (0..$steps).step_by(stride).enumerate() {
                        for (r, row) in rows.iter().enumerate() {
                            out.add(32 + LANES * i + r).write(row.add(2 + group).read());
                        }
                    }
                    for block in 0..Self::CHUNK / 32 {
                        let $groups = &run::<8>(rows, 2 + Self::CHUNK / GROUP + 32 * block);
                        let $out = out.add(Self::HEADER + block * Self::PLANES);
                        $planes
                    }
                }
            }
        }
    };
}

pack_spread!(Iq4Xs, 16, |out, groups| put_nibbles(out, groups, 0));
pack_spread!(Iq3S, 16, |out, groups| put_nibbles(out, groups, 0));
pack_spread!(Iq3Xxs, 16, |out, groups| put_nibbles(out, groups, 0));
pack_spread!(Iq2, 16, |out, groups| {
    put_pairs(out, groups, 0);
    put_bits(out.add(PAIR_PLANE), groups, 2);
});
pack_spread!(Iq1, 16, |out, groups| {
    put_pairs(out, groups, 0);
    put_bits(out.add(PAIR_PLANE), groups, 2);
});
pack_spread!(Ternary, 0, |out, groups| put_pairs(out, groups, 0));
pack_spread!(Q1_0, 0, |out, groups| put_bits(out, groups, 0));

/// The layouts of the two sides agree.
const _: () =
    assert!(Q4K::PLANES == NIBBLE_PLANE && Q5K::PLANES == NIBBLE_PLANE + BIT_PLANE && Q6K::PLANES == SIX_BIT_PLANE);
