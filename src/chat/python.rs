//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use minijinja::Value;
use minijinja::value::ValueKind;
use std::borrow::Cow;
use std::fmt::Write;

/// The longest text that is made of a value, and how deep values nest: a template can write a value that holds itself
/// twice, twice, and so on.
const MAX_TEXT: usize = 8 << 20;
const MAX_DEPTH: usize = 128;

/// A value that has no text.
pub(super) type Refused = String;

/// Python's `str(value)`. What is undefined prints as nothing.
pub(super) fn text(value: &Value) -> Result<Cow<'_, str>, Refused> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Ok(text.into()),
        (_, ValueKind::Undefined) => Ok("".into()),
        _ => {
            let mut out = String::new();
            write_repr(value, 0, &mut out)?;
            Ok(out.into())
        }
    }
}

fn bounded(depth: usize, out: &str) -> Result<(), Refused> {
    if depth > MAX_DEPTH {
        return Err(format!("a value is nested more than {MAX_DEPTH} deep"));
    }
    if out.len() > MAX_TEXT {
        return Err(format!("a value's text is longer than {MAX_TEXT} bytes"));
    }
    Ok(())
}

/// Python's `repr(value)`.
fn write_repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Refused> {
    bounded(depth, out)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number => write_number(value, out),
        ValueKind::String => _ = write!(out, "{value:?}"),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut n = 0;
            for item in items(value)? {
                if n > 0 {
                    out.push_str(", ");
                }
                write_repr(&item, depth + 1, out)?;
                n += 1;
            }
            if value.is_tuple() && n == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            let is_namespace = is_namespace(value);
            out.push_str(if is_namespace { "<Namespace {" } else { "{" });
            for (n, key) in items(value)?.enumerate() {
                if n > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out)?;
            }
            out.push_str(if is_namespace { "}>" } else { "}" });
        }
        _ => _ = write!(out, "{value}"),
    }
    Ok(())
}

pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

fn items(value: &Value) -> Result<impl Iterator<Item = Value> + use<>, Refused> {
    value.try_iter().map_err(|e| e.to_string())
}

fn write_number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => out.push_str(&float(number)),
        _ => _ = write!(out, "{value}"),
    }
}

/// A float as Python prints it: the shortest digits that mean it, an exponent of two digits below 1e-4 and from 1e16.
fn float(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan".into()
        } else if value > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(e) if value != 0.0 && !(-4..16).contains(&e) => {
            format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs())
        }
        _ => format!("{value:?}"),
    }
}

/// How `json.dumps` writes.
pub(super) struct Json {
    pub(super) ascii: bool,
    /// What a level is indented by; `None` for one line.
    pub(super) indent: Option<String>,
    pub(super) between_items: String,
    pub(super) after_key: String,
    pub(super) sort_keys: bool,
}

impl Json {
    /// The value as JSON; an error says which kind of value JSON has not.
    pub(super) fn dump(&self, value: &Value) -> Result<String, Refused> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Refused> {
        bounded(depth, out)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(number) if number.is_nan() => out.push_str("NaN"),
                Ok(number) if number.is_infinite() => out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" }),
                _ => write_number(value, out),
            },
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => {
                let all: Vec<Value> = items(value)?.collect();
                self.enclosed(['[', ']'], all.len(), depth, out, |n, out| self.write(&all[n], depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = items(value)?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.enclosed(['{', '}'], keys.len(), depth, out, |n, out| {
                    self.write_string(&text(&keys[n])?, out);
                    out.push_str(&self.after_key);
                    self.write(&value.get_item(&keys[n]).unwrap_or_default(), depth + 1, out)
                })?;
            }
            other => return Err(format!("a value of type {other} has no JSON")),
        }
        Ok(())
    }

    fn enclosed(
        &self,
        ends: [char; 2],
        count: usize,
        depth: usize,
        out: &mut String,
        mut item: impl FnMut(usize, &mut String) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(ends[0]);
        for n in 0..count {
            if n > 0 {
                out.push_str(&self.between_items);
            }
            line(depth + 1, out);
            item(n, out)?;
        }
        if count > 0 {
            line(depth, out);
        }
        out.push(ends[1]);
        Ok(())
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || self.ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
