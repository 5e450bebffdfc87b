//! GGUF files, versions 2 and 3: read (every byte of the header validated, tensors read when they are asked for), also
//! models in several files, and write.
//!
//! Invariants a reader may rely on once [`File::open`] returned: every tensor's data is inside its file, tensor names
//! are unique, sizes were computed with checked arithmetic, and every string is UTF-8. No memory is reserved by a count
//! that was not first checked against the bytes left.
//!
//! The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod json;
mod read;
mod source;
mod split;
mod value;
mod write;

pub use read::{File, Part, TensorInfo};
pub(crate) use source::open_regular;
pub use split::is_of_part;
pub(crate) use split::others;
pub use value::{Array, FromValue, Value, ValueType};
pub use write::{Fill, WriteValue, Writer};

const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_TENSOR_NAME: usize = 63;

/// A name or a text from a file for a message: control characters escaped, cut after 80 characters. Every message that
/// quotes a file uses this.
pub(crate) fn shown(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars().take(80) {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    if name.chars().nth(80).is_some() {
        out.push('…');
    }
    out
}
