//! The texts at which a repetition ends, as tokens: which tokens complete or begin such a text, and how it goes on.
//!
//! As in llama.cpp a token whose text contains the whole breaker is one by itself. A token whose text ends with a
//! beginning of it is its head, and the tokens of the rest are the tail. Finding them looks at every token of the
//! vocabulary, so the result is kept for each vocabulary and list, and shared.

use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

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

/// The breakers of one list.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Breakers {
    /// By token, of one token the longest tail first.
    heads: Vec<Head>,
    tails: Vec<Token>,
}

#[derive(Debug, PartialEq)]
struct Head {
    token: Token,
    tail: Range<u32>,
}

/// A list in use, or used not long ago.
struct Known {
    vocab: Weak<Vocab>,
    texts: Vec<String>,
    breakers: Arc<Breakers>,
}

/// The last one was asked for last.
static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

impl Breakers {
    /// The breakers of these texts in this vocabulary.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for too many texts, [`Error::OutOfMemory`].
    pub(super) fn of(vocab: &Arc<Vocab>, texts: &[String]) -> Result<Arc<Breakers>> {
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
        let breakers = Arc::new(Breakers::new(vocab, texts)?);
        if known.len() == KEPT {
            known.remove(0);
        }
        known.push(Known { vocab: Arc::downgrade(vocab), texts: texts.to_vec(), breakers: breakers.clone() });
        Ok(breakers)
    }

    fn new(vocab: &Vocab, texts: &[String]) -> Result<Breakers> {
        if texts.len() > MAX_BREAKERS {
            let problem = format!("{} sequence breakers of DRY, above {MAX_BREAKERS}", texts.len());
            return Err(Error::InvalidArgument(problem));
        }
        let mut found = Breakers::default();
        for text in texts {
            let text = text.as_bytes();
            let text = &text[..text.len().min(MAX_BYTES)];
            let mut rests = Rests { text, known: vec![None; text.len()] };
            for token in 0..vocab.n_tokens() as Token {
                let word = vocab.detokenize(&[token], false, true)?;
                found.add(token, &word, &mut rests, vocab)?;
            }
        }
        let Breakers { mut heads, tails } = found;
        heads.sort_by(|a, b| a.token.cmp(&b.token).then(b.tail.len().cmp(&a.tail.len())));
        let tail = |head: &Head| &tails[head.tail.start as usize..head.tail.end as usize];
        heads.dedup_by(|a, b| a.token == b.token && tail(a) == tail(b));
        Ok(Breakers { heads, tails })
    }

    /// Adds what one token has of one breaker.
    fn add(&mut self, token: Token, word: &[u8], rests: &mut Rests<'_>, vocab: &Vocab) -> Result<()> {
        let text = rests.text;
        if text.is_empty() {
            return Ok(());
        }
        if word.windows(text.len()).any(|part| part == text) {
            return reserve::push(&mut self.heads, Head { token, tail: 0..0 }, TOKENS);
        }
        for length in 1..text.len().min(word.len() + 1) {
            if word.ends_with(&text[..length]) {
                let tail = rests.after(length, &mut self.tails, vocab)?;
                reserve::push(&mut self.heads, Head { token, tail }, TOKENS)?;
            }
        }
        Ok(())
    }

    fn heads(&self, token: Token) -> &[Head] {
        let start = self.heads.partition_point(|head| head.token < token);
        let heads = self.heads.get(start..).unwrap_or_default();
        &heads[..heads.partition_point(|head| head.token == token)]
    }

    /// Whether the token alone is a breaker.
    pub(super) fn is_single(&self, token: Token) -> bool {
        self.heads(token).last().is_some_and(|head| head.tail.is_empty())
    }

    /// How many tokens came since the last breaker ended; `newest_first` are the tokens. All of them where there was
    /// none.
    pub(super) fn since_last(&self, newest_first: &[Token]) -> usize {
        for (at, &token) in newest_first.iter().enumerate() {
            let follows = |head: &&Head| {
                let tail = &self.tails[head.tail.start as usize..head.tail.end as usize];
                tail.len() <= at && newest_first[at - tail.len()..at].iter().rev().eq(tail)
            };
            if let Some(head) = self.heads(token).iter().find(follows) {
                return at - head.tail.len();
            }
        }
        newest_first.len()
    }
}

/// The tokens of a breaker's rests: many tokens are heads of the same one.
struct Rests<'a> {
    text: &'a [u8],
    /// By the length of what precedes the rest.
    known: Vec<Option<Range<u32>>>,
}

impl Rests<'_> {
    fn after(&mut self, length: usize, tails: &mut Vec<Token>, vocab: &Vocab) -> Result<Range<u32>> {
        if let Some(Some(known)) = self.known.get(length) {
            return Ok(known.clone());
        }
        let tokens = vocab.tokenize(&self.text[length..], false, false)?;
        let start = tails.len() as u32;
        reserve::extend(tails, &tokens[..tokens.len().min(MAX_TAIL)], TOKENS)?;
        let range = start..tails.len() as u32;
        if let Some(place) = self.known.get_mut(length) {
            *place = Some(range.clone());
        }
        Ok(range)
    }
}
