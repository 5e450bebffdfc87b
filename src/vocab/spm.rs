//! SentencePiece-style BPE tokenization (Kudo and Richardson, <https://arxiv.org/abs/1808.06226>): characters are
//! merged by the score of the token that they form.

use super::merge::{Merger, NONE, TOKENS};
use super::merge_boundaries::MergeBoundaries;
use super::pace::Pace;
use super::spelling::hex_text;
use super::texts::Texts;
use super::unicode::utf8_len;
use crate::{Result, Token, reserve};

/// Scores and byte tokens of a vocabulary.
pub(super) struct Spm {
    /// Priority of each token as the result of a join, lower first.
    priorities: Vec<u32>,
    /// The token of each byte; `unk` where the vocabulary has none.
    bytes: [Option<Token>; 256],
    boundaries: MergeBoundaries,
    /// Whether a token has this many bytes: a text of another length need not be looked up.
    lengths: Vec<bool>,
}

/// Higher scores first, as an ascending number below [`NONE`]. The score is not NaN.
fn priority(score: f32) -> u32 {
    // Adding zero makes -0 and 0 one score.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

impl Spm {
    /// From the score of every token; `unk` is used for bytes without a token.
    pub(super) fn new(texts: &Texts, scores: &[f32], unk: Option<Token>) -> Result<Self> {
        let byte_token = |byte: u8| {
            let found = texts.find(&hex_text(byte)).or_else(|| texts.find(&[byte]));
            found.map(|id| id as Token).or(unk)
        };
        let mut bytes = [None; 256];
        for (byte, token) in (0..=255).zip(&mut bytes) {
            *token = byte_token(byte);
        }
        let mut priorities = reserve::list(scores.len(), "scores")?;
        priorities.extend(scores.iter().map(|&s| priority(s)));
        let all = || (0..texts.len() as u32).map(|id| texts.get(id).len());
        let mut lengths = reserve::filled(false, all().max().unwrap_or(0) + 1, "lengths of tokens")?;
        all().for_each(|length| lengths[length] = true);
        Ok(Spm { priorities, bytes, boundaries: MergeBoundaries::new(texts), lengths })
    }

    /// Append the tokens of one stretch of text in which spaces are escaped.
    pub(super) fn tokenize(
        &self,
        texts: &Texts,
        text: &[u8],
        merger: &mut Merger,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        self.boundaries.cut(text, |stretch| self.join(texts, stretch, merger, pace, out))
    }

    fn join(
        &self,
        texts: &Texts,
        text: &[u8],
        merger: &mut Merger,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        merger.clear(text.len())?;
        let mut rest = text;
        while let Some(&first) = rest.first() {
            pace.spend(1)?;
            let (this, behind) = rest.split_at(utf8_len(first).min(rest.len()));
            merger.push(this.len(), texts.find(this).unwrap_or(NONE));
            rest = behind;
        }
        merger.run(pace, |left, right| {
            let joined = &text[left.range().start..right.range().end];
            let id = self.lengths.get(joined.len()).filter(|known| **known).and_then(|_| texts.find(joined))?;
            Some((*self.priorities.get(id as usize)?, id))
        })?;
        for symbol in merger.symbols() {
            pace.spend(1)?;
            if symbol.id == NONE {
                for token in text[symbol.range()].iter().filter_map(|&b| self.bytes[usize::from(b)]) {
                    reserve::push(out, token, TOKENS)?;
                }
            } else {
                reserve::push(out, symbol.id as Token, TOKENS)?;
            }
        }
        Ok(())
    }

    /// The token of a byte.
    pub(super) fn byte(&self, byte: u8) -> Option<Token> {
        self.bytes[usize::from(byte)]
    }
}
