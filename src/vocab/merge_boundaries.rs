//! Where a text can be cut without changing its tokens.
//!
//! Vocabularies without words (SPM, and BPE that keeps spaces) join characters across a whole text. But a join crosses
//! the boundary between two characters only if some joined text has these two side by side. Cutting at all other
//! boundaries, most spaces among them, leaves stretches of about a word, and joining many short stretches is much
//! faster than joining one long one.

use super::texts::Texts;
use super::unicode::utf8_len;
use crate::Result;

/// The boundaries inside the texts of merges: a bit for the byte before and a hash of the character after. Characters
/// with the same hash only cause fewer cuts.
pub(super) struct MergeBoundaries {
    inside: Vec<u64>,
}

fn bit(before: u8, behind: &[u8]) -> usize {
    let fold = match behind {
        [byte] => *byte,
        bytes => 0x80 | bytes.iter().fold(0u8, |fold, b| fold.wrapping_mul(31).wrapping_add(*b)),
    };
    usize::from(before) << 8 | usize::from(fold)
}

/// The characters of a text with the byte before each, but for the first: position and bit.
fn boundaries(text: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let mut at = text.first().map_or(0, |&b| utf8_len(b));
    std::iter::from_fn(move || {
        let &first = text.get(at)?;
        let end = text.len().min(at + utf8_len(first));
        let boundary = (at, bit(text[at - 1], &text[at..end]));
        at = end;
        Some(boundary)
    })
}

impl MergeBoundaries {
    /// The boundaries inside all of `texts`, among which every join's result must be.
    pub(super) fn new(texts: &Texts) -> Self {
        let mut inside = vec![0u64; 1 << 10];
        for id in 0..texts.len() as u32 {
            boundaries(texts.get(id)).for_each(|(_, bit)| inside[bit / 64] |= 1 << (bit % 64));
        }
        MergeBoundaries { inside }
    }

    /// Call `stretch` with the stretches of a text, in order.
    pub(super) fn cut<'t>(&self, text: &'t [u8], mut stretch: impl FnMut(&'t [u8]) -> Result<()>) -> Result<()> {
        let mut start = 0;
        for (at, bit) in boundaries(text) {
            if self.inside[bit / 64] >> (bit % 64) & 1 == 0 {
                stretch(&text[start..at])?;
                start = at;
            }
        }
        match start < text.len() {
            true => stretch(&text[start..]),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_where_no_text_crosses() {
        let mut texts = Texts::default();
        for text in ["ab", "bc", "▁a", "é漢"] {
            texts.find_or_insert(text.as_bytes()).unwrap();
        }
        let boundaries = MergeBoundaries::new(&texts);
        let cut = |text: &str| {
            let mut out = Vec::new();
            let stretch = |s: &[u8]| {
                out.push(String::from_utf8(s.to_vec()).unwrap());
                Ok(())
            };
            boundaries.cut(text.as_bytes(), stretch).unwrap();
            out
        };
        assert_eq!(cut("abc▁ab"), ["abc", "▁ab"]);
        assert_eq!(cut("caé漢a"), ["c", "a", "é漢", "a"]);
        assert!(cut("").is_empty());
        let mut all = Vec::new();
        let stretch = |s: &[u8]| {
            all.extend_from_slice(s);
            Ok(())
        };
        boundaries.cut(b"\xe6a\x80\xff", stretch).unwrap();
        assert_eq!(all, b"\xe6a\x80\xff");
    }
}
