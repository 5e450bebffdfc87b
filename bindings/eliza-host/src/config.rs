//! What a host states for a stream.

use crate::edge::{invalid, optional_text};
use elizainference::Result;
use elizainference::session::{KvType, Params, Settings, SpanEnd, arguments};
use std::ffi::c_char;
use std::path::PathBuf;

/// The most bytes of `prompt_cache_key`.
const MAX_KEY: usize = 4096;
/// The most tokens of context that are taken for a number that the host has set.
const MAX_CONTEXT: i32 = 1 << 20;
/// The least, likewise.
const MIN_CONTEXT: i32 = 256;

/// The settings of a stream, in the layout of ABI 9 and later.
///
/// The structure holds no size. Hosts of ABI 8 end it before `context_size`: what follows in their memory is read, and
/// taken for a size only between 256 and 2^20. Zero is "off" or "default" in every field.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct StreamConfig {
    /// The most tokens of all answers until a reset; none at 0 and below, which reads prompts ahead.
    pub max_tokens: i32,
    /// Temperature; at 0 and below the likeliest token is taken.
    pub temperature: f32,
    /// Top-p; off at 0 and below and from 1 on.
    pub top_p: f32,
    /// Top-k; off at 0 and below.
    pub top_k: i32,
    /// Repeat penalty over the last 64 tokens; off at 0 and below and at 1.
    pub repeat_penalty: f32,
    /// The conversation by number, -1 for none. With `prompt_cache_key` it says which engine has read it before, where
    /// there are several; within an engine, prompts find what they share with others by their tokens.
    pub slot_id: i32,
    /// The conversation by name, in place of its number; may be NULL.
    pub prompt_cache_key: *const c_char,
    /// With 0 there is no draft model. How many tokens are drafted, the library measures.
    pub draft_min: i32,
    /// As `draft_min`.
    pub draft_max: i32,
    /// The file of a draft model; may be NULL.
    pub mtp_drafter_path: *const c_char,
    /// A grammar in GBNF with the root `root`; may be NULL.
    pub gbnf_grammar: *const c_char,
    /// Not used: the chat template decides it.
    pub disable_thinking: i32,
    /// Layers on the GPU: 0 is the CPU alone, -1 all where a GPU can be used, else the CPU.
    pub n_gpu_layers: i32,
    /// Type of the cached keys, `f16`, `f32` or `q8_0`; NULL is `f16`.
    pub cache_type_k: *const c_char,
    /// Type of the cached values; NULL is `f16`.
    pub cache_type_v: *const c_char,
    /// Tokens of context; 0 is what the model was trained with, at most 4096.
    pub context_size: i32,
}

/// What engines differ in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placing {
    pub(crate) context: u32,
    /// -1: all where a GPU can be used.
    pub(crate) gpu_layers: i32,
    pub(crate) keys: KvType,
    pub(crate) values: KvType,
    pub(crate) draft: Option<PathBuf>,
}

impl Default for Placing {
    /// That of calls without a stream.
    fn default() -> Placing {
        Placing { context: 0, gpu_layers: -1, keys: KvType::F16, values: KvType::F16, draft: None }
    }
}

/// Which conversation a stream belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Conversation {
    /// None that the host names.
    Any,
    /// By `slot_id`.
    Slot(i32),
    /// By `prompt_cache_key`.
    Key(String),
}

/// A host's configuration, checked and copied.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) max_tokens: u32,
    pub(crate) settings: Settings,
    pub(crate) placing: Placing,
    pub(crate) conversation: Conversation,
    /// Empty: none.
    pub(crate) grammar: String,
}

impl Config {
    /// Reads the host's structure.
    ///
    /// # Errors
    /// [`elizainference::Error::InvalidArgument`] that names the field.
    ///
    /// # Safety
    /// `config` is null or points to a readable [`StreamConfig`] whose texts are null or terminated.
    pub(crate) unsafe fn read(config: *const StreamConfig) -> Result<Config> {
        if config.is_null() {
            return Err(invalid("the configuration is NULL"));
        }
        // SAFETY: not null, and readable as the caller promises; it need not be aligned.
        let host = unsafe { config.read_unaligned() };
        // SAFETY: the caller's promise.
        let [key, draft, grammar, keys, values] = unsafe {
            [
                optional_text(host.prompt_cache_key, "prompt_cache_key")?,
                optional_text(host.mtp_drafter_path, "mtp_drafter_path")?,
                optional_text(host.gbnf_grammar, "gbnf_grammar")?,
                optional_text(host.cache_type_k, "cache_type_k")?,
                optional_text(host.cache_type_v, "cache_type_v")?,
            ]
        };
        for (name, number) in
            [("temperature", host.temperature), ("top_p", host.top_p), ("repeat_penalty", host.repeat_penalty)]
        {
            if !number.is_finite() {
                return Err(invalid(format!("{name} is {number}, which is no number")));
            }
        }
        let or_1 = |number: f32| if number <= 0.0 { 1.0 } else { number };
        let params = Params {
            temperature: host.temperature.max(0.0),
            top_p: or_1(host.top_p),
            top_k: host.top_k,
            repeat_penalty: or_1(host.repeat_penalty),
            min_p: 0.0,
            ..Params::default()
        };
        let conversation = match key {
            Some(key) if key.len() > MAX_KEY => {
                let problem = format!("prompt_cache_key has {} bytes, at most {MAX_KEY} are possible", key.len());
                return Err(invalid(problem));
            }
            Some(key) => Conversation::Key(key.into()),
            None if host.slot_id >= 0 => Conversation::Slot(host.slot_id),
            None => Conversation::Any,
        };
        let kv_type = |name: Option<&str>| name.map_or(Ok(KvType::F16), str::parse);
        let sized = (MIN_CONTEXT..=MAX_CONTEXT).contains(&host.context_size);
        let placing = Placing {
            context: if sized { host.context_size as u32 } else { 0 },
            gpu_layers: arguments::gpu_layers(host.n_gpu_layers, "n_gpu_layers")?,
            keys: kv_type(keys)?,
            values: kv_type(values)?,
            draft: draft.filter(|_| host.draft_min > 0 && host.draft_max > 0).map(PathBuf::from),
        };
        Ok(Config {
            max_tokens: host.max_tokens.max(0) as u32,
            // A host has no other way to see where a name of a trie ends.
            settings: Settings { params, on_span_end: SpanEnd::Stop, ..Settings::default() },
            placing,
            conversation,
            grammar: grammar.unwrap_or_default().into(),
        })
    }
}
