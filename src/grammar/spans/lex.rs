//! The words of a GBNF text, as far as spans need them: where names, literals and marks are.
//!
//! It serves texts whose rules are to be renamed or marked, and judges nothing: what it does not know makes it return
//! `None`, and the text is left to the grammar's own reader, whose errors name the place.

use std::collections::HashMap;
use std::ops::Range;

/// A word of a GBNF text with its place, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lexeme<'a> {
    pub(super) word: Word<'a>,
    pub(super) at: usize,
    pub(super) end: usize,
}

/// What a word of a GBNF text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Word<'a> {
    /// A rule's name.
    Name(&'a str),
    /// `::=`
    Is,
    /// A literal, quotes included.
    Literal(&'a str),
    /// A class of characters, `.`, or a reference to a token.
    Terminal(&'a str),
    /// `(`, `)`, `|`, or a repetition: `*`, `+`, `?`, `{…}`.
    Mark(&'a str),
}

/// The words of a text; `None` where something in it is unknown.
pub(super) fn words(text: &str) -> Option<Vec<Lexeme<'_>>> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let (len, make): (usize, fn(&str) -> Option<Word<'_>>) = match byte {
            b' ' | b'\t' | b'\r' | b'\n' => (1, |_| None),
            b'#' => (rest.iter().position(|&b| b == b'\n' || b == b'\r').unwrap_or(rest.len()), |_| None),
            b'"' => (quoted(rest, b'"')?, |text| Some(Word::Literal(text))),
            b'[' => (quoted(rest, b']')?, |text| Some(Word::Terminal(text))),
            b'.' => (1, |text| Some(Word::Terminal(text))),
            b'<' => (rest.iter().position(|&b| b == b'>')? + 1, |text| Some(Word::Terminal(text))),
            b'!' if rest.get(1) == Some(&b'<') => {
                (rest.iter().position(|&b| b == b'>')? + 1, |text| Some(Word::Terminal(text)))
            }
            b'(' | b')' | b'|' | b'*' | b'+' | b'?' => (1, |text| Some(Word::Mark(text))),
            b'{' => (rest.iter().position(|&b| b == b'}')? + 1, |text| Some(Word::Mark(text))),
            b':' if rest.starts_with(b"::=") => (3, |_| Some(Word::Is)),
            _ if is_name(byte) => {
                let len = rest.iter().position(|&b| !is_name(b)).unwrap_or(rest.len());
                (len, |text| Some(Word::Name(text)))
            }
            _ => return None,
        };
        if let Some(word) = make(text.get(at..at + len)?) {
            out.push(Lexeme { word, at, end: at + len });
        }
        at += len;
    }
    Some(out)
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// The length of a literal or class, up to its closing character, which a backslash escapes.
fn quoted(text: &[u8], close: u8) -> Option<usize> {
    let mut at = 1;
    loop {
        match *text.get(at)? {
            b'\\' => at += 2,
            byte if byte == close => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// The text that a literal matches; `None` where it has an escape that nothing allows.
pub(super) fn unquoted(literal: &str) -> Option<String> {
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let (mut out, mut rest) = (String::with_capacity(inner.len()), inner.chars());
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let digits = match rest.next()? {
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            c @ ('\\' | '"' | '[' | ']' | '-') => Ok(c),
            'x' => Err(2),
            'u' => Err(4),
            'U' => Err(8),
            _ => return None,
        };
        out.push(match digits {
            Ok(c) => c,
            Err(count) => {
                let text = rest.as_str().get(..count)?;
                rest = rest.as_str().get(count..)?.chars();
                char::from_u32(u32::from_str_radix(text, 16).ok()?)?
            }
        });
    }
    Some(out)
}

/// Appends a text as a literal.
pub(super) fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '\\' | '"' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The rules of a text, each with the range of its body in the list of words; `None` where one is defined twice or
/// something comes before the first.
pub(super) fn rules<'a>(words: &[Lexeme<'a>]) -> Option<HashMap<&'a str, Range<usize>>> {
    let is = |at: usize| matches!(words.get(at).map(|one| one.word), Some(Word::Is));
    let mut starts = (0..words.len()).filter(|&at| is(at + 1) && matches!(words[at].word, Word::Name(_))).peekable();
    if starts.peek() != Some(&0) {
        return None;
    }
    let mut out = HashMap::new();
    while let Some(start) = starts.next() {
        let body = start + 2..starts.peek().copied().unwrap_or(words.len());
        let Word::Name(name) = words[start].word else { return None };
        if out.insert(name, body).is_some() {
            return None;
        }
    }
    Some(out)
}

/// Appends the rules of a text with `prefix` before each name; false where the text is not understood.
pub(super) fn prefixed(text: &str, prefix: &str, out: &mut String) -> bool {
    let Some(words) = words(text) else { return false };
    let mut at = 0;
    for word in &words {
        if let Word::Name(_) = word.word {
            out.push_str(&text[at..word.at]);
            out.push_str(prefix);
            at = word.at;
        }
    }
    out.push_str(&text[at..]);
    out.push('\n');
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_grammar_have_their_places() {
        let text = "root ::= \"a\\\"]\" [^\"\\]]* ( b_1 | <[7]> ) # \"c\"\nb_1 ::= .{2,3}";
        let words = words(text).unwrap();
        let shown: Vec<_> = words.iter().map(|one| &text[one.at..one.end]).collect();
        let expected =
            ["root", "::=", "\"a\\\"]\"", "[^\"\\]]", "*", "(", "b_1", "|", "<[7]>", ")", "b_1", "::=", ".", "{2,3}"];
        assert_eq!(shown, expected);
        let rules = rules(&words).unwrap();
        assert_eq!((rules["root"].clone(), rules["b_1"].clone()), (2..10, 12..14));
    }

    #[test]
    fn a_text_that_is_no_grammar_is_left_alone() {
        for text in ["root ::= \"a", "root ::= a'b'", "\"a\" root ::= \"a\"", "root ::= {", "a ::= \"b\" a ::= \"c\""] {
            assert!(words(text).and_then(|words| rules(&words)).is_none(), "{text}");
        }
    }

    #[test]
    fn a_literal_comes_back_as_its_text() {
        for text in ["", "a\"b\\c", "\n\r\t\u{1}é日\u{7f}", "{\"a\":[1]}-"] {
            let mut literal = String::new();
            quote(text, &mut literal);
            assert_eq!(unquoted(&literal).as_deref(), Some(text), "{literal}");
        }
        assert_eq!(unquoted("\"\\x41\\u00e9\\U0001F600\"").as_deref(), Some("Aé😀"));
        assert_eq!((unquoted("\"\\q\""), unquoted("\"\\x4\"")), (None, None));
    }

    #[test]
    fn rules_are_renamed_outside_of_literals() {
        let mut out = String::new();
        assert!(prefixed("root ::= a \"a\" [a]\na ::= \"x\"", "p-", &mut out));
        assert_eq!(out, "p-root ::= p-a \"a\" [a]\np-a ::= \"x\"\n");
    }
}
