//! The weight table: architectures claim tensors by name, shape and use; every claim is checked against the file, and a
//! tensor that was not claimed is refused, because a model with an ignored tensor would compute wrong results without
//! an error. Tensors of the vision and audio towers that some files have besides are left out: text does without them.

use crate::gguf::{File, TensorInfo, shown};
use crate::graph::{WeightId, WeightSpec, WeightUse};
use crate::{Error, Result};
use std::collections::HashSet;

/// Whether a tensor with this name belongs to a vision or audio tower, or joins one to the text model.
pub fn is_of_tower(name: &str) -> bool {
    ["v.", "a.", "mm."].iter().any(|prefix| name.starts_with(prefix))
}

/// Collects the weights of one model.
pub struct WeightTable<'a> {
    file: &'a File,
    specs: Vec<WeightSpec>,
    claimed: HashSet<&'a str>,
}

impl<'a> WeightTable<'a> {
    /// An empty table over this file.
    pub fn new(file: &'a File) -> Self {
        WeightTable { file, specs: Vec::new(), claimed: HashSet::new() }
    }

    /// Whether the file has this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// A matrix for products, `n_in` to `n_out`.
    ///
    /// # Errors
    /// [`Error::Model`] for a tensor that is missing or has another shape, [`Error::Unsupported`] for its type.
    pub fn matrix(&mut self, name: &str, n_in: usize, n_out: usize) -> Result<WeightId> {
        self.claim(name, &[n_in, n_out], WeightUse::MatMul)
    }

    /// The embedding table: rows of `n_in`, and where the model has no output matrix also the output matrix.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`].
    pub fn embedding(&mut self, name: &str, n_in: usize, n_out: usize, tied: bool) -> Result<WeightId> {
        self.claim(name, &[n_in, n_out], if tied { WeightUse::RowsAndMatMul } else { WeightUse::Rows })
    }

    /// A vector of `n`.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`].
    pub fn vector(&mut self, name: &str, n: usize) -> Result<WeightId> {
        self.claim(name, &[n], WeightUse::Vector)
    }

    /// A vector that the file may lack.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`], but for a missing tensor.
    pub fn optional_vector(&mut self, name: &str, n: usize) -> Result<Option<WeightId>> {
        if self.has(name) { self.vector(name, n).map(Some) } else { Ok(None) }
    }

    fn claim(&mut self, name: &str, shape: &[usize], usage: WeightUse) -> Result<WeightId> {
        let info: &'a TensorInfo =
            self.file.tensor(name).ok_or_else(|| Error::Model(format!("Tensor `{name}` is missing")))?;
        let mut want = [1u64; 4];
        for (w, &n) in want.iter_mut().zip(shape) {
            *w = n as u64;
        }
        if info.shape != want {
            let have = &info.shape[..info.n_dims.max(1) as usize];
            return Err(Error::Model(format!("Tensor `{name}` has the shape {have:?}, {shape:?} is needed")));
        }
        let ty = info.tensor_type()?;
        let n_out = shape.get(1).copied().unwrap_or(1);
        self.claimed.insert(&info.name);
        self.specs.push(WeightSpec { name: name.to_string(), n_in: shape[0], n_out, ty, usage });
        Ok(WeightId(self.specs.len() as u32 - 1))
    }

    /// The finished table, or an error naming a tensor of the file that the architecture does not use.
    ///
    /// # Errors
    /// [`Error::Model`] naming a tensor of the file that the architecture does not use.
    pub fn finish(self) -> Result<Vec<WeightSpec>> {
        let unclaimed = |t: &&TensorInfo| !self.claimed.contains(t.name.as_str());
        let (towers, others): (Vec<_>, Vec<_>) =
            self.file.tensors().iter().filter(unclaimed).partition(|t| is_of_tower(&t.name));
        if !towers.is_empty() {
            let (path, n) = (self.file.path().display(), towers.len());
            log::info!("{path}: {n} tensors of a vision or audio tower are left out");
        }
        match others.first() {
            Some(t) => Err(Error::Model(format!("Tensor `{}` is not known in this architecture", shown(&t.name)))),
            None => Ok(self.specs),
        }
    }
}
