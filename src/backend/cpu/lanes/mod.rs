//! Sixteen rows at once: the vector type all matrix kernels are written over.
//!
//! A panel interleaves 16 rows of a weight matrix so that one lane is one row; a kernel never adds across lanes.
//! [`Lanes`] is what such a kernel needs of an instruction set, and no more. An implementor is a zero-sized token
//! whose existence proves that the processor has the instructions: `new` checks, every operation relies on it, so
//! only loads and stores are unsafe to call.
//!
//! Methods are `#[inline(always)]` and carry no target feature of their own; [`Lanes::vectorize`] is the one place
//! where code enters a function compiled for the instruction set, and everything inlines into it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::isa::Isa;

/// Rows of a panel, lanes of a vector.
pub(super) const LANES: usize = 16;

/// Work to run over some instruction set. `run` must be `#[inline(always)]`, or it is compiled for the baseline.
pub(super) trait Kernel {
    /// What the work returns.
    type Out;
    /// Does the work.
    fn run<L: Lanes>(self, lanes: L) -> Self::Out;
}

/// The operations of one instruction set over 16 lanes.
pub(super) trait Lanes: Copy {
    /// 16 `f32`.
    type F: Copy;
    /// 16 `i32`.
    type I: Copy;
    /// 64 bytes: 4 for each lane.
    type B: Copy;

    /// Columns of the widest tile of the quantised kernels: what the registers hold.
    const TILE: usize;
    /// Columns of the widest tile of the float kernels.
    const FLOAT_TILE: usize;
    /// Whether `dot` takes 8-bit codes as signed numbers, so that no zero point is left to subtract.
    const SIGNED_BYTES: bool;

    /// Runs `kernel` in a function compiled for this instruction set.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Out;

    /// All zero.
    fn zero(self) -> Self::F;
    /// The same number in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`; rounded once where the instruction set has that.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    /// The same integer in every lane.
    fn splat_int(self, x: i32) -> Self::I;
    /// Every lane shifted left by `by` < 32 bits.
    fn shl_int(self, x: Self::I, by: u32) -> Self::I;
    /// Every integer as the nearest `f32`.
    fn to_float(self, x: Self::I) -> Self::F;

    /// All bytes zero.
    fn no_bytes(self) -> Self::B;
    /// `x & mask` in every byte.
    fn and(self, x: Self::B, mask: u8) -> Self::B;
    /// `a | b`.
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// Every 4-byte lane shifted left by `by` bits (right where negative): bits cross bytes, the caller masks.
    fn shift(self, x: Self::B, by: i32) -> Self::B;
    /// `table[b]` for every byte `b` < 16 of `x`.
    fn lookup(self, table: &[u8; 16], x: Self::B) -> Self::B;

    /// Dot products of weights with J columns: to each lane of `acc[j]` adds the sum of code times activation over
    /// the lane's 4 bytes of every vector of `w`, the activations being consecutive `i8` from `a[j]`. Codes are
    /// unsigned and below `1 << bits`; 8-bit ones stand for `code - 128` where [`Lanes::SIGNED_BYTES`].
    ///
    /// # Safety
    /// `a[j]` is readable for `16 * H` bytes; activations are not below -127.
    unsafe fn dot<const H: usize, const J: usize>(
        self,
        bits: u32,
        acc: [Self::I; J],
        w: &[[Self::B; 4]; H],
        a: [*const i8; J],
    ) -> [Self::I; J];

    /// Loads 64 bytes.
    ///
    /// # Safety
    /// `p` is readable for 64 bytes.
    unsafe fn bytes(self, p: *const u8) -> Self::B;
    /// Loads 16 `f32`.
    ///
    /// # Safety
    /// `p` is readable for 64 bytes; no alignment is needed.
    unsafe fn f32s(self, p: *const u8) -> Self::F;
    /// Loads 16 IEEE half-precision numbers, exactly.
    ///
    /// # Safety
    /// `p` is readable for 32 bytes.
    unsafe fn f16s(self, p: *const u8) -> Self::F;
    /// Loads 16 bfloat16 numbers, exactly.
    ///
    /// # Safety
    /// `p` is readable for 32 bytes.
    unsafe fn bf16s(self, p: *const u8) -> Self::F;
    /// Loads 16 `u8`.
    ///
    /// # Safety
    /// `p` is readable for 16 bytes.
    unsafe fn u8s(self, p: *const u8) -> Self::I;
    /// Loads 16 `i8`.
    ///
    /// # Safety
    /// `p` is readable for 16 bytes.
    unsafe fn i8s(self, p: *const u8) -> Self::I;
    /// Stores 16 `f32`.
    ///
    /// # Safety
    /// `p` is writable for 64 bytes; no alignment is needed.
    unsafe fn store(self, x: Self::F, p: *mut f32);
    /// Stores 64 bytes.
    ///
    /// # Safety
    /// `p` is writable for 64 bytes.
    unsafe fn store_bytes(self, x: Self::B, p: *mut u8);
}

/// Runs `kernel` on `isa`; a level this processor lacks runs as the portable one.
#[inline]
pub(super) fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Out {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => match avx512::Avx512::new() {
            Some(lanes) => kernel.run(lanes),
            None => kernel.run(portable::Portable),
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => match avx2::Avx2::new() {
            Some(lanes) => kernel.run(lanes),
            None => kernel.run(portable::Portable),
        },
        _ => kernel.run(portable::Portable),
    }
}
