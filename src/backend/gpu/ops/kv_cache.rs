//! The KV cache of one layer on the device, and the kernels that rearrange it.
//!
//! Keys are transposed within blocks of [`BLOCK`] cells, so that threads with a cell each read neighbouring memory;
//! values are stored cell by cell, so that threads with a column each do. The element is a *unit* of four numbers, of
//! one type for keys and one for values:
//!
//! ```text
//! keys    [head][cell / 64][unit][cell % 64]
//! values  [head][cell][unit]
//! ```
//!
//! A unit is four f32, four f16 in two words, or four i8 in one; in Q8_0 one f32 scale per 32 numbers follows the
//! quants of a head, as units of their own. The scale is the largest magnitude / 127 and a group with an infinity or
//! NaN is NaN, as in the CPU's cache, whose scales are rounded to f16 besides. A value beyond f16's range is stored as
//! the largest finite one; NaN is kept. A buffer needs no initialisation: a cell is read only after it was written, as
//! long as the cells' sequence sets say so.

use crate::backend::gpu::kernel::dispatch::{BufferRef, FRAME_CONSTANTS, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::backend::gpu::weights::rope_table::RopeTable;
use crate::backend::{KvTypes, NO_CELL, Table};
use crate::quant::TensorType;
use crate::{Error, Result};

/// Cells of a block, which are interleaved in memory.
pub const BLOCK: usize = 64;
/// The most values of a head.
pub const MAX_HEAD: usize = 256;

/// Shape and sizes of one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Element types.
    pub types: KvTypes,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// Number of cells, a multiple of [`BLOCK`].
    pub cells: usize,
    /// The table of the cells.
    pub table: Table,
}

impl KvLayout {
    /// A layout for `cells` cells, rounded up to whole blocks.
    ///
    /// [`Error::Unsupported`] for element types other than F32, F16 and Q8_0, and for heads that are wider than
    /// [`MAX_HEAD`] or no multiple of 4.
    pub fn new(
        types: impl Into<KvTypes>,
        n_kv_heads: usize,
        head_dim_k: usize,
        head_dim_v: usize,
        cells: usize,
    ) -> Result<KvLayout> {
        let types = types.into();
        types.check(" on a GPU")?;
        if let Some(dim) = [head_dim_k, head_dim_v].into_iter().find(|d| *d == 0 || d % 4 != 0 || *d > MAX_HEAD) {
            let known = format!("multiples of 4 up to {MAX_HEAD}");
            return Err(Error::Unsupported(format!("Attention heads of width {dim} on a GPU (known: {known})")));
        }
        Ok(KvLayout {
            types,
            n_kv_heads,
            head_dim_k,
            head_dim_v,
            cells: cells.next_multiple_of(BLOCK),
            table: Table::All,
        })
    }

    /// Bytes of the key buffer.
    pub fn k_bytes(&self) -> u64 {
        self.bytes(true)
    }

    /// Bytes of the value buffer.
    pub fn v_bytes(&self) -> u64 {
        self.bytes(false)
    }

    /// [`Error::OutOfMemory`] when the device cannot bind a layer's keys or values.
    pub fn check(&self, gpu: &Gpu, layer: usize) -> Result<()> {
        let limit = gpu.caps.max_binding;
        let most = self.k_bytes().max(self.v_bytes());
        if most <= limit {
            return Ok(());
        }
        let what = format!("{most} bytes for the keys or values of layer {layer} ({} cells)", self.cells);
        Err(Error::OutOfMemory(format!("{what} on {}: a kernel of it sees at most {limit}", gpu.info.name)))
    }

    /// Width of a key head, or else of a value head.
    pub fn dim(&self, key: bool) -> usize {
        if key { self.head_dim_k } else { self.head_dim_v }
    }

    fn bytes(&self, key: bool) -> u64 {
        (self.n_kv_heads * self.cells * self.units(key) * self.unit_bytes(key)) as u64
    }

    /// Units of a head.
    fn units(&self, key: bool) -> usize {
        let dim = self.dim(key);
        dim / 4 + if self.types.of(key) == TensorType::Q8_0 { dim.div_ceil(32) } else { 0 }
    }

    fn unit_bytes(&self, key: bool) -> usize {
        match self.types.of(key) {
            TensorType::F32 => 16,
            TensorType::Q8_0 => 4,
            _ => 8,
        }
    }

    /// The words of a cell's keys or values, of all heads.
    pub fn words(&self, key: bool, cell: usize) -> impl Iterator<Item = usize> + use<> {
        let (units, words) = (self.units(key), self.unit_bytes(key) / 4);
        let cells = self.cells;
        let unit_at = move |head: usize, unit: usize| match key {
            true => (head * cells / BLOCK + cell / BLOCK) * units * BLOCK + unit * BLOCK + cell % BLOCK,
            false => (head * cells + cell) * units + unit,
        };
        let all = (0..self.n_kv_heads).flat_map(move |head| (0..units).map(move |unit| unit_at(head, unit)));
        all.flat_map(move |unit| unit * words..(unit + 1) * words)
    }

    /// The same layout for cells of this table.
    pub fn of(self, table: Table) -> KvLayout {
        KvLayout { table, ..self }
    }

    /// The frame with the cells of the batch.
    pub fn frame(&self) -> BufferRef {
        match self.table {
            Table::All => BufferRef::Frame,
            Table::Window => BufferRef::WindowFrame,
        }
    }

    /// Blocks of cells.
    pub fn blocks(&self) -> u32 {
        (self.cells / BLOCK) as u32
    }

    /// The flags that select the element types in a shader: those of keys, of values, and of either.
    pub fn flags(&self) -> Vec<&'static str> {
        let chosen = |ty, names: [&'static str; 3]| match ty {
            TensorType::F32 => names[0],
            TensorType::Q8_0 => names[1],
            _ => names[2],
        };
        let KvTypes { k, v } = self.types;
        let mut flags = vec![chosen(k, ["K_F32", "K_Q8", "K_F16"]), chosen(v, ["V_F32", "V_Q8", "V_F16"])];
        flags.extend([k, v].map(|ty| chosen(ty, ["F32", "Q8", "F16"])));
        flags
    }

    /// The shape, for shader texts, without the number of cells.
    pub fn constants(&self) -> Vec<(&'static str, u32)> {
        vec![
            ("BLOCK", BLOCK as u32),
            ("DK4", self.head_dim_k as u32 / 4),
            ("DV4", self.head_dim_v as u32 / 4),
            ("K_UNITS", self.units(true) as u32),
            ("V_UNITS", self.units(false) as u32),
        ]
    }

    /// [`Error::Internal`] where a key head has no room for the rotated values.
    pub fn check_rotated(&self, rope: &RopeTable, first: usize) -> Result<()> {
        if first + rope.n_rot as usize > self.head_dim_k {
            let (n, width) = (rope.n_rot, self.head_dim_k);
            return Err(Error::Internal(format!("{n} rotated values from {first} on in a head of {width}")));
        }
        Ok(())
    }

    /// Threads of a workgroup that holds one head: a power of two, and at least a subgroup of most devices.
    pub fn head_threads(&self) -> u32 {
        (self.head_dim_k.max(self.head_dim_v) as u32 / 4).next_power_of_two().max(32)
    }
}

/// What a K-shift turns.
pub struct Shift<'a> {
    /// Frequencies.
    pub rope: &'a RopeTable,
    /// The first value of a head that is rotated.
    pub first: usize,
    /// Factors that a norm after the rotation left on each value of a key head.
    pub factors: Option<BufferRef>,
}

/// Rotates the keys of the batch's cells, each by its row's position (K-shift).
pub fn shift(gpu: &Gpu, layout: &KvLayout, layer: usize, shift: &Shift<'_>) -> Result<Step> {
    let rope = shift.rope;
    layout.check_rotated(rope, shift.first)?;
    let mut constants = layout.constants();
    constants.extend(FRAME_CONSTANTS);
    constants.extend([("THREADS", layout.head_threads()), ("ROT", rope.n_rot), ("FIRST", shift.first as u32)]);
    constants.push(("NO_CELL", NO_CELL));
    let mut flags = layout.flags();
    flags.extend(["ROPE", "KEYS", rope.flag()]);
    let mut bindings = vec![Binding::Uniform, Binding::Read, Binding::Read, Binding::Write];
    let mut buffers = vec![BufferRef::Params, rope.bound(), layout.frame(), BufferRef::Keys(layer)];
    if let Some(factors) = &shift.factors {
        flags.push("FACTORS");
        bindings.push(Binding::Read);
        buffers.push(factors.clone());
    }
    Ok(Step {
        kernel: gpu.kernel(
            "kv_shift",
            &compose(include_str!("../shaders/ops/kv_shift.wgsl"), &flags, &constants)?,
            &bindings,
        )?,
        buffers,
        params: vec![layout.blocks(), 0, 0, 0],
        groups: [GroupCount::Rows(1, 1), GroupCount::Fixed(layout.n_kv_heads as u32), GroupCount::Fixed(1)],
    })
}

/// Copies keys and values to the batch's cells, each from the cell whose number is its row's position. No cell may be
/// both source and target.
pub fn copy(gpu: &Gpu, layout: &KvLayout, layer: usize) -> Result<Step> {
    let mut constants = layout.constants();
    constants.extend(FRAME_CONSTANTS);
    constants.extend([("THREADS", 64), ("NO_CELL", NO_CELL)]);
    let bindings = [Binding::Uniform, Binding::Read, Binding::Write, Binding::Write];
    let text = compose(include_str!("../shaders/ops/copy.wgsl"), &layout.flags(), &constants)?;
    Ok(Step {
        kernel: gpu.kernel("copy", &text, &bindings)?,
        buffers: vec![BufferRef::Params, layout.frame(), BufferRef::Keys(layer), BufferRef::Values(layer)],
        params: vec![layout.blocks(), 0, 0, 0],
        groups: [GroupCount::Rows(1, 1), GroupCount::Fixed(layout.n_kv_heads as u32), GroupCount::Fixed(1)],
    })
}

#[cfg(test)]
mod tests;
