//! Tree attention: which rows of a batch see which cells when the batch holds a tree of continuations.
//!
//! The words of [`Batch::sequences`](super::Batch) and [`Batch::cell_sequences`](super::Batch) are sets of sequences, a
//! bit each, of which there are at most 16. A row or a cell of a tree has the top bit set and holds its node's number.
//! Nodes are numbered in depth-first order, so the descendants of a node are a range of numbers directly after it, and
//! its ancestors are the nodes whose range contains its number:
//!
//! ```text
//! row    1 | number (15 bits) | sequences whose cells it sees as well (16 bits)
//! cell   1 | number (15 bits) | one past the last number below it     (16 bits)
//! ```
//!
//! Cells of a tree exist only while rows of that tree alone are evaluated.

/// The mark of a tree's rows and cells.
pub const TREE: u32 = 1 << 31;

/// The most nodes of a tree.
pub const MAX_TREE_NODES: usize = 1 << 15;

/// The word of a node's row, which sees its ancestors' cells and those of these sequences.
pub fn tree_row(number: u32, sequences: u32) -> u32 {
    TREE | number << 16 | sequences
}

/// The word of a node's cell; `end` is one past the last number of its descendants.
pub fn tree_cell(number: u32, end: u32) -> u32 {
    TREE | number << 16 | end
}

/// Whether a row sees a cell, by their words alone (position and window are checked elsewhere).
#[inline(always)]
pub fn sees(row: u32, cell: u32) -> bool {
    let number = |word: u32| (word & !TREE) >> 16;
    if cell & TREE == 0 {
        return row & cell != 0;
    }
    row & TREE != 0 && number(cell) <= number(row) && number(row) < cell & 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_sees_itself_and_what_stands_above_it() {
        // 0 -> (1 -> (2, 3), 4)
        let cells = [(0, 5), (1, 4), (2, 3), (3, 4), (4, 5)].map(|(number, end)| tree_cell(number, end));
        let rows = [0, 1, 2, 3, 4].map(|number| tree_row(number, 0b100));
        let seen = rows.map(|row| (0..5).filter(|&i| sees(row, cells[i])).collect::<Vec<_>>());
        assert_eq!(seen, [vec![0], vec![0, 1], vec![0, 1, 2], vec![0, 1, 3], vec![0, 4]]);
        for row in rows {
            assert_eq!([0b100, 0b110, 0b1011, 0].map(|cell| sees(row, cell)), [true, true, false, false]);
        }
        assert!(!sees(0xffff, cells[0]), "a row of no tree");
        let last = MAX_TREE_NODES as u32 - 1;
        assert!(sees(tree_row(last, 0), tree_cell(last, last + 1)));
        assert!(sees(tree_row(last, 0), tree_cell(0, last + 1)));
        assert!(!sees(tree_row(last, 0), tree_cell(0, last)));
    }
}
