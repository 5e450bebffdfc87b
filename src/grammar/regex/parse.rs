//! Reads a regular expression as ECMAScript writes it.
//!
//! `\d \w \s` and their opposites are those of ECMAScript without the flag `u`: digits, letters and `_` of ASCII. What
//! is no regular expression in the strict sense (look-around, back-references, word boundaries) is refused by name.

use super::set::Set;
use crate::gguf::shown;
use crate::{Error, Result};

/// The deepest groups.
const MAX_DEPTH: usize = 100;
/// The longest pattern, in characters.
const MAX_LENGTH: usize = 1 << 16;

/// A part of a regular expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// One character of a set.
    Set(Set),
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    /// A node so many times; no maximum where it is `None`.
    Repeat(Box<Node>, u64, Option<u64>),
    /// `^` at this character of the pattern.
    Start(usize),
    /// `$`.
    End(usize),
}

struct Parser<'p> {
    pattern: &'p str,
    chars: Vec<char>,
    at: usize,
    depth: usize,
}

/// Reads a whole pattern.
pub(super) fn parse(pattern: &str) -> Result<Node> {
    let chars: Vec<char> = pattern.chars().take(MAX_LENGTH + 1).collect();
    let mut parser = Parser { pattern, chars, at: 0, depth: 0 };
    if parser.chars.len() > MAX_LENGTH {
        return Err(parser.malformed(&format!("more than {MAX_LENGTH} characters")));
    }
    let node = parser.alternatives()?;
    match parser.peek() {
        None => Ok(node),
        Some(_) => Err(parser.malformed("\")\" without \"(\"")),
    }
}

/// `\s`: the white space of ECMAScript.
fn space() -> Set {
    Set::of(&[
        (9, 13),
        (0x20, 0x20),
        (0xa0, 0xa0),
        (0x1680, 0x1680),
        (0x2000, 0x200a),
        (0x2028, 0x2029),
        (0x202f, 0x202f),
        (0x205f, 0x205f),
        (0x3000, 0x3000),
        (0xfeff, 0xfeff),
    ])
}

/// The set of `\d`, `\W` and the like.
fn named(c: char) -> Option<Set> {
    let set = match c.to_ascii_lowercase() {
        'd' => Set::of(&[(0x30, 0x39)]),
        'w' => Set::of(&[(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)]),
        's' => space(),
        _ => return None,
    };
    Some(if c.is_ascii_uppercase() { set.negated() } else { set })
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn take_all(&mut self, text: &str) -> bool {
        let found = text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if found {
            self.at += text.chars().count();
        }
        found
    }

    fn malformed(&self, problem: &str) -> Error {
        let pattern = shown(self.pattern);
        Error::InvalidArgument(format!("Regular expression \"{pattern}\", character {}: {problem}", self.at + 1))
    }

    /// An error about what begins `back` characters before.
    fn unsupported_before(&self, back: usize, what: &str) -> Error {
        unsupported(self.pattern, self.at - back, what)
    }

    fn unsupported(&self, what: &str) -> Error {
        self.unsupported_before(0, what)
    }

    fn alternatives(&mut self) -> Result<Node> {
        let mut list = vec![self.sequence()?];
        while self.take('|') {
            list.push(self.sequence()?);
        }
        Ok(match list.len() {
            1 => list.remove(0),
            _ => Node::Alt(list),
        })
    }

    fn sequence(&mut self) -> Result<Node> {
        let mut list = Vec::new();
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let atom = self.atom(c)?;
            list.push(self.repeated(atom)?);
        }
        Ok(match list.len() {
            1 => list.remove(0),
            _ => Node::Seq(list),
        })
    }

    fn atom(&mut self, c: char) -> Result<Node> {
        let at = self.at;
        match c {
            '(' => return self.group(),
            '[' => return Ok(Node::Set(self.class()?)),
            '\\' => return self.escape().map(Node::Set),
            '*' | '+' | '?' => return Err(self.malformed("nothing to repeat")),
            '{' if self.counts()?.is_some() => {
                self.at = at;
                return Err(self.malformed("nothing to repeat"));
            }
            _ => self.at = at + 1,
        }
        Ok(match c {
            '.' => Node::Set(Set::of(&[(10, 10), (13, 13), (0x2028, 0x2029)]).negated()),
            '^' => Node::Start(at),
            '$' => Node::End(at),
            c => Node::Set(Set::one(c)),
        })
    }

    fn group(&mut self) -> Result<Node> {
        if self.depth >= MAX_DEPTH {
            return Err(self.malformed(&format!("more than {MAX_DEPTH} groups inside of each other")));
        }
        if ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|look| self.clone_take(look)) {
            return Err(self.unsupported("look-around"));
        }
        if self.take_all("(?<") {
            while self.peek().is_some_and(|c| c != '>') {
                self.at += 1;
            }
            self.at += 1;
        } else if !self.take_all("(?:") {
            self.at += 1;
            if self.peek() == Some('?') {
                return Err(self.unsupported("a group of this kind"));
            }
        }
        self.depth += 1;
        let node = self.alternatives()?;
        self.depth -= 1;
        match self.take(')') {
            true => Ok(Node::Seq(vec![node])),
            false => Err(self.malformed("\"(\" without \")\"")),
        }
    }

    /// Whether the text is next, without going past it.
    fn clone_take(&mut self, text: &str) -> bool {
        let at = self.at;
        let found = self.take_all(text);
        self.at = at;
        found
    }

    /// `{n}`, `{n,}`, `{n,m}`; `None` where a brace is only a brace.
    fn counts(&mut self) -> Result<Option<(u64, Option<u64>)>> {
        let at = self.at;
        self.at += 1;
        let min = self.number()?;
        let max = match (min, self.take(',')) {
            (Some(min), false) => Some(min),
            (_, true) => self.number()?,
            (None, false) => None,
        };
        match (min, self.take('}')) {
            (Some(min), true) if max.is_some_and(|max| max < min) => {
                self.at = at;
                Err(self.malformed(&format!("at least {min} and at most fewer")))
            }
            (Some(min), true) => Ok(Some((min, max))),
            _ => {
                self.at = at;
                Ok(None)
            }
        }
    }

    fn number(&mut self) -> Result<Option<u64>> {
        let from = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        if from == self.at {
            return Ok(None);
        }
        let text: String = self.chars[from..self.at].iter().collect();
        text.parse().map(Some).map_err(|_| self.malformed("too many repetitions"))
    }

    fn repeated(&mut self, atom: Node) -> Result<Node> {
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => match self.counts()? {
                Some(counts) => {
                    self.at -= 1;
                    counts
                }
                None => return Ok(atom),
            },
            _ => return Ok(atom),
        };
        if matches!(atom, Node::Start(_) | Node::End(_)) {
            return Err(self.malformed("an anchor cannot be repeated"));
        }
        self.at += 1;
        self.take('?'); // lazy or not, the same texts match
        if matches!(self.peek(), Some('*' | '+' | '?')) {
            return Err(self.malformed("nothing to repeat"));
        }
        Ok(Node::Repeat(Box::new(atom), min, max))
    }

    fn hex(&mut self, digits: usize) -> Result<u32> {
        let text: String = self.chars.iter().skip(self.at).take(digits).collect();
        let valid = text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
        match u32::from_str_radix(&text, 16) {
            Ok(code) if valid => {
                self.at += digits;
                Ok(code)
            }
            _ => Err(self.malformed(&format!("{digits} hexadecimal digits must follow"))),
        }
    }

    /// An escape in a class or outside of one.
    fn escape(&mut self) -> Result<Set> {
        self.at += 1;
        let Some(c) = self.peek() else { return Err(self.malformed("a backslash at the end")) };
        if let Some(set) = named(c) {
            self.at += 1;
            return Ok(set);
        }
        match c {
            'b' | 'B' => return Err(self.unsupported_before(1, "a word boundary")),
            '1'..='9' | 'k' => return Err(self.unsupported_before(1, "a back-reference")),
            'p' | 'P' => return Err(self.unsupported_before(1, "a property of Unicode")),
            _ => self.at += 1,
        }
        let code = match c {
            'n' => 10,
            'r' => 13,
            't' => 9,
            'f' => 12,
            'v' => 11,
            '0' => 0,
            'x' => self.hex(2)?,
            'u' if self.take('{') => {
                let digits = self.chars[self.at..].iter().take_while(|c| c.is_ascii_hexdigit()).count().min(8);
                let code = self.hex(digits)?;
                if !self.take('}') {
                    return Err(self.malformed("\"}\" must follow"));
                }
                code
            }
            'u' => self.hex(4)?,
            'c' => match self.peek() {
                Some(letter) if letter.is_ascii_alphabetic() => {
                    self.at += 1;
                    letter as u32 % 32
                }
                _ => return Err(self.malformed("a letter must follow \"\\c\"")),
            },
            c if c.is_ascii_alphanumeric() => return Err(self.unsupported_before(2, &format!("the escape \"\\{c}\""))),
            c => c as u32,
        };
        match code {
            0xd800..=0xdbff if self.take_all("\\u") => {
                let low = self.hex(4)?;
                let pair = 0x1_0000 + ((code - 0xd800) << 10) + low.wrapping_sub(0xdc00);
                match (0xdc00..=0xdfff).contains(&low) {
                    true => Ok(Set::of(&[(pair, pair)])),
                    false => Err(self.unsupported("half a surrogate pair")),
                }
            }
            0xd800..=0xdfff => Err(self.unsupported("half a surrogate pair")),
            0..=0x10_ffff => Ok(Set::of(&[(code, code)])),
            _ => Err(self.malformed("no such code point")),
        }
    }

    fn class(&mut self) -> Result<Set> {
        self.at += 1;
        let negated = self.take('^');
        let mut set = Set::default();
        loop {
            let Some(c) = self.peek() else { return Err(self.malformed("\"[\" without \"]\"")) };
            if c == ']' {
                self.at += 1;
                return Ok(if negated { set.negated() } else { set });
            }
            let from = self.class_member(c)?;
            if self.peek() != Some('-') || self.chars.get(self.at + 1).is_none_or(|&next| next == ']') {
                set = set.union(&from);
                continue;
            }
            self.at += 1;
            let Some(c) = self.peek() else { continue };
            let to = self.class_member(c)?;
            match (from.single(), to.single()) {
                (Some(from), Some(to)) if from > to => return Err(self.malformed("a range from above to below")),
                (Some(from), Some(to)) => set = set.union(&Set::of(&[(from as u32, to as u32)])),
                _ => set = set.union(&from).union(&to).union(&Set::one('-')),
            }
        }
    }

    fn class_member(&mut self, c: char) -> Result<Set> {
        match (c, self.chars.get(self.at + 1)) {
            ('\\', Some('b')) => {
                self.at += 2;
                Ok(Set::of(&[(8, 8)]))
            }
            ('\\', _) => self.escape(),
            (c, _) => {
                self.at += 1;
                Ok(Set::one(c))
            }
        }
    }
}

/// An error about what a grammar cannot do, at a character of the pattern.
pub(super) fn unsupported(pattern: &str, at: usize, what: &str) -> Error {
    let pattern = shown(pattern);
    Error::Unsupported(format!("Regular expression \"{pattern}\", character {}: {what}", at + 1))
}
