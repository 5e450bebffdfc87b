//! How the texts of tokens are written: spaces as U+2581, bytes as characters or as `<0xXX>`.

use super::unicode::{TEXT, char_byte};
use crate::{Result, reserve};

/// U+2581, the space in the texts of some vocabularies.
pub(super) const SPACE_MARK: &[u8] = "\u{2581}".as_bytes();

/// How the text of a normal token is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// With U+2581 for spaces.
    Escaped,
    /// With a character for each byte.
    Bytes,
    /// With escapes after backslashes.
    Backslashes,
    /// As it is.
    Plain,
}

impl Spelling {
    /// Call `put` with the bytes of a text of this spelling, part by part.
    pub(super) fn decode(self, text: &[u8], mut put: impl FnMut(&[u8])) {
        match self {
            Spelling::Escaped => unescape_spaces(text, put),
            Spelling::Bytes => decode_bytes(text, put),
            // Escapes are checked when the vocabulary is read.
            Spelling::Backslashes => _ = unescape_backslashes(text, put),
            Spelling::Plain => put(text),
        }
    }
}

/// Write `prefix`, and the text with each space as U+2581.
pub(super) fn escape_spaces(prefix: &[u8], text: &[u8], out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    let spaces = text.iter().filter(|&&b| b == b' ').count();
    reserve::reserve(out, prefix.len() + text.len() + 2 * spaces, TEXT)?;
    out.extend_from_slice(prefix);
    for &b in text {
        match b {
            b' ' => out.extend_from_slice(SPACE_MARK),
            _ => out.push(b),
        }
    }
    Ok(())
}

fn unescape_spaces(text: &[u8], mut put: impl FnMut(&[u8])) {
    let mut rest = text;
    while !rest.is_empty() {
        match rest.strip_prefix(SPACE_MARK) {
            Some(behind) => {
                put(b" ");
                rest = behind;
            }
            None => {
                let (first, behind) = rest.split_at(1);
                put(first);
                rest = behind;
            }
        }
    }
}

/// Call `put` with the bytes of a text in which `\t`, `\n`, `\r`, `\xHH` with small digits, and any other character
/// after a backslash are escapes. An escape that is cut short or has another digit is described in the error.
pub(super) fn unescape_backslashes(text: &[u8], mut put: impl FnMut(&[u8])) -> std::result::Result<(), &'static str> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err("has an escape `\\x` without two digits of 0 to 9 and a to f"),
    };
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&b| b == b'\\') {
        put(&rest[..at]);
        rest = match &rest[at + 1..] {
            [] => return Err("ends in a backslash"),
            [b'x', high, low, behind @ ..] => {
                put(&[digit(*high)? << 4 | digit(*low)?]);
                behind
            }
            [b'x', ..] => return Err("ends within an escape `\\x`"),
            [first, behind @ ..] => {
                put(&[match first {
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'r' => b'\r',
                    other => *other,
                }]);
                behind
            }
        };
    }
    put(rest);
    Ok(())
}

/// The longest text of a token, in bytes, in which each character that encodes no byte is written together with the
/// whole text: 256, so that a piece is at most some hundred times its text.
const QUOTED_WHOLE: usize = 256;

fn decode_bytes(text: &[u8], mut put: impl FnMut(&[u8])) {
    // These characters encode themselves.
    if text.iter().all(u8::is_ascii_graphic) {
        return put(text);
    }
    // Texts come from the file as UTF-8.
    let Ok(text) = std::str::from_utf8(text) else { return };
    if text.len() > QUOTED_WHOLE && text.chars().any(|c| char_byte(c).is_none()) {
        return put(text.as_bytes());
    }
    for c in text.chars() {
        match char_byte(c) {
            Some(byte) => put(&[byte]),
            None => {
                // The spelling that llama.cpp gives a character that encodes no byte.
                put(b"[UNK_BYTE_0x");
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    put(&[hex_digit(byte >> 4), hex_digit(byte & 15)]);
                }
                put(text.as_bytes());
                put(b"]");
            }
        }
    }
}

fn hex_digit(value: u8) -> u8 {
    b"0123456789abcdef"[usize::from(value)]
}

/// The byte of a text of the form `<0xXX>`; digits that are none end the number.
pub(super) fn hex_byte(text: &[u8]) -> u8 {
    let digits = text.iter().skip(3).take(2).map_while(|&b| char::from(b).to_digit(16));
    digits.fold(0, |byte, digit| byte << 4 | digit as u8)
}

/// The byte of a text that has exactly the form `<0xXX>`.
pub(super) fn byte_of_text(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = text else { return None };
    (high.is_ascii_hexdigit() && low.is_ascii_hexdigit()).then(|| hex_byte(text))
}

/// The text of a byte token.
pub(super) fn hex_text(byte: u8) -> [u8; 6] {
    let digit = |n: u8| b"0123456789ABCDEF"[usize::from(n & 15)];
    [b'<', b'0', b'x', digit(byte >> 4), digit(byte), b'>']
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_texts() {
        assert_eq!(hex_byte(b"<0x0A>"), 10);
        assert_eq!(hex_byte(b"<0xff>"), 255);
        assert_eq!(hex_byte(b"<0x"), 0);
        assert_eq!(byte_of_text(b"<0xfF>"), Some(255));
        assert!([b"<0xfG>" as &[u8], b"<0xff", b"<0xfff>"].map(byte_of_text).iter().all(Option::is_none));
    }

    #[test]
    fn escapes() {
        let bytes = |text: &str| {
            let mut out = Vec::new();
            unescape_backslashes(text.as_bytes(), |bytes| out.extend_from_slice(bytes)).map(|()| out)
        };
        assert_eq!(bytes(r"a\tb\\\x0a\'\n\q\xe6\x9").err(), Some("ends within an escape `\\x`"));
        assert_eq!(bytes(r"a\tb\\\x0a\'\n\r\q\xe6漢").unwrap(), b"a\tb\\\x0a'\n\rq\xe6\xe6\xbc\xa2");
        assert!(bytes(r"a\\\").is_err() && bytes(r"\x4").is_err() && bytes(r"\xAB").is_err() && bytes(r"\x").is_err());
    }
}
