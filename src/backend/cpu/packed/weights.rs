//! A model's weights as the CPU keeps them, and the loader that repacks them.
//!
//! All threads repack together: the work is the list of all panels of all matrices, claimed in pieces, each read into a
//! buffer of the thread's and packed from there, so that the peak stays near one copy. It is done in the background of
//! the pool, see [`Pool::background`]. Meanwhile the host is told how far the load is: no lock is held then, so the
//! host may do there what it likes.
//!
//! Where there is a folder for it (`cache.rs`), panels are written to a file there, which is then mapped; the next load
//! only maps it. Whatever fails with that file, the weights are packed into memory instead.

use super::cache::{Folder, NewFile, Place};
use super::memory::PanelMemory;
use super::{Layout, PANEL, PackedMatrix};
use crate::backend::cpu::host::memory::account;
use crate::backend::cpu::host::pool::Pool;
use crate::backend::memory::Held;
use crate::backend::weights::vector;
use crate::backend::{LoadProgress, Wanted, WeightBytes};
use crate::gguf::{File, TensorInfo};
use crate::graph::{WeightId, WeightSpec, WeightUse};
use crate::quant::{TensorType, dequantize};
use crate::{Error, Result, reserve};
use memmap2::Mmap;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the file that are packed per claim, where a panel is not larger: a core's cache has them still when they
/// were read, and a run ends soon after its time is up.
const CLAIM: usize = 32 << 10;

/// A thread takes as many claims at once, up to so many bytes, where it has this long: pages of a file are written
/// several times as fast in large pieces, and the system keeps them together.
const BATCH: usize = 256 << 10;
const CLAIMS: usize = BATCH / CLAIM;
const BATCH_TIME: Duration = Duration::from_micros(250);

/// Bytes of memory that are given back at a time.
const GIVEN_BACK: usize = 1 << 20;

/// Weights are packed and freed for this part of the time of runs meanwhile, one eighth.
const BACKGROUND_PART: u32 = 8;

/// The host hears of a load at least this often, and after each of so many parts of it.
const TELL: Duration = Duration::from_millis(20);
const PARTS: usize = 256;

pub(crate) struct CpuWeights {
    items: Vec<CpuWeight>,
    /// Threads that packed them.
    threads: usize,
    /// What the items have allocated.
    _held: Vec<Held>,
}

enum CpuWeight {
    /// `f32` values: norms, biases, frequency factors.
    Vector(Vec<f32>),
    /// A matrix for products; rows of a tied embedding are read from it too.
    Matrix(PackedMatrix),
    /// A table that is only looked up, left in the file.
    Rows(FileRows),
    /// Used on other devices only.
    Elsewhere,
}

/// Rows of a table in the file, read when they are looked up.
struct FileRows {
    file: File,
    info: TensorInfo,
    ty: TensorType,
    row_bytes: usize,
}

impl FileRows {
    fn row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        // Piece by piece, each of whole blocks, so that a row of any length needs no memory of its own.
        let mut piece = [0; 4096];
        let blocks = piece.len() / self.ty.block_bytes();
        let mut at = row as u64 * self.row_bytes as u64;
        for out in out.chunks_mut(blocks * self.ty.block_len()) {
            let read = &mut piece[..out.len() / self.ty.block_len() * self.ty.block_bytes()];
            self.file.read_at(&self.info, at, read)?;
            dequantize(self.ty, read, out)?;
            at += read.len() as u64;
        }
        Ok(())
    }
}

impl CpuWeights {
    pub fn vector(&self, id: WeightId) -> Result<&[f32]> {
        match &self.items[id.0 as usize] {
            CpuWeight::Vector(v) => Ok(v),
            _ => Err(Error::Internal(format!("Weight {} is no vector", id.0))),
        }
    }

    pub fn matrix(&self, id: WeightId) -> Result<&PackedMatrix> {
        match &self.items[id.0 as usize] {
            CpuWeight::Matrix(p) => Ok(p),
            _ => Err(Error::Internal(format!("Weight {} is no matrix", id.0))),
        }
    }

    /// One row of an embedding table.
    pub fn table_row(&self, id: WeightId, row: usize, out: &mut [f32]) -> Result<()> {
        match &self.items[id.0 as usize] {
            CpuWeight::Matrix(p) => p.dequantize_row(row, out),
            CpuWeight::Rows(rows) => rows.row(row, out),
            CpuWeight::Vector(_) | CpuWeight::Elsewhere => Err(Error::Internal(format!("Weight {} is no table", id.0))),
        }
    }
}

impl Drop for CpuWeights {
    /// Gives the memory of the matrices back as it was filled, in the background of those who compute: the system takes
    /// milliseconds for it, and they would wait for their core.
    fn drop(&mut self) {
        let matrices = self.items.iter().filter_map(|item| match item {
            CpuWeight::Matrix(panels) => Some(panels),
            _ => None,
        });
        let pieces: Vec<_> =
            matrices.flat_map(|panels| panels.pieces(GIVEN_BACK).map(move |at| (panels, at))).collect();
        let (next, freed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |until: Instant| {
            while let Some((panels, at)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                // SAFETY: each piece is given back once, and nobody reads weights that are dropped.
                unsafe { panels.give_back(at.clone()) };
                freed.fetch_add(1, Ordering::Relaxed);
                if Instant::now() >= until {
                    return;
                }
            }
        };
        let mut look = || Ok(freed.load(Ordering::Relaxed) < pieces.len());
        if let Err(error) = Pool::global().background(self.threads, BACKGROUND_PART, &work, &mut look) {
            log::warn!("Weights are freed at once: {error}");
        }
    }
}

/// Bytes that a weight takes in the form that a use needs.
fn allocated(spec: &WeightSpec, usage: WeightUse) -> Result<u64> {
    match usage {
        WeightUse::Vector => Ok(spec.n_in as u64 * 4),
        WeightUse::Rows => Ok(0),
        WeightUse::MatMul | WeightUse::RowsAndMatMul => {
            if !PackedMatrix::supports(spec.ty) {
                let problem = format!("Tensor `{}` has the type {}, for which there is no kernel", spec.name, spec.ty);
                return Err(Error::Unsupported(problem));
            }
            Layout::new(spec.ty, spec.n_in, spec.n_out).map(|layout| layout.bytes() as u64)
        }
    }
}

/// What [`load`] will allocate.
pub(crate) fn bytes(specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes> {
    let mut sum = WeightBytes::default();
    for (spec, (usage, component)) in specs.iter().zip(wanted.uses.iter().zip(&wanted.components)) {
        let Some(usage) = *usage else { continue };
        sum.allocated.add(*component, allocated(spec, usage)?);
        if usage == WeightUse::Rows {
            let row_bytes = spec.ty.row_bytes(spec.n_in as u64).unwrap_or(0);
            sum.file_backed += row_bytes * spec.n_out as u64;
        }
    }
    Ok(sum)
}

/// A matrix of the file that is multiplied.
struct Matrix<'a> {
    item: usize,
    /// The first of its rows in the tensor.
    first_row: usize,
    layout: Layout,
    info: &'a TensorInfo,
}

/// Where the panels of a matrix are packed to.
#[derive(Clone, Copy)]
enum To<'a> {
    Memory(&'a PackedMatrix),
    /// A file, from this byte on.
    File(&'a NewFile<'a>, usize),
}

/// A matrix on its way into panels.
struct Packing<'a> {
    matrix: &'a Matrix<'a>,
    to: To<'a>,
    /// Panels of a claim.
    grain: usize,
    first_claim: usize,
}

pub(crate) fn load(
    file: &File,
    specs: &[WeightSpec],
    wanted: &Wanted,
    threads: usize,
    progress: LoadProgress<'_>,
) -> Result<CpuWeights> {
    load_with(Folder::from_environment(), file, specs, wanted, threads, progress)
}

/// As [`load`], with this folder for packed weights.
fn load_with(
    folder: Option<Folder>,
    file: &File,
    specs: &[WeightSpec],
    wanted: &Wanted,
    threads: usize,
    progress: LoadProgress<'_>,
) -> Result<CpuWeights> {
    let mut items = Vec::with_capacity(specs.len());
    let mut held = Vec::new();
    let mut matrices = Vec::new();
    for (item, (spec, usage)) in specs.iter().zip(&wanted.uses).enumerate() {
        let Some(usage) = *usage else {
            items.push(CpuWeight::Elsewhere);
            continue;
        };
        held.push(account().hold(wanted.components[item], allocated(spec, usage)?));
        let info = tensor(file, spec)?;
        items.push(match usage {
            WeightUse::Vector => CpuWeight::Vector(vector(file, spec, info)?),
            WeightUse::Rows => {
                // A type that cannot be read must fail now, not at the first token.
                let row_bytes = (info.bytes as usize) / spec.n_out.max(1);
                let rows = FileRows { file: file.clone(), info: info.clone(), ty: spec.ty, row_bytes };
                let mut first = reserve::filled(0.0, spec.n_in, "values of a row")?;
                rows.row(0, &mut first)?;
                CpuWeight::Rows(rows)
            }
            WeightUse::MatMul | WeightUse::RowsAndMatMul => {
                let layout = Layout::new(spec.ty, spec.n_in, spec.n_out)?;
                matrices.push(Matrix { item, first_row: spec.first_row, layout, info });
                CpuWeight::Elsewhere
            }
        });
    }
    for (matrix, panels) in matrices.iter().zip(panels(folder, file, &matrices, threads, progress)?) {
        items[matrix.item] = CpuWeight::Matrix(panels);
    }
    Ok(CpuWeights { items, threads, _held: held })
}

/// The packed matrices: mapped from the folder, packed into a file there, or packed into memory.
fn panels(
    folder: Option<Folder>,
    file: &File,
    matrices: &[Matrix<'_>],
    threads: usize,
    mut progress: LoadProgress<'_>,
) -> Result<Vec<PackedMatrix>> {
    let sizes: Vec<_> = matrices.iter().map(|matrix| (matrix.info, matrix.layout.bytes())).collect();
    if let Some(place) = folder.and_then(|folder| Place::find(folder, file, &sizes)) {
        let mapped = match place.open() {
            Some(map) => {
                tell(&mut progress, 1.0)?;
                Some(map)
            }
            None => match place.create() {
                Some(new) => pack_to_file(new, &place.parts, file, matrices, threads, &mut progress)?,
                None => None,
            },
        };
        if let Some(map) = mapped {
            let memory = |part: &Range<usize>| {
                let outside = || Error::Internal(format!("{part:?} of a mapped file of {} bytes", map.len()));
                PanelMemory::mapped(map.clone(), part.clone()).ok_or_else(outside)
            };
            let each = matrices.iter().zip(&place.parts);
            return each.map(|(matrix, part)| PackedMatrix::over(matrix.layout, memory(part)?)).collect();
        }
    }
    let all = matrices.iter().map(|Matrix { layout, .. }| PackedMatrix::new(layout.ty, layout.n_in, layout.n_out));
    let all: Vec<_> = all.collect::<Result<_>>()?;
    pack(file, matrices.iter().zip(all.iter().map(To::Memory)), threads, &mut progress)?;
    #[cfg(target_os = "linux")]
    super::memory::join_pages(all.iter().map(|matrix| &matrix.memory), threads);
    Ok(all)
}

/// Pack into a new file of the cache, the panels of each matrix to its part; `None` where that cannot be written.
fn pack_to_file(
    new: NewFile<'_>,
    parts: &[Range<usize>],
    file: &File,
    matrices: &[Matrix<'_>],
    threads: usize,
    progress: &mut LoadProgress<'_>,
) -> Result<Option<Arc<Mmap>>> {
    let to = parts.iter().map(|part| To::File(&new, part.start));
    match pack(file, matrices.iter().zip(to), threads, progress) {
        Ok(()) => Ok(new.complete()),
        Err(error) if new.has_failed() => {
            log::warn!("Weights are packed into memory: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Tell the host how far the load is; [`Error::Cancelled`] where it ends it.
fn tell(progress: &mut LoadProgress<'_>, fraction: f32) -> Result<()> {
    match progress.as_mut().is_none_or(|progress| progress(fraction)) {
        true => Ok(()),
        false => Err(Error::Cancelled),
    }
}

fn tensor<'a>(file: &'a File, spec: &WeightSpec) -> Result<&'a TensorInfo> {
    file.tensor(&spec.name).ok_or_else(|| Error::Internal(format!("Tensor `{}` is gone", spec.name)))
}

/// Buffers of a thread that packs.
#[derive(Default)]
struct Buffers {
    rows: Vec<u8>,
    panels: Vec<u8>,
}

/// Pack everything, in the background of those who compute.
fn pack<'a>(
    file: &File,
    matrices: impl Iterator<Item = (&'a Matrix<'a>, To<'a>)>,
    threads: usize,
    progress: &mut LoadProgress<'_>,
) -> Result<()> {
    let (mut packing, mut claims) = (Vec::new(), 0);
    for (matrix, to) in matrices {
        let grain = (CLAIM / (PANEL * matrix.layout.row_bytes())).max(1);
        packing.push(Packing { matrix, to, grain, first_claim: claims });
        claims += matrix.layout.n_panels().div_ceil(grain);
    }
    // Each of those who pack at once has one.
    let buffers = Mutex::new(Vec::new());
    let (next, packed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = Mutex::new(None);
    let work = |until: Instant| {
        let mut own: Buffers = buffers.lock().pop().unwrap_or_default();
        let mut now = Instant::now();
        while failed.lock().is_none() {
            let count = if now + BATCH_TIME <= until { CLAIMS } else { 1 };
            let claim = next.fetch_add(count, Ordering::Relaxed);
            let mut taken = claim.min(claims)..(claim + count).min(claims);
            if taken.is_empty() {
                break;
            }
            let count = taken.len();
            while !taken.is_empty() {
                let at = packing.partition_point(|p| p.first_claim <= taken.start);
                let Some(p) = packing[..at].last() else { break };
                let end = packing.get(at).map_or(claims, |next| next.first_claim).min(taken.end);
                let panels = (taken.start - p.first_claim) * p.grain..(end - p.first_claim) * p.grain;
                if let Err(error) = p.pack(file, panels, &mut own) {
                    failed.lock().get_or_insert(error);
                }
                taken.start = end;
            }
            packed.fetch_add(count, Ordering::Release);
            now = Instant::now();
            if now >= until {
                break;
            }
        }
        buffers.lock().push(own);
    };
    let (mut told, mut told_at) = (0, Instant::now());
    let mut look = || {
        if let Some(error) = failed.lock().take() {
            return Err(error);
        }
        let done = packed.load(Ordering::Acquire);
        if done == claims || done - told >= claims.div_ceil(PARTS) || told_at.elapsed() >= TELL {
            (told, told_at) = (done, Instant::now());
            tell(progress, if claims == 0 { 1.0 } else { done as f32 / claims as f32 })?;
        }
        Ok(done < claims)
    };
    Pool::global().background(threads, BACKGROUND_PART, &work, &mut look)
}

impl Packing<'_> {
    /// Read the rows of some panels into a buffer and pack them, [`BATCH`] bytes at a time.
    fn pack(&self, file: &File, panels: Range<usize>, buffers: &mut Buffers) -> Result<()> {
        let most = (BATCH / (PANEL * self.matrix.layout.row_bytes())).max(1);
        let end = panels.end.min(self.matrix.layout.n_panels());
        let mut batches = panels.step_by(most).take_while(|first| *first < end);
        batches.try_for_each(|first| self.pack_batch(file, first..(first + most).min(end), buffers))
    }

    fn pack_batch(&self, file: &File, range: Range<usize>, buffers: &mut Buffers) -> Result<()> {
        let Matrix { layout, info, first_row, .. } = self.matrix;
        let (rows, row_bytes) = (layout.rows_of(&range), layout.row_bytes());
        let source = sized(&mut buffers.rows, rows.len() * row_bytes, "bytes of rows to pack")?;
        file.read_at(info, (first_row + rows.start) as u64 * row_bytes as u64, source)?;
        match self.to {
            // SAFETY: each claim is made once, so no two threads pack the same panels, and nothing reads them before
            // all runs have ended.
            To::Memory(panels) => unsafe { panels.pack_shared(source, range) },
            To::File(new, at) => {
                let at = at + range.start * layout.panel_bytes();
                let panels = sized(&mut buffers.panels, range.len() * layout.panel_bytes(), "bytes of packed rows")?;
                layout.pack(source, range, panels)?;
                new.write(at, panels)
            }
        }
    }
}

/// So many bytes of a buffer that grows to them.
fn sized<'a>(buffer: &'a mut Vec<u8>, bytes: usize, what: &str) -> Result<&'a mut [u8]> {
    if buffer.len() < bytes {
        *buffer = reserve::filled(0, bytes, what)?;
    }
    Ok(&mut buffer[..bytes])
}

#[cfg(test)]
mod tests;
