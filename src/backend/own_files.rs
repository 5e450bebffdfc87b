//! Files that are kept between processes and that nobody else can have written.
//!
//! What is read from such a file is trusted: by a driver, or as weights in memory. So on Unix folder and file must
//! belong to the user and be writable for nobody else. On Windows the access list of the user's folder ensures this,
//! unless the user has changed it.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
#[cfg(unix)]
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// An error where another user could have written the file or folder with this metadata.
#[cfg(unix)]
pub(super) fn refuse_others(metadata: &Metadata) -> io::Result<()> {
    use std::io::ErrorKind::PermissionDenied;
    // SAFETY: a call without arguments that cannot fail.
    let user = unsafe { libc::geteuid() };
    match metadata {
        of if of.uid() != user => Err(io::Error::new(PermissionDenied, "it is another user's")),
        of if of.mode() & 0o022 != 0 => Err(io::Error::new(PermissionDenied, "other users can write it")),
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
pub(super) fn refuse_others(_: &Metadata) -> io::Result<()> {
    Ok(())
}

/// A new file, for this user alone, that gets the name `file` when it is complete: readers see the old file or the new
/// one, never a part. Several threads and processes may write one at once.
pub(super) fn create_beside(file: &Path) -> io::Result<(File, PathBuf)> {
    static WRITES: AtomicU32 = AtomicU32::new(0);
    let unique = format!("{}-{}", std::process::id(), WRITES.fetch_add(1, Ordering::Relaxed));
    let temporary = file.with_extension(unique);
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    options.mode(0o600);
    let made = options.read(true).write(true).create_new(true).open(&temporary)?;
    Ok((made, temporary))
}
