//! A model's weights as the CPU keeps them, and the loader that repacks them.
//!
//! All threads repack together: the work is the list of all panels of all matrices, claimed in pieces. The pages of
//! the file under a piece are dropped as soon as it is packed, so that the peak stays near one copy.

use super::memory::account;
use super::panels::{PANEL, Panels};
use super::pool::{Counter, Pool};
use crate::backend::memory::Held;
use crate::backend::{LoadProgress, Wanted, WeightBytes};
use crate::gguf::{File, TensorInfo};
use crate::graph::{WeightId, WeightSpec, WeightUse};
use crate::quant::{TensorType, dequantize};
use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Panels packed per claim: small enough to share the last tensor, large enough to stream.
const PACK_GRAIN: usize = 64;

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

/// Rows of a table in the mapped file.
pub(super) struct FileRows {
    file: File,
    info: TensorInfo,
    ty: TensorType,
    row_bytes: usize,
}

impl FileRows {
    fn row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let data = self.file.data(&self.info);
        let start = row * self.row_bytes;
        dequantize(self.ty, &data[start..start + self.row_bytes], out)
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
    item: usize,
    info: &'a TensorInfo,
    row_bytes: usize,
    first_chunk: usize,
}

pub(super) fn load(
    file: &File,
    specs: &[WeightSpec],
    wanted: &Wanted,
    threads: usize,
    mut progress: LoadProgress<'_>,
) -> Result<CpuWeights> {
    let mut items = Vec::with_capacity(specs.len());
    let mut held = Vec::new();
    let mut packing: Vec<Packing<'_>> = Vec::new();
    let mut chunks = 0;
    for (item, (spec, usage)) in specs.iter().zip(&wanted.uses).enumerate() {
        let Some(usage) = *usage else {
            items.push(CpuWeight::Elsewhere);
            continue;
        };
        held.push(account().hold(wanted.components[item], allocated(spec, usage)?));
        let info = file.tensor(&spec.name).ok_or_else(|| Error::Internal(format!("Tensor `{}` is gone", spec.name)))?;
        items.push(match usage {
            WeightUse::Vector => {
                let mut values = vec![0.0; spec.n_in];
                dequantize(spec.ty, file.data(info), &mut values)?;
                CpuWeight::Vector(values)
            }
            WeightUse::Rows => {
                // A type that cannot be read must fail now, not at the first token.
                let row_bytes = (info.bytes as usize) / spec.n_out.max(1);
                let rows = FileRows { file: file.clone(), info: info.clone(), ty: spec.ty, row_bytes };
                rows.row(0, &mut vec![0.0; spec.n_in])?;
                CpuWeight::Rows(rows)
            }
            WeightUse::MatMul | WeightUse::RowsAndMatMul => {
                let panels = Panels::new(spec.ty, spec.n_in, spec.n_out)?;
                let n = panels.n_panels().div_ceil(PACK_GRAIN);
                let row_bytes = file.data(info).len() / spec.n_out;
                packing.push(Packing { item, info, row_bytes, first_chunk: chunks });
                chunks += n;
                CpuWeight::Panels(panels)
            }
        });
    }

    let (next, done, cancelled) = (Counter::new(), AtomicUsize::new(0), AtomicBool::new(false));
    let failed = parking_lot::Mutex::new(None);
    // Only the calling thread reports: the host's callback need not be thread-safe.
    let report = parking_lot::Mutex::new(&mut progress);
    Pool::global().run(threads, &|worker| {
        for range in worker.chunks(&next, chunks, 1) {
            if cancelled.load(Ordering::Relaxed) {
                return;
            }
            let chunk = range.start;
            let Some(p) = packing[..packing.partition_point(|p| p.first_chunk <= chunk)].last() else { continue };
            let CpuWeight::Panels(panels) = &items[p.item] else { continue };
            let first = (chunk - p.first_chunk) * PACK_GRAIN;
            let panel_range = first..(first + PACK_GRAIN).min(panels.n_panels());
            let rows = panel_range.start * PANEL..(panel_range.end * PANEL).min(panels.n_out());
            let source = &file.data(p.info)[rows.start * p.row_bytes..rows.end * p.row_bytes];
            file.will_need(source);
            // SAFETY: each chunk is claimed once, so no two threads pack the same panels, and nothing reads them
            // before the run ends.
            let packed = unsafe { panels.pack_shared(file.data(p.info), panel_range) };
            if let Err(error) = packed {
                failed.lock().get_or_insert(error);
                cancelled.store(true, Ordering::Relaxed);
            }
            file.release(source);
            let finished = done.fetch_add(1, Ordering::Relaxed) + 1;
            if worker.index() == 0
                && let Some(progress) = report.lock().as_mut()
                && !progress(finished as f32 / chunks as f32)
            {
                cancelled.store(true, Ordering::Relaxed);
            }
        }
    })?;
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    if cancelled.load(Ordering::Relaxed) {
        return Err(Error::Cancelled);
    }
    if let Some(progress) = progress
        && !progress(1.0)
    {
        return Err(Error::Cancelled);
    }
    for item in &items {
        if let CpuWeight::Panels(panels) = item {
            panels.prefer_huge_pages();
        }
    }
    Ok(CpuWeights { items, _held: held })
}
