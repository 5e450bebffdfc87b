//! From tokens back to bytes.

use super::special::{BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED};
use super::spelling::{Spelling, byte_of_text, hex_byte};
use super::{Vocab, VocabKind};
use crate::{Result, Token, reserve};

/// What memory is for, in errors.
const TEXT: &str = "bytes of text";

impl Vocab {
    /// Append the bytes of one token. Control and unknown tokens have none unless `special` is set; an id outside the
    /// vocabulary never has any. The bytes need not be whole UTF-8. They are at most [`Vocab::max_piece_bytes`].
    pub fn piece(&self, id: Token, special: bool, out: &mut Vec<u8>) {
        self.spell(id, special, |bytes| out.extend_from_slice(bytes));
    }

    /// Length of the longest piece, control tokens included.
    pub fn max_piece_bytes(&self) -> usize {
        self.max_piece
    }

    pub(super) fn find_max_piece(&self) -> usize {
        (0..self.n_tokens() as Token).map(|id| self.piece_bytes(id, true)).max().unwrap_or(0)
    }

    /// Length of the piece of one token.
    fn piece_bytes(&self, id: Token, special: bool) -> usize {
        let mut length = 0;
        self.spell(id, special, |bytes| length += bytes.len());
        length
    }

    /// Call `put` with the bytes of one token, part by part.
    fn spell(&self, id: Token, special: bool, mut put: impl FnMut(&[u8])) {
        let Some(&attribute) = usize::try_from(id).ok().and_then(|i| self.attributes.get(i)) else { return };
        let text = self.texts.get(id as u32);
        let is_special = attribute & (CONTROL | UNKNOWN) != 0;
        if is_special && !special {
            return;
        }
        if matches!(self.spelling, Spelling::Backslashes | Spelling::Plain) {
            // In vocabularies without spaces that are escaped, all other tokens are spelled.
            match byte_of_text(text) {
                Some(byte) if self.spelling == Spelling::Plain && attribute & BYTE != 0 => put(&[byte]),
                _ => self.spelling.decode(text, put),
            }
        } else if is_special || attribute & USER_DEFINED != 0 {
            put(text);
        } else if attribute & NORMAL != 0 {
            self.spelling.decode(text, put);
        } else if attribute & BYTE != 0 {
            put(&[hex_byte(text)]);
        }
    }

    /// The text that tokens spell. `remove_special` drops the begin- and end-of-text tokens that [`Vocab::tokenize`]
    /// adds; `unparse_special` writes control tokens out. The space that tokenizing puts before a text is removed, and
    /// for vocabularies with that setting also spaces before punctuation.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn detokenize(&self, ids: &[Token], remove_special: bool, unparse_special: bool) -> Result<Vec<u8>> {
        if self.kind == VocabKind::None {
            return Ok(Vec::new());
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
        let length = ids.iter().fold(0usize, |sum, &id| sum.saturating_add(self.piece_bytes(id, unparse_special)));
        let mut out = reserve::list(length, TEXT)?;
        for (i, &id) in ids.iter().enumerate() {
            self.piece(id, unparse_special, &mut out);
            if i == 0 && strip_space && out.first() == Some(&b' ') {
                out.remove(0);
            }
        }
        if self.clean_spaces { clean_spaces(&out) } else { Ok(out) }
    }
}

/// Remove spaces before `? ! . ,`, around a single apostrophe, and before `'s 'm 're 've`.
fn clean_spaces(text: &[u8]) -> Result<Vec<u8>> {
    let text = drop_spaces(text, |rest| matches!(rest, [b'?' | b'!' | b'.' | b',', ..]))?;
    let mut lone = reserve::list(text.len(), TEXT)?;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        lone.push(byte);
        if at > 0 && text[at..].starts_with(b"' ") && text[at - 1] == b' ' {
            lone.truncate(lone.len() - 2);
            lone.push(byte);
            // The space after it is dropped, and does not count as a space before the next character either.
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

/// The text without the spaces directly before what `before` accepts.
fn drop_spaces(text: &[u8], before: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    let mut out = reserve::list(text.len(), TEXT)?;
    for (i, &byte) in text.iter().enumerate() {
        if !(byte == b' ' && before(&text[i + 1..])) {
            out.push(byte);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_are_cleaned_in_three_passes() {
        let clean = |text: &str| String::from_utf8(clean_spaces(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(clean("Hi , you ! really ? yes . ."), "Hi, you! really? yes..");
        assert_eq!(clean("a ' b"), "a'b");
        assert_eq!(clean("a ' ' b"), "a'' b");
        assert_eq!(clean("it 's we 're I 've I 'm you 'll I 'd don 't"), "it's we're I've I'm you 'll I 'd don 't");
        assert_eq!(clean(" . '"), ". '");
        assert_eq!(clean(""), "");
    }
}
