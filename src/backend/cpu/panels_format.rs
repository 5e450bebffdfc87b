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
//!
//! A weight is `scale * (code - zero) - minimum`. The codes and scales are those of the file, none is rounded; only
//! the 6-bit scales of the K types are widened to bytes (under 4 % of the panel) and MXFP4's exponent to bfloat16.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use super::lanes::Lanes;
use crate::quant::{IQ4_NL_VALUES, MXFP4_VALUES};

/// Codes of a block of 32: two halves of four groups, four weights a lane in each.
pub(super) type Codes<L> = [[<L as Lanes>::B; 4]; 2];

/// One quantised weight type as it lies in a panel.
pub(super) trait Format: 'static {
    /// Weights of a row in a chunk.
    const CHUNK: usize;
    /// Bytes of a chunk of 16 rows.
    const BYTES: usize;
    /// Width of an unpacked code.
    const BITS: u32;
    /// The zero point is `1 << ZERO`; `None` where there is none.
    const ZERO: Option<u32>;
    /// Whether each half of a block has a scale (and minimum) of its own.
    const HALVES: bool;
    /// Whether there is a minimum.
    const MINIMUM: bool;

    /// The unsigned codes of a block.
    ///
    /// # Safety
    /// `chunk` points to a whole chunk, `block < CHUNK / 32`. The same holds for the other functions.
    unsafe fn codes<L: Lanes>(l: L, chunk: *const u8, block: usize) -> Codes<L>;
    /// The scales of a block's halves (twice the same unless `HALVES`).
    ///
    /// # Safety
    /// As for `codes`.
    unsafe fn scales<L: Lanes>(l: L, chunk: *const u8, block: usize) -> [L::F; 2];
    /// The minimums of a block's halves, to be subtracted; not called unless `MINIMUM`.
    ///
    /// # Safety
    /// As for `codes`.
    unsafe fn minimums<L: Lanes>(l: L, _chunk: *const u8, _block: usize) -> [L::F; 2] {
        [l.zero(); 2]
    }
}

/// Bytes of a row of 16 halves.
const HALF: usize = 32;
/// Bytes of the planes of a block.
pub(super) const BYTE_PLANE: usize = 512;
pub(super) const NIBBLE_PLANE: usize = 256;
pub(super) const PAIR_PLANE: usize = 128;
pub(super) const BIT_PLANE: usize = 64;

// Loops, not closures: a closure that is not inlined would run outside the function compiled for the instructions.

/// # Safety
/// `p` points to a byte plane.
#[inline(always)]
unsafe fn byte_plane<L: Lanes>(l: L, p: *const u8) -> Codes<L> {
    let mut codes = [[l.no_bytes(); 4]; 2];
    for half in 0..2 {
        for v in 0..4 {
            // SAFETY: the plane's 8 vectors.
            codes[half][v] = unsafe { l.bytes(p.add(64 * (4 * half + v))) };
        }
    }
    codes
}

/// # Safety
/// `p` points to a nibble plane.
#[inline(always)]
unsafe fn nibble_plane<L: Lanes>(l: L, p: *const u8) -> Codes<L> {
    let mut codes = [[l.no_bytes(); 4]; 2];
    for v in 0..4 {
        // SAFETY: the plane's 4 vectors.
        let both = unsafe { l.bytes(p.add(64 * v)) };
        codes[0][v] = l.and(both, 15);
        codes[1][v] = l.and(l.shift(both, -4), 15);
    }
    codes
}

/// Codes looked up by the nibbles of a plane.
///
/// # Safety
/// `p` points to a nibble plane.
#[inline(always)]
unsafe fn looked_up<L: Lanes>(l: L, p: *const u8, table: &[u8; 16]) -> Codes<L> {
    // SAFETY: the caller's promise.
    let mut codes = unsafe { nibble_plane(l, p) };
    for half in 0..2 {
        for v in 0..4 {
            codes[half][v] = l.lookup(table, codes[half][v]);
        }
    }
    codes
}

/// The 2-bit codes, moved up by `up` bits.
///
/// # Safety
/// `p` points to a pair plane.
#[inline(always)]
unsafe fn pair_plane<L: Lanes>(l: L, p: *const u8, up: i32) -> Codes<L> {
    let mut codes = [[l.no_bytes(); 4]; 2];
    for half in 0..2 {
        // SAFETY: the plane's 2 vectors.
        let all = unsafe { l.bytes(p.add(64 * half)) };
        for v in 0..4 {
            codes[half][v] = l.and(l.shift(all, up - 2 * v as i32), 3 << up);
        }
    }
    codes
}

/// The bits, moved up by `up`.
///
/// # Safety
/// `p` points to a bit plane.
#[inline(always)]
unsafe fn bit_plane<L: Lanes>(l: L, p: *const u8, up: i32) -> Codes<L> {
    let mut codes = [[l.no_bytes(); 4]; 2];
    // SAFETY: the plane's vector.
    let all = unsafe { l.bytes(p) };
    for half in 0..2 {
        for v in 0..4 {
            codes[half][v] = l.and(l.shift(all, up - (4 * half + v) as i32), 1 << up);
        }
    }
    codes
}

/// Both planes' bits of each code.
#[inline(always)]
fn join<L: Lanes>(l: L, mut a: Codes<L>, b: Codes<L>) -> Codes<L> {
    for half in 0..2 {
        for v in 0..4 {
            a[half][v] = l.or(a[half][v], b[half][v]);
        }
    }
    a
}

/// Declares a type whose chunk is one block: `header` bytes of scales, then the planes.
macro_rules! legacy {
    ($(#[$doc:meta])* $name:ident: bits $bits:literal, zero $zero:expr, minimum $minimum:literal,
     planes $planes:expr, |$l:ident, $p:ident| $codes:expr, $load:ident) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl $name {
            pub(super) const HEADER: usize = if $minimum { 2 * HALF } else { HALF };
        }

        impl Format for $name {
            const CHUNK: usize = 32;
            const BYTES: usize = Self::HEADER + $planes;
            const BITS: u32 = $bits;
            const ZERO: Option<u32> = $zero;
            const HALVES: bool = false;
            const MINIMUM: bool = $minimum;

            #[inline(always)]
            unsafe fn codes<L: Lanes>($l: L, chunk: *const u8, _block: usize) -> Codes<L> {
                // SAFETY: the chunk's planes follow its header.
                unsafe {
                    let $p = chunk.add(Self::HEADER);
                    $codes
                }
            }
            #[inline(always)]
            unsafe fn scales<L: Lanes>(l: L, chunk: *const u8, _block: usize) -> [L::F; 2] {
                // SAFETY: the chunk begins with 16 scales of two bytes.
                [unsafe { l.$load(chunk) }; 2]
            }
            #[inline(always)]
            unsafe fn minimums<L: Lanes>(l: L, chunk: *const u8, _block: usize) -> [L::F; 2] {
                // SAFETY: called only where 16 halves follow the scales. They are added in the file's formula.
                [l.mul(unsafe { l.f16s(chunk.add(HALF)) }, l.splat(-1.0)); 2]
            }
        }
    };
}

legacy! {
    /// `d * (code - 128)`, the file's signed code moved up by 128.
    Q8_0: bits 8, zero Some(7), minimum false, planes BYTE_PLANE, |l, p| byte_plane(l, p), f16s
}
legacy! {
    /// `d * (code - 8)`.
    Q4_0: bits 4, zero Some(3), minimum false, planes NIBBLE_PLANE, |l, p| nibble_plane(l, p), f16s
}
legacy! {
    /// `d * code + m`.
    Q4_1: bits 4, zero None, minimum true, planes NIBBLE_PLANE, |l, p| nibble_plane(l, p), f16s
}
legacy! {
    /// `d * (code - 16)`.
    Q5_0: bits 5, zero Some(4), minimum false, planes NIBBLE_PLANE + BIT_PLANE,
    |l, p| join(l, nibble_plane(l, p), bit_plane(l, p.add(NIBBLE_PLANE), 4)), f16s
}
legacy! {
    /// `d * code + m`.
    Q5_1: bits 5, zero None, minimum true, planes NIBBLE_PLANE + BIT_PLANE,
    |l, p| join(l, nibble_plane(l, p), bit_plane(l, p.add(NIBBLE_PLANE), 4)), f16s
}
legacy! {
    /// `d * (code - 128)`, the code looked up by a nibble.
    Iq4Nl: bits 8, zero Some(7), minimum false, planes NIBBLE_PLANE,
    |l, p| looked_up(l, p, &IQ4_NL_CODES), f16s
}
legacy! {
    /// `s * (code - 16)`, the code looked up by a nibble, `s` a power of two held as bfloat16.
    Mxfp4: bits 5, zero Some(4), minimum false, planes NIBBLE_PLANE,
    |l, p| looked_up(l, p, &MXFP4_CODES), bf16s
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

const IQ4_NL_CODES: [u8; 16] = raised(&IQ4_NL_VALUES, 128);
const MXFP4_CODES: [u8; 16] = raised(&MXFP4_VALUES, 16);

/// Declares a K type: a chunk is 256 weights, half-precision `d` (and `dmin`), a byte of scale (and of minimum) for
/// each of `GROUPS` groups, then 8 blocks of planes.
macro_rules! super_block {
    ($(#[$doc:meta])* $name:ident: bits $bits:literal, zero $zero:expr, minimum $minimum:literal,
     halves $halves:literal, planes $planes:expr, |$l:ident, $p:ident| $codes:expr, $load:ident) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl $name {
            /// Groups with a scale of their own.
            pub(super) const GROUPS: usize = if $halves { 16 } else { 8 };
            /// Where the group scales begin; minimums follow them.
            pub(super) const SCALES: usize = if $minimum { 2 * HALF } else { HALF };
            /// Where the planes begin.
            pub(super) const HEADER: usize = Self::SCALES + 16 * Self::GROUPS * if $minimum { 2 } else { 1 };
            /// Bytes of a block's planes.
            pub(super) const PLANES: usize = $planes;

            /// `d * scale` of a block's halves, the halves at `d` and the bytes at `bytes`.
            ///
            /// # Safety
            /// `d` is readable for 16 halves, `bytes` for the chunk's scales or minimums.
            #[inline(always)]
            unsafe fn products<L: Lanes>(l: L, d: *const u8, bytes: *const u8, block: usize) -> [L::F; 2] {
                // SAFETY: the caller vouches for both arrays.
                unsafe {
                    let d = l.f16s(d);
                    let first = if $halves { 2 * block } else { block };
                    let one = l.mul(d, l.to_float(l.$load(bytes.add(16 * first))));
                    let two = if $halves { l.mul(d, l.to_float(l.$load(bytes.add(16 * (first + 1))))) } else { one };
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

            #[inline(always)]
            unsafe fn codes<L: Lanes>($l: L, chunk: *const u8, block: usize) -> Codes<L> {
                // SAFETY: the planes of a chunk's 8 blocks follow its header.
                unsafe {
                    let $p = chunk.add(Self::HEADER + block * Self::PLANES);
                    $codes
                }
            }
            #[inline(always)]
            unsafe fn scales<L: Lanes>(l: L, chunk: *const u8, block: usize) -> [L::F; 2] {
                // SAFETY: `d` begins the chunk, the group scales lie at SCALES.
                unsafe { Self::products(l, chunk, chunk.add(Self::SCALES), block) }
            }
            #[inline(always)]
            unsafe fn minimums<L: Lanes>(l: L, chunk: *const u8, block: usize) -> [L::F; 2] {
                // SAFETY: called only where `dmin` follows `d` and the group minimums follow the group scales.
                unsafe { Self::products(l, chunk.add(HALF), chunk.add(Self::SCALES + 16 * Self::GROUPS), block) }
            }
        }
    };
}

super_block! {
    /// `d * scale * code - dmin * minimum`, groups of 32.
    Q4K: bits 4, zero None, minimum true, halves false, planes NIBBLE_PLANE, |l, p| nibble_plane(l, p), u8s
}
super_block! {
    /// `d * scale * code - dmin * minimum`, groups of 32.
    Q5K: bits 5, zero None, minimum true, halves false, planes NIBBLE_PLANE + BIT_PLANE,
    |l, p| join(l, nibble_plane(l, p), bit_plane(l, p.add(NIBBLE_PLANE), 4)), u8s
}
super_block! {
    /// `d * scale * (code - 32)`, signed scales, groups of 16.
    Q6K: bits 6, zero Some(5), minimum false, halves true, planes NIBBLE_PLANE + PAIR_PLANE,
    |l, p| join(l, nibble_plane(l, p), pair_plane(l, p.add(NIBBLE_PLANE), 4)), i8s
}
super_block! {
    /// `d * scale * (code - 4)`, signed scales, groups of 16.
    Q3K: bits 3, zero Some(2), minimum false, halves true, planes PAIR_PLANE + BIT_PLANE,
    |l, p| join(l, pair_plane(l, p, 0), bit_plane(l, p.add(PAIR_PLANE), 2)), i8s
}
super_block! {
    /// `d * scale * code - dmin * minimum`, groups of 16.
    Q2K: bits 2, zero None, minimum true, halves true, planes PAIR_PLANE, |l, p| pair_plane(l, p, 0), u8s
}
