//! Plain Rust over arrays: the reference, and what runs where no other form exists.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use super::vector::{BYTE_ZERO, Kernel, LANES, Vector};
use half::f16;

/// The token of the portable level, which every processor has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// `f` of every lane. A counted loop, unlike iterators and `array::map`, always inlines and vectorises.
#[inline(always)]
fn each<T: Copy + Default>(f: impl Fn(usize) -> T) -> [T; LANES] {
    let mut lanes = [T::default(); LANES];
    let mut i = 0;
    while i < LANES {
        lanes[i] = f(i);
        i += 1;
    }
    lanes
}

/// A bit of every lane, lane 0 lowest.
#[inline(always)]
fn bits(f: impl Fn(usize) -> bool) -> u16 {
    (0..LANES).fold(0, |bits, i| bits | u16::from(f(i)) << i)
}

/// All lanes as one, pairwise.
#[inline(always)]
fn fold(mut a: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            a[i] = f(a[i], a[i + n]);
        }
        n /= 2;
    }
    a[0]
}

/// An f16 as f32, exactly and without a branch.
#[inline(always)]
fn widen(half: u16) -> f32 {
    // In f32's places, exponent and mantissa read as the value divided by 2^112, subnormal or not.
    let (sign, rest) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7fff) << 13);
    let value = f32::from_bits(rest) * f32::from_bits((127 + 112) << 23);
    // Infinities and NaN have the highest exponent in both.
    let top = if half & 0x7c00 == 0x7c00 { 0xff << 23 } else { 0 };
    f32::from_bits(value.to_bits() | top | sign)
}

impl Vector for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    /// A lane's bytes in a word, the first lowest.
    type B = [u32; LANES];
    type M = u16;

    const TILE: usize = 4;
    const FLOAT_TILE: usize = 2;
    const ENTRIES: [usize; 4] = [4, 1, 1, 1];
    const WIDE: bool = false;
    const SIGNED_BYTES: bool = BYTE_ZERO == 0;

    #[inline(always)]
    fn new() -> Option<Self> {
        Some(Portable)
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        fn enter<K: Kernel>(kernel: K) -> K::Output {
            kernel.run(Portable)
        }
        enter(kernel)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // Two roundings: without hardware for it a fused multiply-add is a slow library call.
        each(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        // Adding 1.5 * 2^23 leaves no bits for a fraction, and rounds to the nearest even on the way.
        const SHIFT: f32 = 12_582_912.0;
        each(|i| (a[i] + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        each(|i| f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        fold(a, |x, y| x + y)
    }
    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        fold(a, f32::max)
    }

    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> u16 {
        bits(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn mask(self, bits: u16) -> u16 {
        bits
    }
    #[inline(always)]
    fn select(self, m: u16, a: Self::F, b: Self::F) -> Self::F {
        each(|i| if m >> i & 1 != 0 { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    fn shl_int(self, x: Self::I, by: u32) -> Self::I {
        each(|i| x[i] << by)
    }
    #[inline(always)]
    fn to_float(self, x: Self::I) -> Self::F {
        each(|i| x[i] as f32)
    }

    #[inline(always)]
    fn zero_bytes(self) -> Self::B {
        [0; LANES]
    }
    #[inline(always)]
    fn and(self, x: Self::B, mask: u8) -> Self::B {
        each(|i| x[i] & u32::from_ne_bytes([mask; 4]))
    }
    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        each(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn shift(self, x: Self::B, by: i32) -> Self::B {
        if by >= 0 { each(|i| x[i] << by) } else { each(|i| x[i] >> -by) }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Self::B) -> Self::B {
        each(|i| u32::from_ne_bytes(x[i].to_ne_bytes().map(|x| table[usize::from(x & 15)])))
    }

    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        bits: u32,
        mut acc: [Self::I; J],
        w: &[[Self::B; 4]; H],
        a: [*const i8; J],
    ) -> [Self::I; J] {
        for h in 0..H {
            for v in 0..4 {
                for j in 0..J {
                    // SAFETY: the caller gives 16 * H readable bytes at every `a[j]`.
                    let quad = unsafe { a[j].add(16 * h + 4 * v).cast::<[i8; 4]>().read() }.map(i32::from);
                    for byte in 0..4 {
                        for lane in 0..LANES {
                            let code = (w[h][v][lane] >> (8 * byte)) as u8;
                            let signed = bits == 8 && Self::SIGNED_BYTES;
                            acc[j][lane] += if signed { i32::from(code as i8) } else { i32::from(code) } * quad[byte];
                        }
                    }
                }
            }
        }
        acc
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller gives 64 readable bytes; so in every load below, of the bytes that the trait names.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::F {
        // SAFETY: as above.
        let raw = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each(|i| widen(raw[i]))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> Self::F {
        // SAFETY: as above.
        let raw = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each(|i| f32::from_bits(u32::from(raw[i]) << 16))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::I {
        // SAFETY: as above.
        let raw = unsafe { p.cast::<[u8; LANES]>().read() };
        each(|i| i32::from(raw[i]))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> Self::I {
        // SAFETY: as above.
        let raw = unsafe { p.cast::<[i8; LANES]>().read() };
        each(|i| i32::from(raw[i]))
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::B {
        // SAFETY: as above.
        let raw = unsafe { p.cast::<Self::B>().read_unaligned() };
        each(|i| u32::from_le(raw[i]))
    }
    #[inline(always)]
    unsafe fn within(self, p: *const i32, lo: i32, hi: i32) -> u16 {
        // SAFETY: as above.
        let x = unsafe { p.cast::<[i32; LANES]>().read_unaligned() };
        bits(|i| lo <= x[i] && x[i] <= hi)
    }
    #[inline(always)]
    unsafe fn intersects(self, p: *const u32, set: u32) -> u16 {
        // SAFETY: as above.
        let x = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        bits(|i| x[i] & set != 0)
    }
    #[inline(always)]
    unsafe fn low_above(self, p: *const u32, limit: u32) -> u16 {
        // SAFETY: as above.
        let x = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        bits(|i| x[i] & 0xffff > limit)
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: Self::F) {
        // SAFETY: the caller gives 64 writable bytes; so in every store below, of the bytes that the trait names.
        unsafe { p.cast::<Self::F>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8, x: Self::F) {
        let raw = each(|i| f16::from_f32_const(x[i]).to_bits());
        // SAFETY: as above.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(raw) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, x: Self::B) {
        // SAFETY: as above.
        unsafe { p.cast::<Self::B>().write_unaligned(each(|i| x[i].to_le())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens() {
        for bits in 0..=u16::MAX {
            let (got, exact) = (widen(bits), f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == exact.to_bits() || got.is_nan() && exact.is_nan(), "{bits:#06x}: {got} {exact}");
        }
    }
}
