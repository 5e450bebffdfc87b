//! Handles: what a host holds is a number, never an address.
//!
//! A handle is a table index in its low bits and the entry's generation above; the generation is incremented when the
//! entry is freed, so a handle that was closed, guessed or mixed up with a real pointer matches no entry and is an
//! error instead of a crash. It is never 0 and fits 52 bits, so that hosts which keep pointers in a double lose nothing
//! (index 20, generation 32 bits; 12 and 20 where pointers have 32). An entry whose generations are used up is retired.
//!
//! The table's lock is held for a look-up only, never while a callback or blocking work runs: a look-up returns a
//! shared reference, and a call that is still running on a handle keeps what it needs alive after a close.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::state::Stream;
use crate::{Error, Result};

/// An open model with its own context. The type is only used by pointer, and that pointer is a number.
pub struct LlmSession {
    _opaque: [u8; 0],
}

/// An open model with its own context, or with a slot of another handle's, and one generation at a time.
///
/// Made by `eliza_inference_llm_stream_open`, `..._open_ex` or `..._open_slot`, ended by
/// `eliza_inference_llm_stream_close`. It is a token of at most 52 bits, not an address: never dereference it. NULL
/// means failure. Any call on a handle that is NULL, closed or not ours returns -1 (NULL where a pointer is returned),
/// and `eliza_inference_take_last_error` has the reason.
pub type FfiLlmHandle = *mut LlmSession;

const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 32;

static STREAMS: Mutex<Table<Stream>> = Mutex::new(Table::new());

/// Puts a stream into the table.
pub(super) fn insert(stream: Stream) -> Result<FfiLlmHandle> {
    Ok(std::ptr::without_provenance_mut(STREAMS.lock().insert(Arc::new(stream))?))
}

/// The stream of a handle, if it is open.
pub(super) fn get(handle: FfiLlmHandle) -> Option<Arc<Stream>> {
    STREAMS.lock().get(handle.addr())
}

/// Removes the stream from the table, if it is open; after that the handle is stale.
pub(super) fn remove(handle: FfiLlmHandle) -> Option<Arc<Stream>> {
    STREAMS.lock().remove(handle.addr())
}

struct Entry<T> {
    generation: usize,
    value: Option<Arc<T>>,
}

struct Table<T> {
    entries: Vec<Entry<T>>,
    /// Free entries, the one that was freed first comes first, so that generations are used up evenly.
    free: VecDeque<usize>,
}

impl<T> Table<T> {
    const CAPACITY: usize = 1 << INDEX_BITS;
    const LAST_GENERATION: usize = ((1_u64 << GENERATION_BITS) - 1) as usize;

    const fn new() -> Self {
        Table { entries: Vec::new(), free: VecDeque::new() }
    }

    fn insert(&mut self, value: Arc<T>) -> Result<usize> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.entries.len() < Self::CAPACITY => {
                self.entries.push(Entry { generation: 1, value: None });
                self.entries.len() - 1
            }
            None => return Err(Error::OutOfMemory(format!("All {} handles are in use", Self::CAPACITY))),
        };
        let entry =
            self.entries.get_mut(index).ok_or_else(|| Error::Internal(format!("Handle entry {index} is missing")))?;
        entry.value = Some(value);
        Ok(entry.generation << INDEX_BITS | index)
    }

    fn get(&self, token: usize) -> Option<Arc<T>> {
        let entry = self.entries.get(token % Self::CAPACITY)?;
        if entry.generation == token >> INDEX_BITS { entry.value.clone() } else { None }
    }

    fn remove(&mut self, token: usize) -> Option<Arc<T>> {
        let index = token % Self::CAPACITY;
        let entry = self.entries.get_mut(index)?;
        if entry.generation != token >> INDEX_BITS {
            return None;
        }
        let value = entry.value.take()?;
        if entry.generation < Self::LAST_GENERATION {
            entry.generation += 1;
            self.free.push_back(index);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn closed_foreign_and_null_tokens_name_nothing() {
        let mut table = Table::new();
        let first = table.insert(Arc::new("a")).unwrap();
        assert!(first != 0 && (first as u64) < 1 << 52);
        assert_eq!(table.remove(first).as_deref(), Some(&"a"));
        assert!(table.remove(first).is_none() && table.get(first).is_none());
        let second = table.insert(Arc::new("b")).unwrap();
        assert_eq!(second % (1 << INDEX_BITS), first % (1 << INDEX_BITS), "the entry is used again");
        assert!(table.get(first).is_none());
        assert_eq!(table.get(second).as_deref(), Some(&"b"));
        let address = (&raw const table).addr();
        for foreign in [0, 1, usize::MAX, address, second + 1, second ^ (1 << INDEX_BITS)] {
            assert!(table.get(foreign).is_none(), "{foreign:#x}");
        }
    }

    #[test]
    fn an_entry_whose_generations_are_used_up_is_retired() {
        let mut table = Table::new();
        let token = table.insert(Arc::new(0)).unwrap();
        table.entries[0].generation = Table::<i32>::LAST_GENERATION;
        let last = Table::<i32>::LAST_GENERATION << INDEX_BITS;
        assert!(table.get(token).is_none());
        assert!((last as u64) < 1 << 52);
        assert!(table.remove(last).is_some());
        assert!(table.get(last).is_none() && table.remove(last).is_none());
        assert_eq!(table.insert(Arc::new(1)).unwrap() % Table::<i32>::CAPACITY, 1);
    }

    proptest! {
        /// Against a map that never reuses anything.
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0..3_u8, any::<prop::sample::Index>()), 0..200)) {
            let mut table = Table::new();
            let mut open: BTreeMap<usize, usize> = BTreeMap::new();
            let mut seen = Vec::new();
            for (step, (action, pick)) in steps.into_iter().enumerate() {
                if action == 0 || seen.is_empty() {
                    let token = table.insert(Arc::new(step)).unwrap();
                    prop_assert!(!seen.contains(&token));
                    seen.push(token);
                    open.insert(token, step);
                } else {
                    let token = *pick.get(&seen);
                    let found = if action == 1 { table.get(token) } else { table.remove(token) };
                    prop_assert_eq!(found.as_deref(), open.get(&token));
                    if action == 2 {
                        open.remove(&token);
                    }
                }
            }
        }
    }
}
