//! All token texts in one string, found by id and by text.
//!
//! Ids are given in order of insertion, so a vocabulary's tokens come first and keep their ids; whatever else the
//! tokenizer needs to name (parts of merges that are no tokens) follows behind them.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// An append-only list of distinct byte strings.
#[derive(Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Texts {
    /// An empty list with room for `count` texts.
    pub(super) fn with_capacity(count: usize) -> Self {
        Texts {
            bytes: Vec::with_capacity(count * 8),
            ends: Vec::with_capacity(count),
            index: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Number of texts.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text with this id; empty for an id that was never given.
    #[inline]
    pub(super) fn get(&self, id: u32) -> &[u8] {
        text(&self.bytes, &self.ends, id)
    }

    /// The id of a text.
    #[inline]
    pub(super) fn find(&self, wanted: &[u8]) -> Option<u32> {
        self.index.find(self.hasher.hash_one(wanted), |&id| self.get(id) == wanted).copied()
    }

    /// Append a text, or give the id it already has as the error. Texts in total must stay below 4 GiB.
    pub(super) fn insert(&mut self, new: &[u8]) -> Result<u32, u32> {
        let Texts { bytes, ends, index, hasher } = self;
        let entry = index.entry(
            hasher.hash_one(new),
            |&id| text(bytes, ends, id) == new,
            |&id| hasher.hash_one(text(bytes, ends, id)),
        );
        match entry {
            hashbrown::hash_table::Entry::Occupied(old) => Err(*old.get()),
            hashbrown::hash_table::Entry::Vacant(slot) => {
                let id = ends.len() as u32;
                slot.insert(id);
                bytes.extend_from_slice(new);
                ends.push(bytes.len() as u32);
                Ok(id)
            }
        }
    }
}

#[inline]
fn text<'a>(bytes: &'a [u8], ends: &[u32], id: u32) -> &'a [u8] {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends.get(id - 1).copied().unwrap_or(0) };
    let end = ends.get(id).copied().unwrap_or(start);
    bytes.get(start as usize..end as usize).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_keep_their_ids() {
        let mut texts = Texts::default();
        for i in 0..5000u32 {
            assert_eq!(texts.insert(format!("t{i}").as_bytes()), Ok(i));
        }
        assert_eq!(texts.insert(b"t17"), Err(17));
        assert_eq!(texts.len(), 5000);
        assert_eq!(texts.find(b"t4999"), Some(4999));
        assert_eq!(texts.find(b"t5000"), None);
        assert_eq!(texts.get(42), b"t42");
        assert_eq!(texts.get(9999), b"");
    }
}
