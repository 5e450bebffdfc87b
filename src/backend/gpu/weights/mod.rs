//! A model's weights on the GPU.
//!
//! Matrices of one type that one node multiplies with the same input are joined to one matrix, the rows of the first
//! matrix first, so that one dispatch computes them all.

mod affine;
pub mod layout;
pub mod matrix;
mod pack;
mod recipes;
pub mod rope_table;

use crate::backend::gpu::device::Device;
use crate::backend::rope::Rope;
use crate::backend::weights::vector;
use crate::backend::{LoadProgress, Wanted, WeightBytes};
use crate::gguf::File;
use crate::graph::{Graph, WeightId, WeightSpec, WeightUse};
use crate::{Error, Result};
use matrix::{Loader, Matrix, Stored, Vector};
use parking_lot::Mutex;
use rope_table::RopeTable;
use std::collections::HashMap;
use std::sync::Arc;

/// A model's weights on the GPU: matrices, some of them joined, and vectors.
pub struct GpuWeights {
    items: Vec<Item>,
    /// Joined matrices, by the first of them.
    joined: HashMap<WeightId, (Vec<WeightId>, Matrix)>,
    ropes: Mutex<RopeTables>,
}

/// Rotary embeddings by their number in the model's graphs and their divisors.
type RopeTables = HashMap<(usize, Option<WeightId>), Arc<RopeTable>>;

enum Item {
    /// On the device and on the host.
    Vector(Vector, Vec<f32>),
    Matrix(Matrix),
    /// In a joined matrix.
    Joined,
    /// Used on other devices only.
    Elsewhere,
}

impl GpuWeights {
    /// A vector of `f32`.
    pub fn vector(&self, id: WeightId) -> Result<&Vector> {
        match &self.items[id.0 as usize] {
            Item::Vector(vector, _) => Ok(vector),
            _ => Err(Error::Internal(format!("Weight {} is no vector on this device", id.0))),
        }
    }

    /// A matrix of its own.
    pub fn matrix(&self, id: WeightId) -> Result<&Matrix> {
        match &self.items[id.0 as usize] {
            Item::Matrix(matrix) => Ok(matrix),
            _ => Err(Error::Internal(format!("Weight {} is no matrix on this device", id.0))),
        }
    }

    /// The frequencies of a rotary embedding in an engine whose sequences have at most `context` tokens, uploaded on
    /// first use.
    pub fn rope_table(&self, gpu: &Device, graph: &Graph, rope: usize, context: usize) -> Result<Arc<RopeTable>> {
        let mut ropes = self.ropes.lock();
        let spec = &graph.ropes[rope];
        let key = (rope, spec.factors_for(context));
        if let Some(have) = ropes.get(&key) {
            return Ok(have.clone());
        }
        let factors = match key.1.map(|id| &self.items[id.0 as usize]) {
            None => &[][..],
            Some(Item::Vector(_, factors)) => factors,
            Some(_) => return Err(Error::Internal(format!("Rotary embedding {rope} has no factors on this device"))),
        };
        let new =
            Arc::new(RopeTable::new(gpu, spec.kind, &Rope::new(spec.n_rot, spec.freq_base, factors, spec.scaling))?);
        ropes.insert(key, new.clone());
        Ok(new)
    }

    /// The matrix that these ones were joined to.
    pub fn joined(&self, ids: &[WeightId]) -> Option<&Matrix> {
        let (joined, matrix) = self.joined.get(ids.first()?)?;
        (joined == ids).then_some(matrix)
    }

    /// A weight of one number.
    pub fn number(&self, id: WeightId) -> Result<f32> {
        match &self.items[id.0 as usize] {
            Item::Vector(_, numbers) if numbers.len() == 1 => Ok(numbers[0]),
            _ => Err(Error::Internal(format!("Weight {} is no number on this device", id.0))),
        }
    }
}

/// The groups of matrices that are joined.
pub fn joined<'a>(specs: &'a [WeightSpec], wanted: &'a Wanted) -> impl Iterator<Item = &'a [WeightId]> {
    wanted.together.iter().map(Vec::as_slice).filter(|ids| are_joined(specs, wanted, ids))
}

/// Whether the matrices that one node multiplies are joined.
pub fn are_joined(specs: &[WeightSpec], wanted: &Wanted, ids: &[WeightId]) -> bool {
    let used = |id: &WeightId| wanted.uses.get(id.0 as usize).copied().flatten();
    let ty = |id: &WeightId| specs[id.0 as usize].ty;
    ids.iter().all(|id| ty(id) == ty(&ids[0]) && used(id) == Some(WeightUse::MatMul))
}

/// The bytes that [`load`] will allocate.
pub fn bytes(gpu: &Device, specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes> {
    let mut sum = WeightBytes::default();
    let mut alone: Vec<bool> = wanted.uses.iter().map(Option::is_some).collect();
    let matrix = |spec: &WeightSpec, n_out| Matrix::slice_bytes(gpu, &spec.name, spec.ty, spec.n_in, n_out);
    for ids in joined(specs, wanted) {
        let rows = ids.iter().map(|id| specs[id.0 as usize].n_out).sum();
        let first = ids[0].0 as usize;
        sum.allocated.add(wanted.components[first], matrix(&specs[first], rows)?.iter().sum());
        ids.iter().for_each(|id| alone[id.0 as usize] = false);
    }
    for (i, spec) in specs.iter().enumerate().filter(|(i, _)| alone[*i]) {
        let bytes = match wanted.uses[i] {
            Some(WeightUse::Vector) => Vector::bytes(spec.n_in),
            _ => matrix(spec, spec.n_out)?.iter().sum(),
        };
        sum.allocated.add(wanted.components[i], bytes);
    }
    Ok(sum)
}

/// Upload the weights of `wanted`; `progress` is called with the fraction done.
pub fn load(
    gpu: &Device,
    file: &File,
    specs: &[WeightSpec],
    wanted: &Wanted,
    mut progress: LoadProgress<'_>,
) -> Result<GpuWeights> {
    let tensor = |spec: &WeightSpec| {
        file.tensor(&spec.name).ok_or_else(|| Error::Internal(format!("Tensor `{}` is gone", spec.name)))
    };
    let used = |i: usize| wanted.uses.get(i).copied().flatten();
    let stored = |spec: &WeightSpec| {
        let info = tensor(spec)?;
        let row = spec.ty.row_bytes(spec.n_in as u64).unwrap_or(0);
        let [first, bytes] = [spec.first_row, spec.n_out].map(|rows| row.checked_mul(rows as u64));
        match first.zip(bytes) {
            Some((first, bytes)) => Ok(Stored::InFile { file, info, first, bytes }),
            None => Err(Error::Internal(format!("Rows of tensor `{}`", spec.name))),
        }
    };
    let mut total = 0;
    for (_, spec) in specs.iter().enumerate().filter(|&(i, _)| used(i).is_some()) {
        total += stored(spec)?.bytes();
    }
    let mut done = 0u64;
    let mut report = |bytes: u64| -> Result<()> {
        done += bytes;
        let goes_on = progress.as_mut().is_none_or(|progress| progress(done as f32 / total.max(1) as f32));
        if goes_on { Ok(()) } else { Err(Error::Cancelled) }
    };
    let mut loader = Loader::new(gpu, &mut report);
    let mut items: Vec<Item> = (0..specs.len()).map(|_| Item::Elsewhere).collect();
    let mut matrices = HashMap::new();
    for ids in joined(specs, wanted) {
        let parts = ids.iter().map(|id| stored(&specs[id.0 as usize])).collect::<Result<Vec<_>>>()?;
        let spec = &specs[ids[0].0 as usize];
        loader.component = wanted.components[ids[0].0 as usize];
        let matrix = loader.matrix(&spec.name, spec.ty, spec.n_in, &parts)?;
        matrices.insert(ids[0], (ids.to_vec(), matrix));
        ids.iter().for_each(|id| items[id.0 as usize] = Item::Joined);
    }
    for (i, spec) in specs.iter().enumerate() {
        let (Some(usage), Item::Elsewhere) = (used(i), &items[i]) else { continue };
        loader.component = wanted.components[i];
        items[i] = match usage {
            WeightUse::Vector => {
                let values = vector(file, spec, tensor(spec)?)?;
                Item::Vector(loader.vector(&spec.name, &values)?, values)
            }
            WeightUse::Rows | WeightUse::MatMul | WeightUse::RowsAndMatMul => {
                Item::Matrix(loader.matrix(&spec.name, spec.ty, spec.n_in, &[stored(spec)?])?)
            }
        };
    }
    loader.finish()?;
    gpu.wait()?;
    Ok(GpuWeights { items, joined: matrices, ropes: Mutex::default() })
}
