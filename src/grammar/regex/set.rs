//! Sets of code points, as sorted ranges that do not touch.

use std::fmt::Write;

const LAST: u32 = 0x10_ffff;

/// A set of code points; both ends of a range belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::grammar) struct Set {
    ranges: Vec<(u32, u32)>,
}

impl Set {
    pub(in crate::grammar) fn of(ranges: &[(u32, u32)]) -> Set {
        let mut sorted: Vec<(u32, u32)> = ranges.iter().copied().filter(|(from, to)| from <= to).collect();
        sorted.sort_unstable();
        let mut set = Set::default();
        for (from, to) in sorted {
            match set.ranges.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => set.ranges.push((from, to)),
            }
        }
        set
    }

    pub(in crate::grammar) fn one(c: char) -> Set {
        Set::of(&[(c as u32, c as u32)])
    }

    pub(in crate::grammar) fn union(&self, other: &Set) -> Set {
        Set::of(&[self.ranges.as_slice(), other.ranges.as_slice()].concat())
    }

    pub(in crate::grammar) fn negated(&self) -> Set {
        let (mut ranges, mut next) = (Vec::new(), 0);
        for &(from, to) in &self.ranges {
            if from > next {
                ranges.push((next, from - 1));
            }
            next = to + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        Set { ranges }
    }

    pub(in crate::grammar) fn without(&self, other: &Set) -> Set {
        self.negated().union(other).negated()
    }

    pub(in crate::grammar) fn has(&self, c: char) -> bool {
        self.ranges.iter().any(|&(from, to)| (from..=to).contains(&(c as u32)))
    }

    pub(in crate::grammar) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The only member.
    pub(in crate::grammar) fn single(&self) -> Option<char> {
        match self.ranges[..] {
            [(from, to)] if from == to => char::from_u32(from),
            _ => None,
        }
    }

    /// As a class of GBNF; of a set that reaches the last code point, what it leaves out.
    pub(in crate::grammar) fn class(&self) -> String {
        let all = self.ranges == [(0, LAST)];
        if all {
            return ".".into();
        }
        let negated = self.ranges.last().is_some_and(|last| last.1 == LAST);
        let shown = if negated { self.negated() } else { self.clone() };
        let mut class = String::from(if negated { "[^" } else { "[" });
        for &(from, to) in &shown.ranges {
            member(&mut class, from);
            if to > from {
                if to > from + 1 {
                    class.push('-');
                }
                member(&mut class, to);
            }
        }
        class.push(']');
        class
    }
}

fn member(class: &mut String, code: u32) {
    let _ = match char::from_u32(code) {
        Some('\n') => write!(class, "\\n"),
        Some('\r') => write!(class, "\\r"),
        Some('\t') => write!(class, "\\t"),
        Some(c @ ('\\' | '[' | ']' | '-')) => write!(class, "\\{c}"),
        Some(c) if c.is_ascii_graphic() && c != '^' || c == ' ' => write!(class, "{c}"),
        _ if code < 0x100 => write!(class, "\\x{code:02X}"),
        _ if code < 0x1_0000 => write!(class, "\\u{code:04X}"),
        _ => write!(class, "\\U{code:08X}"),
    };
}
