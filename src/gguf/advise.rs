//! Hints to the system about pages of a mapped file. Failures are ignored: a hint changes speed and memory, never data.

use memmap2::Mmap;

/// Map the pages of `data`, a part of `map`, ahead of their first use.
#[cfg(unix)]
pub(super) fn will_need(map: &Mmap, data: &[u8]) {
    use memmap2::Advice;
    let Some(offset) = place(map, data) else { return };
    let len = data.len();
    #[cfg(target_os = "linux")]
    if map.advise_range(Advice::PopulateRead, offset, len).is_ok() {
        return;
    }
    let _ = map.advise_range(Advice::WillNeed, offset, len);
}

/// Drop the pages of `map` that lie wholly inside `data`, a part of it.
#[cfg(unix)]
pub(super) fn release(map: &Mmap, data: &[u8]) {
    // SAFETY: sysconf reads a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
    if !page.is_power_of_two() {
        return;
    }
    let Some(offset) = place(map, data) else { return };
    let from = offset.next_multiple_of(page);
    let to = (offset + data.len()) / page * page;
    if from < to {
        // SAFETY: the mapping is of a file and read only, so a dropped page comes back with the file's content.
        let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from) };
    }
}

/// Offset of `data` in `map`; `None` when it is no part of it.
#[cfg(unix)]
fn place(map: &Mmap, data: &[u8]) -> Option<usize> {
    let offset = (data.as_ptr() as usize).checked_sub(map.as_ptr() as usize)?;
    (offset + data.len() <= map.len()).then_some(offset)
}

#[cfg(not(unix))]
pub(super) fn will_need(_: &Mmap, _: &[u8]) {}

#[cfg(not(unix))]
pub(super) fn release(_: &Mmap, _: &[u8]) {}
