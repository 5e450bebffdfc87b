//! Packed weights kept on disk between processes, and mapped by all who use them.
//!
//! Files are kept in the folder `ELIZA_CACHE_DIR`, one for each model file, set of matrices, layout and instruction
//! set; without the variable or the folder there is no cache. A file is a header of one page, then the panels of every
//! matrix from a multiple of a page on. Where each begins is computed, not read, so a file cannot lead beyond its end:
//! it is used if its length is what the matrices need and its header is, byte for byte, the one that would be written.
//!
//! Three things make a file trustworthy. Nobody else can have written it (`backend/own_files.rs`). It has its name only
//! from when it was complete. And where it was written before the machine was last started, it is used only if it was
//! on the disk before: a crash of the system may keep a file's name and lose its content. So a header has the identity
//! of the system's start, and [`SYNCED`] after it once the disk has everything.
//!
//! No failure here is an error: it is logged, and weights are packed into memory.

use crate::backend::memory::parse_bytes;
use crate::backend::own_files::{create_beside, refuse_others};
use crate::gguf::{File, TensorInfo, open_regular, shown};
use crate::simd::Isa;
use crate::{Error, Result, disk};
use memmap2::Mmap;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Raised whenever a panel of some type lies in other bytes than before; see the test `a_new_layout_has_a_new_number`.
pub(super) const LAYOUT: u32 = 2;

const MAGIC: [u8; 8] = *b"elizawt1";
/// After the header, once everything before it is on the disk.
const SYNCED: [u8; 8] = *b"synced.\n";
type Hash = [u8; 32];
const HEADER: usize = MAGIC.len() + size_of::<u64>() + 3 * size_of::<Hash>();

/// What everything in a file begins at a multiple of.
const PAGE: usize = 4096;
/// Names of the files begin so; then comes a part of the key, and for a file that is written, something unique.
const NAME: &str = "weights-";
const NAME_BYTES: usize = 16;

/// Bytes of all files together, unless `ELIZA_CACHE_BYTES` says otherwise.
const MOST: u64 = 8 << 30;

/// Nobody completes a file any more that nothing was written to for so long.
pub(super) const GIVEN_UP: Duration = Duration::from_secs(600);

/// Bytes of each matrix that are a part of the key.
const SAMPLE: usize = 64;

/// The folder of the cache.
#[derive(Clone)]
pub(super) struct Folder {
    pub path: PathBuf,
    /// The most bytes of all files.
    pub most: u64,
    /// The identity of the system's start, where it has one.
    pub start: Option<Hash>,
}

impl Folder {
    /// The folder that the environment names, if it exists.
    pub fn from_environment() -> Option<Folder> {
        let most = std::env::var("ELIZA_CACHE_BYTES").unwrap_or_default();
        let start = fs::read("/proc/sys/kernel/random/boot_id").ok().map(|text| Sha256::digest(text).into());
        Folder::named(&std::env::var_os("ELIZA_CACHE_DIR")?, &most, start)
    }

    /// The folder of this name, if there is one, and the most bytes of all files as text, empty for [`MOST`].
    fn named(path: &OsStr, most: &str, start: Option<Hash>) -> Option<Folder> {
        let path = PathBuf::from(path);
        if path.as_os_str().is_empty() || !path.is_dir() {
            return None;
        }
        let known = if most.is_empty() { Some(MOST) } else { parse_bytes(most) };
        let most = known.unwrap_or_else(|| {
            log::warn!("ELIZA_CACHE_BYTES: `{}` is no size such as 8G; {MOST} is taken", shown(most));
            MOST
        });
        Some(Folder { path, most, start })
    }
}

/// The place of a model's packed matrices in the cache.
pub(super) struct Place {
    folder: Folder,
    key: Hash,
    file: PathBuf,
    /// Where each matrix is in the file.
    pub parts: Vec<Range<usize>>,
    bytes: usize,
}

impl Place {
    /// The place of these matrices of `file`, each with the bytes of its panels. `None` where there is none: for no
    /// matrices, and for a file in memory or without a time of modification.
    pub fn find(folder: Folder, file: &File, matrices: &[(&TensorInfo, usize)]) -> Option<Place> {
        let (mut parts, mut bytes) = (Vec::with_capacity(matrices.len()), PAGE);
        for (_, panels) in matrices {
            let end = bytes.checked_add(*panels)?;
            parts.push(bytes..end);
            bytes = end.checked_next_multiple_of(PAGE)?;
        }
        let looked = fs::metadata(&folder.path).and_then(|found| refuse_others(&found));
        if let Err(e) = looked {
            log::warn!("Weights are not kept in {}: {e}", folder.path.display());
            return None;
        }
        let key = key(file, matrices).filter(|_| !matrices.is_empty())?;
        let name: String = key[..NAME_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        let file = folder.path.join(format!("{NAME}{name}"));
        Some(Place { folder, key, file, parts, bytes })
    }

    /// The file, if it is there and sound.
    pub fn open(&self) -> Option<Arc<Mmap>> {
        match self.try_open() {
            Ok(map) => Some(map),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => {
                log::warn!("{} is not used and written anew: {e}", self.file.display());
                None
            }
        }
    }

    fn try_open(&self) -> io::Result<Arc<Mmap>> {
        let mut file = open_regular(&self.file)?;
        let metadata = file.metadata()?;
        refuse_others(&metadata)?;
        if metadata.len() != self.bytes as u64 {
            return Err(io::Error::other(format!("it has {} bytes instead of {}", metadata.len(), self.bytes)));
        }
        let mut header = [0; HEADER + SYNCED.len()];
        file.read_exact(&mut header)?;
        let (header, synced) = header.split_at(HEADER);
        let start: Hash = header[START].try_into().unwrap_or_default();
        if header != self.header(start) {
            return Err(io::Error::other("its header is of something else"));
        }
        if synced != SYNCED && self.folder.start != Some(start) {
            return Err(io::Error::other("the system ended before it was on the disk"));
        }
        // The oldest is the one that was not used for longest. Windows sets times only of a file open for writing.
        let used = fs::OpenOptions::new().write(true).open(&self.file);
        if let Err(e) = used.and_then(|file| file.set_modified(SystemTime::now())) {
            log::debug!("{} keeps its time of use: {e}", self.file.display());
        }
        self.map(&file)
    }

    fn map(&self, file: &fs::File) -> io::Result<Arc<Mmap>> {
        // SAFETY: whoever writes to a mapped file, or cuts it, must not be: nobody but this user can, and this library
        // writes and cuts no file that has its name, but for the mark in the header, which no weight is near. It
        // replaces and removes such files as a whole, after which what is mapped stays as it is. That the user's own
        // other programs leave them alone is what the documentation of `ELIZA_CACHE_DIR` asks for.
        let map = unsafe { Mmap::map(file) }?;
        match map.len() == self.bytes {
            true => Ok(Arc::new(map)),
            false => Err(io::Error::other("it was cut while it was opened")),
        }
    }

    /// What a file that was written after this start of the system begins with.
    fn header(&self, start: Hash) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        header[16..48].copy_from_slice(&self.key);
        header[START].copy_from_slice(&start);
        let sum: Hash = Sha256::digest(&header[..80]).into();
        header[80..].copy_from_slice(&sum);
        header
    }

    /// A new file, with its room on the disk reserved. `None` where there is no room for it.
    pub fn create(&self) -> Option<NewFile<'_>> {
        let made = self.make_room().and_then(|()| NewFile::create(self));
        made.inspect_err(|e| log::warn!("Weights are not kept in {}: {e}", self.folder.path.display())).ok()
    }

    /// Removes files until a new one fits the bound: those that nobody completes any more, then the oldest.
    fn make_room(&self) -> io::Result<()> {
        let Folder { path, most, .. } = &self.folder;
        if self.bytes as u64 > *most {
            return Err(io::Error::other(format!("they have {} bytes, and all files {most} at most", self.bytes)));
        }
        let mut kept = Vec::new();
        for entry in fs::read_dir(path)?.flatten() {
            let (file, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(NAME)) else { continue };
            let Ok(metadata) = entry.metadata() else { continue };
            if name.len() != 2 * NAME_BYTES {
                if metadata.modified().is_ok_and(|at| at.elapsed().is_ok_and(|since| since > GIVEN_UP)) {
                    let _ = fs::remove_file(&file);
                }
                continue;
            }
            if file != self.file {
                kept.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), file));
            }
        }
        kept.sort();
        let mut all: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        let mut refused = None;
        for (_, bytes, file) in kept {
            if all + self.bytes as u64 <= *most {
                break;
            }
            match fs::remove_file(&file) {
                Ok(()) => log::info!("{} was removed: all files have {most} bytes at most", file.display()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                // Windows keeps what someone has mapped.
                Err(e) => {
                    refused = Some(e);
                    continue;
                }
            }
            all -= bytes;
        }
        if let Some(e) = refused.filter(|_| all + self.bytes as u64 > *most) {
            return Err(e);
        }
        Ok(())
    }
}

/// The place of the system's start in a header.
const START: Range<usize> = 48..80;

/// The key of a file: which model files, as they are now, and how its matrices are packed.
fn key(file: &File, matrices: &[(&TensorInfo, usize)]) -> Option<Hash> {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for file in file.parts() {
        let modified = file.modified()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        part(file.path().canonicalize().ok()?.as_os_str().as_encoded_bytes());
        part(&modified.as_nanos().to_le_bytes());
        part(&file.bytes().to_le_bytes());
    }
    part(Isa::detect().name().as_bytes());
    part(&LAYOUT.to_le_bytes());
    let mut sample = [0; SAMPLE];
    for (info, panels) in matrices {
        part(info.name.as_bytes());
        let [width, rows, ..] = info.shape;
        let numbers = [width, rows, info.type_id.into(), info.part as u64, info.offset, *panels as u64];
        numbers.iter().for_each(|number| part(&number.to_le_bytes()));
        let sample = &mut sample[..info.bytes.min(SAMPLE as u64) as usize];
        file.read_at(info, (info.bytes - sample.len() as u64) / 2, sample).ok()?;
        part(sample);
    }
    Some(hash.finalize().into())
}

/// A file of the cache while it is written; it is removed if it is not completed.
pub(super) struct NewFile<'a> {
    place: &'a Place,
    file: fs::File,
    temporary: PathBuf,
    failed: AtomicBool,
}

impl NewFile<'_> {
    fn create(place: &Place) -> io::Result<NewFile<'_>> {
        let (file, temporary) = create_beside(&place.file)?;
        let new = NewFile { place, file, temporary, failed: AtomicBool::new(false) };
        reserve_room(&new.file, place.bytes as u64)?;
        Ok(new)
    }

    /// Write panels to their place.
    ///
    /// # Errors
    /// [`Error::Io`]; then [`NewFile::has_failed`].
    pub fn write(&self, at: usize, panels: &[u8]) -> Result<()> {
        write_at(&self.file, panels, at as u64).map_err(|e| {
            self.failed.store(true, Ordering::Relaxed);
            Error::io(&self.place.file, &e)
        })
    }

    /// From now on every write fails.
    #[cfg(test)]
    pub fn make_read_only(&mut self) {
        self.file = fs::File::open(&self.temporary).unwrap();
    }

    /// Whether it could not be written.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The complete file under its name, mapped.
    pub fn complete(self) -> Option<Arc<Mmap>> {
        // Another process may have been faster; then one copy serves both.
        let mapped = self.place.try_open().or_else(|_| {
            let start = self.place.folder.start.unwrap_or_default();
            write_at(&self.file, &self.place.header(start), 0)?;
            match fs::rename(&self.temporary, &self.place.file) {
                Ok(()) => {
                    let mark = |file: &fs::File| write_at(file, &SYNCED, HEADER as u64);
                    disk::sync(self.file.try_clone()?, &self.place.file, mark);
                    self.place.map(&self.file)
                }
                // Windows replaces no file that is mapped: another process was faster since.
                Err(e) => self.place.try_open().map_err(|_| e),
            }
        });
        mapped.inspect_err(|e| log::warn!("Weights are not kept in {}: {e}", self.place.file.display())).ok()
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        // After the renaming there is no file of this name.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Make the file so long, with room for all of it on the disk where the system can promise that: so a full disk is
/// known before anything is packed, and blocks that are there already are written several times as fast.
fn reserve_room(file: &fs::File, bytes: u64) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Ok(bytes) = libc::off_t::try_from(bytes) {
        use std::os::fd::AsRawFd;
        // SAFETY: a call on a descriptor that is open.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) } == 0 {
            return Ok(());
        }
        let problem = io::Error::last_os_error();
        if matches!(problem.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            return Err(problem);
        }
    }
    file.set_len(bytes)
}

#[cfg(unix)]
fn write_at(file: &fs::File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn write_at(file: &fs::File, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match std::os::windows::fs::FileExt::seek_write(file, &bytes[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => done += n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_no_cache() {
        let folder = tempfile::tempdir().unwrap();
        let most = |path: &OsStr, most| Folder::named(path, most, None).map(|folder| folder.most);
        let there = folder.path().as_os_str();
        assert_eq!(most(there, ""), Some(8 << 30));
        assert_eq!(most(there, "3M"), Some(3 << 20));
        assert_eq!(most(there, "much"), Some(8 << 30));
        assert_eq!(most(OsStr::new(""), ""), None);
        assert_eq!(most(folder.path().join("missing").as_os_str(), ""), None);
    }
}
