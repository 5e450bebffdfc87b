//! Plain Rust over arrays: the fall-back for any processor, written so that the compiler can vectorise it.

#![allow(clippy::needless_range_loop, reason = "one index walks several small arrays, and closures would not inline")]

use super::{Kernel, LANES, Lanes};

/// The token of the portable level, which every processor has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// `f` of every lane. A loop, unlike `array::map`, always inlines and vectorises.
#[inline(always)]
fn map<A: Copy, B: Copy + Default>(x: [A; LANES], f: impl Fn(A) -> B) -> [B; LANES] {
    let mut out = [B::default(); LANES];
    for i in 0..LANES {
        out[i] = f(x[i]);
    }
    out
}

/// `f` of every pair of lanes.
#[inline(always)]
fn zip<A: Copy + Default>(a: [A; LANES], b: [A; LANES], f: impl Fn(A, A) -> A) -> [A; LANES] {
    let mut out = [A::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
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
    /// A lane's bytes in a word, the first lowest.
    type B = [u32; LANES];

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
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        zip(zip(a, b, |a, b| a * b), c, |ab, c| ab + c)
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    fn shl_int(self, x: Self::I, by: u32) -> Self::I {
        map(x, |x| x << by)
    }
    #[inline(always)]
    fn to_float(self, x: Self::I) -> Self::F {
        map(x, |x| x as f32)
    }

    #[inline(always)]
    fn no_bytes(self) -> Self::B {
        [0; LANES]
    }
    #[inline(always)]
    fn and(self, x: Self::B, mask: u8) -> Self::B {
        map(x, |x| x & u32::from_ne_bytes([mask; 4]))
    }
    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn shift(self, x: Self::B, by: i32) -> Self::B {
        if by >= 0 { map(x, |x| x << by) } else { map(x, |x| x >> -by) }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Self::B) -> Self::B {
        map(x, |x| u32::from_ne_bytes(x.to_ne_bytes().map(|x| table[usize::from(x & 15)])))
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
                    for byte in 0..4 {
                        for lane in 0..LANES {
                            acc[j][lane] += ((w[h][v][lane] >> (8 * byte)) & 255) as i32 * quad[byte];
                        }
                    }
                }
            }
        }
        acc
    }

    #[inline(always)]
    unsafe fn bytes(self, p: *const u8) -> Self::B {
        // SAFETY: the caller gives 64 readable bytes; the read needs no alignment.
        map(unsafe { p.cast::<Self::B>().read_unaligned() }, u32::from_le)
    }
    #[inline(always)]
    unsafe fn f32s(self, p: *const u8) -> Self::F {
        // SAFETY: the caller gives 64 readable bytes; the read needs no alignment.
        unsafe { p.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn f16s(self, p: *const u8) -> Self::F {
        // SAFETY: the caller gives 32 readable bytes; the read needs no alignment.
        map(unsafe { p.cast::<[u16; LANES]>().read_unaligned() }, half_to_float)
    }
    #[inline(always)]
    unsafe fn bf16s(self, p: *const u8) -> Self::F {
        // SAFETY: the caller gives 32 readable bytes; the read needs no alignment.
        map(unsafe { p.cast::<[u16; LANES]>().read_unaligned() }, |x| f32::from_bits(u32::from(x) << 16))
    }
    #[inline(always)]
    unsafe fn u8s(self, p: *const u8) -> Self::I {
        // SAFETY: the caller gives 16 readable bytes.
        map(unsafe { p.cast::<[u8; LANES]>().read() }, i32::from)
    }
    #[inline(always)]
    unsafe fn i8s(self, p: *const u8) -> Self::I {
        // SAFETY: the caller gives 16 readable bytes.
        map(unsafe { p.cast::<[i8; LANES]>().read() }, i32::from)
    }
    #[inline(always)]
    unsafe fn store(self, x: Self::F, p: *mut f32) {
        // SAFETY: the caller gives 64 writable bytes; the write needs no alignment.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, x: Self::B, p: *mut u8) {
        // SAFETY: the caller gives 64 writable bytes; the write needs no alignment.
        unsafe { p.cast::<Self::B>().write_unaligned(map(x, u32::to_le)) }
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
