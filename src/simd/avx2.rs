//! AVX2: a vector of 16 lanes is a pair of registers; bytes are multiplied by `vpmaddubsw`.
//!
//! That instruction adds two neighbouring products into a saturating `i16`. Codes of up to 7 bits never saturate,
//! and as many of their results as fit are added as `i16` before widening. For many columns they are unpacked to memory
//! once for all. 8-bit codes go in
//!
//! * for many columns as numbers of 16 bits, multiplied by `vpmaddwd`: as many instructions as in two parts, but none
//!   of them for a zero point or for sums that are full;
//! * for several columns as two parts of four bits, split once for all: four instructions for 32 products, and two of
//!   the four are additions, for which there are more ports;
//! * for one column as magnitudes, their signs moved to the activations (2 * 128 * 127 fits): that needs no splitting.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::vector::{BYTE_ZERO, Kernel, LANES, Unpacked, UnpackedCodes, Vector};

/// Proof that the processor has AVX2, FMA, F16C and what `P` multiplies bytes with.
#[derive(Clone, Copy)]
pub(super) struct Ymm<P>(P);

/// The level of AVX2 alone.
pub(super) type Avx2 = Ymm<ByPairs>;

/// How a level multiplies bytes. An implementor is proof that the processor can.
pub(super) trait Products: Copy {
    /// [`Vector::TILE`].
    const TILE: usize;
    /// [`Vector::UNPACKS_FROM`].
    const UNPACKS_FROM: usize;
    /// [`Vector::ONE_SIGNED`].
    const ONE_SIGNED: bool;
    /// From how many bits on codes are unpacked as numbers of 16 bits, the zero point taken off.
    const WORDS_FROM: u32;

    /// The proof, where the processor can.
    fn new() -> Option<Self>;
    /// [`Vector::dot`].
    ///
    /// # Safety
    /// As there.
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        bits: u32,
        acc: [[__m256i; 2]; J],
        w: &[[[__m256i; 2]; 4]; H],
        a: [*const i8; J],
    ) -> [[__m256i; 2]; J];
    /// Adds the dot products of `4 * H` vectors of unpacked codes with four columns.
    ///
    /// # Safety
    /// `codes` is aligned to 32 bytes and as many vectors long, each `x` has `16 * H` activations.
    unsafe fn columns<const H: usize>(
        self,
        bits: u32,
        acc: [[__m256i; 2]; Unpacked::COLUMNS],
        codes: *const i8,
        x: [*const i8; Unpacked::COLUMNS],
    ) -> [[__m256i; 2]; Unpacked::COLUMNS];
}

/// By `vpmaddubsw`, which adds two neighbouring products into an `i16`.
#[derive(Clone, Copy)]
pub(super) struct ByPairs(());

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

/// The instructions for two codes of each of 16 rows, `$codes` bytes from `{codes}` on, times two activations of each
/// of four columns, `$at` bytes from `{x}` on, 64 bytes a column.
macro_rules! step {
    ($codes:literal, $at:literal) => {
        concat!(
            "vmovdqa {w}, [{codes} + ", $codes, "]\nvmovdqa {v}, [{codes} + 32 + ", $codes, "]\n",
            step!(@ "0", $at, "{a}", "{b}"), step!(@ "64", $at, "{c}", "{d}"),
            step!(@ "128", $at, "{e}", "{f}"), step!(@ "192", $at, "{g}", "{h}"),
        )
    };
    (@ $column:literal, $at:literal, $low:literal, $high:literal) => {
        concat!(
            "vpbroadcastd {s}, [{x} + ", $column, " + ", $at, "]\nvpmaddwd {t}, {w}, {s}\nvpmaddwd {s}, {v}, {s}\n",
            "vpaddd ", $low, ", ", $low, ", {t}\nvpaddd ", $high, ", ", $high, ", {s}\n",
        )
    };
}

/// The instructions for four codes of each of 16 rows, `$codes` bytes from `{codes}` on, times four activations of each
/// of some columns, `$at` bytes from where those begin: neighbouring products are added, and the sums set or added to
/// two registers a column.
macro_rules! pairs {
    ($to:ident $codes:literal $at:literal, $([$column:literal $low:literal $high:literal])+) => {
        concat!(
            "vmovdqa {w}, [{codes} + ", $codes, "]\nvmovdqa {v}, [{codes} + 32 + ", $codes, "]\n",
            $("vpbroadcastd {s}, [", $column, " + ", $at, "]\n", pairs!(@ $to $low $high),)+
        )
    };
    (@ set $low:literal $high:literal) => {
        concat!("vpmaddubsw ", $low, ", {w}, {s}\nvpmaddubsw ", $high, ", {v}, {s}\n")
    };
    (@ add $low:literal $high:literal) => {
        concat!(
            "vpmaddubsw {t}, {w}, {s}\nvpmaddubsw {s}, {v}, {s}\n",
            "vpaddw ", $low, ", ", $low, ", {t}\nvpaddw ", $high, ", ", $high, ", {s}\n",
        )
    };
}

impl<P: Products> Vector for Ymm<P> {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];
    type M = [__m256; 2];

    const TILE: usize = P::TILE;
    const FLOAT_TILE: usize = 2;
    const ENTRIES: [usize; 4] = [6, 4, 2, 1];
    const WIDE: bool = false;
    const SIGNED_BYTES: bool = false;
    const ONE_SIGNED: bool = P::ONE_SIGNED;
    const UNPACKS_FROM: usize = P::UNPACKS_FROM;

    #[inline]
    fn new() -> Option<Self> {
        let available =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        P::new().filter(|_| available).map(Ymm)
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline(never)]
        fn enter<P: Products, K: Kernel>(simd: Ymm<P>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        have!(enter(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        have!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        have!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        have!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        have!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        have!([_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        have!([_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        have!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        have!([_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        have!([_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])])
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        let biased = have!([
            _mm256_add_epi32(_mm256_cvtps_epi32(n[0]), _mm256_set1_epi32(127)),
            _mm256_add_epi32(_mm256_cvtps_epi32(n[1]), _mm256_set1_epi32(127))
        ]);
        have!([
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased[0])),
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased[1]))
        ])
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        // Pairwise, from the halves inwards.
        have!({
            let a = _mm256_add_ps(a[0], a[1]);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        })
    }
    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        have!({
            let a = _mm256_max_ps(a[0], a[1]);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        })
    }

    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        have!([_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])])
    }
    #[inline(always)]
    fn mask(self, bits: u16) -> Self::M {
        have!({
            let all = _mm256_set1_epi32(i32::from(bits));
            let low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let high = _mm256_slli_epi32::<8>(low);
            [
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, low), low)),
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, high), high)),
            ]
        })
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F {
        have!([_mm256_blendv_ps(b[0], a[0], m[0]), _mm256_blendv_ps(b[1], a[1], m[1])])
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        have!([_mm256_set1_epi32(x); 2])
    }
    #[inline(always)]
    fn shl_int(self, x: Self::I, by: u32) -> Self::I {
        let by = have!(_mm_cvtsi32_si128(by as i32));
        have!([_mm256_sll_epi32(x[0], by), _mm256_sll_epi32(x[1], by)])
    }
    #[inline(always)]
    fn to_float(self, x: Self::I) -> Self::F {
        have!([_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])])
    }

    #[inline(always)]
    fn zero_bytes(self) -> Self::B {
        have!([_mm256_setzero_si256(); 2])
    }
    #[inline(always)]
    fn and(self, x: Self::B, mask: u8) -> Self::B {
        let mask = have!(_mm256_set1_epi8(mask as i8));
        have!([_mm256_and_si256(x[0], mask), _mm256_and_si256(x[1], mask)])
    }
    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        have!([_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])])
    }
    #[inline(always)]
    fn shift(self, x: Self::B, by: i32) -> Self::B {
        if by >= 0 {
            return self.shl_int(x, by as u32);
        }
        let by = have!(_mm_cvtsi32_si128(-by));
        have!([_mm256_srl_epi32(x[0], by), _mm256_srl_epi32(x[1], by)])
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Self::B) -> Self::B {
        let table = have!(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())));
        have!([_mm256_shuffle_epi8(table, x[0]), _mm256_shuffle_epi8(table, x[1])])
    }

    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        bits: u32,
        acc: [Self::I; J],
        w: &[[Self::B; 4]; H],
        a: [*const i8; J],
    ) -> [Self::I; J] {
        // SAFETY: the caller's promise.
        unsafe { self.0.dot(bits, acc, w, a) }
    }

    #[inline(always)]
    fn unpack(self, bits: u32, codes: &[[Self::B; 4]; 2], zero: u8, out: &mut UnpackedCodes) {
        let to = out.as_mut_ptr().cast::<__m256i>();
        // Words: of every four weights of a row the two at even places, then the two at odd ones.
        let (low, zero) = have!((_mm256_set1_epi16(0xff), _mm256_set1_epi16(i16::from(zero))));
        for v in 0..8 {
            for half in 0..2 {
                let bytes = codes[v / 4][v % 4][half];
                // SAFETY: the token proves the instructions; the array holds two registers of bytes or four of words
                // for each of 8 vectors.
                unsafe {
                    if bits < P::WORDS_FROM {
                        _mm256_storeu_si256(to.add(2 * v + half), bytes);
                        continue;
                    }
                    let (even, odd) = (_mm256_and_si256(bytes, low), _mm256_srli_epi16::<8>(bytes));
                    _mm256_storeu_si256(to.add(4 * v + half), _mm256_sub_epi16(even, zero));
                    _mm256_storeu_si256(to.add(4 * v + 2 + half), _mm256_sub_epi16(odd, zero));
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn multiply<const SHORT_SCALES: bool, const HALVES: bool, const MINIMUM: bool>(
        self,
        bits: u32,
        zero: u8,
        blocks: &[Unpacked],
        x: [*const i8; Unpacked::COLUMNS],
        meta: [*const i32; Unpacked::COLUMNS],
        total: *mut f32,
    ) {
        let (words_from, groups) = (P::WORDS_FROM, if HALVES { 2 } else { 1 });
        let mut words = Words([[0; 32]; Unpacked::COLUMNS]);
        for (index, block) in blocks.iter().enumerate() {
            // SAFETY: the caller's promise; a block begins with its codes, and is aligned to 64 bytes.
            unsafe {
                let (mut here, mut sums) = (x, [[0; 2]; Unpacked::COLUMNS]);
                let mut dot = [[[_mm256_setzero_si256(); 2]; Unpacked::COLUMNS]; 2];
                for c in 0..Unpacked::COLUMNS {
                    here[c] = x[c].add(32 * index);
                    let meta = meta[c].add(4 * index);
                    sums[c] = if HALVES { [*meta.add(1), *meta.add(2)] } else { [*meta.add(3), 0] };
                    for group in 0..groups {
                        if bits < words_from && zero > 0 {
                            dot[group][c] = self.splat_int(i32::from(zero) * sums[c][group]);
                        }
                    }
                }
                if bits >= words_from {
                    for c in 0..Unpacked::COLUMNS {
                        words.set(c, here[c]);
                    }
                    dot[0] = words.products::<0>(&block.codes, dot[0]);
                    dot[groups - 1] = words.products::<1>(&block.codes, dot[groups - 1]);
                } else if HALVES {
                    let codes = block.codes.as_ptr();
                    dot[0] = self.0.columns::<1>(bits, dot[0], codes, here);
                    for c in 0..Unpacked::COLUMNS {
                        here[c] = here[c].add(16);
                    }
                    dot[1] = self.0.columns::<1>(bits, dot[1], codes.add(64 * 4), here);
                } else {
                    dot[0] = self.0.columns::<2>(bits, dot[0], block.codes.as_ptr(), here);
                }
                for c in 0..Unpacked::COLUMNS {
                    let mut t = self.mul(self.to_float(dot[0][c]), self.load(block.scales[0].as_ptr()));
                    if HALVES {
                        t = self.fma(self.to_float(dot[1][c]), self.load(block.scales[1].as_ptr()), t);
                    }
                    for group in 0..if MINIMUM { groups } else { 0 } {
                        let sum = self.splat_int(sums[c][group]);
                        t = self.fma(self.to_float(sum), self.load(block.minimums[group].as_ptr()), t);
                    }
                    let total = total.add(LANES * c);
                    let scale = self.splat(f32::from_bits((*meta[c].add(4 * index)).cast_unsigned()));
                    self.store(total, self.fma(t, scale, self.load(total)));
                }
            }
        }
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // Into the second level: in the first, lines that wait for memory would take the places of those in use.
        have!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        memory!([_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))])
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::F {
        memory!([_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))])
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> Self::F {
        let wide = memory!([
            _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast()))
        ]);
        have!([
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide[0])),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide[1]))
        ])
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::I {
        memory!([
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()))
        ])
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> Self::I {
        memory!([
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast()))
        ])
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::B {
        memory!([_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())])
    }
    #[inline(always)]
    unsafe fn within(self, p: *const i32, lo: i32, hi: i32) -> u16 {
        let x = memory!([_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())]);
        let (lo, hi) = have!((_mm256_set1_epi32(lo), _mm256_set1_epi32(hi)));
        let outside = have!([
            _mm256_or_si256(_mm256_cmpgt_epi32(lo, x[0]), _mm256_cmpgt_epi32(x[0], hi)),
            _mm256_or_si256(_mm256_cmpgt_epi32(lo, x[1]), _mm256_cmpgt_epi32(x[1], hi))
        ]);
        !have!(bits(outside))
    }
    #[inline(always)]
    unsafe fn intersects(self, p: *const u32, set: u32) -> u16 {
        let x = memory!([_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())]);
        let (set, zero) = have!((_mm256_set1_epi32(set as i32), _mm256_setzero_si256()));
        let none = have!([
            _mm256_cmpeq_epi32(_mm256_and_si256(x[0], set), zero),
            _mm256_cmpeq_epi32(_mm256_and_si256(x[1], set), zero)
        ]);
        !have!(bits(none))
    }
    #[inline(always)]
    unsafe fn low_above(self, p: *const u32, limit: u32) -> u16 {
        let x = memory!([_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())]);
        let (low, limit) = have!((_mm256_set1_epi32(0xffff), _mm256_set1_epi32(limit as i32)));
        have!(bits([
            _mm256_cmpgt_epi32(_mm256_and_si256(x[0], low), limit),
            _mm256_cmpgt_epi32(_mm256_and_si256(x[1], low), limit)
        ]))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: Self::F) {
        memory!({
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        })
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8, x: Self::F) {
        memory!({
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(p.add(16).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
        })
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, x: Self::B) {
        memory!({
            _mm256_storeu_si256(p.cast(), x[0]);
            _mm256_storeu_si256(p.add(32).cast(), x[1]);
        })
    }
}

impl Products for ByPairs {
    const TILE: usize = 4;
    const UNPACKS_FROM: usize = 8;
    const ONE_SIGNED: bool = true;
    const WORDS_FROM: u32 = 8;

    #[inline(always)]
    fn new() -> Option<Self> {
        Some(ByPairs(()))
    }

    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        bits: u32,
        acc: [[__m256i; 2]; J],
        w: &[[[__m256i; 2]; 4]; H],
        a: [*const i8; J],
    ) -> [[__m256i; 2]; J] {
        let run = run(bits);
        if bits < 8 {
            // SAFETY: the caller's promise.
            return unsafe { self.pairs(run, 1, acc, w, a) };
        }
        if J == 1 {
            // SAFETY: the caller's promise.
            return unsafe { self.magnitudes(acc, w, a) };
        }
        let mask = have!(_mm256_set1_epi8(15));
        let (mut low, mut high) = (*w, *w);
        for h in 0..H {
            for v in 0..4 {
                for half in 0..2 {
                    low[h][v][half] = have!(_mm256_and_si256(w[h][v][half], mask));
                    high[h][v][half] = have!(_mm256_and_si256(_mm256_srli_epi32::<4>(w[h][v][half]), mask));
                }
            }
        }
        // One part after the other, for its sums to stay in registers.
        // SAFETY: the caller's promise.
        unsafe {
            let acc = self.pairs(run, 1, acc, &low, a);
            self.pairs(run, 16, acc, &high, a)
        }
    }

    #[inline(always)]
    unsafe fn columns<const H: usize>(
        self,
        bits: u32,
        mut acc: [[__m256i; 2]; Unpacked::COLUMNS],
        codes: *const i8,
        x: [*const i8; Unpacked::COLUMNS],
    ) -> [[__m256i; 2]; Unpacked::COLUMNS] {
        let run = run(bits).min(4 * H);
        // SAFETY: the caller's promise.
        unsafe {
            if run == 4 * H {
                let ones = _mm256_set1_epi16(1);
                let sums = if H == 1 { four_columns::<4>(codes, x) } else { four_columns::<8>(codes, x) };
                for c in 0..Unpacked::COLUMNS {
                    for half in 0..2 {
                        acc[c][half] = _mm256_add_epi32(acc[c][half], _mm256_madd_epi16(sums[c][half], ones));
                    }
                }
                return acc;
            }
            // The sums and what they are added to leave registers for two columns alone.
            for c in (0..Unpacked::COLUMNS).step_by(2) {
                for h in 0..H {
                    let (codes, x) = (codes.add(64 * 4 * h), [x[c].add(16 * h), x[c + 1].add(16 * h)]);
                    let wide = match run {
                        4 => two_columns::<4>(codes, x),
                        2 => two_columns::<2>(codes, x),
                        _ => two_columns::<1>(codes, x),
                    };
                    for (acc, wide) in acc[c..].iter_mut().zip(wide) {
                        *acc = [_mm256_add_epi32(acc[0], wide[0]), _mm256_add_epi32(acc[1], wide[1])];
                    }
                }
            }
        }
        acc
    }
}

/// How many results of `vpmaddubsw`, of the 8 of a block, can be added as `i16`: each is up to 2 * (2^bits - 1) * 127,
/// and codes of 8 bits come in parts of 4.
const fn run(bits: u32) -> usize {
    match bits {
        0..=4 | 8 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    }
}

impl ByPairs {
    /// Adds `weight` times the dot products of codes, of whose products' results `run` fit 16 bits together.
    ///
    /// # Safety
    /// As [`Products::dot`].
    #[inline(always)]
    unsafe fn pairs<const H: usize, const J: usize>(
        self,
        run: usize,
        weight: i16,
        mut acc: [[__m256i; 2]; J],
        w: &[[[__m256i; 2]; 4]; H],
        a: [*const i8; J],
    ) -> [[__m256i; 2]; J] {
        let weight = have!(_mm256_set1_epi16(weight));
        let mut sum = have!([[_mm256_setzero_si256(); 2]; J]);
        for h in 0..H {
            for v in 0..4 {
                let nth = (4 * h + v) % run;
                for j in 0..J {
                    let quad = memory!(_mm256_set1_epi32(a[j].add(16 * h + 4 * v).cast::<i32>().read_unaligned()));
                    for half in 0..2 {
                        let product = have!(_mm256_maddubs_epi16(w[h][v][half], quad));
                        sum[j][half] = if nth == 0 { product } else { have!(_mm256_add_epi16(sum[j][half], product)) };
                        if nth == run - 1 || 4 * h + v == 4 * H - 1 {
                            let wide = have!(_mm256_madd_epi16(sum[j][half], weight));
                            acc[j][half] = have!(_mm256_add_epi32(acc[j][half], wide));
                        }
                    }
                }
            }
        }
        acc
    }

    /// Adds the dot products of 8-bit codes, as signed numbers.
    ///
    /// # Safety
    /// As [`Products::dot`].
    #[inline(always)]
    unsafe fn magnitudes<const H: usize, const J: usize>(
        self,
        mut acc: [[__m256i; 2]; J],
        w: &[[[__m256i; 2]; 4]; H],
        a: [*const i8; J],
    ) -> [[__m256i; 2]; J] {
        for h in 0..H {
            for v in 0..4 {
                for j in 0..J {
                    let quad = memory!(_mm256_set1_epi32(a[j].add(16 * h + 4 * v).cast::<i32>().read_unaligned()));
                    for half in 0..2 {
                        acc[j][half] = have!({
                            let x = _mm256_xor_si256(w[h][v][half], _mm256_set1_epi8(BYTE_ZERO as i8));
                            let product = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(quad, x));
                            let wide = _mm256_madd_epi16(product, _mm256_set1_epi16(1));
                            _mm256_add_epi32(acc[j][half], wide)
                        });
                    }
                }
            }
        }
        acc
    }
}

/// Of `RUN` vectors of codes, 4 or 8, times four columns of activations: the sums of neighbouring products, as `i16`.
/// Written out: in the order that the compiler chooses, which depends on what it compiles beside, a prompt takes up to
/// 1.25 times as long.
///
/// # Safety
/// AVX2 is available; `codes` is aligned to 32 bytes and `RUN` vectors long, each column has `4 * RUN` activations.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four_columns<const RUN: usize>(
    codes: *const i8,
    [x, y, z, u]: [*const i8; Unpacked::COLUMNS],
) -> [[__m256i; 2]; Unpacked::COLUMNS] {
    const { assert!(RUN == 4 || RUN == 8) }
    let [a, b, c, d, e, f, g, h]: [__m256i; 8];
    macro_rules! run {
        ($($to:ident $codes:literal $at:literal),+) => {
            asm!(
                $(pairs!($to $codes $at,
                    ["{x}" "{a}" "{b}"] ["{y}" "{c}" "{d}"] ["{z}" "{e}" "{f}"] ["{u}" "{g}" "{h}"])),+,
                codes = in(reg) codes, x = in(reg) x, y = in(reg) y, z = in(reg) z, u = in(reg) u,
                a = out(ymm_reg) a, b = out(ymm_reg) b, c = out(ymm_reg) c, d = out(ymm_reg) d,
                e = out(ymm_reg) e, f = out(ymm_reg) f, g = out(ymm_reg) g, h = out(ymm_reg) h,
                w = out(ymm_reg) _, v = out(ymm_reg) _, s = out(ymm_reg) _, t = out(ymm_reg) _,
                options(readonly, nostack, preserves_flags)
            )
        };
    }
    // SAFETY: the caller's promise; only what it vouches for is read.
    unsafe {
        if RUN == 4 {
            run!(set "0" "0", add "64" "4", add "128" "8", add "192" "12");
        } else {
            run!(set "0" "0", add "64" "4", add "128" "8", add "192" "12",
                add "256" "16", add "320" "20", add "384" "24", add "448" "28");
        }
    }
    [[a, b], [c, d], [e, f], [g, h]]
}

/// The dot products of four vectors of codes with two columns, as many results being added before they are widened as
/// `RUN` says: 1, 2 or 4. Written out as [`four_columns`] is.
///
/// # Safety
/// AVX2 is available; `codes` is aligned to 32 bytes and four vectors long, each column has 16 activations.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn two_columns<const RUN: usize>(codes: *const i8, [x, y]: [*const i8; 2]) -> [[__m256i; 2]; 2] {
    const { assert!(RUN == 1 || RUN == 2 || RUN == 4) }
    let [a, b, c, d]: [__m256i; 4];
    macro_rules! step {
        (first) => {
            concat!(
                "vpmaddwd {a}, {e}, {ones}\nvpmaddwd {b}, {f}, {ones}\n",
                "vpmaddwd {c}, {g}, {ones}\nvpmaddwd {d}, {h}, {ones}",
            )
        };
        (next) => {
            concat!(
                "vpmaddwd {e}, {e}, {ones}\nvpmaddwd {f}, {f}, {ones}\n",
                "vpmaddwd {g}, {g}, {ones}\nvpmaddwd {h}, {h}, {ones}\n",
                "vpaddd {a}, {a}, {e}\nvpaddd {b}, {b}, {f}\nvpaddd {c}, {c}, {g}\nvpaddd {d}, {d}, {h}",
            )
        };
        ($to:ident $codes:literal $at:literal) => {
            pairs!($to $codes $at, ["{x}" "{e}" "{f}"] ["{y}" "{g}" "{h}"])
        };
    }
    macro_rules! run {
        ($([$($step:tt)+])+ $(; $sum:ident)?) => {
            asm!(
                $(step!($($step)+)),+,
                codes = in(reg) codes, x = in(reg) x, y = in(reg) y, ones = in(ymm_reg) _mm256_set1_epi16(1),
                a = out(ymm_reg) a, b = out(ymm_reg) b, c = out(ymm_reg) c, d = out(ymm_reg) d,
                e = out(ymm_reg) _, f = out(ymm_reg) _, g = out(ymm_reg) _, h = out(ymm_reg) _,
                w = out(ymm_reg) _, v = out(ymm_reg) _, s = out(ymm_reg) _, $($sum = out(ymm_reg) _,)?
                options(readonly, nostack, preserves_flags)
            )
        };
    }
    // SAFETY: the caller's promise; only what it vouches for is read.
    unsafe {
        match RUN {
            4 => run!([set "0" "0"] [add "64" "4"] [add "128" "8"] [add "192" "12"] [first]; t),
            2 => run!([set "0" "0"] [add "64" "4"] [first] [set "128" "8"] [add "192" "12"] [next]; t),
            _ => run!([set "0" "0"] [first] [set "64" "4"] [next] [set "128" "8"] [next] [set "192" "12"] [next]),
        }
    }
    [[a, b], [c, d]]
}

/// Blocks of 32 activations of each column as numbers of 16 bits: those at even places, then those at odd ones.
#[repr(align(64))]
struct Words([[i16; 32]; Unpacked::COLUMNS]);

impl Words {
    /// Sets the block of a column.
    ///
    /// # Safety
    /// AVX2 is available; `x` is readable for 32 bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn set(&mut self, column: usize, x: *const i8) {
        let to = self.0[column].as_mut_ptr().cast::<__m256i>();
        // SAFETY: the caller's promise; a column is two registers long.
        unsafe {
            let bytes = _mm256_loadu_si256(x.cast());
            _mm256_store_si256(to, _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)));
            _mm256_store_si256(to.add(1), _mm256_srai_epi16::<8>(bytes));
        }
    }

    /// Adds the products of the first or the last half of a block's codes with the activations. Written out: the
    /// compiler would add in another order, and need more registers than there are.
    ///
    /// # Safety
    /// AVX2 is available; the codes lie in an [`Unpacked`].
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn products<const HALF: usize>(
        &self,
        codes: &UnpackedCodes,
        [[mut a, mut b], [mut c, mut d], [mut e, mut f], [mut g, mut h]]: [[__m256i; 2]; Unpacked::COLUMNS],
    ) -> [[__m256i; 2]; Unpacked::COLUMNS] {
        const { assert!(HALF < 2) }
        // SAFETY: the caller's promise, that of the alignment too; only the two arrays are read.
        unsafe {
            asm!(
                step!("0", "0"), step!("64", "32"), step!("128", "4"), step!("192", "36"),
                step!("256", "8"), step!("320", "40"), step!("384", "12"), step!("448", "44"),
                codes = in(reg) codes.as_ptr().add(512 * HALF),
                x = in(reg) self.0.as_ptr().cast::<i16>().add(8 * HALF),
                a = inout(ymm_reg) a, b = inout(ymm_reg) b, c = inout(ymm_reg) c, d = inout(ymm_reg) d,
                e = inout(ymm_reg) e, f = inout(ymm_reg) f, g = inout(ymm_reg) g, h = inout(ymm_reg) h,
                w = out(ymm_reg) _, v = out(ymm_reg) _, s = out(ymm_reg) _, t = out(ymm_reg) _,
                options(readonly, nostack, preserves_flags)
            );
        }
        [[a, b], [c, d], [e, f], [g, h]]
    }
}

/// The top bit of every lane, lane 0 lowest.
///
/// # Safety
/// AVX is available.
#[inline(always)]
unsafe fn bits(x: [__m256i; 2]) -> u16 {
    // SAFETY: the caller's promise.
    unsafe {
        let [low, high] =
            [_mm256_movemask_ps(_mm256_castsi256_ps(x[0])), _mm256_movemask_ps(_mm256_castsi256_ps(x[1]))];
        (low | high << 8) as u16
    }
}
