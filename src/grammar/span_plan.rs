//! What a generation knows of the spans of its grammar: which they are, and how tokens are sampled in each.
//!
//! The grammar's rules are marked with numbers of spans; this is the list that the numbers point into. Looking a span's
//! sampling up allocates nothing, and the few different ones are numbered, so that whoever samples prepares each once.

use crate::{Error, Result};

/// What a span holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// A fixed text.
    Literal,
    /// One of a few texts.
    Choice,
    /// Other spans, several times.
    Repeat,
    /// A number as JSON writes it.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A JSON string.
    String,
    /// A JSON value.
    Json,
    /// Any text.
    Free,
}

/// How tokens of a span are sampled in place of the session's way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SpanSampling {
    /// The legal token with the greatest logit after biases and penalties.
    Greedy,
    /// The session's chain with other numbers; `None` leaves the session's.
    Chain {
        /// Above 0.
        temperature: Option<f32>,
        /// 0 keeps all candidates.
        top_k: Option<i32>,
        /// Above 0, at most 1.
        top_p: Option<f32>,
    },
}

/// One span.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanInfo {
    /// What it holds.
    pub kind: SpanKind,
    /// The host's name for it.
    pub key: Option<String>,
    /// The span that it is a part of.
    pub parent: Option<u32>,
    sampling: Option<u32>,
}

/// The spans of a grammar, by their numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpanPlan {
    spans: Vec<SpanInfo>,
    samplings: Vec<SpanSampling>,
}

/// The most different samplings of one grammar: a sampler is kept for each.
pub const MAX_SAMPLINGS: usize = 16;

impl SpanPlan {
    /// Appends a span and returns its number.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] beyond [`MAX_SAMPLINGS`] different samplings.
    pub(super) fn push(&mut self, kind: SpanKind, key: Option<String>, sampling: Option<SpanSampling>) -> Result<u32> {
        let sampling = sampling.map(|one| self.number_of(one)).transpose()?;
        self.spans.push(SpanInfo { kind, key, parent: None, sampling });
        Ok(self.spans.len() as u32 - 1)
    }

    /// Makes a span a part of another.
    pub(super) fn nest(&mut self, span: u32, parent: u32) {
        if let Some(info) = self.spans.get_mut(span as usize) {
            info.parent = Some(parent);
        }
    }

    /// Sets how a span is sampled; a number that is none changes nothing.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub(super) fn set_sampling(&mut self, span: u32, sampling: Option<SpanSampling>) -> Result<()> {
        let sampling = sampling.map(|one| self.number_of(one)).transpose()?;
        if let Some(info) = self.spans.get_mut(span as usize) {
            info.sampling = sampling;
        }
        Ok(())
    }

    fn number_of(&mut self, sampling: SpanSampling) -> Result<u32> {
        if let Some(number) = self.samplings.iter().position(|one| *one == sampling) {
            return Ok(number as u32);
        }
        if self.samplings.len() == MAX_SAMPLINGS {
            let problem = format!("Spans are sampled in more than {MAX_SAMPLINGS} different ways");
            return Err(Error::InvalidArgument(problem));
        }
        self.samplings.push(sampling);
        Ok(self.samplings.len() as u32 - 1)
    }

    /// The spans, by number.
    pub fn spans(&self) -> &[SpanInfo] {
        &self.spans
    }

    /// The different samplings of all spans.
    pub fn samplings(&self) -> &[SpanSampling] {
        &self.samplings
    }

    /// The index in [`Self::samplings`] of how the next token is sampled, where `span` is what the grammar's state says
    /// of it; `None` where the session's way applies.
    #[inline]
    pub fn sampling(&self, span: Option<u32>) -> Option<usize> {
        self.spans.get(span? as usize)?.sampling.map(|number| number as usize)
    }
}
