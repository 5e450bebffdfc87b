//! The cells of the KV cache: which are free, the position and sequences of the others, and in which order each slot's
//! cells are read.
//!
//! Cells belong to blocks of [`LIST_BLOCK`]. A slot has a list of blocks; *place* `p` of the slot is cell `p mod 16` of
//! the block at `p / 16` in its list, wherever that block is. Attention reads a slot's blocks in the order of its list,
//! so what a row computes depends on the slot alone, not on the cells that other slots took before.
//!
//! Slots with the same beginning list the same blocks; a block is free when no slot lists it. The lowest free block is
//! taken first, so that a single slot fills the cells in their order.

use crate::backend::{LIST_BLOCK, TableCells};
use crate::{Result, reserve};

/// Attention over this many cells takes no longer than over fewer.
const SMALL: usize = 256;

/// What memory is reserved for, in errors.
const CELLS: &str = "cells";

/// The number of blocks that hold so many places.
pub(super) fn blocks_for(places: usize) -> usize {
    places.div_ceil(LIST_BLOCK)
}

/// Position and sequences of every cell, and the blocks of every slot.
pub(super) struct Cells {
    positions: Vec<i32>,
    sequences: Vec<u32>,
    limit: usize,
    used: usize,
    /// By slot: its blocks in the order of its places.
    lists: Vec<Vec<u32>>,
    /// By block: the slots that list it, a bit each.
    listed_by: Vec<u32>,
    free_blocks: usize,
    /// No block below this is free.
    first_free: usize,
    /// One past the last block that is listed.
    end: usize,
    /// Cells that changed since [`Cells::commit`].
    changed: (usize, usize),
}

impl Cells {
    /// A cache of `cells` cells, whole blocks, of which `limit` may be in use, for so many slots.
    pub fn new(slots: usize, cells: usize, limit: usize) -> Result<Cells> {
        let blocks = cells / LIST_BLOCK;
        let list = |_| reserve::list(blocks, CELLS);
        Ok(Cells {
            positions: reserve::filled(0, cells, CELLS)?,
            sequences: reserve::filled(0, cells, CELLS)?,
            limit,
            used: 0,
            lists: (0..slots).map(list).collect::<Result<_>>()?,
            listed_by: reserve::filled(0, blocks, CELLS)?,
            free_blocks: blocks,
            first_free: 0,
            end: 0,
            changed: (0, cells),
        })
    }

    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// One bit per sequence; 0 marks a free cell.
    pub fn sequences(&self) -> &[u32] {
        &self.sequences
    }

    /// The cells, and those of a batch's rows.
    pub fn table<'a>(&'a self, rows: &'a [u32]) -> TableCells<'a> {
        let Cells { positions, sequences, lists, end, changed, .. } = self;
        TableCells { rows, positions, sequences, lists, end: end * LIST_BLOCK, changed: *changed }
    }

    /// Note that every device has the cells as they are now.
    pub fn commit(&mut self) {
        self.changed = (0, 0);
    }

    fn change(&mut self, cell: usize) {
        let (first, end) = self.changed;
        self.changed = if first == end { (cell, cell + 1) } else { (first.min(cell), end.max(cell + 1)) };
    }

    /// How many more places from `place` on the slot can take.
    pub fn room(&self, slot: usize, place: usize) -> usize {
        let places = (self.lists[slot].len() + self.free_blocks) * LIST_BLOCK;
        (self.limit - self.used).min(places.saturating_sub(place))
    }

    /// Takes the cell at a place of the slot; its list grows as far. `None` where no cell is left, or another slot has
    /// this one.
    pub fn enter(&mut self, slot: usize, place: usize, position: i32, sequences: u32) -> Option<u32> {
        if self.used == self.limit {
            return None;
        }
        let at = place / LIST_BLOCK;
        while self.lists[slot].len() <= at {
            let block = self.take_block(slot)?;
            self.lists[slot].push(block);
        }
        let cell = self.lists[slot][at] as usize * LIST_BLOCK + place % LIST_BLOCK;
        if self.sequences[cell] != 0 {
            return None;
        }
        self.positions[cell] = position;
        self.sequences[cell] = sequences;
        self.used += 1;
        self.change(cell);
        Some(cell as u32)
    }

    fn take_block(&mut self, slot: usize) -> Option<u32> {
        let block = self.first_free + self.listed_by[self.first_free..].iter().position(|&by| by == 0)?;
        self.listed_by[block] = 1 << slot;
        self.free_blocks -= 1;
        self.first_free = block + 1;
        self.end = self.end.max(block + 1);
        Some(block as u32)
    }

    fn leave_block(&mut self, slot: usize, block: u32) {
        let block = block as usize;
        self.listed_by[block] &= !(1 << slot);
        if self.listed_by[block] == 0 {
            self.free_blocks += 1;
            self.first_free = self.first_free.min(block);
            while self.end > 0 && self.listed_by[self.end - 1] == 0 {
                self.end -= 1;
            }
        }
    }

    /// The place of one of the slot's cells.
    pub fn place_of(&self, slot: usize, cell: u32) -> Option<usize> {
        let (block, inside) = (cell / LIST_BLOCK as u32, cell as usize % LIST_BLOCK);
        let at = self.lists[slot].iter().rposition(|&listed| listed == block)?;
        Some(at * LIST_BLOCK + inside)
    }

    /// Cuts the slot's list to the blocks of its first `places` places.
    pub fn trim(&mut self, slot: usize, places: usize) {
        while self.lists[slot].len() > blocks_for(places)
            && let Some(block) = self.lists[slot].pop()
        {
            self.leave_block(slot, block);
        }
    }

    /// Lists the blocks of the first `places` places of a slot for another one, which has none.
    pub fn list_for(&mut self, from: usize, to: usize, places: usize) {
        for at in 0..blocks_for(places) {
            let block = self.lists[from][at];
            self.lists[to].push(block);
            self.listed_by[block as usize] |= 1 << to;
        }
    }

    /// Takes the blocks off the slot's list that hold none of these cells, which are in the order of their places.
    pub fn keep_blocks_of(&mut self, slot: usize, cells: &[u32]) {
        let mut kept = cells.chunk_by(|a, b| a / LIST_BLOCK as u32 == b / LIST_BLOCK as u32);
        let mut next = kept.next();
        let mut list = std::mem::take(&mut self.lists[slot]);
        list.retain(|&block| {
            let holds = next.is_some_and(|cells| cells[0] / LIST_BLOCK as u32 == block);
            match holds {
                true => next = kept.next(),
                false => self.leave_block(slot, block),
            }
            holds
        });
        self.lists[slot] = list;
    }

    /// Whether another slot has a cell at the slot's places from `place` to the end of its block, or one of the set
    /// `busy`, a bit each, lists the block.
    pub fn is_taken(&self, slot: usize, place: usize, busy: u32) -> bool {
        let Some(&block) = self.lists[slot].get(place / LIST_BLOCK) else { return false };
        let first = block as usize * LIST_BLOCK;
        let shared = self.listed_by[block as usize] & busy & !(1 << slot) != 0;
        shared || self.sequences[first + place % LIST_BLOCK..first + LIST_BLOCK].iter().any(|&by| by != 0)
    }

    /// Gives the slot, in place of the block of place `places - 1`, one of its own with the cells up to there, as moves
    /// of cells (from, to) that have to be made. `None`, and nothing has changed, where there is no room.
    pub fn split(&mut self, slot: usize, places: usize, moves: &mut Vec<(u32, u32)>) -> Option<()> {
        moves.clear();
        let (at, n) = ((places - 1) / LIST_BLOCK, (places - 1) % LIST_BLOCK + 1);
        if self.used + n > self.limit {
            return None;
        }
        let (before, block) = (self.lists[slot][at], self.take_block(slot)?);
        self.lists[slot][at] = block;
        for i in 0..n as u32 {
            let (from, to) = (before * LIST_BLOCK as u32 + i, block * LIST_BLOCK as u32 + i);
            if self.sequences[from as usize] & 1 << slot == 0 {
                continue;
            }
            self.positions[to as usize] = self.positions[from as usize];
            self.sequences[to as usize] = 1 << slot;
            self.used += 1;
            self.change(to as usize);
            self.release(from, 1 << slot);
            moves.push((from, to));
        }
        self.leave_block(slot, before);
        Some(())
    }

    /// Whether a device that reads all cells in their order reads many more than are in use.
    pub fn is_scattered(&self) -> bool {
        self.end * LIST_BLOCK > 2 * self.used.max(SMALL)
    }

    /// The first moves of a defragmentation, as blocks (from, to), at most so many: the last blocks in use go to the
    /// lowest free ones.
    pub fn gathering(&self, most: usize) -> Vec<(u32, u32)> {
        let used = self.listed_by.len() - self.free_blocks;
        let from = (used..self.end).rev().filter(|&block| self.listed_by[block] != 0);
        let to = (0..used).filter(|&block| self.listed_by[block] == 0);
        from.zip(to).take(most).map(|(from, to)| (from as u32, to as u32)).collect()
    }

    /// The cells in use of a block.
    pub fn in_block(&self, block: u32) -> impl Iterator<Item = u32> + '_ {
        let first = block * LIST_BLOCK as u32;
        (first..first + LIST_BLOCK as u32).filter(|&cell| self.sequences[cell as usize] != 0)
    }

    /// Notes that a block's content was copied to a free block, which replaces it; returns the slots that list it.
    pub fn moved(&mut self, from: u32, to: u32) -> u32 {
        for i in 0..LIST_BLOCK {
            let (from, to) = (from as usize * LIST_BLOCK + i, to as usize * LIST_BLOCK + i);
            self.positions[to] = self.positions[from];
            self.sequences[to] = std::mem::take(&mut self.sequences[from]);
            self.change(to);
            self.change(from);
        }
        for list in &mut self.lists {
            list.iter_mut().filter(|block| **block == from).for_each(|block| *block = to);
        }
        self.listed_by.swap(from as usize, to as usize);
        while self.end > 0 && self.listed_by[self.end - 1] == 0 {
            self.end -= 1;
        }
        self.first_free = self.listed_by.iter().position(|&by| by == 0).unwrap_or(self.listed_by.len());
        self.listed_by[to as usize]
    }

    /// Change the position of a cell.
    pub fn place(&mut self, cell: u32, position: i32) {
        self.positions[cell as usize] = position;
        self.change(cell as usize);
    }

    /// Gives a cell to more sequences.
    pub fn share(&mut self, cell: u32, sequences: u32) {
        self.sequences[cell as usize] |= sequences;
        self.change(cell as usize);
    }

    /// Takes a cell from these sequences; it is free where no other has it.
    pub fn release(&mut self, cell: u32, sequences: u32) {
        match self.sequences[cell as usize] & !sequences {
            0 => self.free(cell),
            others => {
                self.sequences[cell as usize] = others;
                self.change(cell as usize);
            }
        }
    }

    pub fn free(&mut self, cell: u32) {
        self.sequences[cell as usize] = 0;
        self.change(cell as usize);
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot's cells at these places.
    fn enter(cells: &mut Cells, slot: usize, places: std::ops::Range<usize>) -> Vec<u32> {
        places.map(|place| cells.enter(slot, place, place as i32, 1 << slot).unwrap()).collect()
    }

    #[test]
    fn slots_fill_blocks_of_their_own_and_the_end_follows() {
        let mut cells = Cells::new(3, 64, 40).unwrap();
        assert_eq!(enter(&mut cells, 0, 0..17), (0..17).collect::<Vec<_>>());
        assert_eq!(enter(&mut cells, 1, 0..2), [32, 33]);
        assert_eq!(enter(&mut cells, 0, 17..19), [17, 18], "its block has room");
        assert_eq!((cells.room(0, 19), cells.room(2, 0), cells.table(&[]).end), (19, 16, 48));
        assert_eq!(cells.enter(0, 18, 18, 1), None, "taken");
        (16..19).for_each(|cell| cells.free(cell));
        cells.trim(0, 16);
        assert_eq!((cells.room(2, 0), cells.table(&[]).end), (22, 48));
        assert_eq!(enter(&mut cells, 2, 0..1), [16], "the lowest free block");
        assert_eq!(cells.place_of(1, 33), Some(1));
        assert_eq!(enter(&mut cells, 0, 16..18), [48, 49]);
        assert_eq!(cells.table(&[]).lists, [vec![0, 3], vec![2], vec![1]]);
    }

    #[test]
    fn no_more_cells_than_the_limit() {
        let mut cells = Cells::new(1, 32, 5).unwrap();
        enter(&mut cells, 0, 0..5);
        assert_eq!((cells.enter(0, 5, 5, 1), cells.room(0, 5)), (None, 0));
        cells.free(4);
        assert_eq!((cells.room(0, 4), cells.enter(0, 4, 4, 1)), (1, Some(4)));
    }

    #[test]
    fn a_shared_block_is_split_where_both_slots_go_on() {
        let mut cells = Cells::new(2, 96, 96).unwrap();
        let first = enter(&mut cells, 0, 0..20);
        cells.list_for(0, 1, 20);
        first.iter().for_each(|&cell| cells.share(cell, 2));
        assert!(!cells.is_taken(1, 20, 2), "nobody has gone on yet");
        assert!(cells.is_taken(1, 20, 3) && !cells.is_taken(1, 32, 3), "both go on");
        enter(&mut cells, 0, 20..21);
        assert!(cells.is_taken(1, 20, 0));
        let mut moves = Vec::new();
        cells.split(1, 20, &mut moves).unwrap();
        assert_eq!(moves, [(16, 32), (17, 33), (18, 34), (19, 35)]);
        assert_eq!((cells.sequences()[19], cells.sequences()[35], cells.sequences()[3]), (1, 2, 3));
        assert_eq!(enter(&mut cells, 1, 20..21), [36]);
        assert_eq!(cells.table(&[]).lists, [vec![0, 1], vec![0, 2]]);
        first[..16].iter().for_each(|&cell| cells.release(cell, 1));
        (16..21).for_each(|cell| cells.free(cell));
        cells.trim(0, 0);
        assert_eq!((cells.used, cells.free_blocks, cells.room(0, 0)), (21, 4, 64), "the other slot keeps its own");
    }

    #[test]
    fn gathering_moves_the_last_blocks_into_the_holes() {
        let mut cells = Cells::new(3, 96, 96).unwrap();
        enter(&mut cells, 0, 0..32).into_iter().for_each(|cell| cells.free(cell));
        enter(&mut cells, 1, 0..17);
        enter(&mut cells, 2, 0..3);
        cells.trim(0, 0);
        assert_eq!(cells.gathering(9), [(4, 0), (3, 1)]);
        assert_eq!(cells.in_block(3).collect::<Vec<_>>(), [48]);
        assert_eq!((cells.moved(4, 0), cells.moved(3, 1)), (4, 2));
        assert_eq!(cells.table(&[]).lists, [vec![], vec![2, 1], vec![0]]);
        assert_eq!((cells.table(&[]).end, cells.gathering(9), cells.sequences()[16]), (48, vec![], 2));
        assert_eq!(enter(&mut cells, 0, 0..1), [48]);
    }

    #[test]
    fn blocks_without_cells_leave_the_list() {
        let mut cells = Cells::new(1, 96, 96).unwrap();
        let all = enter(&mut cells, 0, 0..70);
        all[10..50].iter().for_each(|&cell| cells.free(cell));
        cells.keep_blocks_of(0, &[&all[..10], &all[50..]].concat());
        assert_eq!(cells.table(&[]).lists, [vec![0, 3, 4]]);
        assert_eq!((cells.place_of(0, all[69]), cells.free_blocks), (Some(37), 3));
    }
}
