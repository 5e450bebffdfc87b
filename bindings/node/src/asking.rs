//! What a host asks: of the machine, of a file, of an open model.

use std::path::Path;

use elizainference::engine::{devices_json, plan_json};
use elizainference::gguf::File;
use elizainference::session::arguments::count;
use elizainference::{Error, Result, ffi};
use napi::Env;
use napi::bindgen_prelude::{Float32Array, Int32Array, Int32ArraySlice, Object};
use napi_derive::napi;

use crate::background;
use crate::edge::{call, terminated};
use crate::handle::Handle;
use crate::options::{EmbeddingOptions, OpenOptions};

/// A promise of the devices as JSON.
#[napi(ts_return_type = "Promise<string>")]
pub fn devices(env: &Env) -> napi::Result<Object<'_>> {
    background::run(env, "devices", || Ok(devices_json()?.to_string()))
}

/// A promise of what opening a model would take, as JSON.
#[napi(ts_return_type = "Promise<string>")]
pub fn plan(env: &Env, path: String, options: OpenOptions) -> napi::Result<Object<'_>> {
    background::run(env, "plan", move || {
        let (path, draft) = (Path::new(terminated(&path, "modelPath")?), options.draft()?);
        Ok(plan_json(path, draft.as_deref(), &options.engine()?)?.to_string())
    })
}

/// A promise of the metadata of a file as JSON, of one key or of all.
#[napi(ts_return_type = "Promise<string>")]
pub fn file_metadata(env: &Env, path: String, key: Option<String>) -> napi::Result<Object<'_>> {
    background::run(env, "metadata", move || {
        File::open(Path::new(terminated(&path, "modelPath")?))?.metadata_json(known(key.as_deref())?)
    })
}

fn known(key: Option<&str>) -> Result<Option<&str>> {
    key.map(|key| terminated(key, "key")).transpose()
}

/// A log line.
#[napi(object)]
pub struct LogLine {
    pub level: i32,
    pub message: String,
}

/// As `eliza_inference_next_log_line`.
#[napi]
pub fn next_log_line() -> napi::Result<Option<LogLine>> {
    call(|| Ok(ffi::next_log_line()?.map(|(level, message)| LogLine { level, message })))
}

/// As `eliza_inference_set_log_sink` without a sink.
#[napi]
pub fn end_log() {
    // SAFETY: there is no sink, so there is nothing that has to stay valid.
    unsafe { ffi::eliza_inference_set_log_sink(None, std::ptr::null_mut()) };
}

/// A token that could have been drawn.
#[napi(object)]
pub struct Candidate {
    pub token: i32,
    pub logit: f64,
    pub probability: f64,
}

/// How a token was drawn.
#[napi(object)]
pub struct SampledToken {
    pub token: i32,
    pub logprob: f64,
    pub probability: f64,
    pub candidates: Vec<Candidate>,
}

/// Rows of texts, one after the other, and how many numbers each has.
#[napi(object)]
pub struct EmbeddingRows {
    pub rows: Float32Array,
    pub width: u32,
}

#[napi]
impl Handle {
    /// Sizes, special tokens and names as JSON.
    #[napi]
    pub fn describe(&self) -> napi::Result<String> {
        let session = self.session()?;
        call(|| session.describe())
    }

    /// The metadata of the file as JSON, of one key or of all.
    #[napi]
    pub fn metadata(&self, key: Option<String>) -> napi::Result<String> {
        let session = self.session()?;
        call(|| session.metadata_json(known(key.as_deref())?))
    }

    #[napi]
    pub fn is_eog(&self, token: i32) -> napi::Result<bool> {
        let session = self.session()?;
        call(|| session.is_eog(token))
    }

    /// A token as JSON.
    #[napi]
    pub fn token(&self, token: i32) -> napi::Result<String> {
        let session = self.session()?;
        call(|| session.token_json(token))
    }

    /// The prompt of messages as JSON: its text and its tokens.
    #[napi]
    pub fn chat_prompt(&self, inputs: String) -> napi::Result<String> {
        let session = self.session()?;
        call(|| session.chat_prompt_json(terminated(&inputs, "inputs")?))
    }

    /// The parts that a piece of an answer completes, as JSON; without inputs of the answer that was begun.
    #[napi]
    pub fn chat_parts(&self, inputs: Option<String>, text: String, last: bool) -> napi::Result<String> {
        let session = self.session()?;
        call(|| {
            let inputs = inputs.as_deref().map(|inputs| terminated(inputs, "inputs")).transpose()?;
            session.chat_parts_json(inputs, text.as_bytes(), last)
        })
    }

    /// A promise of the logits of the last positions, one row after the other.
    #[napi(ts_return_type = "Promise<Float32Array>")]
    pub fn logits<'env>(&self, env: &'env Env, n_last: i32) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        background::run(env, "logits", move || {
            let n_last = count(n_last, "nLast")? as usize;
            let room = session.logits(n_last, &mut [])?;
            let mut out = Vec::new();
            out.try_reserve_exact(room).map_err(|_| Error::OutOfMemory(format!("{room} logits")))?;
            out.resize(room, 0.0);
            session.logits(n_last, &mut out)?;
            Ok(Float32Array::new(out))
        })
    }

    /// A promise of the rows of texts, whose tokens follow one another.
    #[napi(ts_return_type = "Promise<EmbeddingRows>")]
    pub fn embed<'env>(
        &self,
        env: &'env Env,
        tokens: Int32ArraySlice<'_>,
        counts: Vec<u32>,
        options: EmbeddingOptions,
    ) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        let tokens = tokens.to_vec();
        background::run(env, "embed", move || {
            let mut rest = tokens.as_slice();
            let mut texts = Vec::with_capacity(counts.len());
            for n in counts {
                let split = rest.split_at_checked(n as usize);
                let (text, after) = split.ok_or_else(|| Error::InvalidArgument("more counts than tokens".into()))?;
                texts.push(text.to_vec());
                rest = after;
            }
            let made = session.embed(texts, &options.read()?)?;
            Ok(EmbeddingRows { rows: Float32Array::new(made.texts.concat()), width: made.width as u32 })
        })
    }

    /// The tokens of a question and a text, which a reranker scores.
    #[napi]
    pub fn tokenize_pair(&self, query: String, text: String) -> napi::Result<Int32Array> {
        let session = self.session()?;
        call(|| Ok(session.tokenize_pair(query.as_bytes(), text.as_bytes())?.into()))
    }

    /// How the last token of a slot was drawn; nothing before the first.
    #[napi]
    pub fn sampled(&self, slot: i32) -> napi::Result<Option<SampledToken>> {
        let session = self.session()?;
        call(|| {
            Ok(session.sampled(slot).map(|drawn| SampledToken {
                token: drawn.token,
                logprob: drawn.logprob.into(),
                probability: drawn.prob.into(),
                candidates: drawn.candidates.iter().map(candidate).collect(),
            }))
        })
    }
}

fn candidate(&(token, logit, probability): &(i32, f32, f32)) -> Candidate {
    Candidate { token, logit: logit.into(), probability: probability.into() }
}
