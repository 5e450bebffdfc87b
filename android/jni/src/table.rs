//! The open sessions by number. A number is given once in the life of the process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use elizainference::session::Session;

use crate::edge::Failure;

static OPEN: Mutex<BTreeMap<i64, Arc<Session>>> = Mutex::new(BTreeMap::new());

fn open() -> MutexGuard<'static, BTreeMap<i64, Arc<Session>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters a session, and gives its number, which is positive.
pub(crate) fn insert(session: Session) -> i64 {
    static LAST: AtomicI64 = AtomicI64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    open().insert(number, Arc::new(session));
    number
}

/// The session of this number. Whoever holds it keeps it alive; the lock is held for the look-up alone.
pub(crate) fn get(number: i64) -> Result<Arc<Session>, Failure> {
    open().get(&number).cloned().ok_or(Failure::Closed)
}

/// Takes a session out; from now on its number means nothing.
pub(crate) fn remove(number: i64) -> Option<Arc<Session>> {
    open().remove(&number)
}
