//! The slots of an engine and the cells that hold their keys and values.
//!
//! Invariants: a slot's tokens and cells have equal length, and its `i`-th cell holds position `i`; slots that share a
//! cell have the same tokens up to it. A slot's cells are at places of its own (`cells.rs`), each after the one before.
//! Cells that were taken and belong to no slot belong to a run in progress: the code that took them gives them to a
//! slot or frees them.

use super::cells::Cells;
use super::sources::Sources;
use super::states::States;
use super::windows::{WindowSizes, Windows};
use crate::backend::{LIST_BLOCK, TableCells};
use crate::{Error, Result, Token, reserve};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A slot of an engine, as [`Engine::take_slot`](super::Engine::take_slot) gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotId(pub(super) usize);

impl SlotId {
    /// The number that [`Engine::take_slot`](super::Engine::take_slot) takes, from 0 on.
    pub fn number(self) -> i32 {
        self.0 as i32
    }

    /// Its bit in a set of slots; its cells are marked with it.
    pub(crate) fn bit(self) -> u32 {
        1 << self.0
    }
}

#[derive(Default)]
struct Slot {
    tokens: Vec<Token>,
    cells: Vec<u32>,
    last_used: u64,
    /// Whether it keeps its tokens when others need cells.
    pinned: bool,
    /// How many of its first tokens came from a file.
    restored: usize,
    /// Tokens from this index on were computed after other tokens than those that precede them now; `None` = none.
    stale_from: Option<usize>,
}

/// All slots, which share the context.
pub(super) struct Slots {
    slots: Vec<Slot>,
    cells: Cells,
    states: States,
    windows: Windows,
    sources: Sources,
    context: usize,
    clock: u64,
    /// The slots of the seat whose numbers are used.
    seat: Range<usize>,
    seats: usize,
    /// Those of them that may be used now, a bit each.
    own: u32,
    /// Slots with streams of their own, a bit each.
    parted: u32,
    /// Slots that are not emptied for others, a bit each, and those of them whose streams rest.
    held: u32,
    resting: Arc<AtomicU32>,
    /// See [`Slots::set_entering`].
    entering: Option<SlotId>,
}

impl Slots {
    /// `count` slots of so many seats, for each of which there are `context` of the `cells` in memory, and so many
    /// state cells; with windows of these sizes, and cells for the prompts that an encoder reads.
    pub fn new(
        (count, seats): (usize, usize),
        (cells, state_cells): (usize, usize),
        (windows, sources): (WindowSizes, usize),
        context: usize,
    ) -> Result<Slots> {
        let slot = |_| {
            let tokens = reserve::list(context, "tokens of a slot")?;
            Ok(Slot { tokens, cells: reserve::list(context, "cells of a slot")?, ..Slot::default() })
        };
        let slots = (0..count).map(slot).collect::<Result<_>>()?;
        let (states, windows) = (States::new(count, state_cells)?, Windows::new(count, windows)?);
        let sources = Sources::new(count, sources, context.min(sources))?;
        let cells = Cells::new(count, cells, context * seats)?;
        Ok(Slots {
            slots,
            cells,
            states,
            windows,
            sources,
            context,
            clock: 0,
            seat: 0..count / seats,
            seats,
            own: bits(0..count / seats),
            parted: 0,
            held: 0,
            resting: Arc::default(),
            entering: None,
        })
    }

    /// Number of slots of a seat.
    pub fn count(&self) -> usize {
        self.seat.len()
    }

    /// Takes the numbers of slots from now on as those of this seat, which may use this slot alone, or all but those
    /// with streams of their own.
    pub fn sit(&mut self, seat: usize, only: Option<SlotId>) {
        let (count, seat) = (self.count(), seat.min(self.seats - 1));
        self.seat = seat * count..(seat + 1) * count;
        self.own = only.map_or(bits(self.seat.clone()) & !self.parted, SlotId::bit);
    }

    /// Gives the slot with this number (-1: an empty one, else the least recently used, but `current` last) a stream of
    /// its own. One stays without. Where it is `current`, another one takes that place, unless it `is_kept`.
    pub fn part(&mut self, number: i32, current: &mut SlotId, is_kept: bool) -> Result<SlotId> {
        let slot = if number == -1 { self.least_used(Some(*current))? } else { self.find(number)? };
        let number = self.number(slot);
        let Some(other) = self.numbered(-1).find(|&other| other != slot) else {
            let problem = format!("Slot {number} is the last that the handle itself has: open it with more slots");
            return Err(Error::InvalidArgument(problem));
        };
        if slot == *current && is_kept {
            return Err(Error::Busy(format!("Slot {number} has the prompt that the handle is to answer")));
        }
        *current = if slot == *current { other } else { *current };
        self.parted |= slot.bit();
        self.own &= !slot.bit();
        Ok(slot)
    }

    /// Where the slot that may be used now is a stream's own, makes it the seat's again.
    pub fn join(&mut self) {
        self.parted &= !self.own;
    }

    /// Of the slots that may be used now, empties this one alone not for others from now on.
    pub fn hold(&mut self, slot: SlotId) {
        self.release();
        self.held |= slot.bit();
        self.resting.fetch_and(!slot.bit(), Ordering::Relaxed);
    }

    /// Holds none of the slots that may be used now.
    pub fn release(&mut self) {
        self.held &= !self.own;
    }

    /// Slots that are not emptied for others, a bit each.
    pub fn held(&self) -> u32 {
        self.held & !self.resting.load(Ordering::Relaxed)
    }

    /// Slots whose streams rest, a bit each: they are emptied for others as if they were not held. A slot that is held
    /// again does not rest.
    pub fn resting(&self) -> &Arc<AtomicU32> {
        &self.resting
    }

    /// The number of a slot in the seat.
    pub fn number(&self, slot: SlotId) -> i32 {
        slot.0 as i32 - self.seat.start as i32
    }

    /// The slots of the seat that may be used, or the one of them with this number.
    pub fn numbered(&self, number: i32) -> impl Iterator<Item = SlotId> + use<> {
        let (first, own) = (self.seat.start, self.own);
        let asked = self.seat.clone().filter(move |&slot| number == -1 || number == (slot - first) as i32);
        asked.map(SlotId).filter(move |slot| own & slot.bit() != 0)
    }

    /// Context in tokens, shared by all slots of a seat.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The slot with this number; for -1 an empty one, else the least recently used.
    pub fn find(&self, number: i32) -> Result<SlotId> {
        match usize::try_from(number) {
            Ok(i) if i < self.count() => {
                let slot = SlotId(self.seat.start + i);
                let foreign = || Error::InvalidArgument(format!("Slot {number} is that of another handle"));
                (self.own & slot.bit() != 0).then_some(slot).ok_or_else(foreign)
            }
            Err(_) if number == -1 => self.least_used(None),
            _ => {
                let max = self.count() - 1;
                Err(Error::InvalidArgument(format!("Slot {number} (-1 to {max} are possible)")))
            }
        }
    }

    /// An empty slot, else the least recently used one that is not pinned, and not `but` where there is another.
    fn least_used(&self, but: Option<SlotId>) -> Result<SlotId> {
        let slots = self.numbered(-1).filter(|slot| !self.slots[slot.0].pinned);
        let oldest = slots.min_by_key(|&slot| match self.position(slot) {
            0 => (0, 0),
            _ => (1 + u8::from(but == Some(slot)), self.slots[slot.0].last_used),
        });
        oldest.ok_or_else(|| Error::InvalidArgument("Every slot is pinned: none is left for another prompt".into()))
    }

    /// The slot for a prompt that may go into any: the one whose tokens it goes on from, else an empty one, else the
    /// least recently used.
    pub fn find_for(&self, tokens: &[Token]) -> Result<SlotId> {
        if self.sources.any() {
            let same = self.numbered(-1).find(|&slot| self.sources.tokens(slot.0) == tokens);
            return same.map_or_else(|| self.least_used(None), Ok);
        }
        let slots = self.numbered(-1).filter(|&slot| self.position(slot) > 0);
        let longest = slots.map(|slot| (self.reusable(slot, tokens), slot)).max_by_key(|&(n, slot)| (n, slot.0));
        let longest = longest.filter(|&(n, _)| n > 0);
        let goes_on = |&(n, slot): &(usize, SlotId)| !self.slots[slot.0].pinned && n == self.position(slot);
        match longest.filter(goes_on) {
            Some((_, slot)) => Ok(slot),
            None => self.least_used(longest.map(|(_, slot)| slot)),
        }
    }

    /// Of the slots that may be used, pins these, a bit for each number, and no others.
    pub fn pin(&mut self, slots: u32) {
        let first = self.seat.start;
        for SlotId(slot) in self.numbered(-1) {
            self.slots[slot].pinned = slots & 1 << (slot - first) != 0;
        }
    }

    /// Mark the slot as the most recently used.
    pub fn touch(&mut self, slot: SlotId) {
        self.clock += 1;
        self.slots[slot.0].last_used = self.clock;
    }

    /// The slot's tokens.
    pub fn tokens(&self, slot: SlotId) -> &[Token] {
        &self.slots[slot.0].tokens
    }

    /// The cells of the slot's tokens, one each.
    pub fn cells_of(&self, slot: SlotId) -> &[u32] {
        &self.slots[slot.0].cells
    }

    /// How many of the slot's first tokens came from a file.
    pub fn restored(&self, slot: SlotId) -> usize {
        self.slots[slot.0].restored
    }

    /// The position of the next token.
    pub fn position(&self, slot: SlotId) -> usize {
        self.slots[slot.0].tokens.len()
    }

    /// Tokens that the slot can still take when all other slots are evicted.
    pub fn room(&self, slot: SlotId) -> usize {
        self.context - self.position(slot)
    }

    /// The first token that was computed after other tokens than those that precede it now.
    pub fn stale_from(&self, slot: SlotId) -> Option<usize> {
        self.slots[slot.0].stale_from
    }

    /// Removes the slot's tokens from `n_tokens` on; false where there are none.
    pub fn truncate(&mut self, slot: SlotId, n_tokens: usize) -> bool {
        let s = &mut self.slots[slot.0];
        if n_tokens >= s.tokens.len() {
            return false;
        }
        s.cells.drain(n_tokens..).for_each(|cell| self.cells.release(cell, slot.bit()));
        self.cells.trim(slot.0, next_place(&self.cells, slot, &s.cells));
        s.tokens.truncate(n_tokens);
        s.stale_from = s.stale_from.filter(|&from| from < n_tokens);
        s.restored = s.restored.min(n_tokens);
        self.states.truncate(slot.0, n_tokens);
        self.windows.truncate(slot.0, n_tokens, s.stale_from);
        true
    }

    /// Adds tokens to the slot with the cells that were taken for them, one each.
    pub fn append(&mut self, slot: SlotId, tokens: &[Token], cells: impl IntoIterator<Item = u32>) {
        let s = &mut self.slots[slot.0];
        s.tokens.extend_from_slice(tokens);
        s.cells.extend(cells);
        self.windows.keep(slot.0, s.tokens.len());
    }

    /// Notes that the state after the slot's first `position` tokens, and the windows there, are those of a run.
    pub fn keep(&mut self, slot: SlotId, position: usize, state: u32) {
        self.states.keep(slot.0, position, state);
        self.windows.keep(slot.0, position);
    }

    /// Gives an empty slot these tokens, with cells, in sliding layers for those from `window_from` on; false, and the
    /// slot is empty, where there are too few cells.
    pub fn restore(&mut self, slot: SlotId, tokens: &[Token], window_from: usize, stale_from: Option<usize>) -> bool {
        self.slots[slot.0].tokens.extend_from_slice(tokens);
        for position in 0..tokens.len() {
            let Some(cell) = self.cells.enter(slot.0, position, position as i32, slot.bit()) else {
                self.truncate(slot, 0);
                return false;
            };
            self.slots[slot.0].cells.push(cell);
        }
        if self.windows.restore(slot.0, window_from..tokens.len()).is_none() {
            self.truncate(slot, 0);
            return false;
        }
        let s = &mut self.slots[slot.0];
        (s.stale_from, s.restored) = (stale_from, tokens.len());
        true
    }

    /// Removes a range of tokens from the slot, after the keys of later tokens were moved up.
    pub fn remove(&mut self, slot: SlotId, range: Range<usize>) {
        let s = &mut self.slots[slot.0];
        s.tokens.drain(range.clone());
        s.cells.drain(range.clone()).for_each(|cell| self.cells.release(cell, slot.bit()));
        self.cells.keep_blocks_of(slot.0, &s.cells);
        let places = s.cells.iter().enumerate().skip(range.start);
        places.for_each(|(position, &cell)| self.cells.place(cell, position as i32));
        s.stale_from = Some(s.stale_from.map_or(range.start, |from| from.min(range.start)));
        s.restored = s.restored.min(range.start);
        self.windows.remove(slot.0, range);
    }

    /// The slot to empty next until `slot` can take `n` more tokens: the least recently used that is not pinned or
    /// `busy`, a bit each. `None` where it can, or no slot is left.
    pub fn victim(&self, slot: SlotId, n: usize, busy: u32) -> Option<SlotId> {
        let busy = busy | self.held();
        let idle = |&slot: &SlotId| busy & slot.bit() == 0 && !self.slots[slot.0].pinned && self.position(slot) > 0;
        let short = self.free_for(slot) < n;
        let slots = (0..self.slots.len()).map(SlotId).filter(|_| short).filter(idle);
        slots.min_by_key(|slot| self.slots[slot.0].last_used)
    }

    /// The slot whose prompt to drop next until `n` cells are free for that of `slot`: the least recently used that is
    /// not pinned. `None` where they are free, or no slot is left.
    pub fn source_victim(&self, slot: SlotId, n: usize) -> Option<SlotId> {
        let idle =
            |&other: &SlotId| other != slot && !self.slots[other.0].pinned && !self.sources.tokens(other.0).is_empty();
        let short = self.sources.cells().room(slot.0, 0) < n;
        let slots = (0..self.slots.len()).map(SlotId).filter(|_| short).filter(idle);
        slots.min_by_key(|slot| self.slots[slot.0].last_used)
    }

    /// The place after the slot's tokens.
    pub fn next_place(&self, slot: SlotId) -> usize {
        next_place(&self.cells, slot, self.cells_of(slot))
    }

    /// How many tokens more the slot can take without other slots being emptied.
    pub fn free_for(&self, slot: SlotId) -> usize {
        self.cells.room(slot.0, self.next_place(slot))
    }

    /// Takes the cell at a place of a slot for a position; `sequences` is a slot's bit, or the word of a tree's cell.
    pub fn take_cell(&mut self, slot: SlotId, place: usize, position: i32, sequences: u32) -> Option<u32> {
        self.cells.enter(slot.0, place, position, sequences)
    }

    /// Notes the slot for whose tokens cells stay entered beyond the next pass, or that there is none.
    pub fn set_entering(&mut self, slot: Option<SlotId>) {
        self.entering = slot;
    }

    /// Frees cells that were taken and belong to no slot.
    pub fn free_cells(&mut self, cells: impl IntoIterator<Item = u32>) {
        cells.into_iter().for_each(|cell| self.cells.free(cell));
        for slot in (0..self.slots.len()).map(SlotId).filter(|&slot| self.entering != Some(slot)) {
            self.cells.trim(slot.0, self.next_place(slot));
        }
    }

    /// How many of the slot's last tokens are in a block in which it cannot go on, since another slot did, or one of
    /// `busy`, a bit each, is about to.
    pub fn stuck(&self, slot: SlotId, busy: u32) -> usize {
        let place = self.next_place(slot);
        match self.cells.is_taken(slot.0, place, busy) {
            true => place % LIST_BLOCK,
            false => 0,
        }
    }

    /// Gives the slot a block of its own for its last tokens, where it is [`stuck`](Slots::stuck), whose cells are
    /// still to be copied as `moves` tells; `None` where there is no room.
    pub fn unstick(&mut self, slot: SlotId, moves: &mut Vec<(u32, u32)>) -> Option<()> {
        self.cells.split(slot.0, self.next_place(slot), moves)?;
        let cells = &mut self.slots[slot.0].cells;
        let first = cells.len() - moves.len();
        cells[first..].iter_mut().zip(moves).for_each(|(cell, &mut (_, to))| *cell = to);
        Some(())
    }

    /// The last place up to `position` after which the slot can go on: its state is there, and the windows of its
    /// sliding layers. Of a model without either every place.
    pub fn nearest(&self, slot: SlotId, position: usize) -> usize {
        let (mut place, mut tried) = (position, None);
        while tried != Some(place) {
            tried = Some(place);
            place = self.windows.nearest(slot.0, self.states.nearest(slot.0, place).0);
        }
        place
    }

    /// Whether the slot has what cannot be cut back everywhere.
    pub fn forgets(&self) -> bool {
        self.states.any() || self.windows.any()
    }

    /// Number of places beside the ends of slots after which a prompt can go on.
    pub fn snapshots(&self) -> usize {
        self.states.snapshots() + self.windows.snapshots()
    }

    /// Marks the place after a slot's first `position` tokens as one that a later prompt may go on from.
    pub fn mark(&mut self, slot: SlotId, position: usize) {
        self.states.mark(slot.0, position);
        self.windows.mark(slot.0, position);
    }

    /// The windows of sliding layers.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// The windows of sliding layers.
    pub fn windows_mut(&mut self) -> &mut Windows {
        &mut self.windows
    }

    /// The prompts that an encoder has read.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The prompts that an encoder has read.
    pub fn sources_mut(&mut self) -> &mut Sources {
        &mut self.sources
    }

    /// The cells of [`Table::Window`](crate::backend::Table::Window), and those of a batch's rows.
    pub fn second_table<'a>(&'a self, rows: &'a [u32]) -> TableCells<'a> {
        match self.sources.any() {
            true => self.sources.cells().table(rows),
            false => self.windows.table(rows),
        }
    }

    /// The state cells.
    pub fn states(&self) -> &States {
        &self.states
    }

    /// The state cells.
    pub fn states_mut(&mut self) -> &mut States {
        &mut self.states
    }

    /// The cells, for a batch.
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    /// Notes that every device has the cells as they are now.
    pub fn commit_cells(&mut self) {
        self.cells.commit();
        self.windows.commit();
        self.sources.commit();
    }

    /// Notes that a block's content was copied to a free block, which replaces it.
    pub fn move_block(&mut self, from: u32, to: u32) {
        let listed_by = self.cells.moved(from, to);
        let size = LIST_BLOCK as u32;
        let slots = self.slots.iter_mut().enumerate().filter(|(slot, _)| listed_by & 1 << slot != 0);
        let moved = slots.flat_map(|(_, slot)| &mut slot.cells).filter(|cell| **cell / size == from);
        moved.for_each(|cell| *cell = to * size + *cell % size);
    }

    /// How many of these tokens the slot has, after which it can go on.
    pub fn reusable(&self, slot: SlotId, tokens: &[Token]) -> usize {
        let common = self.tokens(slot).iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last position is evaluated again even when it is in the slot, for its hidden row.
        let usable = self.stale_from(slot).unwrap_or(common).min(tokens.len().saturating_sub(1));
        self.nearest(slot, common.min(usable))
    }

    /// Whether a slot (-1: any) begins with all of these tokens, and a prompt can go on after them.
    pub fn holds(&self, number: i32, tokens: &[Token]) -> bool {
        let mut asked = self.numbered(number);
        if self.sources.any() {
            return asked.any(|slot| self.sources.tokens(slot.0) == tokens);
        }
        let fresh = |slot: SlotId| self.stale_from(slot).is_none_or(|from| from >= tokens.len());
        let mut holding = asked.filter(|&slot| self.tokens(slot).starts_with(tokens) && fresh(slot));
        holding.any(|slot| self.nearest(slot, tokens.len()) == tokens.len())
    }

    /// The slot that has the most of these tokens, after which `slot` could go on, and how many those are: `slot`
    /// itself, where no other has more.
    pub fn longest_prefix(&self, slot: SlotId, tokens: &[Token]) -> (SlotId, usize) {
        let others = (0..self.slots.len()).map(SlotId).filter(|&other| other != slot);
        let of = |slot: SlotId| (slot, self.reusable(slot, tokens));
        others.map(of).fold(of(slot), |best, other| if other.1 > best.1 { other } else { best })
    }

    /// Gives an empty slot the first `n` tokens of another, with the same cells and states. The windows of sliding
    /// layers are still to be copied, as `moves` tells; `None`, and the slot is empty, where there are no cells for
    /// them.
    pub fn share(&mut self, from: SlotId, to: SlotId, n: usize, moves: &mut Vec<(u32, u32)>) -> Option<()> {
        let [source, slot] = self.slots.get_disjoint_mut([from.0, to.0]).ok()?;
        slot.tokens.extend_from_slice(&source.tokens[..n]);
        slot.cells.extend_from_slice(&source.cells[..n]);
        slot.restored = source.restored.min(n);
        slot.cells.iter().for_each(|&cell| self.cells.share(cell, to.bit()));
        self.cells.list_for(from.0, to.0, next_place(&self.cells, from, &slot.cells));
        self.states.share(from.0, to.0, n);
        if self.windows.share(from.0, to.0, n, moves).is_none() {
            self.truncate(to, 0);
            return None;
        }
        Some(())
    }

    /// Whether another slot has cells of this slot's tokens from `n_tokens` on.
    pub fn shares_after(&self, slot: SlotId, n_tokens: usize) -> bool {
        let cells = self.cells_of(slot).get(n_tokens..).unwrap_or_default();
        cells.iter().any(|&cell| self.cells.sequences()[cell as usize] != slot.bit())
    }
}

/// A set of slots, a bit each.
fn bits(slots: Range<usize>) -> u32 {
    slots.map(|slot| SlotId(slot).bit()).sum()
}

/// The place after these cells of a slot.
fn next_place(cells: &Cells, slot: SlotId, of_slot: &[u32]) -> usize {
    of_slot.last().and_then(|&last| cells.place_of(slot.0, last)).map_or(0, |place| place + 1)
}
