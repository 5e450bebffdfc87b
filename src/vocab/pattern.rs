//! A small backtracking matcher for the patterns of the pre-tokenizer table.
//!
//! It reads the part of the usual pattern notation that the table needs: literals, `[...]` with ranges and negation,
//! `\s \S \d`, the categories `\p{L} \p{N} \p{P} \p{M} \p{S}` and their negations, groups, `|`, greedy `? * + {n}
//! {m,n}`, look-ahead and `$`. Alternatives are tried in order and repetition is greedy, so the first match found is
//! the match. A repeated class is one step that stores only how far it may backtrack, so that no stack grows with a
//! run; and the rest of the pattern is tried once at each position of a long run, whichever start the run was entered
//! from. So the time for a run is linear in its length, also where a pattern fails at every start in it.
//!
//! Two kinds of text are matched: collapsed bytes (see [`super::unicode`]), where a category is its byte plus the
//! ASCII characters of that category, and code points, for patterns that name non-ASCII characters.

use super::pace::Pace;
use super::unicode::{LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL, class};
use crate::{Error, Result, reserve};

/// A set of symbols: a bit for each below 256, and ranges above.
#[derive(Clone, Debug, Default, PartialEq)]
struct Class {
    low: [u64; 4],
    /// Ascending and apart.
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
            self.ranges.sort_unstable();
            self.ranges.dedup_by(|next, before| {
                let touches = next.0 <= before.1;
                before.1 = if touches { before.1.max(next.1) } else { before.1 };
                touches
            });
        }
    }

    fn negate(mut self) -> Self {
        self.low.iter_mut().for_each(|w| *w = !*w);
        self.negated = !self.negated;
        self
    }

    fn union(&mut self, other: &Class) {
        self.low.iter_mut().zip(other.low).for_each(|(a, b)| *a |= b);
        other.ranges.iter().for_each(|&(first, last)| self.add(first, last));
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
        let behind = self.ranges.partition_point(|&(first, _)| first <= symbol);
        self.ranges[..behind].last().is_some_and(|&(_, last)| symbol <= last) != self.negated
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
    step: u32,
    /// [`ONE_PLACE`] where it is not a run that backtracks.
    lowest: u32,
    position: u32,
}

const ONE_PLACE: u32 = u32::MAX;

/// What is known of a long run that a step without a limit matched.
struct Run {
    step: u32,
    /// All symbols from here on up to `end` belong to the run, and no more.
    begin: u32,
    end: u32,
    /// The rest of the pattern does not match here, nor at any position from here to `end`.
    failed: u32,
}

/// Shorter runs are cheaper to match again.
const LONG_RUN: usize = 32;

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

    /// The first match in `text` at or after `from`, as a range of positions. `scratch` is any matcher's memory.
    pub(super) fn find<S: Copy + Into<u32>>(
        &self,
        text: &[S],
        from: usize,
        scratch: &mut Scratch,
        pace: &Pace<'_>,
    ) -> Result<Option<(usize, usize)>> {
        for start in from..text.len() {
            if let Some(end) = self.run(0, text, start, scratch, pace)? {
                return Ok(Some((start, end)));
            }
        }
        Ok(None)
    }

    /// Match the steps from `step` on at `start`; the end of the match.
    fn run<S: Copy + Into<u32>>(
        &self,
        step: usize,
        text: &[S],
        start: usize,
        scratch: &mut Scratch,
        pace: &Pace<'_>,
    ) -> Result<Option<usize>> {
        let base = scratch.retries.len();
        let (mut step, mut at) = (step, start);
        loop {
            pace.spend(1)?;
            let matched = match &self.steps[step] {
                Step::One(class) => match text.get(at) {
                    Some(&symbol) if class.has(symbol.into()) => {
                        (step, at) = (step + 1, at + 1);
                        true
                    }
                    _ => false,
                },
                Step::Run { class, min, max } => {
                    let lowest = at + *min as usize;
                    let known = if *max == u32::MAX { scratch.known(step, at) } else { None };
                    let end = match known {
                        Some(run) => run.end.min(run.failed.saturating_sub(1)) as usize,
                        None => {
                            let limit = text.len().min(at.saturating_add(*max as usize));
                            let end = (at..limit).find(|&i| !class.has(text[i].into())).unwrap_or(limit.max(at));
                            pace.spend((end - at) / 2)?;
                            if *max == u32::MAX && end - at >= LONG_RUN {
                                scratch.note(step, at, end);
                            }
                            end
                        }
                    };
                    step += 1;
                    at = end;
                    if end > lowest {
                        let (lowest, position) = (lowest as u32, end as u32 - 1);
                        reserve::push(&mut scratch.retries, Retry { step: step as u32, lowest, position }, RETRIES)?;
                    }
                    end >= lowest
                }
                Step::Else(other) => {
                    let retry = Retry { step: *other as u32, lowest: ONE_PLACE, position: at as u32 };
                    reserve::push(&mut scratch.retries, retry, RETRIES)?;
                    step += 1;
                    true
                }
                Step::Jump(to) => {
                    step = *to;
                    true
                }
                Step::Look { end, wanted } => {
                    let found = self.run(step + 1, text, at, scratch, pace)?.is_some();
                    step = *end;
                    found == *wanted
                }
                Step::End => {
                    step += 1;
                    at == text.len()
                }
                Step::Done => {
                    scratch.retries.truncate(base);
                    return Ok(Some(at));
                }
            };
            if matched {
                continue;
            }
            let Some(retry) = scratch.retries[base..].last_mut() else { return Ok(None) };
            (step, at) = (retry.step as usize, retry.position as usize);
            let gives_back = retry.lowest != ONE_PLACE;
            if gives_back && retry.position > retry.lowest {
                retry.position -= 1;
            } else {
                scratch.retries.pop();
            }
            if gives_back {
                scratch.fail(step - 1, at + 1);
            }
        }
    }
}

/// What memory is for, in errors.
const RETRIES: &str = "places in a text to try again at";

/// The matcher's memory, to be kept between matches.
#[derive(Default)]
pub(super) struct Scratch {
    retries: Vec<Retry>,
    /// One for a step at most; of the text that is matched now.
    runs: Vec<Run>,
}

impl Scratch {
    /// Forget everything: the next match is in another text.
    pub(super) fn forget(&mut self) {
        self.runs.clear();
    }

    /// What is known of a step at a position.
    fn known(&self, step: usize, at: usize) -> Option<&Run> {
        self.runs.iter().find(|run| run.step as usize == step && (run.begin as usize..run.end as usize).contains(&at))
    }

    fn note(&mut self, step: usize, begin: usize, end: usize) {
        let run = Run { step: step as u32, begin: begin as u32, end: end as u32, failed: end as u32 + 1 };
        match self.runs.iter_mut().find(|known| known.step == run.step) {
            Some(known) => *known = run,
            None => self.runs.push(run),
        }
    }

    /// Record that the rest of the pattern after a step does not match at a position. A run backtracks from its end, so
    /// failures are consecutive.
    fn fail(&mut self, step: usize, at: usize) {
        let (step, at) = (step as u32, at as u32);
        if let Some(run) = self.runs.iter_mut().find(|run| run.step == step && (run.begin..=run.end).contains(&at))
            && run.failed == at + 1
        {
            run.failed = at;
        }
    }
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
        while let Some((start, end)) = pattern.find(&symbols, at, &mut scratch, &Pace::new(&|| false)).unwrap() {
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

    /// Matches without anything that is remembered: each start by itself.
    fn all_forgetting(notation: &str, symbols: &[u32]) -> Vec<(usize, usize)> {
        let pattern = Pattern::new(notation).unwrap();
        let (mut out, mut at) = (Vec::new(), 0);
        while at < symbols.len() {
            let found = pattern.run(0, symbols, at, &mut Scratch::default(), &Pace::new(&|| false)).unwrap();
            out.extend(found.map(|end| (at, end)));
            at = found.map_or(at + 1, |end| end.max(at + 1));
        }
        out
    }

    #[test]
    fn what_is_remembered_of_long_runs_changes_no_match() {
        let notations = [
            r"\s+$",
            r"\s*[\r\n]+|\s{64}(?!\S)|\s{1,2}(?!\S)|\s{1}",
            r"\s*x|\s+(?!\S)|\s+",
            r"[ab]+b|[ab]*c|(a+b)+d",
            r"(?=\s*x)[ a]+|\s+a",
        ];
        let mut state = 1u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for round in 0..400 {
            let mut text = String::new();
            for _ in 0..1 + below(5) {
                let run = [" ", " ", "a", "ab", "\n", "x", "c", "1"][below(8)];
                text.push_str(&run.repeat([1, 1, 3, 40, 130][below(5)]));
            }
            let symbols: Vec<u32> = text.chars().map(u32::from).collect();
            let notation = notations[round % notations.len()];
            assert_eq!(all(notation, &text), all_forgetting(notation, &symbols), "{notation} on {text:?}");
        }
    }

    #[test]
    fn letters_with_marks_and_single_blanks_are_told_in_one_way() {
        // As the makers of the vocabulary wrote it, and so that it needs little memory.
        let made = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}";
        let ours = r"[^\r\n\p{L}\p{N}]?\p{L}[\p{L}\p{M}]*(?: \p{L}[\p{L}\p{M}]*)*|\p{N}";
        let letters = [u32::from('a'), u32::from(' '), 0xd4, u32::from('1')];
        for number in 0..4u32.pow(9) {
            let text: Vec<u32> = (0..9).map(|i| letters[(number >> (2 * i)) as usize % 4]).collect();
            assert_eq!(all_forgetting(ours, &text), all_forgetting(made, &text), "{text:?}");
        }
    }
}
