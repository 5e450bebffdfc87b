//! Types whose weights are values of a small table, times whole steps of one scale: the IQ types and the ternary ones.
//!
//! A weight is `unit * factor * step * value`. All of these products are exact in `f32`, so every user of a block gets
//! the numbers of the format's definition, in whatever order it multiplies. [`Blocks::take_apart`] is the one place
//! that knows how such a block is laid out; decoding and repacking for devices start from what it finds.

use super::grids;
use super::table::IQ4_NL_VALUES;
use super::types::TensorType;
use half::f16;

/// Weights that share a step.
pub const GROUP: usize = 16;

/// What the codes of a type stand for, and how to find them.
pub struct Blocks {
    /// The values of the codes, in units of the step; those that no code has are 0.
    pub values: &'static [i8; 16],
    /// What the unit is multiplied with: a power of two.
    pub factor: f32,
    find: fn(&[u8], &mut Parts),
}

/// The numbers of one block, of up to 256 weights.
pub struct Parts {
    /// The block's scale.
    pub unit: f16,
    /// The step of each [`GROUP`] weights.
    pub steps: [i8; 256 / GROUP],
    /// The code of each weight.
    pub codes: [u8; 256],
}

impl Blocks {
    /// The numbers of a whole block.
    pub fn take_apart(&self, block: &[u8]) -> Parts {
        let mut parts = Parts { unit: f16::ZERO, steps: [1; 256 / GROUP], codes: [0; 256] };
        (self.find)(block, &mut parts);
        parts
    }

    /// The scale of a group: that of its codes' values.
    pub fn scale(&self, parts: &Parts, group: usize) -> f32 {
        parts.unit.to_f32() * self.factor * f32::from(parts.steps[group])
    }

    /// The value of a code.
    pub fn value(&self, code: u8) -> i8 {
        self.values[usize::from(code & 15)]
    }

    /// The weights of a block.
    pub(super) fn decode(&self, block: &[u8], out: &mut [f32]) {
        let parts = self.take_apart(block);
        for (group, (out, codes)) in out.chunks_mut(GROUP).zip(parts.codes.chunks(GROUP)).enumerate() {
            let scale = self.scale(&parts, group);
            for (y, &code) in out.iter_mut().zip(codes) {
                *y = scale * f32::from(self.value(code));
            }
        }
    }
}

/// The digits of IQ1's code book less one, plus (with the third bit minus) an eighth, in eighths.
pub const IQ1_VALUES: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The values of the digits of IQ2's code books, and of their opposites.
pub const IQ2_VALUES: [i8; 16] = [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The values of the digits of IQ3_XXS's code book, halved, and of their opposites.
pub const IQ3_XXS_VALUES: [i8; 16] = [2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31];
/// The values of the digits of IQ3_S's code book, and of their opposites.
pub const IQ3_S_VALUES: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];
/// The values of two bits.
const TERNARY_VALUES: [i8; 16] = [-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The values of one bit.
const BINARY_VALUES: [i8; 16] = [-1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The blocks of a type; `None` for types that are not of this family.
pub fn blocks(ty: TensorType) -> Option<&'static Blocks> {
    Some(match ty {
        TensorType::IQ1_S => &Blocks { values: &IQ1_VALUES, factor: 0.125, find: iq1_s },
        TensorType::IQ1_M => &Blocks { values: &IQ1_VALUES, factor: 0.125, find: iq1_m },
        TensorType::IQ2_XXS => &Blocks { values: &IQ2_VALUES, factor: 0.125, find: iq2_xxs },
        TensorType::IQ2_XS => &Blocks { values: &IQ2_VALUES, factor: 0.125, find: iq2_xs },
        TensorType::IQ2_S => &Blocks { values: &IQ2_VALUES, factor: 0.125, find: iq2_s },
        TensorType::IQ3_XXS => &Blocks { values: &IQ3_XXS_VALUES, factor: 0.5, find: iq3_xxs },
        TensorType::IQ3_S => &Blocks { values: &IQ3_S_VALUES, factor: 1.0, find: iq3_s },
        TensorType::IQ4_XS => &Blocks { values: &IQ4_NL_VALUES, factor: 1.0, find: iq4_xs },
        TensorType::TQ1_0 => &Blocks { values: &TERNARY_VALUES, factor: 1.0, find: tq1_0 },
        TensorType::TQ2_0 => &Blocks { values: &TERNARY_VALUES, factor: 1.0, find: tq2_0 },
        TensorType::Q2_0 => &Blocks { values: &TERNARY_VALUES, factor: 1.0, find: q2_0 },
        TensorType::Q1_0 => &Blocks { values: &BINARY_VALUES, factor: 1.0, find: q1_0 },
        _ => return None,
    })
}

impl Parts {
    fn unit_at(&mut self, block: &[u8], at: usize) {
        self.unit = f16::from_le_bytes([block[at], block[at + 1]]);
    }

    /// An odd step, of its upper bits.
    fn odd_step(&mut self, group: usize, half: u8) {
        self.steps[group] = (2 * half + 1) as i8;
    }

    /// The odd steps of the two groups of 32 weights.
    fn odd_steps(&mut self, thirty_two: usize, half: u8) {
        self.odd_step(2 * thirty_two, half);
        self.odd_step(2 * thirty_two + 1, half);
    }

    /// 8 codes: two bits of each from a point, the third from a bit of `signs`.
    fn eight(&mut self, eighth: usize, point: u16, signs: u8) {
        for (i, code) in self.codes[8 * eighth..][..8].iter_mut().enumerate() {
            *code = (point >> (2 * i)) as u8 & 3 | (signs >> i & 1) << 2;
        }
    }

    /// 8 codes: three bits of each from two points, the fourth from a bit of `signs`.
    fn two_fours(&mut self, eighth: usize, points: [u16; 2], signs: u8) {
        for (i, code) in self.codes[8 * eighth..][..8].iter_mut().enumerate() {
            *code = (points[i / 4] >> (3 * (i % 4))) as u8 & 7 | (signs >> i & 1) << 3;
        }
    }
}

fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Eight signs of which seven are given: the number of those set is even.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The nibble at place `at` of bytes, the low one first.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (at % 2 * 4) & 15
}

fn iq1_s(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 0);
    for i in 0..8 {
        let high = u16_at(block, 34 + 2 * i);
        parts.odd_steps(i, (high >> 12 & 7) as u8);
        let signs = if high >> 15 == 1 { 0xff } else { 0 };
        for j in 0..4 {
            let index = usize::from(block[2 + 4 * i + j]) | usize::from(high >> (3 * j) & 7) << 8;
            parts.eight(4 * i + j, grids::IQ1[index], signs);
        }
    }
}

fn iq1_m(block: &[u8], parts: &mut Parts) {
    // The four bits at the top of each word of steps are a quarter of the unit.
    let words: [u16; 4] = std::array::from_fn(|i| u16_at(block, 48 + 2 * i));
    let unit = (0..4).fold(0, |unit, i| unit | words[i] >> 12 << (4 * i));
    parts.unit = f16::from_bits(unit);
    for group in 0..16 {
        parts.odd_step(group, (words[group / 4] >> (group % 4 * 3) & 7) as u8);
    }
    for i in 0..32 {
        let high = nibble(&block[32..48], i);
        let signs = if high & 8 == 0 { 0 } else { 0xff };
        parts.eight(i, grids::IQ1[usize::from(block[i]) | usize::from(high & 7) << 8], signs);
    }
}

/// Sets the unit of a block of IQ1_M, whose bits are apart.
pub(super) fn put_iq1_m_unit(block: &mut [u8], unit: f16) {
    for (i, word) in block[48..56].chunks_exact_mut(2).enumerate() {
        word[1] = word[1] & 15 | ((unit.to_bits() >> (4 * i)) as u8) << 4;
    }
}

fn iq2_xxs(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 0);
    for i in 0..8 {
        let at = 2 + 8 * i;
        let rest = u32_at(block, at + 4);
        parts.odd_steps(i, (rest >> 28) as u8);
        for j in 0..4 {
            parts.eight(4 * i + j, grids::IQ2_XXS[usize::from(block[at + j])], even_signs(rest >> (7 * j)));
        }
    }
}

fn iq2_xs(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 0);
    for group in 0..16 {
        parts.odd_step(group, nibble(&block[66..], group));
    }
    for i in 0..32 {
        let both = u16_at(block, 2 + 2 * i);
        parts.eight(i, grids::IQ2_XS[usize::from(both & 511)], even_signs(u32::from(both >> 9)));
    }
}

fn iq2_s(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 0);
    for group in 0..16 {
        parts.odd_step(group, nibble(&block[74..], group));
    }
    for i in 0..32 {
        let high = block[66 + i / 4] >> (i % 4 * 2) & 3;
        parts.eight(i, grids::IQ2_S[usize::from(block[2 + i]) | usize::from(high) << 8], block[34 + i]);
    }
}

fn iq3_xxs(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 0);
    for i in 0..8 {
        let rest = u32_at(block, 66 + 4 * i);
        parts.odd_steps(i, (rest >> 28) as u8);
        for j in 4 * i..4 * i + 4 {
            let points = [0, 1].map(|k| grids::IQ3_XXS[usize::from(block[2 + 2 * j + k])]);
            parts.two_fours(j, points, even_signs(rest >> (j % 4 * 7)));
        }
    }
}

fn iq3_s(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 0);
    for i in 0..8 {
        parts.odd_steps(i, nibble(&block[106..], i));
    }
    for i in 0..32 {
        let points = [2 * i, 2 * i + 1].map(|k| {
            let high = block[66 + k / 8] >> (k % 8) & 1;
            grids::IQ3_S[usize::from(block[2 + k]) | usize::from(high) << 8]
        });
        parts.two_fours(i, points, block[74 + i]);
    }
}

fn iq4_xs(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 0);
    let high = u16_at(block, 2);
    for (i, codes) in parts.codes.chunks_exact_mut(32).enumerate() {
        let step = nibble(&block[4..8], i) | ((high >> (2 * i)) as u8 & 3) << 4;
        parts.steps[2 * i..][..2].fill(step as i8 - 32);
        for (j, byte) in block[8 + 16 * i..][..16].iter().enumerate() {
            (codes[j], codes[j + 16]) = (byte & 15, byte >> 4);
        }
    }
}

/// Five (of the last bytes four) digits of base 3 in a byte: the fraction byte / 256, of which multiplying by 3 lifts
/// one digit after the other above the point.
fn tq1_0(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 52);
    let mut codes = parts.codes.iter_mut();
    for (bytes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        for digit in 0..digits {
            for (byte, code) in bytes.iter().zip(&mut codes) {
                let lifted = byte.wrapping_mul(3u8.pow(digit));
                *code = ((u16::from(lifted) * 3) >> 8) as u8;
            }
        }
    }
}

fn tq2_0(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 64);
    for (i, codes) in parts.codes.chunks_exact_mut(32).enumerate() {
        for (code, byte) in codes.iter_mut().zip(&block[i / 4 * 32..]) {
            *code = byte >> (i % 4 * 2) & 3;
        }
    }
}

fn q2_0(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 0);
    for (i, code) in parts.codes[..64].iter_mut().enumerate() {
        *code = block[2 + i / 4] >> (i % 4 * 2) & 3;
    }
}

fn q1_0(block: &[u8], parts: &mut Parts) {
    parts.unit_at(block, 0);
    for (i, code) in parts.codes[..128].iter_mut().enumerate() {
        *code = block[2 + i / 8] >> (i % 8) & 1;
    }
}
