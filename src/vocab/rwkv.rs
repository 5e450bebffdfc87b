//! RWKV's tokenization: over bytes, the longest token that begins at each place, from the left.

use super::automaton::{Automaton, NONE, ReadFrom};
use super::merge::{Scratch, TOKENS};
use super::pace::Pace;
use super::spelling::unescape_backslashes;
use super::texts::Texts;
use crate::{Error, Result, Token, reserve};

const KEY: &str = "tokenizer.ggml.tokens";

/// The tokens of a vocabulary.
pub(super) struct Rwkv {
    tokens: Automaton,
    unk: Option<Token>,
}

impl Rwkv {
    /// `unk` is the token of a byte that begins no token.
    pub(super) fn new(texts: &Texts, unk: Option<Token>) -> Result<Self> {
        let all = || (0..texts.len() as u32).map(|id| texts.get(id));
        let mut bytes = reserve::list(all().map(<[u8]>::len).sum(), "bytes of the vocabulary's texts")?;
        let mut ends = reserve::list(texts.len(), "tokens")?;
        for (id, text) in all().enumerate() {
            let escaped = unescape_backslashes(text, |part| bytes.extend_from_slice(part));
            escaped.map_err(|problem| Error::Vocab(format!("Key `{KEY}`: entry {id} {problem}")))?;
            ends.push(bytes.len());
        }
        let mut start = 0;
        let spelled = (0..).zip(&ends).map(|(id, &end)| (id, &bytes[std::mem::replace(&mut start, end)..end]));
        let tokens = Automaton::new(ReadFrom::End, texts.len(), spelled)?;
        let single = |byte: &u8| tokens.longest(tokens.step(0, *byte)) != NONE;
        match (0..=u8::MAX).find(|byte| !single(byte)) {
            Some(byte) if unk.is_none() => {
                Err(Error::Vocab(format!("Key `{KEY}`: no token for byte {byte}, and none for what is unknown")))
            }
            _ => Ok(Rwkv { tokens, unk }),
        }
    }

    /// Append the tokens of one stretch of text that holds no special token.
    pub(super) fn tokenize(
        &self,
        text: &[u8],
        scratch: &mut Scratch,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        let longest = &mut scratch.longest;
        self.tokens.longest_at_each(text, pace, longest)?;
        let mut at = 0;
        while at < text.len() {
            pace.spend(1)?;
            let (token, len) = match longest[at] {
                NONE => (self.unk, 1),
                id => (Some(id as Token), self.tokens.len(id)),
            };
            if let Some(token) = token {
                reserve::push(out, token, TOKENS)?;
            }
            at += len;
        }
        Ok(())
    }
}
