//! Allocation of memory whose size a file or a host determines: where it fails, an error that names the use, never an
//! abort.

use crate::{Error, Result};
#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering};

/// The error of a reservation that failed: of `count` elements of `size` bytes.
pub(crate) fn no_memory(count: usize, size: usize, what: &str) -> Error {
    Error::OutOfMemory(format!("no room for {count} {what} of {size} bytes"))
}

/// One in so many reservations fails; none where it is 0.
#[cfg(feature = "testing")]
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// For tests: from now on one in so many reservations of the whole process fails, 0 for none.
#[cfg(feature = "testing")]
pub fn refuse_one_in(many: u64) {
    REFUSED.store(many, Ordering::Relaxed);
}

/// Fails where a test wants it.
#[cfg(feature = "testing")]
fn refuse(count: usize, size: usize, what: &str) -> Result<()> {
    static RESERVATIONS: AtomicU64 = AtomicU64::new(0);
    let (many, at) = (REFUSED.load(Ordering::Relaxed), RESERVATIONS.fetch_add(1, Ordering::Relaxed));
    if many > 0 && at % many == 0 { Err(no_memory(count, size, what)) } else { Ok(()) }
}

#[cfg(not(feature = "testing"))]
fn refuse(_: usize, _: usize, _: &str) -> Result<()> {
    Ok(())
}

/// Reserves memory for `more` elements after the present ones. `what` names the elements in the error.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize, what: &str) -> Result<()> {
    refuse(list.len().saturating_add(more), size_of::<T>(), what)?;
    list.try_reserve(more).map_err(|_| no_memory(list.len().saturating_add(more), size_of::<T>(), what))
}

/// An empty list with room for `count` elements.
pub(crate) fn list<T>(count: usize, what: &str) -> Result<Vec<T>> {
    refuse(count, size_of::<T>(), what)?;
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| no_memory(count, size_of::<T>(), what))?;
    Ok(list)
}

/// A list of `count` equal elements.
pub(crate) fn filled<T: Clone>(value: T, count: usize, what: &str) -> Result<Vec<T>> {
    let mut filled = list(count, what)?;
    filled.resize(count, value);
    Ok(filled)
}

/// Resizes the list to `count` elements; new elements are zero.
pub(crate) fn resize<T: Copy + Default>(list: &mut Vec<T>, count: usize, what: &str) -> Result<()> {
    reserve(list, count.saturating_sub(list.len()), what)?;
    list.resize(count, T::default());
    Ok(())
}

/// A copy of elements.
pub(crate) fn copied<T: Copy>(elements: &[T], what: &str) -> Result<Vec<T>> {
    let mut copied = list(elements.len(), what)?;
    copied.extend_from_slice(elements);
    Ok(copied)
}

/// Appends one element.
#[inline]
pub(crate) fn push<T>(list: &mut Vec<T>, element: T, what: &str) -> Result<()> {
    if list.len() == list.capacity() {
        reserve(list, 1, what)?;
    }
    list.push(element);
    Ok(())
}

/// Appends a copy of elements.
#[inline]
pub(crate) fn extend<T: Copy>(list: &mut Vec<T>, elements: &[T], what: &str) -> Result<()> {
    reserve(list, elements.len(), what)?;
    list.extend_from_slice(elements);
    Ok(())
}
