//! A weight matrix repacked for the CPU: panels of 16 output rows, one row a lane. Packing a matrix into panels that
//! the innermost loop reads in order is Goto's and van de Geijn's, "Anatomy of High-Performance Matrix Multiplication",
//! <https://doi.org/10.1145/1356052.1356053>.
//!
//! The repacked copy is the one resident copy of the weights (the caller drops the source pages). Its layout is the
//! same for every instruction set and holds exactly the file's numbers: [`PackedMatrix::dequantize_row`] returns what
//! `quant::dequantize` makes of the source row. Rows beyond the last, in a last panel that is not full, repeat the
//! last row; kernels compute them and store nothing.
//!
//! Packing writes every byte of a panel once, in order, and reads 16 source rows side by side, so that several
//! threads can pack disjoint ranges of panels of one matrix: into its memory, or into a file that is mapped later.

mod cache;
pub(super) mod format;
mod memory;
mod pack;
pub(super) mod weights;

use crate::quant::{self, TensorType};
use crate::simd::{BYTE_ZERO, Isa, Kernel, LANES, Vector, compiled_for, dispatch};
use crate::{Error, Result, reserve};
use format::Format;
use memory::PanelMemory;
use pack::{Pack, Sources};
use std::marker::PhantomData;
use std::ops::Range;

/// Output rows of a panel.
pub const PANEL: usize = LANES;

/// What activations a matrix is multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationKind {
    /// Rows of `f32`.
    F32,
    /// Rows of `kernels/activations.rs`.
    Q8,
}

impl ActivationKind {
    /// What weights of this type are multiplied with.
    pub fn of(ty: TensorType) -> ActivationKind {
        match ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => ActivationKind::F32,
            _ => ActivationKind::Q8,
        }
    }
}

/// How a matrix of `n_out` rows of `n_in` weights lies in panels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    ty: TensorType,
    n_in: usize,
    n_out: usize,
    panel_bytes: usize,
    bytes: usize,
}

/// A repacked weight matrix.
pub struct PackedMatrix {
    layout: Layout,
    /// The start of `memory`.
    data: *const u8,
    /// The same, through which packing threads write without a `&mut`; `None` for a file.
    packing: Option<*mut u8>,
    memory: PanelMemory,
}

// SAFETY: the memory lives as long as this; it is written only by `pack_shared`, whose callers promise that nobody uses
// the same panels meanwhile, and by `pack`, which holds `&mut self`.
unsafe impl Send for PackedMatrix {}
// SAFETY: as above; everything else only reads.
unsafe impl Sync for PackedMatrix {}

/// Runs `$body` with `$f` naming the format of a quantised type.
macro_rules! with_format {
    ($ty:expr, $f:ident => $body:expr, else $other:expr) => {
        with_format!(@ $ty, $f, $body, $other, Q8_0 Q8_0, Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, Q2_K Q2K,
            Q3_K Q3K, Q4_K Q4K, Q5_K Q5K, Q6_K Q6K, IQ4_NL Iq4Nl, MXFP4 Mxfp4, NVFP4 Nvfp4, IQ4_XS Iq4Xs, IQ3_S Iq3S,
            IQ3_XXS Iq3Xxs, IQ2_XXS | IQ2_XS | IQ2_S Iq2, IQ1_S | IQ1_M Iq1, TQ1_0 | TQ2_0 | Q2_0 Ternary, Q1_0 Q1_0)
    };
    (@ $ty:expr, $f:ident, $body:expr, $other:expr, $($($name:ident)|+ $format:ident),*) => {
        match $ty {
            $($(crate::quant::TensorType::$name)|+ => {
                type $f = $crate::backend::cpu::packed::format::$format;
                $body
            })*
            _ => $other,
        }
    };
}
pub(super) use with_format;

impl Layout {
    /// The layout of a matrix of `n_out` rows of `n_in` weights.
    ///
    /// # Errors
    /// As [`PackedMatrix::new`], but for the memory.
    pub fn new(ty: TensorType, n_in: usize, n_out: usize) -> Result<Layout> {
        if !PackedMatrix::supports(ty) {
            return Err(Error::Unsupported(format!("matrices of type {ty} on the CPU")));
        }
        if n_in == 0 || n_out == 0 || !n_in.is_multiple_of(ty.block_len()) {
            return Err(Error::InvalidArgument(format!(
                "a matrix of {n_out} rows of {n_in} weights of type {ty} (blocks of {})",
                ty.block_len()
            )));
        }
        let too_large = || Error::OutOfMemory(format!("{n_out} rows of {n_in} weights of type {ty} to repack"));
        let panel_bytes = with_format!(ty, F => (n_in / F::CHUNK).checked_mul(F::BYTES),
            else n_in.checked_mul(LANES * ty.block_bytes()));
        let panel_bytes = panel_bytes.ok_or_else(too_large)?;
        let bytes = panel_bytes.checked_mul(n_out.div_ceil(PANEL)).ok_or_else(too_large)?;
        Ok(Layout { ty, n_in, n_out, panel_bytes, bytes })
    }

    /// Bytes of all panels.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of a panel.
    pub fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Panels, the last one perhaps partly filled.
    pub fn n_panels(&self) -> usize {
        self.n_out.div_ceil(PANEL)
    }

    /// Bytes of a source row.
    pub fn row_bytes(&self) -> usize {
        self.n_in / self.ty.block_len() * self.ty.block_bytes()
    }

    /// The rows of some panels.
    pub fn rows_of(&self, panels: &Range<usize>) -> Range<usize> {
        panels.start * PANEL..(panels.end * PANEL).min(self.n_out)
    }

    /// Packs the panels of `range` to `out` from `src`, their rows as they lie in the file.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `src` is not as long as those rows, `out` not as long as those panels, or the
    /// range is beyond the matrix's panels.
    pub fn pack(&self, src: &[u8], range: Range<usize>, out: &mut [u8]) -> Result<()> {
        if range.start > range.end || range.end > self.n_panels() || out.len() != range.len() * self.panel_bytes {
            let (bytes, all) = (out.len(), self.n_panels());
            return Err(Error::InvalidArgument(format!("panels {range:?} of {all} to repack into {bytes} bytes")));
        }
        let row_bytes = self.row_bytes();
        let rows = self.rows_of(&range);
        if src.len() != rows.len() * row_bytes {
            return Err(Error::InvalidArgument(format!(
                "{} bytes for {} rows of {row_bytes} bytes to repack",
                src.len(),
                rows.len()
            )));
        }
        let (n_in, isa) = (self.n_in, Isa::detect());
        let blocks = quant::blocks(self.ty);
        let chunk = with_format!(self.ty, F => F::CHUNK, else 1);
        let spread_bytes = if blocks.is_some() { n_in / chunk * pack::spread_bytes(chunk) } else { 0 };
        let mut spread = reserve::filled(0, PANEL * spread_bytes, "bytes of rows that are taken apart")?;
        for (panel, out) in range.zip(out.chunks_exact_mut(self.panel_bytes)) {
            let rows: Sources = std::array::from_fn(|lane| {
                let row = (panel * PANEL + lane).min(self.n_out - 1) - rows.start;
                let row = &src[row * row_bytes..][..row_bytes];
                let Some(blocks) = blocks else { return row.as_ptr() };
                let spread = &mut spread[lane * spread_bytes..][..spread_bytes];
                pack::spread(blocks, self.ty, chunk, row, spread);
                spread.as_ptr()
            });
            let out = out.as_mut_ptr();
            // SAFETY: the rows, or what was spread of them, hold `n_in` elements, and `out` is a whole panel.
            unsafe {
                with_format!(self.ty, F => pack_chunks::<F>(isa, rows, n_in, out),
                    else pack_floats(isa, rows, n_in, self.ty.block_bytes(), out));
            }
        }
        Ok(())
    }
}

impl PackedMatrix {
    /// Whether weights of this type can be repacked and multiplied.
    pub fn supports(ty: TensorType) -> bool {
        matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16) || with_format!(ty, _F => true, else false)
    }

    /// Memory for a matrix of `n_out` rows of `n_in` weights; its contents are undefined until packed.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type without kernels, [`Error::InvalidArgument`] for a dimension of 0 or rows that
    /// are no whole number of blocks, [`Error::OutOfMemory`] with the size when the memory cannot be had.
    pub fn new(ty: TensorType, n_in: usize, n_out: usize) -> Result<PackedMatrix> {
        let layout = Layout::new(ty, n_in, n_out)?;
        let what = format_args!("{n_out} rows of {n_in} weights of type {ty}");
        PackedMatrix::over(layout, PanelMemory::owned(layout.bytes, &what)?)
    }

    /// A matrix whose panels are in this memory, packed already or to be packed.
    fn over(layout: Layout, mut memory: PanelMemory) -> Result<PackedMatrix> {
        if memory.len() != layout.bytes {
            return Err(Error::Internal(format!("{} bytes of memory for {layout:?}", memory.len())));
        }
        Ok(PackedMatrix { layout, data: memory.start(), packing: memory.start_mut(), memory })
    }

    /// The memory in pieces of so many bytes.
    pub fn pieces(&self, bytes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = self.memory.len();
        (0..all).step_by(bytes).map(move |start| start..(start + bytes).min(all))
    }

    /// Give a piece of the memory back to the system, where that is possible.
    ///
    /// # Safety
    /// Nobody reads these weights any more.
    pub unsafe fn give_back(&self, piece: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { self.memory.give_back(piece) }
    }

    /// Packs the panels of `range` from `src`, their rows as they lie in the file.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `src` is not as long as those rows or the range is beyond the matrix's panels.
    pub fn pack(&mut self, src: &[u8], range: Range<usize>) -> Result<()> {
        // SAFETY: nobody else can use any panel while this holds `&mut self`.
        unsafe { self.pack_shared(src, range) }
    }

    /// As [`PackedMatrix::pack`], for threads that pack disjoint ranges of one matrix.
    ///
    /// # Safety
    /// Nobody reads or packs the panels of `range` meanwhile.
    ///
    /// # Errors
    /// As [`PackedMatrix::pack`].
    pub unsafe fn pack_shared(&self, src: &[u8], range: Range<usize>) -> Result<()> {
        let Some(data) = self.packing else { return Err(Error::Internal("Mapped weights are packed already".into())) };
        if range.start > range.end || range.end > self.n_panels() {
            return Err(Error::InvalidArgument(format!("panels {range:?} of {} to repack", self.n_panels())));
        }
        let Layout { panel_bytes, .. } = self.layout;
        // SAFETY: these panels are ours, and the caller keeps others off them.
        let out =
            unsafe { std::slice::from_raw_parts_mut(data.add(range.start * panel_bytes), range.len() * panel_bytes) };
        self.layout.pack(src, range, out)
    }

    /// Bytes of a source row.
    pub fn row_bytes(&self) -> usize {
        self.layout.row_bytes()
    }

    /// The rows of some panels.
    pub fn rows_of(&self, panels: &Range<usize>) -> Range<usize> {
        self.layout.rows_of(panels)
    }

    /// Element type of the source.
    pub fn ty(&self) -> TensorType {
        self.layout.ty
    }

    /// Weights of a row.
    pub fn n_in(&self) -> usize {
        self.layout.n_in
    }

    /// Rows.
    pub fn n_out(&self) -> usize {
        self.layout.n_out
    }

    /// Panels, the last one perhaps partly filled.
    pub fn n_panels(&self) -> usize {
        self.layout.n_panels()
    }

    /// Bytes of the repacked copy.
    pub fn bytes(&self) -> usize {
        self.layout.bytes
    }

    /// The activations that products take for this matrix.
    pub fn activation_kind(&self) -> ActivationKind {
        ActivationKind::of(self.layout.ty)
    }

    /// Writes row `row` to `out`, the same numbers as `quant::dequantize` makes of the source row.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such row or `out` is not `n_in` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        self.dequantize_row_on(Isa::detect(), row, out)
    }

    pub(crate) fn dequantize_row_on(&self, isa: Isa, row: usize, out: &mut [f32]) -> Result<()> {
        let Layout { ty, n_in, n_out, .. } = self.layout;
        if row >= n_out || out.len() != n_in {
            let values = out.len();
            return Err(Error::InvalidArgument(format!("row {row} into {values} values, of {n_out} rows of {n_in}")));
        }
        let (panel, lane) = (self.panel(row / PANEL), row % PANEL);
        with_format!(ty, F => dispatch(isa, Row::<F> { panel, lane, out, format: PhantomData }), else {
            for (k, value) in out.iter_mut().enumerate() {
                let at = (k * PANEL + lane) * ty.block_bytes();
                // SAFETY: a float panel holds PANEL elements for each of the `n_in` weights.
                *value = unsafe {
                    let p = panel.add(at);
                    match ty {
                        TensorType::F16 => half::f16::from_bits(p.cast::<u16>().read()).to_f32(),
                        TensorType::BF16 => half::bf16::from_bits(p.cast::<u16>().read()).to_f32(),
                        _ => p.cast::<f32>().read(),
                    }
                };
            }
        });
        Ok(())
    }

    /// The first byte of a panel.
    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        debug_assert!(panel < self.n_panels());
        self.data.wrapping_add(panel * self.layout.panel_bytes)
    }
}

/// Packs one panel of a quantised type.
///
/// # Safety
/// Every row is readable for `n_in` weights and `out` writable for their chunks.
unsafe fn pack_chunks<F: Pack>(isa: Isa, mut rows: Sources, n_in: usize, out: *mut u8) {
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for chunk in 0..n_in / F::CHUNK {
                // SAFETY: rows and panel hold as many chunks as this loop visits.
                unsafe { F::pack(&rows, out.add(chunk * F::BYTES)) }
                for row in &mut rows {
                    *row = row.wrapping_add(F::SOURCE);
                }
            }
        },
    );
}

/// Packs one panel of floats of 2 or 4 bytes.
///
/// # Safety
/// Every row is readable for `n_in` numbers and `out` writable for `PANEL` times as many.
unsafe fn pack_floats(isa: Isa, rows: Sources, n_in: usize, bytes: usize, out: *mut u8) {
    compiled_for(
        isa,
        #[inline(always)]
        move || {
            for k in 0..n_in {
                // SAFETY: rows hold `n_in` elements, the panel PANEL times as many.
                unsafe {
                    let out = out.add(k * PANEL * bytes);
                    match bytes {
                        2 => pack::halves(&rows, 2 * k, out),
                        _ => pack::copy(&rows, 4 * k, out),
                    }
                }
            }
        },
    );
}

/// Dequantises one row of a panel.
struct Row<'a, F> {
    panel: *const u8,
    lane: usize,
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: Format> Kernel for Row<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Row { panel, lane, out, .. } = self;
        let zero = F::ZERO.map_or(0, |bits| 1 << bits);
        let (mut codes, mut scales, mut minimums) = ([0u8; 256], [0f32; LANES], [0f32; LANES]);
        for (index, half) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (block, which) = (index / 2 % (F::CHUNK / 32), index % 2);
            // SAFETY: `out` is `n_in` long, so the chunk lies in the panel; the arrays hold what is stored.
            unsafe {
                let chunk = panel.add(index * 16 / F::CHUNK * F::BYTES);
                for (v, x) in F::codes(simd, chunk, block)[which].into_iter().enumerate() {
                    simd.store_bytes(codes.as_mut_ptr().add(64 * v), x);
                }
                simd.store(scales.as_mut_ptr(), F::scales(simd, chunk, block)[which]);
                if F::MINIMUM {
                    simd.store(minimums.as_mut_ptr(), F::minimums(simd, chunk, block)[which]);
                }
            }
            for (i, value) in half.iter_mut().enumerate() {
                let code = codes[64 * (i / 4) + 4 * lane + i % 4];
                let code = if F::BITS == 8 { i32::from((code ^ BYTE_ZERO) as i8) } else { i32::from(code) - zero };
                *value = scales[lane] * code as f32;
                if F::MINIMUM {
                    *value -= minimums[lane];
                }
            }
        }
    }
}
