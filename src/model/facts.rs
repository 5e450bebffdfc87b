//! Facts about the model in a file, also where this library cannot run it.

use super::pooling::Pooling;
use crate::gguf::{Array, File};

/// The main facts about a model; `None` where the file does not have them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Facts {
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `general.name`.
    pub name: Option<String>,
    /// Tokens of context in training.
    pub context: Option<u64>,
    /// Repeating layers, those that predict further tokens included.
    pub layers: Option<u64>,
    /// Layers that predict further tokens.
    pub nextn_layers: Option<u64>,
    /// Width of a hidden row.
    pub embedding: Option<u64>,
    /// Width of the feed-forward part; like the next two the largest where layers differ.
    pub feed_forward: Option<u64>,
    /// Query heads.
    pub heads: Option<u64>,
    /// Key and value heads.
    pub kv_heads: Option<u64>,
    /// Experts.
    pub experts: Option<u64>,
    /// Entries of the vocabulary.
    pub tokens: Option<u64>,
    /// `tokenizer.ggml.model`, and `tokenizer.ggml.pre` where there is one.
    pub vocabulary: Option<String>,
    /// How rows of texts are made, where the file says so.
    pub pooling: Option<Pooling>,
    /// Names of a classifier's scores.
    pub labels: Vec<String>,
    /// Numbers in all tensors.
    pub parameters: u64,
}

fn strings(file: &File, key: &str) -> Vec<String> {
    let texts = file.strings(key).ok().flatten().unwrap_or_default();
    texts.into_iter().map(String::from).collect()
}

impl Facts {
    /// Read them; a key of an unexpected type counts as missing.
    pub fn of(file: &File) -> Facts {
        let text = |key: &str| file.get::<String>(key).ok().flatten();
        let architecture = text("general.architecture");
        let prefix = architecture.clone().unwrap_or_default();
        let number = |key: &str| {
            let key = format!("{prefix}.{key}");
            let per_layer = || file.integers(&key).ok().flatten()?.into_iter().max()?.try_into().ok();
            file.get::<u64>(&key).ok().flatten().or_else(per_layer)
        };
        Facts {
            name: text("general.name"),
            context: number("context_length"),
            layers: number("block_count"),
            nextn_layers: number("nextn_predict_layers").filter(|&n| n > 0),
            embedding: number("embedding_length"),
            feed_forward: number("feed_forward_length"),
            heads: number("attention.head_count"),
            kv_heads: number("attention.head_count_kv"),
            experts: number("expert_count"),
            tokens: file.get::<Array>("tokenizer.ggml.tokens").ok().flatten().map(|a| a.len as u64),
            vocabulary: text("tokenizer.ggml.model").map(|model| match text("tokenizer.ggml.pre") {
                Some(pre) => format!("{model}, {pre}"),
                None => model,
            }),
            pooling: number("pooling_type").and_then(|n| Pooling::ALL.get(usize::try_from(n).ok()?).copied()),
            labels: strings(file, &format!("{prefix}.classifier.output_labels")),
            parameters: file.tensors().iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.elements())),
            architecture,
        }
    }

    /// The sizes with their names.
    pub fn sizes(&self) -> [(&'static str, Option<u64>); 8] {
        [
            ("context", self.context),
            ("layers", self.layers),
            ("nextn_layers", self.nextn_layers),
            ("embedding", self.embedding),
            ("feed_forward", self.feed_forward),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("experts", self.experts),
        ]
    }
}
