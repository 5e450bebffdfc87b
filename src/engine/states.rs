//! The state cells of an engine: what models that keep a state have of each slot besides keys and values.
//!
//! A state cell holds all states of one sequence after one of its tokens. A run reads one cell and writes another, so
//! every run leaves the state before it in place: states are kept without copying. A slot goes on from the state after
//! its last token; where it was cut back to a token after which no state is left, tokens from the nearest earlier state
//! on are evaluated again first (`passes.rs`). When no cell is free, the kept state is dropped whose loss costs the
//! fewest tokens.
//!
//! Invariant: a cell is free, or kept by slots, or belongs to the run whose inputs name it.

use crate::backend::{NO_STATE, StateRows};
use crate::{Result, reserve};

/// What the end of a prompt is worth more than other places, as a factor on the tokens that its loss costs.
const MARKED: usize = 16;

/// A state after a slot's first `position` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    position: usize,
    cell: u32,
    /// A later prompt may well go on from here: the end of a prompt.
    marked: bool,
}

/// The state cells of an engine; of a model without states none.
pub(super) struct States {
    free: Vec<u32>,
    /// How many slots keep each cell.
    shared: Vec<u32>,
    /// By slot, by position.
    kept: Vec<Vec<Kept>>,
    any: bool,
}

impl States {
    /// `cells` state cells for `slots` slots.
    pub fn new(slots: usize, cells: usize) -> Result<States> {
        let mut free = reserve::list(cells, "state cells")?;
        free.extend((0..cells as u32).rev());
        let kept = (0..slots).map(|_| reserve::list(cells, "states of a slot")).collect::<Result<_>>()?;
        Ok(States { free, shared: reserve::filled(0, cells, "state cells")?, kept, any: cells > 0 })
    }

    /// Whether the model has states.
    pub fn any(&self) -> bool {
        self.any
    }

    /// Cells beside the last state of each slot and what a run writes for each.
    pub fn spare(&self) -> usize {
        self.shared.len().saturating_sub(2 * self.kept.len())
    }

    /// Number of kept states beside the last of each slot.
    pub fn snapshots(&self) -> usize {
        self.kept.iter().map(|kept| kept.len().saturating_sub(1)).sum()
    }

    /// The last place up to `position` after which a slot's state is there, and the state cell; at 0 none is needed. Of
    /// a model without states every place.
    pub fn nearest(&self, slot: usize, position: usize) -> (usize, u32) {
        if !self.any {
            return (position, NO_STATE);
        }
        let kept = self.kept[slot].iter().rfind(|kept| kept.position <= position);
        kept.map_or((0, NO_STATE), |kept| (kept.position, kept.cell))
    }

    /// A cell to write to; those that `inputs` go on from are not dropped for it. `None` where there is none.
    pub fn take(&mut self, inputs: &[StateRows]) -> Option<u32> {
        if self.free.is_empty() {
            self.drop_one(inputs);
        }
        self.free.pop()
    }

    /// Frees a cell that was taken.
    pub fn free(&mut self, cell: u32) {
        if cell != NO_STATE {
            self.free.push(cell);
        }
    }

    /// Keeps a cell that was taken as the state after a slot's first `position` tokens, in place of one that is there.
    pub fn keep(&mut self, slot: usize, position: usize, cell: u32) {
        if cell == NO_STATE {
            return;
        }
        self.shared[cell as usize] += 1;
        let kept = &mut self.kept[slot];
        let at = kept.partition_point(|kept| kept.position < position);
        match kept.get_mut(at).filter(|kept| kept.position == position) {
            Some(same) => {
                let before = std::mem::replace(&mut same.cell, cell);
                self.release(before);
            }
            None => kept.insert(at, Kept { position, cell, marked: false }),
        }
    }

    /// Notes that a slot does not keep a cell any more.
    fn release(&mut self, cell: u32) {
        self.shared[cell as usize] -= 1;
        if self.shared[cell as usize] == 0 {
            self.free.push(cell);
        }
    }

    /// Keeps the states after at most `position` tokens of one slot for another, which has none.
    pub fn share(&mut self, from: usize, to: usize, position: usize) {
        for i in 0..self.kept[from].partition_point(|kept| kept.position <= position) {
            let kept = self.kept[from][i];
            self.shared[kept.cell as usize] += 1;
            self.kept[to].push(kept);
        }
    }

    /// Marks the state after a slot's first `position` tokens as one that a later prompt may go on from.
    pub fn mark(&mut self, slot: usize, position: usize) {
        let kept = self.kept[slot].iter_mut().find(|kept| kept.position == position);
        kept.into_iter().for_each(|kept| kept.marked = true);
    }

    /// Drops the states after more than `position` tokens of a slot.
    pub fn truncate(&mut self, slot: usize, position: usize) {
        while let Some(kept) = self.kept[slot].pop_if(|kept| kept.position > position) {
            self.release(kept.cell);
        }
    }

    /// Drops the state whose loss costs the fewest tokens, in all slots that keep it: those from the slot's state
    /// before it, which would be evaluated again. A slot's last state goes after all others.
    fn drop_one(&mut self, inputs: &[StateRows]) {
        let in_use = |cell: u32| inputs.iter().any(|of| of.from == cell);
        // Slots share states, and what is one's last may be an earlier one of another.
        let is_last = |cell: u32| self.kept.iter().any(|kept| kept.last().is_some_and(|last| last.cell == cell));
        let cost = |kept: &[Kept], i: usize| {
            let before = i.checked_sub(1).map_or(0, |i| kept[i].position);
            let tokens = kept[i].position - before;
            (is_last(kept[i].cell), if kept[i].marked { tokens.saturating_mul(MARKED) } else { tokens })
        };
        let all = self.kept.iter().enumerate().flat_map(|(slot, kept)| (0..kept.len()).map(move |i| (slot, i)));
        let droppable = all.filter(|&(slot, i)| !in_use(self.kept[slot][i].cell));
        let Some((slot, i)) = droppable.min_by_key(|&(slot, i)| cost(&self.kept[slot], i)) else { return };
        let cell = self.kept[slot][i].cell;
        for slot in 0..self.kept.len() {
            if let Some(i) = self.kept[slot].iter().position(|kept| kept.cell == cell) {
                self.kept[slot].remove(i);
                self.release(cell);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: usize = 0;

    /// A slot whose states are after these many tokens.
    fn kept(states: &mut States, positions: impl IntoIterator<Item = usize>) {
        for position in positions {
            let cell = states.take(&[]).unwrap();
            states.keep(SLOT, position, cell);
        }
    }

    fn positions(states: &States) -> Vec<usize> {
        states.kept[0].iter().map(|kept| kept.position).collect()
    }

    #[test]
    fn the_densest_states_go_first_and_the_last_stays() {
        let mut states = States::new(1, 5).unwrap();
        kept(&mut states, [100]);
        states.mark(SLOT, 100);
        kept(&mut states, 101..140);
        let left = positions(&states);
        assert_eq!((left.len(), left[0], left[4]), (5, 100, 139), "{left:?}");
        assert!(left.windows(2).all(|pair| pair[1] - pair[0] < 39), "spread over the tokens: {left:?}");
        assert_eq!(states.nearest(SLOT, 138).0, left[3]);
        assert_eq!(states.nearest(SLOT, 99), (0, NO_STATE));
        states.truncate(SLOT, 120);
        assert!(positions(&states).iter().all(|&position| position <= 120));
        states.truncate(SLOT, 0);
        assert_eq!(states.free.len(), 5, "every cell is free again");
    }

    #[test]
    fn the_last_state_of_a_slot_stays_though_it_is_an_earlier_one_of_another() {
        let mut states = States::new(2, 4).unwrap();
        kept(&mut states, [10, 11]);
        states.share(0, 1, 11);
        kept(&mut states, 12..30);
        assert_eq!(states.nearest(1, 11).0, 11, "{:?}", states.kept);
    }

    #[test]
    fn what_a_run_goes_on_from_is_not_dropped() {
        let mut states = States::new(2, 2).unwrap();
        kept(&mut states, [10, 20]);
        let inputs = [10, 20].map(|at| StateRows { first: 0, rows: 1, from: states.nearest(SLOT, at).1, to: NO_STATE });
        assert_eq!(states.take(&inputs), None);
        let cell = states.take(&inputs[..1]).unwrap();
        assert_eq!((cell, positions(&states)), (inputs[1].from, vec![10]));
        states.free(cell);
        assert_eq!(states.take(&[]), Some(cell));
    }

    #[test]
    fn a_model_without_states_has_every_place() {
        let states = States::new(1, 0).unwrap();
        assert_eq!((states.any(), states.nearest(SLOT, 7)), (false, (7, NO_STATE)));
    }
}
