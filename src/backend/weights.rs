//! A model's weights on their way to a device.

use super::memory::{Bytes, Component};
use crate::gguf::{File, TensorInfo};
use crate::graph::{WeightId, WeightSpec, WeightUse};
use crate::quant::dequantize;
use crate::{Result, reserve};
use std::any::Any;
use std::sync::Arc;

/// Called with the fraction of a load that is done, 0 to 1; returns false to cancel it.
pub type LoadProgress<'a> = Option<&'a mut (dyn FnMut(f32) -> bool + Send)>;

/// A model's weights in a backend's layout; only that backend can look inside.
#[derive(Clone)]
pub struct Weights(pub Arc<dyn Any + Send + Sync>);

/// What a device needs of a model's weights.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wanted {
    /// How each weight of the table is used on this device, one entry per weight; `None` is not loaded.
    pub uses: Vec<Option<WeightUse>>,
    /// The component that each weight's memory is counted to, one entry per weight.
    pub components: Vec<Component>,
    /// Matrices without biases that one node multiplies with one input, in the order of their outputs.
    pub together: Vec<Vec<WeightId>>,
}

/// Memory of a model's weights on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WeightBytes {
    /// What is allocated.
    pub allocated: Bytes,
    /// Bytes of the file that rows are read from while decoding: pages that the system keeps cached as long as it has
    /// room.
    pub file_backed: u64,
}

/// The numbers of a vector of the file.
pub(super) fn vector(file: &File, spec: &WeightSpec, info: &TensorInfo) -> Result<Vec<f32>> {
    const VALUES: &str = "values of a vector";
    let mut values = reserve::filled(0.0, spec.n_in, VALUES)?;
    let mut bytes = reserve::filled(0, spec.bytes() as usize, VALUES)?;
    file.read_at(info, (spec.first_row * bytes.len()) as u64, &mut bytes)?;
    dequantize(spec.ty, &bytes, &mut values)?;
    Ok(values)
}
