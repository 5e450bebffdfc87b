//! Classes of code points as automata over the bytes of valid UTF-8.
//!
//! A class becomes a deterministic automaton of at most four steps. Equal states are one, also of different classes, so
//! that most classes share their continuation bytes. Surrogates, overlong forms and code points from 0x110000 on have
//! no path at all; code point 0 has none either, as in llama.cpp, where a text ends at it.

use super::rules::Class;
use std::collections::HashMap;

/// The state after the last byte of a code point.
pub(super) const DONE: u32 = u32::MAX;

/// The bytes that lead from a state to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Edge {
    pub(super) low: u8,
    pub(super) high: u8,
    pub(super) next: u32,
}

/// The automata of all classes of a grammar.
#[derive(Debug, Default)]
pub(super) struct Automata {
    edges: Vec<Edge>,
    /// For each state, where its edges begin; then the end.
    starts: Vec<u32>,
    known: HashMap<Vec<Edge>, u32>,
}

/// Ascending code points that are apart.
type Ranges = Vec<(u32, u32)>;

/// First and last code point with so many bytes of UTF-8.
const LENGTHS: [&[(u32, u32)]; 4] =
    [&[(1, 0x7F)], &[(0x80, 0x7FF)], &[(0x800, 0xD7FF), (0xE000, 0xFFFF)], &[(0x1_0000, 0x10_FFFF)]];

impl Automata {
    /// The first state of a class; `None` where it matches nothing.
    pub(super) fn add(&mut self, class: &Class) -> Option<u32> {
        let ranges = normal(class);
        let mut edges = Vec::new();
        for (more, limits) in LENGTHS.into_iter().enumerate() {
            let inside = intersection(&ranges, limits);
            if inside.is_empty() {
                continue;
            }
            // The bits of the first byte that say how many follow, and its first value.
            let lead = [0u32, 0xC0, 0xE0, 0xF0][more];
            let values = [0x80, 0x20, 0x10, 0x08][more];
            for value in 0..values {
                let next = self.block(&inside, value, more);
                add_edge(&mut edges, (lead + value) as u8, next);
            }
        }
        (!edges.is_empty()).then(|| self.intern(edges))
    }

    /// The state for code points whose first bits are `value` and that have `more` bytes more.
    fn block(&mut self, ranges: &Ranges, value: u32, more: usize) -> Option<u32> {
        let first = value << (6 * more);
        let last = first + (1 << (6 * more)) - 1;
        let from = ranges.partition_point(|&(_, high)| high < first);
        let &(low, high) = ranges.get(from).filter(|&&(low, _)| low <= last)?;
        if more == 0 {
            return Some(DONE);
        }
        if low <= first && last <= high {
            // All of the block belongs to the class.
            let next = self.block(ranges, value << 6, more - 1)?;
            return Some(self.intern(vec![Edge { low: 0x80, high: 0xBF, next }]));
        }
        let mut edges = Vec::new();
        for bits in 0..64 {
            let next = self.block(ranges, value << 6 | bits, more - 1);
            add_edge(&mut edges, 0x80 + bits as u8, next);
        }
        Some(self.intern(edges))
    }

    fn intern(&mut self, edges: Vec<Edge>) -> u32 {
        if let Some(&known) = self.known.get(&edges) {
            return known;
        }
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        let state = self.starts.len() as u32 - 1;
        self.edges.extend_from_slice(&edges);
        self.starts.push(self.edges.len() as u32);
        self.known.insert(edges, state);
        state
    }

    /// What leads on from a state, ascending and apart.
    #[inline]
    pub(super) fn edges(&self, state: u32) -> &[Edge] {
        &self.edges[self.starts[state as usize] as usize..self.starts[state as usize + 1] as usize]
    }

    /// The state after a byte; [`DONE`] after a whole code point.
    #[inline]
    pub(super) fn next(&self, state: u32, byte: u8) -> Option<u32> {
        self.edges(state).iter().find(|edge| edge.low <= byte && byte <= edge.high).map(|edge| edge.next)
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.edges.len() * size_of::<Edge>() * 3 + self.starts.len() * 64
    }
}

/// Adds an edge, or widens the last one.
fn add_edge(edges: &mut Vec<Edge>, byte: u8, next: Option<u32>) {
    let Some(next) = next else { return };
    match edges.last_mut() {
        Some(last) if last.next == next && last.high + 1 == byte => last.high = byte,
        _ => edges.push(Edge { low: byte, high: byte, next }),
    }
}

/// The members of a class.
fn normal(class: &Class) -> Ranges {
    let mut ranges: Ranges = class.ranges.iter().copied().filter(|(first, last)| first <= last).collect();
    ranges.sort_unstable();
    let mut joined: Ranges = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    if !class.negated {
        return joined;
    }
    let mut rest = Vec::new();
    let mut next = 0;
    for (first, last) in joined {
        if first > next {
            rest.push((next, first - 1));
        }
        next = last.saturating_add(1);
    }
    if next <= 0x10_FFFF {
        rest.push((next, 0x10_FFFF));
    }
    rest
}

fn intersection(ranges: &Ranges, limits: &[(u32, u32)]) -> Ranges {
    let mut out = Vec::new();
    for &(low, high) in limits {
        let from = ranges.partition_point(|&(_, last)| last < low);
        let inside = ranges[from..].iter().take_while(|&&(first, _)| first <= high);
        out.extend(inside.map(|&(first, last)| (first.max(low), last.min(high))));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(automata: &Automata, start: Option<u32>, bytes: &[u8]) -> bool {
        let mut state = start;
        for &byte in bytes {
            state = state.filter(|&state| state != DONE).and_then(|state| automata.next(state, byte));
        }
        state == Some(DONE)
    }

    #[test]
    fn classes_match_their_members_and_nothing_else() {
        let classes = [
            Class { negated: false, ranges: vec![(0x61, 0x7A), (0xE9, 0xE9), (0x4E00, 0x9FA5)] },
            Class { negated: true, ranges: vec![(0xE9, 0xE9), (0, 0x1F)] },
            Class { negated: true, ranges: Vec::new() },
            Class { negated: false, ranges: vec![(0xD000, 0x1_0400), (0x10_FFFE, u32::MAX)] },
            Class { negated: false, ranges: vec![(0x7F, 0x80), (0x7FF, 0x800), (0xFFFF, 0x1_0000)] },
        ];
        let mut automata = Automata::default();
        for class in &classes {
            let start = automata.add(class);
            for code in 0..=0x10_FFFF {
                let Some(c) = char::from_u32(code) else { continue };
                let member = class.ranges.iter().any(|&(first, last)| first <= code && code <= last) != class.negated;
                let mut bytes = [0; 4];
                let text = c.encode_utf8(&mut bytes).as_bytes();
                assert_eq!(matches(&automata, start, text), member && code != 0, "{class:?} {code:x}");
            }
            for broken in [&[0xC0, 0x80][..], &[0xC1, 0xBF], &[0xED, 0xA0, 0x80], &[0xF4, 0x90, 0x80, 0x80], &[0xFF]] {
                assert!(!matches(&automata, start, broken), "{class:?} {broken:x?}");
            }
        }
        assert_eq!(automata.add(&Class { negated: false, ranges: vec![(0x7A, 0x61)] }), None);
        assert_eq!(automata.add(&Class { negated: false, ranges: vec![(0xD800, 0xDFFF)] }), None);
    }
}
