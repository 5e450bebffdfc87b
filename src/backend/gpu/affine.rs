//! Any block format as signed bytes with a line per 16 weights, found by decoding.
//!
//! All formats that `quant::dequantize` knows are lines in their codes: a weight is `code * scale + offset`, with one
//! scale and offset for at least 16 weights. Decoding a block with some of its fields replaced tells the three apart:
//! with unit scales and no minimum come the codes, with all codes one and no minimum the scales, with the scale zero
//! the offsets. So this file knows where the fields are, and nothing of how they are packed.

use super::format::{GROUP, QUADS, Row};
use crate::quant::{TensorType, dequantize};
use crate::{Error, Result};
use std::ops::Range;

/// Bytes of a block set to a value.
type Fill = (Range<usize>, u8);

/// The replacements for a type.
pub(super) struct Recipe {
    /// Unit scales, no minimum: weights become codes.
    codes: &'static [Fill],
    /// Codes of one, no minimum: weights become scales.
    scales: &'static [Fill],
    /// No scale: weights become offsets. Empty where there are none.
    offsets: &'static [Fill],
}

/// How to take a type apart; none for those that have a layout of their own, or cannot be decoded.
pub(super) fn recipe(ty: TensorType) -> Option<&'static Recipe> {
    // The f16 one is the bytes 0x00, 0x3c.
    Some(match ty {
        TensorType::Q4_1 => &Recipe {
            codes: &[(0..1, 0), (1..2, 0x3c), (2..4, 0)],
            scales: &[(2..4, 0), (4..20, 0x11)],
            offsets: &[(0..2, 0)],
        },
        TensorType::Q5_0 => {
            &Recipe { codes: &[(0..1, 0), (1..2, 0x3c)], scales: &[(2..6, 0xff), (6..22, 0x11)], offsets: &[] }
        }
        TensorType::Q5_1 => &Recipe {
            codes: &[(0..1, 0), (1..2, 0x3c), (2..4, 0)],
            scales: &[(2..8, 0), (8..24, 0x11)],
            offsets: &[(0..2, 0)],
        },
        TensorType::Q2_K => &Recipe {
            codes: &[(0..16, 1), (80..81, 0), (81..82, 0x3c), (82..84, 0)],
            scales: &[(16..80, 0x55), (82..84, 0)],
            offsets: &[(80..82, 0)],
        },
        // A scale of 33 is one; the high bits, where they are set, subtract nothing.
        TensorType::Q3_K => &Recipe {
            codes: &[(96..104, 0x11), (104..108, 0xaa), (108..109, 0), (109..110, 0x3c)],
            scales: &[(0..32, 0xff), (32..96, 0x55)],
            offsets: &[],
        },
        // The code that stands for one is 8 in the first table and 1 in the second.
        TensorType::IQ4_NL => &Recipe { codes: &[(0..1, 0), (1..2, 0x3c)], scales: &[(2..18, 0x88)], offsets: &[] },
        TensorType::MXFP4 => &Recipe { codes: &[(0..1, 128)], scales: &[(1..17, 0x11)], offsets: &[] },
        _ => return None,
    })
}

/// Largest block: bytes, weights.
const LARGEST: (usize, usize) = (110, 256);

/// Writes one block of a row.
pub(super) fn pack(ty: TensorType, recipe: &Recipe, row: &mut Row<'_>, group: usize, block: &[u8]) -> Result<()> {
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
