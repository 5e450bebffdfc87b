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

use crate::backend::{Backend, LoadProgress, Weights};
use crate::gguf::File;
use crate::graph::{Builder, Graph, Output, WeightSpec};
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
    backend: Arc<dyn Backend>,
    weights: Weights,
}

impl Model {
    /// Load the file onto `backend`. `progress` hears the fraction done and may cancel by returning false.
    pub fn load(file: File, backend: Arc<dyn Backend>, threads: usize, progress: LoadProgress<'_>) -> Result<Model> {
        let name: String = file.require("general.architecture")?;
        let Some((_, bind)) = ARCHITECTURES.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = architectures().collect();
            return Err(Error::Unsupported(format!("Architecture `{name}` (known: {})", known.join(", "))));
        };
        let hparams = Hparams::read(&file)?;
        let mut table = WeightTable::new(&file);
        let decoder = bind(&hparams, &mut table)?;
        let specs = table.finish()?;
        // The vocabulary takes about as long as packing does; let them share the cores.
        let (vocab, weights) = std::thread::scope(|scope| {
            let vocab = scope.spawn(|| Vocab::from_gguf(&file));
            let weights = backend.load(&file, &specs, threads, progress);
            let vocab = vocab.join().unwrap_or_else(|_| Err(Error::Internal("The vocabulary loader panicked".into())));
            (vocab, weights)
        });
        let (vocab, weights) = (Arc::new(vocab?), weights?);
        if vocab.n_tokens() != hparams.n_vocab {
            let (have, want) = (vocab.n_tokens(), hparams.n_vocab);
            let problem = format!("`tokenizer.ggml.tokens` has {have} tokens, `token_embd.weight` has {want} rows");
            return Err(Error::Model(problem));
        }
        Ok(Model { file, vocab, hparams, specs, decoder, backend, weights })
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

    /// The backend that holds the weights.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The weights in their backend's layout.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Tokens in, kept hidden rows out.
    pub fn body_graph(&self) -> Result<Graph> {
        let mut b = Builder::new(&self.specs, self.decoder.ropes());
        let hidden = self.decoder.body(&mut b)?;
        b.output(hidden, Output::Hidden);
        Ok(b.finish())
    }

    /// Kept hidden rows in, logits out.
    pub fn head_graph(&self) -> Result<Graph> {
        let mut b = Builder::new(&self.specs, self.decoder.ropes());
        let hidden = b.hidden(self.hparams.n_embd);
        let logits = self.decoder.head(&mut b, hidden)?;
        b.output(logits, Output::Logits);
        Ok(b.finish())
    }

    /// Tokens in, logits out: one plan for a decode step. The hidden rows are kept as well.
    pub fn decode_graph(&self) -> Result<Graph> {
        let mut b = Builder::new(&self.specs, self.decoder.ropes());
        let hidden = self.decoder.body(&mut b)?;
        b.output(hidden, Output::Hidden);
        let logits = self.decoder.head(&mut b, hidden)?;
        b.output(logits, Output::Logits);
        Ok(b.finish())
    }
}
