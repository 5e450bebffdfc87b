//! SentencePiece-style tokenization: characters joined by the score of the token they form.

use super::merge::{Merger, NONE};
use super::seams::Seams;
use super::texts::Texts;
use super::unicode::utf8_len;
use crate::Token;

/// Scores and byte tokens of a vocabulary.
pub(super) struct Spm {
    /// Priority of each token as the result of a join, lower first.
    priorities: Vec<u32>,
    /// The token of each byte; `unk` stands in where the vocabulary has none.
    bytes: [Option<Token>; 256],
    seams: Seams,
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
    pub(super) fn new(texts: &Texts, scores: &[f32], unk: Option<Token>) -> Self {
        let byte_token = |byte: u8| {
            let found = texts.find(&super::hex_text(byte)).or_else(|| texts.find(&[byte]));
            found.map(|id| id as Token).or(unk)
        };
        let mut bytes = [None; 256];
        for (byte, token) in (0..=255).zip(&mut bytes) {
            *token = byte_token(byte);
        }
        Spm { priorities: scores.iter().map(|&s| priority(s)).collect(), bytes, seams: Seams::new(texts) }
    }

    /// Append the tokens of one stretch of text in which spaces are escaped.
    pub(super) fn tokenize(&self, texts: &Texts, text: &[u8], merger: &mut Merger, out: &mut Vec<Token>) {
        self.seams.cut(text, |stretch| self.join(texts, stretch, merger, out));
    }

    fn join(&self, texts: &Texts, text: &[u8], merger: &mut Merger, out: &mut Vec<Token>) {
        merger.clear();
        let mut rest = text;
        while let Some(&first) = rest.first() {
            let (this, behind) = rest.split_at(utf8_len(first).min(rest.len()));
            merger.push(this.len(), texts.find(this).unwrap_or(NONE));
            rest = behind;
        }
        merger.run(|left, right| {
            let id = texts.find(&text[left.range().start..right.range().end])?;
            Some((*self.priorities.get(id as usize)?, id))
        });
        for symbol in merger.symbols() {
            if symbol.id == NONE {
                out.extend(text[symbol.range()].iter().filter_map(|&b| self.bytes[usize::from(b)]));
            } else {
                out.push(symbol.id as Token);
            }
        }
    }

    /// The token of a byte.
    pub(super) fn byte(&self, byte: u8) -> Option<Token> {
        self.bytes[usize::from(byte)]
    }
}
