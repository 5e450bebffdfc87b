//! Finds spans in the grammar of a host that knows none.
//!
//! A grammar is understood when its root is a line of literals and names (`"{\"action\":" enum0 ",\"parameters\":"
//! jsonvalue "}"`), alternatives of such lines that have a rule each (elizaOS's strict planner, one rule for each
//! action), or alternatives of literals. Each item of a line gets a rule of its own around it, which is marked; the
//! items of the root are the spans 0, 1, … in their order. Choices inside of items, wherever they are, are spans of
//! their own: a rule, or a group in parentheses, of nothing but literals.
//!
//! The rewritten grammar matches exactly the same texts: items are replaced by names of rules that hold the item, and a
//! literal that begins all alternatives is cut in two. What is not understood is left as it is.

use super::lex::{self, Lexeme, Word};
use super::lower::Lowered;
use super::payload::MAX_SPANS;
use crate::Result;
use crate::grammar::span_plan::{SpanKind, SpanPlan, SpanSampling};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

/// The most rules that are marked in a grammar.
const MAX_MARKS: usize = 1 << 16;

/// The grammar with its spans; `None` where it has no shape that is known. `choices` is how choices, numbers and
/// booleans are sampled.
///
/// # Errors
/// Those of [`SpanPlan`].
pub(super) fn recognise(gbnf: &str, root: &str, choices: Option<SpanSampling>) -> Result<Option<Lowered>> {
    let Some(words) = lex::words(gbnf) else { return Ok(None) };
    let Some(rules) = lex::rules(&words) else { return Ok(None) };
    let Some(body) = rules.get(root) else { return Ok(None) };
    let mut text = Rewriting {
        gbnf,
        words: &words,
        rules: &rules,
        choices,
        prefix: free_prefix(&rules),
        edits: BTreeMap::new(),
        added: String::new(),
        marks: Vec::new(),
        plan: SpanPlan::default(),
        shared: HashMap::new(),
    };
    let done = match text.shape(body) {
        Some(Shape::Line) => text.line(body.clone(), 0, None)?,
        Some(Shape::Union(branches)) => text.union(&branches)?,
        Some(Shape::Values) => {
            let span = text.span(SpanKind::Choice, None)?;
            text.marks.push((root.into(), span));
            true
        }
        None => false,
    };
    if !done {
        return Ok(None);
    }
    let items = text.plan.spans().len();
    text.choices_inside(root)?;
    Ok(text.finish(root, items))
}

/// A beginning that no rule's name has.
fn free_prefix(rules: &HashMap<&str, Range<usize>>) -> String {
    let leading = |name: &&str| name.len() - name.trim_start_matches('x').len();
    let most = rules.keys().map(leading).max().unwrap_or(0);
    format!("{}span-", "x".repeat(most + 1))
}

/// The shape of a root.
enum Shape<'a> {
    /// One alternative of literals and names.
    Line,
    /// Alternatives of one name each, the rules of lines.
    Union(Vec<&'a str>),
    /// Alternatives of literals.
    Values,
}

struct Rewriting<'a> {
    gbnf: &'a str,
    words: &'a [Lexeme<'a>],
    rules: &'a HashMap<&'a str, Range<usize>>,
    choices: Option<SpanSampling>,
    prefix: String,
    /// What is replaced, by its place in the text.
    edits: BTreeMap<usize, (usize, String)>,
    added: String,
    marks: Vec<(String, u32)>,
    plan: SpanPlan,
    /// The numbers of the spans of the branches of a union, by place in the line, kind and key.
    shared: HashMap<(usize, SpanKind, Option<String>), u32>,
}

impl<'a> Rewriting<'a> {
    fn shape(&self, body: &Range<usize>) -> Option<Shape<'a>> {
        let words = &self.words[body.clone()];
        if self.is_line(body) {
            return Some(Shape::Line);
        }
        let alternatives: Vec<_> = words.split(|one| one.word == Word::Mark("|")).collect();
        let single = |words: &&[Lexeme<'a>]| if let [one] = words { Some(one.word) } else { None };
        let singles: Vec<Word<'a>> = alternatives.iter().map(single).collect::<Option<_>>()?;
        if singles.iter().all(|word| matches!(word, Word::Literal(_))) {
            return Some(Shape::Values);
        }
        let names: Vec<&str> = singles
            .iter()
            .map(|word| if let Word::Name(name) = *word { Some(name) } else { None })
            .collect::<Option<_>>()?;
        let different: HashSet<&str> = names.iter().copied().collect();
        let mut uses = self.words.iter().filter(|one| matches!(one.word, Word::Name(name) if different.contains(name)));
        // Each once where it is defined, once here.
        let once = different.len() == names.len() && uses.by_ref().count() == 2 * names.len();
        (once && names.iter().all(|name| self.rules.get(name).is_some_and(|body| self.is_line(body))))
            .then_some(Shape::Union(names))
    }

    /// Whether a rule is one alternative of literals and names.
    fn is_line(&self, body: &Range<usize>) -> bool {
        !body.is_empty()
            && self.words[body.clone()].iter().all(|one| matches!(one.word, Word::Literal(_) | Word::Name(_)))
    }

    /// Whether there is no room for so many more.
    fn is_full(&self, more: usize) -> bool {
        self.plan.spans().len() + more > MAX_SPANS || self.marks.len() + more > MAX_MARKS
    }

    /// Appends a span. In a branch, `place` of the line, it is the same span as in other branches.
    fn span(&mut self, kind: SpanKind, key: Option<String>) -> Result<u32> {
        let decides = matches!(kind, SpanKind::Choice | SpanKind::Number | SpanKind::Boolean);
        self.plan.push(kind, key, self.choices.filter(|_| decides))
    }

    fn span_at(&mut self, place: usize, kind: SpanKind, key: Option<String>) -> Result<u32> {
        let same = (place, kind, key);
        if let Some(&span) = self.shared.get(&same) {
            return Ok(span);
        }
        let span = self.span(kind, same.2.clone())?;
        self.shared.insert(same, span);
        Ok(span)
    }

    /// Marks the items of a line. The number of the first item's place is `place`; `before` is the text before it.
    fn line(&mut self, body: Range<usize>, place: usize, before: Option<String>) -> Result<bool> {
        if self.is_full(body.len()) {
            return Ok(false);
        }
        let words = self.words;
        let mut before = before;
        for (index, item) in words[body].iter().enumerate() {
            let (kind, key) = match item.word {
                Word::Literal(literal) => {
                    let text = lex::unquoted(literal);
                    (SpanKind::Literal, before.replace(text.unwrap_or_default()).and(None))
                }
                Word::Name(name) => (self.kind(name), before.take().as_deref().and_then(key_at_end)),
                _ => return Ok(false),
            };
            let span = self.span_at(place + index, kind, key)?;
            self.wrap(item.at, item.end, span);
        }
        Ok(true)
    }

    /// Puts a rule around the text from `at` to `end`, whose span is `span`.
    fn wrap(&mut self, at: usize, end: usize, span: u32) {
        let name = format!("{}{}", self.prefix, self.marks.len());
        let _ = writeln!(self.added, "{name} ::= {}", &self.gbnf[at..end]); // writing to a string cannot fail
        self.edits.insert(at, (end, name.clone()));
        self.marks.push((name, span));
    }

    /// Marks the lines of alternatives. What all of them begin with, up to the last colon, is a literal; the rest of
    /// the first item is a choice.
    fn union(&mut self, branches: &[&'a str]) -> Result<bool> {
        let bodies: Vec<Range<usize>> = branches.iter().filter_map(|name| self.rules.get(name).cloned()).collect();
        let first = |body: &Range<usize>| match self.words[body.start].word {
            Word::Literal(literal) => lex::unquoted(literal),
            _ => None,
        };
        let Some(firsts) = bodies.iter().map(first).collect::<Option<Vec<String>>>() else { return Ok(false) };
        let shared = common_beginning(&firsts);
        let head = &shared[..shared.rfind(':').map_or(0, |at| at + 1)];
        let key = key_at_end(head);
        for (body, text) in bodies.iter().zip(&firsts) {
            if self.is_full(body.len()) {
                return Ok(false);
            }
            let item = self.words[body.start];
            let mut names = String::new();
            for (place, part, kind) in [(0, head, SpanKind::Literal), (1, &text[head.len()..], SpanKind::Choice)] {
                let key = key.clone().filter(|_| kind == SpanKind::Choice);
                let span = self.span_at(place, kind, key)?;
                let name = format!("{}{}", self.prefix, self.marks.len());
                let _ = write!(self.added, "{name} ::= "); // writing to a string cannot fail
                lex::quote(part, &mut self.added);
                self.added.push('\n');
                let _ = write!(names, "{}{name}", if place == 0 { "" } else { " " });
                self.marks.push((name, span));
            }
            self.edits.insert(item.at, (item.end, names));
            if !self.line(body.start + 1..body.end, 2, Some(text.clone()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What a rule holds, as far as its text says.
    fn kind(&self, name: &str) -> SpanKind {
        let Some(body) = self.rules.get(name) else { return SpanKind::Json };
        let words: Vec<&str> = self.words[body.clone()].iter().map(|one| &self.gbnf[one.at..one.end]).collect();
        let literal = |text: &&str| text.starts_with('"');
        match words.as_slice() {
            ["\"true\"", "|", "\"false\""] | ["\"false\"", "|", "\"true\""] => SpanKind::Boolean,
            [one] if literal(one) => SpanKind::Literal,
            // A rule that only names another holds what that holds.
            [one] if *one != name && self.rules.contains_key(one) && self.depth_of(one) < 16 => self.kind(one),
            all if all.len() > 1 && is_values(&self.words[body.clone()]) => SpanKind::Choice,
            ["\"-\"", "?", "(", ..] => SpanKind::Number,
            ["\"\\\"\"", .., "\"\\\"\""] => SpanKind::String,
            _ => SpanKind::Json,
        }
    }

    /// How many names follow one another from a rule that only names another, at most 16.
    fn depth_of(&self, name: &str) -> usize {
        let (mut at, mut depth) = (name, 0);
        while let Some(body) = self.rules.get(at)
            && let [Lexeme { word: Word::Name(next), .. }] = self.words[body.clone()]
            && depth < 16
        {
            (at, depth) = (next, depth + 1);
        }
        depth
    }

    /// Marks the choices inside of items, but for those that are items themselves.
    fn choices_inside(&mut self, root: &str) -> Result<()> {
        let (words, rules) = (self.words, self.rules);
        let mut bodies: Vec<_> = rules.iter().filter(|(name, _)| **name != root).collect();
        bodies.sort_by_key(|(_, body)| body.start);
        let in_root = rules.get(root).cloned().unwrap_or(0..0);
        let items: HashSet<Word<'_>> = words[in_root].iter().map(|one| one.word).collect();
        // Before the only use of each name.
        let mut before: HashMap<&str, Option<Word<'_>>> = HashMap::new();
        for (index, one) in words.iter().enumerate() {
            let Word::Name(name) = one.word else { continue };
            if words.get(index + 1).is_none_or(|next| next.word != Word::Is) {
                let earlier = index.checked_sub(1).map(|index| words[index].word);
                before.entry(name).and_modify(|known| *known = None).or_insert(earlier);
            }
        }
        for (name, body) in bodies {
            if self.is_full(1) {
                return Ok(());
            }
            let inner = &words[body.clone()];
            if is_values(inner) {
                if !items.contains(&Word::Name(name)) {
                    let kind = self.kind(name);
                    let key = before.get(name).copied().flatten().and_then(key_of);
                    let span = self.span(kind, key)?;
                    self.marks.push(((*name).into(), span));
                }
                continue;
            }
            let mut at = 0;
            while let Some(length) = inner.get(at..).and_then(group_of_values) {
                if length == 0 {
                    at += 1;
                    continue;
                }
                let key = at.checked_sub(1).and_then(|at| key_of(inner.get(at)?.word));
                let span = self.span(SpanKind::Choice, key)?;
                self.wrap(inner[at].at, inner[at + length - 1].end, span);
                at += length;
            }
        }
        Ok(())
    }

    fn finish(self, root: &str, items: usize) -> Option<Lowered> {
        let mut gbnf = String::with_capacity(self.gbnf.len() + self.added.len());
        let mut at = 0;
        for (start, (end, name)) in &self.edits {
            gbnf.push_str(self.gbnf.get(at..*start)?);
            gbnf.push_str(name);
            at = *end;
        }
        gbnf.push_str(self.gbnf.get(at..)?);
        gbnf.push('\n');
        gbnf.push_str(&self.added);
        Some(Lowered { gbnf, root: root.into(), marks: self.marks, plan: self.plan, items, after: Vec::new() })
    }
}

/// Whether a rule is two or more literals, one of which is to be chosen.
fn is_values(words: &[Lexeme<'_>]) -> bool {
    words.len() >= 3
        && words.len() % 2 == 1
        && words.iter().enumerate().all(|(index, one)| match one.word {
            Word::Literal(_) => index % 2 == 0,
            Word::Mark("|") => index % 2 == 1,
            _ => false,
        })
}

/// The number of words of the group of literals that begins here; 0 where none does, `None` at the end.
fn group_of_values(words: &[Lexeme<'_>]) -> Option<usize> {
    if words.first()?.word != Word::Mark("(") {
        return Some(0);
    }
    let close = words.iter().position(|one| one.word == Word::Mark(")")).unwrap_or(0);
    Some(if close > 0 && is_values(&words[1..close]) { close + 1 } else { 0 })
}

/// The JSON key that a text ends with: `{"action":`.
fn key_at_end(text: &str) -> Option<String> {
    let text = text.trim_end().strip_suffix(':')?.trim_end().strip_suffix('"')?;
    let start = text.rfind('"')?;
    Some(text[start + 1..].into())
}

/// The key that a literal ends with.
fn key_of(word: Word<'_>) -> Option<String> {
    match word {
        Word::Literal(literal) => key_at_end(&lex::unquoted(literal)?),
        _ => None,
    }
}

/// What all texts begin with.
fn common_beginning(texts: &[String]) -> &str {
    let Some((first, others)) = texts.split_first() else { return "" };
    let mut length = first.len();
    for other in others {
        let same = first.bytes().zip(other.bytes()).take(length).take_while(|(a, b)| a == b).count();
        length = length.min(same);
    }
    while !first.is_char_boundary(length) {
        length -= 1;
    }
    &first[..length]
}
