//! Finds the tokens that complete or begin a text at which a repetition ends.
//!
//! As in llama.cpp a token whose text contains the whole breaker is one by itself. A token whose text ends with a
//! beginning of it is its head, and the tokens of the rest are the tail. Finding them looks at every token of the
//! vocabulary, so the result is kept for each vocabulary and list, and shared.

use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::backend::{BreakerHead, Breakers};
use crate::vocab::Vocab;
use crate::{Error, Result, Token, reserve};

/// The most breakers of one list.
const MAX_BREAKERS: usize = 64;
/// The bytes of a breaker that count.
const MAX_BYTES: usize = 40;
/// The tokens of a tail that count.
const MAX_TAIL: usize = 20;
/// The lists that are kept.
const KEPT: usize = 16;
/// What memory is for, in errors.
const TOKENS: &str = "tokens of DRY's breakers";

/// A list in use, or used not long ago.
struct Known {
    vocab: Weak<Vocab>,
    texts: Vec<String>,
    breakers: Arc<Breakers>,
}

/// The last one was asked for last.
static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// The breakers of these texts in this vocabulary.
///
/// # Errors
/// [`Error::InvalidArgument`] for too many texts, [`Error::OutOfMemory`].
pub(super) fn breakers_of(vocab: &Arc<Vocab>, texts: &[String]) -> Result<Arc<Breakers>> {
    let mut known = KNOWN.lock();
    known.retain(|one| one.vocab.strong_count() > 0);
    let same = |one: &Known| std::ptr::eq(one.vocab.as_ptr(), Arc::as_ptr(vocab)) && one.texts == texts;
    if let Some(at) = known.iter().position(same) {
        let one = known.remove(at);
        let breakers = one.breakers.clone();
        known.push(one);
        return Ok(breakers);
    }
    // The lock is held, so that several streams that begin at once look at the vocabulary once.
    let breakers = Arc::new(find(vocab, texts)?);
    if known.len() == KEPT {
        known.remove(0);
    }
    known.push(Known { vocab: Arc::downgrade(vocab), texts: texts.to_vec(), breakers: breakers.clone() });
    Ok(breakers)
}

fn find(vocab: &Vocab, texts: &[String]) -> Result<Breakers> {
    if texts.len() > MAX_BREAKERS {
        let problem = format!("{} sequence breakers of DRY, above {MAX_BREAKERS}", texts.len());
        return Err(Error::InvalidArgument(problem));
    }
    let (mut heads, mut tails) = (Vec::new(), Vec::new());
    for text in texts {
        let text = text.as_bytes();
        let text = &text[..text.len().min(MAX_BYTES)];
        let mut rests = Rests { text, known: vec![None; text.len()], tails: &mut tails };
        for token in 0..vocab.n_tokens() as Token {
            let word = vocab.detokenize(&[token], false, true)?;
            add(&mut heads, token, &word, &mut rests, vocab)?;
        }
    }
    Ok(Breakers::new(heads, tails))
}

/// Adds what one token has of one breaker.
fn add(heads: &mut Vec<BreakerHead>, token: Token, word: &[u8], rests: &mut Rests<'_>, vocab: &Vocab) -> Result<()> {
    let text = rests.text;
    if text.is_empty() {
        return Ok(());
    }
    if word.windows(text.len()).any(|part| part == text) {
        return reserve::push(heads, BreakerHead { token, tail: 0..0 }, TOKENS);
    }
    for length in 1..text.len().min(word.len() + 1) {
        if word.ends_with(&text[..length]) {
            let tail = rests.after(length, vocab)?;
            reserve::push(heads, BreakerHead { token, tail }, TOKENS)?;
        }
    }
    Ok(())
}

/// The tokens of a breaker's rests: many tokens are heads of the same one.
struct Rests<'a> {
    text: &'a [u8],
    /// By the length of what precedes the rest.
    known: Vec<Option<Range<u32>>>,
    /// Those of all breakers.
    tails: &'a mut Vec<Token>,
}

impl Rests<'_> {
    fn after(&mut self, length: usize, vocab: &Vocab) -> Result<Range<u32>> {
        if let Some(Some(known)) = self.known.get(length) {
            return Ok(known.clone());
        }
        let tokens = vocab.tokenize(&self.text[length..], false, false)?;
        let start = self.tails.len() as u32;
        reserve::extend(self.tails, &tokens[..tokens.len().min(MAX_TAIL)], TOKENS)?;
        let range = start..self.tails.len() as u32;
        if let Some(place) = self.known.get_mut(length) {
            *place = Some(range.clone());
        }
        Ok(range)
    }
}
