//! The merge loop that SPM and BPE share: join neighbours, the best pair first, until none can be joined.
//!
//! A pair's priority is a number, lower first; among equals the leftmost goes first. The queue holds one word per
//! candidate, priority above position, so its order is that rule. An entry is stale when the symbol at its position
//! no longer forms a pair of that priority with its neighbour; nothing else needs to be remembered.

use super::pace::Pace;
use crate::{Result, reserve};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Marks the end of the list in both directions.
pub(super) const NONE: u32 = u32::MAX;

/// A stretch of the text that is one unit so far.
#[derive(Clone, Copy)]
pub(super) struct Symbol {
    /// First byte of the stretch.
    pub(super) start: u32,
    /// Bytes of the stretch; 0 once it was joined to its left neighbour.
    pub(super) len: u32,
    /// Id of the stretch's text, [`NONE`] if it has none.
    pub(super) id: u32,
    prev: u32,
    next: u32,
    priority: u32,
    joined: u32,
}

impl Symbol {
    /// The bytes of the stretch, as a range of the text.
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

/// What memory is for, in errors.
const PAIRS: &str = "pairs of a text";
pub(super) const TOKENS: &str = "tokens of a text";

/// Buffers of one call, kept from word to word.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) merger: Merger,
    pub(super) written: Vec<u8>,
    /// The longest token that begins at each byte.
    pub(super) longest: Vec<u32>,
}

/// The symbols of one piece of text and their queue; kept between pieces so that nothing is allocated for each.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Forget the last piece; the next one has at most `symbols` symbols.
    pub(super) fn clear(&mut self, symbols: usize) -> Result<()> {
        self.symbols.clear();
        reserve::reserve(&mut self.symbols, symbols, "symbols of a text")
    }

    /// Append a symbol of `len` bytes after the last one.
    #[inline]
    pub(super) fn push(&mut self, len: usize, id: u32) {
        let at = self.symbols.len() as u32;
        let start = self.symbols.last().map_or(0, |last| last.start + last.len);
        let prev = at.wrapping_sub(1);
        self.symbols.push(Symbol { start, len: len as u32, id, prev, next: at + 1, priority: NONE, joined: NONE });
    }

    /// Join pairs until none is left. `pair` gives the priority (below [`NONE`]) of joining two neighbours and the id
    /// of the result.
    pub(super) fn run(&mut self, pace: &Pace<'_>, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) -> Result<()> {
        let Merger { symbols, queue } = self;
        let Some(last) = symbols.last_mut() else { return Ok(()) };
        last.next = NONE;
        // The pair that begins at a symbol, noted in the symbol; its queue entry if there is one.
        let consider = |symbols: &mut [Symbol], left: u32| {
            let right = symbols[left as usize].next;
            let found = if right == NONE { None } else { pair(&symbols[left as usize], &symbols[right as usize]) };
            let symbol = &mut symbols[left as usize];
            (symbol.priority, symbol.joined) = found.unwrap_or((NONE, NONE));
            found.map(|(priority, _)| Reverse(u64::from(priority) << 32 | u64::from(left)))
        };
        let mut entries = std::mem::take(queue).into_vec();
        entries.clear();
        for left in 0..symbols.len() as u32 {
            pace.spend(1)?;
            if let Some(entry) = consider(symbols, left) {
                reserve::push(&mut entries, entry, PAIRS)?;
            }
        }
        *queue = BinaryHeap::from(entries);
        while let Some(Reverse(entry)) = queue.pop() {
            // A pair's text may have to be read, a long one in several steps.
            let length = symbols[entry as u32 as usize].len as usize;
            pace.spend(2 + length / 64)?;
            queue.try_reserve(2).map_err(|_| reserve::no_memory(queue.len(), size_of::<u64>(), PAIRS))?;
            let (priority, left) = ((entry >> 32) as u32, entry as u32);
            let symbol = symbols[left as usize];
            if symbol.priority != priority {
                continue;
            }
            let right = symbols[symbol.next as usize];
            symbols[symbol.next as usize].len = 0;
            symbols[symbol.next as usize].priority = NONE;
            symbols[left as usize].len += right.len;
            symbols[left as usize].id = symbol.joined;
            symbols[left as usize].next = right.next;
            if let Some(after) = symbols.get_mut(right.next as usize) {
                after.prev = left;
            }
            queue.extend(consider(symbols, left));
            if symbol.prev != NONE {
                queue.extend(consider(symbols, symbol.prev));
            }
        }
        Ok(())
    }

    /// The symbols that remain, from left to right.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|s| s.len > 0)
    }
}
