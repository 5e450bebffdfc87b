//! Regular expressions as GBNF: what a pattern of a schema or of a host may match.
//!
//! The syntax is ECMAScript's ([`parse`]). A pattern matches anywhere in a text unless `^` and `$` say otherwise, so
//! that what may be before and after it is added. Within JSON the pattern is about the text that the string stands for:
//! quotes, backslashes and control characters are matched as they are escaped.

mod parse;
mod set;

use super::draft::{Draft, Expr};
use crate::gguf::shown;
use crate::{Error, Result};
use parse::{Node, unsupported};
pub(super) use set::Set;

/// The most ways in which the anchors of one pattern can be combined.
const MAX_WAYS: usize = 1000;

/// How the characters of a text are spelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spelling {
    /// As they are.
    Raw,
    /// As in a JSON string, between its quotes.
    Json,
}

/// What may be where a pattern is not anchored: any character, as it is spelled.
pub(super) type AnyChar<'a> = &'a mut dyn FnMut(&mut Draft) -> Result<Expr>;

/// The GBNF of a regular expression: its `root` matches the texts in which the pattern is found; with `is_whole` those
/// that it matches from beginning to end.
///
/// # Errors
/// [`Error::InvalidArgument`] for a malformed pattern or one that is too large, [`Error::Unsupported`] for what a
/// grammar cannot do (look-around, back-references, word boundaries); both with the character's position.
pub fn to_gbnf(pattern: &str, is_whole: bool) -> Result<String> {
    let mut draft = Draft::default();
    let root = draft.declare("root")?;
    let mut pattern = Pattern::parse(pattern)?;
    if is_whole {
        pattern.ways.iter_mut().for_each(|way| (way.start, way.end) = (true, true));
    }
    let body = pattern.expr(&mut draft, Spelling::Raw, &mut |_| Ok(Expr::class(".")))?;
    draft.define(root, body);
    let matches_nothing = || Error::InvalidArgument("Regular expression: it matches no text at all".into());
    draft.print(root)?.ok_or_else(matches_nothing)
}

/// One way to match: anchored or not at its ends.
#[derive(Clone, Debug)]
struct Way {
    start: bool,
    end: bool,
    body: Vec<Node>,
}

/// A pattern that was read, its anchors at the ends of its ways.
pub(super) struct Pattern {
    ways: Vec<Way>,
}

impl Pattern {
    pub(super) fn parse(pattern: &str) -> Result<Pattern> {
        let node = parse::parse(pattern)?;
        let mut ways = Vec::new();
        spread(pattern, node, &mut ways)?;
        for way in &ways {
            if let Some(at) = way.body.iter().find_map(anchor) {
                return Err(unsupported(pattern, at, "an anchor inside of the pattern"));
            }
        }
        Ok(Pattern { ways })
    }

    /// Whether every match is the whole text.
    pub(super) fn is_anchored(&self) -> bool {
        self.ways.iter().all(|way| way.start && way.end)
    }

    /// The pattern with the bounds of a length beside it. `None` where the two cannot be joined.
    pub(super) fn within(mut self, min: u64, max: Option<u64>) -> Option<Pattern> {
        let mut kept = Vec::new();
        for way in self.ways {
            kept.extend(way.within(min, max)?);
        }
        self.ways = kept;
        Some(self)
    }

    pub(super) fn expr(&self, draft: &mut Draft, spelling: Spelling, any: AnyChar) -> Result<Expr> {
        let mut list = Vec::new();
        for way in &self.ways {
            let mut parts = Vec::new();
            if !way.start {
                parts.push(any(draft)?.any_times());
            }
            for node in &way.body {
                parts.push(expr(draft, node, spelling)?);
            }
            if !way.end {
                parts.push(any(draft)?.any_times());
            }
            list.push(Expr::Seq(joined(parts)));
        }
        Ok(if list.len() == 1 { list.remove(0) } else { Expr::Alt(list) })
    }
}

impl Way {
    /// The way with bounds of the length; no way where none is long or short enough.
    fn within(mut self, min: u64, max: Option<u64>) -> Option<Option<Way>> {
        let any = || Node::Repeat(Box::new(Node::Set(Set::default().negated())), 0, None);
        let (mut shortest, mut longest) = (0u64, Some(0u64));
        for node in &self.body {
            let (low, high) = length(node);
            shortest = shortest.saturating_add(low);
            longest = longest.zip(high).map(|(a, b)| a.saturating_add(b));
        }
        if !(self.start && self.end) {
            longest = None;
        }
        if shortest >= min && max.is_none_or(|max| longest.is_some_and(|longest| longest <= max)) {
            return Some(Some(self));
        }
        if longest.is_some_and(|longest| longest < min) || max.is_some_and(|max| shortest > max) {
            return Some(None);
        }
        if !self.start {
            self.body.insert(0, any());
        }
        if !self.end {
            self.body.push(any());
        }
        (self.start, self.end) = (true, true);
        self.body = self.body.into_iter().flat_map(flattened).collect();
        // The bounds go to the one part whose length is not fixed, if that is a repetition of single characters.
        let varies = |node: &Node| length(node).1 != Some(length(node).0);
        let mut varying = (0..self.body.len()).filter(|&i| varies(&self.body[i]));
        let (Some(index), None) = (varying.next(), varying.next()) else { return None };
        let fixed: u64 = self.body.iter().filter(|node| !varies(node)).map(|node| length(node).0).sum();
        let Node::Repeat(item, low, high) = &mut self.body[index] else { return None };
        if length(item) != (1, Some(1)) {
            return None;
        }
        *low = (*low).max(min.saturating_sub(fixed));
        *high = match (*high, max.map(|max| max - fixed)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let possible = high.is_none_or(|high| *low <= high);
        Some(possible.then_some(self))
    }
}

/// The parts of a sequence, groups that only group opened.
fn flattened(node: Node) -> Vec<Node> {
    match node {
        Node::Seq(list) => list.into_iter().flat_map(flattened).collect(),
        other => vec![other],
    }
}

/// The fewest and the most characters of a match.
fn length(node: &Node) -> (u64, Option<u64>) {
    match node {
        Node::Start(_) | Node::End(_) => (0, Some(0)),
        Node::Set(_) => (1, Some(1)),
        Node::Seq(list) => list.iter().map(length).fold((0, Some(0)), |(low, high), (l, h)| {
            (low.saturating_add(l), high.zip(h).map(|(a, b): (u64, u64)| a.saturating_add(b)))
        }),
        Node::Alt(list) => {
            let low = list.iter().map(|node| length(node).0).min().unwrap_or(0);
            let high = list.iter().map(|node| length(node).1).try_fold(0, |most, high| high.map(|h| most.max(h)));
            (low, high)
        }
        Node::Repeat(item, min, max) => {
            let (low, high) = length(item);
            let most = match (high, max) {
                (Some(0), _) => Some(0),
                (Some(high), Some(max)) => Some(high.saturating_mul(*max)),
                _ => None,
            };
            (low.saturating_mul(*min), most)
        }
    }
}

/// Where an anchor is, if there is one.
fn anchor(node: &Node) -> Option<usize> {
    match node {
        Node::Start(at) | Node::End(at) => Some(*at),
        Node::Set(_) => None,
        Node::Seq(list) | Node::Alt(list) => list.iter().find_map(anchor),
        Node::Repeat(item, ..) => anchor(item),
    }
}

/// The ways of a node: alternatives that hold anchors are taken apart, and anchors at both ends become flags.
fn spread(pattern: &str, node: Node, ways: &mut Vec<Way>) -> Result<()> {
    let too_many = || Error::InvalidArgument(format!("Regular expression \"{}\": too many anchors", shown(pattern)));
    match node {
        Node::Alt(list) => {
            for node in list {
                spread(pattern, node, ways)?;
            }
        }
        Node::Seq(list) => {
            let mut whole = vec![Way { start: false, end: false, body: Vec::new() }];
            for (index, node) in list.into_iter().enumerate() {
                let at = anchor(&node);
                let Some(at) = at else {
                    for way in &mut whole {
                        if way.end && length(&node) != (0, Some(0)) {
                            return Err(unsupported(pattern, index, "something after the end"));
                        }
                        way.body.push(node.clone());
                    }
                    continue;
                };
                let mut parts = Vec::new();
                spread(pattern, node, &mut parts)?;
                let mut longer = Vec::new();
                for way in &whole {
                    for part in &parts {
                        if part.start && !way.body.is_empty() || way.end && !part.body.is_empty() {
                            return Err(unsupported(pattern, at, "an anchor inside of the pattern"));
                        }
                        let body = [way.body.as_slice(), part.body.as_slice()].concat();
                        longer.push(Way { start: way.start || part.start, end: way.end || part.end, body });
                    }
                }
                if longer.len() > MAX_WAYS {
                    return Err(too_many());
                }
                whole = longer;
            }
            ways.extend(whole);
        }
        Node::Start(_) => ways.push(Way { start: true, end: false, body: Vec::new() }),
        Node::End(_) => ways.push(Way { start: false, end: true, body: Vec::new() }),
        other => ways.push(Way { start: false, end: false, body: vec![other] }),
    }
    match ways.len() > MAX_WAYS {
        true => Err(too_many()),
        false => Ok(()),
    }
}

fn expr(draft: &mut Draft, node: &Node, spelling: Spelling) -> Result<Expr> {
    Ok(match node {
        Node::Start(_) | Node::End(_) => Expr::empty(),
        Node::Set(set) => spelled(set, spelling),
        Node::Seq(list) => {
            let parts = list.iter().map(|node| expr(draft, node, spelling)).collect::<Result<Vec<_>>>()?;
            let mut parts = joined(parts);
            if parts.len() == 1 { parts.remove(0) } else { Expr::Seq(parts) }
        }
        Node::Alt(list) => Expr::Alt(list.iter().map(|node| expr(draft, node, spelling)).collect::<Result<Vec<_>>>()?),
        Node::Repeat(item, min, max) => {
            let item = expr(draft, item, spelling)?;
            draft.repeat(item, *min, *max)?
        }
    })
}

/// Neighbouring texts as one.
fn joined(parts: Vec<Expr>) -> Vec<Expr> {
    let mut out: Vec<Expr> = Vec::new();
    for part in parts {
        match (out.last_mut(), part) {
            (Some(Expr::Text(last)), Expr::Text(text)) => last.push_str(&text),
            (_, part) => out.push(part),
        }
    }
    out
}

/// Characters that have an escape of one letter in JSON.
const SHORT: [(char, &str); 7] =
    [('"', "\\\""), ('\\', "\\\\"), ('\x08', "\\b"), ('\x0c', "\\f"), ('\n', "\\n"), ('\r', "\\r"), ('\t', "\\t")];

/// One character of a set, as it is spelled. In JSON, control characters without a short escape are only offered where
/// the set has nothing else.
pub(super) fn spelled(set: &Set, spelling: Spelling) -> Expr {
    if set.is_empty() {
        return Expr::never();
    }
    if spelling == Spelling::Raw {
        return one_of(set);
    }
    let special = Set::of(&[(0, 0x1f), (0x22, 0x22), (0x5c, 0x5c), (0x7f, 0x7f)]);
    let plain = set.without(&special);
    let mut list = Vec::new();
    if !plain.is_empty() {
        list.push(one_of(&plain));
    }
    list.extend(SHORT.iter().filter(|(c, _)| set.has(*c)).map(|(_, escape)| Expr::text(*escape)));
    if list.is_empty() {
        let codes = (0..=0x7fu32).filter_map(char::from_u32).filter(|&c| set.has(c));
        list.extend(codes.map(|c| Expr::text(format!("\\u{:04x}", c as u32))));
    }
    if list.len() == 1 { list.remove(0) } else { Expr::Alt(list) }
}

fn one_of(set: &Set) -> Expr {
    match set.single() {
        Some(c) => Expr::text(c),
        None => Expr::Class(set.class()),
    }
}
