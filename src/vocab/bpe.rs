//! Byte-pair encoding: words from the pre-tokenizer, joined by the rank of their merges.
//!
//! Merges are told by ids, not texts. A merge may name texts that are no tokens; those get ids behind the last token,
//! so a symbol is a token exactly if its id is below the vocabulary's size.

use super::merge::{Merger, NONE, Symbol};
use super::pairs::Pairs;
use super::pre::{Pre, Writing};
use super::seams::Seams;
use super::split::Splitter;
use super::texts::Texts;
use super::unicode::{BYTE_CHARS, repair, utf8_len};
use crate::{Error, Result, Token};
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
    seams: Option<Seams>,
    n_tokens: u32,
}

/// Buffers of one call of tokenize.
#[derive(Default)]
pub(super) struct Scratch {
    merger: Merger,
    written: Vec<u8>,
}

/// Merges whose look-ups are made together.
const BLOCK: usize = 16;

/// The two sides of a merge. A space may be the first character of the left one; the one behind it divides.
fn divide(merge: &str) -> Option<(&[u8], &[u8])> {
    let merge = merge.as_bytes();
    let space = 1 + merge.iter().skip(1).position(|&b| b == b' ')?;
    let (left, right) = (&merge[..space], &merge[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

impl Bpe {
    /// Read the merges (`left right` each, best first); `texts` holds the tokens and takes whatever else they name.
    pub(super) fn new(pre: &'static Pre, texts: &mut Texts, merges: &[&str]) -> Result<Self> {
        let n_tokens = texts.len() as u32;
        let bytes: usize = merges.iter().map(|merge| merge.len()).sum();
        if bytes > u32::MAX as usize / 4 {
            return Err(Error::Vocab(format!("Key `{MERGES}`: {bytes} bytes are too many")));
        }
        let mut table = Vec::with_capacity(merges.len());
        let mut both = Vec::new();
        let mut joined = 0;
        for (block, merges) in merges.chunks(BLOCK).enumerate() {
            // Begin all look-ups of a block before the first one is needed.
            let mut parts: [(&[u8], &[u8]); BLOCK] = [(b"", b""); BLOCK];
            for (i, (part, merge)) in parts.iter_mut().zip(merges).enumerate() {
                *part = divide(merge).ok_or_else(|| {
                    let rank = block * BLOCK + i;
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
                both.extend_from_slice(left);
                both.extend_from_slice(right);
                // Merges mostly come in the order of the tokens they make, several for one token at times.
                joined = match [joined, joined + 1].into_iter().find(|&id| texts.get(id) == both) {
                    Some(id) => id,
                    None => texts.find_or_insert(&both),
                };
                let left = found.0.unwrap_or_else(|| texts.find_or_insert(left));
                let right = found.1.unwrap_or_else(|| texts.find_or_insert(right));
                table.push((left, right, joined));
            }
        }
        let mut utf8 = [0; 4];
        let byte_ids = BYTE_CHARS.map(|c| texts.find(c.encode_utf8(&mut utf8).as_bytes()).unwrap_or(NONE));
        let seams = (pre.writing == Writing::Escaped).then(|| Seams::new(texts));
        Ok(Bpe { pre, splitter: Splitter::new(pre.stages)?, merges: Pairs::new(&table), byte_ids, seams, n_tokens })
    }

    /// Append the tokens of one stretch of text that holds no special token.
    pub(super) fn tokenize(&self, texts: &Texts, text: &[u8], scratch: &mut Scratch, out: &mut Vec<Token>) {
        let text = match self.pre.writing {
            Writing::Escaped => Cow::Owned(super::escape_spaces(&repair(text))),
            _ => repair(text),
        };
        self.splitter.split(&text, |word| self.word(texts, word, scratch, out));
    }

    fn word(&self, texts: &Texts, word: &[u8], scratch: &mut Scratch, out: &mut Vec<Token>) {
        let Scratch { merger, written } = scratch;
        let bytes = self.pre.writing == Writing::Bytes;
        if self.pre.ignore_merges || (self.pre.gemma4 && word.iter().all(|&b| b == b'\n')) {
            let text = if bytes {
                written.clear();
                let mut utf8 = [0; 4];
                for &b in word {
                    written.extend_from_slice(BYTE_CHARS[usize::from(b)].encode_utf8(&mut utf8).as_bytes());
                }
                &written[..]
            } else {
                word
            };
            if let Some(id) = texts.find(text).filter(|&id| id < self.n_tokens) {
                out.push(id as Token);
                return;
            }
        }
        match &self.seams {
            Some(seams) => seams.cut(word, |stretch| self.join(texts, stretch, merger, out)),
            None => self.join(texts, word, merger, out),
        }
    }

    fn join(&self, texts: &Texts, word: &[u8], merger: &mut Merger, out: &mut Vec<Token>) {
        let bytes = self.pre.writing == Writing::Bytes;
        merger.clear();
        if bytes {
            word.iter().for_each(|&b| merger.push(1, self.byte_ids[usize::from(b)]));
        } else {
            let mut rest = word;
            while let Some(&first) = rest.first() {
                let (this, behind) = rest.split_at(utf8_len(first).min(rest.len()));
                merger.push(this.len(), texts.find(this).unwrap_or(NONE));
                rest = behind;
            }
        }
        merger.run(|left: &Symbol, right: &Symbol| self.merges.get(left.id, right.id));
        for symbol in merger.symbols() {
            if symbol.id < self.n_tokens {
                out.push(symbol.id as Token);
            } else {
                out.extend(word[symbol.range()].iter().filter_map(|&b| self.byte_token(texts, b, bytes)));
            }
        }
    }

    /// The token of a byte whose symbol is no token; a byte without one is dropped.
    fn byte_token(&self, texts: &Texts, byte: u8, bytes: bool) -> Option<Token> {
        let id = if bytes {
            // Only a byte that is written as itself has a text of one byte.
            Some(self.byte_ids[usize::from(byte)]).filter(|_| byte.is_ascii_graphic())
        } else {
            texts.find(&super::hex_text(byte))
        };
        id.filter(|&id| id < self.n_tokens).map(|id| id as Token)
    }
}
