//! Any block format as signed bytes with an affine map per 16 weights, found by decoding.
//!
//! Most formats of `quant::dequantize` are affine in their codes: a weight is `code * scale + offset`, with one scale
//! and offset for at least 16 weights. Decoding a block with some of its fields replaced gives the three numbers: with
//! unit scales and no minimum the codes, with all codes one and no minimum the scales, with the scale zero the offsets.
//! `recipes.rs` lists where the fields are; this file does not depend on how they are packed. Types with code books,
//! whose codes are no numbers, are taken apart by `quant::blocks` instead.

use super::layout::{GROUP, QUADS, Row};
use super::recipes::{Fill, Recipe};
use crate::quant::{Blocks, TensorType, dequantize};
use crate::{Error, Result};

/// Largest block: bytes, weights.
const LARGEST: (usize, usize) = (110, 256);

/// Writes one block, of a type that is taken apart.
pub fn pack_parts(blocks: &Blocks, weights: usize, row: &mut Row<'_>, group: usize, block: &[u8]) {
    let parts = blocks.take_apart(block);
    for (i, codes) in parts.codes[..weights].as_chunks::<GROUP>().0.iter().enumerate() {
        let at = 3 * (group + i);
        for (half, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
            row.put(QUADS, at + half, codes.map(|code| blocks.value(code).cast_unsigned()));
        }
        let line = [blocks.scale(&parts, 2 * i), 0.0, blocks.scale(&parts, 2 * i + 1), 0.0];
        row.note(line.iter().all(|x| x.is_finite()));
        row.put_words(QUADS, at + 2, line.map(f32::to_bits));
    }
}

/// Writes one block of a row.
pub fn pack(ty: TensorType, recipe: &Recipe, row: &mut Row<'_>, group: usize, block: &[u8]) -> Result<()> {
    let decoded = |fills: &[Fill]| -> Result<[f32; LARGEST.1]> {
        let (mut bytes, mut weights) = ([0; LARGEST.0], [0.0; LARGEST.1]);
        let bytes = bytes.get_mut(..block.len()).ok_or_else(|| Error::Internal(format!("A block of {ty}")))?;
        bytes.copy_from_slice(block);
        for (range, value) in fills {
            bytes[range.clone()].fill(*value);
        }
        dequantize(ty, bytes, &mut weights[..ty.block_len()])?;
        Ok(weights)
    };
    let (codes, scales) = (decoded(recipe.codes)?, decoded(recipe.scales)?);
    let offsets = if recipe.offsets.is_empty() { [0.0; LARGEST.1] } else { decoded(recipe.offsets)? };
    for (i, codes) in codes[..ty.block_len()].chunks(GROUP).enumerate() {
        let at = 3 * (group + i);
        for (half, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
            row.put(QUADS, at + half, codes.map(|q| q as i8 as u8));
        }
        let ends = [GROUP * i, GROUP * i + GROUP / 2];
        let line = [scales[ends[0]], offsets[ends[0]], scales[ends[1]], offsets[ends[1]]];
        row.note(line.iter().all(|x| x.is_finite()));
        row.put_words(QUADS, at + 2, line.map(f32::to_bits));
    }
    Ok(())
}
