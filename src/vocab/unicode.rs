//! Code points as the splitters see them: lenient UTF-8, Unicode categories, and the *collapsed* text.
//!
//! Pre-tokenizers look at a text with one byte per code point: ASCII is itself, every other code point is replaced by
//! its category ([`collapse`]). Whole groups of the pre-tokenizers are defined on that form (a pattern's `\p{Lu}` and
//! `\p{L}` cannot differ there), so exactness means to use it too. Categories are those of Unicode 15.1: a later
//! version would split texts with the newest letters differently from the vocabulary's own tokenizer.

use super::pace::Pace;
use crate::{Result, reserve};
use std::borrow::Cow;
use unicode_general_category::{GeneralCategory as Gc, get_general_category};
use unicode_normalization::char::decompose_canonical;

/// What memory is for, in errors.
pub(super) const TEXT: &str = "bytes of a text";

/// The collapsed byte of a non-ASCII code point of any other category.
const OTHER: u8 = 0xd0;
/// The collapsed bytes of non-ASCII numbers, letters, punctuation, combining marks and symbols.
pub(super) const NUMBER_BYTE: u8 = 0xd1;
pub(super) const LETTER_BYTE: u8 = 0xd2;
pub(super) const PUNCTUATION_BYTE: u8 = 0xd3;
pub(super) const MARK_BYTE: u8 = 0xd4;
pub(super) const SYMBOL_BYTE: u8 = 0xd5;
/// The collapsed byte of non-ASCII white space (vertical tab, which every `\s` matches).
const SPACE_BYTE: u8 = 0x0b;

pub(super) const REPLACEMENT: [u8; 3] = [0xef, 0xbf, 0xbd];

/// Classes of collapsed bytes, as bits of [`class`].
pub(super) const LETTER: u8 = 1;
pub(super) const NUMBER: u8 = 2;
pub(super) const SPACE: u8 = 4;
pub(super) const MARK: u8 = 8;
pub(super) const PUNCTUATION: u8 = 16;
pub(super) const SYMBOL: u8 = 32;

static CLASSES: [u8; 256] = build_classes();

const fn build_classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut b = 0;
    while b < 128 {
        let byte = b as u8;
        table[b] = match byte {
            b'a'..=b'z' | b'A'..=b'Z' => LETTER,
            b'0'..=b'9' => NUMBER,
            b'\t'..=b'\r' | b' ' => SPACE,
            b'$' | b'+' | b'<'..=b'>' | b'^' | b'`' | b'|' | b'~' => SYMBOL,
            b'!'..=b'~' => PUNCTUATION,
            _ => 0,
        };
        b += 1;
    }
    table[NUMBER_BYTE as usize] = NUMBER;
    table[LETTER_BYTE as usize] = LETTER;
    table[PUNCTUATION_BYTE as usize] = PUNCTUATION;
    table[MARK_BYTE as usize] = MARK;
    table[SYMBOL_BYTE as usize] = SYMBOL;
    table
}

/// The class bits of a collapsed byte; 0 for controls and the unassigned.
#[inline]
pub(super) fn class(collapsed: u8) -> u8 {
    CLASSES[usize::from(collapsed)]
}

/// Ranges whose assigned code points all came with Unicode 16.0; they count as unassigned.
const AFTER_15_1: [(u32, u32); 28] = [
    (0x0897, 0x0897),
    (0x1b4e, 0x1b4f),
    (0x1b7f, 0x1b7f),
    (0x1c89, 0x1c8a),
    (0x2427, 0x2429),
    (0x31e4, 0x31e5),
    (0xa7cb, 0xa7cd),
    (0xa7da, 0xa7dc),
    (0x105c0, 0x105f3),
    (0x10d40, 0x10d8f),
    (0x10ec2, 0x10efc),
    (0x11380, 0x113e2),
    (0x116d0, 0x116e3),
    (0x11bc0, 0x11bf9),
    (0x11f5a, 0x11f5a),
    (0x13460, 0x143fa),
    (0x16100, 0x16139),
    (0x16d40, 0x16d79),
    (0x18cff, 0x18cff),
    (0x1cc00, 0x1ceb3),
    (0x1e5d0, 0x1e5ff),
    (0x1f8b2, 0x1f8c1),
    (0x1fa89, 0x1fa8f),
    (0x1fabe, 0x1fabe),
    (0x1fac6, 0x1fac6),
    (0x1fadc, 0x1fadf),
    (0x1fae9, 0x1fae9),
    (0x1fbcb, 0x1fbef),
];

/// The byte for a code point in collapsed text. Surrogates and values beyond U+10FFFF are `OTHER`.
#[inline]
pub(super) fn collapse(cp: u32) -> u8 {
    if cp < 128 { cp as u8 } else { collapse_wide(cp) }
}

fn collapse_wide(cp: u32) -> u8 {
    let Some(c) = char::from_u32(cp) else { return OTHER };
    if c.is_whitespace() {
        return SPACE_BYTE;
    }
    let byte = match get_general_category(c) {
        Gc::UppercaseLetter | Gc::LowercaseLetter | Gc::TitlecaseLetter | Gc::ModifierLetter | Gc::OtherLetter => {
            LETTER_BYTE
        }
        Gc::DecimalNumber | Gc::LetterNumber | Gc::OtherNumber => NUMBER_BYTE,
        Gc::NonspacingMark | Gc::SpacingMark | Gc::EnclosingMark => MARK_BYTE,
        Gc::ConnectorPunctuation
        | Gc::DashPunctuation
        | Gc::OpenPunctuation
        | Gc::ClosePunctuation
        | Gc::InitialPunctuation
        | Gc::FinalPunctuation
        | Gc::OtherPunctuation => PUNCTUATION_BYTE,
        Gc::MathSymbol | Gc::CurrencySymbol | Gc::ModifierSymbol | Gc::OtherSymbol => SYMBOL_BYTE,
        _ => return OTHER,
    };
    let next = AFTER_15_1.partition_point(|&(first, _)| first <= cp);
    match next.checked_sub(1).map(|i| AFTER_15_1[i]) {
        Some((_, last)) if cp <= last => OTHER,
        _ => byte,
    }
}

/// Whether a code point is a control, a format character, a surrogate or of private use.
pub(super) fn is_control(cp: u32) -> bool {
    let control = |c| matches!(get_general_category(c), Gc::Control | Gc::Format | Gc::PrivateUse | Gc::Surrogate);
    char::from_u32(cp).is_none_or(control)
}

/// The first code point of the canonical decomposition: a letter without its accents.
pub(super) fn without_accents(cp: u32) -> u32 {
    let mut first = None;
    let old = char::from_u32(cp).filter(|_| collapse(cp) != OTHER);
    old.into_iter().for_each(|c| decompose_canonical(c, |part| first = first.or(Some(part))));
    first.map_or(cp, u32::from)
}

/// The lower-case form of a code point, as one code point.
pub(super) fn lowercase(cp: u32) -> u32 {
    let old = char::from_u32(cp).filter(|_| collapse(cp) != OTHER);
    old.and_then(|c| c.to_lowercase().next()).map_or(cp, u32::from)
}

/// The code point as patterns with literal non-ASCII characters see it: itself, white space beyond ASCII as `\v`.
pub(super) fn wide(cp: u32) -> u32 {
    match char::from_u32(cp) {
        Some(c) if cp >= 128 && c.is_whitespace() => u32::from(SPACE_BYTE),
        _ => cp,
    }
}

/// Chinese ideographs, by the definition of the one pre-tokenizer that needs them.
pub(super) fn is_han(cp: u32) -> bool {
    matches!(cp,
        0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x20000..=0x2a6df | 0x2a700..=0x2ebef | 0x2f800..=0x2fa1f)
}

/// Bytes of the UTF-8 character that a byte begins; 1 for a continuation byte.
#[inline]
pub(super) fn utf8_len(first: u8) -> usize {
    match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
        _ => 1,
    }
}

/// The text with every byte that begins no character replaced by U+FFFD, and overlong forms made short.
///
/// Surrogates pass (three bytes). Four-byte forms beyond U+10FFFF become one U+FFFD.
pub(super) fn repair<'t>(text: &'t [u8], pace: &Pace<'_>) -> Result<Cow<'t, [u8]>> {
    let whole = whole_utf8(text, pace)?;
    if whole == text.len() {
        return Ok(Cow::Borrowed(text));
    }
    let (whole, mut rest) = text.split_at(whole);
    let mut out = reserve::list(text.len(), TEXT)?;
    out.extend_from_slice(whole);
    while let Some(&first) = rest.first() {
        pace.spend(1)?;
        reserve::reserve(&mut out, 4, TEXT)?;
        match lenient_char(rest) {
            Some((cp, len)) => {
                push_utf8(cp, &mut out);
                rest = &rest[len..];
            }
            None if first < 128 => {
                out.push(first);
                rest = &rest[1..];
            }
            None => {
                out.extend_from_slice(&REPLACEMENT);
                rest = &rest[1..];
            }
        }
    }
    Ok(Cow::Owned(out))
}

/// Bytes at the start of a text that are whole UTF-8.
fn whole_utf8(text: &[u8], pace: &Pace<'_>) -> Result<usize> {
    const STRETCH: usize = 1 << 16;
    let mut at = 0;
    while at < text.len() {
        let end = text.len().min(at + STRETCH);
        pace.spend((end - at) / 16)?;
        match std::str::from_utf8(&text[at..end]) {
            Ok(_) => at = end,
            // A character that the stretch cuts begins the next one.
            Err(error) if error.error_len().is_none() && end < text.len() => at += error.valid_up_to(),
            Err(error) => return Ok(at + error.valid_up_to()),
        }
    }
    Ok(at)
}

/// The multi-byte character at the start of `bytes` and its length, by bit pattern alone.
pub(super) fn lenient_char(bytes: &[u8]) -> Option<(u32, usize)> {
    let first = *bytes.first()?;
    let (len, low_bits) = match first {
        0xc0..=0xdf => (2, 0x1f),
        0xe0..=0xef => (3, 0x0f),
        0xf0..=0xf7 => (4, 0x07),
        _ => return None,
    };
    let mut cp = u32::from(first & low_bits);
    for &b in bytes.get(1..len)? {
        if b & 0xc0 != 0x80 {
            return None;
        }
        cp = cp << 6 | u32::from(b & 0x3f);
    }
    Some((cp, len))
}

/// Append a code point in UTF-8; surrogates take their three bytes, anything beyond U+10FFFF becomes U+FFFD.
pub(super) fn push_utf8(cp: u32, out: &mut Vec<u8>) {
    let tail = |shift: u32| 0x80 | (cp >> shift & 0x3f) as u8;
    match cp {
        0..0x80 => out.push(cp as u8),
        0x80..0x800 => out.extend_from_slice(&[0xc0 | (cp >> 6) as u8, tail(0)]),
        0x800..0x1_0000 => out.extend_from_slice(&[0xe0 | (cp >> 12) as u8, tail(6), tail(0)]),
        0x1_0000..0x11_0000 => out.extend_from_slice(&[0xf0 | (cp >> 18) as u8, tail(12), tail(6), tail(0)]),
        _ => out.extend_from_slice(&REPLACEMENT),
    }
}

/// The code points of a text that went through [`repair`].
pub(super) fn code_points(repaired: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let mut rest = repaired;
    std::iter::from_fn(move || {
        let &first = rest.first()?;
        let (cp, len) = if first < 128 { (u32::from(first), 1) } else { lenient_char(rest).unwrap_or((0xfffd, 1)) };
        rest = &rest[len..];
        Some(cp)
    })
}

/// The bytes that byte-level BPE cannot write as themselves get the characters from U+0100 on, in order.
#[inline]
fn is_plain_byte(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The character for each byte in the texts of byte-level BPE vocabularies (GPT-2's table).
pub(super) static BYTE_CHARS: [char; 256] = build_byte_chars();

const fn build_byte_chars() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut next = 0x100;
    let mut b = 0;
    while b < 256 {
        let byte = b as u8;
        table[b] = if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            byte as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(c) => c,
                None => '\0',
            }
        };
        b += 1;
    }
    table
}

/// The byte for a character of a byte-level BPE text.
pub(super) fn char_byte(c: char) -> Option<u8> {
    match u32::from(c) {
        cp @ 0..0x100 => Some(cp as u8).filter(|&b| is_plain_byte(b)),
        cp @ 0x100..=0x120 => Some((cp - 0x100) as u8),
        cp @ 0x121..=0x142 => Some((cp - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_are_those_of_unicode_15_1() {
        // Totals of the Unicode 15.1 character database over all code points.
        let mut totals = [0u32; 5];
        for cp in 0..0x11_0000 {
            let class = class(collapse(cp));
            for (total, bit) in totals.iter_mut().zip([NUMBER, LETTER, MARK, PUNCTUATION, SYMBOL]) {
                *total += u32::from(class & bit != 0);
            }
        }
        assert_eq!(totals, [1831, 136_726, 2450, 842, 7775]);
    }

    #[test]
    fn byte_characters_are_a_bijection() {
        for b in 0..=255u8 {
            assert_eq!(char_byte(BYTE_CHARS[usize::from(b)]), Some(b), "byte {b:#x}");
        }
        assert_eq!((0..0x400).filter_map(char::from_u32).filter_map(char_byte).count(), 256);
    }

    #[test]
    fn repair_keeps_valid_text_and_mends_the_rest() {
        let mended = |text: &'static [u8]| repair(text, &Pace::new(&|| false)).unwrap();
        assert!(matches!(mended("aé漢🦙\0".as_bytes()), Cow::Borrowed(_)));
        assert_eq!(mended(b"a\xffb\x80").as_ref(), "a\u{fffd}b\u{fffd}".as_bytes());
        assert_eq!(mended(b"\xc1\x81").as_ref(), b"A", "overlong");
        assert_eq!(mended(b"\xed\xa0\x80").as_ref(), b"\xed\xa0\x80", "surrogate");
        assert_eq!(mended(b"\xe6\xbc").as_ref(), "\u{fffd}\u{fffd}".as_bytes(), "cut short");
        assert_eq!(mended(b"\xf7\xbf\xbf\xbf").as_ref(), "\u{fffd}".as_bytes(), "beyond U+10FFFF");
        for before in 65_530..65_540 {
            let text = "x".repeat(before) + &"🦙".repeat(40_000);
            let pace = Pace::new(&|| false);
            assert!(matches!(repair(text.as_bytes(), &pace).unwrap(), Cow::Borrowed(_)), "{before}");
            let broken = &text.as_bytes()[..text.len() - 1];
            let whole = repair(broken, &pace).unwrap();
            assert_eq!(whole.as_ref(), format!("{}\u{fffd}\u{fffd}\u{fffd}", &text[..text.len() - 4]).as_bytes());
        }
    }
}
