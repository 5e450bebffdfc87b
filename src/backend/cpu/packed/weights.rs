//! A model's weights as the CPU keeps them, and the loader that repacks them.
//!
//! All threads repack together: the work is the list of all panels of all matrices, claimed in pieces, each read into a
//! buffer of the thread's and packed from there, so that the peak stays near one copy. It is done in the background of
//! the pool, see [`Pool::background`]. Meanwhile the host is told how far the load is: no lock is held then, so the
//! host may do there what it likes.

use super::{PANEL, PackedMatrix};
use crate::backend::cpu::host::memory::account;
use crate::backend::cpu::host::pool::Pool;
use crate::backend::memory::Held;
use crate::backend::weights::vector;
use crate::backend::{LoadProgress, Wanted, WeightBytes};
use crate::gguf::{File, TensorInfo};
use crate::graph::{WeightId, WeightSpec, WeightUse};
use crate::quant::{TensorType, dequantize};
use crate::{Error, Result, reserve};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the file that are packed per claim, where a panel is not larger: a core's cache has them still when they
/// were read, and a run ends soon after its time is up.
const CLAIM: usize = 32 << 10;

/// Bytes of memory that are given back at a time.
const GIVEN_BACK: usize = 1 << 20;

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
        let ended =
            Pool::global().background(self.threads, &work, &mut || Ok(freed.load(Ordering::Relaxed) < pieces.len()));
        if let Err(error) = ended {
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
            PackedMatrix::sizes(spec.ty, spec.n_in, spec.n_out).map(|(_, bytes)| bytes as u64)
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

/// A matrix on its way into panels.
struct Packing<'a> {
    panels: &'a PackedMatrix,
    info: &'a TensorInfo,
    /// PackedMatrix of a claim.
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
    let mut items = Vec::with_capacity(specs.len());
    let mut held = Vec::new();
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
                CpuWeight::Matrix(PackedMatrix::new(spec.ty, spec.n_in, spec.n_out)?)
            }
        });
    }
    let mut packing = Vec::new();
    let mut claims = 0;
    for (item, spec) in items.iter().zip(specs) {
        let CpuWeight::Matrix(panels) = item else { continue };
        let grain = (CLAIM / (PANEL * panels.row_bytes())).max(1);
        packing.push(Packing { panels, info: tensor(file, spec)?, grain, first_claim: claims });
        claims += panels.n_panels().div_ceil(grain);
    }
    pack(file, &packing, claims, threads, progress)?;
    for p in &packing {
        p.panels.prefer_huge_pages();
    }
    Ok(CpuWeights { items, threads, _held: held })
}

fn tensor<'a>(file: &'a File, spec: &WeightSpec) -> Result<&'a TensorInfo> {
    file.tensor(&spec.name).ok_or_else(|| Error::Internal(format!("Tensor `{}` is gone", spec.name)))
}

/// Pack everything, in the background of those who compute.
fn pack(
    file: &File,
    packing: &[Packing<'_>],
    claims: usize,
    threads: usize,
    mut progress: LoadProgress<'_>,
) -> Result<()> {
    // Each of those who pack at once has one.
    let buffers = Mutex::new(Vec::new());
    let (next, packed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = Mutex::new(None);
    let work = |until: Instant| {
        let mut buffer = buffers.lock().pop().unwrap_or_default();
        while failed.lock().is_none() {
            let claim = next.fetch_add(1, Ordering::Relaxed);
            if claim >= claims {
                break;
            }
            let Some(p) = packing[..packing.partition_point(|p| p.first_claim <= claim)].last() else { break };
            if let Err(error) = p.pack(file, claim - p.first_claim, &mut buffer) {
                failed.lock().get_or_insert(error);
            }
            packed.fetch_add(1, Ordering::Release);
            if Instant::now() >= until {
                break;
            }
        }
        buffers.lock().push(buffer);
    };
    let (mut told, mut told_at) = (0, Instant::now());
    let mut look = || {
        if let Some(error) = failed.lock().take() {
            return Err(error);
        }
        let done = packed.load(Ordering::Acquire);
        if done == claims || done - told >= claims.div_ceil(PARTS) || told_at.elapsed() >= TELL {
            (told, told_at) = (done, Instant::now());
            let fraction = if claims == 0 { 1.0 } else { done as f32 / claims as f32 };
            if progress.as_mut().is_some_and(|progress| !progress(fraction)) {
                return Err(Error::Cancelled);
            }
        }
        Ok(done < claims)
    };
    Pool::global().background(threads, &work, &mut look)
}

impl Packing<'_> {
    /// Read a claim's rows into the buffer and pack them.
    fn pack(&self, file: &File, claim: usize, buffer: &mut Vec<u8>) -> Result<()> {
        let first = claim * self.grain;
        let range = first..(first + self.grain).min(self.panels.n_panels());
        let (rows, row_bytes) = (self.panels.rows_of(&range), self.panels.row_bytes());
        let bytes = rows.len() * row_bytes;
        if buffer.len() < bytes {
            *buffer = reserve::filled(0, bytes, "bytes of rows to pack")?;
        }
        let source = &mut buffer[..bytes];
        file.read_at(self.info, rows.start as u64 * row_bytes as u64, source)?;
        // SAFETY: each claim is made once, so no two threads pack the same panels, and nothing reads them before all
        // runs have ended.
        unsafe { self.panels.pack_shared(source, range) }
    }
}
