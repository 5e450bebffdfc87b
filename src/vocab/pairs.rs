//! The merges of a BPE vocabulary: which pairs of texts join, in what rank, to what.

use super::texts::BLOCK;
use crate::{Result, reserve};
use hashbrown::DefaultHashBuilder;
use std::hash::BuildHasher;

/// A map from pairs of ids, made once: a hash table with linear probing, four entries in a cache line.
pub(super) struct Pairs {
    /// A power of two of entries, at most half of them used.
    entries: Vec<Entry>,
    hasher: DefaultHashBuilder,
}

#[derive(Clone, Copy)]
struct Entry {
    left: u32,
    right: u32,
    rank: u32,
    joined: u32,
}

/// The rank of an entry that is not used.
const FREE: u32 = u32::MAX;

impl Pairs {
    /// From `(left, right, joined)` by rank. Of equal pairs the first counts.
    pub(super) fn new(merges: &[(u32, u32, u32)]) -> Result<Self> {
        let free = Entry { left: 0, right: 0, rank: FREE, joined: 0 };
        let entries = reserve::filled(free, (2 * merges.len()).next_power_of_two().max(16), "places for merges")?;
        let mut pairs = Pairs { entries, hasher: DefaultHashBuilder::default() };
        for (block, merges) in merges.chunks(BLOCK).enumerate() {
            // Begin all look-ups of a block before the first one is needed: what is read is what fetches it.
            let starts: [usize; BLOCK] = std::array::from_fn(|i| {
                let (left, right, _) = merges.get(i).copied().unwrap_or_default();
                let start = pairs.start(left, right);
                std::hint::black_box(pairs.entries[start].rank);
                start
            });
            for (i, (&(left, right, joined), mut at)) in merges.iter().zip(starts).enumerate() {
                let rank = (block * BLOCK + i) as u32;
                loop {
                    let entry = &mut pairs.entries[at];
                    if entry.rank == FREE {
                        *entry = Entry { left, right, rank, joined };
                        break;
                    }
                    if (entry.left, entry.right) == (left, right) {
                        break;
                    }
                    at = (at + 1) & (pairs.entries.len() - 1);
                }
            }
        }
        Ok(pairs)
    }

    #[inline]
    fn start(&self, left: u32, right: u32) -> usize {
        self.hasher.hash_one(u64::from(left) << 32 | u64::from(right)) as usize & (self.entries.len() - 1)
    }

    /// Rank and result of joining two texts.
    #[inline]
    pub(super) fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let mut at = self.start(left, right);
        loop {
            let entry = &self.entries[at];
            if entry.rank == FREE {
                return None;
            }
            if (entry.left, entry.right) == (left, right) {
                return Some((entry.rank, entry.joined));
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found() {
        let merges: Vec<(u32, u32, u32)> = (0..3000).map(|i| (i % 50, i / 50, i)).chain([(7, 3, 9999)]).collect();
        let pairs = Pairs::new(&merges).unwrap();
        for (rank, &(left, right, joined)) in merges[..3000].iter().enumerate() {
            assert_eq!(pairs.get(left, right), Some((rank as u32, joined)));
        }
        assert_eq!(pairs.get(50, 0), None);
        assert_eq!(pairs.get(u32::MAX, u32::MAX), None);
    }
}
