//! A session without a model, for measuring the cost of everything but the model: it generates the same few tokens
//! without end.

use super::decoder::Decoder;
use super::{ModelInfo, Session, Settings};
use crate::engine::{EngineStats, Prefill};
use crate::gguf::File;
use crate::vocab::Vocab;
use crate::{Result, Token};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// More than any bench generates.
const CONTEXT: usize = 1 << 28;
const SAID: &[u8] = b" and so on";

struct Noop {
    said: Vec<Token>,
    tokens: Vec<Token>,
    row: Vec<f32>,
}

impl Session {
    /// A session with the vocabulary of the GGUF file at `path` and no model.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_noop(path: &Path) -> Result<Session> {
        let file = File::open(path)?;
        let vocab = Arc::new(Vocab::from_gguf(&file)?);
        let n_vocab = vocab.n_tokens();
        let decoder = Noop { said: vocab.tokenize(SAID, false, false)?, tokens: Vec::new(), row: vec![0.0; n_vocab] };
        let info = ModelInfo {
            path: path.into(),
            n_vocab,
            generates: true,
            context: CONTEXT as u32,
            train_context: CONTEXT as u32,
            threads: 1,
            slots: 1,
            ..ModelInfo::default()
        };
        Session::start(decoder, vocab, file, info, Settings::default())
    }
}

impl Decoder for Noop {
    fn prefill(&mut self, _: i32, tokens: &[Token], _: &AtomicBool) -> Result<Prefill> {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        Ok(Prefill { tokens: tokens.len(), ..Prefill::default() })
    }

    fn logits(&mut self, tokens: &[Token], _: &[Token], _: &AtomicBool) -> Result<&mut [f32]> {
        self.tokens.extend_from_slice(tokens);
        let at = self.tokens.len();
        let said = |at: usize| self.said[at % self.said.len()] as usize;
        let (before, now) = (said(at - 1), said(at));
        self.row[before] = 0.0;
        self.row[now] = 1.0;
        Ok(&mut self.row)
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn room(&self) -> usize {
        CONTEXT - self.tokens.len()
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}
