//! Arguments that several commands share: the model, devices and threads, prompts.

use crate::output::{Failure, interrupted, progress};
use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Args};
use elizainference::Token;
use elizainference::engine::{EngineOptions, KvType, TensorDevice, TensorSplit};
use elizainference::session::{OpenOptions, StoreOptions, arguments};
use elizainference::vocab::Vocab;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Which model, and how it runs.
#[derive(Args)]
pub struct ModelArgs {
    /// The model: a GGUF file, or, for the commands that have --vocab, a server's address such as
    /// vllm:https://host:8000/v1#name
    #[arg(short, long, value_name = "FILE")]
    pub model: PathBuf,
    #[command(flatten)]
    run: RunArgs,
}

/// How a model runs.
#[derive(Args)]
pub struct RunArgs {
    /// Threads; 0 takes one for each performance core
    #[arg(short, long, value_name = "N")]
    pub threads: Option<u32>,
    /// Layers on the GPU; 0 none, -1 all
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    gpu_layers: i32,
    /// The device, by a part of the name that `devices` lists, or several GPUs, separated by semicolons, which divide
    /// the layers; else the best
    #[arg(long, value_name = "NAME[;NAME...]")]
    device: Option<String>,
    /// How large a part of what is on GPUs each of several has, such as `3,1`; else by their free memory. With no
    /// --device the best so many
    #[arg(long, default_value = "", hide_default_value = true, value_name = "N,N...")]
    tensor_split: TensorSplit,
    /// Tensors whose names match a regular expression go to `cpu` or `gpu`, whatever their layer; may be repeated, the
    /// first rule that matches counts. `exps=cpu` keeps experts on the CPU
    #[arg(long, value_name = "PATTERN=DEVICE")]
    tensor_device: Vec<TensorDevice>,
    /// Element type of the key/value cache
    #[arg(long, default_value = "f16", value_name = "TYPE", value_parser = PossibleValuesParser::new(KvType::NAMES))]
    kv_type: String,
    /// Element type of the cached values, where they have another one than the keys
    #[arg(long, value_name = "TYPE", value_parser = PossibleValuesParser::new(KvType::NAMES))]
    kv_type_v: Option<String>,
    /// The most tokens of a prompt in one pass, 1 to 512; fewer take less memory and more passes
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    n_batch: u32,
    /// How many earlier recurrent states and windows of sliding layers are kept, after which a prompt can go on; 0: as
    /// many as fit into a share of the cache
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..=256))]
    snapshots: u32,
}

impl ModelArgs {
    /// Options of an engine with one slot and this context (0 is the model's own, at most 4096).
    pub fn engine(&self, context: u32) -> Result<EngineOptions, Failure> {
        self.run.engine(context)
    }

    /// The names of the types of cached keys and values.
    pub fn kv_types(&self) -> [&str; 2] {
        let RunArgs { kv_type, kv_type_v, .. } = &self.run;
        [kv_type, kv_type_v.as_ref().unwrap_or(kv_type)]
    }
}

impl RunArgs {
    /// See [`ModelArgs::engine`].
    pub fn engine(&self, context: u32) -> Result<EngineOptions, Failure> {
        Ok(EngineOptions {
            context,
            threads: self.threads.unwrap_or(0),
            gpu_layers: self.gpu_layers,
            device: self.device.clone(),
            tensor_split: self.tensor_split.clone(),
            tensor_devices: self.tensor_device.clone(),
            kv_type: self.kv_type.parse()?,
            kv_type_v: self.kv_type_v.as_deref().map(str::parse).transpose()?,
            n_batch: self.n_batch,
            snapshots: self.snapshots,
            slots: 1,
            parallel: 1,
            concurrent_slots: false,
            max_slowdown_percent: 0,
        })
    }
}

/// How a server is reached whose address is the model, and which models take its place. The key of the server is taken
/// from the environment variable `ELIZA_REMOTE_KEY`, since other users of the machine see arguments.
#[derive(Args)]
pub struct ServerArgs {
    /// The GGUF file with the vocabulary of a server's model, where --model is an address; without one tokens are
    /// bytes. The key is that of the environment variable ELIZA_REMOTE_KEY
    #[arg(long, value_name = "FILE")]
    vocab: Option<PathBuf>,
    /// A PEM file with the only certificates of servers that are trusted; else those of the platform are
    #[arg(long, value_name = "FILE")]
    certificates: Option<PathBuf>,
    /// How many seconds a server may be silent
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    server_timeout: u32,
    /// A model in the place of --model, file or address, where that cannot be opened, has no room for the prompt or
    /// fails before its first token; may be repeated
    #[arg(long, value_name = "FILE")]
    fallback: Vec<PathBuf>,
}

impl ServerArgs {
    /// Options of opening this model.
    pub fn options(&self, model: &Path, engine: EngineOptions) -> OpenOptions {
        let timeout_ms = self.server_timeout.saturating_mul(1000);
        OpenOptions {
            path: model.into(),
            engine,
            remote: arguments::remote(self.vocab.clone(), None, self.certificates.clone(), timeout_ms),
            fallback: self.fallback.clone(),
            progress: Some(Box::new(loading())),
            ..OpenOptions::default()
        }
    }
}

/// Where a conversation is kept between runs.
#[derive(Args)]
pub struct StoreArgs {
    /// The folder in which conversations are kept between runs; it is created where it is not there
    #[arg(long, value_name = "FOLDER", requires = "conversation")]
    store: Option<PathBuf>,
    /// The most bytes that the folder's conversations take: those used the longest time ago are removed; 0: no limit
    #[arg(long, default_value_t = 0, value_name = "BYTES", requires = "store")]
    store_bytes: u64,
    /// The conversation's name in the folder: what the model has read of it is restored first, and kept at the end
    #[arg(long, value_name = "KEY", requires = "store")]
    pub conversation: Option<String>,
}

impl StoreArgs {
    /// The folder, if any.
    pub fn options(&self) -> Option<StoreOptions> {
        Some(StoreOptions { directory: self.store.clone()?, max_bytes: self.store_bytes })
    }
}

/// A progress bar for loading a model, which an interrupt ends.
pub fn loading() -> impl FnMut(f32) -> bool + Send + 'static {
    let bar = progress("Loading", 1000);
    move |done| {
        bar.set_position((done * 1000.0) as u64);
        if done >= 1.0 {
            bar.finish_and_clear();
        }
        !interrupted()
    }
}

/// Prompts: texts or tokens.
#[derive(Args)]
#[group(id = "prompts", required = true, multiple = true)]
pub struct Prompts {
    /// The prompt's text
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Vec<OsString>,
    /// A file with the prompt's text; - is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    prompt_file: Vec<PathBuf>,
    /// The prompt's tokens, such as 1,2,3
    #[arg(long, value_name = "IDS")]
    prompt_tokens: Vec<String>,
}

/// One prompt.
#[derive(Clone, Copy)]
pub enum Prompt<'a> {
    Text(&'a OsStr),
    File(&'a Path),
    Tokens(&'a str),
}

impl Prompts {
    /// All of them in the order of the command line, each with its place there.
    pub fn placed(&self, matches: &ArgMatches) -> Vec<(usize, Prompt<'_>)> {
        let texts = placed(matches, "prompt", self.prompt.iter().map(|text| Prompt::Text(text)));
        let files = placed(matches, "prompt_file", self.prompt_file.iter().map(|path| Prompt::File(path)));
        let tokens = placed(matches, "prompt_tokens", self.prompt_tokens.iter().map(|ids| Prompt::Tokens(ids)));
        let mut all: Vec<_> = texts.chain(files).chain(tokens).collect();
        all.sort_by_key(|(place, _)| *place);
        all
    }
}

/// The values of an argument, each with its place on the command line.
pub fn placed<T>(matches: &ArgMatches, id: &str, values: impl Iterator<Item = T>) -> impl Iterator<Item = (usize, T)> {
    matches.indices_of(id).into_iter().flatten().zip(values)
}

impl Prompt<'_> {
    pub fn tokens(self, vocab: &Vocab, how: &TextArgs) -> Result<Vec<Token>, Failure> {
        match self {
            Prompt::Tokens(ids) => token_list(ids),
            Prompt::File(path) => how.tokenize(vocab, &read_input(path)?),
            Prompt::Text(text) => how.tokenize(vocab, &bytes_of(text)),
        }
    }
}

/// How text becomes tokens.
#[derive(Args)]
pub struct TextArgs {
    /// Leave out the begin- and end-of-text tokens that the vocabulary asks for
    #[arg(long)]
    pub no_bos: bool,
    /// Recognise the texts of control tokens, such as <|im_start|>
    #[arg(long)]
    pub parse_special: bool,
}

impl TextArgs {
    pub fn tokenize(&self, vocab: &Vocab, text: &[u8]) -> Result<Vec<Token>, Failure> {
        Ok(vocab.tokenize(text, !self.no_bos, self.parse_special)?)
    }
}

/// Token ids from text: a JSON array, or numbers separated by commas or white space.
pub fn token_list(text: &str) -> Result<Vec<Token>, Failure> {
    let inner = text.trim();
    let inner = inner.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(inner);
    let parts = inner.split(|c: char| c == ',' || c.is_whitespace()).filter(|t| !t.is_empty());
    let id = |t: &str| t.parse().map_err(|_| Failure::Error(format!("`{t}` is not a token id")));
    parts.map(id).collect()
}

/// The bytes of a file, or of standard input for `-`.
pub fn read_input(path: &Path) -> Result<Vec<u8>, Failure> {
    if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        return read.map(|_| bytes).map_err(|e| Failure::Error(format!("Standard input: {e}")));
    }
    std::fs::read(path).map_err(|e| Failure::Error(format!("{}: {e}", path.display())))
}

/// An argument as bytes: on Unix what the shell gave, which need not be UTF-8.
pub fn bytes_of(text: &OsStr) -> Vec<u8> {
    text.as_encoded_bytes().to_vec()
}
