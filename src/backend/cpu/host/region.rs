//! Memory that grows only in [`Region::grow`], and where a failed allocation is an error.

use crate::{Error, Result};
use memmap2::MmapMut;

/// Anonymous memory that all threads of a run write in parts that do not overlap.
#[derive(Debug)]
pub(crate) struct Region {
    map: Option<MmapMut>,
    pub base: *mut u8,
    pub bytes: usize,
}

// SAFETY: the pointer is the start of the mapping that the region owns.
unsafe impl Send for Region {}
// SAFETY: as above; the accesses of the steps are each justified where they are made.
unsafe impl Sync for Region {}

impl Default for Region {
    fn default() -> Self {
        Region { map: None, base: std::ptr::null_mut(), bytes: 0 }
    }
}

impl Region {
    pub fn new(what: &str, bytes: usize) -> Result<Region> {
        let mut region = Region::default();
        region.grow(what, bytes)?;
        Ok(region)
    }

    /// Grow to at least `bytes` bytes. Where it grows, the new memory is zeroed and the old content is lost.
    pub fn grow(&mut self, what: &str, bytes: usize) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let no_memory = |e: &dyn std::fmt::Display| Error::OutOfMemory(format!("{bytes} bytes for the {what}: {e}"));
        let physical = physical_memory();
        if bytes as u64 > physical {
            return Err(no_memory(&format!("this machine has {physical}")));
        }
        let mut map = MmapMut::map_anon(bytes).map_err(|e| no_memory(&e))?;
        self.base = map.as_mut_ptr();
        self.bytes = bytes;
        self.map = Some(map);
        Ok(())
    }

    /// All of it as numbers.
    pub fn floats(&mut self) -> &mut [f32] {
        match &mut self.map {
            // SAFETY: the mapping begins at a page, is as long as this, and is borrowed for the slice's life; any bits
            // are an f32.
            Some(map) => unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), self.bytes / 4) },
            None => &mut [],
        }
    }
}

/// Bytes of memory in this machine; `u64::MAX` where the system does not report it.
fn physical_memory() -> u64 {
    #[cfg(unix)]
    {
        // SAFETY: sysconf reads a constant of the system.
        let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        if let (Ok(pages), Ok(size)) = (u64::try_from(pages), u64::try_from(size)) {
            return pages.saturating_mul(size);
        }
    }
    u64::MAX
}
