//! Models in use, shared by all who open the same file with the same placement.
//!
//! The registry holds weak references: the last stream that closes frees the weights. No lock is held while a model is
//! loaded or a host's progress function is called. The first open loads and enters that in the registry; others of the
//! same model wait for it, each calling its own progress function meanwhile. Where the first one fails or is cancelled,
//! the next one loads. So eight hosts that open one file load it once, and two files load at the same time.

use super::{Model, Outline, Placement};
use crate::backend::{Backend, LoadProgress};
use crate::gguf::{File, others};
use crate::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, SystemTime};

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    path: PathBuf,
    /// Bytes and time of modification of the file, and of the other parts of its model.
    files: Vec<(u64, Option<SystemTime>)>,
    placement: Placement,
}

enum State {
    Loading {
        by: ThreadId,
        /// The fraction loaded, as the bits of an `f32`.
        fraction: Arc<AtomicU32>,
    },
    Loaded(Weak<Model>),
}

static MODELS: LazyLock<Mutex<HashMap<Key, State>>> = LazyLock::new(Mutex::default);

/// Notified when a load has ended.
static ENDED: Condvar = Condvar::new();

/// The interval at which a host is asked whether to go on waiting for another's load.
const ASK: Duration = Duration::from_millis(20);

/// Checks a model by its header before anything is loaded; an error ends the load.
pub type Admit<'a> = &'a dyn Fn(&File, &Outline, &[Arc<dyn Backend>], &mut LoadProgress<'_>) -> Result<()>;

/// The model at `path`, shared with all who have it open, or loaded now if `admit` returns no error.
///
/// # Errors
/// Those of [`load`]; [`Error::Busy`] on a thread that is loading it already, that is, from the progress function of
/// that load. [`Error::Cancelled`] where `progress` returned false, also while another's load is waited for.
pub fn load_shared(
    path: &Path,
    placement: &Placement,
    threads: usize,
    admit: Admit<'_>,
    mut progress: LoadProgress<'_>,
) -> Result<Arc<Model>> {
    let stamp = |meta: Metadata| (meta.len(), meta.modified().ok());
    let mut files = vec![std::fs::metadata(path).map(stamp).map_err(|e| Error::io(path, &e))?];
    files.extend(others(path).map_while(|path| std::fs::metadata(path).map(stamp).ok()));
    let canonical = path.canonicalize().map_err(|e| Error::io(path, &e))?;
    let key = Key { path: canonical, files, placement: placement.clone() };
    let (loading, fraction) = match Loading::begin(&key, path, &mut progress)? {
        Begun::Loaded(model) => return Ok(model),
        Begun::Mine(loading, fraction) => (loading, fraction),
    };
    let mut heard = |done: f32| {
        fraction.store(done.to_bits(), Ordering::Relaxed);
        progress.as_mut().is_none_or(|progress| progress(done))
    };
    let model = load(File::open(path)?, placement, threads, admit, Some(&mut heard))?;
    loading.end(&model);
    Ok(model)
}

/// A load that others may wait for. They are notified however it ends.
struct Loading<'a> {
    key: &'a Key,
}

enum Begun<'a> {
    Loaded(Arc<Model>),
    Mine(Loading<'a>, Arc<AtomicU32>),
}

impl Loading<'_> {
    /// The model of this key, or the right to load it.
    fn begin<'a>(key: &'a Key, path: &Path, progress: &mut LoadProgress<'_>) -> Result<Begun<'a>> {
        let this = thread::current().id();
        let mut models = MODELS.lock();
        loop {
            // Remove entries whose model was dropped.
            models.retain(|_, state| !matches!(state, State::Loaded(model) if model.strong_count() == 0));
            let fraction = match models.entry(key.clone()) {
                Entry::Vacant(free) => {
                    let fraction = Arc::<AtomicU32>::default();
                    free.insert(State::Loading { by: this, fraction: fraction.clone() });
                    return Ok(Begun::Mine(Loading { key }, fraction));
                }
                Entry::Occupied(there) => match there.get() {
                    State::Loaded(model) => match model.upgrade() {
                        Some(model) => return Ok(Begun::Loaded(model)),
                        None => continue,
                    },
                    State::Loading { by, .. } if *by == this => {
                        let path = path.display();
                        return Err(Error::Busy(format!(
                            "{path} is being loaded by this thread: it cannot be opened from the progress of its own \
                             load"
                        )));
                    }
                    State::Loading { fraction, .. } => fraction.clone(),
                },
            };
            if let Some(progress) = progress {
                let fraction = f32::from_bits(fraction.load(Ordering::Relaxed));
                let goes_on = parking_lot::MutexGuard::unlocked(&mut models, || progress(fraction));
                if !goes_on {
                    return Err(Error::Cancelled);
                }
            }
            ENDED.wait_for(&mut models, ASK);
        }
    }

    fn end(self, model: &Arc<Model>) {
        MODELS.lock().insert(self.key.clone(), State::Loaded(Arc::downgrade(model)));
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut models = MODELS.lock();
        if let Some(State::Loading { .. }) = models.get(self.key) {
            models.remove(self.key);
        }
        drop(models);
        ENDED.notify_all();
    }
}

/// The model of `file`, loaded for the caller alone.
///
/// # Errors
/// Those of [`Outline::read`], `admit` and the backends' loads; [`Error::Cancelled`] where `progress` said so.
pub fn load(
    file: File,
    placement: &Placement,
    threads: usize,
    admit: Admit<'_>,
    mut progress: LoadProgress<'_>,
) -> Result<Arc<Model>> {
    let backends = placement.backends()?;
    let path = file.path().to_path_buf();
    let outline = Outline::read(&file, &backends, placement).map_err(|error| error.in_file(&path))?;
    admit(&file, &outline, &backends, &mut progress)?;
    let model = Model::load_outline(file, outline, backends, threads, progress);
    Ok(Arc::new(model.map_err(|error| error.in_file(&path))?))
}
