//! Rows of whole texts: embeddings and scores.

use super::shared::{Command, Phase, ResumePoint, State};
use super::{EmbedOptions, Embeddings, Pooling, Session};
use crate::{Error, Result, Token};
use std::sync::mpsc;

/// A template's places for a question and for a text that may answer it.
const PLACES: [&str; 2] = ["{query}", "{document}"];

impl Session {
    /// The rows of texts, each given as its tokens: embeddings. Of every text one row, or without pooling a row for
    /// each of its tokens, one after the other. Blocks until that is done; short texts share passes. A generate needs
    /// a new prefill afterwards.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a text without tokens or with more than the context has, a token that does not
    /// exist, pooling `rank` without a classifier, and more dimensions than there are; [`Error::Cancelled`];
    /// [`Error::Busy`] (also when called from the token callback).
    pub fn embed(&self, texts: Vec<Vec<Token>>, options: &EmbedOptions) -> Result<Embeddings> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.change(|state| self.schedule_embed(state, texts, *options, reply))?;
        answer.recv().map_err(|_| Error::Internal("the worker ended without an answer".into())).flatten()
    }

    /// As [`Session::embed`], without waiting for it: [`status`](Session::status) is busy until it is over, and
    /// [`Session::take_embeddings`] then has the rows. What was not taken before is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] and [`Error::Busy`] as [`Session::embed`]; later errors come from
    /// [`Session::take_embeddings`].
    pub fn start_embed(&self, texts: Vec<Vec<Token>>, options: &EmbedOptions) -> Result<()> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.change(|state| {
            self.schedule_embed(state, texts, *options, reply)?;
            state.embedding = Some(answer);
            Ok(())
        })
    }

    /// The rows of [`Session::start_embed`]; each are given once.
    ///
    /// # Errors
    /// The error that ended it, [`Error::Busy`] while it runs, and [`Error::InvalidArgument`] where nothing was
    /// started, or all was taken.
    pub fn take_embeddings(&self) -> Result<Embeddings> {
        let mut state = self.shared.lock();
        let Some(answer) = state.embedding.take() else {
            return Err(Error::InvalidArgument("there are no embeddings to take".into()));
        };
        match answer.try_recv() {
            Ok(rows) => rows,
            Err(mpsc::TryRecvError::Empty) => {
                state.embedding = Some(answer);
                Err(Error::Busy("the embeddings are being computed".into()))
            }
            Err(mpsc::TryRecvError::Disconnected) => Err(Error::Internal("the worker ended without an answer".into())),
        }
    }

    /// As [`Session::embed`], of texts, with the tokens at beginning and end that the vocabulary asks for. The texts of
    /// control tokens are text.
    ///
    /// # Errors
    /// As [`Session::embed`] and [`Session::tokenize`].
    pub fn embed_texts(&self, texts: &[&[u8]], options: &EmbedOptions) -> Result<Embeddings> {
        let tokens = texts.iter().map(|text| self.tokenize(text, true, false)).collect::<Result<_>>()?;
        self.embed(tokens, options)
    }

    /// How well each text answers a question: the first score of the model's classifier, by which texts are ordered.
    ///
    /// # Errors
    /// As [`Session::embed_texts`].
    pub fn rank(&self, query: &[u8], texts: &[&[u8]]) -> Result<Vec<f32>> {
        let pairs = texts.iter().map(|text| self.tokenize_pair(query, text)).collect::<Result<_>>()?;
        let options = EmbedOptions { pooling: Some(Pooling::Rank), ..EmbedOptions::default() };
        let scores = self.embed(pairs, &options)?;
        Ok(scores.texts.iter().filter_map(|labels| labels.first()).copied().collect())
    }

    /// The tokens of a question and a text for [`Session::rank`]: by the file's template for that, or side by side as
    /// the vocabulary separates them. The texts of control tokens in either are text.
    ///
    /// # Errors
    /// As [`Session::tokenize`].
    pub fn tokenize_pair(&self, query: &[u8], text: &[u8]) -> Result<Vec<Token>> {
        let Some(template) = self.file.get::<String>("tokenizer.chat_template.rerank")? else {
            return self.side_by_side(query, text);
        };
        let mut tokens = Vec::new();
        let mut rest = template.as_str();
        let places = [query, text];
        while let Some((at, place)) =
            PLACES.iter().enumerate().filter_map(|(i, name)| Some((rest.find(name)?, i))).min()
        {
            tokens.extend(self.tokenize(&rest.as_bytes()[..at], false, true)?);
            tokens.extend(self.tokenize(places[place], false, false)?);
            rest = &rest[at + PLACES[place].len()..];
        }
        tokens.extend(self.tokenize(rest.as_bytes(), false, true)?);
        Ok(tokens)
    }

    /// Both as texts of their own, of which the second has no token at its beginning. Where the vocabulary says so a
    /// separator stands between them besides.
    fn side_by_side(&self, query: &[u8], text: &[u8]) -> Result<Vec<Token>> {
        let mut tokens = self.tokenize(query, true, false)?;
        if self.vocab.add_eos() && self.file.get::<bool>("tokenizer.ggml.add_sep_token")?.unwrap_or(false) {
            tokens.extend(self.vocab.special().sep);
        }
        let second = self.tokenize(text, true, false)?;
        let begun = second.first().is_some_and(|&first| Some(first) == self.vocab.bos());
        tokens.extend_from_slice(&second[usize::from(begun)..]);
        Ok(tokens)
    }

    fn schedule_embed(
        &self,
        state: &mut State,
        texts: Vec<Vec<Token>>,
        options: EmbedOptions,
        reply: mpsc::SyncSender<Result<Embeddings>>,
    ) -> Result<()> {
        for (i, text) in texts.iter().enumerate() {
            let (n, context) = (text.len(), self.info.context as usize);
            if n == 0 {
                return Err(Error::InvalidArgument(format!("text {i} has no tokens")));
            }
            if n > context {
                let problem = format!("text {i} has {n} tokens, more than the context of {context}");
                return Err(Error::InvalidArgument(problem));
            }
            self.check_tokens(text, &format!("text {i},"))?;
        }
        self.check_worker(state, "embedding")?;
        state.phase = Phase::Prefilling;
        state.prompt = None;
        state.resume_point = ResumePoint::default();
        state.reading = false;
        self.schedule(state, Command::Embed { texts, options, reply });
        Ok(())
    }
}
