//! The bytes of a file. Of a file on disk only the header is kept in memory, and everything else is read when it is
//! needed; a file in memory is kept as a whole.
//!
//! The file is not mapped into memory. Reading a mapped page of a file that was truncated ends the process by a signal,
//! and a mapping shows later writes to the file. Here a read that is too short, or that was made after the file was
//! changed or deleted, is an error. The open descriptor still has the bytes of a deleted file, but what runs is then no
//! longer the model under that name, and no one can open it again.

use crate::reserve;
use crate::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes of the first read of a header; every further read doubles the size.
const FIRST_READ: usize = 1 << 20;

/// See the module's documentation.
pub(super) struct Source {
    /// The first bytes of the file, or all of them.
    head: Vec<u8>,
    /// The rest of the bytes, where the file is on disk.
    disk: Option<Disk>,
}

struct Disk {
    path: PathBuf,
    file: fs::File,
    stamp: Stamp,
}

/// Properties of a file that change when it is written to or deleted.
#[derive(PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Whether any name is left. A file may have none from the beginning (`/proc/self/fd/N` of a temporary file).
    named: bool,
}

impl Stamp {
    fn of(file: &fs::File) -> std::io::Result<Stamp> {
        let now = file.metadata()?;
        Ok(Stamp { bytes: now.len(), modified: now.modified().ok(), named: has_name(&now) })
    }
}

impl Disk {
    fn open(path: &Path) -> std::io::Result<Disk> {
        let file = open_regular(path)?;
        Ok(Disk { path: path.into(), stamp: Stamp::of(&file)?, file })
    }

    /// Fill `out` from byte `at` on. The bytes are those of the file as it was opened: a write changes the stamp before
    /// the bytes.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let failed = |e: &std::io::Error| Error::io(&self.path, e);
        let mut done = 0;
        while done < out.len() {
            match read_at(&self.file, at + done as u64, &mut out[done..]) {
                Ok(0) => return Err(self.changed()),
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(&e)),
            }
        }
        match Stamp::of(&self.file).map_err(|e| failed(&e))? {
            now if now == self.stamp => Ok(()),
            now if now.named == self.stamp.named => Err(self.changed()),
            _ => Err(self.no_longer("deleted or replaced")),
        }
    }

    fn changed(&self) -> Error {
        self.no_longer("changed")
    }

    fn no_longer(&self, how: &str) -> Error {
        let message = format!("the file was {how} after it was opened; close its handles and open it again");
        Error::Io { path: self.path.clone(), message }
    }
}

impl Source {
    /// The file at `path`, of which nothing is read yet.
    pub fn open(path: &Path) -> Result<Source> {
        let disk = Disk::open(path).map_err(|e| Error::io(path, &e))?;
        Ok(Source { head: Vec::new(), disk: Some(disk) })
    }

    /// A file in memory.
    pub fn in_memory(bytes: Vec<u8>) -> Source {
        Source { head: bytes, disk: None }
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.disk.as_ref().map_or(self.head.len() as u64, |disk| disk.stamp.bytes)
    }

    /// When the file on disk was modified last before it was opened.
    pub fn modified(&self) -> Option<SystemTime> {
        self.disk.as_ref()?.stamp.modified
    }

    /// The first bytes, as far as [`Source::need`] has read them.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Read the bytes up to `end`, which is within the file, to [`Source::head`].
    pub fn need(&mut self, end: usize) -> Result<()> {
        let have = self.head.len();
        let Some(disk) = self.disk.as_ref().filter(|_| end > have) else { return Ok(()) };
        let most = usize::try_from(disk.stamp.bytes).unwrap_or(usize::MAX);
        let wanted = have.saturating_mul(2).max(FIRST_READ).max(end).min(most);
        self.head
            .try_reserve_exact(wanted - have)
            .map_err(|_| reserve::no_memory(wanted, 1, "bytes of a file's header"))?;
        self.head.resize(wanted, 0);
        disk.read(have as u64, &mut self.head[have..])
    }

    /// Keep the first `end` bytes alone in memory, where there are others on disk.
    pub fn keep_head(&mut self, end: usize) {
        if self.disk.is_some() {
            self.head.truncate(end);
            self.head.shrink_to_fit();
        }
    }

    /// Fill `out` from byte `at` on; an error that says so where the file does not reach that far.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(()); // A tensor without elements may start after the last byte.
        }
        let span = usize::try_from(at).ok().and_then(|at| Some(at..at.checked_add(out.len())?));
        if let Some(bytes) = span.and_then(|span| self.head.get(span)) {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        match &self.disk {
            Some(disk) => disk.read(at, out),
            None => Err(Error::Internal(format!("{} bytes at {at} of a file of {}", out.len(), self.len()))),
        }
    }
}

/// Open a regular file for reading; anything else with a path is refused, since opening a pipe would wait for its other
/// end.
pub(crate) fn open_regular(path: &Path) -> std::io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(std::io::Error::other("it is a directory"));
    }
    if !kind.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Whether a name of the file is left: its last one goes when it is deleted, or when another file takes the name.
#[cfg(unix)]
fn has_name(file: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(file) > 0
}

/// Windows does not tell.
#[cfg(windows)]
fn has_name(_: &fs::Metadata) -> bool {
    true
}

/// One read at an offset, which may return less than requested.
#[cfg(unix)]
fn read_at(file: &fs::File, at: u64, out: &mut [u8]) -> std::io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, at)
}

#[cfg(windows)]
fn read_at(file: &fs::File, at: u64, out: &mut [u8]) -> std::io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, at)
}
