//! Which of many texts are where in another text: an automaton of Aho and Corasick
//! (<https://doi.org/10.1145/360825.360855>) over bytes.
//!
//! It reads a text from its start, and then each state has the longest pattern that ends there, or from its end, and
//! then each state has the longest pattern that begins there. Each pattern has the next shorter one that ends (begins)
//! in the same place. So the time is linear in the text's length whatever the patterns are.
//!
//! States are numbered level by level, so that the children of a state are neighbours and need no table of their own.

use super::pace::Pace;
use crate::{Result, reserve};
use std::cmp::Ordering;

/// No pattern, where there may be one.
pub(super) const NONE: u32 = u32::MAX;
/// What memory is for, in errors.
const PATTERNS: &str = "texts to be found";
const STATES: &str = "states of the search for texts";

/// The end of a text at which reading begins.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ReadFrom {
    Start,
    End,
}

/// The automaton. State 0 is where reading begins.
pub(super) struct Automaton {
    states: Vec<State>,
    /// The byte that leads to each state.
    bytes: Vec<u8>,
    /// The state after the first byte.
    starts: Box<[u32; 256]>,
    /// By the number of the pattern.
    patterns: Vec<Pattern>,
}

#[derive(Clone, Copy)]
struct State {
    /// The first child; those of the next state follow the last one.
    children: u32,
    /// The state of the longest end of what this one has read.
    fallback: u32,
    /// The longest pattern that is found here.
    longest: u32,
}

#[derive(Clone, Copy)]
struct Pattern {
    len: u32,
    /// The next shorter pattern that is found where this one is.
    shorter: u32,
}

/// A pattern while the automaton is made.
#[derive(Clone, Copy)]
struct Sorted<'t> {
    /// The first eight bytes in the order of reading.
    head: u64,
    number: u32,
    text: &'t [u8],
}

impl Sorted<'_> {
    fn byte(&self, depth: usize, from: ReadFrom) -> u8 {
        match from {
            ReadFrom::Start => self.text[depth],
            ReadFrom::End => self.text[self.text.len() - 1 - depth],
        }
    }

    fn order(&self, other: &Self, from: ReadFrom) -> Ordering {
        self.head.cmp(&other.head).then_with(|| match from {
            ReadFrom::Start => self.text.cmp(other.text),
            ReadFrom::End => self.text.iter().rev().cmp(other.text.iter().rev()),
        })
    }
}

/// The first eight bytes in the order of reading, as a number that sorts as they do.
fn head(text: &[u8], from: ReadFrom) -> u64 {
    let mut bytes = [0; 8];
    match from {
        ReadFrom::Start => bytes.iter_mut().zip(text).for_each(|(to, byte)| *to = *byte),
        ReadFrom::End => bytes.iter_mut().zip(text.iter().rev()).for_each(|(to, byte)| *to = *byte),
    }
    u64::from_be_bytes(bytes)
}

impl Automaton {
    /// For patterns, each with its number, all below `count`. Empty ones are never found; of equal ones the last is.
    pub(super) fn new<'t>(
        from: ReadFrom,
        count: usize,
        patterns: impl Iterator<Item = (u32, &'t [u8])>,
    ) -> Result<Self> {
        let mut sorted = reserve::list(count, PATTERNS)?;
        for (number, text) in patterns.filter(|(_, text)| !text.is_empty()) {
            reserve::push(&mut sorted, Sorted { head: head(text, from), number, text }, PATTERNS)?;
        }
        sorted.sort_unstable_by(|a, b| a.order(b, from).then(a.number.cmp(&b.number)));
        let mut automaton = Automaton {
            states: Vec::new(),
            bytes: Vec::new(),
            starts: Box::new([0; 256]),
            patterns: reserve::filled(Pattern { len: 0, shorter: NONE }, count, PATTERNS)?,
        };
        for pattern in &sorted {
            automaton.patterns[pattern.number as usize].len = pattern.text.len() as u32;
        }
        automaton.grow(&sorted, from)?;
        automaton.link();
        Ok(automaton)
    }

    /// Make the states, without fallbacks.
    fn grow(&mut self, sorted: &[Sorted<'_>], from: ReadFrom) -> Result<()> {
        let new = |longest| State { children: 0, fallback: 0, longest };
        reserve::push(&mut self.states, new(NONE), STATES)?;
        reserve::push(&mut self.bytes, 0, STATES)?;
        // The patterns that begin with what each state of a level has read.
        let mut level = vec![sorted];
        let mut next = Vec::new();
        let mut parent = 0;
        for depth in 0.. {
            for patterns in level.drain(..) {
                self.states[parent].children = self.states.len() as u32;
                parent += 1;
                let mut rest = patterns;
                while let Some(first) = rest.first() {
                    let byte = first.byte(depth, from);
                    let same = rest.partition_point(|pattern| pattern.byte(depth, from) == byte);
                    let (these, others) = rest.split_at(same);
                    let whole = these.partition_point(|pattern| pattern.text.len() == depth + 1);
                    let longest = these[..whole].last().map_or(NONE, |pattern| pattern.number);
                    reserve::push(&mut self.states, new(longest), STATES)?;
                    reserve::push(&mut self.bytes, byte, STATES)?;
                    reserve::push(&mut next, &these[whole..], STATES)?;
                    rest = others;
                }
            }
            if next.is_empty() {
                break;
            }
            std::mem::swap(&mut level, &mut next);
        }
        Ok(())
    }

    /// Set the fallbacks, and what is found by them.
    fn link(&mut self) {
        for child in self.children(0) {
            self.starts[usize::from(self.bytes[child])] = child as u32;
        }
        for parent in 0..self.states.len() {
            for child in self.children(parent) {
                let above = self.states[parent].fallback;
                let fallback = if parent == 0 { 0 } else { self.step(above, self.bytes[child]) };
                let shorter = self.states[fallback as usize].longest;
                let state = &mut self.states[child];
                state.fallback = fallback;
                match self.patterns.get_mut(state.longest as usize) {
                    Some(pattern) => pattern.shorter = shorter,
                    None => state.longest = shorter,
                }
            }
        }
    }

    fn children(&self, state: usize) -> std::ops::Range<usize> {
        let end = self.states.get(state + 1).map_or(self.states.len(), |next| next.children as usize);
        self.states[state].children as usize..end
    }

    #[inline]
    fn child(&self, state: u32, byte: u8) -> Option<u32> {
        let children = self.children(state as usize);
        let at = self.bytes[children.clone()].binary_search(&byte).ok()?;
        Some((children.start + at) as u32)
    }

    /// The state after a state at a byte.
    #[inline]
    pub(super) fn step(&self, mut state: u32, byte: u8) -> u32 {
        loop {
            if state == 0 {
                return self.starts[usize::from(byte)];
            }
            if let Some(child) = self.child(state, byte) {
                return child;
            }
            state = self.states[state as usize].fallback;
        }
    }

    /// How many bytes of a text's start are the start of a pattern. The automaton reads from the start.
    pub(super) fn common_start(&self, text: &[u8]) -> usize {
        let mut state = 0;
        let leads_on = |byte: &&u8| self.child(state, **byte).map(|next| state = next).is_some();
        text.iter().take_while(leads_on).count()
    }

    /// The longest pattern that is found in a state, or [`NONE`].
    #[inline]
    pub(super) fn longest(&self, state: u32) -> u32 {
        self.states[state as usize].longest
    }

    /// The next shorter pattern that is found where this one is, or [`NONE`].
    #[inline]
    pub(super) fn shorter(&self, pattern: u32) -> u32 {
        self.patterns[pattern as usize].shorter
    }

    /// All patterns that are found in a state, the longest first, with their lengths.
    #[inline]
    pub(super) fn found(&self, state: u32) -> impl Iterator<Item = (u32, usize)> {
        let mut next = self.longest(state);
        std::iter::from_fn(move || {
            let Pattern { len, shorter } = *self.patterns.get(next as usize)?;
            Some((std::mem::replace(&mut next, shorter), len as usize))
        })
    }

    /// Put the longest pattern that begins at each byte of a text into `out`, [`NONE`] where none does. The automaton
    /// reads from the end.
    pub(super) fn longest_at_each(&self, text: &[u8], pace: &Pace<'_>, out: &mut Vec<u32>) -> Result<()> {
        reserve::resize(out, text.len(), "bytes of a text")?;
        let mut state = 0;
        for (&byte, longest) in text.iter().zip(out).rev() {
            pace.spend(1)?;
            state = self.step(state, byte);
            *longest = self.longest(state);
        }
        Ok(())
    }

    /// Bytes of a pattern.
    #[inline]
    pub(super) fn len(&self, pattern: u32) -> usize {
        self.patterns[pattern as usize].len as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_patterns_are_found_longest_first() {
        let mut state = 3u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for _ in 0..2000 {
            let letters = 1 + below(3);
            let mut word =
                |most: usize| -> Vec<u8> { (0..below(most)).map(|_| [0, b'a', 255][below(letters)]).collect() };
            let patterns: Vec<Vec<u8>> = (0..12).map(|_| word(7)).collect();
            let text = word(40);
            let numbered = || (0..).zip(&patterns).map(|(i, pattern)| (i, pattern.as_slice()));
            let slow = |part: &dyn Fn(&[u8]) -> bool| {
                let last = |(i, p): &(u32, &[u8])| !patterns[*i as usize + 1..].iter().any(|other| other == p);
                let there = |(_, p): &(u32, &[u8])| !p.is_empty() && part(p);
                let mut found: Vec<(u32, usize)> =
                    numbered().filter(last).filter(there).map(|(i, p)| (i, p.len())).collect();
                found.sort_by_key(|&(_, len)| std::cmp::Reverse(len));
                found
            };
            for from in [ReadFrom::Start, ReadFrom::End] {
                let automaton = Automaton::new(from, patterns.len(), numbered()).unwrap();
                let mut state = 0;
                for i in 0..text.len() {
                    let (at, read) = match from {
                        ReadFrom::Start => (i, &text[..=i]),
                        ReadFrom::End => (text.len() - 1 - i, &text[text.len() - 1 - i..]),
                    };
                    state = automaton.step(state, text[at]);
                    let expected = slow(&|pattern| match from {
                        ReadFrom::Start => read.ends_with(pattern),
                        ReadFrom::End => read.starts_with(pattern),
                    });
                    let found: Vec<(u32, usize)> = automaton.found(state).collect();
                    assert_eq!(found, expected, "{patterns:?} in {text:?} at {at}");
                }
            }
        }
    }
}
