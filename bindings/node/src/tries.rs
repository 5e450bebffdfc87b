//! Token tries: constraining what is generated to a closed set, and scoring its leaves.

use elizainference::Error;
use elizainference::session::Mode;
use elizainference::trie::{Surroundings, build};
use napi::Env;
use napi::bindgen_prelude::Object;
use napi_derive::napi;

use crate::background;
use crate::edge::{call, terminated};
use crate::handle::Handle;
use crate::options::TrieNames;

/// A payload, and what should be known about it.
#[napi(object)]
pub struct BuiltTrie {
    pub payload: String,
    pub warnings: Vec<String>,
}

#[napi]
impl Handle {
    #[napi]
    pub fn set_trie(&self, payload: String, mode: i32) -> napi::Result<()> {
        let session = self.session()?;
        call(|| match Mode::from_number(mode) {
            Ok(mode) => session.set_trie(payload.as_bytes(), mode),
            Err(error) => session.refuse_trie(error),
        })
    }

    #[napi]
    pub fn clear_trie(&self) -> napi::Result<()> {
        let session = self.session()?;
        call(|| session.clear_trie())
    }

    #[napi]
    pub fn arm_trie(&self, path: Option<String>) -> napi::Result<()> {
        let session = self.session()?;
        call(|| session.arm_trie(path.as_deref().map(|path| terminated(path, "path")).transpose()?))
    }

    /// A promise of the scores as JSON.
    #[napi(ts_return_type = "Promise<string>")]
    pub fn score_trie<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        background::run(env, "score", move || {
            let scores = session.score_trie()?;
            serde_json::to_string(&scores).map_err(|error| Error::Internal(error.to_string()))
        })
    }

    #[napi]
    pub fn build_trie(&self, names: TrieNames) -> napi::Result<BuiltTrie> {
        let session = self.session()?;
        call(|| {
            for (at, name) in names.names.iter().enumerate() {
                terminated(name, &format!("names[{at}]"))?;
            }
            let around = Surroundings {
                before: terminated(&names.before, "before")?,
                after: terminated(&names.after, "after")?,
                parse_special: names.parse_special,
            };
            let model_id = session.info().ids.first().map_or("", String::as_str);
            let built = build(session.vocab(), model_id, terminated(&names.path, "path")?, &names.names, around)?;
            Ok(BuiltTrie { payload: built.json, warnings: built.warnings })
        })
    }
}
