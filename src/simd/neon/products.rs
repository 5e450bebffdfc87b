//! How bytes are multiplied: by widening products, dot products or products of matrices.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use crate::simd::vector::{BYTE_ZERO, Kernel, UnpackedCodes};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

/// Proof that the processor has NEON and what `P` multiplies with.
#[derive(Clone, Copy)]
pub(in crate::simd) struct Neon<P>(pub(super) P);

/// How a level multiplies bytes. An implementor is proof that the processor can.
pub(in crate::simd) trait Products: Copy {
    /// The proof, where the processor can.
    fn new() -> Option<Self>;
    /// Runs a kernel, compiled for the instructions.
    fn enter<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output;
    /// `Vector::dot` of signed codes.
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

    /// `Vector::dot_halves` of signed codes.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn dot_halves<const J: usize>(
        self,
        bits: u32,
        acc: [[[int32x4_t; 4]; J]; 2],
        w: &[[[uint8x16_t; 4]; 4]; 2],
        a: [*const i8; J],
    ) -> [[[int32x4_t; 4]; J]; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let first = self.dot::<1, J>(bits, acc[0], &[w[0]], a);
            [first, self.dot::<1, J>(bits, acc[1], &[w[1]], a.map(|a| a.wrapping_add(16)))]
        }
    }
    /// `Vector::TILE`.
    const TILE: usize;
    /// `Vector::UNPACKS_FROM`.
    const UNPACKS_FROM: usize;
    /// `Vector::unpack`, the codes signed already: first those of rows 0 to 7, then of rows 8 to 15.
    fn unpack(self, _codes: &[[int8x16_t; 4]; 8], _out: &mut UnpackedCodes) {
        unreachable!("a level that unpacks in its tiles")
    }
    /// Dot products, begun with `START`, of 8 rows with four columns over `16 * H` weights, the codes as
    /// [`Products::unpack`] put them. The pointers to activations advance.
    ///
    /// # Safety
    /// `codes` is readable for `128 * H` bytes, every `x` for `16 * H`.
    unsafe fn corner<const H: usize>(self, _codes: *const i8, _x: &mut [*const i8; 4]) -> [[int32x4_t; 2]; 4] {
        unreachable!("a level that unpacks in its tiles")
    }
}

/// The next `16 * H` activations: two registers are read, and the pointer advances, in one instruction.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn next<const H: usize>(x: &mut *const i8) -> [int8x16_t; H] {
    const { assert!(matches!(H, 1 | 2)) }
    let (first, mut last): (int8x16_t, int8x16_t);
    // SAFETY: the caller's promise.
    unsafe {
        last = vdupq_n_s8(0);
        if H == 1 {
            asm!("ldr {first:q}, [{x}], #16", first = out(vreg) first, x = inout(reg) *x,
                options(readonly, nostack, preserves_flags));
        } else {
            asm!("ldp {first:q}, {last:q}, [{x}], #32", first = out(vreg) first, last = out(vreg) last,
                x = inout(reg) *x, options(readonly, nostack, preserves_flags));
        }
    }
    let both = [first, last];
    std::array::from_fn(
        #[inline(always)]
        |h| both[h],
    )
}

/// The bits of 1.5 * 2^23. With a sum below 2^22 added they are the bits of 1.5 * 2^23 plus the sum: so begun, a dot
/// product is a float without a conversion, and a fused multiply-add takes the surplus off again without an error.
pub(super) const START: i32 = 0x4b40_0000;

/// Two registers of a number, read from memory: whatever sets them otherwise takes the pipes that multiply.
#[inline(always)]
pub(super) fn constants<const X: i32>() -> [int32x4_t; 2] {
    let (one, two): (int32x4_t, int32x4_t);
    // SAFETY: two registers are read from an array of that size.
    unsafe {
        asm!("ldp {one:q}, {two:q}, [{p}]", one = out(vreg) one, two = out(vreg) two, p = in(reg) const { &[X; 8] },
            options(readonly, nostack, preserves_flags))
    }
    [one, two]
}

/// A code as a signed number: one of 8 bits lies as such in a panel, a narrower one is below 128.
#[inline(always)]
fn signed(code: uint8x16_t) -> int8x16_t {
    const { assert!(BYTE_ZERO == 0) }
    have!(vreinterpretq_s8_u8(code))
}

/// Proof of NEON.
#[derive(Clone, Copy)]
pub(in crate::simd) struct ByWidening(());

impl Products for ByWidening {
    const TILE: usize = 8;
    const UNPACKS_FROM: usize = usize::MAX;

    #[inline]
    fn new() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(ByWidening(()))
    }
    #[inline(always)]
    fn enter<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        #[inline(never)]
        fn enter<K: Kernel>(simd: Neon<ByWidening>, kernel: K) -> K::Output {
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
pub(in crate::simd) struct BySdot(ByWidening);

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

    /// Adds the dot products of 16 rows with J columns to one set of sums, or to one for each half. Four rows after
    /// four, so that few codes are in registers at a time; of one column the compiler would begin all of them else.
    ///
    /// # Safety
    /// As [`Products::dot`].
    #[inline(always)]
    unsafe fn add_dots<const SETS: usize, const H: usize, const J: usize>(
        self,
        acc: &mut [[[int32x4_t; 4]; J]; SETS],
        w: &[[[uint8x16_t; 4]; 4]; H],
        a: [*const i8; J],
    ) {
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
                    let set = h % SETS;
                    each!(v in [0 1 2 3] {
                        let code = signed(w[h][v][q]);
                        each!(j in [0 1 2 3] {
                            if j < J {
                                acc[set][j][q] = self.sdot::<v>(acc[set][j][q], code, x[j][h]);
                            }
                        });
                    });
                }
            });
            if J == 1 && q == 1 {
                for set in 0..SETS {
                    let [first, second, ..] = &mut acc[set][0];
                    computed!(*first, *second);
                }
            }
        });
    }
}

impl Products for BySdot {
    const TILE: usize = 4;
    const UNPACKS_FROM: usize = Self::TILE + 1;

    #[inline]
    fn new() -> Option<Self> {
        let neon = ByWidening::new()?;
        is_aarch64_feature_detected!("dotprod").then_some(BySdot(neon))
    }
    #[inline(always)]
    fn enter<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod")]
        #[inline(never)]
        fn enter<K: Kernel>(simd: Neon<BySdot>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        have!(enter(simd, kernel))
    }
    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        _bits: u32,
        acc: [[int32x4_t; 4]; J],
        w: &[[[uint8x16_t; 4]; 4]; H],
        a: [*const i8; J],
    ) -> [[int32x4_t; 4]; J] {
        let mut acc = [acc; 1];
        // SAFETY: the caller's promise.
        unsafe { self.add_dots(&mut acc, w, a) };
        acc[0]
    }
    #[inline(always)]
    unsafe fn dot_halves<const J: usize>(
        self,
        _bits: u32,
        mut acc: [[[int32x4_t; 4]; J]; 2],
        w: &[[[uint8x16_t; 4]; 4]; 2],
        a: [*const i8; J],
    ) -> [[[int32x4_t; 4]; J]; 2] {
        // SAFETY: the caller's promise.
        unsafe { self.add_dots(&mut acc, w, a) };
        acc
    }
    #[inline(always)]
    fn unpack(self, codes: &[[int8x16_t; 4]; 8], out: &mut UnpackedCodes) {
        for v in 0..8 {
            for q in 0..4 {
                let to = &mut out[256 * (q / 2) + 32 * v + 16 * (q % 2)..][..16];
                memory!(vst1q_s8(to.as_mut_ptr(), codes[v][q]));
            }
        }
    }
    #[inline(always)]
    unsafe fn corner<const H: usize>(self, codes: *const i8, x: &mut [*const i8; 4]) -> [[int32x4_t; 2]; 4] {
        let mut activations = [[have!(vdupq_n_s8(0)); H]; 4];
        for c in 0..4 {
            // SAFETY: the caller's promise.
            activations[c] = unsafe { next(&mut x[c]) };
        }
        let mut acc = [constants::<START>(), constants::<START>(), constants::<START>(), constants::<START>()];
        each!(h in [0 1] {
            if h < H {
                each!(two in [0 2] {
                    let codes = memory!(vld1q_s8_x4(codes.wrapping_add(32 * (4 * h + two))));
                    each!(c in [0 1 2 3] {
                        acc[c][0] = self.sdot::<two>(acc[c][0], codes.0, activations[c][h]);
                        acc[c][1] = self.sdot::<two>(acc[c][1], codes.1, activations[c][h]);
                    });
                    each!(c in [0 1 2 3] {
                        acc[c][0] = self.sdot::<{ two + 1 }>(acc[c][0], codes.2, activations[c][h]);
                        acc[c][1] = self.sdot::<{ two + 1 }>(acc[c][1], codes.3, activations[c][h]);
                    });
                });
            }
        });
        acc
    }
}

/// Proof of NEON, dot products and matrix products.
#[derive(Clone, Copy)]
pub(in crate::simd) struct BySmmla(BySdot);

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
    const TILE: usize = 4;
    const UNPACKS_FROM: usize = Self::TILE + 1;

    #[inline(always)]
    unsafe fn dot_halves<const J: usize>(
        self,
        bits: u32,
        acc: [[[int32x4_t; 4]; J]; 2],
        w: &[[[uint8x16_t; 4]; 4]; 2],
        a: [*const i8; J],
    ) -> [[[int32x4_t; 4]; J]; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            if J == 1 {
                return self.0.dot_halves(bits, acc, w, a);
            }
            let first = self.dot::<1, J>(bits, acc[0], &[w[0]], a);
            [first, self.dot::<1, J>(bits, acc[1], &[w[1]], a.map(|a| a.wrapping_add(16)))]
        }
    }

    #[inline]
    fn new() -> Option<Self> {
        let sdot = BySdot::new()?;
        is_aarch64_feature_detected!("i8mm").then_some(BySmmla(sdot))
    }
    #[inline(always)]
    fn enter<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod,i8mm")]
        #[inline(never)]
        fn enter<K: Kernel>(simd: Neon<BySmmla>, kernel: K) -> K::Output {
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

    /// Eight weights of a row side by side, two rows a register.
    #[inline(always)]
    fn unpack(self, codes: &[[int8x16_t; 4]; 8], out: &mut UnpackedCodes) {
        for eight in 0..4 {
            for q in 0..4 {
                have!({
                    let one = vreinterpretq_s32_s8(codes[2 * eight][q]);
                    let two = vreinterpretq_s32_s8(codes[2 * eight + 1][q]);
                    for (rows, codes) in [vzip1q_s32(one, two), vzip2q_s32(one, two)].into_iter().enumerate() {
                        let to = &mut out[256 * (q / 2) + 64 * eight + 32 * (q % 2) + 16 * rows..][..16];
                        vst1q_s8(to.as_mut_ptr(), vreinterpretq_s8_s32(codes));
                    }
                });
            }
        }
    }
    #[inline(always)]
    unsafe fn corner<const H: usize>(self, codes: *const i8, x: &mut [*const i8; 4]) -> [[int32x4_t; 2]; 4] {
        // Of each pair of columns, the codes of eight weights side by side.
        let mut pairs = [[[have!(vdupq_n_s8(0)); 2]; H]; 2];
        for pair in 0..2 {
            // SAFETY: the caller's promise.
            let (one, two) = unsafe { (next::<H>(&mut x[2 * pair]), next::<H>(&mut x[2 * pair + 1])) };
            for h in 0..H {
                pairs[pair][h] = have!({
                    let (one, two) = (vreinterpretq_s64_s8(one[h]), vreinterpretq_s64_s8(two[h]));
                    [vreinterpretq_s8_s64(vzip1q_s64(one, two)), vreinterpretq_s8_s64(vzip2q_s64(one, two))]
                });
            }
        }
        // Of each pair of columns, two rows a register.
        let mut acc = [[constants::<START>(), constants::<START>()], [constants::<START>(), constants::<START>()]];
        each!(eight in [0 1 2 3] {
            if eight < 2 * H {
                let codes = memory!(vld1q_s8_x4(codes.wrapping_add(64 * eight)));
                each!(pair in [0 1] {
                    let x = pairs[pair][eight / 2][eight % 2];
                    acc[pair][0][0] = self.smmla(acc[pair][0][0], codes.0, x);
                    acc[pair][0][1] = self.smmla(acc[pair][0][1], codes.1, x);
                    acc[pair][1][0] = self.smmla(acc[pair][1][0], codes.2, x);
                    acc[pair][1][1] = self.smmla(acc[pair][1][1], codes.3, x);
                });
            }
        });
        let mut columns = [[have!(vdupq_n_s32(0)); 2]; 4];
        for pair in 0..2 {
            for q in 0..2 {
                let [low, high] = acc[pair][q];
                columns[2 * pair][q] = have!(vuzp1q_s32(low, high));
                columns[2 * pair + 1][q] = have!(vuzp2q_s32(low, high));
            }
        }
        columns
    }
}
