//! Models: hyperparameters, the weight table, and one file per architecture that emits graph nodes.
//!
//! A [`Model`] is what all streams over one file share: the mapped file, the vocabulary, the weights in their
//! backend's layout, and the decoder, which turns itself into graphs. It never changes after loading.

mod decoder;
mod gemma3;
mod hparams;
mod llama;
mod qwen3;
mod registry;
mod weights;

pub use hparams::Hparams;
pub use registry::{Placement, load_shared};
pub use weights::WeightTable;

use crate::backend::{Backend, DeviceInfo, LoadProgress, Wanted};
use crate::gguf::File;
use crate::graph::{Graph, Part, WeightSpec, WeightUse};
use crate::schedule::{Device, assign, wanted};
use crate::vocab::Vocab;
use crate::{Error, Result};
use decoder::Decoder;
use std::sync::Arc;

/// How an architecture is bound to a file: reads its keys, claims its tensors.
type Bind = fn(&Hparams, &mut WeightTable<'_>) -> Result<Decoder>;

/// The known architectures, by the name in `general.architecture`.
const ARCHITECTURES: &[(&str, Bind)] = &[("gemma3", gemma3::bind), ("llama", llama::bind), ("qwen3", qwen3::bind)];

/// Names of the architectures this library runs.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}

/// A loaded model.
pub struct Model {
    file: File,
    vocab: Arc<Vocab>,
    hparams: Hparams,
    specs: Vec<WeightSpec>,
    decoder: Decoder,
    devices: Vec<Device>,
    gpu_layers: usize,
}

impl Model {
    /// Load the file onto `backends`, of which the first is the CPU. With a second one the last `gpu_layers` layers are
    /// computed there; one more means the output head too, and the embedding with it; -1 means all. `progress` hears
    /// the fraction done and may cancel by returning false.
    pub fn load(
        file: File,
        backends: Vec<Arc<dyn Backend>>,
        gpu_layers: i32,
        threads: usize,
        progress: LoadProgress<'_>,
    ) -> Result<Model> {
        let name: String = file.require("general.architecture")?;
        let Some((_, bind)) = ARCHITECTURES.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = architectures().collect();
            return Err(Error::Unsupported(format!("Architecture `{name}` (known: {})", known.join(", "))));
        };
        let hparams = Hparams::read(&file)?;
        let mut table = WeightTable::new(&file);
        let decoder = bind(&hparams, &mut table)?;
        let specs = table.finish()?;
        let gpu_layers = usize::try_from(gpu_layers).unwrap_or(usize::MAX);
        let gpu_layers = if backends.len() > 1 { gpu_layers.min(hparams.n_layer + 1) } else { 0 };
        let wanted = wanted_by(&decoder, &specs, &hparams, &backends, gpu_layers)?;
        // The vocabulary takes about as long as packing does; let them share the cores.
        let (vocab, devices) = std::thread::scope(|scope| {
            let vocab = scope.spawn(|| Vocab::from_gguf(&file));
            let devices = load_devices(&file, &specs, backends, &wanted, threads, progress);
            let vocab = vocab.join().unwrap_or_else(|_| Err(Error::Internal("The vocabulary loader panicked".into())));
            (vocab, devices)
        });
        let (vocab, devices) = (Arc::new(vocab?), devices?);
        if vocab.n_tokens() != hparams.n_vocab {
            let (have, want) = (vocab.n_tokens(), hparams.n_vocab);
            let problem = format!("`tokenizer.ggml.tokens` has {have} tokens, `token_embd.weight` has {want} rows");
            return Err(Error::Model(problem));
        }
        Ok(Model { file, vocab, hparams, specs, decoder, devices, gpu_layers })
    }

    /// The mapped file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.vocab
    }

    /// The hyperparameters.
    pub fn hparams(&self) -> &Hparams {
        &self.hparams
    }

    /// Tokens in the vocabulary: the width of a row of logits.
    pub fn n_vocab(&self) -> usize {
        self.hparams.n_vocab
    }

    /// Context length the model was trained with.
    pub fn train_context(&self) -> usize {
        self.hparams.n_ctx_train
    }

    /// `general.name`, else the file's stem.
    pub fn name(&self) -> String {
        let stem = || self.file.path().file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        self.file.get::<String>("general.name").ok().flatten().unwrap_or_else(stem)
    }

    /// Every name by which a host may call this model: `general.name`, `general.basename`, the file's stem.
    pub fn ids(&self) -> Vec<String> {
        let keys = ["general.name", "general.basename"];
        let mut ids: Vec<String> = keys.iter().filter_map(|k| self.file.get::<String>(k).ok().flatten()).collect();
        ids.extend(self.file.path().file_stem().map(|s| s.to_string_lossy().into_owned()));
        ids
    }

    /// The weight table, in the order of [`crate::graph::WeightId`].
    pub fn specs(&self) -> &[WeightSpec] {
        &self.specs
    }

    /// The devices and the weights on them; the first is the CPU.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device that computes most, with what it computes as the reason.
    pub fn device(&self) -> DeviceInfo {
        let Some(gpu) = self.devices.get(1) else {
            return self.devices[0].backend.device();
        };
        let (info, n) = (gpu.backend.device(), self.hparams.n_layer);
        let (layers, head) = (self.gpu_layers.min(n), if self.gpu_layers > n { " and the output head" } else { "" });
        DeviceInfo { reason: format!("{layers} of {n} layers{head}; {}", info.reason), ..info }
    }

    /// The device that computes a part of the model.
    pub fn place(&self, part: Part) -> usize {
        place(part, self.hparams.n_layer, self.gpu_layers)
    }

    /// Tokens in, kept hidden rows out.
    pub fn body_graph(&self) -> Result<Graph> {
        self.decoder.body_graph(&self.specs)
    }

    /// Kept hidden rows in, logits out.
    pub fn head_graph(&self) -> Result<Graph> {
        self.decoder.head_graph(&self.specs, self.hparams.n_embd)
    }

    /// Tokens in, the logits of every one out: one plan for a decode step. The hidden rows are kept as well.
    pub fn decode_graph(&self) -> Result<Graph> {
        self.decoder.decode_graph(&self.specs)
    }
}

/// The device of a part when the last `gpu_layers` layers are on device 1.
fn place(part: Part, n_layer: usize, gpu_layers: usize) -> usize {
    let all = gpu_layers > n_layer;
    usize::from(match part {
        // With everything on one device a token can go from sample to embedding without leaving it.
        Part::Embedding | Part::Head => all,
        Part::Layer(il) => il + gpu_layers >= n_layer,
    })
}

/// What each backend needs of the weights.
fn wanted_by(
    decoder: &Decoder,
    specs: &[WeightSpec],
    hparams: &Hparams,
    backends: &[Arc<dyn Backend>],
    gpu_layers: usize,
) -> Result<Vec<Wanted>> {
    let graph = decoder.decode_graph(specs)?;
    let backends: Vec<_> = backends.iter().map(|b| &**b).collect();
    let devices = assign(&graph, &backends, &|part| place(part, hparams.n_layer, gpu_layers), specs);
    Ok(wanted(&graph, &devices, backends.len(), specs.len()))
}

/// Bring the weights to their devices, one device after the other.
fn load_devices(
    file: &File,
    specs: &[WeightSpec],
    backends: Vec<Arc<dyn Backend>>,
    wanted: &[Wanted],
    threads: usize,
    mut progress: LoadProgress<'_>,
) -> Result<Vec<Device>> {
    let bytes_of = |spec: &WeightSpec| file.tensor(&spec.name).map_or(0, |t| t.bytes);
    // A table that is only looked up stays in the file.
    let loaded = |usage: &Option<WeightUse>| usage.is_some_and(|u| u != WeightUse::Rows);
    let share = |wanted: &Wanted| -> u64 {
        specs.iter().zip(&wanted.uses).filter(|(_, usage)| loaded(usage)).map(|(spec, _)| bytes_of(spec)).sum()
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
