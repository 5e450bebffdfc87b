//! The vector of 16 lanes, four registers, whatever the bytes are multiplied with.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use super::products::{Neon, Products, START, constants};
use crate::simd::vector::{Kernel, LANES, Unpacked, UnpackedCodes, Vector};
use std::arch::aarch64::*;
use std::arch::asm;
use std::mem::offset_of;

impl<P: Products> Vector for Neon<P> {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];
    type M = [uint32x4_t; 4];

    const TILE: usize = P::TILE;
    const FLOAT_TILE: usize = 2;
    const ENTRIES: [usize; 4] = [6, 4, 2, 1];
    const WIDE: bool = false;
    const SIGNED_BYTES: bool = true;
    const UNPACKS_FROM: usize = P::UNPACKS_FROM;

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

    const START: i32 = START;
    #[inline(always)]
    fn no_dot(self) -> Self::I {
        let ([a, b], [c, d]) = (constants::<0>(), constants::<0>());
        [a, b, c, d]
    }
    #[inline(always)]
    fn scaled(self, dot: Self::I, scale: Self::F) -> Self::F {
        have!(four!(q => {
            let offset = vmulq_n_f32(scale[q], -f32::from_bits(START as u32));
            vfmaq_f32(offset, vreinterpretq_f32_s32(dot[q]), scale[q])
        }))
    }
    #[inline(always)]
    fn low_nibbles(self, x: Self::B, high: Self::B) -> Self::B {
        // The compiler would make two instructions of it.
        let mask = have!(vdupq_n_u8(15));
        let insert = |into: uint8x16_t, from: uint8x16_t| {
            let mut both = into;
            // SAFETY: the token proves NEON; no memory is touched.
            unsafe {
                asm!("bit {b:v}.16b, {x:v}.16b, {m:v}.16b", b = inout(vreg) both, x = in(vreg) from, m = in(vreg) mask,
                    options(pure, nomem, nostack, preserves_flags))
            }
            both
        };
        four!(q => insert(high[q], x[q]))
    }
    #[inline(always)]
    fn high_nibbles(self, x: Self::B, high: Self::B) -> Self::B {
        four!(q => insert_right::<4>(high[q], x[q]))
    }

    #[inline(always)]
    fn top_pairs(self, x: [Self::B; 3]) -> Self::B {
        four!(q => insert_right::<6>(insert_right::<4>(have!(vshrq_n_u8::<2>(x[2][q])), x[1][q]), x[0][q]))
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
    unsafe fn dot_halves<const J: usize>(
        self,
        bits: u32,
        acc: [[Self::I; J]; 2],
        w: &[[Self::B; 4]; 2],
        a: [*const i8; J],
    ) -> [[Self::I; J]; 2] {
        // SAFETY: the caller's promise.
        unsafe { self.0.dot_halves(bits, acc, w, a) }
    }
    #[inline(always)]
    fn times_steps(self, dot: Self::I, steps: Self::I, unit: Self::F, small: bool) -> Self::F {
        let products = products(dot, steps, small);
        have!(four!(q => vmulq_f32(products[q], unit[q])))
    }
    #[inline(always)]
    fn fma_steps(self, dot: Self::I, steps: Self::I, unit: Self::F, c: Self::F, small: bool) -> Self::F {
        let products = products(dot, steps, small);
        have!(four!(q => vfmaq_f32(c[q], products[q], unit[q])))
    }
    #[inline(always)]
    unsafe fn fma_steps_at(self, x: i32, steps: *const u8, unit: Self::F, c: Self::F) -> Self::F {
        let steps = memory!(vld1q_u8(steps));
        have!({
            let (low, high) = (vmovl_u8(vget_low_u8(steps)), vmovl_high_u8(steps));
            let (low, high) = (vreinterpretq_s16_u16(low), vreinterpretq_s16_u16(high));
            let x = vdupq_n_s16(x as i16);
            let starts = [constants::<START>(), constants::<START>()];
            let products = [
                vmlal_s16(starts[0][0], vget_low_s16(low), vget_low_s16(x)),
                vmlal_high_s16(starts[0][1], low, x),
                vmlal_s16(starts[1][0], vget_low_s16(high), vget_low_s16(x)),
                vmlal_high_s16(starts[1][1], high, x),
            ];
            four!(q => vfmaq_f32(c[q], from_start(products[q]), unit[q]))
        })
    }
    #[inline(always)]
    fn unpack(self, _bits: u32, codes: &[[Self::B; 4]; 2], zero: u8, out: &mut UnpackedCodes) {
        let mut less = [[have!(vdupq_n_s8(0)); 4]; 8];
        for v in 0..8 {
            for q in 0..4 {
                less[v][q] = have!(vreinterpretq_s8_u8(vsubq_u8(codes[v / 4][v % 4][q], vdupq_n_u8(zero))));
            }
        }
        self.0.unpack(&less, out);
    }
    #[inline(always)]
    unsafe fn multiply<const SHORT_SCALES: bool, const HALVES: bool, const MINIMUM: bool>(
        self,
        _bits: u32,
        _zero: u8,
        blocks: &[Unpacked],
        x: [*const i8; Unpacked::COLUMNS],
        meta: [*const i32; Unpacked::COLUMNS],
        total: *mut f32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            multiply::<P, 0, SHORT_SCALES, HALVES, MINIMUM>(self.0, blocks, x, meta, total);
            multiply::<P, 8, SHORT_SCALES, HALVES, MINIMUM>(self.0, blocks, x, meta, total);
        }
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a hint, which no address makes fail.
        unsafe { asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags)) }
    }
    #[inline(always)]
    fn prefetch_lines(self, p: *const u8, lines: usize) {
        // The offset is in the instruction: else the compiler keeps a pointer for each line.
        each!(line in [0 1 2 3 4 5 6 7 8] {
            if line < lines {
                // SAFETY: a hint, which no address makes fail.
                unsafe {
                    asm!("prfm pldl2keep, [{p}, {at}]", p = in(reg) p, at = const 64 * line,
                        options(readonly, nostack, preserves_flags))
                }
            }
        });
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
    unsafe fn low_above(self, p: *const u32, limit: u32) -> u16 {
        let x = memory!(four!(q => vld1q_u32(p.add(4 * q))));
        have!(bits(four!(q => vcgtq_u32(vandq_u32(x[q], vdupq_n_u32(0xffff)), vdupq_n_u32(limit)))))
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

/// [`Vector::multiply`] of the 8 rows from `ROWS` on: the totals of four columns stay in registers while all blocks
/// pass by.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn multiply<
    P: Products,
    const ROWS: usize,
    const SHORT_SCALES: bool,
    const HALVES: bool,
    const MINIMUM: bool,
>(
    p: P,
    blocks: &[Unpacked],
    mut x: [*const i8; 4],
    mut meta: [*const i32; 4],
    total: *mut f32,
) {
    let at = |c: usize, q: usize| total.wrapping_add(LANES * c + ROWS + 4 * q);
    let mut sums = [[have!(vdupq_n_f32(0.0)); 2]; 4];
    for c in 0..4 {
        sums[c] = memory!([vld1q_f32(at(c, 0)), vld1q_f32(at(c, 1))]);
    }
    for block in blocks {
        let codes = block.codes.as_ptr().wrapping_add(32 * ROWS);
        let two = |from: &[f32; LANES]| {
            let from = from.as_ptr().wrapping_add(ROWS);
            memory!([vld1q_f32(from), vld1q_f32(from.add(4))])
        };
        let mut t = [[have!(vdupq_n_f32(0.0)); 2]; 4];
        // SAFETY: a block holds 256 codes of 8 rows, in halves; the caller vouches for the columns.
        let dot = unsafe {
            match HALVES {
                false => p.corner::<2>(codes, &mut x),
                true => p.corner::<1>(codes, &mut x),
            }
        };
        let scale = two(&block.scales[0]);
        for c in 0..4 {
            if SHORT_SCALES {
                t[c] = offsets::<ROWS>(block);
            }
            for q in 0..2 {
                t[c][q] = have!(if SHORT_SCALES {
                    vfmaq_f32(t[c][q], vreinterpretq_f32_s32(dot[c][q]), scale[q])
                } else {
                    vmulq_f32(from_start(dot[c][q]), scale[q])
                });
            }
        }
        // While the next dot products are computed, there are registers for no more than these.
        let [[a, b], [c, d], [e, f], [g, h]] = &mut t;
        computed!(*a, *b, *c, *d, *e, *f, *g, *h);
        if HALVES {
            // SAFETY: as above.
            let dot = unsafe { p.corner::<1>(codes.wrapping_add(128), &mut x) };
            let scale = two(&block.scales[1]);
            for c in 0..4 {
                for q in 0..2 {
                    t[c][q] = have!(vfmaq_f32(t[c][q], from_start(dot[c][q]), scale[q]));
                }
            }
        }
        let minimums = [two(&block.minimums[0]), two(&block.minimums[1])];
        for c in 0..4 {
            // The scale, then the negated sums of both halves and of all.
            // SAFETY: the caller's promise.
            let words = unsafe { next_meta::<MINIMUM>(&mut meta[c]) };
            let negated = to_floats(words);
            for q in 0..2 {
                have!({
                    if HALVES && MINIMUM {
                        t[c][q] = vfmaq_laneq_f32::<1>(t[c][q], minimums[0][q], negated);
                        t[c][q] = vfmaq_laneq_f32::<2>(t[c][q], minimums[1][q], negated);
                    } else if MINIMUM {
                        t[c][q] = vfmaq_laneq_f32::<3>(t[c][q], minimums[0][q], negated);
                    }
                    sums[c][q] = vfmaq_laneq_f32::<0>(sums[c][q], t[c][q], words);
                });
            }
        }
    }
    for c in 0..4 {
        memory!(each!(q in [0 1] { vst1q_f32(at(c, q), sums[c][q]) }));
    }
}

/// Integers as floats, four together: the compiler would move those that are used to other registers and back.
#[inline(always)]
fn to_floats(integers: float32x4_t) -> float32x4_t {
    let floats: float32x4_t;
    // SAFETY: called with a token, which proves NEON; no memory is touched.
    unsafe {
        asm!("scvtf {f:v}.4s, {i:v}.4s", f = lateout(vreg) floats, i = in(vreg) integers,
            options(pure, nomem, nostack, preserves_flags))
    }
    floats
}

/// The scale of a column's next block, with `ALL` its negated sums after it. The pointer advances in the same
/// instruction.
///
/// # Safety
/// `meta` is readable for four numbers.
#[inline(always)]
unsafe fn next_meta<const ALL: bool>(meta: &mut *const i32) -> float32x4_t {
    let words: float32x4_t;
    // SAFETY: the caller's promise.
    unsafe {
        if ALL {
            asm!("ldr {w:q}, [{m}], #16", w = out(vreg) words, m = inout(reg) *meta,
                options(readonly, nostack, preserves_flags));
        } else {
            asm!("ldr {w:s}, [{m}], #16", w = out(vreg) words, m = inout(reg) *meta,
                options(readonly, nostack, preserves_flags));
        }
    }
    words
}

/// Two registers of a block's offsets, read anew wherever they are added to: the compiler would keep them in registers
/// and copy those.
#[inline(always)]
fn offsets<const ROWS: usize>(block: &Unpacked) -> [float32x4_t; 2] {
    const { assert!(ROWS + 8 <= LANES) }
    let (one, two): (float32x4_t, float32x4_t);
    // SAFETY: a block has 16 of them.
    unsafe {
        asm!("ldp {one:q}, {two:q}, [{block}, {at}]", one = out(vreg) one, two = out(vreg) two, block = in(reg) block,
            at = const offset_of!(Unpacked, offsets) + 4 * ROWS, options(readonly, nostack, preserves_flags))
    }
    [one, two]
}

/// Every byte of `x` shifted right by `BY`, with the top `BY` bits of `high` above it. The compiler makes two or three
/// instructions of the intrinsic of this one.
#[inline(always)]
fn insert_right<const BY: usize>(high: uint8x16_t, x: uint8x16_t) -> uint8x16_t {
    let mut both = high;
    // SAFETY: called with a token, which proves NEON; no memory is touched.
    unsafe {
        asm!("sri {b:v}.16b, {x:v}.16b, {by}", b = inout(vreg) both, x = in(vreg) x, by = const BY,
            options(pure, nomem, nostack, preserves_flags))
    }
    both
}

/// `a * b` as floats, exactly: products below 2^22 where `small`, else below 2^24.
#[inline(always)]
fn products(a: [int32x4_t; 4], b: [int32x4_t; 4], small: bool) -> [float32x4_t; 4] {
    if !small {
        return have!(four!(q => vcvtq_f32_s32(vmulq_s32(a[q], b[q]))));
    }
    let (first, last) = (constants::<START>(), constants::<START>());
    have!(four!(q => from_start(vmlaq_s32([first, last][q / 2][q % 2], a[q], b[q]))))
}

/// A sum that began with [`START`] and is below 2^22 without it, as a float.
#[inline(always)]
fn from_start(sum: int32x4_t) -> float32x4_t {
    have!(vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(f32::from_bits(START.cast_unsigned()))))
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
