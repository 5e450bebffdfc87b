//! NEON: a vector of 16 lanes is four registers. Bytes are multiplied as signed numbers, in one of three ways: by
//! widening products, by dot products of four bytes (`dotprod`), or by products of 2 x 8 with 8 x 2 bytes (`i8mm`).
//!
//! The intrinsics of the last two are not stable, so the instructions are written out.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::vector::{BYTE_ZERO, Kernel, Vector};

/// Proof that the processor has NEON and what `P` multiplies with.
#[derive(Clone, Copy)]
pub(super) struct Neon<P>(P);

/// The levels.
pub(super) type Widening = Neon<ByWidening>;
pub(super) type DotProd = Neon<BySdot>;
pub(super) type I8mm = Neon<BySmmla>;

/// How a level multiplies bytes. An implementor is proof that the processor can.
pub(super) trait Products: Copy {
    /// The proof, where the processor can.
    fn new() -> Option<Self>;
    /// Runs a kernel, compiled for the instructions.
    fn enter<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output;
    /// [`Vector::dot`] of signed codes.
    ///
    /// # Safety
    /// As there.
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        bits: u32,
        acc: [[int32x4_t; 4]; J],
        w: &[[[uint8x16_t; 4]; 4]; H],
        a: [*const i8; J],
    ) -> [[int32x4_t; 4]; J];
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

/// An expression for each of the four registers.
macro_rules! four {
    ($q:ident => $e:expr) => {{
        #[allow(non_upper_case_globals)]
        let all = [
            {
                const $q: usize = 0;
                $e
            },
            {
                const $q: usize = 1;
                $e
            },
            {
                const $q: usize = 2;
                $e
            },
            {
                const $q: usize = 3;
                $e
            },
        ];
        all
    }};
}

/// A block for each number, written out: the compiler does not unroll loops around `asm!`.
macro_rules! each {
    ($i:ident in [$($n:literal)*] $body:block) => {
        {
            $({
                #[allow(non_upper_case_globals)]
                const $i: usize = $n;
                $body
            })*
        }
    };
}

/// A vector shifted left by a number known when compiled, right where negative.
macro_rules! shifted {
    ($x:expr, $by:expr, $left:ident $right:ident, $($n:literal)*) => {
        match $by {
            0 => $x,
            $($n => $left::<$n>($x),)*
            $(by if by == -$n => $right::<$n>($x),)*
            _ => unreachable!(),
        }
    };
}

impl<P: Products> Vector for Neon<P> {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];
    type M = [uint32x4_t; 4];

    const TILE: usize = 8;
    const FLOAT_TILE: usize = 2;
    const ENTRIES: [usize; 4] = [6, 4, 2, 1];
    const WIDE: bool = false;
    const SIGNED_BYTES: bool = true;

    #[inline]
    fn new() -> Option<Self> {
        P::new().map(Neon)
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        P::enter(self, kernel)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        have!([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        have!(four!(q => vaddq_f32(a[q], b[q])))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        have!(four!(q => vsubq_f32(a[q], b[q])))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        have!(four!(q => vmulq_f32(a[q], b[q])))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        have!(four!(q => vdivq_f32(a[q], b[q])))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        have!(four!(q => vfmaq_f32(c[q], a[q], b[q])))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // The instruction of that name yields NaN where either is.
        have!(four!(q => vbslq_f32(vcgtq_f32(a[q], b[q]), a[q], b[q])))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        have!(four!(q => vbslq_f32(vcltq_f32(a[q], b[q]), a[q], b[q])))
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        have!(four!(q => vrndnq_f32(a[q])))
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        have!(four!(q => {
            let biased = vaddq_s32(vcvtq_s32_f32(n[q]), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        }))
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        // Pairwise, from the halves inwards.
        have!({
            let a = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            vaddv_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)))
        })
    }
    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        have!(vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3]))))
    }

    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        have!(four!(q => vcltq_f32(a[q], b[q])))
    }
    #[inline(always)]
    fn mask(self, bits: u16) -> Self::M {
        have!({
            let all = vdupq_n_u32(u32::from(bits));
            four!(q => vtstq_u32(all, vshlq_n_u32::<{ 4 * q as i32 }>(vld1q_u32([1, 2, 4, 8].as_ptr()))))
        })
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F {
        have!(four!(q => vbslq_f32(m[q], a[q], b[q])))
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        have!([vdupq_n_s32(x); 4])
    }
    #[inline(always)]
    fn shl_int(self, x: Self::I, by: u32) -> Self::I {
        have!(four!(q => vshlq_s32(x[q], vdupq_n_s32(by as i32))))
    }
    #[inline(always)]
    fn to_float(self, x: Self::I) -> Self::F {
        have!(four!(q => vcvtq_f32_s32(x[q])))
    }

    #[inline(always)]
    fn zero_bytes(self) -> Self::B {
        have!([vdupq_n_u8(0); 4])
    }
    #[inline(always)]
    fn and(self, x: Self::B, mask: u8) -> Self::B {
        have!(four!(q => vandq_u8(x[q], vdupq_n_u8(mask))))
    }
    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        have!(four!(q => vorrq_u8(a[q], b[q])))
    }
    #[inline(always)]
    fn shift(self, x: Self::B, by: i32) -> Self::B {
        // Within bytes, so that where the mask keeps all that is left there is nothing to mask.
        have!(four!(q => shifted!(x[q], by, vshlq_n_u8 vshrq_n_u8, 1 2 3 4 5 6 7)))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Self::B) -> Self::B {
        let table = memory!(vld1q_u8(table.as_ptr()));
        have!(four!(q => vqtbl1q_u8(table, x[q])))
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
    fn prefetch(self, p: *const u8) {
        // SAFETY: a hint, which no address makes fail.
        unsafe { asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        memory!(four!(q => vld1q_f32(p.add(4 * q))))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::F {
        memory!({
            let (low, high) = (vld1q_u16(p.cast()), vld1q_u16(p.add(16).cast()));
            let (low, high) = (vreinterpretq_f16_u16(low), vreinterpretq_f16_u16(high));
            [
                vcvt_f32_f16(vget_low_f16(low)),
                vcvt_high_f32_f16(low),
                vcvt_f32_f16(vget_low_f16(high)),
                vcvt_high_f32_f16(high),
            ]
        })
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> Self::F {
        let [low, high] = memory!([vld1q_u16(p.cast()), vld1q_u16(p.add(16).cast())]);
        have!([
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(low))),
            vreinterpretq_f32_u32(vshll_high_n_u16::<16>(low)),
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(high))),
            vreinterpretq_f32_u32(vshll_high_n_u16::<16>(high)),
        ])
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::I {
        let x = memory!(vld1q_u8(p));
        have!({
            let (low, high) = (vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_high_u16(low)),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_high_u16(high)),
            ]
        })
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> Self::I {
        let x = memory!(vld1q_s8(p.cast()));
        have!({
            let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        })
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::B {
        memory!(four!(q => vld1q_u8(p.add(16 * q))))
    }
    #[inline(always)]
    unsafe fn within(self, p: *const i32, lo: i32, hi: i32) -> u16 {
        let x = memory!(four!(q => vld1q_s32(p.add(4 * q))));
        have!({
            let (lo, hi) = (vdupq_n_s32(lo), vdupq_n_s32(hi));
            bits(four!(q => vandq_u32(vcgeq_s32(x[q], lo), vcleq_s32(x[q], hi))))
        })
    }
    #[inline(always)]
    unsafe fn intersects(self, p: *const u32, set: u32) -> u16 {
        let x = memory!(four!(q => vld1q_u32(p.add(4 * q))));
        have!(bits(four!(q => vtstq_u32(x[q], vdupq_n_u32(set)))))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: Self::F) {
        memory!(each!(q in [0 1 2 3] { vst1q_f32(p.add(4 * q), x[q]) }))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8, x: Self::F) {
        memory!(each!(q in [0 1 2 3] {
            vst1_u16(p.add(8 * q).cast(), vreinterpret_u16_f16(vcvt_f16_f32(x[q])));
        }))
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, x: Self::B) {
        memory!(each!(q in [0 1 2 3] { vst1q_u8(p.add(16 * q), x[q]) }))
    }
}

/// The top bit of every lane, lane 0 lowest; lanes are all ones or all zeros.
///
/// # Safety
/// NEON is available.
#[inline(always)]
unsafe fn bits(x: [uint32x4_t; 4]) -> u16 {
    // SAFETY: the caller's promise; the array is one register long.
    unsafe {
        let halves = [
            vuzp1q_u16(vreinterpretq_u16_u32(x[0]), vreinterpretq_u16_u32(x[1])),
            vuzp1q_u16(vreinterpretq_u16_u32(x[2]), vreinterpretq_u16_u32(x[3])),
        ];
        let bytes = vuzp1q_u8(vreinterpretq_u8_u16(halves[0]), vreinterpretq_u8_u16(halves[1]));
        let weights: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        let set = vandq_u8(bytes, vld1q_u8(weights.as_ptr()));
        u16::from(vaddv_u8(vget_low_u8(set))) | u16::from(vaddv_u8(vget_high_u8(set))) << 8
    }
}

/// A code as a signed number: one of 8 bits lies as such in a panel, a narrower one is below 128.
#[inline(always)]
fn signed(code: uint8x16_t) -> int8x16_t {
    const { assert!(BYTE_ZERO == 0) }
    have!(vreinterpretq_s8_u8(code))
}

/// Proof of NEON.
#[derive(Clone, Copy)]
pub(super) struct ByWidening(());

impl Products for ByWidening {
    #[inline]
    fn new() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(ByWidening(()))
    }
    #[inline(always)]
    fn enter<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        #[inline(never)]
        fn enter<K: Kernel>(simd: Widening, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        have!(enter(simd, kernel))
    }
    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        bits: u32,
        mut acc: [[int32x4_t; 4]; J],
        w: &[[[uint8x16_t; 4]; 4]; H],
        a: [*const i8; J],
    ) -> [[int32x4_t; 4]; J] {
        // How many products of 127 and the largest code can be added before an `i16` overflows.
        let run = match bits {
            0..=5 => 8,
            6 => 4,
            _ => 2,
        };
        for j in 0..J {
            // Pairs of products, and of sums of them, of two rows a register.
            let mut pairs = have!([[vdupq_n_s16(0); 2]; 4]);
            let mut sums = have!([[vdupq_n_s32(0); 2]; 4]);
            for h in 0..H {
                for v in 0..4 {
                    let nth = (4 * h + v) % run;
                    let quad = memory!(vreinterpretq_s8_s32(vld1q_dup_s32(a[j].add(16 * h + 4 * v).cast())));
                    for q in 0..4 {
                        let code = signed(w[h][v][q]);
                        pairs[q] = have!(if nth == 0 {
                            [vmull_s8(vget_low_s8(code), vget_low_s8(quad)), vmull_high_s8(code, quad)]
                        } else {
                            [
                                vmlal_s8(pairs[q][0], vget_low_s8(code), vget_low_s8(quad)),
                                vmlal_high_s8(pairs[q][1], code, quad),
                            ]
                        });
                        if nth == run - 1 || 4 * h + v == 4 * H - 1 {
                            sums[q] =
                                have!([vpadalq_s16(sums[q][0], pairs[q][0]), vpadalq_s16(sums[q][1], pairs[q][1])]);
                        }
                    }
                }
            }
            acc[j] = have!(four!(q => vaddq_s32(acc[j][q], vpaddq_s32(sums[q][0], sums[q][1]))));
        }
        acc
    }
}

/// Proof of NEON and dot products.
#[derive(Clone, Copy)]
pub(super) struct BySdot(ByWidening);

impl BySdot {
    /// `acc` plus the products of each lane's four codes with four activations, the `LANE`th of `x`.
    #[inline(always)]
    fn sdot<const LANE: usize>(self, mut acc: int32x4_t, code: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: `self` proves that the processor has the instruction; it touches no memory.
        unsafe {
            asm!("sdot {s:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]", s = inout(vreg) acc, w = in(vreg) code, x = in(vreg) x,
                lane = const LANE, options(pure, nomem, nostack, preserves_flags))
        }
        acc
    }
}

impl Products for BySdot {
    #[inline]
    fn new() -> Option<Self> {
        let neon = ByWidening::new()?;
        is_aarch64_feature_detected!("dotprod").then_some(BySdot(neon))
    }
    #[inline(always)]
    fn enter<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod")]
        #[inline(never)]
        fn enter<K: Kernel>(simd: DotProd, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        have!(enter(simd, kernel))
    }
    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        _bits: u32,
        mut acc: [[int32x4_t; 4]; J],
        w: &[[[uint8x16_t; 4]; 4]; H],
        a: [*const i8; J],
    ) -> [[int32x4_t; 4]; J] {
        const { assert!(H <= 2 && J <= 4, "the blocks below are written out for as many") }
        let mut x = [[memory!(vld1q_s8(a[0])); H]; J];
        for j in 0..J {
            for h in 0..H {
                x[j][h] = memory!(vld1q_s8(a[j].add(16 * h)));
            }
        }
        each!(q in [0 1 2 3] {
            each!(h in [0 1] {
                if h < H {
                    each!(v in [0 1 2 3] {
                        let code = signed(w[h][v][q]);
                        each!(j in [0 1 2 3] {
                            if j < J {
                                acc[j][q] = self.sdot::<v>(acc[j][q], code, x[j][h]);
                            }
                        });
                    });
                }
            });
        });
        acc
    }
}

/// Proof of NEON, dot products and matrix products.
#[derive(Clone, Copy)]
pub(super) struct BySmmla(BySdot);

impl BySmmla {
    /// `acc` plus the products of two rows of eight codes with two columns of eight activations.
    #[inline(always)]
    fn smmla(self, mut acc: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: `self` proves that the processor has the instruction; it touches no memory.
        unsafe {
            asm!("smmla {s:v}.4s, {w:v}.16b, {x:v}.16b", s = inout(vreg) acc, w = in(vreg) codes, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags))
        }
        acc
    }
}

impl Products for BySmmla {
    #[inline]
    fn new() -> Option<Self> {
        let sdot = BySdot::new()?;
        is_aarch64_feature_detected!("i8mm").then_some(BySmmla(sdot))
    }
    #[inline(always)]
    fn enter<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod,i8mm")]
        #[inline(never)]
        fn enter<K: Kernel>(simd: I8mm, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        have!(enter(simd, kernel))
    }
    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        bits: u32,
        mut acc: [[int32x4_t; 4]; J],
        w: &[[[uint8x16_t; 4]; 4]; H],
        a: [*const i8; J],
    ) -> [[int32x4_t; 4]; J] {
        const { assert!(H <= 2 && matches!(J, 1 | 2 | 4), "the blocks below are written out for pairs of columns") }
        if J == 1 {
            // SAFETY: the caller's promise.
            return unsafe { self.0.dot(bits, acc, w, a) };
        }
        // Of each pair of columns, the codes of eight weights side by side.
        let mut x = have!([[[vdupq_n_s8(0); 2]; 2]; J]);
        for j in (0..J).step_by(2) {
            for h in 0..H {
                let [one, two] = memory!([vld1q_s64(a[j].add(16 * h).cast()), vld1q_s64(a[j + 1].add(16 * h).cast())]);
                x[j / 2][h] =
                    have!([vreinterpretq_s8_s64(vzip1q_s64(one, two)), vreinterpretq_s8_s64(vzip2q_s64(one, two))]);
            }
        }
        each!(q in [0 1 2 3] {
            // Rows 0 and 1, then rows 2 and 3, by both columns of a pair.
            let mut sums = have!([[vdupq_n_s32(0); 2]; J]);
            each!(h in [0 1] {
                if h < H {
                    each!(eight in [0 1] {
                        let (one, two) = (signed(w[h][2 * eight][q]), signed(w[h][2 * eight + 1][q]));
                        let (one, two) = have!((vreinterpretq_s32_s8(one), vreinterpretq_s32_s8(two)));
                        let codes = have!([vzip1q_s32(one, two), vzip2q_s32(one, two)]);
                        each!(pair in [0 1] {
                            if 2 * pair < J {
                                each!(rows in [0 1] {
                                    let codes = have!(vreinterpretq_s8_s32(codes[rows]));
                                    sums[pair][rows] = self.smmla(sums[pair][rows], codes, x[pair][h][eight]);
                                });
                            }
                        });
                    });
                }
            });
            for pair in 0..J / 2 {
                let [low, high] = sums[pair];
                acc[2 * pair][q] = have!(vaddq_s32(acc[2 * pair][q], vuzp1q_s32(low, high)));
                acc[2 * pair + 1][q] = have!(vaddq_s32(acc[2 * pair + 1][q], vuzp2q_s32(low, high)));
            }
        });
        acc
    }
}
