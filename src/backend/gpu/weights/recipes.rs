//! Where the codes, scales and offsets of a block are, for each type that is stored as *affine*.

use crate::quant::TensorType;
use std::ops::Range;

/// Bytes of a block set to a value.
pub type Fill = (Range<usize>, u8);

/// The replacements for a type.
pub struct Recipe {
    /// Unit scales, no minimum: weights become codes.
    pub codes: &'static [Fill],
    /// Codes of one, no minimum: weights become scales.
    pub scales: &'static [Fill],
    /// No scale: weights become offsets. Empty where there are none.
    pub offsets: &'static [Fill],
}

/// How to find the numbers of a type; `None` for types that have a layout of their own, that are taken apart by
/// `quant::blocks`, or that cannot be decoded.
pub fn recipe(ty: TensorType) -> Option<&'static Recipe> {
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
        // 0x40 is the scale one, code 1 the value one.
        TensorType::NVFP4 => &Recipe { codes: &[(0..4, 0x40)], scales: &[(4..36, 0x11)], offsets: &[] },
        _ => return None,
    })
}
