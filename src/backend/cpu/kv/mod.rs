//! The KV cache of one layer as attention reads it.
//!
//! Keys are transposed within blocks of 16 cells, so that a vector holds one dimension of 16 cells and a score is a sum
//! of whole vectors; values are stored cell by cell, so that a vector holds 16 dimensions of one cell:
//!
//! ```text
//! keys    [head][cell / 16][dimension][cell % 16]
//! values  [head][cell][dimension, padded to a multiple of 16]
//! ```
//!
//! Keys and values can have different element types: f32, f16 or Q8_0 (one f16 scale and 32 i8 along the dimension; the
//! last group of a head may be shorter). In Q8_0 each group of 32 dimensions of a key block starts with the 16 scales
//! of its cells; the scales of a value row follow its quants. A buffer needs no initialisation: a cell is read only
//! after it was written, as long as the cells' sequence sets say so.
//!
//! A value beyond f16's range is stored as the largest finite one, so that infinities come from the model alone; NaN
//! is kept.

pub(super) mod rows;

use crate::Result;
use crate::backend::KvTypes;
use crate::backend::cpu::host::pool::SharedMut;
use crate::quant::TensorType;
use crate::simd::{Isa, Kernel, LANES, Vector, dispatch};
use half::f16;

/// Dimensions that share a scale in Q8_0.
pub(crate) const GROUP: usize = 32;
/// Bytes of a whole group of a Q8_0 key block: 16 scales, 32 dimensions of 16 quants.
pub(crate) const Q8_GROUP_BYTES: usize = 2 * LANES + GROUP * LANES;

/// Shape and sizes of one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    types: KvTypes,
    n_kv_heads: usize,
    head_dim_k: usize,
    head_dim_v: usize,
    n_cells: usize,
}

impl KvLayout {
    /// A layout for `n_cells` cells, rounded up to a multiple of 16.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for element types other than F32, F16 and Q8_0.
    pub fn new(
        types: impl Into<KvTypes>,
        n_kv_heads: usize,
        head_dim_k: usize,
        head_dim_v: usize,
        n_cells: usize,
    ) -> Result<KvLayout> {
        let types = types.into();
        types.check("")?;
        Ok(KvLayout { types, n_kv_heads, head_dim_k, head_dim_v, n_cells: n_cells.next_multiple_of(LANES) })
    }

    /// Element types.
    pub fn types(&self) -> KvTypes {
        self.types
    }

    /// Key and value heads.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Width of a key head.
    pub fn head_dim_k(&self) -> usize {
        self.head_dim_k
    }

    /// Width of a value head.
    pub fn head_dim_v(&self) -> usize {
        self.head_dim_v
    }

    /// Cells, a multiple of 16.
    pub fn n_cells(&self) -> usize {
        self.n_cells
    }

    /// Bytes of the key buffer.
    pub fn k_bytes(&self) -> usize {
        self.n_kv_heads * self.n_cells / LANES * self.k_block_bytes()
    }

    /// Bytes of the value buffer.
    pub fn v_bytes(&self) -> usize {
        self.n_kv_heads * self.n_cells * self.v_row_bytes()
    }

    /// Dimensions of a value row in memory.
    pub(crate) fn v_width(&self) -> usize {
        self.head_dim_v.next_multiple_of(LANES)
    }

    /// Bytes of one head of 16 cells.
    pub(crate) fn k_block_bytes(&self) -> usize {
        match self.types.k {
            TensorType::Q8_0 => LANES * (self.head_dim_k + 2 * self.head_dim_k.div_ceil(GROUP)),
            ty => LANES * self.head_dim_k * ty.block_bytes(),
        }
    }

    /// Bytes of one head of one cell.
    pub(crate) fn v_row_bytes(&self) -> usize {
        match self.types.v {
            TensorType::Q8_0 => self.v_width() + 2 * self.head_dim_v.div_ceil(GROUP),
            ty => self.v_width() * ty.block_bytes(),
        }
    }

    /// Byte offset of the block that holds `cell` of `head`.
    pub(crate) fn k_block(&self, head: usize, cell: usize) -> usize {
        (head * (self.n_cells / LANES) + cell / LANES) * self.k_block_bytes()
    }

    /// Byte offset of the value row of `cell` of `head`.
    pub(crate) fn v_row(&self, head: usize, cell: usize) -> usize {
        (head * self.n_cells + cell) * self.v_row_bytes()
    }

    fn check(&self, bytes: usize, expected: usize, cell: usize, head: usize) {
        assert_eq!(bytes, expected, "KV buffer does not fit its layout");
        assert!(cell < self.n_cells && head < self.n_kv_heads, "Cell {cell} of head {head} is not in the KV cache");
    }
}

/// Offset of the 16 quants of dimension `j` in a Q8_0 key block.
#[inline(always)]
pub(crate) fn q8_quant(j: usize) -> usize {
    j / GROUP * Q8_GROUP_BYTES + 2 * LANES + j % GROUP * LANES
}

/// Write one key (`head_dim_k` values) of one head to a cell of the key buffer.
///
/// # Safety
///
/// While this runs nobody else reads the cell's block or writes the same cell of the same head.
pub unsafe fn store_k(isa: Isa, layout: &KvLayout, k: SharedMut<'_, u8>, cell: usize, head: usize, values: &[f32]) {
    layout.check(k.len(), layout.k_bytes(), cell, head);
    assert_eq!(values.len(), layout.head_dim_k, "Key of a wrong width");
    // SAFETY: the block is inside the buffer, by the checks above.
    let block = unsafe { k.as_mut_ptr().add(layout.k_block(head, cell)) };
    dispatch(isa, StoreK { ty: layout.types.k, block, lane: cell % LANES, values });
}

/// Write one value (`head_dim_v` values) of one head to a cell of the value buffer.
///
/// # Safety
///
/// While this runs nobody else reads or writes the same cell of the same head.
pub unsafe fn store_v(isa: Isa, layout: &KvLayout, v: SharedMut<'_, u8>, cell: usize, head: usize, values: &[f32]) {
    layout.check(v.len(), layout.v_bytes(), cell, head);
    assert_eq!(values.len(), layout.head_dim_v, "Value of a wrong width");
    let start = layout.v_row(head, cell);
    // SAFETY: the caller's promise; the row is this cell's alone.
    let row = unsafe { v.part(start..start + layout.v_row_bytes()) };
    dispatch(isa, StoreV { ty: layout.types.v, width: layout.v_width(), row, values });
}

/// Read one key of one head from a cell of the key buffer.
///
/// # Safety
///
/// While this runs nobody writes the same cell of the same head.
pub unsafe fn load_k(layout: &KvLayout, k: SharedMut<'_, u8>, cell: usize, head: usize, values: &mut [f32]) {
    layout.check(k.len(), layout.k_bytes(), cell, head);
    assert_eq!(values.len(), layout.head_dim_k, "Key of a wrong width");
    let lane = cell % LANES;
    // SAFETY: every offset is inside the block of 16 cells, and only this cell's lane of it is read.
    unsafe {
        let block = k.as_mut_ptr().add(layout.k_block(head, cell)).cast_const();
        let half = |at: *const u8| f16::from_bits(at.cast::<u16>().read_unaligned()).to_f32_const();
        for (j, x) in values.iter_mut().enumerate() {
            *x = match layout.types.k {
                TensorType::F32 => block.cast::<f32>().add(j * LANES + lane).read_unaligned(),
                TensorType::Q8_0 => {
                    let scale = half(block.add(j / GROUP * Q8_GROUP_BYTES + 2 * lane));
                    scale * f32::from(block.add(q8_quant(j) + lane).read() as i8)
                }
                _ => half(block.add(2 * (j * LANES + lane))),
            };
        }
    }
}

/// Copy the keys and values of all heads from one cell to another.
///
/// # Safety
///
/// While this runs nobody writes the one cell, and nobody reads or writes the other.
pub unsafe fn copy_cell(layout: &KvLayout, k: SharedMut<'_, u8>, v: SharedMut<'_, u8>, from: usize, to: usize) {
    assert_ne!(from, to, "A cell copied to itself");
    let ty = layout.types.k;
    let size = if ty == TensorType::Q8_0 { 1 } else { ty.block_bytes() };
    for head in 0..layout.n_kv_heads {
        layout.check(k.len(), layout.k_bytes(), from, head);
        layout.check(v.len(), layout.v_bytes(), to, head);
        let blocks = [from, to].map(|cell| layout.k_block(head, cell));
        // SAFETY: the elements of a cell's lane, inside the blocks by the checks above.
        let lane = |at: usize, size: usize| unsafe {
            let [from, to] = [(blocks[0], from), (blocks[1], to)].map(|(block, cell)| block + at + cell % LANES * size);
            std::ptr::copy_nonoverlapping(k.as_mut_ptr().add(from), k.as_mut_ptr().add(to), size);
        };
        for j in 0..layout.head_dim_k {
            match ty {
                TensorType::Q8_0 => {
                    if j % GROUP == 0 {
                        lane(j / GROUP * Q8_GROUP_BYTES, 2);
                    }
                    lane(q8_quant(j), 1);
                }
                _ => lane(j * LANES * size, size),
            }
        }
        let rows = [from, to].map(|cell| layout.v_row(head, cell));
        // SAFETY: two rows of the buffer, different ones.
        unsafe {
            let v = v.as_mut_ptr();
            std::ptr::copy_nonoverlapping(v.add(rows[0]), v.add(rows[1]), layout.v_row_bytes());
        }
    }
}

struct StoreK<'a> {
    ty: TensorType,
    block: *mut u8,
    lane: usize,
    values: &'a [f32],
}

impl Kernel for StoreK<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let StoreK { ty, block, lane, values } = self;
        // SAFETY: every offset is inside the block of 16 cells, which the caller lets us write at this lane.
        unsafe {
            match ty {
                TensorType::F32 => {
                    for (j, &x) in values.iter().enumerate() {
                        block.cast::<f32>().add(j * LANES + lane).write_unaligned(x);
                    }
                }
                TensorType::Q8_0 => {
                    for (g, group) in values.chunks(GROUP).enumerate() {
                        let mut quants = [0i8; GROUP];
                        let scale = quantize(group, &mut quants);
                        block.add(g * Q8_GROUP_BYTES + 2 * lane).cast::<u16>().write_unaligned(scale.to_bits());
                        for (j, &q) in quants[..group.len()].iter().enumerate() {
                            block.add(q8_quant(g * GROUP + j) + lane).write(q as u8);
                        }
                    }
                }
                _ => {
                    for (g, group) in values.chunks(LANES).enumerate() {
                        let mut halves = [0u16; LANES];
                        to_f16(simd, group, halves.as_mut_ptr().cast());
                        for (j, &h) in halves[..group.len()].iter().enumerate() {
                            block.cast::<u16>().add((g * LANES + j) * LANES + lane).write_unaligned(h);
                        }
                    }
                }
            }
        }
    }
}

struct StoreV<'a> {
    ty: TensorType,
    width: usize,
    row: &'a mut [u8],
    values: &'a [f32],
}

impl Kernel for StoreV<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let StoreV { ty, width, row, values } = self;
        match ty {
            TensorType::F32 => {
                for (bytes, i) in row.as_chunks_mut::<4>().0.iter_mut().zip(0..) {
                    *bytes = values.get(i).copied().unwrap_or(0.0).to_ne_bytes();
                }
            }
            TensorType::Q8_0 => {
                let (all, scales) = row.split_at_mut(width);
                all.fill(0);
                for ((group, bytes), scale) in
                    values.chunks(GROUP).zip(all.chunks_mut(GROUP)).zip(scales.as_chunks_mut::<2>().0)
                {
                    let mut quants = [0i8; GROUP];
                    *scale = quantize(group, &mut quants).to_bits().to_ne_bytes();
                    for (byte, q) in bytes.iter_mut().zip(quants) {
                        *byte = q as u8;
                    }
                }
            }
            _ => {
                for (group, bytes) in values.chunks(LANES).zip(row.as_chunks_mut::<{ 2 * LANES }>().0) {
                    // SAFETY: 16 halves of room.
                    unsafe { to_f16(simd, group, bytes.as_mut_ptr()) };
                }
            }
        }
    }
}

/// Round up to 16 values to f16, the missing ones being 0.
///
/// # Safety
///
/// `out` has room for 16 f16.
#[inline(always)]
unsafe fn to_f16<S: Vector>(simd: S, values: &[f32], out: *mut u8) {
    const LARGEST: f32 = 65_504.0;
    let mut lanes = [0f32; LANES];
    lanes[..values.len()].copy_from_slice(values);
    // SAFETY: the caller's promise.
    unsafe {
        let x = simd.load(lanes.as_ptr());
        // NaN passes through, because it is the second operand.
        simd.store_f16(out, simd.min(simd.splat(LARGEST), simd.max(simd.splat(-LARGEST), x)));
    }
}

/// Quantize one group: its scale, and the nearest multiples of it.
#[inline(always)]
fn quantize(values: &[f32], quants: &mut [i8; GROUP]) -> f16 {
    let largest = values.iter().fold(0f32, |m, x| m.max(x.abs()));
    if !values.iter().all(|x| x.is_finite()) {
        return f16::NAN;
    }
    let scale = f16::from_f32_const((largest / 127.0).min(65_504.0));
    let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32_const() };
    for (q, &x) in quants.iter_mut().zip(values) {
        // Dividing by the rounded scale may leave the range by a fraction; `as` saturates, -128 is not used.
        *q = ((x * inverse).round_ties_even() as i8).max(-127);
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0).collect()
    }

    fn decoded(ty: TensorType, bytes: impl Fn(usize) -> u8, at: usize, scale: f32) -> f32 {
        match ty {
            TensorType::F32 => f32::from_ne_bytes(std::array::from_fn(|i| bytes(at + i))),
            TensorType::F16 => f16::from_ne_bytes([bytes(at), bytes(at + 1)]).to_f32(),
            _ => f32::from(bytes(at) as i8) * scale,
        }
    }

    /// Largest rounding error of the format for a value in a group with this largest value.
    fn bound(ty: TensorType, x: f32, largest: f32) -> f32 {
        match ty {
            TensorType::F32 => 0.0,
            TensorType::F16 => (x.abs() / 2048.0).max(3e-8),
            // Half a step, and the scale's own rounding to f16 over 127 steps.
            _ => largest / 127.0 * 0.5 * 1.001 + largest / 2048.0,
        }
    }

    /// Where the bytes of one cell's key are: (offset, length) in the key buffer.
    fn k_pieces(layout: &KvLayout, head: usize, cell: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (block, lane, ty, dim) = (layout.k_block(head, cell), cell % LANES, layout.types.k, layout.head_dim_k);
        let scales = if ty == TensorType::Q8_0 { dim.div_ceil(GROUP) } else { 0 };
        let scales = (0..scales).map(move |g| (block + g * Q8_GROUP_BYTES + 2 * lane, 2));
        scales.chain((0..dim).map(move |j| match ty {
            TensorType::Q8_0 => (block + q8_quant(j) + lane, 1),
            ty => (block + (j * LANES + lane) * ty.block_bytes(), ty.block_bytes()),
        }))
    }

    #[test]
    fn what_is_stored_is_there_and_nothing_else_changes() {
        for isa in Isa::available() {
            for ty in [TensorType::F32, TensorType::F16, TensorType::Q8_0] {
                for (dk, dv) in [(8, 8), (80, 80), (96, 40), (128, 256)] {
                    let layout = KvLayout::new(ty, 3, dk, dv, 40).unwrap();
                    assert_eq!(layout.n_cells(), 48);
                    let (mut k, mut v) = (vec![0xa5; layout.k_bytes()], vec![0xa5; layout.v_bytes()]);
                    for (cell, head) in [(0, 0), (17, 1), (39, 2), (47, 2)] {
                        let (key, value) = (values(dk, cell), values(dv, cell + 1));
                        let before = (k.clone(), v.clone());
                        // SAFETY: one thread.
                        unsafe {
                            store_k(isa, &layout, SharedMut::new(&mut k), cell, head, &key);
                            store_v(isa, &layout, SharedMut::new(&mut v), cell, head, &value);
                        }
                        let own: Vec<usize> =
                            k_pieces(&layout, head, cell).flat_map(|(at, len)| at..at + len).collect();
                        let changed = (0..k.len()).filter(|&i| k[i] != before.0[i]).collect::<Vec<_>>();
                        assert!(changed.iter().all(|i| own.contains(i)));
                        let row = layout.v_row(head, cell)..layout.v_row(head, cell) + layout.v_row_bytes();
                        assert!((0..v.len()).all(|i| v[i] == before.1[i] || row.contains(&i)));

                        let mut loaded = vec![0.0; dk];
                        // SAFETY: one thread.
                        unsafe { load_k(&layout, SharedMut::new(&mut k), cell, head, &mut loaded) };
                        let size = if ty == TensorType::Q8_0 { 1 } else { ty.block_bytes() };
                        for j in 0..dk {
                            let group = &key[j / 32 * 32..(j / 32 * 32 + 32).min(dk)];
                            let largest = group.iter().fold(0f32, |m, x| m.max(x.abs()));
                            let block = layout.k_block(head, cell);
                            let (at, scale) = match ty {
                                TensorType::Q8_0 => {
                                    let group = block + j / 32 * 544;
                                    let scale = group + 2 * (cell % 16);
                                    let scale = f16::from_ne_bytes([k[scale], k[scale + 1]]).to_f32();
                                    (group + 32 + j % 32 * 16 + cell % 16, scale)
                                }
                                _ => (block + (j * 16 + cell % 16) * size, 0.0),
                            };
                            let got = decoded(ty, |i| k[i], at, scale);
                            assert!((got - key[j]).abs() <= bound(ty, key[j], largest), "{isa:?} {ty} {j}");
                            assert_eq!(got, loaded[j], "{isa:?} {ty} {j}");
                        }
                        for j in 0..dv {
                            let group = &value[j / 32 * 32..(j / 32 * 32 + 32).min(dv)];
                            let largest = group.iter().fold(0f32, |m, x| m.max(x.abs()));
                            let scale = if ty == TensorType::Q8_0 {
                                let scale = row.start + dv.next_multiple_of(16) + j / 32 * 2;
                                f16::from_ne_bytes([v[scale], v[scale + 1]]).to_f32()
                            } else {
                                0.0
                            };
                            let got = decoded(ty, |i| v[i], row.start + j * size, scale);
                            assert!((got - value[j]).abs() <= bound(ty, value[j], largest), "{isa:?} {ty} {j}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_copied_cell_is_the_other_and_nothing_else_changes() {
        let all = [TensorType::F32, TensorType::F16, TensorType::Q8_0];
        for types in all.into_iter().flat_map(|k| all.map(|v| KvTypes { k, v })) {
            for (dk, dv) in [(8, 40), (80, 80)] {
                let layout = KvLayout::new(types, 2, dk, dv, 48).unwrap();
                let bytes = |n: usize| (0..n).map(|i| (i * 7919 % 251) as u8).collect::<Vec<_>>();
                let (mut k, mut v) = (bytes(layout.k_bytes()), bytes(layout.v_bytes()));
                let (mut k_wanted, mut v_wanted) = (k.clone(), v.clone());
                for (from, to) in [(47, 0), (17, 18), (3, 33)] {
                    for head in 0..2 {
                        for ((a, len), (b, _)) in k_pieces(&layout, head, from).zip(k_pieces(&layout, head, to)) {
                            k_wanted.copy_within(a..a + len, b);
                        }
                        let row = layout.v_row(head, from);
                        v_wanted.copy_within(row..row + layout.v_row_bytes(), layout.v_row(head, to));
                    }
                    // SAFETY: one thread.
                    unsafe { copy_cell(&layout, SharedMut::new(&mut k), SharedMut::new(&mut v), from, to) };
                }
                assert!(k == k_wanted && v == v_wanted, "{types} {dk} {dv}");
            }
        }
    }

    #[test]
    fn extremes() {
        let big = [1e30, -1e30, f32::INFINITY, f32::NAN, 65_504.0, 1e-30, 0.0, -0.0];
        let layout = KvLayout::new(TensorType::F16, 1, 8, 8, 16).unwrap();
        for isa in Isa::available() {
            let mut v = vec![0u8; layout.v_bytes()];
            // SAFETY: one thread.
            unsafe { store_v(isa, &layout, SharedMut::new(&mut v), 0, 0, &big) };
            let got: Vec<f32> = (0..8).map(|j| f16::from_ne_bytes([v[2 * j], v[2 * j + 1]]).to_f32()).collect();
            assert_eq!(got[..3], [65_504.0, -65_504.0, 65_504.0], "{isa:?}");
            assert!(got[3].is_nan() && got[4] == 65_504.0 && got[5] == 0.0);
        }
        assert!(quantize(&big, &mut [0; GROUP]).is_nan());
        assert_eq!(quantize(&[0.0; 7], &mut [1; GROUP]), f16::ZERO);
        assert!(KvLayout::new(TensorType::Q4_0, 1, 64, 64, 16).is_err());
    }
}
