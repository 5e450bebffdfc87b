//! A model's weights as the CPU keeps them, and the loader that repacks them.
//!
//! All threads repack together: the work is the list of all panels of all matrices, claimed in pieces, each read into a
//! buffer of the thread's and packed from there, so that the peak stays near one copy. It is done in many short runs of
//! the pool. Between two of them whoever else waits for the pool has a run of its own, and the host is told how far the
//! load is: no lock is held then, so the host may do there what it likes.

use super::memory::account;
use super::panels::{PANEL, Panels};
use super::pool::Pool;
use crate::backend::memory::Held;
use crate::backend::{LoadProgress, Wanted, WeightBytes};
use crate::gguf::{File, TensorInfo};
use crate::graph::{WeightId, WeightSpec, WeightUse};
use crate::quant::{TensorType, dequantize};
use crate::{Error, Result, reserve};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the file that are packed per claim, where a panel is not larger: a core's cache has them still when they
/// were read, and a run ends soon after its time is up.
const CLAIM: usize = 32 << 10;

/// How long one run of a load takes: a tenth of what it waited for others, so that beside them the load gets an eleventh
/// of the pool; longer and longer where nobody was there.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST_ALONE: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(10);

/// The host hears of a load at least this often, and after each of so many parts of it.
const TELL: Duration = Duration::from_millis(20);
const PARTS: usize = 256;

pub(super) struct CpuWeights {
    items: Vec<CpuWeight>,
    /// What the items have allocated.
    _held: Vec<Held>,
}

pub(super) enum CpuWeight {
    /// `f32` values: norms, biases, frequency factors.
    Vector(Vec<f32>),
    /// A matrix for products; rows of a tied embedding are read from it too.
    Panels(Panels),
    /// A table that is only looked up, left in the file.
    Rows(FileRows),
    /// Used on other devices only.
    Elsewhere,
}

/// Rows of a table in the file, read when they are looked up.
pub(super) struct FileRows {
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

    pub fn panels(&self, id: WeightId) -> Result<&Panels> {
        match &self.items[id.0 as usize] {
            CpuWeight::Panels(p) => Ok(p),
            _ => Err(Error::Internal(format!("Weight {} is no matrix", id.0))),
        }
    }

    /// One row of an embedding table.
    pub fn table_row(&self, id: WeightId, row: usize, out: &mut [f32]) -> Result<()> {
        match &self.items[id.0 as usize] {
            CpuWeight::Panels(p) => p.dequantize_row(row, out),
            CpuWeight::Rows(rows) => rows.row(row, out),
            CpuWeight::Vector(_) | CpuWeight::Elsewhere => Err(Error::Internal(format!("Weight {} is no table", id.0))),
        }
    }
}

/// Bytes that a weight takes in the form that a use needs.
fn allocated(spec: &WeightSpec, usage: WeightUse) -> Result<u64> {
    match usage {
        WeightUse::Vector => Ok(spec.n_in as u64 * 4),
        WeightUse::Rows => Ok(0),
        WeightUse::MatMul | WeightUse::RowsAndMatMul => {
            if !Panels::supports(spec.ty) {
                let problem = format!("Tensor `{}` has the type {}, for which there is no kernel", spec.name, spec.ty);
                return Err(Error::Unsupported(problem));
            }
            Panels::sizes(spec.ty, spec.n_in, spec.n_out).map(|(_, bytes)| bytes as u64)
        }
    }
}

/// What [`load`] will allocate.
pub(super) fn bytes(specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes> {
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
    panels: &'a Panels,
    info: &'a TensorInfo,
    /// Panels of a claim.
    grain: usize,
    first_claim: usize,
}

pub(super) fn load(
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
                CpuWeight::Panels(Panels::new(spec.ty, spec.n_in, spec.n_out)?)
            }
        });
    }
    let mut packing = Vec::new();
    let mut claims = 0;
    for (item, spec) in items.iter().zip(specs) {
        let CpuWeight::Panels(panels) = item else { continue };
        let grain = (CLAIM / (PANEL * panels.row_bytes())).max(1);
        packing.push(Packing { panels, info: tensor(file, spec)?, grain, first_claim: claims });
        claims += panels.n_panels().div_ceil(grain);
    }
    pack(file, &packing, claims, threads, progress)?;
    for p in &packing {
        p.panels.prefer_huge_pages();
    }
    Ok(CpuWeights { items, _held: held })
}

fn tensor<'a>(file: &'a File, spec: &WeightSpec) -> Result<&'a TensorInfo> {
    file.tensor(&spec.name).ok_or_else(|| Error::Internal(format!("Tensor `{}` is gone", spec.name)))
}

/// The numbers of a vector of the file.
pub(in crate::backend) fn vector(file: &File, spec: &WeightSpec, info: &TensorInfo) -> Result<Vec<f32>> {
    let mut values = reserve::filled(0.0, spec.n_in, "values of a vector")?;
    dequantize(spec.ty, &file.read(info)?, &mut values)?;
    Ok(values)
}

/// Pack everything, in runs of the pool that are short beside those of others.
fn pack(
    file: &File,
    packing: &[Packing<'_>],
    claims: usize,
    threads: usize,
    mut progress: LoadProgress<'_>,
) -> Result<()> {
    let buffers: Vec<Mutex<Vec<u8>>> = (0..threads.max(1)).map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let never = AtomicBool::new(false);
    let mut last = LONGEST_ALONE;
    let (mut told, mut told_at) = (0, Instant::now());
    loop {
        // The cores of those who compute on one thread each, and queue with nobody, are theirs.
        let pool = Pool::global();
        let threads = threads.saturating_sub(pool.alone()).max(1);
        let length = OnceLock::new();
        pool.run(threads, &never, &|worker| {
            let end = Instant::now() + *length.get_or_init(|| turn(last, worker.waited()));
            let buffer = &mut *buffers[worker.index()].lock();
            while failed.lock().is_none() {
                let claim = next.fetch_add(1, Ordering::Relaxed);
                let Some(p) = packing[..packing.partition_point(|p| p.first_claim <= claim)].last() else { return };
                if claim >= claims {
                    return;
                }
                if let Err(error) = p.pack(file, claim - p.first_claim, buffer) {
                    failed.lock().get_or_insert(error);
                }
                if Instant::now() >= end {
                    return;
                }
            }
        })?;
        if let Some(error) = failed.lock().take() {
            return Err(error);
        }
        last = length.into_inner().unwrap_or(last);
        let done = next.load(Ordering::Relaxed).min(claims);
        if done == claims || done - told >= claims.div_ceil(PARTS) || told_at.elapsed() >= TELL {
            (told, told_at) = (done, Instant::now());
            let fraction = if claims == 0 { 1.0 } else { done as f32 / claims as f32 };
            if progress.as_mut().is_some_and(|progress| !progress(fraction)) {
                return Err(Error::Cancelled);
            }
        }
        if done == claims {
            return Ok(());
        }
    }
}

/// How long a run may take that waited so long, after one of this length.
fn turn(last: Duration, waited: Duration) -> Duration {
    match waited {
        Duration::ZERO => (2 * last).min(LONGEST_ALONE),
        waited => (waited / 10).clamp(SHORTEST, LONGEST),
    }
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
