//! Byte-pair encoding: words from the pre-tokenizer, joined by the rank of their merges.
//!
//! Merges are told by ids, not texts. A merge may name texts that are no tokens; those get ids behind the last token,
//! so a symbol is a token exactly if its id is below the vocabulary's size.

use super::merge::{Merger, NONE, Symbol};
use super::pre::{Pre, Writing};
use super::split::Splitter;
use super::texts::Texts;
use super::unicode::{BYTE_CHARS, repair, utf8_len};
use crate::{Error, Result, Token};
use hashbrown::HashMap;
use std::borrow::Cow;

const MERGES: &str = "tokenizer.ggml.merges";

/// The merges of a vocabulary and its pre-tokenizer.
pub(super) struct Bpe {
    pub(super) pre: &'static Pre,
    splitter: Splitter,
    /// (left id, right id) to (rank, id of both together).
    merges: HashMap<u64, (u32, u32)>,
    /// The symbol of each byte, for words written in byte characters.
    byte_ids: [u32; 256],
    n_tokens: u32,
}

/// Buffers of one call of tokenize.
#[derive(Default)]
pub(super) struct Scratch {
    merger: Merger,
    written: Vec<u8>,
}

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Bpe {
    /// Read the merges (`left right` each, best first); `texts` holds the tokens and takes whatever else they name.
    pub(super) fn new(pre: &'static Pre, texts: &mut Texts, merges: &[&str]) -> Result<Self> {
        let n_tokens = texts.len() as u32;
        let mut table = HashMap::with_capacity(merges.len());
        let mut both = Vec::new();
        let mut joined = 0;
        for (rank, merge) in merges.iter().enumerate() {
            let merge = merge.as_bytes();
            // A space may be the first character of the left part; the one behind it divides.
            let space = merge.iter().skip(1).position(|&b| b == b' ').map(|i| i + 1);
            let Some((left, right)) = space.map(|at| (&merge[..at], &merge[at + 1..])).filter(|(_, r)| !r.is_empty())
            else {
                let text = String::from_utf8_lossy(merge);
                return Err(Error::Vocab(format!(
                    "Key `{MERGES}`: entry {rank} (`{text}`) is not of the form `left right`"
                )));
            };
            both.clear();
            both.extend_from_slice(left);
            both.extend_from_slice(right);
            // Merges mostly come in the order of the tokens they make, several for one token at times.
            joined = match [joined, joined + 1].into_iter().find(|&id| texts.get(id) == both) {
                Some(id) => id,
                None => texts.find_or_insert(&both),
            };
            let key = pair_key(texts.find_or_insert(left), texts.find_or_insert(right));
            table.entry(key).or_insert((rank as u32, joined));
        }
        let mut utf8 = [0; 4];
        let byte_ids = BYTE_CHARS.map(|c| texts.find(c.encode_utf8(&mut utf8).as_bytes()).unwrap_or(NONE));
        Ok(Bpe { pre, splitter: Splitter::new(pre.stages)?, merges: table, byte_ids, n_tokens })
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
        merger.run(|left: &Symbol, right: &Symbol| self.merges.get(&pair_key(left.id, right.id)).copied());
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
