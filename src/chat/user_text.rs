//! What hosts pass is text: nothing in it becomes a control token.
//!
//! Wherever a host's text spells a control token, or could be one's beginning or end beside the template's text, a mark
//! goes into the spelling: a character that stands in no input. Templates see the texts all but unchanged (they search,
//! split and trim them); after rendering, the vocabulary finds its special tokens in the marked text and then drops the
//! marks.

use crate::vocab::Vocab;
use minijinja::Value;
use minijinja::value::{Tuple, ValueKind};

/// How deep values of inputs nest, as `serde_json` reads them.
const MAX_DEPTH: usize = 128;

/// A noncharacter of Unicode that stands neither in the values nor in the template.
pub(super) fn unused_mark(values: &[(String, Value)], source: &str) -> Option<char> {
    ('\u{fdd0}'..='\u{fdef}').find(|&c| !source.contains(c) && !values.iter().any(|(_, v)| holds(v, c, 0)))
}

fn holds(value: &Value, c: char, depth: usize) -> bool {
    if let Some(text) = value.as_str() {
        return text.contains(c);
    }
    let inside = |item: &Value| holds(item, c, depth + 1);
    match value.kind() {
        ValueKind::Seq if depth < MAX_DEPTH => value.try_iter().into_iter().flatten().any(|item| inside(&item)),
        ValueKind::Map if depth < MAX_DEPTH => value
            .try_iter()
            .into_iter()
            .flatten()
            .any(|key| inside(&key) || value.get_item(&key).is_ok_and(|v| inside(&v))),
        _ => false,
    }
}

/// The texts of a vocabulary's control tokens.
#[derive(Default)]
pub(super) struct ControlTexts {
    /// Sorted by their bytes.
    texts: Vec<Box<str>>,
    /// The same, each from its end; sorted.
    reversed: Vec<Box<[u8]>>,
}

impl ControlTexts {
    pub(super) fn of(vocab: &Vocab) -> Self {
        let mut texts: Vec<Box<str>> = vocab.control_texts().filter(|text| !text.is_empty()).map(Box::from).collect();
        texts.sort();
        let mut reversed: Vec<Box<[u8]>> = texts.iter().map(|text| text.bytes().rev().collect()).collect();
        reversed.sort();
        ControlTexts { texts, reversed }
    }

    /// The value with marks in all its texts.
    pub(super) fn marked(&self, value: &Value, mark: char) -> Value {
        if self.texts.is_empty() {
            return value.clone();
        }
        self.marked_below(value, mark, 0)
    }

    fn marked_below(&self, value: &Value, mark: char, depth: usize) -> Value {
        if let Some(text) = value.as_str() {
            return self.marked_text(text, mark).map_or_else(|| value.clone(), Value::from);
        }
        let inside = |item: Value| self.marked_below(&item, mark, depth + 1);
        match value.kind() {
            ValueKind::Seq if depth < MAX_DEPTH => {
                let items: Vec<Value> = value.try_iter().into_iter().flatten().map(inside).collect();
                if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }
            }
            ValueKind::Map if depth < MAX_DEPTH => {
                let keys = value.try_iter().into_iter().flatten();
                Value::from_pairs(keys.map(|key| {
                    let item = value.get_item(&key).unwrap_or_default();
                    (inside(key), inside(item))
                }))
            }
            _ => value.clone(),
        }
    }

    /// The text with its marks; `None` where it needs none.
    fn marked_text(&self, text: &str, mark: char) -> Option<String> {
        // Before which bytes a mark goes. Templates trim texts, so a text also ends where its white space begins.
        let mut places = Vec::new();
        let end = text.trim_end().len();
        for (at, c) in text.char_indices() {
            let bytes = text.as_bytes();
            if self.begins(&bytes[at..]) || self.begins(bytes.get(at..end).unwrap_or_default()) {
                places.push(at + c.len_utf8());
            }
        }
        for start in [0, text.len() - text.trim_start().len()] {
            if self.ends(&text.as_bytes()[start..]) {
                places.push(start);
            }
        }
        if places.is_empty() {
            return None;
        }
        places.sort_unstable();
        places.dedup();
        let mut out = String::with_capacity(text.len() + places.len() * mark.len_utf8());
        let mut from = 0;
        for place in places {
            out.push_str(&text[from..place]);
            out.push(mark);
            from = place;
        }
        out.push_str(&text[from..]);
        Some(out)
    }

    /// Whether a control token begins here: its whole text, or as much of it as there is text.
    fn begins(&self, text: &[u8]) -> bool {
        let mut known = self.texts.as_slice();
        for (n, byte) in text.iter().enumerate() {
            let from = known.partition_point(|t| t.as_bytes()[n] < *byte);
            let to = known.partition_point(|t| t.as_bytes()[n] <= *byte);
            known = &known[from..to];
            match known.first() {
                None => return false,
                Some(first) if first.len() == n + 1 => return true,
                Some(_) => {}
            }
        }
        !text.is_empty()
    }

    /// Whether a control token that began before the text could end in it.
    fn ends(&self, text: &[u8]) -> bool {
        // Each beginning of the text that is the end of a control token and not all of it.
        let longest = self.texts.iter().map(|t| t.len()).max().unwrap_or(0);
        (1..=text.len().min(longest)).any(|n| {
            let end: Vec<u8> = text[..n].iter().rev().copied().collect();
            let at = self.reversed.partition_point(|t| **t < *end);
            self.reversed[at..].iter().take_while(|t| t.starts_with(&end)).any(|t| t.len() > n)
        })
    }
}
