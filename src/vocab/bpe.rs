//! Byte-pair encoding (Sennrich et al., <https://arxiv.org/abs/1508.07909>; over bytes as in GPT-2): words from the
//! pre-tokenizer, whose symbols are merged by the rank of the merges.
//!
//! Merges are pairs of ids, not texts. A merge may name texts that are no tokens; those get ids after the last token,
//! so a symbol is a token exactly if its id is below the vocabulary's size.

use super::merge::{Merger, NONE, Scratch, Symbol, TOKENS};
use super::merge_boundaries::MergeBoundaries;
use super::pace::Pace;
use super::pairs::Pairs;
use super::pre::{Pre, Writing};
use super::spelling::{escape_spaces, hex_text};
use super::split::Splitter;
use super::texts::Texts;
use super::unicode::{BYTE_CHARS, TEXT, repair, utf8_len};
use crate::gguf::shown;
use crate::{Error, Result, Token, reserve};
use std::borrow::Cow;

const MERGES: &str = "tokenizer.ggml.merges";

/// The merges of a vocabulary and its pre-tokenizer.
pub(super) struct Bpe {
    pub(super) pre: &'static Pre,
    splitter: Splitter,
    merges: Pairs,
    /// The symbol of each byte, for words written in byte characters.
    byte_ids: [u32; 256],
    /// Where long words can be cut; for vocabularies whose words are whole lines.
    boundaries: Option<MergeBoundaries>,
    n_tokens: u32,
    /// Bytes of the longest token: no longer word is one.
    longest: usize,
}

/// Merges whose look-ups are made together.
const BLOCK: usize = 16;

/// The two sides of a merge. The first character of the left side may be a space; the first space after it divides.
fn divide(merge: &str) -> Option<(&[u8], &[u8])> {
    let merge = merge.as_bytes();
    let space = 1 + merge.iter().skip(1).position(|&b| b == b' ')?;
    let (left, right) = (&merge[..space], &merge[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

impl Bpe {
    /// Read the merges (`left right` each, best first); `texts` holds the tokens; other texts that merges name are
    /// added to it.
    pub(super) fn new(pre: &'static Pre, texts: &mut Texts, merges: &[&str]) -> Result<Self> {
        let n_tokens = texts.len() as u32;
        let bytes: usize = merges.iter().map(|merge| merge.len()).sum();
        if bytes > u32::MAX as usize / 4 {
            return Err(Error::Vocab(format!("Key `{MERGES}`: {bytes} bytes are too many")));
        }
        let longest = (0..n_tokens).map(|id| texts.get(id).len()).max().unwrap_or(0);
        let mut table = reserve::list(merges.len(), "merges")?;
        let mut both = Vec::new();
        let mut joined = 0;
        for (block, merges) in merges.chunks(BLOCK).enumerate() {
            // Begin all look-ups of a block before the first one is needed.
            let mut parts: [(&[u8], &[u8]); BLOCK] = [(b"", b""); BLOCK];
            for (i, (part, merge)) in parts.iter_mut().zip(merges).enumerate() {
                *part = divide(merge).ok_or_else(|| {
                    let rank = block * BLOCK + i;
                    let merge = shown(merge);
                    Error::Vocab(format!("Key `{MERGES}`: entry {rank} (`{merge}`) is not of the form `left right`"))
                })?;
            }
            let probes = parts.map(|(left, right)| (texts.probe(left), texts.probe(right)));
            let found: [_; BLOCK] = std::array::from_fn(|i| {
                let ((left, right), (left_probe, right_probe)) = (parts[i], probes[i]);
                (texts.resolve(left_probe, left), texts.resolve(right_probe, right))
            });
            for ((left, right), found) in parts.into_iter().zip(found).take(merges.len()) {
                both.clear();
                reserve::extend(&mut both, left, TEXT)?;
                reserve::extend(&mut both, right, TEXT)?;
                // Merges mostly come in the order of the tokens they make, several for one token at times.
                joined = match [joined, joined + 1].into_iter().find(|&id| texts.get(id) == both) {
                    Some(id) => id,
                    None => texts.find_or_insert(&both)?,
                };
                let left = found.0.map_or_else(|| texts.find_or_insert(left), Ok)?;
                let right = found.1.map_or_else(|| texts.find_or_insert(right), Ok)?;
                table.push((left, right, joined));
            }
        }
        let mut utf8 = [0; 4];
        let byte_ids = BYTE_CHARS.map(|c| texts.find(c.encode_utf8(&mut utf8).as_bytes()).unwrap_or(NONE));
        let boundaries = (pre.writing == Writing::Escaped).then(|| MergeBoundaries::new(texts));
        let (splitter, merges) = (Splitter::new(pre.stages)?, Pairs::new(&table)?);
        Ok(Bpe { pre, splitter, merges, byte_ids, boundaries, n_tokens, longest })
    }

    /// Append the tokens of one stretch of text that holds no special token.
    pub(super) fn tokenize(
        &self,
        texts: &Texts,
        text: &[u8],
        scratch: &mut Scratch,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        let mut text = repair(text, pace)?;
        if self.pre.writing == Writing::Escaped {
            let mut escaped = Vec::new();
            escape_spaces(b"", &text, &mut escaped)?;
            text = Cow::Owned(escaped);
        }
        self.splitter.split(&text, pace, |word| self.word(texts, word, scratch, pace, out))
    }

    fn word(
        &self,
        texts: &Texts,
        word: &[u8],
        scratch: &mut Scratch,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        let Scratch { merger, written } = scratch;
        let bytes = self.pre.writing == Writing::Bytes;
        let whole = self.pre.ignore_merges || (self.pre.gemma4 && word.iter().all(|&b| b == b'\n'));
        if whole && word.len() <= self.longest {
            let text = if bytes {
                written.clear();
                reserve::reserve(written, 2 * word.len(), TEXT)?;
                let mut utf8 = [0; 4];
                for &b in word {
                    written.extend_from_slice(BYTE_CHARS[usize::from(b)].encode_utf8(&mut utf8).as_bytes());
                }
                &written[..]
            } else {
                word
            };
            if let Some(id) = texts.find(text).filter(|&id| id < self.n_tokens) {
                return reserve::push(out, id as Token, TOKENS);
            }
        }
        match &self.boundaries {
            Some(boundaries) => boundaries.cut(word, |stretch| self.join(texts, stretch, merger, pace, out)),
            None => self.join(texts, word, merger, pace, out),
        }
    }

    fn join(
        &self,
        texts: &Texts,
        word: &[u8],
        merger: &mut Merger,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        let bytes = self.pre.writing == Writing::Bytes;
        merger.clear(word.len())?;
        if bytes {
            for &b in word {
                pace.spend(1)?;
                merger.push(1, self.byte_ids[usize::from(b)]);
            }
        } else {
            let mut rest = word;
            while let Some(&first) = rest.first() {
                pace.spend(1)?;
                let (this, behind) = rest.split_at(utf8_len(first).min(rest.len()));
                merger.push(this.len(), texts.find(this).unwrap_or(NONE));
                rest = behind;
            }
        }
        merger.run(pace, |left: &Symbol, right: &Symbol| self.merges.get(left.id, right.id))?;
        for symbol in merger.symbols() {
            pace.spend(1)?;
            if symbol.id < self.n_tokens {
                reserve::push(out, symbol.id as Token, TOKENS)?;
            } else {
                for token in word[symbol.range()].iter().filter_map(|&b| self.byte_token(texts, b, bytes)) {
                    reserve::push(out, token, TOKENS)?;
                }
            }
        }
        Ok(())
    }

    /// The token of a byte whose symbol is no token; a byte without one is dropped.
    fn byte_token(&self, texts: &Texts, byte: u8, bytes: bool) -> Option<Token> {
        let id = if bytes {
            // Only a byte that is written as itself has a text of one byte.
            Some(self.byte_ids[usize::from(byte)]).filter(|_| byte.is_ascii_graphic())
        } else {
            texts.find(&hex_text(byte))
        };
        id.filter(|&id| id < self.n_tokens).map(|id| id as Token)
    }
}
