//! [`Simd`] on AVX2 with FMA and F16C: two registers of 8 lanes.

use super::{Kernel, Simd};
use std::arch::x86_64::*;

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

/// Run a kernel with the instruction set switched on.
///
/// # Safety
///
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise.
    unsafe { kernel.run::<Avx2>() }
}

/// Sum of 8 lanes, pairwise from the halves inwards.
///
/// # Safety
///
/// AVX is available.
#[inline(always)]
pub(super) unsafe fn sum8(a: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
    }
}

/// Largest of 8 lanes.
///
/// # Safety
///
/// AVX is available.
#[inline(always)]
pub(super) unsafe fn largest8(a: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
    }
}

/// One f16 as f32.
///
/// # Safety
///
/// F16C is available, and `p` is readable for two bytes.
#[inline(always)]
pub(super) unsafe fn one_f16(p: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(p.cast::<u16>().read_unaligned())))) }
}

macro_rules! both {
    ($op:ident($($arg:ident),*)) => {
        // SAFETY: the trait's obligation that the instruction set is available.
        unsafe { [$op($($arg[0]),*), $op($($arg[1]),*)] }
    };
}

// SAFETY: the instructions are those the trait's callers promise; loads and stores are the unaligned forms, of 16
// elements (one in `splat_f16`).
unsafe impl Simd for Avx2 {
    const ENTRIES: [usize; 4] = [6, 4, 2, 1];
    const WIDE: bool = false;
    type F = [__m256; 2];
    type M = [__m256; 2];

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the trait's obligations; so in every method below.
        unsafe { run(kernel) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: as above.
        unsafe { [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])] }
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        // SAFETY: as above.
        let half = |n| unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
        [half(n[0]), half(n[1])]
    }
    #[inline(always)]
    unsafe fn lt(a: Self::F, b: Self::F) -> Self::M {
        // SAFETY: as above.
        unsafe { [_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn select(m: Self::M, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_blendv_ps(b, a, m))
    }
    #[inline(always)]
    unsafe fn mask(bits: u16) -> Self::M {
        // SAFETY: as above.
        unsafe {
            let all = _mm256_set1_epi32(i32::from(bits));
            let low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let high = _mm256_slli_epi32::<8>(low);
            let test = |m| _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, m), m));
            [test(low), test(high)]
        }
    }
    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        // SAFETY: as above.
        unsafe { sum8(_mm256_add_ps(a[0], a[1])) }
    }
    #[inline(always)]
    unsafe fn largest(a: Self::F) -> f32 {
        // SAFETY: as above.
        unsafe { largest8(_mm256_max_ps(a[0], a[1])) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))] }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, v: Self::F) {
        // SAFETY: as above.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(p.add(16).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let half = |p: *const u8| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
            [half(p), half(p.add(8))]
        }
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u8) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_set1_ps(one_f16(p)); 2] }
    }
    #[inline(always)]
    unsafe fn within(p: *const i32, lo: i32, hi: i32) -> u16 {
        // SAFETY: as above.
        let outside = unsafe {
            let half = |p: *const i32| {
                let x = _mm256_loadu_si256(p.cast());
                let below = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), x);
                let above = _mm256_cmpgt_epi32(x, _mm256_set1_epi32(hi));
                _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_or_si256(below, above)))
            };
            half(p) | half(p.add(8)) << 8
        };
        !(outside as u16)
    }
    #[inline(always)]
    unsafe fn intersects(p: *const u32, bits: u32) -> u16 {
        // SAFETY: as above.
        let none = unsafe {
            let half = |p: *const u32| {
                let common = _mm256_and_si256(_mm256_loadu_si256(p.cast()), _mm256_set1_epi32(bits as i32));
                let zero = _mm256_cmpeq_epi32(common, _mm256_setzero_si256());
                _mm256_movemask_ps(_mm256_castsi256_ps(zero))
            };
            half(p) | half(p.add(8)) << 8
        };
        !(none as u16)
    }
}
