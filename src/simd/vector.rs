//! What a kernel needs of an instruction set.
//!
//! An implementor of [`Vector`] is a zero-sized token whose existence proves that the processor has the instructions:
//! [`Vector::new`] checks, every operation relies on it, so only loads and stores are unsafe to call.
//!
//! Methods are `#[inline(always)]` and carry no target feature of their own (the two cannot be combined);
//! [`Vector::vectorize`] is the one place where code enters a function compiled for the instruction set, and everything
//! that a kernel calls must be inlined into it, or it would be compiled for the baseline.
//!
//! Lanes are combined in one fixed order, so a result depends on the instruction set and on the values, never on how
//! work was cut.

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// What an 8-bit code is raised by to be unsigned, as x86's products take it; elsewhere panels hold it signed.
pub(crate) const BYTE_ZERO: u8 = if cfg!(target_arch = "x86_64") { 128 } else { 0 };

/// Work to run on some instruction set. `run` must be `#[inline(always)]`, or it is compiled for the baseline.
pub(crate) trait Kernel {
    /// What the work returns.
    type Output;

    /// Do the work.
    fn run<S: Vector>(self, simd: S) -> Self::Output;
}

/// The operations of one instruction set on 16 lanes.
pub(crate) trait Vector: Copy {
    /// 16 `f32`.
    type F: Copy;
    /// 16 `i32`.
    type I: Copy;
    /// 64 bytes: 4 for each lane.
    type B: Copy;
    /// A condition for each lane.
    type M: Copy;

    /// Columns of the widest tile of a product of quantised weights: what the registers hold.
    const TILE: usize;
    /// Columns of the widest tile of a product of float weights.
    const FLOAT_TILE: usize;
    /// How many query vectors attention may work on at once, besides one: largest first.
    const ENTRIES: [usize; 4];
    /// Whether there are 32 registers of 16 lanes, so that tiles of few query vectors may be wider.
    const WIDE: bool;
    /// Whether [`Vector::dot`] takes 8-bit codes as signed numbers, so that no zero point is left to subtract. So it
    /// must be where [`BYTE_ZERO`] is 0.
    const SIGNED_BYTES: bool;

    /// The token, where the processor has the instructions.
    fn new() -> Option<Self>;
    /// Run a kernel as a function of its own, compiled for this instruction set: that keeps what is compiled together
    /// small.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// The same number in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`; rounded once where the instruction set has a fused form.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer; values beyond ±2^22 are not used.
    fn round(self, a: Self::F) -> Self::F;
    /// 2 to the power of integers in -126..=127.
    fn pow2(self, n: Self::F) -> Self::F;
    /// Sum of the lanes, pairwise.
    fn sum(self, a: Self::F) -> f32;
    /// Largest lane; unspecified where a lane is NaN.
    fn largest(self, a: Self::F) -> f32;

    /// `a < b`, false where either is NaN.
    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    /// A mask from bits, lane 0 lowest.
    fn mask(self, bits: u16) -> Self::M;
    /// `a` where the mask is set, else `b`.
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;

    /// The same integer in every lane.
    fn splat_int(self, x: i32) -> Self::I;
    /// Every lane shifted left by `by` < 32 bits.
    fn shl_int(self, x: Self::I, by: u32) -> Self::I;
    /// Every integer as the nearest `f32`.
    fn to_float(self, x: Self::I) -> Self::F;

    /// All bytes zero.
    fn zero_bytes(self) -> Self::B;
    /// `x & mask` in every byte.
    fn and(self, x: Self::B, mask: u8) -> Self::B;
    /// `a | b`.
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// Every byte shifted left by `by` < 8 bits (right where negative): neighbours' bits may come in, the caller masks.
    fn shift(self, x: Self::B, by: i32) -> Self::B;
    /// `table[b]` for every byte `b` < 16 of `x`.
    fn lookup(self, table: &[u8; 16], x: Self::B) -> Self::B;

    /// Dot products of weights with J columns: to each lane of `acc[j]` adds the sum of code times activation over
    /// the lane's 4 bytes of every vector of `w`, the activations being consecutive `i8` from `a[j]`. Codes are
    /// unsigned and below `1 << bits`; 8-bit ones have been raised by [`BYTE_ZERO`], which is taken off again where
    /// [`Vector::SIGNED_BYTES`].
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

    /// Ask for the line of memory at `p`, to be read soon; any address will do, also one that is not mapped. Nothing
    /// where the instruction set has no way to say so.
    fn prefetch(self, p: *const u8);
    /// Load 16 `f32`.
    ///
    /// # Safety
    /// `p` is readable for 64 bytes; no alignment is needed here or in any other load or store.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// Load 16 IEEE half-precision numbers, exactly.
    ///
    /// # Safety
    /// `p` is readable for 32 bytes.
    unsafe fn load_f16(self, p: *const u8) -> Self::F;
    /// Load 16 bfloat16 numbers, exactly.
    ///
    /// # Safety
    /// `p` is readable for 32 bytes.
    unsafe fn load_bf16(self, p: *const u8) -> Self::F;
    /// Load 16 `u8`.
    ///
    /// # Safety
    /// `p` is readable for 16 bytes.
    unsafe fn load_u8(self, p: *const u8) -> Self::I;
    /// Load 16 `i8`.
    ///
    /// # Safety
    /// `p` is readable for 16 bytes.
    unsafe fn load_i8(self, p: *const u8) -> Self::I;
    /// Load 64 bytes.
    ///
    /// # Safety
    /// `p` is readable for 64 bytes.
    unsafe fn load_bytes(self, p: *const u8) -> Self::B;
    /// Bits of the lanes where `lo <= p[i] <= hi`.
    ///
    /// # Safety
    /// `p` is readable for 16 numbers.
    unsafe fn within(self, p: *const i32, lo: i32, hi: i32) -> u16;
    /// Bits of the lanes where `p[i] & bits != 0`.
    ///
    /// # Safety
    /// `p` is readable for 16 numbers.
    unsafe fn intersects(self, p: *const u32, bits: u32) -> u16;
    /// Store 16 `f32`.
    ///
    /// # Safety
    /// `p` is writable for 64 bytes.
    unsafe fn store(self, p: *mut f32, x: Self::F);
    /// Store 16 `f32` rounded to half precision, nearest even.
    ///
    /// # Safety
    /// `p` is writable for 32 bytes.
    unsafe fn store_f16(self, p: *mut u8, x: Self::F);
    /// Store 64 bytes.
    ///
    /// # Safety
    /// `p` is writable for 64 bytes.
    unsafe fn store_bytes(self, p: *mut u8, x: Self::B);
}
