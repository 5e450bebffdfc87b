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
use super::texts::{BLOCK, Texts};
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

/// A thread looks up at least so many merges.
const SHARE: usize = 8192;

/// Threads that look merges up.
const MOST_THREADS: usize = 4;

/// The two sides of a merge. The first character of the left side may be a space; the first space after it divides.
fn divide(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = 1 + merge.iter().skip(1).position(|&b| b == b' ')?;
    let (left, right) = (&merge[..space], &merge[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

/// The ids of merges: `(left, right, joined)`.
type Merge = (u32, u32, u32);

/// The ids that the texts of all merges have, [`NONE`] where one has none, found by several threads.
fn look_up_all(texts: &Texts, merges: &[&[u8]]) -> Result<Vec<Merge>> {
    let mut table = reserve::filled((NONE, NONE, NONE), merges.len(), "merges")?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let share = merges.len().div_ceil(threads).max(SHARE);
    std::thread::scope(|scope| {
        let mut shares = (0..).zip(merges.chunks(share).zip(table.chunks_mut(share)));
        let first = shares.next();
        let mut others = Vec::new();
        for (i, (merges, found)) in shares {
            let named = std::thread::Builder::new().name("eliza-merges".into());
            let work = move || look_up(texts, merges, i * share, found);
            others.push(named.spawn_scoped(scope, work).map_err(|error| {
                Error::OutOfMemory(format!("A thread that reads merges could not be started: {error}"))
            })?);
        }
        let mut done = first.map_or(Ok(()), |(_, (merges, found))| look_up(texts, merges, 0, found));
        for other in others {
            let other = other.join().unwrap_or_else(|_| Err(Error::Internal("A look-up of merges panicked".into())));
            done = done.and(other);
        }
        done
    })?;
    Ok(table)
}

/// The ids of merges, of which the first has this rank.
fn look_up(texts: &Texts, merges: &[&[u8]], rank: usize, found: &mut [Merge]) -> Result<()> {
    let mut both = Vec::new();
    let mut joined = 0;
    for (block, (merges, found)) in merges.chunks(BLOCK).zip(found.chunks_mut(BLOCK)).enumerate() {
        // Begin all look-ups of a block before the first one is needed.
        let mut parts: [(&[u8], &[u8]); BLOCK] = [(b"", b""); BLOCK];
        for (i, (part, merge)) in parts.iter_mut().zip(merges).enumerate() {
            *part = divide(merge).ok_or_else(|| {
                let (rank, merge) = (rank + block * BLOCK + i, String::from_utf8_lossy(merge));
                let merge = shown(&merge);
                Error::Vocab(format!("Key `{MERGES}`: entry {rank} (`{merge}`) is not of the form `left right`"))
            })?;
        }
        let probes = parts.map(|(left, right)| (texts.probe(left), texts.probe(right)));
        for ((found, (left, right)), (left_probe, right_probe)) in found.iter_mut().zip(parts).zip(probes) {
            both.clear();
            reserve::extend(&mut both, left, TEXT)?;
            reserve::extend(&mut both, right, TEXT)?;
            // Merges mostly come in the order of the tokens they make, several for one token at times.
            let whole = [joined, joined + 1].into_iter().find(|&id| texts.get(id) == both);
            let whole = whole.or_else(|| texts.find(&both));
            joined = whole.unwrap_or(joined);
            let id = |found: Option<u32>| found.unwrap_or(NONE);
            *found = (id(texts.resolve(left_probe, left)), id(texts.resolve(right_probe, right)), id(whole));
        }
    }
    Ok(())
}

impl Bpe {
    /// Read the merges (`left right` each, best first); `texts` holds the tokens; other texts that merges name are
    /// added to it.
    pub(super) fn new(pre: &'static Pre, texts: &mut Texts, merges: &[&[u8]]) -> Result<Self> {
        let n_tokens = texts.len() as u32;
        let bytes: usize = merges.iter().map(|merge| merge.len()).sum();
        if bytes > u32::MAX as usize / 4 {
            return Err(Error::Vocab(format!("Key `{MERGES}`: {bytes} bytes are too many")));
        }
        let longest = (0..n_tokens).map(|id| texts.get(id).len()).max().unwrap_or(0);
        let mut table = look_up_all(texts, merges)?;
        let mut both = Vec::new();
        for ((left, right, joined), merge) in table.iter_mut().zip(merges) {
            if [*left, *right, *joined].contains(&NONE) {
                let (left_text, right_text) = divide(merge).unwrap_or_default();
                both.clear();
                reserve::extend(&mut both, left_text, TEXT)?;
                reserve::extend(&mut both, right_text, TEXT)?;
                *left = texts.find_or_insert(left_text)?;
                *right = texts.find_or_insert(right_text)?;
                *joined = texts.find_or_insert(&both)?;
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
        let Scratch { merger, written, .. } = scratch;
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
