//! The options of opening an engine.

use crate::backend::{self, MAX_ROWS, MAX_SEQUENCES, MAX_THREADS};
use crate::gguf::shown;
use crate::model::{Placement, TensorDevice, TensorSplit};
use crate::quant::TensorType;
use crate::{Error, Result};
use std::ops::RangeInclusive;
use std::path::Path;

/// Context in tokens where the host chooses none and the model was trained with more.
const DEFAULT_CONTEXT: usize = 4096;
/// The most slots of an engine, as the ABI documents.
const MAX_SLOTS: u32 = MAX_SEQUENCES as u32;
/// How much longer a token may take while prompts are read, where the host says nothing.
const DEFAULT_SLOWDOWN: f64 = 2.5;
/// The most snapshots that may be asked for; each of a large model takes megabytes.
const MAX_SNAPSHOTS: u32 = 256;

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    /// Half precision: the default.
    #[default]
    F16,
    /// Single precision.
    F32,
    /// Eight bits with a scale per 32 values.
    Q8_0,
}

impl KvType {
    /// Every type.
    pub const ALL: [KvType; 3] = [KvType::F16, KvType::F32, KvType::Q8_0];

    /// The accepted names.
    pub const NAMES: [&'static str; 3] = [KvType::F16.name(), KvType::F32.name(), KvType::Q8_0.name()];

    /// The name, one of [`KvType::NAMES`].
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
            KvType::Q8_0 => "q8_0",
        }
    }

    /// The tensor type of the cache's elements.
    pub fn tensor_type(self) -> TensorType {
        match self {
            KvType::F16 => TensorType::F16,
            KvType::F32 => TensorType::F32,
            KvType::Q8_0 => TensorType::Q8_0,
        }
    }
}

impl std::str::FromStr for KvType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let known = || KvType::NAMES.join(", ");
        let unknown = || Error::InvalidArgument(format!("KV type `{}` (known: {})", shown(s), known()));
        KvType::ALL.into_iter().find(|ty| ty.name() == s).ok_or_else(unknown)
    }
}

/// See [`crate::engine::Engine::new`]. The default is that of a host that sets nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Tokens of context; 0 = the model's, at most 4096. See [`context_for`].
    pub context: u32,
    /// Host threads; 0 = one per performance core.
    pub threads: u32,
    /// Repeating layers on GPUs: 0 = CPU only, -1 = all.
    pub gpu_layers: i32,
    /// Device by name, or several, separated by semicolons; `None` = the best.
    pub device: Option<String>,
    /// How what is on GPUs is divided between several.
    pub tensor_split: TensorSplit,
    /// Tensors that are placed whatever their layer; the first rule that matches counts.
    pub tensor_devices: Vec<TensorDevice>,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Element type of its values, where they have another one than its keys.
    pub kv_type_v: Option<KvType>,
    /// Number of slots that share the context, 1 to 16; 0 = 16, or what `parallel` leaves of them.
    pub slots: u32,
    /// How many streams share an engine, 1 to 16, each with a context and slots of its own, `parallel` times `slots` at
    /// most 16; 0 = 1.
    pub parallel: u32,
    /// Whether slots of one stream can be streams of their own, which share its context.
    pub concurrent_slots: bool,
    /// The most that a stream's time for a token may grow while prompts of others are read, in percent of the time
    /// without; 0 = 250.
    pub max_slowdown_percent: u32,
    /// The most tokens of a prompt that one pass evaluates, 1 to 512; 0 = 512. Fewer take less memory and more passes.
    pub n_batch: u32,
    /// How many snapshots are kept: earlier recurrent states, and earlier windows of sliding layers, after which a
    /// prompt can go on; 1 to 256. 0 = as many as fit into a share of the cache. Other models need none.
    pub snapshots: u32,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            context: 0,
            threads: 0,
            gpu_layers: 0,
            device: None,
            tensor_split: TensorSplit::default(),
            tensor_devices: Vec::new(),
            kv_type: KvType::F16,
            kv_type_v: None,
            slots: 0,
            parallel: 0,
            concurrent_slots: false,
            max_slowdown_percent: 0,
            n_batch: 0,
            snapshots: 0,
        }
    }
}

impl EngineOptions {
    /// Where the model's layers and tensors are to be.
    pub fn placement(&self) -> Placement {
        Placement {
            gpu_layers: self.gpu_layers,
            device: self.device.clone(),
            tensor_split: self.tensor_split.clone(),
            tensor_devices: self.tensor_devices.clone(),
            nextn: false,
        }
    }

    /// As [`EngineOptions::placement`] for the model at `path`, where the file at `draft` guesses for it: a model that
    /// is its own draft model drafts by its block that predicts further tokens, where it has one.
    pub(super) fn placement_beside(&self, path: &Path, draft: Option<&Path>) -> Placement {
        let file = |path: &Path| path.canonicalize().ok();
        let nextn = draft.is_some_and(|draft| file(draft).is_some_and(|draft| file(path) == Some(draft)));
        Placement { nextn, ..self.placement() }
    }

    /// The options of a draft model for an engine with so many tokens of context: the same ones, on the CPU.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where streams share the engine.
    pub(crate) fn of_draft(&self, context: usize) -> Result<EngineOptions> {
        match self.shares()? {
            false => Ok(EngineOptions {
                context: context as u32,
                gpu_layers: 0,
                device: Some("cpu".into()),
                tensor_split: TensorSplit::default(),
                tensor_devices: Vec::new(),
                ..self.clone()
            }),
            true => {
                let several = format!("parallel is {}", self.parallel);
                let asked = if self.concurrent_slots { "concurrent slots" } else { &several };
                Err(Error::InvalidArgument(format!("{asked}: a session with a draft model shares no engine")))
            }
        }
    }

    pub(super) fn threads(&self) -> Result<usize> {
        match self.threads {
            0 => Ok(default_thread_count() as usize),
            n if n as usize <= MAX_THREADS => Ok(n as usize),
            n => Err(Error::InvalidArgument(format!("{n} threads (0 to {MAX_THREADS} are possible)"))),
        }
    }

    /// Element type of the cached values.
    pub fn kv_type_v(&self) -> KvType {
        self.kv_type_v.unwrap_or(self.kv_type)
    }

    /// [`EngineOptions::n_batch`] as a number of rows.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] beyond what one pass can evaluate.
    pub fn batch(&self) -> Result<usize> {
        match self.n_batch as usize {
            0 => Ok(MAX_ROWS),
            n if n <= MAX_ROWS => Ok(n),
            n => Err(Error::InvalidArgument(format!("n_batch is {n} (1 to {MAX_ROWS} are possible)"))),
        }
    }

    /// [`EngineOptions::snapshots`], where the host chooses; else as many of `default` as `fit`.
    pub(super) fn snapshots(&self, fit: usize, default: RangeInclusive<usize>) -> Result<usize> {
        match self.snapshots {
            0 => Ok(fit.clamp(*default.start(), *default.end())),
            n if n <= MAX_SNAPSHOTS => Ok(n as usize),
            n => Err(Error::InvalidArgument(format!("{n} snapshots (1 to {MAX_SNAPSHOTS} are possible)"))),
        }
    }

    /// Whether streams share the engine, if only one can be there.
    ///
    /// # Errors
    /// As [`EngineOptions::parallel`].
    pub fn shares(&self) -> Result<bool> {
        Ok(self.concurrent_slots || self.parallel()? > 1)
    }

    /// How many streams can share the engine.
    ///
    /// # Errors
    /// As [`EngineOptions::parallel`], and for more slots than there are.
    pub fn streams(&self) -> Result<usize> {
        if self.concurrent_slots { self.sequences() } else { self.parallel() }
    }

    /// Slots of all streams.
    pub(super) fn sequences(&self) -> Result<usize> {
        let parallel = self.parallel()? as u32;
        let (slots, most) = (self.slots, MAX_SLOTS / parallel);
        match slots {
            0 => Ok((most * parallel) as usize),
            n if n <= most => Ok((n * parallel) as usize),
            n if parallel == 1 => Err(Error::InvalidArgument(format!("{n} slots (1 to {MAX_SLOTS} are possible)"))),
            n => {
                let problem = format!("{n} slots for each of {parallel} streams ({MAX_SLOTS} in all are possible)");
                Err(Error::InvalidArgument(problem))
            }
        }
    }

    /// [`EngineOptions::max_slowdown_percent`] as a factor, at least 1.
    pub fn max_slowdown(&self) -> f64 {
        match self.max_slowdown_percent {
            0 => DEFAULT_SLOWDOWN,
            percent => (f64::from(percent) / 100.0).max(1.0),
        }
    }

    /// [`EngineOptions::parallel`] as a number of streams.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] beyond 16.
    pub fn parallel(&self) -> Result<usize> {
        match self.parallel as usize {
            0 => Ok(1),
            n if n <= MAX_SEQUENCES => Ok(n),
            n => Err(Error::InvalidArgument(format!("parallel is {n} (1 to {MAX_SEQUENCES} are possible)"))),
        }
    }
}

/// Threads that an engine uses where the host sets none: one per performance core.
pub fn default_thread_count() -> u32 {
    backend::default_thread_count() as u32
}

/// The context for a request, in tokens: 0 means the trained context, at most 4096; any other number is rounded up to a
/// power of two and capped at the trained context.
pub fn context_for(requested: u32, train_context: usize) -> usize {
    match requested as usize {
        0 => train_context.min(DEFAULT_CONTEXT),
        n => n.next_power_of_two().min(train_context),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_is_rounded_and_capped() {
        let got = [0, 1, 3, 1000, 1024, 1025, 40_000, u32::MAX].map(|n| context_for(n, 40_960));
        assert_eq!(got, [4096, 1, 4, 1024, 1024, 2048, 40_960, 40_960]);
        assert_eq!(context_for(0, 512), 512);
    }
}
