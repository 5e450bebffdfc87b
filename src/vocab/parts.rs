//! Special tokens in a text: where they are, and which of overlapping ones are taken.
//!
//! Longer tokens have precedence, then smaller ids, then places further left. The reversed texts make an Aho-Corasick
//! automaton (<https://doi.org/10.1145/360825.360855>) that reads a text from its end: at each position its state has
//! the longest token that begins there, and each token has the next shorter one that its own text begins with. So the
//! time is linear in the text's length whatever the tokens are, and for each position there is one candidate at a time,
//! in a queue by precedence. A candidate whose bytes are partly taken is replaced by the longest one that still fits.

use super::pace::Pace;
use super::special::{CONTROL, LSTRIP, PARTED, RSTRIP, UNKNOWN, USER_DEFINED};
use super::texts::Texts;
use crate::{Result, Token, reserve};
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// No token, where there may be one.
const NONE: u32 = u32::MAX;
/// What memory is for, in errors.
const TOKENS: &str = "special tokens";
const STATES: &str = "states of the search for special tokens";
const FOUND: &str = "special tokens in a text";

/// The tokens that are cut out of texts, and the automaton that finds them. Fields with two values are for texts in
/// which control tokens are not recognised, and in which they are.
pub(super) struct Parts {
    /// In the order in which they take their bytes; a token's rank is its place here.
    tokens: Vec<Parted>,
    /// State 0 is the start.
    states: Vec<State>,
    /// The state that follows a state at a byte.
    edges: HashMap<(u32, u8), u32>,
    /// Whether a byte leads on from the start.
    ends: [bool; 256],
    /// Whether there are tokens to be found.
    any: [bool; 2],
}

struct Parted {
    id: u32,
    len: u32,
    /// The rank of the longest shorter token that this one's text begins with.
    shorter: [u32; 2],
}

struct State {
    /// The state of the longest end of what this one has read.
    fallback: u32,
    /// The rank of the longest token that ends here (begins here, in the text).
    longest: [u32; 2],
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
            let len = texts.get(id).len() as u32;
            reserve::push(&mut tokens, Parted { id, len, shorter: [NONE; 2] }, TOKENS)?;
        }
        tokens.sort_unstable_by_key(|token| (Reverse(token.len), token.id));
        let mut parts = Parts {
            tokens,
            states: vec![State { fallback: 0, longest: [NONE; 2] }],
            edges: HashMap::new(),
            ends: [false; 256],
            any: [false; 2],
        };
        // The state that the automaton has reached for each token. All tokens advance one byte at a time, so that a
        // state's fallback, which is shorter, exists when the state is made.
        let mut reading = reserve::filled(0, parts.tokens.len(), TOKENS)?;
        for read in 0.. {
            let open = parts.tokens.partition_point(|token| token.len > read);
            if open == 0 {
                break;
            }
            for (rank, at) in (0..).zip(&mut reading[..open]) {
                let Parted { id, len, .. } = parts.tokens[rank as usize];
                let text = texts.get(id);
                *at = parts.grow(*at, text[text.len() - 1 - read as usize])?;
                if len == read + 1 {
                    parts.end(*at, rank, attributes[id as usize]);
                }
            }
        }
        Ok(parts)
    }

    /// The state after `state` at a byte, which is made if there is none.
    fn grow(&mut self, state: u32, byte: u8) -> Result<u32> {
        if let Some(&next) = self.edges.get(&(state, byte)) {
            return Ok(next);
        }
        let fallback = if state == 0 { 0 } else { self.step(self.states[state as usize].fallback, byte) };
        let new = self.states.len() as u32;
        let longest = self.states[fallback as usize].longest;
        reserve::push(&mut self.states, State { fallback, longest }, STATES)?;
        let room = self.edges.try_reserve(1);
        room.map_err(|_| reserve::no_memory(self.edges.len(), size_of::<((u32, u8), u32)>(), STATES))?;
        self.edges.insert((state, byte), new);
        self.ends[usize::from(byte)] |= state == 0;
        Ok(new)
    }

    /// A token's text ends (that is, begins) at a state.
    fn end(&mut self, state: u32, rank: u32, attribute: u8) {
        let State { fallback, .. } = self.states[state as usize];
        let shorter = self.states[fallback as usize].longest;
        let always = attribute & USER_DEFINED != 0 && attribute & (CONTROL | UNKNOWN) == 0;
        for (mode, wanted) in [always, true].into_iter().enumerate() {
            if wanted {
                self.tokens[rank as usize].shorter[mode] = shorter[mode];
                self.states[state as usize].longest[mode] = rank;
                self.any[mode] = true;
            }
        }
    }

    /// The state after any state at a byte.
    fn step(&self, mut state: u32, byte: u8) -> u32 {
        loop {
            if state == 0 && !self.ends[usize::from(byte)] {
                return 0;
            }
            match self.edges.get(&(state, byte)) {
                Some(&next) => return next,
                None if state == 0 => return 0,
                None => state = self.states[state as usize].fallback,
            }
        }
    }

    /// The special tokens in a text of less than 4 GiB, from left to right.
    pub(super) fn find(
        &self,
        attributes: &[u8],
        text: &[u8],
        parse_special: bool,
        pace: &Pace<'_>,
    ) -> Result<Vec<Found>> {
        let mode = usize::from(parse_special);
        if !self.any[mode] {
            return Ok(Vec::new());
        }
        let mut candidates = Vec::new();
        let mut state = 0;
        for (start, &byte) in text.iter().enumerate().rev() {
            pace.spend(1)?;
            state = self.step(state, byte);
            match self.states[state as usize].longest[mode] {
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
            let Parted { id, len, shorter } = self.tokens[rank as usize];
            pace.spend(1 + len as usize / 64)?;
            let mut range = start..start + len as usize;
            match taken.first(range.clone()) {
                None => {}
                Some(at) if at == start => continue,
                Some(at) => {
                    rank = shorter[mode];
                    while rank != NONE && self.tokens[rank as usize].len as usize > at - start {
                        pace.spend(1)?;
                        rank = self.tokens[rank as usize].shorter[mode];
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
