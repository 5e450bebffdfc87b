//! What JavaScript passes as objects. Absent fields are the library's defaults.

use elizainference::sampling::{Dry, Generator, Mirostat};
use elizainference::session::arguments::{count, gpu_layers, lines, reasoning, remote};
use elizainference::session::{
    ContextFull, EmbedOptions, EngineOptions, KvType, Params, RemoteOptions, Settings, SpanEnd, StoreOptions,
    TensorDevice,
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
    pub tensor_split: Option<String>,
    pub tensor_devices: Option<String>,
    pub kv_type: Option<String>,
    pub kv_type_v: Option<String>,
    pub slots: Option<i32>,
    pub parallel: Option<i32>,
    pub max_slowdown_percent: Option<i32>,
    pub n_batch: Option<i32>,
    pub snapshots: Option<i32>,
    pub concurrent_slots: Option<bool>,
    pub draft: Option<String>,
    pub store_directory: Option<String>,
    pub store_bytes: Option<f64>,
    pub vocab: Option<String>,
    pub api_key: Option<String>,
    pub certificates: Option<String>,
    pub server_timeout_ms: Option<i32>,
    pub fallback: Option<String>,
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
            tensor_split: self.tensor_split.as_deref().unwrap_or_default().parse()?,
            tensor_devices: TensorDevice::list(self.tensor_devices.as_deref().unwrap_or_default())?,
            kv_type: self.kv_type.as_deref().map_or(Ok(KvType::default()), str::parse)?,
            kv_type_v: self.kv_type_v.as_deref().map(str::parse).transpose()?,
            slots: count(self.slots, "slots")?,
            parallel: count(self.parallel, "parallel")?,
            concurrent_slots: self.concurrent_slots.unwrap_or(false),
            max_slowdown_percent: count(self.max_slowdown_percent, "maxSlowdownPercent")?,
            n_batch: count(self.n_batch, "nBatch")?,
            snapshots: count(self.snapshots, "snapshots")?,
        })
    }

    pub(crate) fn draft(&self) -> Result<Option<PathBuf>> {
        self.path(&self.draft, "draft")
    }

    fn path(&self, path: &Option<String>, name: &str) -> Result<Option<PathBuf>> {
        path.as_deref().map(|path| terminated(path, name).map(PathBuf::from)).transpose()
    }

    pub(crate) fn remote(&self) -> Result<RemoteOptions> {
        let key = self.api_key.as_deref().map(|key| terminated(key, "server.apiKey")).transpose()?;
        let vocab = self.path(&self.vocab, "server.vocab")?;
        let certificates = self.path(&self.certificates, "server.certificates")?;
        let timeout = count(self.server_timeout_ms.unwrap_or(0), "server.timeoutMs")?;
        Ok(remote(vocab, key, certificates, timeout))
    }

    pub(crate) fn fallback(&self) -> Result<Vec<PathBuf>> {
        Ok(lines(self.fallback.as_deref().map(|text| terminated(text, "fallback")).transpose()?))
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
    pub guessing: Option<bool>,
    pub top_n_sigma: Option<f64>,
    pub typical_p: Option<f64>,
    pub xtc_probability: Option<f64>,
    pub xtc_threshold: Option<f64>,
    pub dynatemp_range: Option<f64>,
    pub dynatemp_exponent: Option<f64>,
    pub dry_multiplier: Option<f64>,
    pub dry_base: Option<f64>,
    pub dry_allowed_length: Option<i32>,
    pub dry_last_n: Option<i32>,
    pub dry_breakers: Option<Vec<String>>,
    pub mirostat: Option<u32>,
    pub mirostat_tau: Option<f64>,
    pub mirostat_eta: Option<f64>,
    pub adaptive_target: Option<f64>,
    pub adaptive_decay: Option<f64>,
    pub min_keep: Option<u32>,
    pub samplers: Option<String>,
    pub generator: Option<String>,
    pub reasoning: Option<Reasoning>,
}

/// `ReasoningBudget` of `bindings/js/native.ts`.
#[napi(object)]
pub struct Reasoning {
    pub tokens: u32,
    pub start: String,
    pub end: String,
}

fn real(value: Option<f64>, default: f32) -> f32 {
    value.map_or(default, |value| value as f32)
}

/// As in the C interface, where 0 is off.
fn unless_0(value: f32, off: f32) -> f32 {
    if value == 0.0 { off } else { value }
}

impl SamplingOptions {
    /// The parameters that are given over those that a session was opened with.
    fn params(&self, params: &Params) -> Result<Params> {
        let biases = self.logit_bias_ids.iter().zip(&self.logit_bias_values);
        let breakers = self.dry_breakers.iter().flatten().enumerate();
        let breakers = breakers.map(|(at, text)| terminated(text, &format!("dryBreakers[{at}]")));
        let dry = Dry {
            multiplier: real(self.dry_multiplier, params.dry.multiplier),
            base: real(self.dry_base, params.dry.base),
            allowed_length: self.dry_allowed_length.unwrap_or(params.dry.allowed_length),
            last_n: self.dry_last_n.unwrap_or(params.dry.last_n),
            breakers: params.dry.breakers.clone(),
        };
        Ok(Params {
            seed: match self.seed {
                Some(u32::MAX) => None,
                Some(seed) => Some(seed.into()),
                None => params.seed,
            },
            generator: match self.generator.as_deref() {
                None => params.generator,
                Some("counter") => Generator::Counter,
                Some("mt19937") => Generator::Mt19937,
                Some(other) => {
                    let problem = format!("generator is {other:?}, must be \"counter\" or \"mt19937\"");
                    return Err(Error::InvalidArgument(problem));
                }
            },
            sequence: match &self.samplers {
                None => params.sequence.clone(),
                Some(names) => terminated(names, "samplers")?.parse()?,
            },
            logit_bias: biases.map(|(&id, &value)| (id, value as f32)).collect(),
            repeat_last_n: self.repeat_last_n.unwrap_or(params.repeat_last_n),
            repeat_penalty: unless_0(real(self.repeat_penalty, params.repeat_penalty), 1.0),
            frequency_penalty: real(self.frequency_penalty, params.frequency_penalty),
            presence_penalty: real(self.presence_penalty, params.presence_penalty),
            dry: dry.with(&breakers.collect::<Result<Vec<&str>>>()?),
            top_n_sigma: real(self.top_n_sigma, params.top_n_sigma),
            top_k: self.top_k.unwrap_or(params.top_k),
            typical_p: unless_0(real(self.typical_p, params.typical_p), 1.0),
            min_p: real(self.min_p, params.min_p),
            xtc_probability: real(self.xtc_probability, params.xtc_probability),
            xtc_threshold: real(self.xtc_threshold, params.xtc_threshold),
            dynatemp_range: real(self.dynatemp_range, params.dynatemp_range),
            dynatemp_exponent: real(self.dynatemp_exponent, params.dynatemp_exponent),
            mirostat: self.mirostat.map_or(Ok(params.mirostat), Mirostat::checked)?,
            mirostat_tau: real(self.mirostat_tau, params.mirostat_tau),
            mirostat_eta: real(self.mirostat_eta, params.mirostat_eta),
            adaptive_target: unless_0(real(self.adaptive_target, params.adaptive_target), -1.0),
            adaptive_decay: real(self.adaptive_decay, params.adaptive_decay),
            min_keep: self.min_keep.unwrap_or(params.min_keep),
            temperature: params.temperature,
            top_p: params.top_p,
        })
    }

    /// These options over the settings that a session was opened with.
    pub(crate) fn over(&self, opened: &Settings) -> Result<Settings> {
        let stop = self.stop.iter().flatten().enumerate();
        let stop = stop.map(|(at, text)| Ok(terminated(text, &format!("stop[{at}]"))?.as_bytes().to_vec()));
        Ok(Settings {
            params: self.params(&opened.params)?,
            reasoning: match &self.reasoning {
                None => opened.reasoning.clone(),
                Some(one) => reasoning(
                    one.tokens,
                    Some(terminated(&one.start, "reasoning.start")?),
                    Some(terminated(&one.end, "reasoning.end")?),
                )?,
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
            no_guessing: self.guessing.map_or(opened.no_guessing, |guessing| !guessing),
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
