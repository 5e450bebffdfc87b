//! Allocation of memory whose size a file or a host determines: where it fails, an error that names the use, never an
//! abort.

use crate::{Error, Result};

/// The error of a reservation that failed: of `count` elements of `size` bytes.
pub(crate) fn no_memory(count: usize, size: usize, what: &str) -> Error {
    Error::OutOfMemory(format!("no room for {count} {what} of {size} bytes"))
}

/// Reserves memory for `more` elements after the present ones. `what` names the elements in the error.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize, what: &str) -> Result<()> {
    list.try_reserve(more).map_err(|_| no_memory(list.len().saturating_add(more), size_of::<T>(), what))
}

/// An empty list with room for `count` elements.
pub(crate) fn list<T>(count: usize, what: &str) -> Result<Vec<T>> {
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
