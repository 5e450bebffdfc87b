//! AVX-VNNI: AVX2 with `vpdpbusd`, which adds four products of bytes to a 32-bit lane. What differs besides is from how
//! many columns on codes are unpacked to memory, and with it the widest tile.
//!
//! The instruction has two encodings: AVX-VNNI's own, and that of AVX-512 VNNI with AVX-512 VL. A processor that has
//! the second alone uses the level of AVX-512, so the second is built for tests only: they run this level on such
//! machines too. The instruction is written out, since the intrinsics of the second would let the compiler use all of
//! AVX-512.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::{Products, Ymm};
use super::vector::{Kernel, Unpacked, Vector};

/// The level, in the encoding that the processor has.
pub(super) enum AvxVnni {
    Own(Ymm<Quads<false>>),
    #[cfg(any(test, feature = "testing"))]
    Avx512(Ymm<Quads<true>>),
}

impl AvxVnni {
    /// The token, where the processor has the instructions.
    #[inline]
    pub(super) fn new() -> Option<Self> {
        let level = Ymm::new().map(AvxVnni::Own);
        #[cfg(any(test, feature = "testing"))]
        let level = level.or_else(|| Ymm::new().map(AvxVnni::Avx512));
        level
    }

    /// As [`Vector::vectorize`].
    #[inline(always)]
    pub(super) fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            AvxVnni::Own(simd) => simd.vectorize(kernel),
            #[cfg(any(test, feature = "testing"))]
            AvxVnni::Avx512(simd) => simd.vectorize(kernel),
        }
    }
}

/// By `vpdpbusd`, encoded as AVX-512 has it or as AVX-VNNI has it.
#[derive(Clone, Copy)]
pub(super) struct Quads<const AVX512: bool>(());

impl<const AVX512: bool> Products for Quads<AVX512> {
    const TILE: usize = 8;
    // Codes of 8 bits gain nothing by it, and lose where few columns share it.
    const UNPACKS_FROM: usize = 16;
    const ONE_SIGNED: bool = false;
    const WORDS_FROM: u32 = u32::MAX;

    #[inline]
    fn new() -> Option<Self> {
        let available = if AVX512 {
            is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl")
        } else {
            is_x86_feature_detected!("avxvnni")
        };
        available.then_some(Quads(()))
    }

    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        _bits: u32,
        mut acc: [[__m256i; 2]; J],
        w: &[[[__m256i; 2]; 4]; H],
        a: [*const i8; J],
    ) -> [[__m256i; 2]; J] {
        for h in 0..H {
            for v in 0..4 {
                for j in 0..J {
                    for half in 0..2 {
                        // SAFETY: the token proves the instructions, and the caller vouches for 16 * H bytes.
                        unsafe {
                            let quad = _mm256_set1_epi32(a[j].add(16 * h + 4 * v).cast::<i32>().read_unaligned());
                            acc[j][half] = products::<AVX512>(acc[j][half], w[h][v][half], quad);
                        }
                    }
                }
            }
        }
        acc
    }

    #[inline(always)]
    unsafe fn columns<const H: usize>(
        self,
        _bits: u32,
        acc: [[__m256i; 2]; Unpacked::COLUMNS],
        codes: *const i8,
        x: [*const i8; Unpacked::COLUMNS],
    ) -> [[__m256i; 2]; Unpacked::COLUMNS] {
        // SAFETY: the token proves the instructions; the caller's promise.
        unsafe {
            let acc = half_block::<AVX512>(acc, codes, x);
            if H == 1 { acc } else { half_block::<AVX512>(acc, codes.add(64 * 4), x.map(|x| x.add(16))) }
        }
    }
}

/// Adds the dot products of four vectors of codes with four columns. Written out, so that nothing the compiler moves
/// takes the registers.
///
/// # Safety
/// The processor has `vpdpbusd` in this encoding; `codes` is aligned to 32 bytes and four vectors long, each column has
/// 16 activations.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn half_block<const AVX512: bool>(
    [[mut a, mut b], [mut c, mut d], [mut e, mut f], [mut g, mut h]]: [[__m256i; 2]; Unpacked::COLUMNS],
    codes: *const i8,
    [x, y, z, u]: [*const i8; Unpacked::COLUMNS],
) -> [[__m256i; 2]; Unpacked::COLUMNS] {
    macro_rules! vector {
        ($dot:literal $codes:literal $at:literal) => {
            concat!(
                "vmovdqa {w}, [{codes} + ", $codes, "]\nvmovdqa {v}, [{codes} + 32 + ", $codes, "]\n",
                vector!(@ $dot $at "x" "a" "b"), vector!(@ $dot $at "y" "c" "d"),
                vector!(@ $dot $at "z" "e" "f"), vector!(@ $dot $at "u" "g" "h"),
            )
        };
        (@ $dot:literal $at:literal $column:literal $low:literal $high:literal) => {
            concat!(
                "vpbroadcastd {s}, [{", $column, "} + ", $at, "]\n",
                $dot, " {", $low, "}, {w}, {s}\n", $dot, " {", $high, "}, {v}, {s}\n",
            )
        };
    }
    macro_rules! run {
        ($dot:literal) => {
            asm!(
                vector!($dot "0" "0"), vector!($dot "64" "4"), vector!($dot "128" "8"), vector!($dot "192" "12"),
                codes = in(reg) codes, x = in(reg) x, y = in(reg) y, z = in(reg) z, u = in(reg) u,
                a = inout(ymm_reg) a, b = inout(ymm_reg) b, c = inout(ymm_reg) c, d = inout(ymm_reg) d,
                e = inout(ymm_reg) e, f = inout(ymm_reg) f, g = inout(ymm_reg) g, h = inout(ymm_reg) h,
                w = out(ymm_reg) _, v = out(ymm_reg) _, s = out(ymm_reg) _,
                options(readonly, nostack, preserves_flags)
            )
        };
    }
    // SAFETY: the caller's promise; only what it vouches for is read.
    unsafe {
        if AVX512 {
            run!("{{evex}} vpdpbusd");
        } else {
            run!("{{vex}} vpdpbusd");
        }
    }
    [[a, b], [c, d], [e, f], [g, h]]
}

/// `vpdpbusd`.
///
/// # Safety
/// The processor has it in this encoding.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn products<const AVX512: bool>(mut acc: __m256i, w: __m256i, quad: __m256i) -> __m256i {
    // SAFETY: the caller's promise; no memory is touched.
    unsafe {
        if AVX512 {
            asm!("{{evex}} vpdpbusd {acc}, {w}, {quad}", acc = inout(ymm_reg) acc, w = in(ymm_reg) w,
                quad = in(ymm_reg) quad, options(pure, nomem, nostack, preserves_flags));
        } else {
            asm!("{{vex}} vpdpbusd {acc}, {w}, {quad}", acc = inout(ymm_reg) acc, w = in(ymm_reg) w,
                quad = in(ymm_reg) quad, options(pure, nomem, nostack, preserves_flags));
        }
    }
    acc
}
