//! A small backtracking matcher for the patterns of the pre-tokenizer table.
//!
//! It reads the part of the usual pattern notation that the table needs: literals, `[...]` with ranges and negation,
//! `\s \S \d`, the categories `\p{L} \p{N} \p{P} \p{M} \p{S}` and their negations, groups, `|`, greedy `? * + {n}
//! {m,n}`, look-ahead and `$`. Alternatives are tried in order and repetition is greedy, so the first match found is
//! the match. A repeated class is one step that remembers only how far it may give back: a run of any length costs
//! its length, and no stack grows with it.
//!
//! Two kinds of text are matched: collapsed bytes (see [`super::unicode`]), where a category is its byte plus the
//! ASCII characters of that category, and code points, for patterns that name non-ASCII characters.

use super::unicode::{LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL, class};
use crate::{Error, Result};

/// A set of symbols: a bit for each below 256, and ranges above.
#[derive(Clone, Debug, Default, PartialEq)]
struct Class {
    low: [u64; 4],
    ranges: Vec<(u32, u32)>,
    /// Whether symbols from 256 on belong where no range holds them: the set was negated.
    negated: bool,
}

impl Class {
    fn of(members: impl Fn(u8) -> bool) -> Self {
        let mut set = Class::default();
        (0..=255).filter(|&b| members(b)).for_each(|b| set.add(u32::from(b), u32::from(b)));
        set
    }

    fn add(&mut self, first: u32, last: u32) {
        for symbol in first..=last.min(255) {
            self.low[symbol as usize / 64] |= 1 << (symbol % 64);
        }
        if last >= 256 {
            self.ranges.push((first.max(256), last));
        }
    }

    fn negate(mut self) -> Self {
        self.low.iter_mut().for_each(|w| *w = !*w);
        self.negated = !self.negated;
        self
    }

    fn union(&mut self, other: &Class) {
        self.low.iter_mut().zip(other.low).for_each(|(a, b)| *a |= b);
        self.ranges.extend_from_slice(&other.ranges);
    }

    /// What both sets hold; only for sets without members from 256 on.
    fn intersection(&self, other: &Class) -> Option<Class> {
        let mut low = self.low;
        low.iter_mut().zip(other.low).for_each(|(a, b)| *a &= b);
        let plain = self.ranges.is_empty() && other.ranges.is_empty();
        plain.then_some(Class { low, ranges: Vec::new(), negated: self.negated && other.negated })
    }

    #[inline]
    fn has(&self, symbol: u32) -> bool {
        if symbol < 256 {
            return self.low[symbol as usize / 64] >> (symbol % 64) & 1 == 1;
        }
        self.ranges.iter().any(|&(first, last)| first <= symbol && symbol <= last) != self.negated
    }
}

enum Node {
    Class(Class),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeat { node: Box<Node>, min: u32, max: u32 },
    Look { node: Box<Node>, wanted: bool },
    End,
}

#[derive(Debug)]
enum Step {
    One(Class),
    /// At least `min` and at most `max` symbols of a class, as many as possible.
    Run {
        class: Class,
        min: u32,
        max: u32,
    },
    /// Go on with the next step; on failure at this one.
    Else(usize),
    Jump(usize),
    /// The steps up to `end` must match from here (or must not); nothing is consumed.
    Look {
        end: usize,
        wanted: bool,
    },
    /// Only at the end of the text.
    End,
    Done,
}

/// Where to go on after a failure: a step, and the positions it may still be tried at, the last one first.
struct Retry {
    step: usize,
    lowest: usize,
    position: usize,
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    steps: Vec<Step>,
}

impl Pattern {
    /// Compile the notation above. An error is a mistake in the table.
    pub(super) fn new(notation: &str) -> Result<Self> {
        let mut parser = Parser { rest: notation.chars().collect(), at: 0 };
        let node = parser.alternatives();
        match node {
            Some(node) if parser.at == parser.rest.len() => {
                let mut steps = Vec::new();
                emit(&node, &mut steps);
                steps.push(Step::Done);
                Ok(Pattern { steps })
            }
            _ => Err(Error::Internal(format!("Pattern `{notation}` is malformed at character {}", parser.at))),
        }
    }

    /// The first match in `text` at or behind `from`, as a range of positions. `scratch` is any matcher's memory.
    pub(super) fn find<S: Copy + Into<u32>>(
        &self,
        text: &[S],
        from: usize,
        scratch: &mut Scratch,
    ) -> Option<(usize, usize)> {
        (from..text.len()).find_map(|start| Some((start, self.run(0, text, start, scratch)?)))
    }

    /// Match the steps from `step` on at `start`; the end of the match.
    fn run<S: Copy + Into<u32>>(&self, step: usize, text: &[S], start: usize, scratch: &mut Scratch) -> Option<usize> {
        let base = scratch.retries.len();
        let (mut step, mut at) = (step, start);
        loop {
            let matched = match &self.steps[step] {
                Step::One(class) => match text.get(at) {
                    Some(&symbol) if class.has(symbol.into()) => {
                        (step, at) = (step + 1, at + 1);
                        true
                    }
                    _ => false,
                },
                Step::Run { class, min, max } => {
                    let limit = text.len().min(at.saturating_add(*max as usize));
                    let end = (at..limit).find(|&i| !class.has(text[i].into())).unwrap_or(limit.max(at));
                    let lowest = at + *min as usize;
                    step += 1;
                    at = end;
                    if end > lowest {
                        scratch.retries.push(Retry { step, lowest, position: end - 1 });
                    }
                    end >= lowest
                }
                Step::Else(other) => {
                    scratch.retries.push(Retry { step: *other, lowest: at, position: at });
                    step += 1;
                    true
                }
                Step::Jump(to) => {
                    step = *to;
                    true
                }
                Step::Look { end, wanted } => {
                    let found = self.run(step + 1, text, at, scratch).is_some();
                    step = *end;
                    found == *wanted
                }
                Step::End => {
                    step += 1;
                    at == text.len()
                }
                Step::Done => {
                    scratch.retries.truncate(base);
                    return Some(at);
                }
            };
            if matched {
                continue;
            }
            if scratch.retries.len() == base {
                return None;
            }
            let retry = scratch.retries.last_mut()?;
            (step, at) = (retry.step, retry.position);
            if retry.position > retry.lowest {
                retry.position -= 1;
            } else {
                scratch.retries.pop();
            }
        }
    }
}

/// The matcher's memory, to be kept between matches.
#[derive(Default)]
pub(super) struct Scratch {
    retries: Vec<Retry>,
}

fn emit(node: &Node, steps: &mut Vec<Step>) {
    match node {
        Node::Class(class) => steps.push(Step::One(class.clone())),
        Node::Sequence(nodes) => nodes.iter().for_each(|n| emit(n, steps)),
        Node::Alternatives(nodes) => {
            let mut exits = Vec::new();
            for (i, n) in nodes.iter().enumerate() {
                let fork = steps.len();
                if i + 1 < nodes.len() {
                    steps.push(Step::Else(0));
                }
                emit(n, steps);
                if i + 1 < nodes.len() {
                    exits.push(steps.len());
                    steps.push(Step::Jump(0));
                    steps[fork] = Step::Else(steps.len());
                }
            }
            for exit in exits {
                steps[exit] = Step::Jump(steps.len());
            }
        }
        Node::Repeat { node, min, max } => match &**node {
            Node::Class(class) => steps.push(Step::Run { class: class.clone(), min: *min, max: *max }),
            body => {
                (0..*min).for_each(|_| emit(body, steps));
                if *max == u32::MAX {
                    let fork = steps.len();
                    steps.push(Step::Else(0));
                    emit(body, steps);
                    steps.push(Step::Jump(fork));
                    steps[fork] = Step::Else(steps.len());
                } else {
                    let forks: Vec<usize> = (*min..*max)
                        .map(|_| {
                            steps.push(Step::Else(0));
                            let fork = steps.len() - 1;
                            emit(body, steps);
                            fork
                        })
                        .collect();
                    for fork in forks {
                        steps[fork] = Step::Else(steps.len());
                    }
                }
            }
        },
        Node::Look { node, wanted } => {
            let look = steps.len();
            steps.push(Step::Done);
            emit(node, steps);
            steps.push(Step::Done);
            steps[look] = Step::Look { end: steps.len(), wanted: *wanted };
        }
        Node::End => steps.push(Step::End),
    }
}

/// Recursive descent over the notation; `None` where it is not understood.
struct Parser {
    rest: Vec<char>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = text.chars().enumerate().all(|(i, c)| self.rest.get(self.at + i) == Some(&c));
        if found {
            self.at += text.chars().count();
        }
        found
    }

    fn alternatives(&mut self) -> Option<Node> {
        let mut nodes = vec![self.sequence()?];
        while self.eat("|") {
            nodes.push(self.sequence()?);
        }
        if nodes.len() == 1 { nodes.pop() } else { Some(Node::Alternatives(nodes)) }
    }

    fn sequence(&mut self) -> Option<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        while !matches!(self.peek(), None | Some('|' | ')')) {
            let atom = self.atom()?;
            let node = self.repeated(atom)?;
            match nodes.last().and_then(|look| both(look, &node)) {
                Some(class) => *nodes.last_mut()? = Node::Class(class),
                None => nodes.push(node),
            }
        }
        if nodes.len() == 1 { nodes.pop() } else { Some(Node::Sequence(nodes)) }
    }

    fn atom(&mut self) -> Option<Node> {
        if self.eat("(") {
            let look = if self.eat("?=") {
                Some(true)
            } else if self.eat("?!") {
                Some(false)
            } else {
                self.eat("?:");
                None
            };
            let node = self.alternatives()?;
            if !self.eat(")") {
                return None;
            }
            return Some(match look {
                Some(wanted) => Node::Look { node: Box::new(node), wanted },
                None => node,
            });
        }
        if self.eat("$") {
            return Some(Node::End);
        }
        if self.eat("[") {
            return self.bracket().map(Node::Class);
        }
        self.member().map(Node::Class)
    }

    fn repeated(&mut self, node: Node) -> Option<Node> {
        let (min, max) = match self.peek() {
            Some('?') => (0, 1),
            Some('*') => (0, u32::MAX),
            Some('+') => (1, u32::MAX),
            Some('{') => {
                self.at += 1;
                let min = self.number()?;
                let max = if self.eat(",") { self.number()? } else { min };
                (min, max)
            }
            _ => return Some(node),
        };
        if !matches!(self.peek(), Some('?' | '*' | '+' | '}')) {
            return None;
        }
        self.at += 1;
        Some(Node::Repeat { node: Box::new(node), min, max })
    }

    fn number(&mut self) -> Option<u32> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        self.rest[start..self.at].iter().collect::<String>().parse().ok()
    }

    fn bracket(&mut self) -> Option<Class> {
        let negated = self.eat("^");
        let mut set = Class::default();
        while !self.eat("]") {
            let start = self.at;
            let member = self.member()?;
            let first = self.single(start);
            if let Some(first) = first
                && self.peek() == Some('-')
                && self.rest.get(self.at + 1) != Some(&']')
            {
                self.at += 1;
                let start = self.at;
                self.member()?;
                set.add(first, self.single(start)?);
            } else {
                if member.negated {
                    return None;
                }
                set.union(&member);
            }
        }
        Some(if negated { set.negate() } else { set })
    }

    /// The one symbol that the member just read from `start` names; `None` if it named a set.
    fn single(&self, start: usize) -> Option<u32> {
        match *self.rest.get(start..self.at)? {
            [c] => Some(u32::from(c)),
            ['\\', c] => escaped(c),
            _ => None,
        }
    }

    /// A literal, an escape or a category.
    fn member(&mut self) -> Option<Class> {
        let c = self.peek()?;
        self.at += 1;
        let mut set = Class::default();
        if c != '\\' {
            set.add(u32::from(c), u32::from(c));
            return Some(set);
        }
        let c = self.peek()?;
        self.at += 1;
        if let Some(symbol) = escaped(c) {
            set.add(symbol, symbol);
            return Some(set);
        }
        // White space and digits are those of ASCII: `class` knows the category bytes too, which only `\p` means.
        match c {
            's' => Some(Class::of(|b| b.is_ascii() && class(b) & SPACE != 0)),
            'S' => Some(Class::of(|b| b.is_ascii() && class(b) & SPACE != 0).negate()),
            'd' => Some(Class::of(|b| b.is_ascii_digit())),
            'p' => {
                let end = self.rest[self.at..].iter().position(|&c| c == '}')?;
                let bit = match self.rest.get(self.at + 1)? {
                    'L' => LETTER,
                    'N' => NUMBER,
                    'P' => PUNCTUATION,
                    'M' => MARK,
                    'S' => SYMBOL,
                    _ => return None,
                };
                self.at += end + 1;
                Some(Class::of(|b| class(b) & bit != 0))
            }
            _ => None,
        }
    }
}

/// A look-ahead for one class before another is one class: both must hold of the same symbol.
fn both(look: &Node, next: &Node) -> Option<Class> {
    match (look, next) {
        (Node::Look { node, wanted: true }, Node::Class(second)) => match &**node {
            Node::Class(first) => first.intersection(second),
            _ => None,
        },
        _ => None,
    }
}

/// The symbol that an escape names, unless it names a set.
fn escaped(c: char) -> Option<u32> {
    match c {
        'r' => Some(13),
        'n' => Some(10),
        't' => Some(9),
        _ if c.is_ascii_alphanumeric() => None,
        _ => Some(u32::from(c)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(notation: &str, text: &str) -> Vec<(usize, usize)> {
        let pattern = Pattern::new(notation).unwrap();
        let symbols: Vec<u32> = text.chars().map(u32::from).collect();
        let mut scratch = Scratch::default();
        let (mut out, mut at) = (Vec::new(), 0);
        while let Some((start, end)) = pattern.find(&symbols, at, &mut scratch) {
            out.push((start, end));
            at = end.max(start + 1);
        }
        assert!(scratch.retries.is_empty());
        out
    }

    #[test]
    fn notation_means_what_it_usually_means() {
        assert_eq!(all("ab|a", "abaa"), [(0, 2), (2, 3), (3, 4)]);
        assert_eq!(all("a|ab", "ab"), [(0, 1)], "the first alternative wins");
        assert_eq!(all("[a-c]+c", "abcabcx"), [(0, 6)], "greedy, gives back");
        assert_eq!(all("[^a\\]-]+", "xa]-y"), [(0, 1), (4, 5)]);
        assert_eq!(all("\\s+(?!\\S)|\\s+", "  a "), [(0, 1), (1, 2), (3, 4)]);
        assert_eq!(all("\\d{2,3}", "1234567"), [(0, 3), (3, 6)]);
        assert_eq!(all("(ab){2}c?", "ababcab"), [(0, 5)]);
        assert_eq!(all("(?=[a-z])([^m-z])", "amzb"), [(0, 1), (3, 4)]);
        assert_eq!(all("x+$", "xxaxx"), [(3, 5)]);
        assert_eq!(all("(?=(\\d{3})+(?!\\d))", "12345"), [(2, 2)]);
        assert_eq!(all("(?:a(?: a)*)+", "a a aa b a"), [(0, 6), (9, 10)]);
        assert_eq!(all("[一-龥]+|[^!é]", "a漢字é!"), [(0, 1), (1, 3)]);
        assert_eq!(all("(a|b){1,2}z", "aabz"), [(1, 4)]);
    }

    #[test]
    fn malformed_notation_is_refused() {
        for bad in ["(a", "[a", "a)", "a{x}", "\\q", "\\p{X}"] {
            assert!(Pattern::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn long_runs_cost_their_length() {
        let text = "A".repeat(200_000);
        assert_eq!(all("((?=[\\p{L}])([^a-z]))*((?=[\\p{L}])([^A-Z]))+|[A-Z]+", &text), [(0, 200_000)]);
    }
}
