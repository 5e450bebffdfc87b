//! The cells of sliding layers: of every slot those of its last tokens, in a ring, and copies of earlier windows.
//!
//! A row of a sliding layer sees the last `reach` tokens alone, so such layers have cells for a window and a pass, not
//! for the context. A slot has position `p` at place `p mod ring` of its ring. Attention reads the blocks in the order
//! of the positions, in the same ranges as where a slot has a cell for every token, so a row's bits depend neither on
//! the ring nor on the passes. Rings take memory in blocks as they need them, and give back what is older than the
//! window when others need it.
//!
//! A slot goes on after any of its tokens whose window its ring still holds. Before the window at a mark (the end of a
//! prompt) is overwritten it is copied. Where a slot was cut back to a token whose window is nowhere, tokens from the
//! nearest earlier one on are evaluated again (`passes.rs`).
//!
//! Invariants: a ring and a copy hold what the slot's tokens at these positions gave; a ring has the blocks of all
//! positions that it holds.

use crate::backend::{CELL_BLOCK, LIST_BLOCK, NO_BLOCK, SUM_RANGE, TableCells};
use crate::{Result, reserve};
use std::ops::Range;

/// What memory is reserved for, in errors.
const CELLS: &str = "cells of windows";

/// Lists begin at multiples of so many blocks, so that ranges of cells are those of a slot with all its tokens.
const LIST_PERIOD: usize = SUM_RANGE / LIST_BLOCK;

/// The sizes of an engine's windows, in cells; zeros where no layer has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct WindowSizes {
    /// Tokens that a row sees, its own included.
    pub reach: usize,
    /// The most cells of a slot, whole blocks: those of a window and of a pass.
    pub ring: usize,
    /// Cells of all slots, whole blocks: enough for a window of each, and a pass.
    pub shared: usize,
    /// Number of copies, of `reach` cells each.
    pub copies: usize,
}

impl WindowSizes {
    /// Sizes for a number of slots, and passes of `batch` rows.
    pub fn new(reach: usize, slots: usize, batch: usize, copies: usize) -> WindowSizes {
        // The last token may be evaluated again, so its window is needed, too; a window begins anywhere in a block.
        // Nor may the first and the last positions that a pass reads be in one block of a list.
        let ring = (reach + batch + LIST_BLOCK).next_multiple_of(CELL_BLOCK);
        let others = (slots - 1) * (reach.next_multiple_of(CELL_BLOCK) + CELL_BLOCK);
        WindowSizes { reach, ring, shared: ring + others, copies }
    }

    /// Cells of all slots and copies.
    pub fn cells(&self) -> usize {
        (self.shared + self.copies * self.reach).next_multiple_of(CELL_BLOCK)
    }
}

/// The ring of a slot.
#[derive(Debug, Clone, Default)]
struct Ring {
    /// The block of each part of the ring, or [`NO_BLOCK`].
    blocks: Vec<u32>,
    /// The positions that it holds.
    held: Range<usize>,
    /// One past the last place that was taken for a pass.
    top: usize,
    /// The first block of its list, counted from the first position on.
    listed_from: usize,
    /// Added to a position for its place, since tokens before it were removed.
    shifted: usize,
    /// A position after which a later prompt may well go on: the end of a prompt.
    mark: Option<usize>,
    last_used: u64,
}

/// A copied window.
#[derive(Debug, Clone)]
struct Copied {
    slot: usize,
    /// The positions that it holds; position `p` is in its cell `p mod reach`.
    held: Range<usize>,
    last_used: u64,
}

/// The windows of all slots.
pub(super) struct Windows {
    sizes: WindowSizes,
    rings: Vec<Ring>,
    /// By slot, for [`TableCells::lists`]: what its rows of this pass see, in the order of positions.
    lists: Vec<Vec<u32>>,
    copies: Vec<Option<Copied>>,
    /// Blocks without a slot, the lowest last.
    free: Vec<u32>,
    positions: Vec<i32>,
    sequences: Vec<u32>,
    /// Cells that changed since [`Windows::commit`].
    changed: (usize, usize),
    clock: u64,
}

impl Windows {
    /// The windows of `slots` slots.
    pub fn new(slots: usize, sizes: WindowSizes) -> Result<Windows> {
        let cells = sizes.cells();
        let ring = |_| {
            let blocks = reserve::filled(NO_BLOCK, sizes.ring / CELL_BLOCK, CELLS)?;
            Ok(Ring { blocks, ..Ring::default() })
        };
        let list = |_| reserve::list(sizes.ring / LIST_BLOCK + LIST_PERIOD, CELLS);
        let mut free = reserve::list(sizes.shared / CELL_BLOCK, CELLS)?;
        free.extend((0..(sizes.shared / CELL_BLOCK) as u32).rev());
        Ok(Windows {
            sizes,
            rings: (0..slots).map(ring).collect::<Result<_>>()?,
            lists: (0..slots).map(list).collect::<Result<_>>()?,
            copies: vec![None; sizes.copies],
            free,
            positions: reserve::filled(0, cells, CELLS)?,
            sequences: reserve::filled(0, cells, CELLS)?,
            changed: (0, cells),
            clock: 0,
        })
    }

    /// Number of copies of earlier windows.
    pub fn snapshots(&self) -> usize {
        self.copies.iter().flatten().count()
    }

    /// Whether layers have their cells here.
    pub fn any(&self) -> bool {
        self.sizes.reach > 0
    }

    /// Tokens that a row there sees, its own included; 0 where no layer has its cells here.
    pub fn reach(&self) -> usize {
        self.sizes.reach
    }

    /// The first position that is kept for a row at `position`, or for the one before it.
    pub fn seen_from(&self, position: usize) -> usize {
        position.saturating_sub(self.sizes.reach)
    }

    /// The cells, and those of a batch's rows.
    pub fn table<'a>(&'a self, rows: &'a [u32]) -> TableCells<'a> {
        let blocks = self.rings.iter().flat_map(|ring| &ring.blocks).filter(|&&block| block != NO_BLOCK);
        let end = blocks.max().map_or(0, |&block| (block as usize + 1) * CELL_BLOCK);
        let Windows { positions, sequences, lists, changed, .. } = self;
        TableCells { rows, positions, sequences, lists, end, changed: *changed }
    }

    /// Notes that every device has the cells as they are now.
    pub fn commit(&mut self) {
        self.changed = (0, 0);
    }

    fn set(&mut self, cell: usize, position: i32, sequences: u32) {
        (self.positions[cell], self.sequences[cell]) = (position, sequences);
        let (first, end) = self.changed;
        self.changed = if first == end { (cell, cell + 1) } else { (first.min(cell), end.max(cell + 1)) };
    }

    /// Whether a row at `position` finds its window in what is held.
    fn suffices(&self, held: &Range<usize>, position: usize) -> bool {
        let first = (position + 1).saturating_sub(self.sizes.reach);
        position == 0 || held.start <= first && position <= held.end
    }

    /// The last place up to `position` after which a slot can go on.
    pub fn nearest(&self, slot: usize, position: usize) -> usize {
        if !self.any() {
            return position;
        }
        let copies = self.copies.iter().flatten().filter(|copy| copy.slot == slot).map(|copy| &copy.held);
        let places = copies.chain([&self.rings[slot].held]).map(|held| (held, held.end.min(position)));
        places.filter(|&(held, place)| self.suffices(held, place)).map(|(_, place)| place).max().unwrap_or(0)
    }

    /// Whether the slot's ring has the window of a row at `position`.
    pub fn holds(&self, slot: usize, position: usize) -> bool {
        !self.any() || self.suffices(&self.rings[slot].held, position)
    }

    /// The positions that the slot's ring holds.
    pub fn held(&self, slot: usize) -> Range<usize> {
        self.rings[slot].held.clone()
    }

    /// Where a position is in its slot's ring: the part, and the cell of the part.
    fn place(&self, slot: usize, position: usize) -> (usize, usize) {
        let place = (position + self.rings[slot].shifted) % self.sizes.ring;
        (place / CELL_BLOCK, place % CELL_BLOCK)
    }

    /// The cell of a position that the ring holds.
    pub fn cell(&self, slot: usize, position: usize) -> u32 {
        let (part, at) = self.place(slot, position);
        self.rings[slot].blocks[part] * CELL_BLOCK as u32 + at as u32
    }

    /// Takes the cell at the place of position `at` for a row at `position`, in place of what is there; `None` where
    /// the other slots leave none. `sequences` is a slot's bit, or the word of a tree's cell. Rows of a sequence are at
    /// their own places, others at places after the slot's tokens. Slots in the set `busy`, a bit each, keep their
    /// windows.
    pub fn enter(&mut self, slot: usize, at: usize, position: i32, sequences: u32, busy: u32) -> Option<u32> {
        let (part, _) = self.place(slot, at);
        let ring = &mut self.rings[slot];
        let begins = ring.top == 0;
        ring.top = ring.top.max(at + 1);
        ring.last_used = self.clock;
        if ring.blocks[part] == NO_BLOCK {
            self.rings[slot].blocks[part] = self.take_block(part, busy | 1 << slot)?;
        }
        self.list(slot, at, begins);
        let held = &mut self.rings[slot].held;
        held.start = held.start.max((at + 1).saturating_sub(self.sizes.ring));
        let cell = self.cell(slot, at);
        self.set(cell as usize, position, sequences);
        Some(cell)
    }

    /// A free block for this part of a ring: that of the same number, so that a slot alone has its parts in order, or
    /// the lowest. Where there is none, slots give back what is older than their windows, and after that the least
    /// recently used ones their windows.
    fn take_block(&mut self, part: usize, busy: u32) -> Option<u32> {
        if self.free.is_empty() {
            (0..self.rings.len()).for_each(|slot| self.trim(slot));
        }
        while self.free.is_empty() {
            let idle = (0..self.rings.len()).filter(|slot| busy & 1 << slot == 0);
            let used = idle.filter(|&slot| self.rings[slot].blocks.iter().any(|&block| block != NO_BLOCK));
            let victim = used.min_by_key(|&slot| self.rings[slot].last_used)?;
            self.empty(victim);
        }
        match self.free.iter().position(|&block| block as usize == part) {
            Some(at) => Some(self.free.remove(at)),
            None => self.free.pop(),
        }
    }

    /// Gives back the blocks of a slot that its next row does not see.
    fn trim(&mut self, slot: usize) {
        let first = self.seen_from(self.rings[slot].held.end);
        let ring = &mut self.rings[slot];
        ring.held.start = ring.held.start.max(first);
        let used = ring.held.start..ring.top.max(ring.held.end);
        for part in 0..self.rings[slot].blocks.len() {
            if !used.clone().any(|position| self.place(slot, position).0 == part) {
                self.give_back(slot, part);
            }
        }
    }

    /// Adds the block of position `at` to the slot's list; where a pass `begins`, with all that its first row sees.
    fn list(&mut self, slot: usize, at: usize, begins: bool) {
        let (ring, list, size) = (&mut self.rings[slot], &mut self.lists[slot], self.sizes.ring);
        let block_of = |position: usize| (position + ring.shifted) / LIST_BLOCK;
        let first = block_of((at + 1).saturating_sub(self.sizes.reach));
        if begins {
            list.clear();
            ring.listed_from = first / LIST_PERIOD * LIST_PERIOD;
            list.resize(first - ring.listed_from, NO_BLOCK);
        }
        let last = block_of(at);
        while ring.listed_from + list.len() <= last {
            let place = (ring.listed_from + list.len()) * LIST_BLOCK % size;
            let block = ring.blocks[place / CELL_BLOCK];
            list.push(match block {
                NO_BLOCK => NO_BLOCK,
                _ => block * (CELL_BLOCK / LIST_BLOCK) as u32 + (place % CELL_BLOCK / LIST_BLOCK) as u32,
            });
        }
    }

    fn give_back(&mut self, slot: usize, part: usize) {
        let block = std::mem::replace(&mut self.rings[slot].blocks[part], NO_BLOCK);
        if block == NO_BLOCK {
            return;
        }
        let first = block as usize * CELL_BLOCK;
        (first..first + CELL_BLOCK).for_each(|cell| self.set(cell, 0, 0));
        let at = self.free.partition_point(|&free| free > block);
        self.free.insert(at, block);
    }

    /// Notes that the cells of a pass hold nothing that a row may see.
    pub fn clear(&mut self, cells: &[u32]) {
        cells.iter().for_each(|&cell| self.set(cell as usize, 0, 0));
        self.rings.iter_mut().for_each(|ring| ring.top = 0);
    }

    /// Notes that cells up to position `end` were entered for a pass of the slot that is not over.
    pub fn expect(&mut self, slot: usize, end: usize) {
        self.rings[slot].top = self.rings[slot].top.max(end);
    }

    /// Notes that the slot has `end` tokens, the last of which were entered.
    pub fn keep(&mut self, slot: usize, end: usize) {
        let ring = &mut self.rings[slot];
        (ring.held.end, ring.top) = (ring.held.end.max(end), 0);
        self.clock += 1;
    }

    /// Marks the place after a slot's first `position` tokens as one that a later prompt may go on from.
    pub fn mark(&mut self, slot: usize, position: usize) {
        self.rings[slot].mark = Some(position);
    }

    /// Forgets what a slot's tokens from `n_tokens` on gave. `stale_from` is the first of its tokens that was computed
    /// after tokens that are gone.
    pub fn truncate(&mut self, slot: usize, n_tokens: usize, stale_from: Option<usize>) {
        if !self.any() {
            return;
        }
        for i in 0..self.copies.len() {
            let of_slot = self.copies[i].as_mut().filter(|copy| copy.slot == slot);
            let Some(held) = of_slot.map(|copy| &mut copy.held) else { continue };
            held.end = held.end.min(n_tokens);
            let held = held.clone();
            if held.end == 0 || !self.suffices(&held, held.end) {
                self.copies[i] = None;
            }
        }
        let ring = &mut self.rings[slot];
        ring.mark = ring.mark.filter(|&mark| mark <= n_tokens);
        ring.held.end = ring.held.end.min(n_tokens);
        // Without stale tokens every position has the place that it has in a slot of its own.
        if ring.held.is_empty() || ring.shifted > 0 && stale_from.is_none() {
            self.empty(slot);
        }
    }

    /// Empties the slot's ring.
    pub fn empty(&mut self, slot: usize) {
        (0..self.rings[slot].blocks.len()).for_each(|part| self.give_back(slot, part));
        let ring = &mut self.rings[slot];
        (ring.held, ring.top, ring.shifted) = (0..0, 0, 0);
    }

    /// The copy that has to be made before the slot's ring takes positions up to `end`: the window at its mark, where
    /// that would be overwritten, as moves of cells (from, to). The mark is gone then.
    pub fn spare(&mut self, slot: usize, end: usize, moves: &mut Vec<(u32, u32)>) {
        moves.clear();
        let Some(mark) = self.rings[slot].mark.filter(|_| self.any()) else { return };
        let wanted = self.seen_from(mark)..mark;
        if wanted.start >= end.saturating_sub(self.sizes.ring) {
            return;
        }
        self.rings[slot].mark = None;
        let held = &self.rings[slot].held;
        let there = held.start <= wanted.start && wanted.end <= held.end;
        let last_used = |&place: &usize| match &self.copies[place] {
            Some(copy) if copy.slot == slot && copy.held.start == wanted.start => 0,
            copy => 1 + copy.as_ref().map_or(0, |copy| copy.last_used),
        };
        let place = (0..self.copies.len()).min_by_key(last_used);
        if let Some(place) = place.filter(|_| there) {
            moves.extend(wanted.clone().map(|p| (self.cell(slot, p), self.copy_cell(place, p))));
            self.clock += 1;
            self.copies[place] = Some(Copied { slot, held: wanted, last_used: self.clock });
        }
    }

    /// Forgets the copy that was made last, whose moves failed.
    pub fn forget_copy(&mut self) {
        let clock = self.clock;
        for copy in &mut self.copies {
            copy.take_if(|copy| copy.last_used == clock);
        }
    }

    /// The moves of cells (from, to) that bring the window of a row at `position` back into the slot's ring; none where
    /// it is there. `None` where the other slots leave no cells.
    pub fn bring_back(&mut self, slot: usize, position: usize, moves: &mut Vec<(u32, u32)>) -> Option<()> {
        moves.clear();
        let held = &self.rings[slot].held;
        if !self.any() || self.suffices(held, position) && (position > 0 || held.start == 0) {
            return Some(());
        }
        self.empty(slot);
        let suffices = |copy: &Copied| copy.slot == slot && self.suffices(&copy.held, position);
        let found = self.copies.iter().position(|copy| copy.as_ref().is_some_and(suffices));
        let Some(place) = found.filter(|_| position > 0) else { return Some(()) };
        let Some(copy) = &mut self.copies[place] else { return Some(()) };
        self.clock += 1;
        copy.last_used = self.clock;
        let held = copy.held.start..position;
        self.restore(slot, held.clone())?;
        moves.extend(held.map(|p| (self.copy_cell(place, p), self.cell(slot, p))));
        Some(())
    }

    /// The moves of cells (from, to) that give an empty slot the window after the first `position` tokens of another,
    /// which can go on from there; `None` where the other slots leave no cells.
    pub fn share(&mut self, from: usize, to: usize, position: usize, moves: &mut Vec<(u32, u32)>) -> Option<()> {
        moves.clear();
        if !self.any() || position == 0 {
            return Some(());
        }
        let ring = &self.rings[from].held;
        let of_copy = |copy: &Copied| copy.slot == from && self.suffices(&copy.held, position);
        let copy = self.copies.iter().position(|copy| copy.as_ref().is_some_and(of_copy));
        let held = match copy.and_then(|copy| self.copies[copy].as_ref()) {
            _ if self.suffices(ring, position) => ring,
            Some(copy) => &copy.held,
            None => return None,
        };
        let held = held.start.max(self.seen_from(position))..position;
        let in_ring = self.suffices(ring, position);
        // The source keeps its cells while this slot takes some.
        let needed = held.len() / CELL_BLOCK + 2;
        if self.free.len() < needed {
            (0..self.rings.len()).filter(|&slot| slot != from).for_each(|slot| self.trim(slot));
        }
        if self.free.len() < needed {
            return None;
        }
        for p in held.clone() {
            let to = self.enter(to, p, p as i32, 1 << to, 1 << from)?;
            let from = if in_ring { self.cell(from, p) } else { self.copy_cell(copy?, p) };
            moves.push((from, to));
        }
        let ring = &mut self.rings[to];
        (ring.held, ring.top) = (held, 0);
        Some(())
    }

    /// Takes cells in the empty ring of a slot for what these positions gave; `None` where the other slots leave none.
    pub fn restore(&mut self, slot: usize, held: Range<usize>) -> Option<()> {
        if self.any() {
            for position in held.clone() {
                self.enter(slot, position, position as i32, 1 << slot, 0)?;
            }
            let ring = &mut self.rings[slot];
            (ring.held, ring.top) = (held, 0);
        }
        Some(())
    }

    fn copy_cell(&self, copy: usize, position: usize) -> u32 {
        let WindowSizes { reach, shared, .. } = self.sizes;
        (shared + copy * reach + position % reach) as u32
    }

    /// Removes positions before others, after the keys of the later ones were moved up; the ring holds a window of
    /// them.
    pub fn remove(&mut self, slot: usize, range: Range<usize>) {
        if !self.any() {
            return;
        }
        for copy in &mut self.copies {
            copy.take_if(|copy| copy.slot == slot && copy.held.end > range.start);
        }
        for position in self.held(slot).start..range.end {
            self.set(self.cell(slot, position) as usize, 0, 0);
        }
        let ring = &mut self.rings[slot];
        ring.mark = ring.mark.filter(|&mark| mark <= range.start);
        ring.held = ring.held.start.max(range.end) - range.len()..ring.held.end - range.len();
        ring.shifted += range.len();
        for position in self.held(slot) {
            let cell = self.cell(slot, position) as usize;
            let sequences = self.sequences[cell];
            self.set(cell, position as i32, sequences);
        }
    }
}
