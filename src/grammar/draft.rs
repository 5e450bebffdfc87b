//! A grammar under construction: rules of expressions, printed as GBNF.
//!
//! Printing leaves out what can never be finished (a rule that needs itself, an alternative without any text) and rules
//! that nothing uses. Expressions stay shallow: what nests deeply or is repeated becomes a rule of its own.

use crate::{Error, Result};
use std::collections::HashMap;
use std::fmt::Write;

/// The most rules of one grammar.
const MAX_RULES: usize = 100_000;
/// The longest text that is printed, in bytes: the most that the reader of GBNF takes.
const MAX_TEXT: usize = 4 << 20;
/// The most repetitions that GBNF has; more are rules of blocks.
const BLOCK: u64 = 1000;
/// The most repetitions of all. A maximum above it is none; a minimum above it is an error.
pub(super) const MAX_REPETITIONS: u64 = BLOCK * BLOCK;

/// A rule's number.
pub(super) type RuleId = usize;

/// What a rule matches.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    /// These characters.
    Text(String),
    /// One character: a class as GBNF writes it.
    Class(String),
    /// One after the other; none matches the empty text.
    Seq(Vec<Expr>),
    /// One of them; none matches nothing at all.
    Alt(Vec<Expr>),
    /// So many times; no maximum where it is `None`.
    Repeat(Box<Expr>, u64, Option<u64>),
    /// What another rule matches.
    Rule(RuleId),
}

impl Expr {
    pub(super) fn text(text: impl Into<String>) -> Expr {
        Expr::Text(text.into())
    }

    pub(super) fn class(class: &str) -> Expr {
        Expr::Class(class.into())
    }

    pub(super) fn empty() -> Expr {
        Expr::Seq(Vec::new())
    }

    pub(super) fn never() -> Expr {
        Expr::Alt(Vec::new())
    }

    pub(super) fn optional(self) -> Expr {
        Expr::Repeat(Box::new(self), 0, Some(1))
    }

    pub(super) fn any_times(self) -> Expr {
        Expr::Repeat(Box::new(self), 0, None)
    }
}

struct Rule {
    name: String,
    body: Option<Expr>,
}

/// Rules so far.
#[derive(Default)]
pub(super) struct Draft {
    rules: Vec<Rule>,
    names: HashMap<String, u32>,
}

impl Draft {
    /// A rule without a body yet. Its name is the hint's letters and digits, with a number where that name is taken.
    pub(super) fn declare(&mut self, hint: &str) -> Result<RuleId> {
        if self.rules.len() >= MAX_RULES {
            return Err(Error::InvalidArgument(format!("Grammar: more than {MAX_RULES} rules would be needed")));
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let mut base: String = hint.chars().take(60).map(plain).collect();
        if base.is_empty() {
            base.push('r');
        }
        let mut name = base.clone();
        while self.names.contains_key(&name) {
            let count = self.names.entry(base.clone()).or_insert(1);
            *count += 1;
            name = format!("{base}-{count}");
        }
        self.names.insert(name.clone(), 1);
        self.rules.push(Rule { name, body: None });
        Ok(self.rules.len() - 1)
    }

    /// Gives a declared rule its body.
    pub(super) fn define(&mut self, rule: RuleId, body: Expr) {
        self.rules[rule].body = Some(body);
    }

    /// A rule with its body.
    pub(super) fn rule(&mut self, hint: &str, body: Expr) -> Result<Expr> {
        let rule = self.declare(hint)?;
        self.define(rule, body);
        Ok(Expr::Rule(rule))
    }

    /// `min` to `max` times, within what GBNF can repeat.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the minimum is above [`MAX_REPETITIONS`].
    pub(super) fn repeat(&mut self, item: Expr, min: u64, max: Option<u64>) -> Result<Expr> {
        let max = max.filter(|&max| max <= MAX_REPETITIONS);
        if min > MAX_REPETITIONS {
            return Err(Error::InvalidArgument(format!("Grammar: {min} repetitions, at most {MAX_REPETITIONS}")));
        }
        if max.is_some_and(|max| max < min) {
            return Ok(Expr::never());
        }
        if max == Some(0) || item == Expr::empty() {
            return Ok(Expr::empty());
        }
        // GBNF counts the rules within a repeated item, so the item is one name.
        let item = match item {
            Expr::Class(_) | Expr::Rule(_) => item,
            Expr::Text(text) if text.chars().count() == 1 => Expr::Text(text),
            other if (min, max) == (0, Some(1)) => other,
            other => self.rule("item", other)?,
        };
        if min.max(max.unwrap_or(0)) <= BLOCK {
            return Ok(Expr::Repeat(Box::new(item), min, max));
        }
        let block = Expr::Repeat(Box::new(item.clone()), BLOCK, Some(BLOCK));
        let block = self.rule("block", block)?;
        let times = |item: &Expr, min, max| Expr::Repeat(Box::new(item.clone()), min, max);
        let mut parts = Vec::new();
        if min >= BLOCK {
            parts.push(times(&block, min / BLOCK, Some(min / BLOCK)));
        }
        if !min.is_multiple_of(BLOCK) {
            parts.push(times(&item, min % BLOCK, Some(min % BLOCK)));
        }
        let Some(max) = max else {
            parts.push(times(&item, 0, None));
            return Ok(Expr::Seq(parts));
        };
        // Whole blocks, then part of a block: every count in one way.
        let (blocks, rest) = ((max - min) / BLOCK, (max - min) % BLOCK);
        let mut ways = Vec::new();
        if blocks > 0 {
            let part = times(&item, 0, Some(BLOCK - 1));
            ways.push(Expr::Seq(vec![times(&block, 0, Some(blocks - 1)), part]));
            ways.push(Expr::Seq(vec![times(&block, blocks, Some(blocks)), times(&item, 0, Some(rest))]));
        } else {
            ways.push(times(&item, 0, Some(rest)));
        }
        parts.push(Expr::Alt(ways));
        // One name, as it may be in what is repeated or left out.
        self.rule("many", Expr::Seq(parts))
    }

    /// The text, with `root` first. `None` where the root matches nothing at all.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rule that begins with itself, and for a text that is too long.
    pub(super) fn print(&self, root: RuleId) -> Result<Option<String>> {
        let alive = self.productive();
        if !alive[root] {
            return Ok(None);
        }
        if let Some(name) = self.circle(&alive) {
            let problem = format!("Grammar: {name} is defined by nothing but itself (a circle of references)");
            return Err(Error::InvalidArgument(problem));
        }
        let mut out = String::new();
        let mut seen = vec![false; self.rules.len()];
        let mut queue = std::collections::VecDeque::from([root]);
        seen[root] = true;
        while let Some(id) = queue.pop_front() {
            let Some(body) = &self.rules[id].body else { continue };
            let _ = write!(out, "{} ::= ", self.rules[id].name);
            let mut printer = Printer { draft: self, alive: &alive, seen: &mut seen, queue: &mut queue, out: &mut out };
            printer.alternatives(body);
            out.push('\n');
            if out.len() > MAX_TEXT {
                return Err(Error::InvalidArgument(format!("Grammar: would be longer than {MAX_TEXT} bytes")));
            }
        }
        Ok(Some(out))
    }

    /// Which rules match any text at all.
    fn productive(&self) -> Vec<bool> {
        let mut alive = vec![false; self.rules.len()];
        let mut users = vec![Vec::new(); self.rules.len()];
        let mut work: Vec<RuleId> = (0..self.rules.len()).rev().collect();
        for (id, rule) in self.rules.iter().enumerate() {
            if let Some(body) = &rule.body {
                uses(body, &mut |used| users[used].push(id));
            }
        }
        while let Some(id) = work.pop() {
            if alive[id] || !self.rules[id].body.as_ref().is_some_and(|body| is_productive(body, &alive)) {
                continue;
            }
            alive[id] = true;
            work.extend(users[id].iter().copied().filter(|&user| !alive[user]));
        }
        alive
    }

    /// The name of a rule that is an alternative of itself, if there is one.
    fn circle(&self, alive: &[bool]) -> Option<&str> {
        let mut done = vec![0u8; self.rules.len()];
        for start in 0..self.rules.len() {
            let mut path = vec![(start, false)];
            while let Some((id, leave)) = path.pop() {
                if leave {
                    done[id] = 2;
                    continue;
                }
                if done[id] != 0 || !alive[id] {
                    continue;
                }
                done[id] = 1;
                path.push((id, true));
                let mut next = Vec::new();
                if let Some(body) = &self.rules[id].body {
                    units(body, &mut next);
                }
                if let Some(&again) = next.iter().find(|&&next| done[next] == 1) {
                    return Some(&self.rules[again].name);
                }
                path.extend(next.into_iter().map(|next| (next, false)));
            }
        }
        None
    }
}

fn uses(expr: &Expr, found: &mut impl FnMut(RuleId)) {
    match expr {
        Expr::Text(_) | Expr::Class(_) => {}
        Expr::Seq(list) | Expr::Alt(list) => list.iter().for_each(|one| uses(one, found)),
        Expr::Repeat(item, ..) => uses(item, found),
        Expr::Rule(id) => found(*id),
    }
}

/// The rules that are whole alternatives of an expression.
fn units(expr: &Expr, found: &mut Vec<RuleId>) {
    match expr {
        Expr::Rule(id) => found.push(*id),
        Expr::Alt(list) => list.iter().for_each(|one| units(one, found)),
        Expr::Seq(list) if list.len() == 1 => units(&list[0], found),
        _ => {}
    }
}

fn is_productive(expr: &Expr, alive: &[bool]) -> bool {
    match expr {
        Expr::Text(_) | Expr::Class(_) => true,
        Expr::Seq(list) => list.iter().all(|one| is_productive(one, alive)),
        Expr::Alt(list) => list.iter().any(|one| is_productive(one, alive)),
        Expr::Repeat(item, min, _) => *min == 0 || is_productive(item, alive),
        Expr::Rule(id) => alive[*id],
    }
}

/// Writes expressions, without what is not alive.
struct Printer<'d> {
    draft: &'d Draft,
    alive: &'d [bool],
    seen: &'d mut [bool],
    queue: &'d mut std::collections::VecDeque<RuleId>,
    out: &'d mut String,
}

impl Printer<'_> {
    /// An expression where `|` needs no parentheses.
    fn alternatives(&mut self, expr: &Expr) {
        let Expr::Alt(list) = expr else { return self.sequence(expr) };
        let mut first = true;
        for one in list.iter().filter(|one| is_productive(one, self.alive)) {
            if !first {
                self.out.push_str(" | ");
            }
            first = false;
            self.sequence(one);
        }
    }

    fn sequence(&mut self, expr: &Expr) {
        let Expr::Seq(list) = expr else { return self.item(expr) };
        let mut any = false;
        for one in list {
            if self.is_empty(one) {
                continue;
            }
            if any {
                self.out.push(' ');
            }
            any = true;
            self.item(one);
        }
        if !any {
            self.out.push_str("\"\"");
        }
    }

    /// Whether an expression matches the empty text alone, for what the printer can see without its rules.
    fn is_empty(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Text(text) => text.is_empty(),
            Expr::Class(_) | Expr::Rule(_) => false,
            Expr::Seq(list) => list.iter().all(|one| self.is_empty(one)),
            Expr::Alt(list) => list.iter().filter(|one| is_productive(one, self.alive)).all(|one| self.is_empty(one)),
            Expr::Repeat(item, min, max) => {
                *max == Some(0) || self.is_empty(item) || *min == 0 && !is_productive(item, self.alive)
            }
        }
    }

    fn item(&mut self, expr: &Expr) {
        match expr {
            _ if self.is_empty(expr) => self.out.push_str("\"\""),
            Expr::Text(text) => self.literal(text),
            Expr::Class(class) => self.out.push_str(class),
            Expr::Rule(id) => {
                self.out.push_str(&self.draft.rules[*id].name);
                if !std::mem::replace(&mut self.seen[*id], true) {
                    self.queue.push_back(*id);
                }
            }
            Expr::Repeat(item, min, max) => {
                match **item {
                    Expr::Text(_) | Expr::Class(_) | Expr::Rule(_) => self.item(item),
                    _ => self.group(item),
                }
                let _ = match (min, max) {
                    (0, Some(1)) => write!(self.out, "?"),
                    (0, None) => write!(self.out, "*"),
                    (1, None) => write!(self.out, "+"),
                    (min, None) => write!(self.out, "{{{min},}}"),
                    (min, Some(max)) if min == max => write!(self.out, "{{{min}}}"),
                    (min, Some(max)) => write!(self.out, "{{{min},{max}}}"),
                };
            }
            Expr::Seq(_) | Expr::Alt(_) => self.group(expr),
        }
    }

    fn group(&mut self, expr: &Expr) {
        self.out.push('(');
        self.alternatives(expr);
        self.out.push(')');
    }

    fn literal(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => self.out.extend(['\\', c]),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                c if c < ' ' || c == '\x7f' => {
                    let _ = write!(self.out, "\\x{:02X}", c as u32);
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
