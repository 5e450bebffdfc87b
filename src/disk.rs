//! Files on their way to the disk.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files that may be on their way before a caller waits for its own.
const MOST: usize = 8;
static ON_THEIR_WAY: AtomicUsize = AtomicUsize::new(0);

/// One of the files that are counted.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        ON_THEIR_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sync a file in a thread of its own, which then calls `after`: it may take seconds, and nobody waits unless many
/// files are on their way. What fails is logged.
pub(crate) fn sync(file: File, path: &Path, after: impl FnOnce(&File) -> io::Result<()> + Send + 'static) {
    let before = ON_THEIR_WAY.fetch_add(1, Ordering::Relaxed);
    let counted = Counted;
    let name = path.display().to_string();
    let unknown = move |e: io::Error| log::warn!("{name} is not known to be on the disk: {e}");
    let failed = unknown.clone();
    let work = move || {
        let _counted = counted;
        file.sync_data().and_then(|()| after(&file)).unwrap_or_else(unknown);
    };
    if before >= MOST {
        work();
    } else if let Err(e) = std::thread::Builder::new().name("eliza-sync".into()).spawn(work) {
        failed(e);
    }
}
