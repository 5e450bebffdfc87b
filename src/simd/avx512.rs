//! AVX-512 with VNNI: one register is a panel row of lanes, `vpdpbusd` multiplies and adds 64 bytes.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::vector::{Kernel, Vector};

/// Proof that the processor has AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(super) struct Avx512(Avx2);

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

impl Vector for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    type M = __mmask16;

    const TILE: usize = 16;
    const FLOAT_TILE: usize = 12;
    const ENTRIES: [usize; 4] = [12, 8, 4, 2];
    const WIDE: bool = true;
    const SIGNED_BYTES: bool = false;

    #[inline]
    fn new() -> Option<Self> {
        let avx2 = Avx2::new()?;
        let available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        available.then_some(Avx512(avx2))
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        #[inline(never)]
        fn enter<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        have!(enter(self, kernel))
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
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        have!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        have!({
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        })
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        self.0.sum(have!([_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)]))
    }
    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        self.0.largest(have!([_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)]))
    }

    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        have!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn mask(self, bits: u16) -> __mmask16 {
        bits
    }
    #[inline(always)]
    fn select(self, m: __mmask16, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_mask_blend_ps(m, b, a))
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
    fn zero_bytes(self) -> __m512i {
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
    fn prefetch(self, p: *const u8) {
        // Into the second level: in the first, lines that wait for memory would take the places of those in use.
        have!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        memory!(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> __m512 {
        memory!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> __m512 {
        let wide = memory!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())));
        have!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m512i {
        memory!(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> __m512i {
        memory!(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> __m512i {
        memory!(_mm512_loadu_si512(p.cast()))
    }
    #[inline(always)]
    unsafe fn within(self, p: *const i32, lo: i32, hi: i32) -> u16 {
        let x = memory!(_mm512_loadu_si512(p.cast()));
        have!({
            let above = _mm512_cmp_epi32_mask::<_MM_CMPINT_NLT>(x, _mm512_set1_epi32(lo));
            _mm512_mask_cmp_epi32_mask::<_MM_CMPINT_LE>(above, x, _mm512_set1_epi32(hi))
        })
    }
    #[inline(always)]
    unsafe fn intersects(self, p: *const u32, set: u32) -> u16 {
        let x = memory!(_mm512_loadu_si512(p.cast()));
        have!(_mm512_test_epi32_mask(x, _mm512_set1_epi32(set as i32)))
    }
    #[inline(always)]
    unsafe fn low_above(self, p: *const u32, limit: u32) -> u16 {
        let x = memory!(_mm512_loadu_si512(p.cast()));
        have!({
            let low = _mm512_and_si512(x, _mm512_set1_epi32(0xffff));
            _mm512_cmpgt_epi32_mask(low, _mm512_set1_epi32(limit as i32))
        })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: __m512) {
        memory!(_mm512_storeu_ps(p, x))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8, x: __m512) {
        memory!(_mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)))
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, x: __m512i) {
        memory!(_mm512_storeu_si512(p.cast(), x))
    }
}
