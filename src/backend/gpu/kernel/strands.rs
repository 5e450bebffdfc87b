//! Rows that come after each other, as kernels of operations with a state read them in the frame.
//!
//! A row comes after an earlier row of the batch, or after what a state cell holds, or it is a sequence's first: so
//! rows of sequences and of trees are written the same way. A *strand* is a piece of neighbouring rows, each after the
//! one before it; the first comes after any row or cell. Record `i` of [`FRAME_STATES`] has four words: what row `i`
//! comes after, the cell that keeps the state after row `i`, and of strand `i` the first row and the number of rows.
//! A state is kept after the last row of a strand alone. There are no more strands than rows.

use super::dispatch::FRAME_STATES;
use crate::backend::{MAX_ROWS, NO_STATE, StateRows};

/// Added to a state cell where a row comes after its state; [`NO_STATE`] marks a sequence's first row.
pub const AFTER_CELL: u32 = 1 << 31;

/// What shader texts need to read the records.
pub const STRAND_CONSTANTS: [(&str, u32); 3] =
    [("FRAME_STATES", FRAME_STATES as u32), ("AFTER_CELL", AFTER_CELL), ("NO_STATE", NO_STATE)];

/// Replaces `words` by the records of these rows, see [`Batch`](crate::backend::Batch), and returns the number of
/// strands. The rows are those of a batch that was checked.
pub fn records(states: &[StateRows], parents: &[u32], words: &mut Vec<u32>) -> u32 {
    let rows = states.last().map_or(0, |of| of.first + of.rows);
    words.clear();
    words.resize(4 * rows as usize, NO_STATE);
    let (mut strands, mut written) = (0, NO_STATE);
    for of in states {
        // What another strand writes in this run cannot be read in it.
        let goes_on = of.from != NO_STATE && of.from == written;
        written = of.to;
        for row in of.first..of.first + of.rows {
            let start = match of.from {
                NO_STATE => NO_STATE,
                _ if goes_on => of.first - 1,
                from => AFTER_CELL | from,
            };
            let before = match parents.get(row as usize) {
                None if row > of.first => row - 1,
                Some(&parent) if parent != NO_STATE => parent,
                _ => start,
            };
            words[4 * row as usize] = before;
            if row == of.first || before != row - 1 {
                words[4 * strands + 2..4 * strands + 4].copy_from_slice(&[row, 0]);
                strands += 1;
            }
            words[4 * strands - 1] += 1;
        }
        words[4 * (of.first + of.rows) as usize - 3] = of.to;
    }
    strands as u32
}

const _: () = assert!(FRAME_STATES + 4 * MAX_ROWS < AFTER_CELL as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_strands() {
        let of = |first, rows, from, to| StateRows { first, rows, from, to };
        let mut words = vec![7; 3];
        let n = records(&[of(0, 2, 5, 1), of(2, 1, NO_STATE, 0), of(3, 1, 6, NO_STATE)], &[], &mut words);
        let expected = [
            AFTER_CELL | 5,
            NO_STATE,
            0,
            2,
            0,
            1,
            2,
            1,
            NO_STATE,
            0,
            3,
            1,
            AFTER_CELL | 6,
            NO_STATE,
            NO_STATE,
            NO_STATE,
        ];
        assert_eq!((n, &words[..]), (3, &expected[..]));
    }

    #[test]
    fn a_state_in_the_middle_ends_a_strand() {
        let of = |first, rows, from, to| StateRows { first, rows, from, to };
        let mut words = Vec::new();
        assert_eq!(records(&[of(0, 2, 5, 1), of(2, 1, 1, 0), of(3, 2, 0, 2)], &[], &mut words), 3);
        let column = |i: usize, n: usize| words.iter().skip(i).step_by(4).take(n).copied().collect::<Vec<_>>();
        assert_eq!(column(0, 5), [AFTER_CELL | 5, 0, 1, 2, 3]);
        assert_eq!(column(1, 5), [NO_STATE, 1, 0, NO_STATE, 2]);
        assert_eq!((column(2, 3), column(3, 3)), (vec![0, 2, 3], vec![2, 1, 2]));
    }

    #[test]
    fn a_branch_of_a_tree_is_a_strand() {
        let all = StateRows { first: 0, rows: 5, from: 3, to: NO_STATE };
        let mut words = Vec::new();
        // 0 - 1 - 2, 0 - 3, and 4 by itself.
        assert_eq!(records(&[all], &[NO_STATE, 0, 1, 0, NO_STATE], &mut words), 3);
        let column = |i: usize, n: usize| words.iter().skip(i).step_by(4).take(n).copied().collect::<Vec<_>>();
        assert_eq!(column(0, 5), [AFTER_CELL | 3, 0, 1, 0, AFTER_CELL | 3]);
        assert_eq!((column(1, 5), column(2, 3), column(3, 3)), (vec![NO_STATE; 5], vec![0, 3, 4], vec![3, 1, 1]));
    }
}
