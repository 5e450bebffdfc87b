//! Special tokens in a text: where they are, and which of overlapping ones are taken.
//!
//! Longer tokens have precedence, then smaller ids, then places further left. An [`Automaton`] reads a text from its
//! end: at each position it has the longest token that begins there, and the next shorter ones. So the time is linear
//! in the text's length whatever the tokens are, and for each position there is one candidate at a time, in a queue by
//! precedence. A candidate whose bytes are partly taken is replaced by the longest one that still fits.

use super::automaton::{Automaton, NONE, ReadFrom};
use super::pace::Pace;
use super::special::{CONTROL, LSTRIP, PARTED, RSTRIP, UNKNOWN, USER_DEFINED};
use super::texts::Texts;
use crate::{Result, Token, reserve};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// What memory is for, in errors.
const TOKENS: &str = "special tokens";
const FOUND: &str = "special tokens in a text";

/// The tokens that are cut out of texts.
pub(super) struct Parts {
    /// In the order in which they take their bytes; a token's rank is its place here.
    tokens: Vec<u32>,
    /// What finds the ranks in texts in which control tokens are not recognised, and in which they are. None where
    /// there is nothing to find.
    searches: [Option<Automaton>; 2],
}

/// A token that was found in a text, with the bytes it takes.
pub(super) struct Found {
    start: u32,
    end: u32,
    id: u32,
}

impl Found {
    pub(super) fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(super) fn token(&self) -> Token {
        self.id as Token
    }
}

impl Parts {
    /// For a vocabulary's texts and attributes.
    pub(super) fn new(texts: &Texts, attributes: &[u8]) -> Result<Self> {
        let mut tokens = Vec::new();
        for (id, _) in (0..).zip(attributes).filter(|(_, a)| **a & PARTED != 0) {
            reserve::push(&mut tokens, id, TOKENS)?;
        }
        tokens.sort_unstable_by_key(|&id| (Reverse(texts.get(id).len()), id));
        let always = |id: u32| {
            let attribute = attributes[id as usize];
            attribute & USER_DEFINED != 0 && attribute & (CONTROL | UNKNOWN) == 0
        };
        let search = |wanted: &dyn Fn(u32) -> bool| {
            let wanted = (0..).zip(&tokens).filter(|(_, id)| wanted(**id));
            let mut patterns = wanted.map(|(rank, &id)| (rank, texts.get(id))).peekable();
            patterns.peek().is_some().then(|| Automaton::new(ReadFrom::End, tokens.len(), patterns)).transpose()
        };
        let searches = [search(&always)?, search(&|_| true)?];
        Ok(Parts { tokens, searches })
    }

    /// The special tokens in a text of less than 4 GiB, from left to right.
    pub(super) fn find(
        &self,
        attributes: &[u8],
        text: &[u8],
        parse_special: bool,
        pace: &Pace<'_>,
    ) -> Result<Vec<Found>> {
        let Some(search) = &self.searches[usize::from(parse_special)] else { return Ok(Vec::new()) };
        let mut candidates = Vec::new();
        let mut state = 0;
        for (start, &byte) in text.iter().enumerate().rev() {
            pace.spend(1)?;
            state = search.step(state, byte);
            match search.longest(state) {
                NONE => {}
                rank => reserve::push(&mut candidates, Reverse(u64::from(rank) << 32 | start as u64), FOUND)?,
            }
        }
        if candidates.is_empty() {
            return Ok(Vec::new());
        }

        let mut found = Vec::new();
        let mut taken = Bits { words: reserve::filled(0, text.len().div_ceil(64), FOUND)? };
        let mut candidates = BinaryHeap::from(candidates);
        while let Some(Reverse(candidate)) = candidates.pop() {
            let (mut rank, start) = ((candidate >> 32) as u32, candidate as u32 as usize);
            let (id, len) = (self.tokens[rank as usize], search.len(rank));
            pace.spend(1 + len / 64)?;
            let mut range = start..start + len;
            match taken.first(range.clone()) {
                None => {}
                Some(at) if at == start => continue,
                Some(at) => {
                    rank = search.shorter(rank);
                    while rank != NONE && search.len(rank) > at - start {
                        pace.spend(1)?;
                        rank = search.shorter(rank);
                    }
                    if rank != NONE {
                        // In place of the one that was removed from the queue.
                        candidates.push(Reverse(u64::from(rank) << 32 | start as u64));
                    }
                    continue;
                }
            }
            let attribute = attributes[id as usize];
            let eaten = |i: usize| !taken.has(i) && matches!(text[i], b'\t'..=b'\r' | b' ');
            if attribute & LSTRIP != 0 {
                range.start = (0..range.start).rev().find(|&i| !eaten(i)).map_or(0, |i| i + 1);
            }
            if attribute & RSTRIP != 0 {
                range.end = (range.end..text.len()).find(|&i| !eaten(i)).unwrap_or(text.len());
            }
            taken.fill(range.clone());
            reserve::push(&mut found, Found { start: range.start as u32, end: range.end as u32, id }, FOUND)?;
        }
        found.sort_unstable_by_key(|found| found.start);
        Ok(found)
    }
}

/// A bit for each byte of a text.
struct Bits {
    words: Vec<u64>,
}

impl Bits {
    fn has(&self, at: usize) -> bool {
        self.words[at / 64] >> (at % 64) & 1 == 1
    }

    /// The words that a range touches, with the bits of the range in each.
    fn masks(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        (range.start / 64..range.end.div_ceil(64)).map(move |word| {
            let low = if word == range.start / 64 { range.start % 64 } else { 0 };
            let high = range.end - word * 64;
            (word, u64::MAX << low & u64::MAX >> 64usize.saturating_sub(high))
        })
    }

    /// The first bit that is set in a range that is not empty.
    fn first(&self, range: Range<usize>) -> Option<usize> {
        Bits::masks(range).find_map(|(word, mask)| match self.words[word] & mask {
            0 => None,
            bits => Some(word * 64 + bits.trailing_zeros() as usize),
        })
    }

    /// Set the bits of a range that is not empty.
    fn fill(&mut self, range: Range<usize>) {
        Bits::masks(range).for_each(|(word, mask)| self.words[word] |= mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every token at every place, longest first, then by id, then from left to right.
    fn slow(tokens: &[&str], text: &str) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        order.sort_by_key(|&id| (Reverse(tokens[id].len()), id));
        let mut taken = vec![false; text.len()];
        let mut found = Vec::new();
        for id in order {
            for start in 0..text.len() {
                let range = start..start + tokens[id].len();
                if text[start..].starts_with(tokens[id]) && !taken[range.clone()].contains(&true) {
                    taken[range].fill(true);
                    found.push((start, id));
                }
            }
        }
        found.sort_unstable();
        found
    }

    #[test]
    fn the_same_tokens_as_by_trying_all_of_them_everywhere() {
        let mut state = 7u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for round in 0..3000 {
            let letters = 1 + below(3);
            let mut word =
                |most: usize| -> String { (0..1 + below(most)).map(|_| ['a', 'b', 'c'][below(letters)]).collect() };
            let mut tokens: Vec<String> = (0..1 + round % 12).map(|_| word(8)).collect();
            tokens.sort_unstable_by_key(|token| token.len() % 3);
            let mut seen = std::collections::HashSet::new();
            tokens.retain(|token| seen.insert(token.clone()));
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let mut texts = Texts::default();
            for token in &tokens {
                texts.find_or_insert(token.as_bytes()).unwrap();
            }
            let attributes = vec![USER_DEFINED; tokens.len()];
            let parts = Parts::new(&texts, &attributes).unwrap();
            let text = word(150);
            let found = parts.find(&attributes, text.as_bytes(), false, &Pace::new(&|| false)).unwrap();
            let found: Vec<(usize, usize)> = found.iter().map(|f| (f.range().start, f.id as usize)).collect();
            assert_eq!(found, slow(&tokens, &text), "{tokens:?} in {text}");
        }
    }
}
