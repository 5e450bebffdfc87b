//! What a host holds: numbers, not addresses. A number is given once in the life of the process, so one that was
//! closed, guessed or of another kind is an error and never read as memory.

use crate::edge::invalid;
use elizainference::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The open objects of one kind.
pub(crate) struct Table<T> {
    /// What an error calls one.
    name: &'static str,
    open: Mutex<BTreeMap<usize, Arc<T>>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(name: &'static str) -> Table<T> {
        Table { name, open: Mutex::new(BTreeMap::new()) }
    }

    /// Enters an object, and gives its number. It is positive, and JavaScript keeps it exactly.
    pub(crate) fn insert(&self, object: Arc<T>) -> usize {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(number, object);
        number
    }

    /// The object of a handle. Whoever holds it keeps it alive; the lock is held for the look-up alone.
    pub(crate) fn get<H>(&self, handle: *mut H) -> Result<Arc<T>> {
        let found = self.open.lock().get(&handle.addr()).cloned();
        found.ok_or_else(|| match handle.is_null() {
            true => invalid(format!("the {} is NULL", self.name)),
            false => invalid(format!("the {} is not open: it was closed, or is not one", self.name)),
        })
    }

    /// Takes an object out; from now on its handle means nothing.
    pub(crate) fn remove<H>(&self, handle: *mut H) -> Option<Arc<T>> {
        self.open.lock().remove(&handle.addr())
    }

    /// Takes out those for which `chosen` says so.
    pub(crate) fn remove_all(&self, mut chosen: impl FnMut(&T) -> bool) -> Vec<Arc<T>> {
        let mut open = self.open.lock();
        let gone: Vec<usize> = open.iter().filter(|(_, object)| chosen(object)).map(|(&number, _)| number).collect();
        gone.iter().filter_map(|number| open.remove(number)).collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.open.lock().values().cloned().collect()
    }
}
