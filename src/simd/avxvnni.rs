//! AVX-VNNI: AVX2 with `vpdpbusd`, which adds four products of bytes to a 32-bit lane. Nothing else differs.
//!
//! The instruction has two encodings: AVX-VNNI's own, and that of AVX-512 VNNI with AVX-512 VL. A processor that has
//! the second alone uses the level of AVX-512, so the second is built for tests only: they run this level on such
//! machines too. The instruction is written out, since the intrinsics of the second would let the compiler use all of
//! AVX-512.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::{Products, Ymm};
use super::vector::{Kernel, Vector};

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
    const ONE_SIGNED: bool = false;

    #[inline(always)]
    fn unpacks_from(_bits: u32) -> usize {
        usize::MAX
    }
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
