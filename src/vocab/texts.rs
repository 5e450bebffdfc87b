//! All token texts in one string, found by id and by text.
//!
//! Ids are given in order of insertion, so a vocabulary's tokens come first and keep their ids; whatever else the
//! tokenizer needs to name (parts of merges that are no tokens) follows after them.
//!
//! The index is a hash table with linear probing, whose entries identify short texts without reading the string. A
//! look-up has two halves, [`Texts::probe`] and [`Texts::resolve`]: loading a large vocabulary is bound by memory
//! latency, and the cache misses of many probes made before the first is resolved overlap.

use crate::{Result, reserve};
use hashbrown::DefaultHashBuilder;
use std::hash::BuildHasher;

/// An append-only list of distinct byte strings.
pub(super) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// A power of two of entries, at most half of them used.
    entries: Vec<Entry>,
    hasher: DefaultHashBuilder,
}

/// An entry of the index.
#[derive(Clone, Copy)]
struct Entry {
    /// The first [`HEAD`] bytes, padded with zeros.
    head: [u8; HEAD],
    /// Length of the text; [`FREE`] where there is none.
    len: u32,
    id: u32,
}

/// Look-ups that are best made together.
pub(super) const BLOCK: usize = 16;

const HEAD: usize = 8;
const FREE: u32 = u32::MAX;
const EMPTY: Entry = Entry { head: [0; HEAD], len: FREE, id: 0 };

/// A started look-up: the index of the first entry, and its content.
#[derive(Clone, Copy)]
pub(super) struct Probe {
    at: usize,
    entry: Entry,
}

/// The place of a text in a table of so many entries.
#[derive(Clone, Copy)]
pub(super) struct Place {
    at: usize,
    of: usize,
}

#[inline]
fn head(text: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let n = text.len().min(HEAD);
    head[..n].copy_from_slice(&text[..n]);
    head
}

/// What memory is for, in errors.
const ENTRIES: &str = "places for texts of the vocabulary";
const BYTES: &str = "bytes of the vocabulary's texts";

impl Default for Texts {
    fn default() -> Self {
        Texts { bytes: Vec::new(), ends: Vec::new(), entries: vec![EMPTY; 16], hasher: DefaultHashBuilder::default() }
    }
}

impl Texts {
    /// An empty list with room for `count` texts of `bytes` bytes.
    pub(super) fn with_capacity(count: usize, bytes: usize) -> Result<Self> {
        let entries = count.saturating_mul(2).checked_next_power_of_two().unwrap_or(usize::MAX).max(16);
        Ok(Texts {
            bytes: reserve::list(bytes, BYTES)?,
            ends: reserve::list(count, ENTRIES)?,
            entries: reserve::filled(EMPTY, entries, ENTRIES)?,
            hasher: DefaultHashBuilder::default(),
        })
    }

    /// Number of texts.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text with this id; empty for an id that was never given.
    #[inline]
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends.get(id - 1).copied().unwrap_or(0) };
        let end = self.ends.get(id).copied().unwrap_or(start);
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The id of a text.
    #[inline]
    pub(super) fn find(&self, wanted: &[u8]) -> Option<u32> {
        self.resolve(self.probe(wanted), wanted)
    }

    /// Begin to look a text up.
    #[inline]
    pub(super) fn probe(&self, wanted: &[u8]) -> Probe {
        let at = self.hasher.hash_one(wanted) as usize & (self.entries.len() - 1);
        Probe { at, entry: self.entries[at] }
    }

    /// The id of the text that `probe` was begun with; nothing may have been inserted in between.
    #[inline]
    pub(super) fn resolve(&self, probe: Probe, wanted: &[u8]) -> Option<u32> {
        self.locate(probe, wanted).ok()
    }

    /// The id of a text, or the entry where it belongs.
    #[inline]
    fn locate(&self, probe: Probe, wanted: &[u8]) -> std::result::Result<u32, usize> {
        let (head, len) = (head(wanted), wanted.len());
        let Probe { mut at, mut entry } = probe;
        loop {
            if entry.len == FREE {
                return Err(at);
            }
            if entry.head == head && entry.len as usize == len && (len <= HEAD || self.get(entry.id) == wanted) {
                return Ok(entry.id);
            }
            at = (at + 1) & (self.entries.len() - 1);
            entry = self.entries[at];
        }
    }

    /// The id of a text, which is appended if it has none yet. Texts in total must stay below 4 GiB.
    pub(super) fn find_or_insert(&mut self, wanted: &[u8]) -> Result<u32> {
        self.find_or_insert_at(self.place(wanted), wanted)
    }

    /// Where the look-up of a text begins, and the memory there on its way.
    #[inline]
    pub(super) fn place(&self, wanted: &[u8]) -> Place {
        let Probe { at, entry } = self.probe(wanted);
        // What is read is what fetches it; whether it is still so is seen when the place is used.
        std::hint::black_box(entry.len);
        Place { at, of: self.entries.len() }
    }

    /// As [`Texts::find_or_insert`], from the text's place on; others may have been inserted since.
    pub(super) fn find_or_insert_at(&mut self, place: Place, wanted: &[u8]) -> Result<u32> {
        if 2 * (self.len() + 1) > self.entries.len() {
            self.grow()?;
        }
        let at = if place.of == self.entries.len() { place.at } else { self.probe(wanted).at };
        match self.locate(Probe { at, entry: self.entries[at] }, wanted) {
            Ok(old) => Ok(old),
            Err(at) => {
                let id = self.len() as u32;
                reserve::push(&mut self.ends, self.bytes.len() as u32 + wanted.len() as u32, ENTRIES)?;
                if let Err(error) = reserve::extend(&mut self.bytes, wanted, BYTES) {
                    self.ends.pop();
                    return Err(error);
                }
                self.entries[at] = Entry { head: head(wanted), len: wanted.len() as u32, id };
                Ok(id)
            }
        }
    }

    fn grow(&mut self) -> Result<()> {
        let entries = reserve::filled(EMPTY, 2 * self.entries.len(), ENTRIES)?;
        let old = std::mem::replace(&mut self.entries, entries);
        for entry in old.into_iter().filter(|entry| entry.len != FREE) {
            let mut at = self.probe(self.get(entry.id)).at;
            while self.entries[at].len != FREE {
                at = (at + 1) & (self.entries.len() - 1);
            }
            self.entries[at] = entry;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_keep_their_ids() {
        let mut texts = Texts::default();
        let mut id = |text: &str| texts.find_or_insert(text.as_bytes()).unwrap();
        for i in 0..5000u32 {
            assert_eq!(id(&format!("t{i}")), i);
        }
        assert_eq!(id("t17"), 17);
        assert_eq!(id("a rather long text"), 5000);
        assert_eq!(id("a rather lone text"), 5001);
        assert_eq!(id("t17\0"), 5002, "a zero is no padding");
        assert_eq!(id(""), 5003);
        assert_eq!(texts.find(b"t4999"), Some(4999));
        assert_eq!(texts.find(b"t5000"), None);
        assert_eq!(texts.find(b"a rather long text"), Some(5000));
        assert_eq!(texts.find(b""), Some(5003));
        assert_eq!(texts.len(), 5004);
        assert_eq!(texts.get(42), b"t42");
        assert_eq!(texts.get(9999), b"");
    }
}
