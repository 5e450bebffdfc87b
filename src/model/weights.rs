//! The weight table: architectures claim tensors by name, shape and use; every claim is checked against the file, and a
//! tensor that was neither claimed nor ignored is refused, because a model with a forgotten tensor would compute wrong
//! results without an error. Tensors of the vision and audio towers that some files have besides are left out: text
//! does without them.

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

    /// The shape of a tensor, the contiguous dimension first.
    ///
    /// # Errors
    /// [`Error::Model`] for a tensor that is missing.
    pub fn shape(&self, name: &str) -> Result<[usize; 4]> {
        Ok(self.info(name)?.shape.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    /// A matrix for products, `n_in` to `n_out`.
    ///
    /// # Errors
    /// [`Error::Model`] for a tensor that is missing or has another shape, [`Error::Unsupported`] for its type.
    pub fn matrix(&mut self, name: &str, n_in: usize, n_out: usize) -> Result<WeightId> {
        self.claim(name, &[n_in, n_out], WeightUse::MatMul)
    }

    /// The rows of a matrix of `n_in` to `of` from `first` on, `n_out` of them, as a matrix of their own.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`].
    pub fn rows(&mut self, name: &str, n_in: usize, of: usize, first: usize, n_out: usize) -> Result<WeightId> {
        let whole = self.matrix(name, n_in, of)?;
        if let Some(spec) = self.specs.get_mut(whole.0 as usize) {
            (spec.first_row, spec.n_out) = (first, n_out);
        }
        Ok(whole)
    }

    /// `n` matrices of `n_in` to `n_out` in one tensor, as one matrix with the rows of all, one after the other.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`].
    pub fn stack(&mut self, name: &str, n_in: usize, n_out: usize, n: usize) -> Result<WeightId> {
        self.claim(name, &[n_in, n_out, n], WeightUse::MatMul)
    }

    /// One of the `n` matrices of a tensor, each of `n_in` to `n_out`.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`].
    pub fn of_stack(&mut self, name: &str, (n_in, n_out): (usize, usize), n: usize, at: usize) -> Result<WeightId> {
        let id = self.stack(name, n_in, n_out, n)?;
        if let Some(spec) = self.specs.get_mut(id.0 as usize) {
            (spec.first_row, spec.n_out) = (at * n_out, n_out);
        }
        Ok(id)
    }

    /// One of the `of` vectors of `n` that a tensor of any shape has, one after the other.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`].
    pub fn of_vectors(&mut self, name: &str, n: usize, of: usize, at: usize) -> Result<WeightId> {
        let id = self.numbers(name, n.saturating_mul(of))?;
        if let Some(spec) = self.specs.get_mut(id.0 as usize) {
            (spec.n_in, spec.first_row) = (n, at);
        }
        Ok(id)
    }

    /// A table whose rows of `n_in` are only looked up.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`].
    pub fn table(&mut self, name: &str, n_in: usize, n_out: usize) -> Result<WeightId> {
        self.claim(name, &[n_in, n_out], WeightUse::Rows)
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

    /// A matrix of `n_in` to `n_out` as one vector of all its numbers.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`].
    pub fn flat(&mut self, name: &str, n_in: usize, n_out: usize) -> Result<WeightId> {
        let id = self.claim(name, &[n_in, n_out], WeightUse::Vector)?;
        if let Some(spec) = self.specs.get_mut(id.0 as usize) {
            (spec.n_in, spec.n_out) = (n_in * n_out, 1);
        }
        Ok(id)
    }

    /// A tensor of any shape as one vector of all its numbers, `n` of them.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`].
    pub fn numbers(&mut self, name: &str, n: usize) -> Result<WeightId> {
        let shape = self.shape(name)?;
        let product = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let shape = if product == Some(n) { &shape[..] } else { &[n] };
        let id = self.claim(name, shape, WeightUse::Vector)?;
        if let Some(spec) = self.specs.get_mut(id.0 as usize) {
            (spec.n_in, spec.n_out) = (n, 1);
        }
        Ok(id)
    }

    /// A vector that the file may lack.
    ///
    /// # Errors
    /// As [`WeightTable::matrix`], but for a missing tensor.
    pub fn optional_vector(&mut self, name: &str, n: usize) -> Result<Option<WeightId>> {
        if self.has(name) { self.vector(name, n).map(Some) } else { Ok(None) }
    }

    /// Leaves out all tensors whose name begins so: the model does not need them.
    pub fn ignore(&mut self, prefix: &str) {
        let names = self.file.tensors().iter().map(|t| t.name.as_str());
        self.claimed.extend(names.filter(|name| name.starts_with(prefix)));
    }

    fn info(&self, name: &str) -> Result<&'a TensorInfo> {
        self.file.tensor(name).ok_or_else(|| Error::Model(format!("Tensor `{name}` is missing")))
    }

    fn claim(&mut self, name: &str, shape: &[usize], usage: WeightUse) -> Result<WeightId> {
        let info = self.info(name)?;
        let mut want = [1u64; 4];
        for (w, &n) in want.iter_mut().zip(shape) {
            *w = n as u64;
        }
        if info.shape != want {
            let have = &info.shape[..info.n_dims.max(1) as usize];
            return Err(Error::Model(format!("Tensor `{name}` has the shape {have:?}, {shape:?} is needed")));
        }
        let ty = info.tensor_type()?;
        self.claimed.insert(&info.name);
        let n_out = shape.iter().skip(1).product();
        self.specs.push(WeightSpec { name: name.to_string(), n_in: shape[0], n_out, first_row: 0, ty, usage });
        Ok(WeightId(self.specs.len() as u32 - 1))
    }

    /// The finished table.
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
