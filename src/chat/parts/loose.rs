//! Values as Python writes them, and as Gemma does: `True`, `'text'`, `{key:<|"|>text<|"|>}`. They become JSON.

use std::str::Chars;

/// How deep values nest.
const MAX_DEPTH: usize = 64;
/// Gemma's quotation mark.
const QUOTE: &str = "<|\"|>";

/// Reads values one after the other.
pub(super) struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Reader { rest: text }
    }

    /// Skips white space.
    pub(super) fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    pub(super) fn is_at_end(&mut self) -> bool {
        self.space();
        self.rest.is_empty()
    }

    /// Takes the text, if it is next.
    pub(super) fn takes(&mut self, text: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A name: letters, digits and `_ . -`.
    pub(super) fn name(&mut self) -> Option<&'a str> {
        self.space();
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || "_.-".contains(c))).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// A value, as JSON.
    pub(super) fn value(&mut self) -> Option<String> {
        let mut json = String::new();
        self.write_value(&mut json, 0)?;
        Some(json)
    }

    fn write_value(&mut self, json: &mut String, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.space();
        if let Some(text) = self.string()? {
            json.push_str(&serde_json::Value::from(text).to_string());
            return Some(());
        }
        if self.takes("{") {
            return self.list(json, ["{", "}"], &["}"], |reader, json| {
                let key = match reader.string()? {
                    Some(key) => key,
                    None => reader.name()?.into(),
                };
                json.push_str(&serde_json::Value::from(key).to_string());
                json.push(':');
                if !reader.takes(":") {
                    return None;
                }
                reader.write_value(json, depth + 1)
            });
        }
        if self.takes("[") || self.takes("(") {
            return self.list(json, ["[", "]"], &["]", ")"], |reader, json| reader.write_value(json, depth + 1));
        }
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || "+-._".contains(c))).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "true" | "True" => json.push_str("true"),
            "false" | "False" => json.push_str("false"),
            "null" | "None" => json.push_str("null"),
            number => {
                serde_json::from_str::<serde_json::Number>(number).ok()?;
                json.push_str(number);
            }
        }
        Some(())
    }

    /// Items between brackets, with commas between them, after the opening one.
    fn list(
        &mut self,
        json: &mut String,
        [open, close]: [&str; 2],
        ends: &[&str],
        mut item: impl FnMut(&mut Self, &mut String) -> Option<()>,
    ) -> Option<()> {
        json.push_str(open);
        let mut first = true;
        loop {
            if ends.iter().any(|end| self.takes(end)) {
                json.push_str(close);
                return Some(());
            }
            if !first {
                json.push(',');
            }
            first = false;
            self.space();
            item(self, json)?;
            if !self.takes(",") && !ends.iter().any(|end| self.rest.trim_start().starts_with(end)) {
                return None;
            }
        }
    }

    /// A string, if one is next; the outer `None` where it has no end.
    fn string(&mut self) -> Option<Option<String>> {
        if let Some(rest) = self.rest.strip_prefix(QUOTE) {
            let (text, rest) = rest.split_once(QUOTE)?;
            self.rest = rest;
            return Some(Some(text.into()));
        }
        let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '"' | '\'')) else { return Some(None) };
        let mut chars = self.rest[1..].chars();
        let mut text = String::new();
        loop {
            match chars.next()? {
                c if c == quote => break,
                '\\' => escape(&mut chars, &mut text)?,
                c => text.push(c),
            }
        }
        self.rest = chars.as_str();
        Some(Some(text))
    }
}

/// What stands after a backslash.
fn escape(chars: &mut Chars<'_>, text: &mut String) -> Option<()> {
    let digits = |chars: &mut Chars<'_>, n: usize| {
        let digits: String = chars.by_ref().take(n).collect();
        u32::from_str_radix(&digits, 16).ok()
    };
    match chars.next()? {
        'n' => text.push('\n'),
        't' => text.push('\t'),
        'r' => text.push('\r'),
        'x' => text.push(char::from_u32(digits(chars, 2)?)?),
        'u' => text.push(char::from_u32(digits(chars, 4)?)?),
        '\n' => {}
        c @ ('\\' | '\'' | '"') => text.push(c),
        c => {
            text.push('\\');
            text.push(c);
        }
    }
    Some(())
}
