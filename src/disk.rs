//! Files on their way to the disk.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files that may be on their way before a caller waits for its own.
const MOST: usize = 8;
static ON_THEIR_WAY: AtomicUsize = AtomicUsize::new(0);

/// One of the files that are counted.
struct Counted(&'static AtomicUsize);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sync a file in a thread of its own, which then calls `after`: it may take seconds, and nobody waits unless many
/// files are on their way. What fails is logged.
pub(crate) fn sync(file: File, path: &Path, after: impl FnOnce(&File) -> io::Result<()> + Send + 'static) {
    sync_beside(&ON_THEIR_WAY, file, path, after);
}

/// As [`sync`], beside the files that this number counts.
fn sync_beside(
    number: &'static AtomicUsize,
    file: File,
    path: &Path,
    after: impl FnOnce(&File) -> io::Result<()> + Send + 'static,
) {
    let before = number.fetch_add(1, Ordering::Relaxed);
    let counted = Counted(number);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_caller_waits_for_its_own_file_where_many_are_on_their_way() {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        let (sender, threads) = channel();
        // Those before it go on only once the last one is through.
        let mut held = Vec::new();
        for number in 0..=MOST {
            let (release, wait) = channel::<()>();
            let sender = sender.clone();
            let is_last = number == MOST;
            held.push(release);
            sync_beside(&NUMBER, file.try_clone().unwrap(), &path, move |_| {
                sender.send((is_last, thread::current().id())).unwrap();
                if !is_last {
                    let _ = wait.recv();
                }
                Ok(())
            });
        }
        let mut found: Vec<_> = (0..=MOST).map(|_| threads.recv().unwrap()).collect();
        found.sort_by_key(|&(is_last, _)| is_last);
        assert_eq!(found.pop(), Some((true, thread::current().id())));
        assert!(found.iter().all(|&(is_last, id)| !is_last && id != thread::current().id()));
        drop(held);
    }
}
