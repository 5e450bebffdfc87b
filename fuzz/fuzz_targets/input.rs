//! What a fuzzer's bytes mean to the targets that make structures of them: every byte string is an input, and a small
//! change of it a small change of the structure.
#![allow(dead_code)]

/// The bytes that are left; behind their end there are zeros.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        let number = if n <= 256 { usize::from(self.byte()) } else { self.u32() as usize };
        number % n
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number as a file or a host may have it: small, at a limit, or any.
    pub fn number(&mut self) -> u32 {
        const LIMITS: [u32; 12] =
            [0, 1, 2, 511, 512, 513, 65_535, 65_536, i32::MAX as u32, 1 << 31, u32::MAX - 1, u32::MAX];
        match self.below(4) {
            0 | 1 => u32::from(self.byte()),
            2 => LIMITS[self.below(LIMITS.len())],
            _ => self.u32(),
        }
    }

    /// As [`Input::number`], for floats.
    pub fn float(&mut self) -> f32 {
        const LIMITS: [f32; 10] =
            [0.0, -0.0, 1.0, -1.0, 0.5, 1e-6, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        match self.below(3) {
            0 => f32::from(self.byte()) / 16.0,
            1 => LIMITS[self.below(LIMITS.len())],
            _ => f32::from_bits(self.u32()),
        }
    }

    /// At most so many bytes.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(self.below(most + 1).min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// One of a list.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// One of a list, or any short text.
    pub fn text(&mut self, list: &[&str]) -> String {
        match self.below(8) {
            0 => String::from_utf8_lossy(self.bytes(40)).into_owned(),
            _ => self.pick(list).to_owned(),
        }
    }
}
