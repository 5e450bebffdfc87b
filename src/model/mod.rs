//! Models: hyperparameters, the weight table, layers as compositions, and a function per architecture that puts them
//! together.
//!
//! A [`Model`] is shared by all streams over one file: the open file, the vocabulary, the weights in their backend's
//! layout, and the decoder, which emits the graphs. It never changes after loading.

mod altup;
mod architectures;
mod binder;
mod decoder;
mod facts;
mod hparams;
mod identity;
mod keys;
mod layer;
mod nextn;
mod outline;
mod placement;
mod pooled;
mod pooling;
mod recurrent;
mod recurrent_binder;
mod registry;
mod unknown;
mod weights;

pub use facts::Facts;
pub use hparams::Hparams;
pub use outline::{Outline, architectures};
pub use placement::{Placement, TensorDevice, TensorSplit};
pub use pooled::{Classifier, Pooled, Then};
pub use pooling::Pooling;
pub use registry::{load, load_shared};
pub use unknown::unknown;
pub use weights::{WeightTable, is_of_tower};

use crate::backend::{Backend, DeviceInfo, LoadProgress, Wanted};
use crate::gguf::File;
use crate::graph::{WeightSpec, WeightUse};
use crate::schedule::Device;
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use std::sync::{Arc, OnceLock};

/// Every name by which a host may call the model in a file: `general.name`, `general.basename`, the file's stem.
pub fn names(file: &File) -> Vec<String> {
    let keys = ["general.name", "general.basename"];
    let mut names: Vec<String> = keys.iter().filter_map(|k| file.get::<String>(k).ok().flatten()).collect();
    names.extend(file.path().file_stem().map(|s| s.to_string_lossy().into_owned()));
    names
}

/// A loaded model.
pub struct Model {
    file: File,
    vocab: Arc<Vocab>,
    outline: Outline,
    devices: Vec<Device>,
    identity: OnceLock<[u8; 32]>,
    nextn: Option<Arc<Model>>,
}

impl Model {
    /// Load the file onto `backends`, with the placement of [`Outline::read`]. `progress` is called with the fraction
    /// done, 0 to 1, and cancels by returning false.
    ///
    /// # Errors
    /// Those of [`Outline::read`] and of the backends' loads; [`Error::Cancelled`] where `progress` said so.
    pub fn load(
        file: File,
        backends: Vec<Arc<dyn Backend>>,
        placement: &Placement,
        threads: usize,
        progress: LoadProgress<'_>,
    ) -> Result<Model> {
        let outline = Outline::read(&file, &backends, placement)?;
        Model::load_outline(file, outline, backends, threads, progress)
    }

    /// Load the weights of an outline of `file` onto `backends`.
    fn load_outline(
        file: File,
        mut outline: Outline,
        backends: Vec<Arc<dyn Backend>>,
        threads: usize,
        progress: LoadProgress<'_>,
    ) -> Result<Model> {
        // Loading the vocabulary takes about as long as packing the weights, so both run at once.
        let (vocab, devices) = std::thread::scope(|scope| -> Result<_> {
            let named = std::thread::Builder::new().name("eliza-vocabulary".into());
            let vocab = named.spawn_scoped(scope, || Vocab::from_gguf(&file)).map_err(|error| {
                Error::OutOfMemory(format!("The thread that reads the vocabulary could not be started: {error}"))
            })?;
            let devices = load_devices(&file, outline.specs(), backends, outline.wanted(), threads, progress);
            let vocab = vocab.join().unwrap_or_else(|_| Err(Error::Internal("The vocabulary loader panicked".into())));
            Ok((vocab, devices))
        })?;
        let (vocab, devices) = (Arc::new(vocab?), devices?);
        if vocab.n_tokens() != outline.hparams().n_vocab {
            let (have, want) = (vocab.n_tokens(), outline.hparams().n_vocab);
            let problem = format!("`tokenizer.ggml.tokens` has {have} tokens, `token_embd.weight` has {want} rows");
            return Err(Error::Model(problem));
        }
        let nextn = outline.take_nextn().map(|outline| {
            let (file, vocab, devices) = (file.clone(), vocab.clone(), devices.clone());
            Arc::new(Model { file, vocab, outline, devices, identity: OnceLock::new(), nextn: None })
        });
        let model = Model { file, vocab, outline, devices, identity: OnceLock::new(), nextn };
        if model.outline.answers() {
            model.answer_begins()?;
        }
        Ok(model)
    }

    /// The token that an encoder-decoder's answers begin with: the file's, or else the one that texts begin with.
    ///
    /// # Errors
    /// [`Error::Model`] where the file names neither.
    pub fn answer_begins(&self) -> Result<Token> {
        let key = "decoder_start_token_id";
        let missing = || {
            Error::Model(format!(
                "Keys `{}.{key}` and `tokenizer.ggml.bos_token_id` are missing",
                self.hparams().architecture
            ))
        };
        self.hparams().answer_begins.or(self.vocab.bos()).ok_or_else(missing)
    }

    /// The file, still open.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.vocab
    }

    /// The hyperparameters.
    pub fn hparams(&self) -> &Hparams {
        self.outline.hparams()
    }

    /// Tokens in the vocabulary: the width of a row of logits.
    pub fn n_vocab(&self) -> usize {
        self.hparams().n_vocab
    }

    /// Context length the model was trained with.
    pub fn train_context(&self) -> usize {
        self.hparams().n_ctx_train
    }

    /// Every name by which a host may call this model; see [`names`].
    pub fn ids(&self) -> Vec<String> {
        names(&self.file)
    }

    /// A hash that identifies the model, whatever its path: of its header and of pages of every tensor. Computed at the
    /// first call.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be read any more, or was changed.
    pub fn identity(&self) -> Result<[u8; 32]> {
        if let Some(known) = self.identity.get() {
            return Ok(*known);
        }
        let new = identity::identity(&self.file)?;
        Ok(*self.identity.get_or_init(|| new))
    }

    /// The outline: what is known from the file's header.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// The block that predicts further tokens, as a model of one layer over the same weights, where it was asked for
    /// and the file has one. It reads hidden rows of this model beside tokens.
    pub fn nextn(&self) -> Option<&Arc<Model>> {
        self.nextn.as_ref()
    }

    /// The devices and the weights on them; the first is the CPU.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The GPUs, or the CPU where there are none, as one device whose reason is what each computes.
    pub fn device(&self) -> DeviceInfo {
        let (n, on_gpus) = (self.hparams().n_layer, self.outline.gpu_layers());
        let head = |device| if on_gpus > n && device == self.outline.head() { " and the output head" } else { "" };
        let gpus = self.devices.iter().enumerate().skip(1).map(|(i, device)| {
            let (info, layers) = (device.backend.device(), self.outline.layers_of(i).len());
            DeviceInfo { reason: format!("{layers} of {n} layers{}; {}", head(i), info.reason), ..info }
        });
        let together = |all: DeviceInfo, one: DeviceInfo| DeviceInfo {
            name: format!("{}; {}", all.name, one.name),
            reason: format!("{}; {}", all.reason, one.reason),
            ..all
        };
        gpus.reduce(together).unwrap_or_else(|| self.devices[0].backend.device())
    }

    /// Why no GPU computes; `None` where one does.
    pub fn no_gpu_reason(&self) -> Option<String> {
        let reason = match cfg!(feature = "gpu") {
            true => "0 layers were asked for on a GPU",
            false => "this build has no GPU backend",
        };
        // A GPU without layers computes nothing.
        (self.devices.len() < 2 || self.outline.gpu_layers() == 0).then(|| reason.into())
    }
}

/// Load the weights onto their devices, one device after the other.
fn load_devices(
    file: &File,
    specs: &[WeightSpec],
    backends: Vec<Arc<dyn Backend>>,
    wanted: &[Wanted],
    threads: usize,
    mut progress: LoadProgress<'_>,
) -> Result<Vec<Device>> {
    // A table of which only rows are looked up stays in the file.
    let loaded = |usage: &Option<WeightUse>| usage.is_some_and(|u| u != WeightUse::Rows);
    let share = |wanted: &Wanted| -> u64 {
        specs.iter().zip(&wanted.uses).filter(|(_, usage)| loaded(usage)).map(|(spec, _)| spec.bytes()).sum()
    };
    let total = wanted.iter().map(share).sum::<u64>().max(1) as f32;
    let mut before = 0.0;
    let mut devices = Vec::with_capacity(backends.len());
    for (backend, wanted) in backends.into_iter().zip(wanted) {
        let own = share(wanted) as f32 / total;
        let mut part = progress.as_mut().map(|report| move |fraction: f32| report(before + own * fraction));
        let part: LoadProgress<'_> = part.as_mut().map(|report| report as &mut (dyn FnMut(f32) -> bool + Send));
        let weights = backend.load(file, specs, wanted, threads, part)?;
        before += own;
        devices.push(Device { backend, weights });
    }
    Ok(devices)
}
