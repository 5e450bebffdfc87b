//! Stop strings over the byte stream of a generation, across token borders.
//!
//! Bytes go in as tokens produce them; bytes come out once no stop string can begin in them any more. The stop string
//! that ends first is found, and of several that end at the same byte the longest. The bytes before it are released;
//! the stop string and everything after it are not. Matching keeps one automaton state per stop string (Knuth, Morris,
//! Pratt, "Fast Pattern Matching in Strings", <https://doi.org/10.1137/0206024>), so its cost per byte does not depend
//! on their lengths, and it allocates nothing.

/// One stop string with its failure function.
#[derive(Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `fallback[n]`: length of the longest proper border of the first `n + 1` bytes.
    fallback: Vec<usize>,
    /// How many bytes of its prefix the stream ends with now.
    matched: usize,
}

impl Pattern {
    fn new(bytes: &[u8]) -> Pattern {
        let mut fallback = vec![0; bytes.len()];
        let mut border = 0;
        for at in 1..bytes.len() {
            while border > 0 && bytes[at] != bytes[border] {
                border = fallback[border - 1];
            }
            if bytes[at] == bytes[border] {
                border += 1;
            }
            fallback[at] = border;
        }
        Pattern { bytes: bytes.to_vec(), fallback, matched: 0 }
    }

    /// Reads one byte; true when the pattern is complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

/// Finds the first stop string in a stream of bytes and holds back what might begin one.
#[derive(Debug)]
pub(crate) struct StopScanner {
    patterns: Vec<Pattern>,
    held: Vec<u8>,
}

impl StopScanner {
    /// A scanner for these strings, none of them empty; `piece` is the largest number of bytes of one push.
    pub(crate) fn new(stops: &[Vec<u8>], piece: usize) -> StopScanner {
        let longest = stops.iter().map(Vec::len).max().unwrap_or(0);
        StopScanner {
            patterns: stops.iter().map(|bytes| Pattern::new(bytes)).collect(),
            held: Vec::with_capacity(longest + piece),
        }
    }

    /// Reads `bytes` and appends to `out` what no stop string can reach. True when a stop string is complete:
    /// everything before it is in `out` then, and the scanner must not be used again.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        for &byte in bytes {
            self.held.push(byte);
            let mut complete = 0;
            for pattern in &mut self.patterns {
                if pattern.step(byte) {
                    complete = complete.max(pattern.bytes.len());
                }
            }
            if complete > 0 {
                self.held.truncate(self.held.len() - complete);
                self.finish(out);
                return true;
            }
        }
        let undecided = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        out.extend(self.held.drain(..self.held.len() - undecided));
        false
    }

    /// Appends what was held back: the stream is over and no stop string came.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The slow obvious rule: the match that ends first, the longest of those.
    fn reference(stream: &[u8], stops: &[Vec<u8>]) -> (Vec<u8>, bool) {
        for end in 1..=stream.len() {
            let longest = stops.iter().filter(|stop| stream[..end].ends_with(stop)).map(Vec::len).max();
            if let Some(length) = longest {
                return (stream[..end - length].to_vec(), true);
            }
        }
        (stream.to_vec(), false)
    }

    fn scan(pieces: &[&[u8]], stops: &[Vec<u8>]) -> (Vec<u8>, bool) {
        let mut scanner = StopScanner::new(stops, 16);
        let mut out = Vec::new();
        for piece in pieces {
            if scanner.push(piece, &mut out) {
                return (out, true);
            }
        }
        scanner.finish(&mut out);
        (out, false)
    }

    #[test]
    fn a_stop_string_is_found_at_every_split_of_the_stream() {
        let stream = b"Hello<|end|>tail";
        let stops = [b"<|end|>".to_vec(), b"<|endoftext|>".to_vec()];
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(scan(&pieces, &stops), (b"Hello".to_vec(), true), "split at {first} and {second}");
            }
        }
    }

    #[test]
    fn a_beginning_that_fails_is_released_as_soon_as_it_is_decided() {
        let stops = [b"aab".to_vec()];
        let mut scanner = StopScanner::new(&stops, 4);
        let mut out = Vec::new();
        assert!(!scanner.push(b"xaa", &mut out));
        assert_eq!(out, b"x");
        assert!(!scanner.push(b"a", &mut out));
        assert_eq!(out, b"xa", "of three a, the last two may still begin the stop string");
        assert!(!scanner.push(b"c", &mut out));
        assert_eq!(out, b"xaaac");
    }

    #[test]
    fn of_two_that_end_together_the_longer_wins_and_an_earlier_end_beats_a_longer_match() {
        assert_eq!(scan(&[b"xyabc"], &[b"bc".to_vec(), b"abc".to_vec()]), (b"xy".to_vec(), true));
        assert_eq!(scan(&[b"xyabc"], &[b"yabc".to_vec(), b"ab".to_vec()]), (b"xy".to_vec(), true));
    }

    proptest! {
        #[test]
        fn agrees_with_the_obvious_rule_whatever_the_token_borders(
            stream in prop::collection::vec(0u8..3, 0..40),
            stops in prop::collection::vec(prop::collection::vec(0u8..3, 1..6), 0..4),
            cuts in prop::collection::vec(1usize..6, 40),
        ) {
            let mut pieces = Vec::new();
            let mut rest = stream.as_slice();
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(head);
                rest = tail;
            }
            prop_assert!(rest.is_empty());
            prop_assert_eq!(scan(&pieces, &stops), reference(&stream, &stops));
        }
    }
}
