//! How a panel holds 16 rows of each quantised type, and how a kernel reads it back.
//!
//! A panel is a run of *chunks*; a chunk covers 32 weights of every row (256 for the K types) and is scales first,
//! then the codes of its blocks of 32. Everything is interleaved by row: 16 scales side by side, and 64-byte vectors
//! in which lane r is the 4 bytes of row r. A block's 8 groups of 4 weights are spread over *planes*:
//!
//! | plane | vectors | where group g (0..8) lies |
//! |---|---|---|
//! | byte | 8 | vector g |
//! | nibble | 4 | vector g % 4, low bits for g < 4, high bits else |
//! | pair (2 bits) | 2 | vector g / 4, bits 2 * (g % 4) |
//! | bit | 1 | bit g |
//! | six bits | 6 | vector 3 * (g / 4) + g % 4, low bits; g % 4 = 3: a pair on top of each of its half, lowest first |
//!
//! A weight is `scale * (code - zero) - minimum`. The codes and scales are those of the file, none is rounded; only
//! the 6-bit scales of the K types are widened to bytes (under 4 % of the panel), MXFP4's exponent to bfloat16 and
//! NVFP4's scales to halves. Of types with code books the codes of single weights are stored, of 3 or 4 bits, which is
//! 25 % to 128 % more than the file's indices.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use crate::quant::{IQ1_VALUES, IQ2_VALUES, IQ3_S_VALUES, IQ3_XXS_VALUES, IQ4_NL_VALUES, MXFP4_VALUES};
use crate::simd::{BYTE_ZERO, Vector};

/// Codes of a block of 32: two halves of four groups, four weights a lane in each.
pub(crate) type Codes<S> = [[<S as Vector>::B; 4]; 2];

/// How a chunk of a K type holds its scales: a scale is a unit, in half precision, times a step of 8 bits.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    /// What units are multiplied with: a power of two.
    pub(crate) factor: f32,
    /// Where the groups' steps begin; the units of the 16 rows begin the chunk.
    pub(crate) scales: usize,
    /// Whether they are signed.
    pub(crate) signed: bool,
    /// Whether a dot product times a step is below 2^22.
    pub(crate) small: bool,
    /// Where the units of the minimums are, and where their steps begin.
    pub(crate) minimums: [usize; 2],
}

/// One quantised weight type as it lies in a panel.
pub(crate) trait Format: 'static {
    /// Weights of a row in a chunk.
    const CHUNK: usize;
    /// Bytes of a chunk of 16 rows.
    const BYTES: usize;
    /// Width of an unpacked code.
    const BITS: u32;
    /// The zero point is `1 << ZERO`; `None` where there is none. That of 8-bit codes is [`BYTE_ZERO`], as far as
    /// dot products leave it.
    const ZERO: Option<u32>;
    /// Whether each half of a block has a scale (and minimum) of its own.
    const HALVES: bool;
    /// Whether there is a minimum.
    const MINIMUM: bool;

    /// Whether scales have 19 bits of precision at most and the range of half floats times bytes: [`Vector::scaled`]
    /// takes those.
    const SHORT_SCALES: bool;
    /// Of a K type, how its scales are held.
    const STEPS: Option<Steps>;

    /// The unsigned codes of a block.
    ///
    /// # Safety
    /// `chunk` points to a whole chunk, `block < CHUNK / 32`. The same holds for the other functions.
    unsafe fn codes<S: Vector>(simd: S, chunk: *const u8, block: usize) -> Codes<S>;
    /// The scales of a block's halves (twice the same unless `HALVES`).
    ///
    /// # Safety
    /// As for `codes`.
    unsafe fn scales<S: Vector>(simd: S, chunk: *const u8, block: usize) -> [S::F; 2];
    /// The minimums of a block's halves, to be subtracted; not called unless `MINIMUM`.
    ///
    /// # Safety
    /// As for `codes`.
    unsafe fn minimums<S: Vector>(simd: S, _chunk: *const u8, _block: usize) -> [S::F; 2] {
        [simd.splat(0.0); 2]
    }
}

/// Bytes of a row of 16 halves.
const HALF: usize = 32;
/// Bytes of the planes of a block.
pub(crate) const BYTE_PLANE: usize = 512;
pub(crate) const NIBBLE_PLANE: usize = 256;
pub(crate) const PAIR_PLANE: usize = 128;
pub(crate) const BIT_PLANE: usize = 64;
pub(crate) const SIX_BIT_PLANE: usize = 384;

// Loops, not closures: a closure that is not inlined would run outside the function compiled for the instructions.

/// # Safety
/// `p` points to a byte plane.
#[inline(always)]
unsafe fn byte_plane<S: Vector>(simd: S, p: *const u8) -> Codes<S> {
    let mut codes = [[simd.zero_bytes(); 4]; 2];
    for half in 0..2 {
        for v in 0..4 {
            // SAFETY: the plane's 8 vectors.
            codes[half][v] = unsafe { simd.load_bytes(p.add(64 * (4 * half + v))) };
        }
    }
    codes
}

/// # Safety
/// `p` points to a nibble plane.
#[inline(always)]
unsafe fn nibble_plane<S: Vector>(simd: S, p: *const u8) -> Codes<S> {
    let mut codes = [[simd.zero_bytes(); 4]; 2];
    // The last vectors first, as of six bits.
    for v in [3, 2, 1, 0] {
        // SAFETY: the plane's 4 vectors.
        let both = unsafe { simd.load_bytes(p.add(64 * v)) };
        codes[0][v] = simd.and(both, 15);
        codes[1][v] = simd.and(simd.shift(both, -4), 15);
    }
    codes
}

/// The nibbles of a plane, with `high` above them.
///
/// # Safety
/// `p` points to a nibble plane.
#[inline(always)]
unsafe fn nibbles_below<S: Vector>(simd: S, p: *const u8, mut high: Codes<S>) -> Codes<S> {
    for v in 0..4 {
        // SAFETY: the plane's 4 vectors.
        let both = unsafe { simd.load_bytes(p.add(64 * v)) };
        high[0][v] = simd.low_nibbles(both, high[0][v]);
        high[1][v] = simd.high_nibbles(both, high[1][v]);
    }
    high
}

/// Codes looked up in a table.
#[inline(always)]
fn looked_up<S: Vector>(simd: S, mut codes: Codes<S>, table: &[u8; 16]) -> Codes<S> {
    for half in 0..2 {
        for v in 0..4 {
            codes[half][v] = simd.lookup(table, codes[half][v]);
        }
    }
    codes
}

/// The 2-bit codes.
///
/// # Safety
/// `p` points to a pair plane.
#[inline(always)]
unsafe fn pair_plane<S: Vector>(simd: S, p: *const u8) -> Codes<S> {
    let mut codes = [[simd.zero_bytes(); 4]; 2];
    for half in 0..2 {
        // SAFETY: the plane's 2 vectors.
        let all = unsafe { simd.load_bytes(p.add(64 * half)) };
        for v in 0..4 {
            codes[half][v] = simd.and(simd.shift(all, -2 * v as i32), 3);
        }
    }
    codes
}

/// The bits, moved up by `up`.
///
/// # Safety
/// `p` points to a bit plane.
#[inline(always)]
unsafe fn bit_plane<S: Vector>(simd: S, p: *const u8, up: i32) -> Codes<S> {
    let mut codes = [[simd.zero_bytes(); 4]; 2];
    // SAFETY: the plane's vector.
    let all = unsafe { simd.load_bytes(p) };
    for half in 0..2 {
        for v in 0..4 {
            codes[half][v] = simd.and(simd.shift(all, up - (4 * half + v) as i32), 1 << up);
        }
    }
    codes
}

/// The 6-bit codes.
///
/// # Safety
/// `p` points to a plane of six bits.
#[inline(always)]
unsafe fn six_bit_plane<S: Vector>(simd: S, p: *const u8) -> Codes<S> {
    let mut codes = [[simd.zero_bytes(); 4]; 2];
    // The last vectors first: on a Zen 4 a file is decoded a third faster so with AVX2, and as fast with AVX-512.
    for half in [1, 0] {
        let mut own = [simd.zero_bytes(); 3];
        for v in 0..3 {
            // SAFETY: the plane's 6 vectors.
            own[v] = unsafe { simd.load_bytes(p.add(64 * (3 * half + v))) };
            codes[half][v] = simd.and(own[v], 63);
        }
        codes[half][3] = simd.top_pairs(own);
    }
    codes
}

/// Three bits of each code: two, and one above them.
///
/// # Safety
/// `p` points to a pair plane, which a bit plane follows.
#[inline(always)]
unsafe fn three_bits<S: Vector>(simd: S, p: *const u8) -> Codes<S> {
    // SAFETY: the caller's promise.
    unsafe { join(simd, pair_plane(simd, p), bit_plane(simd, p.add(PAIR_PLANE), 2)) }
}

/// Both planes' bits of each code.
#[inline(always)]
fn join<S: Vector>(simd: S, mut a: Codes<S>, b: Codes<S>) -> Codes<S> {
    for half in 0..2 {
        for v in 0..4 {
            a[half][v] = simd.or(a[half][v], b[half][v]);
        }
    }
    a
}

/// Declares a type whose chunk has one scale: that (and the minimum), then the planes of each block.
macro_rules! legacy {
    ($(#[$doc:meta])* $name:ident: chunk $chunk:literal, short $short:literal, bits $bits:literal, zero $zero:expr,
     minimum $minimum:literal, planes $planes:expr, |$simd:ident, $p:ident| $codes:expr, $load:ident) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl $name {
            pub(crate) const HEADER: usize = if $minimum { 2 * HALF } else { HALF };
            /// Bytes of a block's planes.
            pub(crate) const PLANES: usize = $planes;
        }

        impl Format for $name {
            const CHUNK: usize = $chunk;
            const BYTES: usize = Self::HEADER + $chunk / 32 * Self::PLANES;
            const BITS: u32 = $bits;
            const ZERO: Option<u32> = $zero;
            const HALVES: bool = false;
            const MINIMUM: bool = $minimum;
            const STEPS: Option<Steps> = None;
            const SHORT_SCALES: bool = $short;

            #[inline(always)]
            unsafe fn codes<S: Vector>($simd: S, chunk: *const u8, block: usize) -> Codes<S> {
                // SAFETY: the chunk's planes follow its header.
                unsafe {
                    let $p = chunk.add(Self::HEADER + block * Self::PLANES);
                    $codes
                }
            }
            #[inline(always)]
            unsafe fn scales<S: Vector>(simd: S, chunk: *const u8, _block: usize) -> [S::F; 2] {
                // SAFETY: the chunk begins with 16 scales of two bytes.
                [unsafe { simd.$load(chunk) }; 2]
            }
            #[inline(always)]
            unsafe fn minimums<S: Vector>(simd: S, chunk: *const u8, _block: usize) -> [S::F; 2] {
                // SAFETY: called only where 16 halves follow the scales. They are added in the file's formula.
                [simd.mul(unsafe { simd.load_f16(chunk.add(HALF)) }, simd.splat(-1.0)); 2]
            }
        }
    };
}

legacy! {
    /// `d * code`, the file's signed code moved up by [`BYTE_ZERO`].
    Q8_0: chunk 32, short true, bits 8, zero Some(7), minimum false, planes BYTE_PLANE,
    |simd, p| byte_plane(simd, p), load_f16
}
legacy! {
    /// `d * (code - 8)`.
    Q4_0: chunk 32, short true, bits 4, zero Some(3), minimum false, planes NIBBLE_PLANE,
    |simd, p| nibble_plane(simd, p), load_f16
}
legacy! {
    /// `d * code + m`.
    Q4_1: chunk 32, short true, bits 4, zero None, minimum true, planes NIBBLE_PLANE,
    |simd, p| nibble_plane(simd, p), load_f16
}
legacy! {
    /// `d * (code - 16)`.
    Q5_0: chunk 32, short true, bits 5, zero Some(4), minimum false, planes NIBBLE_PLANE + BIT_PLANE,
    |simd, p| nibbles_below(simd, p, bit_plane(simd, p.add(NIBBLE_PLANE), 4)), load_f16
}
legacy! {
    /// `d * code + m`.
    Q5_1: chunk 32, short true, bits 5, zero None, minimum true, planes NIBBLE_PLANE + BIT_PLANE,
    |simd, p| nibbles_below(simd, p, bit_plane(simd, p.add(NIBBLE_PLANE), 4)), load_f16
}
legacy! {
    /// `d * code`, the code looked up by a nibble and moved up by [`BYTE_ZERO`].
    Iq4Nl: chunk 32, short true, bits 8, zero Some(7), minimum false, planes NIBBLE_PLANE,
    |simd, p| looked_up(simd, nibble_plane(simd, p), &IQ4_NL_CODES), load_f16
}
legacy! {
    /// `s * (code - 16)`, the code looked up by a nibble, `s` a power of two held as bfloat16.
    Mxfp4: chunk 32, short false, bits 5, zero Some(4), minimum false, planes NIBBLE_PLANE,
    |simd, p| looked_up(simd, nibble_plane(simd, p), &MXFP4_CODES), load_bf16
}
legacy! {
    /// `d * (code - 1)`: the ternary types.
    Ternary: chunk 64, short true, bits 2, zero Some(0), minimum false, planes PAIR_PLANE,
    |simd, p| pair_plane(simd, p), load_f16
}
legacy! {
    /// `d * (code - 1)`, the code twice the bit.
    Q1_0: chunk 128, short true, bits 2, zero Some(0), minimum false, planes BIT_PLANE,
    |simd, p| bit_plane(simd, p, 1), load_f16
}

/// `d * (code - 16)`, the code looked up by a nibble, with a scale for each 16 weights.
pub(crate) struct Nvfp4;

impl Nvfp4 {
    /// Where the planes begin.
    pub(crate) const HEADER: usize = 4 * HALF;
}

impl Format for Nvfp4 {
    const CHUNK: usize = 64;
    const BYTES: usize = Self::HEADER + 2 * NIBBLE_PLANE;
    const BITS: u32 = 5;
    const ZERO: Option<u32> = Some(4);
    const HALVES: bool = true;
    const MINIMUM: bool = false;
    const STEPS: Option<Steps> = None;
    const SHORT_SCALES: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Vector>(simd: S, chunk: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the planes of a chunk's two blocks follow its header.
        let nibbles = unsafe { nibble_plane(simd, chunk.add(Self::HEADER + block * NIBBLE_PLANE)) };
        looked_up(simd, nibbles, &MXFP4_CODES)
    }
    #[inline(always)]
    unsafe fn scales<S: Vector>(simd: S, chunk: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the chunk begins with the scales of its four halves of blocks.
        unsafe { [0, 1].map(|half| simd.load_f16(chunk.add((2 * block + half) * HALF))) }
    }
}

/// The values a nibble stands for, moved up to be unsigned.
const fn raised(values: &[i8; 16], by: i16) -> [u8; 16] {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = (values[i] as i16 + by) as u8;
        i += 1;
    }
    codes
}

const IQ4_NL_CODES: [u8; 16] = raised(&IQ4_NL_VALUES, BYTE_ZERO as i16);
const MXFP4_CODES: [u8; 16] = raised(&MXFP4_VALUES, 16);
const IQ1_CODES: [u8; 16] = raised(&IQ1_VALUES, 16);
const IQ2_CODES: [u8; 16] = raised(&IQ2_VALUES, 64);
const IQ3_S_CODES: [u8; 16] = raised(&IQ3_S_VALUES, 16);
const IQ3_XXS_CODES: [u8; 16] = raised(&IQ3_XXS_VALUES, 32);

/// What no dot product of so many weights exceeds, codes of so many bits having this zero point.
const fn dot_below(bits: u32, zero: Option<u32>, weights: i32) -> i32 {
    let code = match zero {
        Some(zero) => 1 << zero,
        None => (1 << bits) - 1,
    };
    127 * code * weights
}

/// Declares a K or IQ type: a chunk is 256 weights, half-precision `d` (and `dmin`), which `factor` multiplies, a byte
/// of scale (and of minimum) for each of `GROUPS` groups, which is `$step` at most, then 8 blocks of planes.
macro_rules! super_block {
    ($(#[$doc:meta])* $name:ident: factor $factor:literal, bits $bits:literal, zero $zero:expr,
     minimum $minimum:literal, halves $halves:literal, step $step:literal, planes $planes:expr,
     |$simd:ident, $p:ident| $codes:expr, $load:ident) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl $name {
            /// Groups with a scale of their own.
            pub(crate) const GROUPS: usize = if $halves { 16 } else { 8 };
            /// Where the group scales begin; minimums follow them.
            pub(crate) const SCALES: usize = if $minimum { 2 * HALF } else { HALF };
            /// Where the planes begin.
            pub(crate) const HEADER: usize = Self::SCALES + 16 * Self::GROUPS * if $minimum { 2 } else { 1 };
            /// Bytes of a block's planes.
            pub(crate) const PLANES: usize = $planes;

            /// `d * scale` of a block's halves, the halves at `d` and the bytes at `bytes`.
            ///
            /// # Safety
            /// `d` is readable for 16 halves, `bytes` for the chunk's scales or minimums.
            #[inline(always)]
            unsafe fn products<S: Vector>(simd: S, d: *const u8, bytes: *const u8, block: usize) -> [S::F; 2] {
                // SAFETY: the caller vouches for both arrays.
                unsafe {
                    let mut d = simd.load_f16(d);
                    if $factor != 1.0 {
                        d = simd.mul(d, simd.splat($factor));
                    }
                    let first = if $halves { 2 * block } else { block };
                    let one = simd.mul(d, simd.to_float(simd.$load(bytes.add(16 * first))));
                    let second = || simd.mul(d, simd.to_float(simd.$load(bytes.add(16 * (first + 1)))));
                    let two = if $halves { second() } else { one };
                    [one, two]
                }
            }
        }

        impl Format for $name {
            const CHUNK: usize = 256;
            const BYTES: usize = Self::HEADER + 8 * Self::PLANES;
            const BITS: u32 = $bits;
            const ZERO: Option<u32> = $zero;
            const HALVES: bool = $halves;
            const MINIMUM: bool = $minimum;
            const SHORT_SCALES: bool = true;
            const STEPS: Option<Steps> = Some(Steps {
                factor: $factor,
                scales: Self::SCALES,
                // Types without minimums have scales of both signs.
                signed: !$minimum,
                small: dot_below($bits, $zero, if $halves { 16 } else { 32 }) * $step < 1 << 22,
                minimums: [HALF, Self::SCALES + 16 * Self::GROUPS],
            });

            #[inline(always)]
            unsafe fn codes<S: Vector>($simd: S, chunk: *const u8, block: usize) -> Codes<S> {
                // SAFETY: the planes of a chunk's 8 blocks follow its header.
                unsafe {
                    let $p = chunk.add(Self::HEADER + block * Self::PLANES);
                    $codes
                }
            }
            #[inline(always)]
            unsafe fn scales<S: Vector>(simd: S, chunk: *const u8, block: usize) -> [S::F; 2] {
                // SAFETY: `d` begins the chunk, the group scales lie at SCALES.
                unsafe { Self::products(simd, chunk, chunk.add(Self::SCALES), block) }
            }
            #[inline(always)]
            unsafe fn minimums<S: Vector>(simd: S, chunk: *const u8, block: usize) -> [S::F; 2] {
                // SAFETY: called only where `dmin` follows `d` and the group minimums follow the group scales.
                unsafe { Self::products(simd, chunk.add(HALF), chunk.add(Self::SCALES + 16 * Self::GROUPS), block) }
            }
        }
    };
}

super_block! {
    /// `d * scale * code - dmin * minimum`, groups of 32.
    Q4K: factor 1.0, bits 4, zero None, minimum true, halves false, step 63, planes NIBBLE_PLANE,
    |simd, p| nibble_plane(simd, p), load_u8
}
super_block! {
    /// `d * scale * code - dmin * minimum`, groups of 32.
    Q5K: factor 1.0, bits 5, zero None, minimum true, halves false, step 63, planes NIBBLE_PLANE + BIT_PLANE,
    |simd, p| nibbles_below(simd, p, bit_plane(simd, p.add(NIBBLE_PLANE), 4)), load_u8
}
super_block! {
    /// `d * scale * (code - 32)`, signed scales, groups of 16.
    Q6K: factor 1.0, bits 6, zero Some(5), minimum false, halves true, step 128, planes SIX_BIT_PLANE,
    |simd, p| six_bit_plane(simd, p), load_i8
}
super_block! {
    /// `d * scale * (code - 4)`, signed scales, groups of 16.
    Q3K: factor 1.0, bits 3, zero Some(2), minimum false, halves true, step 32, planes PAIR_PLANE + BIT_PLANE,
    |simd, p| three_bits(simd, p), load_i8
}
super_block! {
    /// `d * scale * code - dmin * minimum`, groups of 16.
    Q2K: factor 1.0, bits 2, zero None, minimum true, halves true, step 15, planes PAIR_PLANE,
    |simd, p| pair_plane(simd, p), load_u8
}
super_block! {
    /// `d * scale * code`, groups of 32, the code looked up by a nibble and moved up by [`BYTE_ZERO`], signed scales.
    Iq4Xs: factor 1.0, bits 8, zero Some(7), minimum false, halves false, step 32, planes NIBBLE_PLANE,
    |simd, p| looked_up(simd, nibble_plane(simd, p), &IQ4_NL_CODES), load_i8
}
super_block! {
    /// `d * scale * (code - 16)`, groups of 32, the code looked up by a nibble.
    Iq3S: factor 1.0, bits 5, zero Some(4), minimum false, halves false, step 31, planes NIBBLE_PLANE,
    |simd, p| looked_up(simd, nibble_plane(simd, p), &IQ3_S_CODES), load_i8
}
super_block! {
    /// `d / 2 * scale * (code - 32)`, groups of 32, the code looked up by a nibble.
    Iq3Xxs: factor 0.5, bits 6, zero Some(5), minimum false, halves false, step 31, planes NIBBLE_PLANE,
    |simd, p| looked_up(simd, nibble_plane(simd, p), &IQ3_XXS_CODES), load_i8
}
super_block! {
    /// `d / 8 * scale * (code - 64)`, groups of 16, the code looked up by three bits.
    Iq2: factor 0.125, bits 7, zero Some(6), minimum false, halves true, step 31, planes PAIR_PLANE + BIT_PLANE,
    |simd, p| looked_up(simd, three_bits(simd, p), &IQ2_CODES), load_i8
}
super_block! {
    /// `d / 8 * scale * (code - 16)`, groups of 16, the code looked up by three bits.
    Iq1: factor 0.125, bits 5, zero Some(4), minimum false, halves true, step 15, planes PAIR_PLANE + BIT_PLANE,
    |simd, p| looked_up(simd, three_bits(simd, p), &IQ1_CODES), load_i8
}
