//! From tokens back to bytes.

use super::special::{BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED};
use super::unicode::char_byte;
use super::{Vocab, VocabKind};
use crate::Token;
use std::io::Write;

/// U+2581, which stands for a space in the texts of some vocabularies.
pub(super) const SPACE_MARK: &[u8] = "\u{2581}".as_bytes();

/// How the text of a normal token is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// With U+2581 for spaces.
    Escaped,
    /// With a character for each byte.
    Bytes,
}

impl Vocab {
    /// Append the bytes of one token. Control and unknown tokens have none unless `special` is set; an id outside the
    /// vocabulary never has any. The bytes need not be whole UTF-8.
    pub fn piece(&self, id: Token, special: bool, out: &mut Vec<u8>) {
        let Some(&attribute) = usize::try_from(id).ok().and_then(|i| self.attributes.get(i)) else { return };
        let text = self.texts.get(id as u32);
        if attribute & (CONTROL | UNKNOWN) != 0 {
            if special {
                out.extend_from_slice(text);
            }
        } else if attribute & USER_DEFINED != 0 {
            out.extend_from_slice(text);
        } else if attribute & NORMAL != 0 {
            match self.spelling {
                Spelling::Escaped => unescape_spaces(text, out),
                Spelling::Bytes => decode_bytes(text, out),
            }
        } else if attribute & BYTE != 0 {
            out.push(hex_byte(text));
        }
    }

    /// Length of the longest piece, control tokens included.
    pub fn max_piece_bytes(&self) -> usize {
        self.max_piece
    }

    pub(super) fn find_max_piece(&self) -> usize {
        let mut piece = Vec::new();
        let lengths = (0..self.n_tokens() as Token).map(|id| {
            piece.clear();
            self.piece(id, true, &mut piece);
            piece.len()
        });
        lengths.max().unwrap_or(0)
    }

    /// The text that tokens spell. `remove_special` drops the begin- and end-of-text tokens that [`Vocab::tokenize`]
    /// adds; `unparse_special` writes control tokens out. The space that tokenizing puts before a text is taken off
    /// again, and vocabularies made so have spaces before punctuation cleaned away.
    pub fn detokenize(&self, ids: &[Token], remove_special: bool, unparse_special: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        if self.kind == VocabKind::None {
            return out;
        }
        let mut ids = ids;
        let mut strip_space = self.add_space_prefix;
        if remove_special
            && self.add_bos
            && let [first, rest @ ..] = ids
            && Some(*first) == self.special.bos
        {
            ids = rest;
            strip_space = false;
        }
        if remove_special
            && self.add_eos
            && let [rest @ .., last] = ids
            && Some(*last) == self.special.eos
        {
            ids = rest;
        }
        for (i, &id) in ids.iter().enumerate() {
            self.piece(id, unparse_special, &mut out);
            if i == 0 && strip_space && out.first() == Some(&b' ') {
                out.remove(0);
            }
        }
        if self.clean_spaces { clean_spaces(&out) } else { out }
    }
}

fn unescape_spaces(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(&first) = rest.first() {
        match rest.strip_prefix(SPACE_MARK) {
            Some(behind) => {
                out.push(b' ');
                rest = behind;
            }
            None => {
                out.push(first);
                rest = &rest[1..];
            }
        }
    }
}

fn decode_bytes(text: &[u8], out: &mut Vec<u8>) {
    // Texts come from the file as UTF-8.
    let Ok(text) = std::str::from_utf8(text) else { return };
    for c in text.chars() {
        match char_byte(c) {
            Some(byte) => out.push(byte),
            None => {
                // The spelling that other tools give a character that stands for no byte.
                out.extend_from_slice(b"[UNK_BYTE_0x");
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a vector does not fail.
                    let _ = write!(out, "{byte:02x}");
                }
                out.extend_from_slice(text.as_bytes());
                out.push(b']');
            }
        }
    }
}

/// The byte of a text of the form `<0xXX>`; digits that are none end the number.
fn hex_byte(text: &[u8]) -> u8 {
    let digits = text.iter().skip(3).take(2).map_while(|&b| char::from(b).to_digit(16));
    digits.fold(0, |byte, digit| byte << 4 | digit as u8)
}

/// Take spaces away before `? ! . ,`, around a lone apostrophe, and before `'s 'm 're 've`.
fn clean_spaces(text: &[u8]) -> Vec<u8> {
    let text = drop_spaces(text, |rest| matches!(rest, [b'?' | b'!' | b'.' | b',', ..]));
    let mut lone = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        lone.push(byte);
        if at > 0 && text[at..].starts_with(b"' ") && text[at - 1] == b' ' {
            lone.truncate(lone.len() - 2);
            lone.push(byte);
            // The space behind is dropped; it does not count as one before what follows it either.
            at += 2;
            if let Some(&next) = text.get(at) {
                lone.push(next);
                at += 1;
            }
        } else {
            at += 1;
        }
    }
    drop_spaces(&lone, |rest| matches!(rest, [b'\'', b's' | b'm', ..] | [b'\'', b'r' | b'v', b'e', ..]))
}

/// The text without the spaces that stand directly before what `before` accepts.
fn drop_spaces(text: &[u8], before: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for (i, &byte) in text.iter().enumerate() {
        if !(byte == b' ' && before(&text[i + 1..])) {
            out.push(byte);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_are_cleaned_in_three_passes() {
        let clean = |text: &str| String::from_utf8(clean_spaces(text.as_bytes())).unwrap();
        assert_eq!(clean("Hi , you ! really ? yes . ."), "Hi, you! really? yes..");
        assert_eq!(clean("a ' b"), "a'b");
        assert_eq!(clean("a ' ' b"), "a'' b");
        assert_eq!(clean("it 's we 're I 've I 'm you 'll I 'd don 't"), "it's we're I've I'm you 'll I 'd don 't");
        assert_eq!(clean(" . '"), ". '");
        assert_eq!(clean(""), "");
    }

    #[test]
    fn byte_texts() {
        assert_eq!(hex_byte(b"<0x0A>"), 10);
        assert_eq!(hex_byte(b"<0xff>"), 255);
        assert_eq!(hex_byte(b"<0x"), 0);
    }
}
