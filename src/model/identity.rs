//! A hash that identifies a model, whatever its path.
//!
//! The hash covers the file's header (all metadata with the vocabulary, every tensor's name, shape, type and place),
//! the file's size, and of each tensor three pages: the first, the one in the middle, the last. Hashing everything
//! would read the whole file again, which takes seconds on a phone, as long as the prompt whose evaluation it saves.
//! Training changes numbers everywhere in a tensor, so pages of every tensor show it. Two files that differ only
//! elsewhere have the same hash.

use crate::Result;
use crate::gguf::File;
use sha2::{Digest, Sha256};

const PAGE: usize = 4096;

/// The hash of this file's model.
///
/// # Errors
/// [`crate::Error::Io`] where the file cannot be read, or was changed since it was opened.
pub(super) fn identity(file: &File) -> Result<[u8; 32]> {
    let mut hash = Sha256::new();
    hash.update(file.size().to_le_bytes());
    file.read_header(|piece| hash.update(piece))?;
    let mut pages = [0; 3 * PAGE];
    for info in file.tensors() {
        let read = if info.bytes <= pages.len() as u64 {
            let all = &mut pages[..info.bytes as usize];
            file.read_at(info, 0, all)?;
            all
        } else {
            let last = info.bytes - PAGE as u64;
            for (page, at) in pages.chunks_exact_mut(PAGE).zip([0, last / 2, last]) {
                file.read_at(info, at, page)?;
            }
            &mut pages[..]
        };
        hash.update(read);
    }
    Ok(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::gguf::Writer;
    use crate::quant::TensorType;

    fn file(name: &str, change: Option<usize>) -> [u8; 32] {
        let mut writer = Writer::new(3);
        writer.set("general.name", name);
        let mut data: Vec<u8> = (0..40_960u32).map(|i| (i % 251) as u8).collect();
        change.into_iter().for_each(|at| data[at] ^= 1);
        writer.tensor("a", &[10_240], TensorType::F32, data);
        identity(&File::from_bytes(writer.to_bytes().unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn header_and_pages_count() {
        let first = file("one", None);
        assert_eq!(first, file("one", None));
        assert_ne!(first, file("two", None), "metadata");
        for at in [0, 4095, 20_000, 36_864, 40_959] {
            assert_ne!(first, file("one", Some(at)), "byte {at}");
        }
    }
}
