//! A matcher of GBNF that is slow and plain: sets of stacks of what must still come, no sharing, no tables.

use std::collections::{BTreeSet, HashMap};

#[derive(Debug)]
enum Node {
    Class(Vec<(char, char)>, bool),
    Text(Vec<char>),
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    Repeat(Box<Node>, u64, Option<u64>),
    Rule(String),
}

/// A grammar that was read.
pub struct Naive {
    rules: HashMap<String, Node>,
}

/// What must still come: nodes, or a node so many times more; `None` stands for no maximum.
#[derive(Clone, Copy)]
enum Frame<'n> {
    Node(&'n Node),
    Rest(&'n [char]),
    Times(&'n Node, u64, Option<u64>),
}

type Stack<'n> = Vec<Frame<'n>>;

/// How far a text goes.
#[derive(Debug, PartialEq)]
pub struct Verdict {
    /// Bytes that were accepted.
    pub bytes: usize,
    /// Whether all of it was, and the text may end there.
    pub complete: bool,
}

struct Reader<'t> {
    chars: Vec<char>,
    at: usize,
    text: &'t str,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> char {
        let c = self.peek().unwrap_or_else(|| panic!("the end: {}", self.text));
        self.at += 1;
        c
    }

    fn blanks(&mut self) {
        while self.peek() == Some(' ') {
            self.at += 1;
        }
    }

    fn code(&mut self) -> char {
        let hex = |this: &mut Self, n: usize| {
            let text: String = (0..n).map(|_| this.next()).collect();
            char::from_u32(u32::from_str_radix(&text, 16).unwrap()).unwrap_or('\u{fffd}')
        };
        match self.next() {
            '\\' => match self.next() {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'x' => hex(self, 2),
                'u' => hex(self, 4),
                'U' => hex(self, 8),
                c => c,
            },
            c => c,
        }
    }

    fn alternatives(&mut self) -> Node {
        let mut list = vec![self.sequence()];
        while self.peek() == Some('|') {
            self.at += 1;
            list.push(self.sequence());
        }
        Node::Alt(list)
    }

    fn sequence(&mut self) -> Node {
        let mut list = Vec::new();
        loop {
            self.blanks();
            let item = match self.peek() {
                None | Some('|' | ')') => return Node::Seq(list),
                Some('(') => {
                    self.at += 1;
                    let node = self.alternatives();
                    assert_eq!(self.next(), ')');
                    node
                }
                Some('"') => {
                    self.at += 1;
                    let mut text = Vec::new();
                    while self.peek() != Some('"') {
                        text.push(self.code());
                    }
                    self.at += 1;
                    Node::Text(text)
                }
                Some('[') => self.class(),
                Some('.') => {
                    self.at += 1;
                    Node::Class(Vec::new(), true)
                }
                Some(_) => {
                    let from = self.at;
                    while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
                        self.at += 1;
                    }
                    assert!(self.at > from, "{:?} in {}", self.peek(), self.text);
                    Node::Rule(self.chars[from..self.at].iter().collect())
                }
            };
            list.push(self.repeated(item));
        }
    }

    fn class(&mut self) -> Node {
        self.at += 1;
        let negated = self.peek() == Some('^');
        self.at += usize::from(negated);
        let mut ranges = Vec::new();
        while self.peek() != Some(']') {
            let from = self.code();
            let is_range = self.peek() == Some('-') && self.chars[self.at + 1] != ']';
            let to = if is_range {
                self.at += 1;
                self.code()
            } else {
                from
            };
            ranges.push((from, to));
        }
        self.at += 1;
        Node::Class(ranges, negated)
    }

    fn repeated(&mut self, item: Node) -> Node {
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                let end = self.at + self.chars[self.at..].iter().position(|&c| c == '}').unwrap();
                let inner: String = self.chars[self.at + 1..end].iter().collect();
                self.at = end;
                match inner.split_once(',') {
                    None => (inner.parse().unwrap(), Some(inner.parse().unwrap())),
                    Some((min, "")) => (min.parse().unwrap(), None),
                    Some((min, max)) => (min.parse().unwrap(), Some(max.parse().unwrap())),
                }
            }
            _ => return item,
        };
        self.at += 1;
        Node::Repeat(Box::new(item), min, max)
    }
}

impl Naive {
    /// Reads a grammar with one rule on each line, as the converters write them.
    pub fn parse(gbnf: &str) -> Naive {
        let mut rules = HashMap::new();
        for line in gbnf.lines().filter(|line| !line.is_empty()) {
            let (name, body) = line.split_once(" ::= ").unwrap();
            let mut reader = Reader { chars: body.chars().collect(), at: 0, text: line };
            let node = reader.alternatives();
            assert_eq!(reader.at, reader.chars.len(), "{line}");
            rules.insert(name.to_owned(), node);
        }
        Naive { rules }
    }

    fn expand<'n>(
        &'n self,
        mut stack: Stack<'n>,
        open: &mut BTreeSet<Vec<(usize, u64, u64)>>,
        out: &mut Vec<Stack<'n>>,
    ) {
        let key = stack.iter().map(|frame| match *frame {
            Frame::Node(node) => (std::ptr::from_ref(node) as usize, u64::MAX, 0),
            Frame::Rest(rest) => (rest.as_ptr() as usize, u64::MAX - 1, rest.len() as u64),
            Frame::Times(node, min, max) => (std::ptr::from_ref(node) as usize, min, max.unwrap_or(u64::MAX)),
        });
        if !open.insert(key.collect()) {
            return;
        }
        let Some(&top) = stack.last() else { return out.push(stack) };
        let mut with = |stack: &Stack<'n>, more: &[Frame<'n>]| {
            let mut next = stack.clone();
            next.extend_from_slice(more);
            self.expand(next, open, out);
        };
        match top {
            Frame::Node(Node::Class(..)) => out.push(stack),
            Frame::Rest(rest) if !rest.is_empty() => out.push(stack),
            Frame::Rest(_) => {
                stack.pop();
                with(&stack, &[]);
            }
            Frame::Node(node) => {
                stack.pop();
                match node {
                    Node::Text(text) => with(&stack, &[Frame::Rest(text)]),
                    Node::Seq(list) => with(&stack, &list.iter().rev().map(Frame::Node).collect::<Vec<_>>()),
                    Node::Alt(list) => list.iter().for_each(|one| with(&stack, &[Frame::Node(one)])),
                    Node::Repeat(item, min, max) => with(&stack, &[Frame::Times(item, *min, *max)]),
                    Node::Rule(name) => with(&stack, &[Frame::Node(&self.rules[name])]),
                    Node::Class(..) => unreachable!(),
                }
            }
            Frame::Times(item, min, max) => {
                stack.pop();
                if min == 0 {
                    with(&stack, &[]);
                }
                if max != Some(0) {
                    let left = Frame::Times(item, min.saturating_sub(1), max.map(|max| max - 1));
                    with(&stack, &[left, Frame::Node(item)]);
                }
            }
        }
    }

    /// The stacks at the start of a text.
    fn start(&self) -> Vec<Stack<'_>> {
        let mut out = Vec::new();
        self.expand(vec![Frame::Node(&self.rules["root"])], &mut BTreeSet::new(), &mut out);
        out
    }

    fn step<'n>(&'n self, stacks: &[Stack<'n>], c: char) -> Vec<Stack<'n>> {
        let (mut out, mut open) = (Vec::new(), BTreeSet::new());
        for stack in stacks {
            let mut rest = stack.clone();
            match rest.pop() {
                Some(Frame::Rest(text)) if text[0] == c => rest.push(Frame::Rest(&text[1..])),
                Some(Frame::Node(Node::Class(ranges, negated)))
                    if ranges.iter().any(|&(from, to)| from <= c && c <= to) != *negated => {}
                _ => continue,
            }
            self.expand(rest, &mut open, &mut out);
        }
        out
    }

    /// Feeds a text.
    pub fn check(&self, text: &str) -> Verdict {
        let mut stacks = self.start();
        for (at, c) in text.char_indices() {
            stacks = self.step(&stacks, c);
            if stacks.is_empty() {
                return Verdict { bytes: at, complete: false };
            }
        }
        Verdict { bytes: text.len(), complete: stacks.iter().any(Vec::is_empty) }
    }

    /// Whether a text is matched as a whole.
    pub fn matches(&self, text: &str) -> bool {
        self.check(text).complete
    }

    /// A random text. `pick(n)` draws a number below n; texts end soon after `limit` characters if they can.
    pub fn random(&self, limit: usize, pick: &mut dyn FnMut(u64) -> u64) -> Option<String> {
        let mut stacks = self.start();
        let mut text = String::new();
        for _ in 0..limit * 20 {
            let may_end = stacks.iter().any(Vec::is_empty);
            if may_end && (text.len() > limit || pick(3) == 0) {
                return Some(text);
            }
            let open: Vec<&Stack> = stacks.iter().filter(|stack| !stack.is_empty()).collect();
            if open.is_empty() {
                return may_end.then_some(text);
            }
            // Late in a text what leaves the fewest frames.
            let stack = match text.len() > limit {
                true => open.iter().min_by_key(|stack| stack.len()).unwrap(),
                false => open[pick(open.len() as u64) as usize],
            };
            let c = match stack.last() {
                Some(Frame::Rest(rest)) => rest[0],
                Some(Frame::Node(Node::Class(ranges, false))) => {
                    let (from, to) = ranges[pick(ranges.len() as u64) as usize];
                    let span = to as u64 - from as u64 + 1;
                    char::from_u32((from as u64 + pick(span)) as u32).unwrap_or(from)
                }
                _ => "aZ09_ -.é日\u{1f600}:/@".chars().nth(pick(14) as usize).unwrap(),
            };
            let next = self.step(&stacks, c);
            if !next.is_empty() {
                text.push(c);
                stacks = next;
            }
        }
        None
    }
}
