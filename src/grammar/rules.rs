//! The rules of a grammar, checked: every reference is defined, nothing is left-recursive.
//!
//! A rule is a list of [`Item`]s in which [`Item::Or`] separates alternatives. Repetitions and groups are rules of
//! their own, without a name: [`super::gbnf`] makes them. Left recursion is found by a fixed point over the rules that
//! can be empty, so that what a stack of positions would follow for ever never reaches [`super::code`].

use crate::gguf::shown;
use crate::{Error, Result, Token};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

/// One element of an alternative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    /// Separates alternatives.
    Or,
    /// A code point of a literal; one that no text can hold never matches.
    Char(u32),
    /// A class, by its index in [`Rules::classes`].
    Class(u32),
    /// A rule, by its index.
    Rule(u32),
    /// A whole token, by its index in [`Rules::tokens`].
    Token(u32),
    /// Any whole token but this one.
    NotToken(u32),
}

/// A set of code points as the grammar writes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub(super) negated: bool,
    /// First and last code point of each part; a reversed one holds nothing.
    pub(super) ranges: Vec<(u32, u32)>,
}

/// A token reference.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum TokenName {
    Id(Token),
    /// The text with its angle brackets, which must be one token of the vocabulary.
    Text(String),
}

/// One rule.
#[derive(Debug, Clone, Default)]
pub(super) struct Rule {
    /// Its name, or the name of the rule that it was made for.
    pub(super) name: String,
    pub(super) is_generated: bool,
    pub(super) items: Vec<Item>,
    /// 0, or 1 + the number of the span that its text belongs to.
    pub(super) mark: u32,
}

/// The rules of a grammar; [`Rules::parse`] reads them.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub(super) rules: Vec<Rule>,
    pub(super) root: u32,
    pub(super) classes: Vec<Class>,
    pub(super) tokens: Vec<TokenName>,
    /// The text was empty: nothing is constrained.
    pub(super) allows_all: bool,
}

impl Rules {
    /// Text that the rule with this name matches belongs to span `span` from now on, unless a marked rule inside of it
    /// matches it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is no such rule.
    pub fn mark(&mut self, rule_name: &str, span: u32) -> Result<()> {
        let found = self.rules.iter_mut().find(|rule| !rule.is_generated && rule.name == rule_name);
        match found {
            Some(rule) => {
                rule.mark = span.saturating_add(1);
                Ok(())
            }
            None => Err(Error::InvalidArgument(format!("Grammar: there is no rule \"{}\"", shown(rule_name)))),
        }
    }

    /// [`Rules::mark`] of many rules.
    ///
    /// # Errors
    /// As there.
    pub(super) fn mark_all<'n>(&mut self, marks: impl Iterator<Item = (&'n str, u32)>) -> Result<()> {
        let named = self.rules.iter().enumerate().filter(|(_, rule)| !rule.is_generated);
        let by_name: HashMap<String, usize> = named.map(|(index, rule)| (rule.name.clone(), index)).collect();
        for (name, span) in marks {
            match by_name.get(name) {
                Some(&rule) => self.rules[rule].mark = span.saturating_add(1),
                None => return Err(Error::InvalidArgument(format!("Grammar: there is no rule \"{}\"", shown(name)))),
            }
        }
        Ok(())
    }

    /// Number of rules, those for groups and repetitions included.
    pub fn n_rules(&self) -> usize {
        self.rules.len()
    }

    /// The rules as GBNF, groups and repetitions as rules of their own. The first rule is the root.
    pub fn to_gbnf(&self) -> String {
        self.written(&|token| self.token_text(token))
    }

    /// As [`Rules::to_gbnf`]; `token` writes a token reference, by its index.
    pub(super) fn written(&self, token_text: &dyn Fn(u32) -> String) -> String {
        let names = self.names();
        let mut out = String::new();
        let root = self.root as usize;
        let order = self.rules.get(root).map(|_| root).into_iter().chain((0..self.rules.len()).filter(|&i| i != root));
        for index in order {
            let _ = write!(out, "{} ::=", names[index]); // writing to a string cannot fail
            let (mut in_literal, mut is_empty) = (false, true);
            for item in &self.rules[index].items {
                if in_literal && !matches!(item, Item::Char(_)) {
                    out.push('"');
                    in_literal = false;
                }
                // An alternative of nothing is written out: a line may not end with `|`.
                if is_empty && *item == Item::Or {
                    out.push_str(" \"\"");
                }
                is_empty = *item == Item::Or;
                match *item {
                    Item::Or => out.push_str(" |"),
                    Item::Char(c) => {
                        if !in_literal {
                            out.push_str(" \"");
                            in_literal = true;
                        }
                        write_char(&mut out, c, "\"\\");
                    }
                    Item::Class(class) => self.write_class(&mut out, class),
                    Item::Rule(rule) => out.extend([" ", &names[rule as usize]]),
                    Item::Token(token) => out.extend([" ", &token_text(token)]),
                    Item::NotToken(token) => out.extend([" !", &token_text(token)]),
                }
            }
            let end = match (in_literal, is_empty) {
                (true, _) => "\"\n",
                (_, true) => " \"\"\n",
                _ => "\n",
            };
            out.push_str(end);
        }
        out
    }

    /// A name for every rule; those of generated rules are made up.
    fn names(&self) -> Vec<String> {
        let mut used: HashSet<String> =
            self.rules.iter().filter(|rule| !rule.is_generated).map(|rule| rule.name.clone()).collect();
        let mut count: HashMap<&str, usize> = HashMap::new();
        let mut name = |rule: &'_ Rule, count: &mut usize| {
            loop {
                *count += 1;
                let name = format!("{}-{count}", rule.name);
                if used.insert(name.clone()) {
                    return name;
                }
            }
        };
        let mut names = Vec::new();
        for rule in &self.rules {
            let own =
                if rule.is_generated { name(rule, count.entry(&rule.name).or_default()) } else { rule.name.clone() };
            names.push(own);
        }
        names
    }

    fn write_class(&self, out: &mut String, class: u32) {
        let class = &self.classes[class as usize];
        if class.negated && class.ranges.is_empty() {
            out.push_str(" .");
            return;
        }
        out.push_str(if class.negated { " [^" } else { " [" });
        for &(first, last) in &class.ranges {
            write_char(out, first, "\\[]-^");
            if first != last {
                out.push('-');
                write_char(out, last, "\\[]-^");
            }
        }
        out.push(']');
    }

    /// A token reference as the grammar writes it.
    pub(super) fn token_text(&self, token: u32) -> String {
        match &self.tokens[token as usize] {
            TokenName::Id(id) => format!("<[{id}]>"),
            TokenName::Text(text) => text.clone(),
        }
    }

    /// A rule that begins with itself, if there is one.
    pub(super) fn left_recursive(&self) -> Option<u32> {
        let nullable = self.nullable();
        // What each rule may begin with: its edges are `edges[starts[rule]..starts[rule + 1]]`.
        let (mut edges, mut starts) = (Vec::new(), vec![0]);
        for rule in &self.rules {
            let mut at_edge = true;
            for item in &rule.items {
                match *item {
                    Item::Or => at_edge = true,
                    Item::Rule(next) if at_edge => {
                        edges.push(next);
                        at_edge = nullable[next as usize];
                    }
                    _ => at_edge = false,
                }
            }
            starts.push(edges.len());
        }
        // 0 not seen, 1 on the path, 2 done.
        let mut seen = vec![0u8; self.rules.len()];
        let mut path: Vec<(usize, usize)> = Vec::new();
        for first in 0..self.rules.len() {
            if seen[first] != 0 {
                continue;
            }
            path.push((first, starts[first]));
            seen[first] = 1;
            while let Some((rule, edge)) = path.last_mut() {
                if *edge == starts[*rule + 1] {
                    seen[*rule] = 2;
                    path.pop();
                    continue;
                }
                let next = edges[*edge] as usize;
                *edge += 1;
                match seen[next] {
                    0 => {
                        seen[next] = 1;
                        path.push((next, starts[next]));
                    }
                    1 => return Some(next as u32),
                    _ => {}
                }
            }
        }
        None
    }

    /// Which rules match the empty text.
    fn nullable(&self) -> Vec<bool> {
        let mut nullable = vec![false; self.rules.len()];
        // Alternatives of nothing but rules: the rule, and how many of the references are not known to be empty.
        let mut alternatives: Vec<(usize, usize)> = Vec::new();
        let mut uses: Vec<Vec<u32>> = vec![Vec::new(); self.rules.len()];
        let mut found = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            for alternative in rule.items.split(|item| *item == Item::Or) {
                if alternative.iter().any(|item| !matches!(item, Item::Rule(_))) {
                    continue;
                }
                for item in alternative {
                    if let Item::Rule(used) = *item {
                        uses[used as usize].push(alternatives.len() as u32);
                    }
                }
                alternatives.push((index, alternative.len()));
                if alternative.is_empty() && !nullable[index] {
                    nullable[index] = true;
                    found.push(index);
                }
            }
        }
        while let Some(rule) = found.pop() {
            for &alternative in &uses[rule] {
                let (of, missing) = &mut alternatives[alternative as usize];
                *missing -= 1;
                if *missing == 0 && !nullable[*of] {
                    nullable[*of] = true;
                    found.push(*of);
                }
            }
        }
        nullable
    }
}

/// Writes a code point as a literal or class holds it.
fn write_char(out: &mut String, c: u32, escaped: &str) {
    // Writing to a string cannot fail.
    let _ = match char::from_u32(c) {
        Some('\n') => write!(out, "\\n"),
        Some('\r') => write!(out, "\\r"),
        Some('\t') => write!(out, "\\t"),
        Some('^') if escaped.contains('^') => write!(out, "\\x5E"),
        Some(c) if escaped.contains(c) => write!(out, "\\{c}"),
        Some(c) if !c.is_control() => write!(out, "{c}"),
        _ if c < 0x100 => write!(out, "\\x{c:02X}"),
        _ => write!(out, "\\U{c:08X}"),
    };
}
