//! The memory of packed weights: the process's own, or a part of a cache file that all processes share.

use crate::{Error, Result};
use memmap2::{Mmap, MmapMut};
use std::ops::Range;
use std::sync::Arc;

/// Memory that begins at a multiple of 64 bytes and is read by all threads.
pub(super) enum PanelMemory {
    /// Anonymous memory, which is filled once.
    Owned(MmapMut),
    /// Bytes of a file that is mapped for reading.
    Mapped(Arc<Mmap>, Range<usize>),
}

impl PanelMemory {
    /// Zeroed memory of this process.
    pub fn owned(bytes: usize, what: &dyn std::fmt::Display) -> Result<PanelMemory> {
        let no_memory = |error| Error::OutOfMemory(format!("{bytes} bytes for {what}: {error}"));
        MmapMut::map_anon(bytes).map(PanelMemory::Owned).map_err(no_memory)
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

    /// Tell the system that huge pages would serve this memory well.
    pub fn prefer_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if let PanelMemory::Owned(memory) = self
            && let Err(error) = memory.advise(memmap2::Advice::HugePage)
        {
            log::debug!("Weights stay on small pages: {error}");
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
