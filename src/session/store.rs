//! A folder of conversations, each in a file of its own, within a limit of bytes.
//!
//! A file is a saved slot, named after the SHA-256 of the conversation's key. Saving writes another file and renames it
//! ([`Engine::save`](crate::engine::Engine::save)), so that a reader finds the old file or the new one, whatever ends
//! the process. Several processes may use one folder: files are only ever replaced or removed as a whole. Before a file
//! is written, those that were used the longest time ago are removed until it fits; a restore counts as use, as the
//! file's time of modification.
//!
//! A process that dies while it writes leaves a temporary file. Writers share a lock on the file `lock`; who can have
//! it alone knows that nobody writes, and removes what was left.

use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How the name of a conversation's file ends. Temporary files begin with a dot.
const SUFFIX: &str = ".slot";
/// The longest key in bytes.
const MAX_KEY: usize = 4096;

/// Where conversations are kept; see [`Session::persist`](super::Session::persist).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// The folder; it is created where it is not there.
    pub directory: PathBuf,
    /// The most bytes that its conversations take; 0 = no limit.
    pub max_bytes: u64,
}

/// A folder of conversations.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    directory: PathBuf,
    max_bytes: u64,
}

/// A file of the folder.
struct Stored {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Store {
    /// Creates the folder where it is not there, and removes what dead writers left.
    pub(crate) fn open(options: StoreOptions) -> Result<Store> {
        let StoreOptions { directory, max_bytes } = options;
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        // What is in it contains prompts.
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&directory).map_err(|e| Error::io(&directory, &e))?;
        let store = Store { directory, max_bytes };
        store.clean()?;
        Ok(store)
    }

    /// The file of a conversation, whether or not it is there.
    pub(crate) fn path(&self, key: &str) -> Result<PathBuf> {
        if key.is_empty() || key.len() > MAX_KEY {
            let n = key.len();
            return Err(Error::InvalidArgument(format!(
                "a conversation's key of {n} bytes: 1 to {MAX_KEY} are possible"
            )));
        }
        let hash = Sha256::digest(key.as_bytes());
        let mut name: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        name.push_str(SUFFIX);
        Ok(self.directory.join(name))
    }

    /// The file of a conversation that is there, which counts as used now.
    pub(crate) fn find(&self, key: &str) -> Result<Option<PathBuf>> {
        let path = self.path(key)?;
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|e| Error::io(&path, &e))?,
        };
        // Where the time cannot be set, the file is only removed earlier than it could be.
        let _ = file.set_modified(SystemTime::now());
        Ok(Some(path))
    }

    /// Removes a conversation; whether it was there.
    pub(crate) fn remove(&self, key: &str) -> Result<bool> {
        let path = self.path(key)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true).map_err(|e| Error::io(&path, &e)),
        }
    }

    /// Runs `write`, which writes a file of `bytes` to `path`, after there is room for it.
    pub(crate) fn write(&self, path: &Path, bytes: u64, write: impl FnOnce() -> Result<()>) -> Result<()> {
        self.clean()?;
        let lock = self.lock_file()?;
        // Where a file system has no locks, what dead writers leave stays.
        let _ = lock.lock_shared();
        self.make_room(path, bytes)?;
        write()
    }

    /// Removes the files that were used the longest time ago, until one of `bytes` fits in place of `path`.
    fn make_room(&self, path: &Path, bytes: u64) -> Result<()> {
        if self.max_bytes == 0 {
            return Ok(());
        }
        let max = self.max_bytes;
        if bytes > max {
            let message = format!("a conversation of {bytes} bytes, where the store is limited to {max}");
            return Err(Error::Io { path: path.into(), message });
        }
        let mut others: Vec<Stored> = self.files()?.into_iter().filter(|file| file.path != path).collect();
        others.sort_by_key(|file| file.used);
        let mut total = others.iter().fold(bytes, |sum, file| sum.saturating_add(file.bytes));
        for file in others {
            if total <= max {
                break;
            }
            match fs::remove_file(&file.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io(&file.path, &error)),
                _ => total -= file.bytes,
            }
        }
        Ok(())
    }

    /// The conversations in the folder.
    fn files(&self) -> Result<Vec<Stored>> {
        let mut files = Vec::new();
        self.each(|path, name, of| {
            if !name.starts_with('.') && name.ends_with(SUFFIX) {
                files.push(Stored { path, bytes: of.len(), used: of.modified().unwrap_or(SystemTime::UNIX_EPOCH) });
            }
        })?;
        Ok(files)
    }

    /// Removes temporary files, unless somebody writes.
    fn clean(&self) -> Result<()> {
        let lock = self.lock_file()?;
        if lock.try_lock().is_err() {
            return Ok(());
        }
        self.each(|path, name, _| {
            if name.starts_with('.') && name.contains(SUFFIX) {
                // It takes room until the next time.
                let _ = fs::remove_file(path);
            }
        })
    }

    /// Calls `found` for every file of the folder that is still there, with its path and name.
    fn each(&self, mut found: impl FnMut(PathBuf, &str, &fs::Metadata)) -> Result<()> {
        let io = |e: io::Error| Error::io(&self.directory, &e);
        for entry in fs::read_dir(&self.directory).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            if let (Some(name), Ok(of)) = (name.to_str(), entry.metadata())
                && of.is_file()
            {
                found(entry.path(), name, &of);
            }
        }
        Ok(())
    }

    fn lock_file(&self) -> Result<File> {
        let path = self.directory.join("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        options.open(&path).map_err(|e| Error::io(&path, &e))
    }
}
