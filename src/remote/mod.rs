//! Models that run on a server: vLLM, SGLang, llama-server, and what else has OpenAI's completions.
//!
//! An address takes the place of a model file. The server computes and samples; tokenizing, templates, stop strings and
//! the check of every answer stay here, with the vocabulary of a GGUF file. `dialect` is one table of what a kind of
//! server calls things, and the only place that knows. Requests go through `client`: one connection is kept, an error
//! has the server's own text, and the key is in none of them.
//!
//! What this file has is there in every build; the rest is the feature `remote`.

#[cfg(feature = "remote")]
mod address;
#[cfg(feature = "remote")]
mod answer;
#[cfg(feature = "remote")]
mod client;
#[cfg(feature = "remote")]
mod dialect;
#[cfg(feature = "remote")]
mod errors;
#[cfg(feature = "remote")]
mod events;
#[cfg(feature = "remote")]
mod scores;
#[cfg(feature = "remote")]
mod server;
#[cfg(feature = "remote")]
mod trie_grammar;
#[cfg(feature = "remote")]
mod watch;

#[cfg(feature = "remote")]
pub use answer::{Answer, Part};
#[cfg(feature = "remote")]
pub use dialect::{Knob, Spelling};
#[cfg(feature = "remote")]
pub use scores::logprobs;
#[cfg(feature = "remote")]
pub use server::{Hold, Prompt, Request, Server};

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kinds of servers, by which addresses begin.
pub const KINDS: [&str; 4] = ["vllm", "sglang", "llama-server", "openai"];

/// The environment variable with the key, where no option has one.
pub const KEY_VARIABLE: &str = "ELIZA_REMOTE_KEY";

/// How long a server may be silent, where no option says so.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// How a server is reached.
#[derive(Debug, Clone, Default)]
pub struct RemoteOptions {
    /// The GGUF file with the vocabulary of the server's model; it needs no tensors. Without one the server tokenizes,
    /// and a token of the session is a byte of its texts.
    pub vocab: Option<PathBuf>,
    /// What servers call API key; without one the environment's [`KEY_VARIABLE`].
    pub key: Key,
    /// A PEM file with the only certificates to be trusted; without one those of the platform are.
    pub certificates: Option<PathBuf>,
    /// How long the server may be silent, before its first token and between tokens; `None` is [`DEFAULT_TIMEOUT`].
    pub timeout: Option<Duration>,
}

/// What a server says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Facts {
    /// The model that answers.
    pub model: String,
    /// Its address, without the model.
    pub address: String,
    /// Its version, if it says one.
    pub version: Option<String>,
    /// The most tokens of a prompt and its answer, if it says so.
    pub context: Option<usize>,
    /// Tokens of its vocabulary, if it says so.
    pub n_vocab: Option<usize>,
}

/// A key that is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Key(Option<String>);

impl Key {
    /// Of an option; an empty text is none.
    pub fn new(text: Option<&str>) -> Key {
        Key(text.filter(|text| !text.is_empty()).map(str::to_owned))
    }

    /// This one, else that of the environment.
    #[cfg(feature = "remote")]
    fn or_environment(self) -> Key {
        match self.0 {
            Some(_) => self,
            None => Key::new(std::env::var(KEY_VARIABLE).ok().as_deref()),
        }
    }

    #[cfg(feature = "remote")]
    fn secret(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// The text without the key, should a server have repeated it.
    #[cfg(feature = "remote")]
    fn remove_from(&self, text: &str) -> String {
        self.0.as_deref().map_or_else(|| text.to_owned(), |key| text.replace(key, "[key]"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_some() { "Key([key])" } else { "Key(none)" })
    }
}

/// Whether the path of a model is the address of a server: a kind of [`KINDS`], a colon, and `http://` or `https://`.
pub fn is_address(path: &Path) -> bool {
    let of_web = |rest: &str| rest.starts_with("http://") || rest.starts_with("https://");
    path.to_str()
        .and_then(|text| text.split_once(':'))
        .is_some_and(|(kind, rest)| KINDS.contains(&kind) && of_web(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_from_a_path() {
        for address in ["vllm:http://127.0.0.1:8000", "openai:https://host/v1#model", "llama-server:http://[::1]"] {
            assert!(is_address(Path::new(address)), "{address}");
        }
        for path in ["model.gguf", "C:\\models\\m.gguf", "vllm", "vllm:model", "http://host/m.gguf", "tgi:http://host"]
        {
            assert!(!is_address(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?} {:?}", Key::new(Some("sk-123")), Key::new(Some(""))), "Key([key]) Key(none)");
        let options = RemoteOptions { key: Key::new(Some("sk-123")), ..RemoteOptions::default() };
        assert!(!format!("{options:?}").contains("sk-123"));
    }
}
