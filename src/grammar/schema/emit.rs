//! Rules from shapes.

use super::options::{Keywords, Options};
use super::places::refused;
use super::shape::{All, Array, Part, Reading, Shape, Text};
use super::{disjoint, exact, gather, llama};
use crate::grammar::draft::{Draft, Expr, RuleId};
use crate::grammar::json::{Json, quoted};
use crate::grammar::regex::{Pattern, Spelling};
use crate::{Error, Result};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};

/// The most combinations of schemas that hold together.
const MAX_COMBINATIONS: usize = 50_000;
/// The most schemas in all of those combinations.
const MAX_PARTS: usize = 200_000;
/// The most values of one `enum`.
const MAX_VALUES: usize = 100_000;
/// More values of one `enum` share the beginnings that they have in common.
const MANY_VALUES: usize = 16;

/// A conversion under way.
pub(super) struct Emitter<'j> {
    pub(super) document: &'j Json,
    pub(super) options: Options,
    pub(super) draft: Draft,
    built_in: HashMap<&'static str, RuleId>,
    known: HashMap<Vec<(usize, u8)>, Expr>,
    queue: VecDeque<(RuleId, Reading<'j>, String)>,
    parts: usize,
    /// How many schemas may still be looked into to tell alternatives apart.
    effort: Cell<u32>,
}

/// Converts a document.
pub(super) fn convert(document: &Json, options: Options) -> Result<String> {
    let mut draft = Draft::default();
    let root = draft.declare("root")?;
    let (built_in, known, queue) = Default::default();
    let mut emitter =
        Emitter { document, options, draft, built_in, known, queue, parts: 0, effort: Cell::new(disjoint::EFFORT) };
    let start = emitter.gathered(&Part::new(document, ""))?;
    let body = emitter.child(&start)?;
    emitter.draft.define(root, body);
    while let Some((rule, reading, hint)) = emitter.queue.pop_front() {
        let body = emitter.reading(reading, &hint)?;
        emitter.draft.define(rule, body);
    }
    let printed = emitter.draft.print(root)?;
    printed.ok_or_else(|| refused("", "no value can match this schema"))
}

impl<'j> Emitter<'j> {
    pub(super) fn is_llama(&self) -> bool {
        self.options.keywords == Keywords::LlamaCpp
    }

    /// A schema with all that holds beside it.
    pub(super) fn gathered(&self, part: &Part<'j>) -> Result<All<'j>> {
        match self.is_llama() {
            true => Ok(Some(vec![part.clone()])),
            false => gather::gathered(self.document, part),
        }
    }

    fn read(&self, parts: &[Part<'j>]) -> Result<Reading<'j>> {
        match self.is_llama() {
            true => llama::read(self.document, parts),
            false => exact::read(self.document, self.options.keywords, parts, &self.effort),
        }
    }

    /// The white space that may be around the marks of JSON.
    pub(super) fn space(&mut self) -> Result<Expr> {
        if self.options.compact {
            return Ok(Expr::empty());
        }
        let blank = |class: &str, min, max| Expr::Repeat(Box::new(Expr::class(class)), min, Some(max));
        let lines = Expr::Repeat(Box::new(Expr::text("\n")), 1, Some(2));
        let indented = Expr::Seq(vec![lines, blank("[ \\t]", 0, 20)]);
        self.built_in("space", move |_| Ok(Expr::Alt(vec![Expr::empty(), Expr::text(" "), indented])))
    }

    fn built_in(&mut self, name: &'static str, make: impl FnOnce(&mut Self) -> Result<Expr>) -> Result<Expr> {
        if let Some(&rule) = self.built_in.get(name) {
            return Ok(Expr::Rule(rule));
        }
        let rule = self.draft.declare(name)?;
        self.built_in.insert(name, rule);
        let body = make(self)?;
        self.draft.define(rule, body);
        Ok(Expr::Rule(rule))
    }

    /// One character of a string. A surrogate pair is one character: halves of one are not offered but by llama.cpp.
    pub(super) fn char(&mut self) -> Result<Expr> {
        let hex = |count| Expr::Repeat(Box::new(Expr::class("[0-9a-fA-F]")), count, Some(count));
        let code = match self.is_llama() {
            true => hex(4),
            false => Expr::Alt(vec![
                Expr::Seq(vec![Expr::class("[0-9a-cA-CefEF]"), hex(3)]),
                Expr::Seq(vec![Expr::class("[dD]"), Expr::class("[0-7]"), hex(2)]),
                Expr::Seq(vec![
                    Expr::class("[dD]"),
                    Expr::class("[89abAB]"),
                    hex(2),
                    Expr::text("\\u"),
                    Expr::class("[dD]"),
                    Expr::class("[c-fC-F]"),
                    hex(2),
                ]),
            ]),
        };
        let escape = Expr::Alt(vec![Expr::class("[\"\\\\bfnrt]"), Expr::Seq(vec![Expr::text("u"), code])]);
        let plain = Expr::class("[^\"\\\\\\x7F\\x00-\\x1F]");
        self.built_in("char", |_| Ok(Expr::Alt(vec![plain, Expr::Seq(vec![Expr::text("\\"), escape])])))
    }

    pub(super) fn string(&mut self) -> Result<Expr> {
        self.built_in("string", |this| {
            let chars = this.char()?.any_times();
            Ok(Expr::Seq(vec![Expr::text("\""), chars, Expr::text("\"")]))
        })
    }

    fn boolean(&mut self) -> Result<Expr> {
        self.built_in("boolean", |_| Ok(Expr::Alt(vec![Expr::text("true"), Expr::text("false")])))
    }

    fn integral(&mut self) -> Result<Expr> {
        let many = Expr::Repeat(Box::new(Expr::class("[0-9]")), 0, Some(15));
        self.built_in("integral-part", |_| {
            Ok(Expr::Alt(vec![Expr::text("0"), Expr::Seq(vec![Expr::class("[1-9]"), many])]))
        })
    }

    fn integer(&mut self) -> Result<Expr> {
        self.built_in("integer", |this| Ok(Expr::Seq(vec![Expr::text("-").optional(), this.integral()?])))
    }

    fn number(&mut self) -> Result<Expr> {
        let digits = |min, max| Expr::Repeat(Box::new(Expr::class("[0-9]")), min, Some(max));
        self.built_in("number", |this| {
            // An exponent of three digits would be no number that a double holds.
            let power = match this.is_llama() {
                true => this.integral()?,
                false => digits(1, 2),
            };
            let exponent = Expr::Seq(vec![Expr::class("[eE]"), Expr::class("[-+]").optional(), power]);
            let part = Expr::Seq(vec![Expr::text("."), digits(1, 16)]);
            let integral = this.integral()?;
            Ok(Expr::Seq(vec![Expr::text("-").optional(), integral, part.optional(), exponent.optional()]))
        })
    }

    fn object(&mut self) -> Result<Expr> {
        self.built_in("object", |this| {
            let (space, string, value) = (this.space()?, this.string()?, this.value()?);
            let member = Expr::Seq(vec![string, space.clone(), Expr::text(":"), space.clone(), value]);
            Ok(listed("{", member, "}", &space))
        })
    }

    fn array(&mut self) -> Result<Expr> {
        self.built_in("array", |this| {
            let (space, value) = (this.space()?, this.value()?);
            Ok(listed("[", value, "]", &space))
        })
    }

    pub(super) fn value(&mut self) -> Result<Expr> {
        self.built_in("value", |this| {
            Ok(Expr::Alt(vec![
                this.object()?,
                this.array()?,
                this.string()?,
                this.number()?,
                this.boolean()?,
                Expr::text("null"),
            ]))
        })
    }

    /// What matches schemas that hold together: a rule of their own, but for the simplest.
    pub(super) fn child(&mut self, all: &All<'j>) -> Result<Expr> {
        let Some(parts) = all else { return Ok(Expr::never()) };
        let mut key: Vec<(usize, u8)> = parts.iter().map(Part::identity).collect();
        key.sort_unstable();
        key.dedup();
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        self.parts += parts.len();
        if self.known.len() >= MAX_COMBINATIONS || self.parts > MAX_PARTS {
            let problem = format!("JSON schema: more than {MAX_COMBINATIONS} schemas and combinations of them");
            return Err(Error::InvalidArgument(problem));
        }
        let reading = self.read(parts)?;
        let simple = match &reading {
            Reading::Shapes(shapes) => match &shapes[..] {
                [Shape::Any] => Some(self.value()?),
                [Shape::Null] => Some(Expr::text("null")),
                [Shape::Boolean] => Some(self.boolean()?),
                [Shape::Integer(bounds)] if bounds.is_free() => Some(self.integer()?),
                [Shape::Number(bounds)] if bounds.is_free() => Some(self.number()?),
                [Shape::String(Text::Length(0, None))] => Some(self.string()?),
                _ => None,
            },
            Reading::Union(_) => None,
        };
        let expr = match simple {
            Some(expr) => expr,
            None => {
                let hint = hint(parts.first().map_or("", |part| &part.at));
                let rule = self.draft.declare(&hint)?;
                self.queue.push_back((rule, reading, hint));
                Expr::Rule(rule)
            }
        };
        self.known.insert(key, expr.clone());
        Ok(expr)
    }

    fn reading(&mut self, reading: Reading<'j>, hint: &str) -> Result<Expr> {
        match reading {
            Reading::Union(list) => Ok(Expr::Alt(list.iter().map(|all| self.child(all)).collect::<Result<Vec<_>>>()?)),
            Reading::Shapes(shapes) => self.shapes(shapes, hint),
        }
    }

    pub(super) fn shapes(&mut self, shapes: Vec<Shape<'j>>, hint: &str) -> Result<Expr> {
        let list = shapes.into_iter().map(|shape| self.shape(shape, hint)).collect::<Result<Vec<_>>>()?;
        Ok(Expr::Alt(list))
    }

    fn shape(&mut self, shape: Shape<'j>, hint: &str) -> Result<Expr> {
        match shape {
            Shape::Any => self.value(),
            Shape::Null => Ok(Expr::text("null")),
            Shape::Boolean => self.boolean(),
            Shape::Integer(bounds) if bounds.is_free() => self.integer(),
            Shape::Integer(bounds) => Ok(bounds.integer()),
            Shape::Number(bounds) if bounds.is_free() => self.number(),
            Shape::Number(bounds) => Ok(bounds.decimal()),
            Shape::Multiple(multiple, bounds) => multiple.expr(bounds, &mut self.draft),
            Shape::Values(values) => self.values(values.iter().map(|value| value.text()).collect(), hint),
            Shape::String(text) => self.text(text),
            Shape::Object(object) => self.members(object, hint),
            Shape::Array(array) => self.items(array),
            Shape::Set(values, min, max) => {
                let values: Vec<String> = values.iter().map(|value| value.text()).collect();
                let space = self.space()?;
                let items = self.distinct(&values, (min, max), 0, &mut HashMap::new())?;
                Ok(Expr::Seq(vec![Expr::text("["), space.clone(), items, space, Expr::text("]")]))
            }
        }
    }

    fn text(&mut self, text: Text) -> Result<Expr> {
        let quote = || Expr::text("\"");
        let inner = match text {
            Text::Length(0, None) => return self.string(),
            Text::Length(min, max) => {
                let char = self.char()?;
                self.draft.repeat(char, min, max)?
            }
            Text::Pattern(pattern) => self.pattern(&pattern, Spelling::Json)?,
            Text::Spelled(pattern) => self.pattern(&pattern, Spelling::Raw)?,
        };
        Ok(Expr::Seq(vec![quote(), inner, quote()]))
    }

    fn pattern(&mut self, pattern: &Pattern, spelling: Spelling) -> Result<Expr> {
        let any = if pattern.is_anchored() { Expr::empty() } else { self.char()? };
        pattern.expr(&mut self.draft, spelling, &mut |_| Ok(any.clone()))
    }

    /// One of many texts. Beginnings that several have in common are written once, so that few of the texts are open
    /// at a time.
    fn values(&mut self, mut texts: Vec<String>, hint: &str) -> Result<Expr> {
        if texts.len() <= MANY_VALUES {
            return Ok(Expr::Alt(texts.into_iter().map(Expr::Text).collect()));
        }
        if texts.len() > MAX_VALUES {
            return Err(Error::InvalidArgument(format!(
                "JSON schema: an enum of {} values, at most {MAX_VALUES}",
                texts.len()
            )));
        }
        texts.sort_unstable();
        texts.dedup();
        let top = self.draft.declare(hint)?;
        let mut work = vec![(top, 0..texts.len(), 0usize)];
        while let Some((rule, range, from)) = work.pop() {
            let mut ways = Vec::new();
            let mut next = range.start;
            while next < range.end {
                let start = next;
                let first = texts[start][from..].chars().next();
                let same = |text: &String| text[from..].chars().next() == first;
                next += texts[start..range.end].iter().take_while(|text| same(text)).count();
                let (low, high) = (&texts[start][from..], &texts[next - 1][from..]);
                let shared: usize =
                    low.chars().zip(high.chars()).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum();
                let text = Expr::text(&low[..shared]);
                match next - start {
                    1 => ways.push(text),
                    _ => {
                        let rest = self.draft.declare(hint)?;
                        work.push((rest, start..next, from + shared));
                        ways.push(Expr::Seq(vec![text, Expr::Rule(rest)]));
                    }
                }
            }
            self.draft.define(rule, Expr::Alt(ways));
        }
        Ok(Expr::Rule(top))
    }

    fn comma(&mut self) -> Result<Expr> {
        Ok(Expr::Seq(vec![Expr::text(","), self.space()?]))
    }

    fn items(&mut self, array: Array<'j>) -> Result<Expr> {
        let (space, comma) = (self.space()?, self.comma()?);
        let mut parts = vec![Expr::text("["), space.clone()];
        let length = array.first.len() as u64;
        let first = array.first.iter().take(array.max.unwrap_or(length).min(length) as usize);
        for (index, item) in first.enumerate() {
            if index > 0 {
                parts.push(comma.clone());
            }
            parts.push(self.child(item)?);
        }
        let (min, max) = (array.min.saturating_sub(length), array.max.map(|max| max.saturating_sub(length)));
        match array.rest {
            Some(rest) if max != Some(0) => {
                let item = self.child(&rest)?;
                let more = Expr::Seq(vec![comma, item.clone()]);
                match length {
                    0 => {
                        let most = max.map(|max| max - 1);
                        let others = self.draft.repeat(more, min.saturating_sub(1), most)?;
                        let items = Expr::Seq(vec![item, others]);
                        parts.push(if min == 0 { items.optional() } else { items });
                    }
                    _ => parts.push(self.draft.repeat(more, min, max)?),
                }
            }
            _ if min > 0 => return Ok(Expr::never()),
            _ => {}
        }
        parts.extend([space, Expr::text("]")]);
        Ok(Expr::Seq(parts))
    }

    /// The items that may come after those of these bits, so that there are `min` to `max`, each once.
    fn distinct(
        &mut self,
        values: &[String],
        (min, max): (u64, u64),
        before: u64,
        known: &mut HashMap<u64, Expr>,
    ) -> Result<Expr> {
        if let Some(known) = known.get(&before) {
            return Ok(known.clone());
        }
        let count = u64::from(before.count_ones());
        let mut ways = Vec::new();
        if count >= min {
            ways.push(Expr::empty());
        }
        if count == max {
            return Ok(Expr::Alt(ways));
        }
        for (index, value) in values.iter().enumerate().filter(|(index, _)| before >> index & 1 == 0) {
            let value = Expr::text(value.as_str());
            let more = self.distinct(values, (min, max), before | 1 << index, known)?;
            ways.push(Expr::Seq(if count > 0 { vec![self.comma()?, value, more] } else { vec![value, more] }));
        }
        let items = self.draft.rule("distinct", Expr::Alt(ways))?;
        known.insert(before, items.clone());
        Ok(items)
    }

    /// `name`, colon and value of a member.
    pub(super) fn member(&mut self, name: &str, value: Expr) -> Result<Expr> {
        let space = self.space()?;
        Ok(Expr::Seq(vec![Expr::text(quoted(name)), space.clone(), Expr::text(":"), space, value]))
    }
}

/// Any number of items between two marks.
fn listed(open: &str, item: Expr, close: &str, space: &Expr) -> Expr {
    let more = Expr::Seq(vec![Expr::text(","), space.clone(), item.clone()]);
    let all = Expr::Seq(vec![item, more.any_times()]);
    Expr::Seq(vec![Expr::text(open), space.clone(), all.optional(), space.clone(), Expr::text(close)])
}

/// A rule's name from a place: the last names of the path, without the keywords that every path has.
fn hint(at: &str) -> String {
    let common = ["properties", "$defs", "definitions", "items", ""];
    let names: Vec<&str> = at.split('/').filter(|step| !common.contains(step)).collect();
    match names.len() {
        0 => "schema".into(),
        n => names[n.saturating_sub(3)..].join("-"),
    }
}
