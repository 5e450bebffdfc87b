//! Weights on a device: matrices cut into slices that fit its bindings, and vectors.
//!
//! A [`Loader`] repacks rows through a bounded piece of host memory and waits from time to time until the device has
//! copied what was written, so that a load needs little host memory. A weight that is not a finite number is refused,
//! because kernels may assume that there is none.

use super::layout::{BLOCK_HALVES, BLOCKS, HALVES, Layout, TILE, Tiles};
use super::pack;
use crate::backend::gpu::device::Device;
use crate::backend::gpu::device::memory::{Buffer, buffer_bytes};
use crate::backend::gpu::kernel::dispatch::BufferRef;
use crate::backend::memory::Component;
use crate::gguf::{File, TensorInfo};
use crate::quant::TensorType;
use crate::{Error, Result, reserve};

/// Rows of a slice are a multiple of this, so that only a matrix's last slice has workgroups that are not full.
const SLICE_ROWS: usize = 64;
/// Host memory of one piece.
const PIECE_BYTES: u64 = 4 << 20;
/// Bytes that the driver may hold on the host before they are on the device.
const PENDING_BYTES: u64 = 64 << 20;
/// A multiple of every device's alignment of a binding's offset.
const BINDING_ALIGN: u64 = 256;

/// A matrix of `n_out` rows of `n_in` weights.
pub struct Matrix {
    /// The type that its weights had in the file.
    pub ty: TensorType,
    /// Weights of a row.
    pub n_in: usize,
    /// Rows.
    pub n_out: usize,
    pub layout: Layout,
    pub slices: Vec<Slice>,
}

/// Consecutive rows of a matrix in a buffer of their own.
pub struct Slice {
    buffer: Buffer,
    place: SliceLayout,
    pub first_row: usize,
    pub rows: usize,
}

/// Where the sections of a slice begin. The first two are one binding of `vec4<u32>`, the others one of `u32`.
struct SliceLayout {
    at: [u64; 5],
    wide_bytes: u64,
    narrow_at: u64,
    bytes: u64,
}

impl SliceLayout {
    fn new(layout: &Layout, tiles: usize) -> SliceLayout {
        let section = layout.tile_bytes().map(|bytes| bytes * tiles as u64);
        let wide_bytes = section[0] + section[1];
        let narrow_at = wide_bytes.next_multiple_of(BINDING_ALIGN);
        let at = [0, section[0], narrow_at, narrow_at + section[2], narrow_at + section[2] + section[3]];
        SliceLayout { at, wide_bytes, narrow_at, bytes: at[BLOCK_HALVES] + section[BLOCK_HALVES] }
    }

    /// How the rows of a matrix are cut for a device: first row, rows and place of each slice.
    fn slices(gpu: &Device, what: &str, layout: &Layout, n_out: usize) -> Result<Vec<(usize, usize, SliceLayout)>> {
        let most = slice_rows(gpu, what, layout)?;
        let slice = |first_row: usize| {
            let rows = most.min(n_out - first_row);
            (first_row, rows, SliceLayout::new(layout, rows.div_ceil(TILE)))
        };
        Ok((0..n_out).step_by(most).map(slice).collect())
    }

    /// Bytes of the larger binding.
    fn largest_binding(&self) -> u64 {
        self.wide_bytes.max(self.bytes - self.narrow_at)
    }
}

impl Slice {
    /// The sections of 16-byte elements.
    pub fn wide(&self) -> BufferRef {
        BufferRef::Weight(self.buffer.clone(), 0, self.place.wide_bytes)
    }

    /// The other sections, where the format has any.
    pub fn narrow(&self) -> Option<BufferRef> {
        let (at, bytes) = (self.place.narrow_at, self.place.bytes - self.place.narrow_at);
        (bytes > 0).then(|| BufferRef::Weight(self.buffer.clone(), at, bytes))
    }

    /// Where the sections `BLOCKS`, `HALVES` and `BLOCK_HALVES` begin, in elements of their binding.
    pub fn section_places(&self) -> [u32; 3] {
        let SliceLayout { at, narrow_at, .. } = &self.place;
        [at[BLOCKS] / 16, (at[HALVES] - narrow_at) / 4, (at[BLOCK_HALVES] - narrow_at) / 4].map(|at| at as u32)
    }

    /// Tiles of the slice.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }
}

impl Matrix {
    /// Bytes of each slice of such a matrix on a device.
    pub fn slice_bytes(gpu: &Device, what: &str, ty: TensorType, n_in: usize, n_out: usize) -> Result<Vec<u64>> {
        let slices = SliceLayout::slices(gpu, what, &Layout::new(ty, n_in)?, n_out)?;
        Ok(slices.iter().map(|(_, _, place)| buffer_bytes(place.bytes)).collect())
    }
}

/// Numbers: norm weights, biases, frequency factors. Followed by zeros up to a multiple of 4.
pub struct Vector {
    /// How many.
    pub len: usize,
    buffer: Buffer,
}

impl Vector {
    /// Bytes of a vector of `len` numbers.
    pub fn bytes(len: usize) -> u64 {
        buffer_bytes(len as u64 * 4)
    }

    /// For a step: `array<vec4<f32>>` or `array<f32>`.
    pub fn bound(&self) -> BufferRef {
        BufferRef::Weight(self.buffer.clone(), 0, self.buffer.size())
    }
}

/// Rows of a matrix in the layout of the file.
#[derive(Clone, Copy)]
pub enum Stored<'a> {
    /// In memory.
    Here(&'a [u8]),
    /// So many bytes of a file's tensor from a byte on, read piece by piece.
    InFile {
        /// The file.
        file: &'a File,
        /// The tensor.
        info: &'a TensorInfo,
        /// The first byte.
        first: u64,
        /// How many.
        bytes: u64,
    },
}

impl Stored<'_> {
    /// Bytes of the rows.
    pub fn bytes(&self) -> u64 {
        match self {
            Stored::Here(bytes) => bytes.len() as u64,
            Stored::InFile { bytes, .. } => *bytes,
        }
    }

    /// Fill `out` with the bytes from `at` on; all of them must be within the rows.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Stored::Here(bytes) => out.copy_from_slice(&bytes[at as usize..][..out.len()]),
            Stored::InFile { file, info, first, .. } => file.read_at(info, first + at, out)?,
        }
        Ok(())
    }
}

/// Uploads weights to a device, one after the other. Several loaders may work in parallel, each with its own piece of
/// host memory.
pub struct Loader<'a> {
    gpu: &'a Device,
    progress: &'a mut dyn FnMut(u64) -> Result<()>,
    pending: u64,
    /// The component that the next weights' memory is counted to.
    pub component: Component,
}

impl<'a> Loader<'a> {
    /// `progress` is called with the number of bytes of the file done since the last call; its error ends the load.
    pub fn new(gpu: &'a Device, progress: &'a mut dyn FnMut(u64) -> Result<()>) -> Loader<'a> {
        Loader { gpu, progress, pending: 0, component: Component::Other }
    }

    /// A matrix whose rows are those of all `parts`, one after the other, in the layout of the file.
    pub fn matrix(&mut self, what: &str, ty: TensorType, n_in: usize, parts: &[Stored<'_>]) -> Result<Matrix> {
        let layout = Layout::new(ty, n_in)?;
        let row_bytes = layout.row_bytes;
        if let Some(part) = parts.iter().find(|part| part.bytes() % row_bytes as u64 != 0) {
            let problem = format!("{what}: {} bytes are no rows of {n_in} weights of type {ty}", part.bytes());
            return Err(Error::Internal(problem));
        }
        let n_out: usize = parts.iter().map(|part| (part.bytes() / row_bytes as u64) as usize).sum();
        // The part that is being read, and the bytes read of it.
        let (mut part, mut read) = (0, 0);
        let tile_bytes = layout.tile_bytes();
        let piece =
            (PIECE_BYTES / tile_bytes.iter().sum::<u64>()).clamp(1, n_out.div_ceil(TILE).max(1) as u64) as usize;
        let mut tiles = Tiles::new(&layout, piece);
        let mut source = reserve::list(piece * TILE * row_bytes, what)?;

        let mut slices = Vec::new();
        for (first_row, slice_rows, place) in SliceLayout::slices(self.gpu, what, &layout, n_out)? {
            let all = slice_rows.div_ceil(TILE);
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
            let buffer = self.gpu.buffer_of(self.component, what, place.bytes, usage)?;
            for first in (0..all).step_by(piece) {
                let count = piece.min(all - first);
                let wanted = (count * TILE).min(slice_rows - first * TILE);
                source.clear();
                while source.len() < wanted * row_bytes {
                    if read == parts[part].bytes() {
                        (part, read) = (part + 1, 0);
                        continue;
                    }
                    let have = source.len();
                    let more = (parts[part].bytes() - read).min((wanted * row_bytes - have) as u64);
                    source.resize(have + more as usize, 0);
                    parts[part].read(read, &mut source[have..])?;
                    read += more;
                }
                tiles.clear();
                for (i, row) in source.chunks_exact(row_bytes).enumerate() {
                    pack::pack(&layout, row, &mut tiles.row(i))?;
                }
                if !tiles.finite() {
                    return Err(Error::Model(format!("{what} holds weights that are not finite numbers")));
                }
                for (s, section) in tiles.sections.iter().enumerate() {
                    let at = place.at[s] + first as u64 * tile_bytes[s];
                    self.write(&buffer, at, &section[..count * tile_bytes[s] as usize])?;
                }
                (self.progress)(source.len() as u64)?;
            }
            slices.push(Slice { buffer, place, first_row, rows: slice_rows });
        }
        Ok(Matrix { ty, n_in, n_out, layout, slices })
    }

    /// A vector.
    pub fn vector(&mut self, what: &str, values: &[f32]) -> Result<Vector> {
        if !values.iter().all(|x| x.is_finite()) {
            return Err(Error::Model(format!("{what} holds weights that are not finite numbers")));
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = self.gpu.buffer_of(self.component, what, Vector::bytes(values.len()), usage)?;
        self.write(&buffer, 0, bytemuck::cast_slice(values))?;
        (self.progress)(values.len() as u64 * 4)?;
        Ok(Vector { len: values.len(), buffer })
    }

    /// Waits until everything is on the device.
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    fn write(&mut self, buffer: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.gpu.queue.write_buffer(buffer, at, bytes);
        self.pending += bytes.len() as u64;
        if self.pending >= PENDING_BYTES { self.flush() } else { self.gpu.check() }
    }

    fn flush(&mut self) -> Result<()> {
        self.pending = 0;
        self.gpu.queue.submit([]);
        self.gpu.wait()
    }
}

/// The most rows of one slice.
fn slice_rows(gpu: &Device, what: &str, layout: &Layout) -> Result<usize> {
    let caps = &gpu.caps;
    let unit = SliceLayout::new(layout, SLICE_ROWS / TILE);
    // Alignment may add less than BINDING_ALIGN to a whole slice; indices are u32.
    let room = caps.max_buffer.min(u64::from(u32::MAX) * 4).saturating_sub(BINDING_ALIGN);
    let times = (caps.max_binding / unit.largest_binding()).min(room / unit.bytes.next_multiple_of(4));
    if times == 0 {
        let problem = format!("{what}: {SLICE_ROWS} rows of {} bytes do not fit a binding", layout.row_bytes);
        return Err(Error::Unsupported(format!("{problem} of {} ({} bytes)", gpu.info.name, caps.max_binding)));
    }
    Ok(usize::try_from(times).unwrap_or(usize::MAX).saturating_mul(SLICE_ROWS))
}

const _: () = assert!(SLICE_ROWS.is_multiple_of(TILE));
