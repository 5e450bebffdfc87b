//! What JavaScript passes as objects. Absent fields are the library's defaults.

use elizainference::session::arguments::{count, gpu_layers};
use elizainference::session::{
    ContextFull, EmbedOptions, EngineOptions, KvType, Params, Settings, SpanEnd, StoreOptions, TensorDevice,
};
use elizainference::{Error, Result};
use napi_derive::napi;
use std::path::PathBuf;

use crate::edge::terminated;

/// `OpenOptions` of `bindings/js/native.ts`.
#[napi(object)]
pub struct OpenOptions {
    pub context_size: Option<i32>,
    pub threads: Option<i32>,
    pub gpu_layers: Option<i32>,
    pub device: Option<String>,
    pub tensor_devices: Option<String>,
    pub kv_type: Option<String>,
    pub kv_type_v: Option<String>,
    pub slots: Option<i32>,
    pub n_batch: Option<i32>,
    pub snapshots: Option<i32>,
    pub store_directory: Option<String>,
    pub store_bytes: Option<f64>,
    pub vocab_only: Option<bool>,
}

impl OpenOptions {
    pub(crate) fn engine(&self) -> Result<EngineOptions> {
        let count = |value: Option<i32>, name| count(value.unwrap_or(0), name);
        Ok(EngineOptions {
            context: count(self.context_size, "contextSize")?,
            threads: count(self.threads, "threads")?,
            gpu_layers: gpu_layers(self.gpu_layers.unwrap_or(0), "gpuLayers")?,
            device: self.device.clone(),
            tensor_devices: TensorDevice::list(self.tensor_devices.as_deref().unwrap_or_default())?,
            kv_type: self.kv_type.as_deref().map_or(Ok(KvType::default()), str::parse)?,
            kv_type_v: self.kv_type_v.as_deref().map(str::parse).transpose()?,
            slots: count(self.slots, "slots")?,
            n_batch: count(self.n_batch, "nBatch")?,
            snapshots: count(self.snapshots, "snapshots")?,
        })
    }

    pub(crate) fn store(&self) -> Result<Option<StoreOptions>> {
        let Some(directory) = &self.store_directory else { return Ok(None) };
        let directory = PathBuf::from(terminated(directory, "store.directory")?);
        match self.store_bytes.unwrap_or(0.0) {
            bytes if bytes >= 0.0 => Ok(Some(StoreOptions { directory, max_bytes: bytes as u64 })),
            bytes => Err(Error::InvalidArgument(format!("store.maxBytes is {bytes}"))),
        }
    }
}

/// `SamplingOptions` of `bindings/js/native.ts`, the biases as two lists.
#[napi(object)]
pub struct SamplingOptions {
    pub seed: Option<u32>,
    pub top_k: Option<i32>,
    pub min_p: Option<f64>,
    pub repeat_penalty: Option<f64>,
    pub repeat_last_n: Option<i32>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub stop: Option<Vec<String>>,
    pub logit_bias_ids: Vec<i32>,
    pub logit_bias_values: Vec<f64>,
    pub on_span_end: Option<String>,
    pub strict_trie: Option<bool>,
    pub ignore_eos: Option<bool>,
    pub n_candidates: Option<u32>,
    pub on_context_full: Option<String>,
    pub n_keep: Option<u32>,
    pub special_text: Option<bool>,
}

impl SamplingOptions {
    /// These options over the settings that a session was opened with.
    pub(crate) fn over(&self, opened: &Settings) -> Result<Settings> {
        let params = &opened.params;
        let real = |value: Option<f64>, default: f32| value.map_or(default, |value| value as f32);
        let stop = self.stop.iter().flatten().enumerate();
        let stop = stop.map(|(at, text)| Ok(terminated(text, &format!("stop[{at}]"))?.as_bytes().to_vec()));
        let biases = self.logit_bias_ids.iter().zip(&self.logit_bias_values);
        Ok(Settings {
            params: Params {
                seed: match self.seed {
                    Some(u32::MAX) => None,
                    Some(seed) => Some(seed.into()),
                    None => params.seed,
                },
                top_k: self.top_k.unwrap_or(params.top_k),
                min_p: real(self.min_p, params.min_p),
                // As in the C interface, where 0 is off.
                repeat_penalty: match real(self.repeat_penalty, params.repeat_penalty) {
                    0.0 => 1.0,
                    penalty => penalty,
                },
                repeat_last_n: self.repeat_last_n.unwrap_or(params.repeat_last_n),
                presence_penalty: real(self.presence_penalty, params.presence_penalty),
                frequency_penalty: real(self.frequency_penalty, params.frequency_penalty),
                logit_bias: biases.map(|(&id, &value)| (id, value as f32)).collect(),
                ..params.clone()
            },
            stop: stop.collect::<Result<_>>()?,
            ignore_eos: self.ignore_eos.unwrap_or(opened.ignore_eos),
            on_span_end: match self.on_span_end.as_deref() {
                None => opened.on_span_end,
                Some("continue") => SpanEnd::Continue,
                Some("stop") => SpanEnd::Stop,
                Some(other) => {
                    let problem = format!("onSpanEnd is {other:?}, must be \"continue\" or \"stop\"");
                    return Err(Error::InvalidArgument(problem));
                }
            },
            strict_trie: self.strict_trie.unwrap_or(opened.strict_trie),
            candidates: self.n_candidates.map_or(opened.candidates, |n| n as usize),
            on_context_full: match (self.on_context_full.as_deref(), self.n_keep.unwrap_or(0)) {
                (None, 0) => opened.on_context_full,
                (Some("shift"), keep) => ContextFull::Shift { keep },
                (Some("stop"), 0) => ContextFull::Stop,
                (None | Some("stop"), keep) => {
                    let problem = format!("nKeep is {keep}, which only onContextFull \"shift\" has a use for");
                    return Err(Error::InvalidArgument(problem));
                }
                (Some(other), _) => {
                    let problem = format!("onContextFull is {other:?}, must be \"stop\" or \"shift\"");
                    return Err(Error::InvalidArgument(problem));
                }
            },
            special_text: self.special_text.unwrap_or(opened.special_text),
        })
    }
}

/// `EmbeddingOptions` of `bindings/js/native.ts`.
#[napi(object)]
pub struct EmbeddingOptions {
    pub pooling: String,
    pub dimensions: u32,
    pub normalize: bool,
}

impl EmbeddingOptions {
    pub(crate) fn read(&self) -> Result<EmbedOptions> {
        let pooling = if self.pooling == "default" { None } else { Some(self.pooling.parse()?) };
        Ok(EmbedOptions { pooling, normalize: self.normalize, dimensions: self.dimensions as usize })
    }
}

/// `TrieNames` of `bindings/js/native.ts`.
#[napi(object)]
pub struct TrieNames {
    pub path: String,
    pub names: Vec<String>,
    pub before: String,
    pub after: String,
    pub parse_special: bool,
}
