//! The masks of bits on the device: a table of slots, so that a step under a mask that was seen before names its slot
//! and nothing else is sent.
//!
//! Invariants: a slot with a number has the bits of the mask of that number; a slot that a sequence is armed with goes
//! to no other mask. There are more slots than sequences, so one is always free.

use crate::Token;

/// Slots besides one for each sequence.
const KEPT: usize = 64;

/// Which mask is in which slot.
pub(super) struct MaskTable {
    slots: Vec<Slot>,
    /// Rises with each use.
    clock: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    /// `None` where what is in it cannot be named again.
    number: Option<u64>,
    head: MaskHead,
    used: u64,
}

/// What a sequence's head says of a mask.
#[derive(Clone, Copy, Default)]
pub(super) struct MaskHead {
    pub(super) first: Token,
    pub(super) count: u32,
}

impl MaskTable {
    /// Slots of a program for so many sequences.
    pub(super) fn slots(sequences: usize) -> usize {
        sequences + KEPT
    }

    pub(super) fn new(sequences: usize) -> MaskTable {
        let empty = Slot { number: None, head: MaskHead::default(), used: 0 };
        MaskTable { slots: vec![empty; Self::slots(sequences)], clock: 0 }
    }

    /// The slot of the mask of this number.
    pub(super) fn find(&mut self, number: u64) -> Option<(usize, MaskHead)> {
        let slot = self.slots.iter().position(|slot| slot.number == Some(number))?;
        self.clock += 1;
        self.slots[slot].used = self.clock;
        Some((slot, self.slots[slot].head))
    }

    /// A slot for another mask: one without number, else the one that was not used for the longest time. No sequence
    /// may be armed with it.
    pub(super) fn take(&mut self, number: Option<u64>, head: MaskHead, in_use: impl Fn(usize) -> bool) -> usize {
        let free = self.slots.iter().enumerate().filter(|(slot, _)| !in_use(*slot));
        let oldest = free.min_by_key(|(_, slot)| (slot.number.is_some(), slot.used));
        let slot = oldest.map_or(0, |(slot, _)| slot);
        self.clock += 1;
        self.slots[slot] = Slot { number, head, used: self.clock };
        slot
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_mask_unused_for_longest_goes() {
        let head = |first| MaskHead { first, count: 1 };
        let mut table = MaskTable::new(2);
        let slots: Vec<_> = (0..66).map(|i| table.take(Some(i), head(i as Token), |_| false)).collect();
        assert_eq!(table.find(0).map(|(slot, head)| (slot, head.first)), Some((slots[0], 0)));
        assert_eq!(table.take(Some(66), head(66), |slot| slot == slots[1]), slots[2]);
        assert!(table.find(2).is_none() && table.find(1).is_some() && table.find(66).is_some());
        let unnamed = table.take(None, head(5), |_| false);
        assert_eq!(table.take(Some(67), head(67), |_| false), unnamed);
    }
}
