//! From token bytes to text that a host can keep: whole characters only, at fixed addresses.
//!
//! [`TextStream`] turns the bytes of successive tokens into characters. For a token that ends inside a character, the
//! characters before that one are returned; the token that completes the character returns it. Bytes that can never
//! become a character turn into U+FFFD as soon as that is certain, one for each maximal broken sequence, as
//! `String::from_utf8_lossy` does over the whole stream. [`Arena`] keeps each piece of text, NUL-terminated, at a fixed
//! address until it is cleared.

use super::ArenaText;
use super::stop::StopScanner;
use crate::utf8;
use parking_lot::Mutex;
use std::ffi::c_char;
use std::sync::atomic::{AtomicU8, Ordering};

/// Replaces NUL in C strings.
const REPLACEMENT: &str = "\u{FFFD}";

/// The text of one generation as its tokens arrive. Pushing allocates nothing while pieces keep to the announced size.
#[derive(Debug)]
pub(crate) struct TextStream {
    scanner: StopScanner,
    /// Bytes after the stop scanner that are not text yet: between pushes the beginning of one character, 3 bytes at
    /// most.
    raw: Vec<u8>,
    text: String,
}

impl TextStream {
    /// A stream that ends at one of `stops`; `piece` is the size of the vocabulary's largest piece in bytes.
    pub(crate) fn new(stops: &[Vec<u8>], piece: usize) -> TextStream {
        let longest = piece + 4 + stops.iter().map(Vec::len).max().unwrap_or(0);
        TextStream {
            scanner: StopScanner::new(stops, piece),
            raw: Vec::with_capacity(longest),
            text: String::with_capacity(longest * REPLACEMENT.len()),
        }
    }

    /// Reads one token's bytes. [`text`](TextStream::text) is then what they completed. True when a stop string ended
    /// the stream; after that only [`finish`](TextStream::finish) may follow.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        self.text.clear();
        let stopped = self.scanner.push(bytes, &mut self.raw);
        utf8::assemble(&mut self.raw, false, &mut self.text);
        stopped
    }

    /// Ends the stream: [`text`](TextStream::text) is what was still held back.
    pub(crate) fn finish(&mut self) {
        self.text.clear();
        self.scanner.finish(&mut self.raw);
        utf8::assemble(&mut self.raw, true, &mut self.text);
    }

    /// Whether no character is incomplete.
    pub(crate) fn is_whole(&self) -> bool {
        self.raw.is_empty()
    }

    /// The characters that the last push or finish completed.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Appends `text` to `out` with U+FFFD in place of each NUL, so that it can be read as a C string.
pub(crate) fn append_without_nul(text: &str, out: &mut Vec<u8>) {
    for (at, part) in text.split('\0').enumerate() {
        if at > 0 {
            out.extend_from_slice(REPLACEMENT.as_bytes());
        }
        out.extend_from_slice(part.as_bytes());
    }
}

/// Bytes of one arena block; a longer text gets a block of its own.
const BLOCK: usize = 64 * 1024;

/// Memory in which the text of one generation stays readable, at fixed addresses, each piece with a NUL after it.
///
/// The session clears it when the next prefill or generation begins. Whoever holds the `Arc` from
/// [`Session::arena`](super::Session::arena) keeps the last text readable after the session is gone.
///
/// Blocks are written through atomics and never borrowed mutably, so a host's pointer stays readable while later text
/// is added.
#[derive(Debug, Default)]
pub struct Arena {
    blocks: Mutex<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    list: Vec<Box<[AtomicU8]>>,
    /// Blocks in use; the rest of the list is kept for reuse.
    open: usize,
    /// Bytes used of the last open block.
    used: usize,
}

impl Arena {
    /// An arena with its first block.
    pub(crate) fn new() -> Arena {
        let mut list = Vec::with_capacity(64);
        list.push(new_block(BLOCK));
        Arena { blocks: Mutex::new(Blocks { list, open: 0, used: 0 }) }
    }

    /// Forgets all text and keeps the memory for the next generation.
    pub(crate) fn clear(&self) {
        let mut blocks = self.blocks.lock();
        blocks.open = 0;
        blocks.used = 0;
    }

    /// Keeps a copy of `text`.
    pub(crate) fn store(&self, text: &str) -> ArenaText {
        if text.is_empty() {
            return ArenaText { exact: c"".as_ptr(), len: 0, c_string: c"".as_ptr() };
        }
        let mut blocks = self.blocks.lock();
        let exact = blocks.write([text].into_iter(), text.len());
        let nuls = text.bytes().filter(|&byte| byte == 0).count();
        let c_string = match nuls {
            0 => exact,
            _ => {
                let length = text.len() + nuls * (REPLACEMENT.len() - 1);
                blocks.write(text.split_inclusive('\0').flat_map(nul_replaced), length)
            }
        };
        ArenaText { exact, len: text.len(), c_string }
    }
}

/// A test build overwrites the text of a freed arena with invalid UTF-8, so that later reads are found.
#[cfg(feature = "testing")]
impl Drop for Arena {
    fn drop(&mut self) {
        for byte in self.blocks.lock().list.iter().flat_map(|block| block.iter()) {
            byte.store(0xA5, Ordering::Relaxed);
        }
    }
}

/// A part that holds a NUL at most at its end, as the two strings that replace it.
fn nul_replaced(part: &str) -> [&str; 2] {
    match part.strip_suffix('\0') {
        Some(front) => [front, REPLACEMENT],
        None => [part, ""],
    }
}

fn new_block(bytes: usize) -> Box<[AtomicU8]> {
    (0..bytes).map(|_| AtomicU8::new(0)).collect()
}

impl Blocks {
    /// Writes the parts, `length` bytes in all, and a NUL.
    fn write<'a>(&mut self, parts: impl Iterator<Item = &'a str>, length: usize) -> *const c_char {
        let block = self.take(length + 1);
        let bytes = parts.flat_map(str::bytes).chain([0]);
        for (cell, byte) in block.iter().zip(bytes) {
            cell.store(byte, Ordering::Relaxed);
        }
        block.as_ptr().cast()
    }

    /// The next `length` bytes, from the open block or from a new one.
    fn take(&mut self, length: usize) -> &[AtomicU8] {
        let fits =
            |list: &[Box<[AtomicU8]>], open: usize, used: usize| open > 0 && list[open - 1].len() - used >= length;
        if !fits(&self.list, self.open, self.used) {
            if self.list.get(self.open).is_none_or(|block| block.len() < length) {
                self.list.insert(self.open, new_block(length.max(BLOCK)));
            }
            self.open += 1;
            self.used = 0;
        }
        let start = self.used;
        self.used += length;
        &self.list[self.open - 1][start..start + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::CStr;

    fn stream(pieces: &[&[u8]]) -> Vec<String> {
        let mut stream = TextStream::new(&[], 64);
        let mut texts: Vec<String> = pieces
            .iter()
            .map(|piece| {
                assert!(!stream.push(piece));
                stream.text().to_owned()
            })
            .collect();
        stream.finish();
        texts.push(stream.text().to_owned());
        texts
    }

    #[test]
    fn a_character_comes_with_the_token_that_completes_it() {
        let snowman = "a\u{2603}b".as_bytes();
        assert_eq!(stream(&[&snowman[..2], &snowman[2..3], &snowman[3..]]), ["a", "", "\u{2603}b", ""]);
    }

    #[test]
    fn bytes_that_never_complete_become_replacements_once_that_is_certain() {
        assert_eq!(stream(&[b"\xE2\x98", b"x"]), ["", "\u{FFFD}x", ""]);
        assert_eq!(stream(&[b"a\xFFb", b"\xF0\x9F"]), ["a\u{FFFD}b", "", "\u{FFFD}"]);
    }

    #[test]
    fn a_stop_string_inside_a_character_leaves_its_begin_to_the_end() {
        let mut stream = TextStream::new(&[b"\x83!".to_vec()], 8);
        assert!(!stream.push(b"a\xE2\x98\x83"));
        assert_eq!(stream.text(), "a");
        assert!(stream.push(b"!"));
        assert_eq!(stream.text(), "");
        stream.finish();
        assert_eq!(stream.text(), "\u{FFFD}");
    }

    const BYTES: [u8; 17] = *b"a\0\x80\x83\xBF\xC3\xE2\x98\xED\xA0\xF0\x9F\x98\x80\xF4\x90\xFF";

    proptest! {
        #[test]
        fn the_whole_is_what_std_makes_of_all_bytes_whatever_the_splits(
            pieces in prop::collection::vec(
                prop::collection::vec(prop::sample::select(&BYTES[..]), 0..5),
                0..12,
            ),
        ) {
            let parts: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let whole = pieces.concat();
            prop_assert_eq!(stream(&parts).concat(), String::from_utf8_lossy(&whole));
        }

        #[test]
        fn valid_text_is_never_replaced_and_never_late(text in "\\PC{0,12}", cut in 1usize..5) {
            let bytes = text.as_bytes();
            let pieces: Vec<&[u8]> = bytes.chunks(cut).collect();
            let mut seen = 0;
            let mut out = String::new();
            for (piece, part) in pieces.iter().zip(stream(&pieces)) {
                seen += piece.len();
                out.push_str(&part);
                let whole = (0..=seen).rev().find(|&at| text.is_char_boundary(at)).unwrap();
                prop_assert_eq!(&out, &text[..whole]);
            }
        }
    }

    fn read(at: *const c_char) -> &'static CStr {
        // SAFETY: the tests read only texts of arenas that are alive and were not cleared; each is NUL-terminated.
        unsafe { CStr::from_ptr(at) }
    }

    #[test]
    fn texts_keep_their_address_and_content_until_the_arena_is_cleared() {
        let arena = Arena::new();
        let long = "long ".repeat(BLOCK / 5 + 1);
        let words: Vec<String> =
            (0..40_000).map(|n| if n == 77 { long.clone() } else { format!("word {n} ") }).collect();
        let stored: Vec<ArenaText> = words.iter().map(|word| arena.store(word)).collect();
        for (word, text) in words.iter().zip(&stored) {
            assert_eq!(read(text.exact).to_bytes(), word.as_bytes());
            assert_eq!((text.len, text.exact), (word.len(), text.c_string));
        }
        let blocks = arena.blocks.lock().list.len();
        arena.clear();
        for word in &words {
            arena.store(word);
        }
        assert_eq!(arena.blocks.lock().list.len(), blocks, "the second generation reuses the blocks of the first");
    }

    #[test]
    fn a_nul_in_the_text_is_exact_with_its_length_and_replaced_in_the_c_string() {
        let arena = Arena::new();
        for text in ["\0", "a\0b", "\0\0x", "tail\0"] {
            let stored = arena.store(text);
            // SAFETY: `exact` points at `len` bytes of a live, uncleared arena.
            let exact = unsafe { std::slice::from_raw_parts(stored.exact.cast::<u8>(), stored.len) };
            assert_eq!(exact, text.as_bytes());
            assert_eq!(read(stored.c_string).to_str().unwrap(), text.replace('\0', REPLACEMENT));
            let mut out = Vec::new();
            append_without_nul(text, &mut out);
            assert_eq!(out, text.replace('\0', REPLACEMENT).as_bytes());
        }
        assert_eq!(read(arena.store("").c_string).to_bytes(), b"");
    }
}
