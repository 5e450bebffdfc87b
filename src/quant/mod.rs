//! Tensor types of GGUF files: block layouts, dequantise, quantise.

mod types;

pub use types::TensorType;
