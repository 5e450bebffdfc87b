//! The cells of the KV cache: which are free, and the position and sequences of the others.
//!
//! The lowest free cell is taken first, so that a single sequence fills them in order and attention reads a dense
//! range.

use crate::backend::TableCells;
use crate::{Result, reserve};

/// Attention over this many cells takes no longer than over fewer.
const SMALL: usize = 256;

/// Position and sequences of every cell.
pub(super) struct Cells {
    positions: Vec<i32>,
    sequences: Vec<u32>,
    limit: usize,
    used: usize,
    /// No cell below this is free.
    first_free: usize,
    /// One past the last cell in use.
    end: usize,
    /// Cells that changed since [`Cells::commit`].
    changed: (usize, usize),
}

impl Cells {
    /// A cache of `cells` cells, of which `limit` may be in use.
    pub fn new(cells: usize, limit: usize) -> Result<Cells> {
        let (positions, sequences) = (reserve::filled(0, cells, "cells")?, reserve::filled(0, cells, "cells")?);
        Ok(Cells { positions, sequences, limit, used: 0, first_free: 0, end: 0, changed: (0, cells) })
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
        let Cells { positions, sequences, end, changed, .. } = self;
        TableCells { rows, positions, sequences, end: *end, changed: *changed }
    }

    /// Note that every device has the cells as they are now.
    pub fn commit(&mut self) {
        self.changed = (0, 0);
    }

    fn change(&mut self, cell: usize) {
        let (first, end) = self.changed;
        self.changed = if first == end { (cell, cell + 1) } else { (first.min(cell), end.max(cell + 1)) };
    }

    pub fn n_free(&self) -> usize {
        self.limit - self.used
    }

    /// Take the lowest free cell; `None` when all are in use.
    pub fn take(&mut self, position: i32, sequences: u32) -> Option<u32> {
        if self.used == self.limit {
            return None;
        }
        let cell = self.first_free + self.sequences[self.first_free..].iter().position(|&s| s == 0)?;
        self.positions[cell] = position;
        self.sequences[cell] = sequences;
        self.used += 1;
        self.first_free = cell + 1;
        self.end = self.end.max(cell + 1);
        self.change(cell);
        Some(cell as u32)
    }

    /// Whether attention reads many more cells than are in use.
    pub fn is_scattered(&self) -> bool {
        self.end > 2 * self.used.max(SMALL)
    }

    /// The first `most` moves of a defragmentation, as (from, to): the last cells in use go to the lowest free ones.
    pub fn gathering(&self, most: usize, moves: &mut Vec<(u32, u32)>) {
        moves.clear();
        let from = (self.used..self.end).rev().filter(|&cell| self.sequences[cell] != 0);
        let to = (0..self.used).filter(|&cell| self.sequences[cell] == 0);
        moves.extend(from.zip(to).take(most).map(|(from, to)| (from as u32, to as u32)));
    }

    /// Note that a cell's content was copied to a free cell, which replaces it.
    pub fn moved(&mut self, from: u32, to: u32) {
        self.positions[to as usize] = self.positions[from as usize];
        self.sequences[to as usize] = std::mem::take(&mut self.sequences[from as usize]);
        self.change(to as usize);
        self.change(from as usize);
        while self.end > 0 && self.sequences[self.end - 1] == 0 {
            self.end -= 1;
        }
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
        let cell = cell as usize;
        self.sequences[cell] = 0;
        self.change(cell);
        self.used -= 1;
        self.first_free = self.first_free.min(cell);
        while self.end > 0 && self.sequences[self.end - 1] == 0 {
            self.end -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathering_fills_the_holes_from_the_end() {
        let mut cells = Cells::new(16, 16).unwrap();
        (0..9).for_each(|p| assert_eq!(cells.take(p, 1 << (p % 2)), Some(p as u32)));
        [0, 2, 3, 6].into_iter().for_each(|cell| cells.free(cell));
        let mut moves = Vec::new();
        cells.gathering(1, &mut moves);
        assert_eq!(moves, [(8, 0)]);
        cells.gathering(9, &mut moves);
        assert_eq!(moves, [(8, 0), (7, 2), (5, 3)]);
        moves.iter().for_each(|&(from, to)| cells.moved(from, to));
        assert_eq!(
            (cells.end, &cells.positions()[..5], &cells.sequences()[..6]),
            (5, &[8, 1, 7, 5, 4][..], &[1, 2, 2, 2, 1, 0][..])
        );
        assert_eq!((cells.n_free(), cells.take(9, 1)), (11, Some(5)));
        cells.gathering(9, &mut moves);
        assert_eq!(moves, []);
    }

    #[test]
    fn lowest_cell_first_and_the_end_follows() {
        let mut cells = Cells::new(16, 5).unwrap();
        let taken: Vec<_> = (0..5).map(|p| cells.take(p, 1)).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!((cells.take(5, 1), cells.n_free(), cells.end), (None, 0, 5));
        cells.free(1);
        cells.free(4);
        cells.free(3);
        assert_eq!((cells.n_free(), cells.end), (3, 3));
        assert_eq!(cells.take(9, 2), Some(1));
        assert_eq!((cells.positions()[1], cells.sequences()[1]), (9, 2));
        assert_eq!(cells.take(10, 2), Some(3));
    }
}
