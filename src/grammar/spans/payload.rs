//! Reads a payload of spans, version 2 beside that of the token trie, from JSON.
//!
//! Every refusal names the place (`spans[2].values[5].spans[0].min`). Unknown keys are ignored, as in the trie's
//! payload; a missing known key, a wrong type and a number out of range are refused. Limits are counted while reading.

use super::model::{Kind, Payload, Span, Value};
use crate::gguf::shown;
use crate::grammar::gbnf::MAX_REPETITIONS;
use crate::grammar::json::Json;
use crate::grammar::span_plan::SpanSampling;
use crate::vocab::Vocab;
use crate::{Error, Result, Token};

/// The most spans of one payload, those inside of others included.
pub const MAX_SPANS: usize = 4096;
/// The most values of choices in one payload.
pub const MAX_VALUES: usize = 1 << 16;
/// The most bytes of text in one payload: literals, values, separators, ends.
pub const MAX_TEXT_BYTES: usize = 2 << 20;
/// How deep spans are inside of spans.
pub const MAX_DEPTH: usize = 16;
/// The most bytes of all ends of one `free` span together.
pub const MAX_UNTIL_BYTES: usize = 512;

/// A place in the JSON, and what is left of the limits.
pub(super) struct Reader {
    place: String,
    spans: usize,
    values: usize,
    text: usize,
}

impl Reader {
    pub(super) fn new() -> Reader {
        Reader { place: String::new(), spans: 0, values: 0, text: 0 }
    }

    pub(super) fn error<T>(&self, problem: impl std::fmt::Display) -> Result<T> {
        let place = if self.place.is_empty() { "payload" } else { &self.place };
        Err(Error::InvalidArgument(format!("Spans: {place}: {problem}")))
    }

    fn wrong<T>(&self, value: &Json, expected: &str) -> Result<T> {
        self.error(format!("{}, must be {expected}", shown(&value.text())))
    }

    /// Reads `of[key]` with its place.
    pub(super) fn key<T>(
        &mut self,
        of: &Json,
        key: &str,
        read: impl FnOnce(&mut Reader, &Json) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(value) = of.get(key) else { return Ok(None) };
        let length = self.place.len();
        if length > 0 {
            self.place.push('.');
        }
        self.place.push_str(key);
        let read = read(self, value)?;
        self.place.truncate(length);
        Ok(Some(read))
    }

    /// Reads `of[key]`, which must be there.
    pub(super) fn required<T>(
        &mut self,
        of: &Json,
        key: &str,
        read: impl FnOnce(&mut Reader, &Json) -> Result<T>,
    ) -> Result<T> {
        match self.key(of, key, read)? {
            Some(value) => Ok(value),
            None => self.error(format!("`{key}` is missing")),
        }
    }

    /// Reads every element of a list with its place.
    pub(super) fn list<T>(
        &mut self,
        list: &Json,
        mut read: impl FnMut(&mut Reader, &Json) -> Result<T>,
    ) -> Result<Vec<T>> {
        let Some(elements) = list.as_array() else { return self.wrong(list, "a list") };
        let (mut out, length) = (Vec::new(), self.place.len());
        for (index, element) in elements.iter().enumerate() {
            self.place.push_str(&format!("[{index}]"));
            out.push(read(self, element)?);
            self.place.truncate(length);
        }
        Ok(out)
    }

    pub(super) fn object(&self, value: &Json, what: &str) -> Result<()> {
        if value.is_object() { Ok(()) } else { self.wrong(value, what) }
    }

    pub(super) fn text(&mut self, value: &Json) -> Result<String> {
        let Some(text) = value.as_str() else { return self.wrong(value, "a text") };
        self.text += text.len();
        match self.text > MAX_TEXT_BYTES {
            true => self.error(format!("more than {MAX_TEXT_BYTES} bytes of text in all")),
            false => Ok(text.into()),
        }
    }

    pub(super) fn name(&mut self, value: &Json) -> Result<String> {
        match self.text(value)? {
            name if name.len() > 256 => self.error("longer than 256 bytes"),
            name => Ok(name),
        }
    }

    pub(super) fn flag(&mut self, value: &Json) -> Result<bool> {
        value.as_bool().map_or_else(|| self.wrong(value, "true or false"), Ok)
    }

    pub(super) fn integer(&mut self, value: &Json) -> Result<i64> {
        value.as_i64().map_or_else(|| self.wrong(value, "an integer of 64 bits"), Ok)
    }

    pub(super) fn count(&mut self, value: &Json) -> Result<u32> {
        match value.as_u64() {
            Some(count) if count <= MAX_REPETITIONS => Ok(count as u32),
            _ => self.wrong(value, &format!("an integer from 0 to {MAX_REPETITIONS}")),
        }
    }

    pub(super) fn number(&mut self, value: &Json) -> Result<f32> {
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        number.map_or_else(|| self.wrong(value, "a number"), Ok)
    }

    /// Counts a span.
    pub(super) fn span(&mut self) -> Result<()> {
        self.spans += 1;
        if self.spans > MAX_SPANS { self.error(format!("more than {MAX_SPANS} spans in all")) } else { Ok(()) }
    }

    /// Counts a value of a choice.
    pub(super) fn value(&mut self) -> Result<()> {
        self.values += 1;
        if self.values > MAX_VALUES { self.error(format!("more than {MAX_VALUES} values in all")) } else { Ok(()) }
    }
}

/// Reads a payload. Tokens at which free text ends become their texts in `vocab`.
///
/// # Errors
/// [`Error::InvalidArgument`] with the place of the first problem.
pub(super) fn read(json: &Json, vocab: &Vocab) -> Result<Payload> {
    let mut reader = Reader::new();
    reader.object(json, "an object with `spans`")?;
    let spans = reader.required(json, "spans", |reader, list| spans(reader, list, vocab, 0))?;
    if spans.is_empty() {
        return reader.error("there are no spans");
    }
    let after = reader.key(json, "after", |reader, list| {
        reader.list(list, |reader, word| match reader.text(word)? {
            word if word.is_empty() => reader.error("an empty text"),
            word => Ok(word),
        })
    })?;
    let then_free = reader.key(json, "then", |reader, value| match value.as_str() {
        Some("free") => Ok(true),
        Some("end") => Ok(false),
        _ => reader.wrong(value, "\"free\" or \"end\""),
    })?;
    Ok(Payload { spans, after: after.unwrap_or_default(), then_free: then_free.unwrap_or(false), rules: String::new() })
}

fn spans(reader: &mut Reader, list: &Json, vocab: &Vocab, depth: usize) -> Result<Vec<Span>> {
    if depth == MAX_DEPTH {
        return reader.error(format!("spans inside of spans are more than {MAX_DEPTH} deep"));
    }
    reader.list(list, |reader, span| {
        reader.span()?;
        reader.object(span, "a span")?;
        let kind = reader.required(span, "kind", Reader::name)?;
        let read = match kind.as_str() {
            "literal" => Kind::Literal(reader.required(span, "text", Reader::text)?),
            "choice" => Kind::Choice(values(reader, span, vocab, depth)?),
            "repeat" => repeat(reader, span, vocab, depth)?,
            "number" => number(reader, span)?,
            "boolean" => Kind::Boolean,
            "string" => Kind::Text {
                quotes: reader.key(span, "quotes", Reader::flag)?.unwrap_or(true),
                max_length: reader.key(span, "max_length", Reader::count)?,
            },
            "json" => Kind::Json {
                schema: span.get("schema").map(Json::text),
                compact: reader.key(span, "compact", Reader::flag)?.unwrap_or(false),
            },
            "free" => free(reader, span, vocab)?,
            other => {
                let known = "literal, choice, repeat, number, boolean, string, json and free are known";
                return reader.error(format!("kind \"{}\": {known}", shown(other)));
            }
        };
        let key = reader.key(span, "key", Reader::name)?;
        let sampling = match reader.key(span, "sampling", sampling)? {
            Some(told) => told,
            None => matches!(read, Kind::Choice(_)).then_some(SpanSampling::Greedy),
        };
        Ok(Span { kind: read, key, sampling })
    })
}

fn values(reader: &mut Reader, span: &Json, vocab: &Vocab, depth: usize) -> Result<Vec<Value>> {
    reader.required(span, "values", |reader, list| {
        let values = reader.list(list, |reader, value| {
            reader.value()?;
            if value.as_str().is_some() {
                return Ok(Value { text: reader.text(value)?, spans: Vec::new() });
            }
            reader.object(value, "a text, or an object with `value`")?;
            let text = reader.required(value, "value", Reader::text)?;
            let inner = reader.key(value, "spans", |reader, list| spans(reader, list, vocab, depth + 1))?;
            Ok(Value { text, spans: inner.unwrap_or_default() })
        })?;
        if values.is_empty() { reader.error("there are no values") } else { Ok(values) }
    })
}

fn repeat(reader: &mut Reader, span: &Json, vocab: &Vocab, depth: usize) -> Result<Kind> {
    let inner = reader.required(span, "spans", |reader, list| spans(reader, list, vocab, depth + 1))?;
    let separator = reader.key(span, "separator", Reader::text)?.unwrap_or_default();
    let min = reader.key(span, "min", Reader::count)?.unwrap_or(0);
    let max = reader.key(span, "max", Reader::count)?;
    if max.is_some_and(|max| max < min) {
        return reader.error(format!("`max` is below `min`, which is {min}"));
    }
    if separator.is_empty() && inner.iter().all(|span| may_be_empty(&span.kind)) {
        return reader.error("the repeated spans may be empty, and nothing separates them");
    }
    Ok(Kind::Repeat { spans: inner, separator, min, max })
}

/// Whether a span may match the empty text.
fn may_be_empty(kind: &Kind) -> bool {
    match kind {
        Kind::Literal(text) => text.is_empty(),
        Kind::Choice(values) => {
            values.iter().any(|value| value.text.is_empty() && value.spans.iter().all(|span| may_be_empty(&span.kind)))
        }
        Kind::Repeat { spans, min, .. } => *min == 0 || spans.iter().all(|span| may_be_empty(&span.kind)),
        Kind::Text { quotes, .. } => !quotes,
        Kind::Free { until } => until.is_empty(),
        // What a rule may be is seen when all rules are checked.
        _ => false,
    }
}

fn number(reader: &mut Reader, span: &Json) -> Result<Kind> {
    let integer = reader.key(span, "integer", Reader::flag)?.unwrap_or(false);
    let min = reader.key(span, "min", Reader::integer)?;
    let max = reader.key(span, "max", Reader::integer)?;
    match (min, max) {
        _ if !integer && (min.is_some() || max.is_some()) => {
            reader.error("`min` and `max` are for integers: `integer` must be true")
        }
        (Some(min), Some(max)) if min > max => reader.error(format!("`max` is {max}, below `min`, which is {min}")),
        _ => Ok(Kind::Number { integer, min, max }),
    }
}

fn free(reader: &mut Reader, span: &Json, vocab: &Vocab) -> Result<Kind> {
    let until = reader.key(span, "until", |reader, list| {
        reader.list(list, |reader, end| match end.as_i64() {
            Some(id) => piece(reader, id, vocab),
            None => reader.text(end),
        })
    })?;
    let until = until.unwrap_or_default();
    if until.iter().any(String::is_empty) {
        return reader.error("`until` has an empty text");
    }
    if until.iter().map(String::len).sum::<usize>() > MAX_UNTIL_BYTES {
        return reader.error(format!("`until` has more than {MAX_UNTIL_BYTES} bytes"));
    }
    Ok(Kind::Free { until })
}

/// The text of a token, control tokens spelled.
fn piece(reader: &mut Reader, id: i64, vocab: &Vocab) -> Result<String> {
    let token = Token::try_from(id).ok().filter(|&token| token >= 0 && (token as usize) < vocab.n_tokens());
    let Some(token) = token else {
        return reader.error(format!("token {id}, the vocabulary has {}", vocab.n_tokens()));
    };
    let mut bytes = Vec::new();
    vocab.piece(token, true, &mut bytes);
    match String::from_utf8(bytes) {
        Ok(text) if !text.is_empty() => Ok(text),
        _ => reader.error(format!("token {id} has no text of whole characters, so no text can end at it")),
    }
}

/// How a span is sampled: `"greedy"`, `"session"`, or numbers.
pub(super) fn sampling(reader: &mut Reader, value: &Json) -> Result<Option<SpanSampling>> {
    match value.as_str() {
        Some("greedy") => return Ok(Some(SpanSampling::Greedy)),
        Some("session") => return Ok(None),
        _ if value.is_object() => {}
        _ => return reader.wrong(value, "\"greedy\", \"session\" or an object with temperature, top_k, top_p"),
    }
    numbers(reader, value, "top_k", "top_p").map(Some)
}

/// The numbers of a sampling, whose names differ between payloads.
pub(super) fn numbers(reader: &mut Reader, of: &Json, top_k: &str, top_p: &str) -> Result<SpanSampling> {
    let temperature = reader.key(of, "temperature", |reader, value| match reader.number(value)? {
        temperature if temperature < 0.0 => reader.wrong(value, "0 or more"),
        temperature => Ok(temperature),
    })?;
    let top_k = reader.key(of, top_k, |reader, value| match i32::try_from(reader.integer(value)?) {
        Ok(k) if k >= 0 => Ok(k),
        _ => reader.wrong(value, "an integer from 0 to 2147483647"),
    })?;
    let top_p = reader.key(of, top_p, |reader, value| match reader.number(value)? {
        p if p > 0.0 && p <= 1.0 => Ok(p),
        _ => reader.wrong(value, "above 0 and at most 1"),
    })?;
    match temperature == Some(0.0) || top_k == Some(1) {
        true => Ok(SpanSampling::Greedy),
        false => Ok(SpanSampling::Chain { temperature, top_k, top_p }),
    }
}
