//! Reads GBNF as llama.cpp does: `name ::= alternatives`, one rule after the other.
//!
//! A line break ends a rule, but in parentheses, after `::=` and after `|`. `S*`, `S+`, `S?` and `S{m,n}` become rules:
//! m copies of S, then n − m optional ones, each inside the one before. Names may hold `_`, which llama.cpp refuses.

use super::rules::{Class, Item, Rule, Rules, TokenName};
use crate::gguf::shown;
use crate::{Error, Result, Token};
use std::collections::HashMap;

/// The longest grammar, in bytes of text.
pub const MAX_TEXT_BYTES: usize = 4 << 20;
/// The most elements of all rules together, repetitions written out.
pub const MAX_ITEMS: usize = 1 << 21;
/// The most repetitions, also of groups inside of each other.
pub const MAX_REPETITIONS: u64 = 2000;
/// The deepest parentheses.
pub const MAX_DEPTH: usize = 512;

/// No maximum.
const UNLIMITED: u64 = u64::MAX;

/// Where a rule is used and defined in the text.
#[derive(Clone, Copy, Default)]
struct Places {
    first_use: usize,
    defined: Option<usize>,
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    rules: Rules,
    places: Vec<Places>,
    by_name: HashMap<&'t str, u32>,
    classes: HashMap<Class, u32>,
    tokens: HashMap<TokenName, u32>,
    items: usize,
    depth: usize,
}

impl Rules {
    /// Reads a grammar in GBNF. `root` is the name of the rule that texts must match. The empty text is a grammar that
    /// allows everything, as in llama.cpp.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with line and column for what is no GBNF, beyond a limit, undefined or
    /// left-recursive.
    pub fn parse(gbnf: &str, root: &str) -> Result<Rules> {
        parse(gbnf, root)
    }
}

fn parse(text: &str, root: &str) -> Result<Rules> {
    if text.is_empty() {
        return Ok(Rules { allows_all: true, ..Rules::default() });
    }
    let mut parser = Parser {
        text,
        at: 0,
        rules: Rules::default(),
        places: Vec::new(),
        by_name: HashMap::new(),
        classes: HashMap::new(),
        tokens: HashMap::new(),
        items: 0,
        depth: 0,
    };
    if text.len() > MAX_TEXT_BYTES {
        return Err(Error::InvalidArgument(format!("Grammar: {} bytes, at most {MAX_TEXT_BYTES}", text.len())));
    }
    parser.space(true);
    while parser.at < text.len() {
        parser.rule()?;
    }
    parser.finish(root)
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

impl<'t> Parser<'t> {
    fn error(&self, at: usize, problem: impl std::fmt::Display) -> Error {
        let before = &self.text[..at.min(self.text.len())];
        let line = 1 + before.matches('\n').count();
        let column = 1 + before[before.rfind('\n').map_or(0, |end| end + 1)..].chars().count();
        Error::InvalidArgument(format!("Grammar, line {line}, column {column}: {problem}"))
    }

    /// What was found at a place, for errors.
    fn found(&self) -> String {
        match self.text[self.at..].chars().next() {
            None => "the end".into(),
            Some('\n' | '\r') => "the end of the line".into(),
            Some(c) => format!("\"{}\"", shown(&c.to_string())),
        }
    }

    fn expected<T>(&self, what: &str) -> Result<T> {
        Err(self.error(self.at, format_args!("{what} expected, found {}", self.found())))
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips blanks and comments, and line ends where they may be.
    fn space(&mut self, line_ends: bool) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => self.at += 1,
                b'\r' | b'\n' if line_ends => self.at += 1,
                b'#' => {
                    let rest = &self.text.as_bytes()[self.at..];
                    self.at += rest.iter().position(|b| matches!(b, b'\r' | b'\n')).unwrap_or(rest.len());
                }
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Result<&'t str> {
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(|b| !is_name(b)).unwrap_or(rest.len());
        if length == 0 {
            return self.expected("the name of a rule");
        }
        self.at += length;
        Ok(&rest[..length])
    }

    /// The rule with this name, new or not.
    fn symbol(&mut self, name: &'t str, at: usize) -> u32 {
        let next = self.rules.rules.len() as u32;
        let index = *self.by_name.entry(name).or_insert(next);
        if index == next {
            self.rules.rules.push(Rule { name: name.to_owned(), ..Rule::default() });
            self.places.push(Places { first_use: at, defined: None });
        }
        index
    }

    /// A new rule for a part of the rule `name`.
    fn generate(&mut self, name: &str, items: Vec<Item>) -> u32 {
        let index = self.rules.rules.len() as u32;
        self.rules.rules.push(Rule { name: name.to_owned(), is_generated: true, items, mark: 0 });
        self.places.push(Places { first_use: self.at, defined: Some(self.at) });
        index
    }

    fn rule(&mut self) -> Result<()> {
        let begin = self.at;
        let name = self.name()?;
        self.space(false);
        let index = self.symbol(name, begin) as usize;
        if !self.text[self.at..].starts_with("::=") {
            return self.expected("\"::=\"");
        }
        self.at += 3;
        self.space(true);
        let items = self.alternatives(name, false)?;
        self.rules.rules[index].items = items;
        self.places[index].defined = Some(begin);
        match self.peek() {
            None | Some(b'\r' | b'\n') => {
                self.space(true);
                Ok(())
            }
            _ => self.expected("an element or the end of the line"),
        }
    }

    fn alternatives(&mut self, name: &str, nested: bool) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        self.sequence(name, nested, &mut items)?;
        while self.peek() == Some(b'|') {
            self.push(&mut items, Item::Or)?;
            self.at += 1;
            self.space(true);
            self.sequence(name, nested, &mut items)?;
        }
        Ok(items)
    }

    /// Counts `more` elements.
    fn count(&mut self, more: usize) -> Result<()> {
        self.items = self.items.saturating_add(more);
        if self.items > MAX_ITEMS {
            return Err(self.error(self.at, format_args!("more than {MAX_ITEMS} elements, repetitions written out")));
        }
        Ok(())
    }

    fn push(&mut self, items: &mut Vec<Item>, item: Item) -> Result<()> {
        self.count(1)?;
        items.push(item);
        Ok(())
    }

    fn sequence(&mut self, name: &str, nested: bool, items: &mut Vec<Item>) -> Result<()> {
        // The last item is `items[last..]`, and it made so many rules.
        let (mut last, mut made) = (items.len(), 1u64);
        while let Some(byte) = self.peek() {
            let begin = self.at;
            let before = items.len();
            match byte {
                b'"' => self.literal(items)?,
                b'[' => self.class(items)?,
                b'.' => {
                    self.at += 1;
                    let any = self.class_index(Class { negated: true, ranges: Vec::new() });
                    self.push(items, Item::Class(any))?;
                }
                b'<' | b'!' => self.token(items)?,
                b'(' => {
                    let known = self.rules.rules.len();
                    let group = self.group(name)?;
                    made = ((self.rules.rules.len() - known) as u64).max(1);
                    self.push(items, Item::Rule(group))?;
                }
                b'*' | b'+' | b'?' | b'{' => {
                    let (min, max) = self.bounds(nested)?;
                    self.repeat(name, items, last, made, (min, max), begin)?;
                    continue;
                }
                byte if is_name(byte) => {
                    let used = self.name()?;
                    let index = self.symbol(used, begin);
                    self.push(items, Item::Rule(index))?;
                }
                _ => break,
            }
            if byte != b'(' {
                made = 1;
            }
            last = before;
            self.space(nested);
        }
        Ok(())
    }

    fn literal(&mut self, items: &mut Vec<Item>) -> Result<()> {
        let begin = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err(self.error(begin, "the literal has no end")),
                Some(b'"') => break,
                Some(_) => {
                    let c = self.character()?;
                    self.push(items, Item::Char(c))?;
                }
            }
        }
        self.at += 1;
        Ok(())
    }

    fn class(&mut self, items: &mut Vec<Item>) -> Result<()> {
        let begin = self.at;
        self.at += 1;
        let negated = self.peek() == Some(b'^');
        self.at += usize::from(negated);
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.error(begin, "the class has no end")),
                Some(b']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let bytes = self.text.as_bytes();
            let mut last = first;
            if self.peek() == Some(b'-') && bytes.get(self.at + 1).is_some_and(|&b| b != b']') {
                self.at += 1;
                last = self.character()?;
            }
            self.count(1)?;
            ranges.push((first, last));
        }
        self.at += 1;
        // A class of nothing matches the empty text, with and without `^`.
        if !ranges.is_empty() {
            let class = self.class_index(Class { negated, ranges });
            self.push(items, Item::Class(class))?;
        }
        Ok(())
    }

    fn class_index(&mut self, class: Class) -> u32 {
        let next = self.rules.classes.len() as u32;
        if let Some(&known) = self.classes.get(&class) {
            return known;
        }
        self.rules.classes.push(class.clone());
        self.classes.insert(class, next);
        next
    }

    /// One code point of a literal or class.
    fn character(&mut self) -> Result<u32> {
        let begin = self.at;
        let mut rest = self.text[self.at..].chars();
        let Some(c) = rest.next() else { return self.expected("a character") };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(u32::from(c));
        }
        let Some(escape) = rest.next() else { return self.expected("an escape") };
        self.at += escape.len_utf8();
        let digits = match escape {
            't' => return Ok(9),
            'r' => return Ok(13),
            'n' => return Ok(10),
            '\\' | '"' | '[' | ']' | '-' => return Ok(u32::from(escape)),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => {
                let problem = format!("the escape \\{} is not known", shown(&other.to_string()));
                return Err(self.error(begin, problem));
            }
        };
        let text = self.text.as_bytes().get(self.at..self.at + digits).unwrap_or_default();
        let value = text.iter().try_fold(0u32, |value, &b| Some(value << 4 | char::from(b).to_digit(16)?));
        match value.filter(|_| text.len() == digits) {
            Some(value) => {
                self.at += digits;
                Ok(value)
            }
            None => Err(self.error(begin, format_args!("\\{escape} needs {digits} hexadecimal digits"))),
        }
    }

    fn token(&mut self, items: &mut Vec<Item>) -> Result<()> {
        let begin = self.at;
        let negated = self.peek() == Some(b'!');
        self.at += usize::from(negated);
        if self.peek() != Some(b'<') {
            return self.expected("\"<\" of a token");
        }
        let rest = &self.text[self.at..];
        let Some(end) = rest.find('>') else { return Err(self.error(begin, "the token has no \">\"")) };
        let text = &rest[..=end];
        let token = match text.strip_prefix("<[") {
            Some(id) => {
                let id = id.strip_suffix("]>").filter(|id| id.bytes().all(|b| b.is_ascii_digit()));
                match id.and_then(|id| id.parse::<Token>().ok()) {
                    Some(id) => TokenName::Id(id),
                    None => return Err(self.error(begin, "a token is <[number]> or <text>")),
                }
            }
            None => TokenName::Text(text.to_owned()),
        };
        self.at += text.len();
        let next = self.rules.tokens.len() as u32;
        let index = *self.tokens.entry(token.clone()).or_insert(next);
        if index == next {
            self.rules.tokens.push(token);
        }
        self.push(items, if negated { Item::NotToken(index) } else { Item::Token(index) })
    }

    fn group(&mut self, name: &str) -> Result<u32> {
        let begin = self.at;
        if self.depth == MAX_DEPTH {
            return Err(self.error(begin, format_args!("more than {MAX_DEPTH} parentheses inside of each other")));
        }
        self.at += 1;
        self.space(true);
        let group = self.generate(name, Vec::new());
        self.depth += 1;
        let items = self.alternatives(name, true)?;
        self.depth -= 1;
        self.rules.rules[group as usize].items = items;
        if self.peek() != Some(b')') {
            return self.expected("\")\"");
        }
        self.at += 1;
        Ok(group)
    }

    /// How often the last item is to be there.
    fn bounds(&mut self, nested: bool) -> Result<(u64, u64)> {
        let begin = self.at;
        let byte = self.peek();
        self.at += 1;
        self.space(nested);
        let (min, max) = match byte {
            Some(b'*') => return Ok((0, UNLIMITED)),
            Some(b'+') => return Ok((1, UNLIMITED)),
            Some(b'?') => return Ok((0, 1)),
            _ => {
                let min = self.number(nested)?;
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.space(nested);
                        let has_max = self.peek().is_some_and(|b| b.is_ascii_digit());
                        (min, if has_max { self.number(nested)? } else { UNLIMITED })
                    }
                    _ => (min, min),
                }
            }
        };
        if self.peek() != Some(b'}') {
            return self.expected("\"}\" or \",\"");
        }
        self.at += 1;
        self.space(nested);
        if min > MAX_REPETITIONS {
            return Err(self.error(begin, format_args!("{min} repetitions, at most {MAX_REPETITIONS}")));
        }
        if max < min {
            return Err(self.error(begin, format_args!("{{{min},{max}}}: the maximum is below the minimum")));
        }
        Ok((min, if max > MAX_REPETITIONS { UNLIMITED } else { max }))
    }

    fn number(&mut self, nested: bool) -> Result<u64> {
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
        if length == 0 {
            return self.expected("a number");
        }
        self.at += length;
        self.space(nested);
        // A larger number is beyond every limit.
        Ok(rest[..length].parse().unwrap_or(UNLIMITED - 1))
    }

    /// Replaces the last item, `items[last..]`, by its repetition. `made` is how many rules it made.
    fn repeat(
        &mut self,
        name: &str,
        items: &mut Vec<Item>,
        last: usize,
        made: u64,
        (min, max): (u64, u64),
        at: usize,
    ) -> Result<()> {
        if last == items.len() {
            return Err(self.error(at, "there is no element to repeat before this"));
        }
        let copies = if max != UNLIMITED && max > 0 { max } else { min.max(1) };
        if made.saturating_mul(copies) > MAX_REPETITIONS {
            let problem = format!("a repetition of {made} rules {copies} times, at most {MAX_REPETITIONS} in sum");
            return Err(self.error(at, problem));
        }
        let optional = if max == UNLIMITED { 1 } else { max - min };
        let item = match items[last..] {
            [single] => single,
            ref several => {
                let several = several.to_vec();
                Item::Rule(self.generate(name, several))
            }
        };
        items.truncate(last);
        self.count(min as usize + 3 * optional as usize)?;
        items.extend(std::iter::repeat_n(item, min as usize));
        let mut inner = None;
        for _ in 0..optional {
            let index = self.rules.rules.len() as u32;
            let rest = if max == UNLIMITED { Some(index) } else { inner };
            let body = [Some(item), rest.map(Item::Rule), Some(Item::Or)];
            inner = Some(self.generate(name, body.into_iter().flatten().collect()));
        }
        items.extend(inner.map(Item::Rule));
        Ok(())
    }

    /// The checks over all rules.
    fn finish(mut self, root: &str) -> Result<Rules> {
        if self.rules.rules.is_empty() {
            return Err(self.error(self.at, "there are no rules"));
        }
        let undefined = self.places.iter().position(|places| places.defined.is_none());
        if let Some(index) = undefined {
            let problem = format!("the rule \"{}\" is not defined", shown(&self.rules.rules[index].name));
            return Err(self.error(self.places[index].first_use, problem));
        }
        match self.by_name.get(root) {
            Some(&index) => self.rules.root = index,
            None => {
                let problem = format!("Grammar: there is no rule \"{}\" to begin with", shown(root));
                return Err(Error::InvalidArgument(problem));
            }
        }
        if let Some(rule) = self.rules.left_recursive() {
            let rule = rule as usize;
            let problem = format!("the rule \"{}\" begins with itself", shown(&self.rules.rules[rule].name));
            return Err(self.error(self.places[rule].defined.unwrap_or(0), problem));
        }
        Ok(self.rules)
    }
}
