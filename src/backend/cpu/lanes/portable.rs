//! Plain Rust over arrays: the fall-back for any processor, written so that the compiler can vectorise it.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use super::{Kernel, LANES, Lanes};

/// The token of the portable level, which every processor has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// Four bytes of every lane as native words, for shifts.
#[inline(always)]
fn words(x: [u8; 64], f: impl Fn(u32) -> u32) -> [u8; 64] {
    let mut out = [0; 64];
    for (to, from) in out.chunks_exact_mut(4).zip(x.chunks_exact(4)) {
        to.copy_from_slice(&f(u32::from_le_bytes([from[0], from[1], from[2], from[3]])).to_le_bytes());
    }
    out
}

/// The number with these half-precision bits, exactly.
#[inline(always)]
fn half_to_float(bits: u16) -> f32 {
    let magnitude = (u32::from(bits) & 0x7fff) << 13;
    // Rescaling by 2^112 moves the exponent and normalises subnormals alike; infinities and NaN overflow the
    // half exponent and get the full one.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled | special | (u32::from(bits) & 0x8000) << 16)
}

impl Lanes for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];

    const TILE: usize = 4;
    const FLOAT_TILE: usize = 2;
    const SIGNED_BYTES: bool = false;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Out {
        #[inline(never)]
        fn enter<K: Kernel>(kernel: K) -> K::Out {
            kernel.run(Portable)
        }
        enter(kernel)
    }

    #[inline(always)]
    fn zero(self) -> Self::F {
        [0.0; LANES]
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    fn shl_int(self, x: Self::I, by: u32) -> Self::I {
        x.map(|x| x << by)
    }
    #[inline(always)]
    fn shr_int(self, x: Self::I, by: u32) -> Self::I {
        x.map(|x| (x as u32 >> by) as i32)
    }
    #[inline(always)]
    fn to_float(self, x: Self::I) -> Self::F {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    fn no_bytes(self) -> Self::B {
        [0; 64]
    }
    #[inline(always)]
    fn and(self, x: Self::B, mask: u8) -> Self::B {
        x.map(|x| x & mask)
    }
    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn shift(self, x: Self::B, by: i32) -> Self::B {
        if by >= 0 { words(x, |w| w << by) } else { words(x, |w| w >> -by) }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Self::B) -> Self::B {
        x.map(|x| table[usize::from(x & 15)])
    }

    #[inline(always)]
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        _bits: u32,
        mut acc: [Self::I; J],
        w: &[[Self::B; 4]; H],
        a: [*const i8; J],
    ) -> [Self::I; J] {
        for h in 0..H {
            for v in 0..4 {
                for j in 0..J {
                    // SAFETY: the caller gives 16 * H readable bytes at every `a[j]`.
                    let quad = unsafe { a[j].add(16 * h + 4 * v).cast::<[i8; 4]>().read() }.map(i32::from);
                    for lane in 0..LANES {
                        for byte in 0..4 {
                            acc[j][lane] += i32::from(w[h][v][4 * lane + byte]) * quad[byte];
                        }
                    }
                }
            }
        }
        acc
    }

    #[inline(always)]
    unsafe fn bytes(self, p: *const u8) -> Self::B {
        // SAFETY: the caller gives 64 readable bytes.
        unsafe { p.cast::<[u8; 64]>().read() }
    }
    #[inline(always)]
    unsafe fn f32s(self, p: *const u8) -> Self::F {
        // SAFETY: the caller gives 64 readable bytes; the read needs no alignment.
        unsafe { p.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn f16s(self, p: *const u8) -> Self::F {
        // SAFETY: the caller gives 32 readable bytes; the read needs no alignment.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(half_to_float)
    }
    #[inline(always)]
    unsafe fn bf16s(self, p: *const u8) -> Self::F {
        // SAFETY: the caller gives 32 readable bytes; the read needs no alignment.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|x| f32::from_bits(u32::from(x) << 16))
    }
    #[inline(always)]
    unsafe fn u8s(self, p: *const u8) -> Self::I {
        // SAFETY: the caller gives 16 readable bytes.
        unsafe { p.cast::<[u8; LANES]>().read() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn i8s(self, p: *const u8) -> Self::I {
        // SAFETY: the caller gives 16 readable bytes.
        unsafe { p.cast::<[i8; LANES]>().read() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn store(self, x: Self::F, p: *mut f32) {
        // SAFETY: the caller gives 64 writable bytes; the write needs no alignment.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, x: Self::B, p: *mut u8) {
        // SAFETY: the caller gives 64 writable bytes.
        unsafe { p.cast::<[u8; 64]>().write(x) }
    }
}

#[cfg(test)]
mod tests {
    use super::half_to_float;

    #[test]
    fn every_half_converts_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (half_to_float(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#06x}");
        }
    }
}
