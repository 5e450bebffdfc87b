//! Descriptions of an open model as JSON: sizes and names, the metadata of its file, its tokens.

use super::{Pooling, Session};
use crate::model::Facts;
use crate::vocab::SpecialTokens;
use crate::{Error, Result, Token};
use serde::Serialize;
use std::path::Path;

/// The content of [`Session::describe`]. What the file does not name is null.
#[derive(Serialize)]
struct Description<'a> {
    path: &'a Path,
    /// Names a trie payload may call the model by.
    names: &'a [String],
    name: Option<String>,
    architecture: Option<String>,
    /// Whether only the vocabulary is open.
    vocab_only: bool,
    n_vocab: usize,
    n_embd: Option<u64>,
    n_layer: Option<u64>,
    n_head: Option<u64>,
    n_head_kv: Option<u64>,
    n_ff: Option<u64>,
    train_context: Option<u64>,
    /// Numbers in all tensors.
    parameters: u64,
    /// Of the file.
    bytes: u64,
    /// Whether the handle continues texts: not where the model gives embeddings alone, or only the vocabulary is open.
    generates: bool,
    /// How the file says that rows of texts are made.
    pooling: Pooling,
    /// Names of a classifier's scores.
    labels: Vec<String>,
    /// Of the handle, 0 where only the vocabulary is open, as the next four.
    context: u32,
    slots: u32,
    threads: u32,
    n_batch: u32,
    kv_type: &'a str,
    kv_type_v: &'a str,
    device: &'a str,
    vocabulary: Option<String>,
    special: &'a SpecialTokens,
    /// Tokens that end a generation, ascending.
    eog: &'a [Token],
    add_bos: bool,
    add_eos: bool,
}

/// The content of [`Session::token_json`].
#[derive(Serialize)]
struct TokenDescription<'a> {
    id: Token,
    /// As the file has it.
    text: Option<&'a str>,
    /// What it spells in a generated text, where that is UTF-8, and its bytes.
    piece: Option<&'a str>,
    bytes: &'a [u8],
    /// `None` where the file has no scores.
    score: Option<f64>,
    attributes: Vec<&'static str>,
    is_eog: bool,
}

impl Session {
    /// Sizes, names, special tokens and placement as one JSON object.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn describe(&self) -> Result<String> {
        let (facts, info, vocab) = (Facts::of(&self.file), &self.info, &self.vocab);
        json(&Description {
            path: &info.path,
            names: &info.ids,
            name: facts.name,
            architecture: facts.architecture,
            vocab_only: self.worker.is_none(),
            n_vocab: info.n_vocab,
            n_embd: facts.embedding,
            n_layer: facts.layers,
            n_head: facts.heads,
            n_head_kv: facts.kv_heads.or(facts.heads),
            n_ff: facts.feed_forward,
            train_context: facts.context,
            parameters: facts.parameters,
            bytes: self.file.size(),
            generates: info.generates,
            pooling: facts.pooling.unwrap_or_default(),
            labels: facts.labels,
            context: info.context,
            slots: info.slots,
            threads: info.threads,
            n_batch: info.n_batch,
            kv_type: &info.kv_type,
            kv_type_v: &info.kv_type_v,
            device: &info.device,
            vocabulary: facts.vocabulary,
            special: vocab.special(),
            eog: vocab.eog_tokens(),
            add_bos: vocab.add_bos(),
            add_eos: vocab.add_eos(),
        })
    }

    /// The metadata of the file that was opened; see [`File::metadata_json`](crate::gguf::File::metadata_json).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a key that the file does not have, [`Error::OutOfMemory`].
    pub fn metadata_json(&self, key: Option<&str>) -> Result<String> {
        self.file.metadata_json(key)
    }

    /// Whether the token ends a generation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a token outside the vocabulary.
    pub fn is_eog(&self, token: Token) -> Result<bool> {
        self.check_token(token).map(|_| self.vocab.is_eog(token))
    }

    /// Text, spelling, score and attributes of a token as one JSON object.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a token outside the vocabulary.
    pub fn token_json(&self, token: Token) -> Result<String> {
        let index = self.check_token(token)?;
        let mut bytes = Vec::new();
        self.vocab.piece(token, false, &mut bytes);
        let score = self.file.number_at("tokenizer.ggml.scores", index);
        json(&TokenDescription {
            id: token,
            text: self.vocab.token_text(token),
            piece: std::str::from_utf8(&bytes).ok(),
            bytes: &bytes,
            score: score.and_then(|score| serde_json::to_value(score).ok()?.as_f64()),
            attributes: self.vocab.attributes(token).collect(),
            is_eog: self.vocab.is_eog(token),
        })
    }

    fn check_token(&self, token: Token) -> Result<usize> {
        let n = self.vocab.n_tokens();
        let known = usize::try_from(token).ok().filter(|&index| index < n);
        known.ok_or_else(|| Error::InvalidArgument(format!("token {token}: the vocabulary has {n} tokens, from 0 on")))
    }
}

pub(super) fn json(of: &impl Serialize) -> Result<String> {
    serde_json::to_string(of).map_err(|error| Error::Internal(format!("A description as JSON: {error}")))
}
