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
//! threads can pack disjoint ranges of panels of one matrix.

pub(super) mod format;
mod pack;
pub(super) mod weights;

use crate::quant::TensorType;
use crate::simd::{BYTE_ZERO, Isa, Kernel, LANES, Vector, compiled_for, dispatch};
use crate::{Error, Result};
use format::Format;
use memmap2::MmapMut;
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

/// A repacked weight matrix of `n_out` rows of `n_in` weights.
pub struct PackedMatrix {
    ty: TensorType,
    n_in: usize,
    n_out: usize,
    panel_bytes: usize,
    /// The start of `memory`, through which packing threads write without a `&mut`.
    data: *mut u8,
    memory: MmapMut,
}

// SAFETY: the memory is owned; it is written only by `pack_shared`, whose callers promise that nobody uses the same
// panels meanwhile, and by `pack`, which holds `&mut self`.
unsafe impl Send for PackedMatrix {}
// SAFETY: as above; everything else only reads.
unsafe impl Sync for PackedMatrix {}

/// Runs `$body` with `$f` naming the format of a quantised type.
macro_rules! with_format {
    ($ty:expr, $f:ident => $body:expr, else $other:expr) => {
        with_format!(@ $ty, $f, $body, $other, Q8_0 Q8_0, Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, Q2_K Q2K,
            Q3_K Q3K, Q4_K Q4K, Q5_K Q5K, Q6_K Q6K, IQ4_NL Iq4Nl, MXFP4 Mxfp4)
    };
    (@ $ty:expr, $f:ident, $body:expr, $other:expr, $($name:ident $format:ident),*) => {
        match $ty {
            $(crate::quant::TensorType::$name => {
                type $f = $crate::backend::cpu::packed::format::$format;
                $body
            })*
            _ => $other,
        }
    };
}
pub(super) use with_format;

impl PackedMatrix {
    /// Whether weights of this type can be repacked and multiplied.
    pub fn supports(ty: TensorType) -> bool {
        matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16) || with_format!(ty, _F => true, else false)
    }

    /// Bytes of one panel and of the whole copy of a matrix of `n_out` rows of `n_in` weights.
    ///
    /// # Errors
    /// As [`PackedMatrix::new`].
    pub fn sizes(ty: TensorType, n_in: usize, n_out: usize) -> Result<(usize, usize)> {
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
        Ok((panel_bytes, bytes))
    }

    /// Memory for a matrix of `n_out` rows of `n_in` weights; its contents are undefined until packed.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type without kernels, [`Error::InvalidArgument`] for a dimension of 0 or rows that
    /// are no whole number of blocks, [`Error::OutOfMemory`] with the size when the memory cannot be had.
    pub fn new(ty: TensorType, n_in: usize, n_out: usize) -> Result<PackedMatrix> {
        let (panel_bytes, bytes) = PackedMatrix::sizes(ty, n_in, n_out)?;
        let mut memory = MmapMut::map_anon(bytes).map_err(|error| {
            Error::OutOfMemory(format!("{bytes} bytes for {n_out} rows of {n_in} weights of type {ty}: {error}"))
        })?;
        Ok(PackedMatrix { ty, n_in, n_out, panel_bytes, data: memory.as_mut_ptr(), memory })
    }

    /// Tell the system that huge pages would serve these weights well, once they are packed: it joins pages in the
    /// background. Asked for beforehand, it would clear huge pages during the load, which takes several times as long
    /// where memory comes from a host that has to be asked for each.
    pub fn prefer_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if let Err(error) = self.memory.advise(memmap2::Advice::HugePage) {
            log::debug!("Weights stay on small pages: {error}");
        }
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
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the pages are private and of no file, so they are zeros if they are read again; nobody does, as
            // the caller promises.
            let done = unsafe { self.memory.unchecked_advise_range(advice, piece.start, piece.len()) };
            if let Err(error) = done {
                log::debug!("Weights are freed at once: {error}");
            }
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = piece;
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
        if range.start > range.end || range.end > self.n_panels() {
            return Err(Error::InvalidArgument(format!("panels {range:?} of {} to repack", self.n_panels())));
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
        for panel in range {
            let rows: Sources = std::array::from_fn(|lane| {
                let row = (panel * PANEL + lane).min(self.n_out - 1) - rows.start;
                src[row * row_bytes..][..row_bytes].as_ptr()
            });
            // SAFETY: `panel` is one of ours, and the caller keeps others off it.
            let out = unsafe { self.data.add(panel * self.panel_bytes) };
            let n_in = self.n_in;
            let isa = Isa::detect();
            // SAFETY: the rows hold `n_in` elements, and the panel is ours.
            unsafe {
                with_format!(self.ty, F => pack_chunks::<F>(isa, rows, n_in, out),
                    else pack_floats(isa, rows, n_in, self.ty.block_bytes(), out));
            }
        }
        Ok(())
    }

    /// Bytes of a source row.
    pub fn row_bytes(&self) -> usize {
        self.n_in / self.ty.block_len() * self.ty.block_bytes()
    }

    /// The rows of some panels.
    pub fn rows_of(&self, panels: &Range<usize>) -> Range<usize> {
        panels.start * PANEL..(panels.end * PANEL).min(self.n_out)
    }

    /// Element type of the source.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Weights of a row.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Rows.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// PackedMatrix, the last one perhaps partly filled.
    pub fn n_panels(&self) -> usize {
        self.n_out.div_ceil(PANEL)
    }

    /// Bytes of the repacked copy.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// The activations that products take for this matrix.
    pub fn activation_kind(&self) -> ActivationKind {
        ActivationKind::of(self.ty)
    }

    /// Writes row `row` to `out`, the same numbers as `quant::dequantize` makes of the source row.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such row or `out` is not `n_in` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        self.dequantize_row_on(Isa::detect(), row, out)
    }

    pub(crate) fn dequantize_row_on(&self, isa: Isa, row: usize, out: &mut [f32]) -> Result<()> {
        if row >= self.n_out || out.len() != self.n_in {
            return Err(Error::InvalidArgument(format!(
                "row {row} into {} values, of {} rows of {}",
                out.len(),
                self.n_out,
                self.n_in
            )));
        }
        let (panel, lane) = (self.panel(row / PANEL), row % PANEL);
        with_format!(self.ty, F => dispatch(isa, Row::<F> { panel, lane, out, format: PhantomData }), else {
            for (k, value) in out.iter_mut().enumerate() {
                let at = (k * PANEL + lane) * self.ty.block_bytes();
                // SAFETY: a float panel holds PANEL elements for each of the `n_in` weights.
                *value = unsafe {
                    let p = panel.add(at);
                    match self.ty {
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
        self.data.wrapping_add(panel * self.panel_bytes)
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
