//! The layout of matrices on a device.
//!
//! A row is cut into groups of 32 weights, the last one filled up with zeros; [`TILE`] rows make a tile. The data of a
//! group (or of a super-block of 8 groups) is stored in *sections* by the size of its elements, so that every load is
//! aligned. Within a section the order is tile, group, element, row: the elements of neighbouring rows are neighbours,
//! and neighbouring threads read neighbouring rows.
//!
//! | format | 16 bytes, a group | 16 bytes, a block | 4 bytes, a group | 2 bytes, a group | 2 bytes, a block |
//! |---|---|---|---|---|---|
//! | F32 | 8: weights | | | | |
//! | F16, BF16 | 4: weights | | | | |
//! | Q8_0 | 2: codes | | | scale | |
//! | Q4_0 | 1: codes | | | scale | |
//! | Q4_K | 1: codes | d, dmin, twelve bytes of scales | | | |
//! | Q5_K | 1: low bits | as Q4_K | 1: fifth bits | | |
//! | Q6_K | 1: low bits | | 2: upper bits | two i8 scales | d |
//! | MXFP4 | 1: codes | | | exponent of the scale | |
//! | IQ4_NL | 1: codes | | | scale | |
//! | Affine | 3: codes, lines | | | | |
//!
//! Four-bit codes: byte j holds weight j in its low bits and weight j + 16 in its high bits. Fifth bits: bit v of byte
//! b is that of weight 4 v + b. Upper bits of Q6_K: bits 2 v and 2 v + 1 of byte b of word h are those of weight 16 h +
//! 4 v + b. Q4_0's codes and Q6_K's are stored with their highest bit flipped, which makes them signed numbers. Codes
//! of MXFP4 and IQ4_NL are places of a table of 16 numbers; a scale of MXFP4 below 2^-126 counts as zero.
//!
//! *Affine* stores every other type that can be decoded: a signed byte q per weight and, for each 16 weights, the scale
//! and offset of `q * scale + offset` in f32. In all formats the weights are otherwise exactly those of
//! `quant::dequantize`.

use super::recipes;
use crate::quant::{self, IQ4_NL_VALUES, MXFP4_VALUES, TensorType};
use crate::{Error, Result};

/// Rows of a tile.
pub const TILE: usize = 8;
/// Weights of a group.
pub const GROUP: usize = 32;
/// Groups of a super-block.
pub const BLOCK_GROUPS: usize = 8;
/// Bytes of an element of each section.
pub const ELEMENT: [usize; 5] = [16, 16, 4, 2, 2];
/// The sections, by position.
pub const QUADS: usize = 0;
pub const BLOCKS: usize = 1;
pub const WORDS: usize = 2;
pub const HALVES: usize = 3;
pub const BLOCK_HALVES: usize = 4;

/// One layout.
#[derive(Debug, PartialEq)]
pub struct Format {
    /// Its flag in shader texts.
    pub flag: &'static str,
    /// Elements per group (per block in the two block sections) and row in each section.
    pub elements: [usize; 5],
    /// Whether weights have an offset besides their scale.
    pub offset: bool,
    /// Whether scales are the 6-bit ones of Q4_K.
    pub sixes: bool,
    /// The numbers of the codes, where they are places of a table.
    pub table: Option<&'static [i8; 16]>,
    /// Scales of a group whose weights are stored as integers: one, or one for each half. Other weights are floats.
    pub scales: usize,
}

/// A format of floats, and one of integers.
const FLOATS: Format = Format { flag: "", elements: [0; 5], offset: false, sixes: false, table: None, scales: 0 };
const INTEGERS: Format = Format { scales: 1, ..FLOATS };

static F32: Format = Format { flag: "F32", elements: [8, 0, 0, 0, 0], ..FLOATS };
static F16: Format = Format { flag: "F16", elements: [4, 0, 0, 0, 0], ..FLOATS };
static BF16: Format = Format { flag: "BF16", elements: [4, 0, 0, 0, 0], ..FLOATS };
static Q8_0: Format = Format { flag: "Q8_0", elements: [2, 0, 0, 1, 0], ..INTEGERS };
static Q4_0: Format = Format { flag: "Q4_0", elements: [1, 0, 0, 1, 0], ..INTEGERS };
static Q4_K: Format = Format { flag: "Q4_K", elements: [1, 1, 0, 0, 0], offset: true, sixes: true, ..INTEGERS };
static Q5_K: Format = Format { flag: "Q5_K", elements: [1, 1, 1, 0, 0], offset: true, sixes: true, ..INTEGERS };
static Q6_K: Format = Format { flag: "Q6_K", elements: [1, 0, 2, 1, 1], scales: 2, ..INTEGERS };
static MXFP4: Format = Format { flag: "MXFP4", elements: [1, 0, 0, 1, 0], table: Some(&MXFP4_VALUES), ..INTEGERS };
static IQ4_NL: Format = Format { flag: "IQ4_NL", elements: [1, 0, 0, 1, 0], table: Some(&IQ4_NL_VALUES), ..INTEGERS };
static AFFINE: Format = Format { flag: "AFFINE", elements: [3, 0, 0, 0, 0], offset: true, scales: 2, ..INTEGERS };

/// The rows of a matrix in their layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// The type in the file.
    pub ty: TensorType,
    /// The layout.
    pub format: &'static Format,
    /// Groups of a row.
    pub groups: usize,
    /// Bytes of a row in the file.
    pub row_bytes: usize,
}

impl Layout {
    /// The layout of rows of `n_in` weights.
    pub fn new(ty: TensorType, n_in: usize) -> Result<Layout> {
        let format = match ty {
            TensorType::F32 => &F32,
            TensorType::F16 => &F16,
            TensorType::BF16 => &BF16,
            TensorType::Q8_0 => &Q8_0,
            TensorType::Q4_0 => &Q4_0,
            TensorType::Q4_K => &Q4_K,
            TensorType::Q5_K => &Q5_K,
            TensorType::Q6_K => &Q6_K,
            TensorType::MXFP4 => &MXFP4,
            TensorType::IQ4_NL => &IQ4_NL,
            _ if recipes::recipe(ty).is_some() || quant::blocks(ty).is_some() => &AFFINE,
            _ => return Err(Error::Unsupported(format!("Weights of type {ty} on a GPU"))),
        };
        let row_bytes = ty.row_bytes(n_in as u64).filter(|_| n_in > 0 && n_in.is_multiple_of(4));
        let Some(row_bytes) = row_bytes else {
            let problem = format!("Rows of {n_in} weights of type {ty} on a GPU");
            return Err(Error::Unsupported(format!("{problem} (they must be whole blocks and a multiple of 4)")));
        };
        Ok(Layout { ty, format, groups: n_in.div_ceil(GROUP), row_bytes: row_bytes as usize })
    }

    /// Whether there are sections of elements smaller than 16 bytes, which are a binding of their own.
    pub fn is_narrow(&self) -> bool {
        self.format.elements[WORDS..].iter().any(|&n| n > 0)
    }

    /// Elements of one row in each section.
    pub fn elements(&self) -> [usize; 5] {
        let blocks = self.groups / BLOCK_GROUPS;
        let [quads, block, words, halves, block_halves] = self.format.elements;
        [quads * self.groups, block * blocks, words * self.groups, halves * self.groups, block_halves * blocks]
    }

    /// Bytes of a tile in each section.
    pub fn tile_bytes(&self) -> [u64; 5] {
        let elements = self.elements();
        std::array::from_fn(|s| (elements[s] * ELEMENT[s] * TILE) as u64)
    }
}

/// A run of tiles that is being packed for a device.
pub struct Tiles {
    /// The bytes of each section.
    pub sections: [Vec<u8>; 5],
    elements: [usize; 5],
    finite: bool,
}

impl Tiles {
    /// Room for so many tiles.
    pub fn new(layout: &Layout, tiles: usize) -> Tiles {
        let bytes = layout.tile_bytes();
        let sections = std::array::from_fn(|s| vec![0; bytes[s] as usize * tiles]);
        Tiles { sections, elements: layout.elements(), finite: true }
    }

    /// Zeros everywhere: in every format the weight 0.
    pub fn clear(&mut self) {
        for section in &mut self.sections {
            section.fill(0);
        }
    }

    /// Whether all weights so far were finite numbers: kernels may assume that.
    pub fn finite(&self) -> bool {
        self.finite
    }

    /// A row of these tiles, to be written.
    pub fn row(&mut self, row: usize) -> Row<'_> {
        Row { tiles: self, tile: row / TILE, row: row % TILE }
    }
}

/// A row of a tile, which is written element by element.
pub struct Row<'a> {
    tiles: &'a mut Tiles,
    tile: usize,
    row: usize,
}

impl Row<'_> {
    /// Writes an element of a section, counted within the row.
    #[inline(always)]
    pub fn put<const N: usize>(&mut self, section: usize, index: usize, bytes: [u8; N]) {
        let at = ((self.tile * self.tiles.elements[section] + index) * TILE + self.row) * N;
        self.tiles.sections[section][at..at + N].copy_from_slice(&bytes);
    }

    /// Writes an element of [`QUADS`] or [`BLOCKS`].
    #[inline(always)]
    pub fn put_words(&mut self, section: usize, index: usize, words: [u32; 4]) {
        let mut bytes = [0; 16];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        self.put(section, index, bytes);
    }

    /// Notes whether the written weights are finite numbers.
    #[inline(always)]
    pub fn note(&mut self, finite: bool) {
        self.tiles.finite &= finite;
    }
}
