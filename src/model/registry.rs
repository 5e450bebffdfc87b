//! Models in use, shared by everyone who opens the same file with the same placement.
//!
//! The registry holds weak references: the last stream that closes frees the weights. Each key has its own lock,
//! held while the model loads, so that eight hosts opening one file load it once and two files load side by side.

use super::{Model, Outline};
use crate::backend::{self, Backend, LoadProgress};
use crate::gguf::File;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use std::time::SystemTime;

/// Where a model's layers go. Two placements of one file are two models.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Placement {
    /// Repeating layers on the GPU, counted from the end; 0 = CPU only, -1 = all.
    pub gpu_layers: i32,
    /// Device by name; `None` = the best.
    pub device: Option<String>,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
    placement: Placement,
}

type Slot = Arc<Mutex<Weak<Model>>>;

static MODELS: LazyLock<Mutex<HashMap<Key, Slot>>> = LazyLock::new(|| Mutex::new(HashMap::new()));

/// Judges a model by its header, before anything is loaded; an error ends the load.
pub type Admit<'a> = &'a dyn Fn(&File, &Outline, &[Arc<dyn Backend>]) -> Result<()>;

/// The model at `path`, shared with whoever has it open, or loaded now if `admit` has nothing against it.
pub fn load_shared(
    path: &Path,
    placement: &Placement,
    threads: usize,
    admit: Admit<'_>,
    progress: LoadProgress<'_>,
) -> Result<Arc<Model>> {
    let meta = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?;
    let canonical = path.canonicalize().map_err(|e| Error::io(path, &e))?;
    let key = Key { path: canonical, bytes: meta.len(), modified: meta.modified().ok(), placement: placement.clone() };
    let slot = {
        let mut models = MODELS.lock();
        // Entries whose model is gone, and which nobody is loading, leave.
        models.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
        models.entry(key).or_default().clone()
    };
    let mut held = slot.lock();
    if let Some(model) = held.upgrade() {
        return Ok(model);
    }
    let model = load(File::open(path)?, placement, threads, admit, progress)?;
    *held = Arc::downgrade(&model);
    Ok(model)
}

/// The model of `file`, loaded for the caller alone.
pub fn load(
    file: File,
    placement: &Placement,
    threads: usize,
    admit: Admit<'_>,
    progress: LoadProgress<'_>,
) -> Result<Arc<Model>> {
    let backends = backend::choose(placement.gpu_layers, placement.device.as_deref())?;
    let path = file.path().to_path_buf();
    let outline = Outline::read(&file, &backends, placement.gpu_layers).map_err(|error| error.in_file(&path))?;
    admit(&file, &outline, &backends)?;
    let model = Model::load_outline(file, outline, backends, threads, progress);
    Ok(Arc::new(model.map_err(|error| error.in_file(&path))?))
}
