//! The forms in which families write calls.
//!
//! Each reader takes the text between the marks and gives all of its calls, or nothing where anything in it is not of
//! its form: such a text stays text.

use super::loose::Reader;
use super::part::ToolCall;
use super::tools::Tools;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// The calls in the text between two marks.
pub(super) fn calls_of(text: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let readers = [json, functions, invocations, gemma, deepseek, kimi, mistral, glm, python];
    readers.iter().find_map(|read| read(text, tools)).filter(|calls| !calls.is_empty())
}

/// `{"name": …, "arguments": {…}}`, or an array of such; other families have other names for the three fields.
fn json(text: &str, _: &Tools) -> Option<Vec<ToolCall>> {
    let fenced = text.strip_prefix("```json").and_then(|text| text.trim_end().strip_suffix("```"));
    let text = fenced.unwrap_or(text).trim();
    match text.starts_with('[') {
        true => serde_json::from_str::<Vec<&RawValue>>(text).ok()?.iter().map(|one| object(one.get(), true)).collect(),
        // Some write several, one after the other.
        false => {
            let all = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
            all.map(|one| object(one.ok()?.get(), false)).collect()
        }
    }
}

/// One call. With `keyed` also `{"f": {…}}`.
fn object(text: &str, keyed: bool) -> Option<ToolCall> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let first = |names: &[&str]| names.iter().find_map(|name| fields.get(*name)).map(|value| value.get());
    let string = |text: &str| serde_json::from_str::<String>(text).ok();
    let id = first(&["id", "tool_call_id", "call_id"]).and_then(string);
    if let Some(function) = first(&["function"]).filter(|value| value.starts_with('{')) {
        let call = object(function, false)?;
        return Some(ToolCall { id: id.or(call.id.clone()), ..call });
    }
    let Some(name) = first(&["name", "tool_name"]) else {
        let mut only = fields.iter();
        return match (only.next(), only.next()) {
            (Some((name, value)), None) if keyed => call(None, name, value.get()),
            _ => None,
        };
    };
    call(id, &string(name)?, first(&["arguments", "parameters"]).unwrap_or("{}"))
}

/// A call with arguments that are an object, also one within a string.
fn call(id: Option<String>, name: &str, arguments: &str) -> Option<ToolCall> {
    let arguments = arguments.trim();
    let text = match arguments {
        "null" | "\"\"" | "" => "{}".into(),
        text if text.starts_with('"') => serde_json::from_str::<String>(text).ok()?,
        text => text.into(),
    };
    let is_object = text.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(&text).is_ok();
    let name = name.trim();
    (is_object && !name.is_empty()).then(|| ToolCall { id, name: name.into(), arguments: text })
}

/// An object of arguments that are JSON already.
fn arguments(all: &[(&str, String)]) -> String {
    let fields: Vec<String> =
        all.iter().map(|(key, value)| format!("{}: {value}", serde_json::Value::from(*key))).collect();
    format!("{{{}}}", fields.join(", "))
}

/// The text between `open` and `close` at the beginning, and the text after it.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.trim_start().strip_prefix(open)?.split_once(close)
}

/// As [`between`], where `close` may be missing at the end.
fn between_or_end<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    let inside = text.trim_start().strip_prefix(open)?;
    Some(inside.split_once(close).unwrap_or((inside, "")))
}

/// Reads one after the other until nothing is left.
fn sequence<'a, T>(mut text: &'a str, one: impl Fn(&'a str) -> Option<(T, &'a str)>) -> Option<Vec<T>> {
    let mut all = Vec::new();
    while !text.trim_start().is_empty() {
        let (item, rest) = one(text)?;
        all.push(item);
        text = rest;
    }
    Some(all)
}

/// `<function=f><parameter=k>v</parameter></function>`, or with a JSON object inside.
fn functions(text: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    sequence(text, |text| {
        let (inside, rest) = between_or_end(text, "<function=", "</function>")?;
        let (name, body) = inside.split_once('>')?;
        if body.trim_start().starts_with('{') {
            return Some((call(None, name, body)?, rest));
        }
        let all = sequence(body, |text| {
            let (inside, rest) = between(text, "<parameter=", "</parameter>")?;
            let (key, value) = inside.split_once('>')?;
            Some(((key, tools.argument(name, key, unwrapped(value))), rest))
        })?;
        Some((call(None, name, &arguments(&all))?, rest))
    })
}

/// A value without the line breaks that set it off.
fn unwrapped(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

/// `<invoke name="f"><parameter name="k">v</parameter></invoke>`, as MiniMax and, with another prefix, DeepSeek write.
fn invocations(text: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    let prefix = if text.starts_with("<｜DSML｜") { "｜DSML｜" } else { "" };
    let tag = |name: &str| (format!("<{prefix}{name} name=\""), format!("</{prefix}{name}>"));
    let ((open, close), (open_key, close_key)) = (tag("invoke"), tag("parameter"));
    sequence(text, |text| {
        let (inside, rest) = between(text, &open, &close)?;
        let (name, body) = inside.split_once("\">")?;
        let all = sequence(body, |text| {
            let (inside, rest) = between(text, &open_key, &close_key)?;
            let (head, value) = inside.split_once('>')?;
            let (key, how) = head.split_once('"')?;
            let is_text = how.contains("string=\"true\"");
            let value =
                if is_text { serde_json::Value::from(value).to_string() } else { tools.argument(name, key, value) };
            Some(((key, value), rest))
        })?;
        Some((call(None, name, &arguments(&all))?, rest))
    })
}

/// `call:f{k:<|"|>text<|"|>,n:2}`.
fn gemma(text: &str, _: &Tools) -> Option<Vec<ToolCall>> {
    let (name, _) = text.strip_prefix("call:")?.split_once('{')?;
    let mut reader = Reader::new(&text["call:".len() + name.len()..]);
    let arguments = reader.value()?;
    let calls = vec![call(None, name, &arguments)?];
    reader.is_at_end().then_some(calls)
}

/// `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`, in R1 with `function` before and JSON in a fence.
fn deepseek(text: &str, _: &Tools) -> Option<Vec<ToolCall>> {
    sequence(text, |text| {
        let (inside, rest) = between_or_end(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")?;
        let (name, body) = inside.split_once("<｜tool▁sep｜>")?;
        let (name, body) = match body.split_once("```json") {
            Some((name, body)) => (name, body.trim_end().strip_suffix("```")?),
            None => (name, body),
        };
        Some((call(None, name, body)?, rest))
    })
}

/// `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`.
fn kimi(text: &str, _: &Tools) -> Option<Vec<ToolCall>> {
    sequence(text, |text| {
        let (inside, rest) = between_or_end(text, "<|tool_call_begin|>", "<|tool_call_end|>")?;
        let (id, body) = inside.split_once("<|tool_call_argument_begin|>")?;
        let id = id.trim();
        let name = id.strip_prefix("functions.").unwrap_or(id);
        let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
        Some((call(Some(id.into()), name, body)?, rest))
    })
}

/// `f[CALL_ID]id[ARGS]{…}`.
fn mistral(text: &str, _: &Tools) -> Option<Vec<ToolCall>> {
    let (head, body) = text.split_once("[ARGS]")?;
    let (name, id) =
        head.split_once("[CALL_ID]").map_or((head, None), |(name, id)| (name, Some(id.trim().to_string())));
    Some(vec![call(id, name, body)?])
}

/// `f`, then `<arg_key>k</arg_key><arg_value>v</arg_value>` for each argument.
fn glm(text: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    let (name, body) = text.split_at(text.find("<arg_key>").unwrap_or(text.len()));
    let name = name.trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_.-".contains(c));
    if !is_name || (body.is_empty() && !tools.knows(name)) {
        return None;
    }
    let all = sequence(body, |text| {
        let (key, rest) = between(text, "<arg_key>", "</arg_key>")?;
        let (value, rest) = between(rest, "<arg_value>", "</arg_value>")?;
        Some(((key.trim(), tools.argument(name, key.trim(), value)), rest))
    })?;
    Some(vec![call(None, name, &arguments(&all))?])
}

/// `[f(k="v"), g()]`, or calls on lines of their own, as Python.
fn python(text: &str, _: &Tools) -> Option<Vec<ToolCall>> {
    let fenced = text.strip_prefix("```python").and_then(|text| text.trim_end().strip_suffix("```"));
    let mut reader = Reader::new(fenced.unwrap_or(text));
    let in_list = reader.takes("[");
    let mut calls = Vec::new();
    loop {
        let name = reader.name()?;
        let name = name.strip_suffix(".call").unwrap_or(name);
        if !reader.takes("(") {
            return None;
        }
        let all = keywords(&mut reader)?;
        calls.push(call(None, name, &arguments(&all))?);
        if in_list && reader.takes("]") || !in_list && reader.is_at_end() {
            break;
        }
        let separated = reader.takes(",") || reader.takes(";");
        if in_list && !separated {
            return None;
        }
    }
    reader.is_at_end().then_some(calls)
}

/// `k="v", n=2)`, after the opening bracket.
fn keywords<'a>(reader: &mut Reader<'a>) -> Option<Vec<(&'a str, String)>> {
    let mut all = Vec::new();
    while !reader.takes(")") {
        let key = reader.name()?;
        if !reader.takes("=") {
            return None;
        }
        all.push((key, reader.value()?));
        if !reader.takes(",") {
            return reader.takes(")").then_some(all);
        }
    }
    Some(all)
}
