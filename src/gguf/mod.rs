//! GGUF files, versions 2 and 3: read (memory-mapped, every byte validated before use) and write.
//!
//! Invariants a reader may rely on once [`File::open`] returned: every tensor's data lies inside the file, tensor
//! names are unique, sizes were computed with checked arithmetic, and every string is UTF-8. Nothing is ever
//! reserved from a count that was not first checked against the bytes left.

mod read;
mod value;

pub use read::{File, TensorInfo};
pub use value::{Array, FromValue, Value, ValueType};
