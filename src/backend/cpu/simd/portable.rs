//! [`Simd`] as arrays: the reference, and what runs where no other form exists.

use super::{Kernel, LANES, Simd};
use half::f16;

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

// Counted loops rather than iterators: they are compiled in great numbers.

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    let mut i = 0;
    while i < LANES {
        lanes[i] = f(i);
        i += 1;
    }
    lanes
}

#[inline(always)]
fn bits(f: impl Fn(usize) -> bool) -> u16 {
    (0..LANES).fold(0, |bits, i| bits | u16::from(f(i)) << i)
}

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

/// An f16 as f32, without a branch.
#[inline(always)]
fn widen(half: u16) -> f32 {
    // In f32's places, exponent and mantissa read as the value divided by 2^112, subnormal or not.
    let (sign, rest) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7fff) << 13);
    let value = f32::from_bits(rest) * f32::from_bits((127 + 112) << 23);
    // Infinities and NaN have the highest exponent in both.
    let top = if half & 0x7c00 == 0x7c00 { 0xff << 23 } else { 0 };
    f32::from_bits(value.to_bits() | top | sign)
}

// SAFETY: no instruction beyond the baseline is used; every pointer is read or written for 16 elements (one in
// `splat_f16`), unaligned.
unsafe impl Simd for Portable {
    const ENTRIES: [usize; 4] = [4, 1, 1, 1];
    const WIDE: bool = false;
    type F = [f32; LANES];
    type M = u16;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        #[inline(never)]
        fn run<K: Kernel>(kernel: K) -> K::Output {
            // SAFETY: plain Rust needs no instruction set.
            unsafe { kernel.run::<Portable>() }
        }
        run(kernel)
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: the trait's obligation.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: the trait's obligation.
        unsafe { p.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // Two roundings: without hardware for it a fused multiply-add is a slow library call.
        each(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        // Adding 1.5 * 2^23 leaves no bits for a fraction, and rounds to the nearest even on the way.
        const SHIFT: f32 = 12_582_912.0;
        each(|i| (a[i] + SHIFT) - SHIFT)
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        each(|i| f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn lt(a: Self::F, b: Self::F) -> u16 {
        bits(|i| a[i] < b[i])
    }
    #[inline(always)]
    unsafe fn select(m: u16, a: Self::F, b: Self::F) -> Self::F {
        each(|i| if m >> i & 1 != 0 { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn mask(bits: u16) -> u16 {
        bits
    }
    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        fold(a, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn largest(a: Self::F) -> f32 {
        fold(a, f32::max)
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::F {
        // SAFETY: the trait's obligation.
        let raw = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each(|i| widen(raw[i]))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, v: Self::F) {
        let raw: [u16; LANES] = std::array::from_fn(|i| f16::from_f32_const(v[i]).to_bits());
        // SAFETY: the trait's obligation.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(raw) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self::F {
        // SAFETY: the trait's obligation.
        let raw = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        each(|i| f32::from(raw[i]))
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u8) -> Self::F {
        // SAFETY: the trait's obligation.
        let raw = unsafe { p.cast::<u16>().read_unaligned() };
        [widen(raw); LANES]
    }
    #[inline(always)]
    unsafe fn within(p: *const i32, lo: i32, hi: i32) -> u16 {
        // SAFETY: the trait's obligation.
        let x = unsafe { p.cast::<[i32; LANES]>().read_unaligned() };
        bits(|i| lo <= x[i] && x[i] <= hi)
    }
    #[inline(always)]
    unsafe fn intersects(p: *const u32, set: u32) -> u16 {
        // SAFETY: the trait's obligation.
        let x = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        bits(|i| x[i] & set != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens() {
        for bits in 0..=u16::MAX {
            let (got, exact) = (widen(bits), f16::from_bits(bits).to_f32());
            assert!(got == exact || (got.is_nan() && exact.is_nan()), "{bits:#x}: {got} {exact}");
            assert_eq!(got.is_sign_negative(), exact.is_sign_negative(), "{bits:#x}");
        }
    }
}
