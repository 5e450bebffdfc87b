//! The text of a session in the tokens of another vocabulary, for a draft model that has another than the session's
//! model.

use crate::vocab::Vocab;
use crate::{Result, Token};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// So many tokens at the end of a text are tokenized again when it has grown: what follows may belong to the same word.
const AGAIN: usize = 8;

/// A text that grows, in two vocabularies.
pub(super) struct Translation {
    from: Arc<Vocab>,
    to: Arc<Vocab>,
    /// The text in either vocabulary.
    text: Vec<Token>,
    translated: Vec<Token>,
    /// Where both end at the same byte, between two characters: how many tokens of either there are. Ascending.
    ends: Vec<[usize; 2]>,
    spelled: [Spelled; 2],
}

/// The bytes of tokens, and where each token ends in them.
#[derive(Default)]
struct Spelled {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Spelled {
    fn spell(&mut self, vocab: &Vocab, tokens: &[Token]) {
        self.bytes.clear();
        self.ends.clear();
        for &token in tokens {
            vocab.piece(token, true, &mut self.bytes);
            self.ends.push(self.bytes.len());
        }
    }
}

impl Translation {
    pub fn new(from: Arc<Vocab>, to: Arc<Vocab>) -> Translation {
        let (text, translated, ends, spelled) = Default::default();
        Translation { from, to, text, translated, ends, spelled }
    }

    /// The tokens of a text in the other vocabulary. Where the text goes on as the last one, so do they, but for the
    /// last few.
    ///
    /// # Errors
    /// Those of [`Vocab::tokenize_inside`].
    pub fn of(&mut self, text: &[Token], cancel: &AtomicBool) -> Result<&[Token]> {
        let same = self.text.iter().zip(text).take_while(|(a, b)| a == b).count();
        self.ends.truncate(self.ends.partition_point(|end| end[0] + AGAIN <= same));
        let [known, translated] = self.ends.last().copied().unwrap_or_default();
        self.text.truncate(known);
        self.translated.truncate(translated);
        self.text.extend_from_slice(&text[known..]);
        if self.ends.is_empty() {
            self.begin();
        }
        let [from, to] = self.ends.last().copied().unwrap_or_default();
        let [ours, theirs] = &mut self.spelled;
        ours.spell(&self.from, &self.text[from..]);
        let cancelled = || cancel.load(Ordering::Acquire);
        let new = match self.to.tokenize_inside(&ours.bytes, true, &cancelled) {
            Ok(new) => new,
            Err(error) => {
                // Nothing is known of a text that was not tokenized.
                self.text.truncate(from);
                return Err(error);
            }
        };
        theirs.spell(&self.to, &new);
        self.translated.extend(new);
        // A vocabulary that normalizes texts has other bytes.
        let alike = ours.bytes.iter().zip(&theirs.bytes).take_while(|(a, b)| a == b).count();
        let mut other = 0;
        for (token, &end) in ours.ends.iter().enumerate().take_while(|(_, end)| **end <= alike) {
            other += theirs.ends[other..].iter().take_while(|of_other| **of_other < end).count();
            // No text begins inside a character.
            let divides = ours.bytes.get(end).is_some_and(|next| next & 0xC0 != 0x80);
            if divides && theirs.ends.get(other) == Some(&end) {
                self.ends.push([from + token + 1, to + other + 1]);
            }
        }
        Ok(&self.translated)
    }

    /// The begin-of-text token is each vocabulary's own.
    fn begin(&mut self) {
        let has = self.text.first().is_some_and(|&first| Some(first) == self.from.bos());
        self.translated.extend(self.to.bos().filter(|_| self.to.add_bos()));
        self.ends.push([usize::from(has), self.translated.len()]);
    }

    /// Puts the first `most` tokens of what the other model said after the text in place of its own tokens.
    ///
    /// # Errors
    /// Those of [`Vocab::tokenize_inside`].
    pub fn back(&mut self, said: &mut Vec<Token>, most: usize, cancel: &AtomicBool) -> Result<()> {
        let spelled = &mut self.spelled[0];
        spelled.spell(&self.to, said);
        said.clear();
        let cancelled = || cancel.load(Ordering::Acquire);
        let tokens = self.from.tokenize_inside(&spelled.bytes, true, &cancelled)?;
        said.extend_from_slice(&tokens[..tokens.len().min(most)]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineOptions, open_model};
    use std::fs;
    use std::path::Path;

    static NEVER: AtomicBool = AtomicBool::new(false);

    /// The demo model's vocabulary with some tokens renamed.
    fn vocab(renamed: &[[&str; 2]]) -> Arc<Vocab> {
        let mut bytes = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.gguf")).unwrap();
        for [from, to] in renamed {
            let find = [&(from.len() as u64).to_le_bytes()[..], from.as_bytes()].concat();
            let at = bytes.windows(find.len()).position(|window| window == find).unwrap();
            bytes[at + 8..][..to.len()].copy_from_slice(to.as_bytes());
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("renamed.gguf");
        fs::write(&path, bytes).unwrap();
        open_model(&path, &EngineOptions::default(), None).unwrap().vocab().clone()
    }

    fn bytes(vocab: &Vocab, tokens: &[Token]) -> Vec<u8> {
        let mut spelled = Spelled::default();
        spelled.spell(vocab, tokens);
        spelled.bytes
    }

    #[test]
    fn a_text_that_grows_is_the_same_text_in_either_vocabulary() {
        let other = vocab(&[["ay", "qq"], ["outer", "outeq"], ["Action", "Actioq"]]);
        for (from, to) in [(vocab(&[]), other.clone()), (other, vocab(&[]))] {
            let mut translation = Translation::new(from.clone(), to.clone());
            let text =
                "Play the weather on a bright day. What was the Action for the\nrouter in the hotel? ž≠🙂 they say";
            let whole = from.tokenize(text.repeat(3).as_bytes(), true, true).unwrap();
            let (mut before, mut most_new): (Vec<Token>, usize) = (Vec::new(), 0);
            for n in 1..=whole.len() {
                let translated = translation.of(&whole[..n], &NEVER).unwrap().to_vec();
                let spelled = bytes(&from, &whole[..n]);
                // A part of a character is the sign for a broken one, until the rest of it is there.
                if std::str::from_utf8(&spelled).is_ok() {
                    assert_eq!(bytes(&to, &translated), spelled, "{n} tokens");
                }
                let same = before.iter().zip(&translated).take_while(|(a, b)| a == b).count();
                most_new = most_new.max(translated.len() - same);
                before = translated;
            }
            assert!(most_new <= AGAIN + 4, "{most_new} tokens were not those of the text before");
            assert_eq!(before, to.tokenize(text.repeat(3).as_bytes(), true, true).unwrap());
            assert_ne!(before.len(), whole.len(), "the vocabularies are alike");
            // A text that leaves the last one, and one that has nothing of it.
            for text in [[&whole[..30], &whole[..20]].concat(), whole[5..60].to_vec(), Vec::new()] {
                let translated = translation.of(&text, &NEVER).unwrap().to_vec();
                let start = usize::from(text.first() != Some(&whole[0])) * usize::from(to.add_bos());
                assert_eq!(bytes(&to, &translated[start.min(translated.len())..]), bytes(&from, &text));
            }
            let mut said = to.tokenize_inside(b" was the weather they", true, &|| false).unwrap();
            translation.back(&mut said, 3, &NEVER).unwrap();
            assert_eq!(said, from.tokenize_inside(b" was the weather they", true, &|| false).unwrap()[..3]);
        }
    }
}
