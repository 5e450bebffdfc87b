//! Sixteen f32 lanes, on every instruction set.
//!
//! Kernels of attention, norms and activations are written once over [`Simd`], a vector of 16 lanes: one register
//! of AVX-512, two of AVX2, an array elsewhere. Sixteen is also the block of KV cells, so masks are always 16 bits.
//!
//! The trait's methods are inlined always and carry no target feature of their own (the two cannot be combined).
//! Only the trampolines under [`dispatch`] carry one; everything a [`Kernel`] calls must be inlined into them, or it
//! would be compiled for the baseline. Lanes are combined in one fixed order, so a result depends on the instruction
//! set and on the values, never on how work was cut.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::isa::Isa;

pub(crate) use portable::Portable;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 lanes of one instruction set.
///
/// # Safety
///
/// Every method is unsafe for two reasons that callers must meet: the instruction set must be available, and
/// pointers must be valid for the 16 elements (one for `splat_f16`) that are read or written, at any alignment.
pub(crate) unsafe trait Simd: Copy {
    /// How many query vectors attention may work on at once, besides one: largest first.
    const ENTRIES: [usize; 4];
    /// Whether there are 32 registers of 16 lanes, so that tiles may be wider.
    const WIDE: bool;
    /// Sixteen f32.
    type F: Copy;
    /// A condition per lane.
    type M: Copy;

    /// Run a kernel as a function of its own, which keeps what is compiled together small.
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output;
    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`; rounded once where the instruction set has a fused form.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer; values beyond ±2^22 are not used.
    unsafe fn round(a: Self::F) -> Self::F;
    /// 2 to the power of integers in -126..=127.
    unsafe fn pow2(n: Self::F) -> Self::F;
    /// `a < b`, false where either is NaN.
    unsafe fn lt(a: Self::F, b: Self::F) -> Self::M;
    /// `a` where the mask is set, else `b`.
    unsafe fn select(m: Self::M, a: Self::F, b: Self::F) -> Self::F;
    /// A mask from bits, lane 0 lowest.
    unsafe fn mask(bits: u16) -> Self::M;
    /// Sum of the lanes, pairwise.
    unsafe fn sum(a: Self::F) -> f32;
    /// Largest lane; unspecified where a lane is NaN.
    unsafe fn largest(a: Self::F) -> f32;
    /// Sixteen f16 as f32.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// Sixteen f32 rounded to f16, nearest even.
    unsafe fn store_f16(p: *mut u8, v: Self::F);
    /// Sixteen i8 as f32.
    unsafe fn load_i8(p: *const u8) -> Self::F;
    /// One f16, in every lane.
    unsafe fn splat_f16(p: *const u8) -> Self::F;
    /// Bits of the lanes where `lo <= p[i] <= hi`.
    unsafe fn within(p: *const i32, lo: i32, hi: i32) -> u16;
    /// Bits of the lanes where `p[i] & bits != 0`.
    unsafe fn intersects(p: *const u32, bits: u32) -> u16;
}

/// Work written over [`Simd`], for [`dispatch`].
pub(crate) trait Kernel {
    /// What the work returns.
    type Output;

    /// Do the work. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    ///
    /// The instruction set of `S` is available.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Run a kernel on an instruction set, which must be one that [`Isa::available`] lists.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        // SAFETY: an `Isa` other than `Portable` comes from `Isa::detect` or `Isa::available`.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => unsafe { avx512::Avx512::call(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::Avx2::call(kernel) },
        // SAFETY: plain Rust, available everywhere.
        _ => unsafe { Portable::call(kernel) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Everything<'a> {
        x: &'a [f32; 16],
        y: &'a [f32; 16],
    }

    impl Kernel for Everything<'_> {
        type Output = Vec<(&'static str, Vec<f32>)>;

        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> Self::Output {
            let mut out = Vec::new();
            // SAFETY: the caller's promise, and arrays of 16 elements.
            unsafe {
                let (x, y) = (S::load(self.x.as_ptr()), S::load(self.y.as_ptr()));
                let mut push = |name, v: S::F| {
                    let mut lanes = [0f32; 16];
                    S::store(lanes.as_mut_ptr(), v);
                    out.push((name, lanes.to_vec()));
                };
                push("add", S::add(x, y));
                push("sub", S::sub(x, y));
                push("mul", S::mul(x, y));
                push("div", S::div(x, y));
                push("max", S::max(x, y));
                push("min", S::min(x, y));
                push("round", S::round(x));
                push("pow2", S::pow2(S::round(y)));
                push("select lt", S::select(S::lt(x, y), x, y));
                push("select bits", S::select(S::mask(0b1010_0110_0001_1011), x, y));
                push("splat", S::splat(self.x[3]));
                let mut half = [0u8; 32];
                S::store_f16(half.as_mut_ptr(), x);
                push("f16", S::load_f16(half.as_ptr()));
                push("splat f16", S::splat_f16(half.as_ptr().add(10)));
                let bytes: [u8; 16] = std::array::from_fn(|i| (i as i32 * 17 - 128) as i8 as u8);
                push("i8", S::load_i8(bytes.as_ptr()));
                let ints: [i32; 16] = std::array::from_fn(|i| [i32::MIN, -5, -1, 0, 3, 7, i32::MAX, 5][i * 3 % 8]);
                let sets: [u32; 16] = std::array::from_fn(|i| [0u32, 1, 2, 3, 0x8000_0000, 5, 6, 4][i % 8]);
                let numbers = vec![
                    S::sum(x),
                    S::largest(x),
                    f32::from(S::within(ints.as_ptr(), -1, 7)),
                    f32::from(S::within(ints.as_ptr(), i32::MIN, i32::MAX)),
                    f32::from(S::intersects(sets.as_ptr(), 2)),
                    f32::from(S::intersects(sets.as_ptr(), 0x8000_0001)),
                ];
                out.push(("numbers", numbers));
            }
            out
        }
    }

    #[test]
    fn every_instruction_set_agrees_with_plain_rust() {
        let x: [f32; 16] = std::array::from_fn(|i| (i as f32 - 7.3) * 1.37);
        let y: [f32; 16] = std::array::from_fn(|i| ((i * 7 % 16) as f32 - 6.1) * 3.3);
        let expected = dispatch(Isa::Portable, Everything { x: &x, y: &y });
        for (name, values) in &expected {
            match *name {
                "add" => assert_eq!(values[2], x[2] + y[2]),
                "round" => assert_eq!(values[0], x[0].round()),
                "pow2" => assert_eq!(values[1], y[1].round().exp2()),
                "f16" => assert_eq!(values[5], half::f16::from_f32(x[5]).to_f32()),
                "i8" => assert_eq!(values[..3], [-128.0, -111.0, -94.0]),
                "numbers" => assert_eq!(values[4] as u16, 0b0100_1100_0100_1100),
                _ => {}
            }
        }
        for isa in Isa::available() {
            assert_eq!(dispatch(isa, Everything { x: &x, y: &y }), expected, "{isa:?}");
        }
    }
}
