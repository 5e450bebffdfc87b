//! [`Simd`] on AVX-512: one register of 16 lanes.

use super::{Kernel, Simd};
use std::arch::x86_64::*;

/// AVX-512 F, BW, VL and DQ.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

/// Run a kernel with the instruction set switched on.
///
/// # Safety
///
/// The processor has AVX-512 F, BW, VL, DQ and VNNI.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline(never)]
unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise.
    unsafe { kernel.run::<Avx512>() }
}

// SAFETY: the instructions are those the trait's callers promise; loads and stores are the unaligned forms, of 16
// elements (one in `splat_f16`).
unsafe impl Simd for Avx512 {
    const ENTRIES: [usize; 4] = [12, 8, 4, 2];
    const WIDE: bool = true;
    type F = __m512;
    type M = __mmask16;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the trait's obligations; so in every method below.
        unsafe { run(kernel) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn pow2(n: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn lt(a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: as above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mask_blend_ps(m, b, a) }
    }
    #[inline(always)]
    unsafe fn mask(bits: u16) -> __mmask16 {
        bits
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        // SAFETY: as above.
        unsafe { super::avx2::sum8(_mm256_add_ps(low(a), high(a))) }
    }
    #[inline(always)]
    unsafe fn largest(a: __m512) -> f32 {
        // SAFETY: as above.
        unsafe { super::avx2::largest8(_mm256_max_ps(low(a), high(a))) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, v: __m512) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(super::avx2::one_f16(p)) }
    }
    #[inline(always)]
    unsafe fn within(p: *const i32, lo: i32, hi: i32) -> u16 {
        // SAFETY: as above.
        unsafe {
            let x = _mm512_loadu_si512(p.cast());
            let above = _mm512_cmp_epi32_mask::<_MM_CMPINT_NLT>(x, _mm512_set1_epi32(lo));
            _mm512_mask_cmp_epi32_mask::<_MM_CMPINT_LE>(above, x, _mm512_set1_epi32(hi))
        }
    }
    #[inline(always)]
    unsafe fn intersects(p: *const u32, bits: u32) -> u16 {
        // SAFETY: as above.
        unsafe { _mm512_test_epi32_mask(_mm512_loadu_si512(p.cast()), _mm512_set1_epi32(bits as i32)) }
    }
}

#[inline(always)]
unsafe fn low(a: __m512) -> __m256 {
    // SAFETY: the callers' promise of AVX-512.
    unsafe { _mm512_castps512_ps256(a) }
}

#[inline(always)]
unsafe fn high(a: __m512) -> __m256 {
    // SAFETY: the callers' promise of AVX-512.
    unsafe { _mm512_extractf32x8_ps::<1>(a) }
}
