//! The memory of packed weights: the process's own, or a part of a cache file that all processes share.

#[cfg(target_os = "linux")]
use crate::backend::cpu::host::pool::Pool;
use crate::{Error, Result};
use memmap2::{Mmap, MmapMut, MmapRaw};
use std::ops::Range;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(target_os = "linux")]
use std::time::Instant;

/// Memory that begins at a multiple of 64 bytes and is read by all threads.
pub(super) enum PanelMemory {
    /// Anonymous memory, which is filled once.
    Owned(Arc<MmapRaw>),
    /// Bytes of a file that is mapped for reading.
    Mapped(Arc<Mmap>, Range<usize>),
}

impl PanelMemory {
    /// Zeroed memory of this process.
    pub fn owned(bytes: usize, what: &dyn std::fmt::Display) -> Result<PanelMemory> {
        let no_memory = |error| Error::OutOfMemory(format!("{bytes} bytes for {what}: {error}"));
        let memory = MmapMut::map_anon(bytes).map_err(no_memory)?;
        Ok(PanelMemory::Owned(Arc::new(memory.into())))
    }

    /// A part of a mapped file, `None` where the file does not reach so far or the part begins in the middle of 64
    /// bytes.
    pub fn mapped(file: Arc<Mmap>, part: Range<usize>) -> Option<PanelMemory> {
        let fits = part.start <= part.end && part.end <= file.len() && part.start.is_multiple_of(64);
        fits.then_some(PanelMemory::Mapped(file, part))
    }

    pub fn len(&self) -> usize {
        match self {
            PanelMemory::Owned(memory) => memory.len(),
            PanelMemory::Mapped(_, part) => part.len(),
        }
    }

    pub fn start(&self) -> *const u8 {
        match self {
            PanelMemory::Owned(memory) => memory.as_ptr(),
            PanelMemory::Mapped(file, part) => file.as_ptr().wrapping_add(part.start),
        }
    }

    /// As [`PanelMemory::start`], for writing; `None` for a file.
    pub fn start_mut(&mut self) -> Option<*mut u8> {
        match self {
            PanelMemory::Owned(memory) => Some(memory.as_mut_ptr()),
            PanelMemory::Mapped(..) => None,
        }
    }

    /// Give a piece back to the system, where that is possible: own memory is free then, a file's is unmapped.
    ///
    /// # Safety
    /// Nobody reads this memory any more.
    pub unsafe fn give_back(&self, piece: Range<usize>) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: own pages are zeros if they are read again, pages of a file are read from it again; nobody does,
            // as the caller promises.
            let done = unsafe {
                match self {
                    PanelMemory::Owned(memory) => memory.unchecked_advise_range(advice, piece.start, piece.len()),
                    PanelMemory::Mapped(file, part) => {
                        file.unchecked_advise_range(advice, part.start + piece.start, piece.len())
                    }
                }
            };
            if let Err(error) = done {
                log::debug!("Weights are freed at once: {error}");
            }
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = piece;
    }
}

/// Moves own memory, which is filled, to huge pages: a token's weights are read 1.1 to 1.5 times as fast from there.
///
/// It is done in the background of the pool while the weights are in use already: it takes 0.3 ms for each MiB, and
/// several times as long where pages come from a host that has to be asked for each.
#[cfg(target_os = "linux")]
pub(super) fn join_pages<'a>(all: impl Iterator<Item = &'a PanelMemory>, threads: usize) {
    let own = all.filter_map(|memory| match memory {
        PanelMemory::Owned(memory) => Some(memory.clone()),
        PanelMemory::Mapped(..) => None,
    });
    let own: Vec<_> = own.collect();
    if own.iter().map(|memory| memory.len()).sum::<usize>() < HUGE_PAGE {
        return;
    }
    let work = move || {
        if let Err(error) = join(own, threads) {
            log::debug!("Weights stay on small pages: {error}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("eliza-pages".into()).spawn(work) {
        log::debug!("Weights stay on small pages: {error}");
    }
}

/// Bytes of a huge page, on most processors.
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

/// Pages are joined for this part of the time of runs meanwhile: they are in use already, and the first tokens after an
/// open are not to be slower for it.
#[cfg(target_os = "linux")]
const JOIN_PART: u32 = 32;

/// `man 2 madvise`, since Linux 6.1; not in all of `libc`'s targets.
#[cfg(target_os = "linux")]
const MADV_COLLAPSE: libc::c_int = 25;

/// Joins pages, also across mappings that follow each other: most matrices are smaller than a huge page or not much
/// larger. Ends early where nobody else holds the memory any more.
#[cfg(target_os = "linux")]
fn join(mut all: Vec<Arc<MmapRaw>>, threads: usize) -> Result<()> {
    /// No page is smaller, so mappings that are less apart have nothing between them.
    const PAGE: usize = 4 << 10;
    all.sort_unstable_by_key(|memory| memory.as_ptr());
    let end = |memory: &MmapRaw| memory.as_ptr().addr() + memory.len();
    let mut huge = Vec::new();
    for run in all.chunk_by(|a, b| b.as_ptr().addr() - end(a) < PAGE) {
        let (start, end) = (run[0].as_ptr().addr(), run.last().map_or(0, |memory| end(memory)));
        huge.extend((start.next_multiple_of(HUGE_PAGE)..end).step_by(HUGE_PAGE).filter(|at| at + HUGE_PAGE <= end));
    }
    // For what cannot be joined now, and for older systems, which join pages by and by.
    for memory in &all {
        memory.advise(memmap2::Advice::HugePage).map_err(|e| Error::Internal(format!("madvise: {e}")))?;
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |until: Instant| {
        while let Some(&at) = huge.get(next.fetch_add(1, Ordering::Relaxed)) {
            let page = std::ptr::without_provenance_mut(at);
            // SAFETY: the page is mapped, as `all` holds it; what it holds stays as it is.
            let joined = unsafe { libc::madvise(page, HUGE_PAGE, MADV_COLLAPSE) } == 0;
            failed.fetch_add(usize::from(!joined), Ordering::Relaxed);
            if Instant::now() >= until {
                break;
            }
        }
    };
    let mut look = || Ok(next.load(Ordering::Relaxed) < huge.len() && Arc::strong_count(&all[0]) > 1);
    Pool::global().background(threads, JOIN_PART, &work, &mut look)?;
    match failed.load(Ordering::Relaxed) {
        0 => Ok(()),
        failed => Err(Error::Internal(format!("{failed} of {} huge pages could not be had", huge.len()))),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Bytes of huge pages in this process's mappings around `p`.
    fn huge_bytes(p: *const u8) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut around = false;
        let mut kib = 0;
        for line in maps.lines() {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            if let Some((start, end)) = words[0].split_once('-') {
                let range = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
                around = (range[0]..range[1]).contains(&p.addr());
            } else if around && words[0] == "AnonHugePages:" {
                kib += words[1].parse::<usize>().unwrap();
            }
        }
        kib << 10
    }

    /// Memory of so many bytes, each of them written.
    fn filled(bytes: usize) -> Arc<MmapRaw> {
        let mut memory = MmapMut::map_anon(bytes).unwrap();
        (0..).zip(memory.iter_mut()).for_each(|(i, byte): (usize, _)| *byte = (i * 7 + bytes) as u8);
        Arc::new(memory.into())
    }

    #[test]
    fn joined_pages_hold_what_they_held() {
        // Some are smaller than a page; most follow each other.
        let all = [1, 3 * HUGE_PAGE + 5, 100, 35 * HUGE_PAGE, 4097, HUGE_PAGE - 1].map(filled);
        let joined = join(all.to_vec(), 2);
        for memory in &all {
            // SAFETY: the mapping is as long as this, and nobody writes to it any more.
            let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) };
            let right = |(i, &byte): (usize, &u8)| byte == (i * 7 + memory.len()) as u8;
            assert!((0..).zip(bytes).all(right), "{} bytes were changed", memory.len());
        }
        // Where the system does it at all: an emulator may take the advice and do nothing.
        let probe = filled(2 * HUGE_PAGE);
        // SAFETY: the mapping is as long as this; what it holds stays as it is.
        unsafe { libc::madvise(probe.as_mut_ptr().cast(), probe.len(), MADV_COLLAPSE) };
        if huge_bytes(probe.as_ptr()) > 0 {
            assert!(huge_bytes(all[3].as_ptr()) >= HUGE_PAGE, "{joined:?}");
        }
    }
}
