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
    index: HashTable<Slot>,
    hasher: DefaultHashBuilder,
}

/// What the index knows of a text. Short texts, most of those looked up, are told by this alone.
struct Slot {
    /// The first [`HEAD`] bytes, zeros behind a shorter text.
    head: [u8; HEAD],
    len: u32,
    id: u32,
}

const HEAD: usize = 8;

#[inline]
fn head(text: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let n = text.len().min(HEAD);
    head[..n].copy_from_slice(&text[..n]);
    head
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
        let (head, len) = (head(wanted), wanted.len());
        let is_it =
            |slot: &Slot| slot.head == head && slot.len as usize == len && (len <= HEAD || self.get(slot.id) == wanted);
        self.index.find(self.hasher.hash_one(wanted), is_it).map(|slot| slot.id)
    }

    /// Append a text, or give the id it already has as the error. Texts in total must stay below 4 GiB.
    pub(super) fn insert(&mut self, new: &[u8]) -> Result<u32, u32> {
        if let Some(old) = self.find(new) {
            return Err(old);
        }
        let Texts { bytes, ends, index, hasher } = self;
        let id = ends.len() as u32;
        let slot = Slot { head: head(new), len: new.len() as u32, id };
        index.insert_unique(hasher.hash_one(new), slot, |slot| hasher.hash_one(text(bytes, ends, slot.id)));
        bytes.extend_from_slice(new);
        ends.push(bytes.len() as u32);
        Ok(id)
    }

    /// The id of a text, which is appended if it has none yet.
    pub(super) fn find_or_insert(&mut self, wanted: &[u8]) -> u32 {
        self.insert(wanted).unwrap_or_else(|old| old)
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

        assert_eq!(texts.find(b"t4999"), Some(4999));
        assert_eq!(texts.find(b"t5000"), None);
        assert_eq!(texts.insert(b"a rather long text"), Ok(5000));
        assert_eq!(texts.insert(b"a rather lone text"), Ok(5001));
        assert_eq!(texts.find(b"a rather long text"), Some(5000));
        assert_eq!(texts.insert(b"t17\0"), Ok(5002), "a zero is no padding");
        assert_eq!(texts.get(42), b"t42");
        assert_eq!(texts.get(9999), b"");
    }
}
