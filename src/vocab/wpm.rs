//! WordPiece tokenization, as BERT has it (Devlin et al., <https://arxiv.org/abs/1810.04805>): words at white space and
//! punctuation, each cut from the left into the longest tokens there are.
//!
//! The text of a token that begins a word begins with U+2581, and other tokens only continue words.

use super::automaton::{Automaton, NONE, ReadFrom};
use super::merge::{Scratch, TOKENS};
use super::pace::Pace;
use super::spelling::SPACE_MARK;
use super::texts::Texts;
use super::unicode::{MARK, PUNCTUATION, SPACE, SYMBOL, TEXT};
use super::unicode::{class, code_points, collapse, is_control, lowercase, push_utf8, repair, without_accents};
use crate::{Result, Token, reserve};

/// How words are written before they are looked up.
pub(super) struct Normalizer {
    pub(super) lowercase: bool,
    pub(super) strip_accents: bool,
}

/// The tokens of a vocabulary and how words are found.
pub(super) struct Wpm {
    tokens: Automaton,
    normalizer: Normalizer,
    unk: Token,
}

/// Chinese ideographs, each of which is a word, by the list of BERT's tokenizers. One range begins later there than
/// Unicode has it.
fn is_chinese(cp: u32) -> bool {
    matches!(cp,
        0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x20000..=0x2a6df | 0x2a700..=0x2b73f
        | 0x2b740..=0x2b81f | 0x2b920..=0x2ceaf | 0x2f800..=0x2fa1f)
}

/// What a code point does to words.
enum Effect {
    /// It ends a word and is no part of any.
    Ends,
    Dropped,
    /// It is a word of its own, written so.
    Alone(u32),
    /// It continues a word, written so.
    Continues(u32),
}

impl Normalizer {
    fn effect(&self, cp: u32) -> Effect {
        let cp = if self.strip_accents { without_accents(cp) } else { cp };
        let class = class(collapse(cp));
        if class & SPACE != 0 {
            return Effect::Ends;
        }
        if cp == 0xfffd || is_control(cp) || (self.strip_accents && class & MARK != 0) {
            return Effect::Dropped;
        }
        let written = if self.lowercase { lowercase(cp) } else { cp };
        match class & PUNCTUATION != 0 || (cp < 0x7f && class & SYMBOL != 0) || is_chinese(cp) {
            true => Effect::Alone(written),
            false => Effect::Continues(written),
        }
    }
}

impl Wpm {
    pub(super) fn new(texts: &Texts, normalizer: Normalizer, unk: Token) -> Result<Self> {
        let all = (0..texts.len() as u32).map(|id| (id, texts.get(id)));
        Ok(Wpm { tokens: Automaton::new(ReadFrom::End, texts.len(), all)?, normalizer, unk })
    }

    /// Append the tokens of one stretch of text that holds no special token.
    pub(super) fn tokenize(
        &self,
        text: &[u8],
        scratch: &mut Scratch,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        let text = repair(text, pace)?;
        scratch.written.clear();
        for cp in code_points(&text) {
            pace.spend(1)?;
            match self.normalizer.effect(cp) {
                Effect::Ends => self.end_word(scratch, pace, out)?,
                Effect::Dropped => {}
                Effect::Alone(cp) => {
                    self.end_word(scratch, pace, out)?;
                    continue_word(cp, &mut scratch.written)?;
                    self.end_word(scratch, pace, out)?;
                }
                Effect::Continues(cp) => continue_word(cp, &mut scratch.written)?,
            }
        }
        self.end_word(scratch, pace, out)
    }

    /// Append the tokens of the word that was written, if there is one, and begin the next.
    fn end_word(&self, scratch: &mut Scratch, pace: &Pace<'_>, out: &mut Vec<Token>) -> Result<()> {
        let Scratch { written, longest, .. } = scratch;
        self.tokens.longest_at_each(written, pace, longest)?;
        let (begun, mut at) = (out.len(), 0);
        while at < written.len() {
            pace.spend(1)?;
            if longest[at] == NONE {
                out.truncate(begun);
                reserve::push(out, self.unk, TOKENS)?;
                break;
            }
            reserve::push(out, longest[at] as Token, TOKENS)?;
            at += self.tokens.len(longest[at]);
        }
        written.clear();
        Ok(())
    }
}

/// Write a code point after what there is of a word.
fn continue_word(cp: u32, word: &mut Vec<u8>) -> Result<()> {
    reserve::reserve(word, SPACE_MARK.len() + 4, TEXT)?;
    if word.is_empty() {
        word.extend_from_slice(SPACE_MARK);
    }
    push_utf8(cp, word);
    Ok(())
}
