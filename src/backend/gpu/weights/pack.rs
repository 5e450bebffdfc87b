//! From the rows of a GGUF tensor to the sections of [`super::layout`].
//!
//! Codes are moved four at a time, as bytes of a word; none is decoded.

use super::affine;
use super::layout::{BLOCK_GROUPS, BLOCK_HALVES, BLOCKS, GROUP, HALVES, Layout, QUADS, Row, WORDS};
use super::recipes;
use crate::quant::{self, TensorType};
use crate::{Error, Result};

/// Writes one row of the file.
pub fn pack(layout: &Layout, source: &[u8], row: &mut Row<'_>) -> Result<()> {
    let ty = layout.ty;
    let weights = ty.block_len().max(GROUP);
    let step = weights / ty.block_len() * ty.block_bytes();
    for (i, block) in source.chunks(step).enumerate() {
        let group = i * (weights / GROUP);
        match ty {
            TensorType::F32 => floats(row, group * 8, block, finite_f32),
            TensorType::F16 => floats(row, group * 4, block, |w| finite_f16(w) && finite_f16(w >> 16)),
            TensorType::BF16 => floats(row, group * 4, block, |w| finite_f32(w << 16) && finite_f32(w)),
            TensorType::Q8_0 => q8_0(row, group, block),
            TensorType::Q4_0 => q4_0(row, group, block),
            TensorType::Q4_K => q4_k(row, group, block),
            TensorType::Q5_K => q5_k(row, group, block),
            TensorType::Q6_K => q6_k(row, group, block),
            TensorType::MXFP4 => mxfp4(row, group, block),
            TensorType::IQ4_NL => iq4_nl(row, group, block),
            _ => match quant::blocks(ty) {
                Some(blocks) => affine::pack_parts(blocks, weights, row, group, block),
                None => {
                    let recipe = recipes::recipe(ty).ok_or_else(|| Error::Internal(format!("No layout for {ty}")))?;
                    affine::pack(ty, recipe, row, group, block)?;
                }
            },
        }
    }
    Ok(())
}

/// Whether the f32 with these bits is a number; also, by its upper half, a bf16.
fn finite_f32(bits: u32) -> bool {
    bits & 0x7f80_0000 != 0x7f80_0000
}

/// Whether the f16 in the lower half of these bits is a number.
fn finite_f16(bits: u32) -> bool {
    bits & 0x7c00 != 0x7c00
}

/// `N` words from byte `at`; what the source does not have is zero.
#[inline(always)]
fn words<const N: usize>(source: &[u8], at: usize) -> [u32; N] {
    let mut words = [0; N];
    for (to, bytes) in words.iter_mut().zip(source[at..].as_chunks().0) {
        *to = u32::from_le_bytes(*bytes);
    }
    words
}

/// The low four bits of eight words' bytes, as a group's codes.
#[inline(always)]
fn nibbles(words: [u32; 8]) -> [u32; 4] {
    std::array::from_fn(|v| words[v] & 0x0f0f_0f0f | (words[v + 4] & 0x0f0f_0f0f) << 4)
}

/// `words` shifted right by so many bits.
#[inline(always)]
fn down<const N: usize>(words: [u32; N], by: usize) -> [u32; N] {
    words.map(|w| w >> by)
}

/// Weights as they are, 16 bytes at a time; the last ones of a row may be fewer.
fn floats(row: &mut Row<'_>, first: usize, block: &[u8], finite: impl Fn(u32) -> bool) {
    for (i, part) in block.chunks(16).enumerate() {
        let words = words::<4>(part, 0);
        row.note(words.iter().all(|&w| finite(w)));
        row.put_words(QUADS, first + i, words);
    }
}

/// A 16-bit scale.
fn scale(row: &mut Row<'_>, section: usize, index: usize, bytes: [u8; 2]) {
    row.note(finite_f16(u32::from(u16::from_le_bytes(bytes))));
    row.put(section, index, bytes);
}

fn q8_0(row: &mut Row<'_>, group: usize, block: &[u8]) {
    scale(row, HALVES, group, [block[0], block[1]]);
    row.put_words(QUADS, 2 * group, words(block, 2));
    row.put_words(QUADS, 2 * group + 1, words(block, 18));
}

fn q4_0(row: &mut Row<'_>, group: usize, block: &[u8]) {
    scale(row, HALVES, group, [block[0], block[1]]);
    row.put_words(QUADS, group, words::<4>(block, 2).map(|w| w ^ 0x8888_8888));
}

fn mxfp4(row: &mut Row<'_>, group: usize, block: &[u8]) {
    row.put(HALVES, group, [block[0], 0]);
    row.put_words(QUADS, group, words(block, 1));
}

fn iq4_nl(row: &mut Row<'_>, group: usize, block: &[u8]) {
    scale(row, HALVES, group, [block[0], block[1]]);
    row.put_words(QUADS, group, words(block, 2));
}

/// Scales and minimums of Q4_K and Q5_K.
fn sixes(row: &mut Row<'_>, group: usize, block: &[u8]) {
    let header = words::<4>(block, 0);
    row.note(finite_f16(header[0]) && finite_f16(header[0] >> 16));
    row.put_words(BLOCKS, group / BLOCK_GROUPS, header);
}

/// Low bits of Q4_K and Q5_K: of each 32 bytes the low nibbles are one group, the high ones the next.
fn low_bits(row: &mut Row<'_>, group: usize, codes: &[u8]) {
    for pair in 0..4 {
        let both = words(codes, 32 * pair);
        row.put_words(QUADS, group + 2 * pair, nibbles(both));
        row.put_words(QUADS, group + 2 * pair + 1, nibbles(down(both, 4)));
    }
}

fn q4_k(row: &mut Row<'_>, group: usize, block: &[u8]) {
    sixes(row, group, block);
    low_bits(row, group, &block[16..]);
}

fn q5_k(row: &mut Row<'_>, group: usize, block: &[u8]) {
    sixes(row, group, block);
    low_bits(row, group, &block[48..]);
    let high = words::<8>(block, 16);
    for j in 0..BLOCK_GROUPS {
        let bits = (0..8).fold(0, |bits, v| bits | (high[v] >> j & 0x0101_0101) << v);
        row.put(WORDS, group + j, bits.to_le_bytes());
    }
}

fn q6_k(row: &mut Row<'_>, group: usize, block: &[u8]) {
    scale(row, BLOCK_HALVES, group / BLOCK_GROUPS, [block[208], block[209]]);
    for j in 0..BLOCK_GROUPS {
        row.put(HALVES, group + j, [block[192 + 2 * j], block[193 + 2 * j]]);
        // 128 weights are 64 bytes of low bits, two groups of 32 and their upper nibbles, and 32 bytes of upper bits.
        let (half, quarter) = (j / 4, j % 4);
        let low = down(words(block, 64 * half + 32 * (quarter % 2)), 4 * (quarter / 2));
        row.put_words(QUADS, group + j, nibbles(low));
        let high = down(words::<8>(block, 128 + 32 * half), 2 * quarter);
        for side in 0..2 {
            let bits = (0..4).fold(0, |bits, v| bits | (high[4 * side + v] & 0x0303_0303) << (2 * v));
            row.put(WORDS, 2 * (group + j) + side, (bits ^ 0xaaaa_aaaa).to_le_bytes());
        }
    }
}
