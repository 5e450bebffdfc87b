//! AVX-512 with VNNI: one register is a panel row of lanes, `vpdpbusd` multiplies and adds 64 bytes.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use std::arch::x86_64::*;

use super::super::isa::Isa;
use super::{Kernel, Lanes};

/// Proof that the processor has AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// The token, where the processor has the instructions.
    #[inline]
    pub(super) fn new() -> Option<Self> {
        Isa::Avx512Vnni.is_available().then_some(Avx512(()))
    }
}

/// Wraps expressions that only need the instructions of the token.
macro_rules! have {
    ($e:expr) => {
        // SAFETY: the token proves that the processor has the instructions; no memory is touched.
        unsafe { $e }
    };
}

/// Wraps loads and stores, whose pointer the caller vouches for.
macro_rules! memory {
    ($e:expr) => {
        // SAFETY: the token proves the instructions, the caller that the pointer is good for the bytes named.
        unsafe { $e }
    };
}

impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const TILE: usize = 16;
    const FLOAT_TILE: usize = 12;
    const SIGNED_BYTES: bool = false;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn enter<K: Kernel>(lanes: Avx512, kernel: K) -> K::Out {
            kernel.run(lanes)
        }
        have!(enter(self, kernel))
    }

    #[inline(always)]
    fn zero(self) -> __m512 {
        have!(_mm512_setzero_ps())
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        have!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        have!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> __m512i {
        have!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn shl_int(self, x: __m512i, by: u32) -> __m512i {
        have!(_mm512_sll_epi32(x, _mm_cvtsi32_si128(by as i32)))
    }
    #[inline(always)]
    fn to_float(self, x: __m512i) -> __m512 {
        have!(_mm512_cvtepi32_ps(x))
    }

    #[inline(always)]
    fn no_bytes(self) -> __m512i {
        have!(_mm512_setzero_si512())
    }
    #[inline(always)]
    fn and(self, x: __m512i, mask: u8) -> __m512i {
        have!(_mm512_and_si512(x, _mm512_set1_epi8(mask as i8)))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        have!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn shift(self, x: __m512i, by: i32) -> __m512i {
        if by >= 0 { self.shl_int(x, by as u32) } else { have!(_mm512_srl_epi32(x, _mm_cvtsi32_si128(-by))) }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: __m512i) -> __m512i {
        have!(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), x))
    }

    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        _bits: u32,
        mut acc: [__m512i; J],
        w: &[[__m512i; 4]; H],
        a: [*const i8; J],
    ) -> [__m512i; J] {
        for h in 0..H {
            for v in 0..4 {
                for j in 0..J {
                    let quad = memory!(a[j].add(16 * h + 4 * v).cast::<i32>().read_unaligned());
                    acc[j] = have!(_mm512_dpbusd_epi32(acc[j], w[h][v], _mm512_set1_epi32(quad)));
                }
            }
        }
        acc
    }

    #[inline(always)]
    unsafe fn bytes(self, p: *const u8) -> __m512i {
        memory!(_mm512_loadu_si512(p.cast()))
    }
    #[inline(always)]
    unsafe fn f32s(self, p: *const u8) -> __m512 {
        memory!(_mm512_loadu_ps(p.cast()))
    }
    #[inline(always)]
    unsafe fn f16s(self, p: *const u8) -> __m512 {
        memory!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn bf16s(self, p: *const u8) -> __m512 {
        let wide = memory!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())));
        have!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
    }
    #[inline(always)]
    unsafe fn u8s(self, p: *const u8) -> __m512i {
        memory!(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn i8s(self, p: *const u8) -> __m512i {
        memory!(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn store(self, x: __m512, p: *mut f32) {
        memory!(_mm512_storeu_ps(p, x))
    }
    #[inline(always)]
    unsafe fn store_bytes(self, x: __m512i, p: *mut u8) {
        memory!(_mm512_storeu_si512(p.cast(), x))
    }
}
