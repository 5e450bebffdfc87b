//! From spans to the text of a grammar, with the names of the rules that belong to each.
//!
//! Spans are numbered in the order in which they are written, a span before those inside of it. A rule is marked where
//! its text is a span's own; what holds other spans (a repeat, a choice whose values have spans) is not.

use super::model::{Kind, Payload, Span, Value};
use super::{free, lex};
use crate::grammar::span_plan::{SpanKind, SpanPlan};
use crate::grammar::{Rules, Trigger, schema};
use crate::{Error, Result};
use std::collections::HashSet;
use std::fmt::Write as _;

/// A number of JSON with at most as many digits as a number of 64 bits has.
const INTEGER: &str = r#""-"? ( "0" | [1-9] [0-9]{0,15} )"#;
const NUMBER: &str = r#""-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,3} )?"#;

/// A character of a JSON string: none of the control characters, only escapes that JSON has, surrogates in pairs.
const STRING_CHARACTER: &str = r#"character ::= [^"\\\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" ( unit | high "\\u" low ) )
unit ::= [0-9a-cA-CeEfF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}
high ::= [dD] [89abAB] [0-9a-fA-F]{2}
low ::= [dD] [c-fC-F] [0-9a-fA-F]{2}
"#;

/// Any JSON value, with little white space or none.
const JSON: &str = r#"json ::= json-object | json-array | json-string | json-number | "true" | "false" | "null"
json-object ::= "{" space ( json-member ( "," space json-member )* space )? "}"
json-member ::= json-string ":" space json
json-array ::= "[" space ( json ( "," space json )* space )? "]"
json-string ::= "\"" character* "\""
"#;
const SPACE: &str = r#"space ::= ( " " | "\n"{1,2} [ \t]{0,20} )?
"#;

/// What elizaOS's compiler makes of free values, by the names that it has for them.
const LAX: [(&str, &str); 8] = [
    ("jsonvalue", r#"jsonobject | jsonarray | jsonstring | jsonnumber | "true" | "false" | "null""#),
    (
        "jsonobject",
        r#""{" ws ( jsonstring ws ":" ws jsonvalue ( ws "," ws jsonstring ws ":" ws jsonvalue )* )? ws "}""#,
    ),
    ("jsonarray", r#""[" ws ( jsonvalue ( ws "," ws jsonvalue )* )? ws "]""#),
    ("jsonstring", LAX_STRING),
    ("jsonnumber", LAX_NUMBER),
    ("jsonstringarray", r#""[" ws ( jsonstring ( ws "," ws jsonstring )* )? ws "]""#),
    ("jsonbool", r#""true" | "false""#),
    ("ws", r"[ \t\n\r]*"),
];
const LAX_STRING: &str = r#""\"" ( [^"\\] | "\\" . )* "\"""#;
const LAX_NUMBER: &str = r#""-"? ( [0-9] | [1-9] [0-9]* ) ( "." [0-9]+ )? ( [eE] [-+]? [0-9]+ )?"#;

/// A grammar whose rules belong to spans.
#[derive(Debug, Clone, Default)]
pub struct Lowered {
    /// The grammar.
    pub gbnf: String,
    /// The name of its root.
    pub root: String,
    /// Rules and the numbers of their spans.
    pub marks: Vec<(String, u32)>,
    /// The spans.
    pub plan: SpanPlan,
    /// How many of them are the root's own; choices inside of those come after them.
    pub items: usize,
    /// Words that the grammar waits for, and begins with.
    pub after: Vec<String>,
}

impl Lowered {
    /// The checked and marked rules.
    ///
    /// # Errors
    /// As [`Rules::parse`].
    pub fn rules(&self) -> Result<Rules> {
        let mut rules = Rules::parse(&self.gbnf, &self.root)?;
        rules.mark_all(self.marks.iter().map(|(name, span)| (name.as_str(), *span)))?;
        Ok(rules)
    }

    /// What the grammar waits for.
    pub fn triggers(&self) -> impl Iterator<Item = Trigger> {
        self.after.iter().cloned().map(Trigger::Word)
    }
}

/// Makes a grammar of a payload.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the span whose schema cannot be one, or beyond the limits of samplings.
pub(super) fn lower(payload: &Payload) -> Result<Lowered> {
    let mut lowering = Lowering::default();
    let mut root = String::from("root ::=");
    if !payload.after.is_empty() {
        root.push_str(" after");
        lowering.text.push_str("after ::=");
        literals(payload.after.iter(), &mut lowering.text);
    }
    root.push_str(&lowering.line(&payload.spans, !payload.then_free)?);
    if payload.then_free {
        let tail = Span { kind: Kind::Free { until: Vec::new() }, key: None, sampling: None };
        root.push_str(&lowering.line(&[tail], true)?);
    }
    lowering.shared(&payload.rules)?;
    root.push('\n');
    root.push_str(&lowering.text);
    Ok(Lowered {
        gbnf: root,
        root: "root".into(),
        marks: lowering.marks,
        items: lowering.plan.spans().len(),
        plan: lowering.plan,
        after: payload.after.clone(),
    })
}

#[derive(Default)]
struct Lowering {
    text: String,
    marks: Vec<(String, u32)>,
    plan: SpanPlan,
    needs: Needs,
}

/// Which shared rules are used.
#[derive(Default)]
struct Needs {
    character: bool,
    json: bool,
    compact_json: bool,
    lax: bool,
}

impl Lowering {
    /// Makes rules of a line of spans and returns their names, each with a space before it. `last` where nothing
    /// follows the line.
    fn line(&mut self, spans: &[Span], last: bool) -> Result<String> {
        let mut names = String::new();
        for (index, span) in spans.iter().enumerate() {
            // A token may hold the end of a literal with the beginning of what follows it, which decides.
            let following = || spans[index..].iter().find(|span| !matches!(span.kind, Kind::Literal(_)));
            let sampling = match span.kind {
                Kind::Literal(_) => span.sampling.or(following().and_then(|span| span.sampling)),
                _ => span.sampling,
            };
            let number = self.plan.push(kind_of(&span.kind), span.key.clone(), sampling)?;
            let name = format!("s{number}");
            let _ = write!(names, " {name}"); // writing to a string cannot fail
            self.span(&span.kind, number, &name, last && index + 1 == spans.len())?;
        }
        Ok(names)
    }

    /// Appends the rules of a span, the first with this name.
    fn span(&mut self, kind: &Kind, number: u32, name: &str, last: bool) -> Result<()> {
        match kind {
            Kind::Literal(text) => {
                self.begin(name);
                literals([text].into_iter(), &mut self.text);
            }
            Kind::Choice(values) => return self.choice(values, number, name, last),
            Kind::Repeat { spans, separator, min, max } => {
                return self.repeat(spans, separator, (*min, *max), number, name);
            }
            Kind::Number { integer: true, min: None, max: None } => self.rule(name, INTEGER),
            Kind::Number { integer: true, min, max } => {
                let bound =
                    |key: &str, bound: &Option<i64>| bound.map(|n| format!(",\"{key}\":{n}")).unwrap_or_default();
                let [min, max] = [bound("minimum", min), bound("maximum", max)];
                let bounds = format!("{{\"type\":\"integer\"{min}{max}}}");
                self.schema(&bounds, true, number, name)?;
            }
            Kind::Number { .. } => self.rule(name, NUMBER),
            Kind::Boolean => self.rule(name, r#""true" | "false""#),
            Kind::Text { quotes, max_length } => {
                self.needs.character = true;
                let most = max_length.map_or("*".into(), |most| format!("{{0,{most}}}"));
                let quote = if *quotes { r#""\"""# } else { "" };
                self.rule(name, &format!("{quote} character{most} {quote}"));
            }
            Kind::Json { schema: None, compact } => {
                self.needs.json |= !compact;
                self.needs.compact_json |= compact;
                self.rule(name, if *compact { "compact-json" } else { "json" });
            }
            Kind::Json { schema: Some(schema), compact } => self.schema(schema, *compact, number, name)?,
            Kind::Free { until } if until.is_empty() => {
                if !last {
                    let problem = format!("Spans: span {number}: free text without `until` must be the last span");
                    return Err(Error::InvalidArgument(problem));
                }
                self.rule(name, ".*");
            }
            Kind::Free { until } => {
                let names = free::rules(name, until, &mut self.text);
                self.marks.extend(names.into_iter().map(|name| (name, number)));
                return Ok(());
            }
            Kind::LaxNumber => self.rule(name, LAX_NUMBER),
            Kind::LaxText => self.rule(name, LAX_STRING),
            Kind::LaxJson => {
                self.needs.lax = true;
                self.rule(name, "r-jsonvalue");
            }
            Kind::Rule(rule) => {
                self.needs.lax = true;
                self.rule(name, &format!("r-{rule}"));
            }
        }
        self.marks.push((name.into(), number));
        Ok(())
    }

    fn begin(&mut self, name: &str) {
        let _ = write!(self.text, "{name} ::="); // writing to a string cannot fail
    }

    fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.text, "{name} ::= {body}"); // writing to a string cannot fail
    }

    fn choice(&mut self, values: &[Value], number: u32, name: &str, last: bool) -> Result<()> {
        let (plain, leading): (Vec<_>, Vec<_>) = values.iter().partition(|value| value.spans.is_empty());
        let mut parts = Vec::new();
        for (index, value) in leading.into_iter().enumerate() {
            let (part, text) = (format!("{name}-{index}"), format!("{name}-{index}-text"));
            self.begin(&text);
            literals([&value.text].into_iter(), &mut self.text);
            let line = self.line(&value.spans, last)?;
            self.rule(&part, &format!("{text}{line}"));
            self.marks.push((text, number));
            parts.push(part);
        }
        if !plain.is_empty() {
            let all = if parts.is_empty() { name.to_owned() } else { format!("{name}-values") };
            self.begin(&all);
            literals(plain.iter().map(|value| &value.text), &mut self.text);
            self.marks.push((all.clone(), number));
            if parts.is_empty() {
                return Ok(());
            }
            parts.push(all);
        }
        self.rule(name, &parts.join(" | "));
        Ok(())
    }

    fn repeat(
        &mut self,
        spans: &[Span],
        separator: &str,
        (min, max): (u32, Option<u32>),
        number: u32,
        name: &str,
    ) -> Result<()> {
        let (item, between) = (format!("{name}-item"), format!("{name}-separator"));
        let first = self.plan.spans().len() as u32;
        let line = self.line(spans, false)?;
        for span in first..self.plan.spans().len() as u32 {
            if self.plan.spans()[span as usize].parent.is_none() {
                self.plan.nest(span, number);
            }
        }
        self.rule(&item, &line);
        self.begin(&between);
        literals([separator].into_iter(), &mut self.text);
        self.marks.push((between.clone(), number));
        let further = match max {
            None => format!("( {between} {item} ){{{},}}", min.saturating_sub(1)),
            Some(max) => format!("( {between} {item} ){{{},{}}}", min.saturating_sub(1), max.saturating_sub(1)),
        };
        match (min, max) {
            (_, Some(0)) => self.rule(name, r#""""#),
            (0, _) => self.rule(name, &format!("( {item} {further} )?")),
            _ => self.rule(name, &format!("{item} {further}")),
        }
        Ok(())
    }

    /// Appends the rules of a JSON schema.
    fn schema(&mut self, schema: &str, compact: bool, number: u32, name: &str) -> Result<()> {
        let at = |problem: &dyn std::fmt::Display| {
            Error::InvalidArgument(format!("Spans: the schema of span {number}: {problem}"))
        };
        let options = schema::Options { compact, ..schema::Options::default() };
        let gbnf = schema::to_gbnf(schema, options).map_err(|error| match error {
            Error::InvalidArgument(problem) => at(&problem),
            Error::Unsupported(problem) => Error::Unsupported(format!("Spans: the schema of span {number}: {problem}")),
            other => other,
        })?;
        let prefix = format!("j{number}-");
        if !lex::prefixed(&gbnf, &prefix, &mut self.text) {
            return Err(at(&"its grammar cannot be read"));
        }
        self.rule(name, &format!("{prefix}root"));
        Ok(())
    }

    /// Appends the rules that several spans use, and those of the host.
    fn shared(&mut self, rules: &str) -> Result<()> {
        if self.needs.character || self.needs.json || self.needs.compact_json {
            self.text.push_str(STRING_CHARACTER);
        }
        if self.needs.json {
            self.text.push_str(JSON);
            self.text.push_str(SPACE);
            self.rule("json-number", NUMBER);
        }
        if self.needs.compact_json {
            self.text.push_str(&JSON.replace("json", "compact-json").replace(" space", ""));
            self.rule("compact-json-number", NUMBER);
        }
        if self.needs.lax {
            let mut all = format!("{rules}\n");
            let defined: HashSet<&str> = lex::words(rules)
                .and_then(|words| lex::rules(&words).map(|rules| rules.into_keys().collect()))
                .unwrap_or_default();
            for (name, body) in LAX.iter().filter(|(name, _)| !defined.contains(name)) {
                let _ = writeln!(all, "{name} ::= {body}"); // writing to a string cannot fail
            }
            lex::prefixed(&all, "r-", &mut self.text);
        }
        Ok(())
    }
}

/// Appends alternatives and the end of their line.
fn literals<S: AsRef<str>>(texts: impl Iterator<Item = S>, out: &mut String) {
    for (index, text) in texts.enumerate() {
        out.push_str(if index == 0 { " " } else { " | " });
        lex::quote(text.as_ref(), out);
    }
    out.push('\n');
}

fn kind_of(kind: &Kind) -> SpanKind {
    match kind {
        Kind::Literal(_) => SpanKind::Literal,
        Kind::Choice(_) => SpanKind::Choice,
        Kind::Repeat { .. } => SpanKind::Repeat,
        Kind::Number { .. } | Kind::LaxNumber => SpanKind::Number,
        Kind::Boolean => SpanKind::Boolean,
        Kind::Text { .. } | Kind::LaxText => SpanKind::String,
        Kind::Json { .. } | Kind::LaxJson | Kind::Rule(_) => SpanKind::Json,
        Kind::Free { .. } => SpanKind::Free,
    }
}
