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

/// Bytes of an unpacked code, at most.
const CODE_BYTES: usize = if cfg!(target_arch = "x86_64") { 2 } else { 1 };

/// The codes of a block of 32 weights of 16 rows, unpacked.
pub(crate) type UnpackedCodes = [i8; CODE_BYTES * 32 * LANES];

/// A block of 32 weights of 16 rows, unpacked once for many columns.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Unpacked {
    /// As [`Vector::unpack`] puts them.
    pub(crate) codes: UnpackedCodes,
    /// Scales of the halves, where they differ; else the first is the block's.
    pub(crate) scales: [[f32; LANES]; 2],
    /// The first scales times minus [`Vector::START`], read as a float.
    pub(crate) offsets: [f32; LANES],
    /// Minimums, likewise.
    pub(crate) minimums: [[f32; LANES]; 2],
}

impl Unpacked {
    pub(crate) const EMPTY: Unpacked = Unpacked {
        codes: [0; CODE_BYTES * 32 * LANES],
        scales: [[0.0; LANES]; 2],
        offsets: [0.0; LANES],
        minimums: [[0.0; LANES]; 2],
    };
    /// Columns that [`Vector::multiply`] takes.
    pub(crate) const COLUMNS: usize = 4;
}

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
    /// The same of a product with one column.
    const ONE_SIGNED: bool = Self::SIGNED_BYTES;
    /// From how many columns on it pays to unpack codes to memory, with [`Vector::unpack`] and [`Vector::multiply`]:
    /// where a tile of 16 rows leaves too few registers for totals and codes both.
    const UNPACKS_FROM: usize = usize::MAX;

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

    /// The low half of every byte of `x`, with `high` above it, whose own low halves are zero.
    #[inline(always)]
    fn low_nibbles(self, x: Self::B, high: Self::B) -> Self::B {
        self.or(self.and(x, 15), high)
    }
    /// The high half of every byte of `x`, with `high` above it, whose own low halves are zero.
    #[inline(always)]
    fn high_nibbles(self, x: Self::B, high: Self::B) -> Self::B {
        self.or(self.and(self.shift(x, -4), 15), high)
    }

    /// The code of 6 bits whose pairs of bits are the top ones of every byte of each of `x`, lowest first.
    #[inline(always)]
    fn top_pairs(self, x: [Self::B; 3]) -> Self::B {
        let low = self.and(self.shift(x[0], -6), 0b11);
        let middle = self.and(self.shift(x[1], -4), 0b1100);
        let high = self.and(self.shift(x[2], -2), 0b11_0000);
        self.or(self.or(low, middle), high)
    }

    /// Dot products of weights with J columns: to each lane of `acc[j]` adds the sum of code times activation over
    /// the lane's 4 bytes of every vector of `w`, the activations being consecutive `i8` from `a[j]`. Codes are
    /// unsigned and below `1 << bits`; 8-bit ones have been raised by [`BYTE_ZERO`], which is taken off again where
    /// [`Vector::SIGNED_BYTES`], or with one column where [`Vector::ONE_SIGNED`].
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

    /// What dot products start from that [`Vector::scaled`] takes: a constant may spare it the conversion.
    const START: i32 = 0;
    /// A dot product of nothing.
    #[inline(always)]
    fn no_dot(self) -> Self::I {
        self.splat_int(0)
    }
    /// `dot * scale`, rounded once, of a dot product that began with [`Vector::START`] and is below 2^22 without it;
    /// the scale has 22 bits of precision at most and is below 2^100. NaN, not an infinity, may come of an infinite
    /// one.
    #[inline(always)]
    fn scaled(self, dot: Self::I, scale: Self::F) -> Self::F {
        self.mul(self.to_float(dot), scale)
    }

    /// [`Vector::dot`] of each half of a block by itself.
    ///
    /// # Safety
    /// As there, with `H` 2.
    #[inline(always)]
    unsafe fn dot_halves<const J: usize>(
        self,
        bits: u32,
        acc: [[Self::I; J]; 2],
        w: &[[Self::B; 4]; 2],
        mut a: [*const i8; J],
    ) -> [[Self::I; J]; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let first = self.dot::<1, J>(bits, acc[0], &[w[0]], a);
            for a in &mut a {
                *a = a.wrapping_add(16);
            }
            [first, self.dot::<1, J>(bits, acc[1], &[w[1]], a)]
        }
    }
    /// `dot * steps * unit`, rounded once, where `dot * steps` is below 2^24 (2^22 where `small`), steps have 8 bits
    /// and units half precision: whichever product is taken first, it is exact.
    #[inline(always)]
    fn times_steps(self, dot: Self::I, steps: Self::I, unit: Self::F, _small: bool) -> Self::F {
        self.mul(self.to_float(dot), self.mul(unit, self.to_float(steps)))
    }
    /// `dot * steps * unit + c`, rounded once, of such numbers.
    #[inline(always)]
    fn fma_steps(self, dot: Self::I, steps: Self::I, unit: Self::F, c: Self::F, _small: bool) -> Self::F {
        self.fma(self.to_float(dot), self.mul(unit, self.to_float(steps)), c)
    }
    /// As [`Vector::fma_steps`], of one number below 2^14 with steps (16 `u8`) in memory.
    ///
    /// # Safety
    /// `steps` is readable for 16 bytes.
    #[inline(always)]
    unsafe fn fma_steps_at(self, x: i32, steps: *const u8, unit: Self::F, c: Self::F) -> Self::F {
        // SAFETY: the caller's promise.
        let steps = unsafe { self.load_u8(steps) };
        self.fma(self.to_float(self.splat_int(x)), self.mul(unit, self.to_float(steps)), c)
    }
    /// Codes of a block, of so many bits and with this zero point (0 where they have none, or are signed), as
    /// [`Vector::multiply`] reads them. Called only where [`Vector::UNPACKS_FROM`] says.
    #[inline(always)]
    fn unpack(self, _bits: u32, _codes: &[[Self::B; 4]; 2], _zero: u8, _out: &mut UnpackedCodes) {
        unreachable!("a level that unpacks in its tiles")
    }
    /// Products of consecutive blocks, unpacked with these bits and zero point, with as many of each column: `total`
    /// (16 rows of each column) has added to it, block by block, `fma(t, scale, total)`, where `t` is the dot product
    /// times the scale (`SHORT_SCALES`: as [`Vector::scaled`] has it), to which are added, by fused steps in this
    /// order, with `HALVES` the second half's product, with `MINIMUM` the negated sum of activations times the minimum,
    /// of each half where those have their own. A column's `meta` is, for each block, its scale as `f32`, then as `i32`
    /// the negated sums of its first half, its second half, and all. Called only where [`Vector::UNPACKS_FROM`] says.
    ///
    /// # Safety
    /// Every `x` is readable for 32 bytes a block, every `meta` for 16, `total` writable and set for 4 columns.
    #[inline(always)]
    unsafe fn multiply<const SHORT_SCALES: bool, const HALVES: bool, const MINIMUM: bool>(
        self,
        _bits: u32,
        _zero: u8,
        _blocks: &[Unpacked],
        _x: [*const i8; Unpacked::COLUMNS],
        _meta: [*const i32; Unpacked::COLUMNS],
        _total: *mut f32,
    ) {
        unreachable!("a level that unpacks in its tiles")
    }

    /// Ask for the line of memory at `p`, to be read soon; any address will do, also one that is not mapped. Nothing
    /// where the instruction set has no way to say so.
    fn prefetch(self, p: *const u8);
    /// [`Vector::prefetch`] of so many lines of 64 bytes, 9 at most, from `p` on.
    #[inline(always)]
    fn prefetch_lines(self, p: *const u8, lines: usize) {
        for line in 0..lines {
            self.prefetch(p.wrapping_add(64 * line));
        }
    }
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
    /// Bits of the lanes where the low half of `p[i]` is above `limit`, which is below 2^16.
    ///
    /// # Safety
    /// `p` is readable for 16 numbers.
    unsafe fn low_above(self, p: *const u32, limit: u32) -> u16;
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
