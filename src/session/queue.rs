//! The tokens of a generation that has no callback, kept until the host takes them.
//!
//! Room for every token the generation may emit is reserved when it starts, so the worker never waits for the host and
//! never allocates for a token. For a generation without a limit that is a context of tokens: taken tokens make room
//! again, and the queue grows only if the host has more than that left to take. A step returns whole tokens with their
//! whole text; a text longer than the caller's buffer is spread over several steps at character borders. Text holds no
//! NUL, and each step's text ends with one.

use super::text::append_without_nul;
use super::{FinishReason, Pull};
use crate::{Error, Result, Token};

/// Smallest text buffer a step accepts: the longest character and its closing NUL, rounded up.
pub(crate) const MIN_TEXT: usize = 8;

/// Text bytes reserved per token; only a generation with longer tokens on average grows its buffer, by doubling.
const TEXT_PER_TOKEN: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Item {
    /// The token, or -1 for the text that was held back to the end.
    token: Token,
    /// Where its text ends in `text`; it begins where the text of the item before ends.
    text_end: usize,
}

/// Refuses buffers in which a step could not advance.
pub(crate) fn check_buffers(tokens_out: &[Token], text_out: &[u8]) -> Result<()> {
    if tokens_out.is_empty() {
        return Err(Error::InvalidArgument("tokens_cap is 0: no token can be handed out".into()));
    }
    if text_out.len() < MIN_TEXT {
        let problem = format!("text_cap is {}: it must be at least {MIN_TEXT} bytes", text_out.len());
        return Err(Error::InvalidArgument(problem));
    }
    Ok(())
}

/// The output of a generation that the host has not taken.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    items: Vec<Item>,
    text: Vec<u8>,
    /// The first item not taken whole.
    next: usize,
    /// The first text byte not taken.
    text_next: usize,
    /// The token of item `next` was taken, a part of its text was not.
    split: bool,
    end: Option<Result<FinishReason>>,
}

impl Queue {
    /// Empties the queue and makes room for a generation of up to `tokens` tokens.
    pub(crate) fn reset(&mut self, tokens: usize) {
        self.items.clear();
        self.items.reserve(tokens + 1);
        self.text.clear();
        self.text.reserve(tokens * TEXT_PER_TOKEN);
        (self.next, self.text_next, self.split, self.end) = (0, 0, false, None);
    }

    /// Adds a token and the text it completed.
    pub(crate) fn push(&mut self, token: Token, text: &str) {
        append_without_nul(text, &mut self.text);
        self.items.push(Item { token, text_end: self.text.len() });
    }

    /// Adds the terminal event with the held-back text.
    pub(crate) fn finish(&mut self, tail: &str, outcome: Result<FinishReason>) {
        if !tail.is_empty() {
            self.push(-1, tail);
        }
        self.end = Some(outcome);
    }

    /// Whether a [`pull`](Queue::pull) would return anything, the end included.
    pub(crate) fn ready(&self) -> bool {
        self.next < self.items.len() || self.end.is_some()
    }

    /// Takes one step's output, into buffers that [`check_buffers`] accepted. The error of a failed generation is
    /// returned after everything else was taken.
    pub(crate) fn pull(&mut self, tokens_out: &mut [Token], text_out: &mut [u8]) -> Result<Pull> {
        let space = text_out.len() - 1;
        let mut step = Pull::default();
        while let Some(&Item { token, text_end }) = self.items.get(self.next) {
            let hands_token = token >= 0 && !self.split;
            if hands_token && step.tokens == tokens_out.len() {
                break;
            }
            let text = &self.text[self.text_next..text_end];
            let fits = text.len() <= space - step.text_bytes;
            if !fits && step != Pull::default() {
                break;
            }
            let text = if fits { text } else { &text[..floor_char(text, space)] };
            text_out[step.text_bytes..step.text_bytes + text.len()].copy_from_slice(text);
            step.text_bytes += text.len();
            self.text_next += text.len();
            if hands_token {
                tokens_out[step.tokens] = token;
                step.tokens += 1;
            }
            self.split = !fits;
            if !fits {
                break;
            }
            self.next += 1;
        }
        text_out[step.text_bytes] = 0;
        if self.next == self.items.len() {
            self.items.clear();
            self.text.clear();
            (self.next, self.text_next) = (0, 0);
            match &self.end {
                Some(Ok(_)) => {
                    step.done = true;
                    self.end = None;
                }
                Some(Err(error)) if step == Pull::default() => {
                    let error = error.clone();
                    self.end = None;
                    return Err(error);
                }
                Some(Err(_)) | None => {}
            }
        }
        Ok(step)
    }
}

/// The largest character border at or below `limit` in the UTF-8 `text`, which is longer than `limit`.
fn floor_char(text: &[u8], limit: usize) -> usize {
    let begins = |at: &usize| text.get(*at).is_none_or(|byte| byte & 0xC0 != 0x80);
    (0..=limit).rev().find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(words: &[(Token, &str)], tail: &str, outcome: Result<FinishReason>) -> Queue {
        let mut queue = Queue::default();
        queue.reset(words.len());
        for (token, text) in words {
            queue.push(*token, text);
        }
        queue.finish(tail, outcome);
        queue
    }

    #[test]
    fn what_was_taken_makes_room_again() {
        let mut queue = Queue::default();
        queue.reset(3);
        let room = (queue.items.capacity(), queue.text.capacity());
        let (mut tokens, mut text) = ([0; 2], [0; 16]);
        for token in 0..1000 {
            queue.push(token, "word");
            queue.push(-1, "!");
            let step = queue.pull(&mut tokens, &mut text).unwrap();
            assert_eq!((step.tokens, step.text_bytes, tokens[0]), (1, 5, token));
        }
        assert_eq!((queue.items.capacity(), queue.text.capacity()), room);
    }

    #[test]
    fn a_step_ends_before_the_token_whose_text_does_not_fit() {
        let mut queue = filled(&[(1, "four"), (2, "five5"), (3, "")], "tail", Ok(FinishReason::Stop));
        let (mut tokens, mut text) = ([0; 8], [b'#'; 8]);
        assert_eq!(queue.pull(&mut tokens, &mut text), Ok(Pull { tokens: 1, text_bytes: 4, done: false }));
        assert_eq!(&text, b"four\0###");
        assert_eq!(queue.pull(&mut tokens, &mut text), Ok(Pull { tokens: 2, text_bytes: 5, done: false }));
        assert_eq!((&tokens[..2], &text[..6]), (&[2, 3][..], &b"five5\0"[..]));
        assert_eq!(queue.pull(&mut tokens, &mut text), Ok(Pull { tokens: 0, text_bytes: 4, done: true }));
        assert!(!queue.ready(), "the end is handed out once");
    }

    #[test]
    fn a_text_longer_than_the_buffer_is_spread_over_steps_with_its_token_in_the_first() {
        let long = "\u{2603}".repeat(5);
        let mut queue = filled(&[(7, &long), (8, "x")], "", Ok(FinishReason::Length));
        let (mut tokens, mut text) = ([0; 4], [0; 8]);
        let mut all = String::new();
        let mut steps = Vec::new();
        loop {
            let step = queue.pull(&mut tokens, &mut text).unwrap();
            all.push_str(std::str::from_utf8(&text[..step.text_bytes]).unwrap());
            steps.push((tokens[..step.tokens].to_vec(), step.text_bytes));
            if step.done {
                break;
            }
        }
        assert_eq!(all, long + "x");
        assert_eq!(steps, [(vec![7], 6), (vec![], 6), (vec![8], 4)]);
    }

    #[test]
    fn the_token_limit_is_kept_and_small_buffers_are_refused() {
        let mut queue = filled(&[(1, "a"), (2, "b"), (3, "c")], "", Ok(FinishReason::Stop));
        let (mut tokens, mut text) = ([0; 2], [0; 64]);
        assert!(check_buffers(&[], &text).is_err());
        assert!(check_buffers(&tokens, &text[..7]).is_err());
        assert!(check_buffers(&tokens, &text[..8]).is_ok());
        assert_eq!(queue.pull(&mut tokens, &mut text), Ok(Pull { tokens: 2, text_bytes: 2, done: false }));
        assert_eq!(queue.pull(&mut tokens, &mut text), Ok(Pull { tokens: 1, text_bytes: 1, done: true }));
    }

    #[test]
    fn the_error_of_a_failed_generation_comes_after_its_tokens_and_once() {
        let error = Error::NanLogits { row: 3, token: 5 };
        let mut queue = filled(&[(1, "a")], "b", Err(error.clone()));
        let (mut tokens, mut text) = ([0; 2], [0; 64]);
        assert_eq!(queue.pull(&mut tokens, &mut text), Ok(Pull { tokens: 1, text_bytes: 2, done: false }));
        assert_eq!(queue.pull(&mut tokens, &mut text), Err(error));
        assert!(!queue.ready());
    }

    const WORDS: [&str; 7] = ["", "a", "\u{e9}", "\u{2603}\u{2603}\u{2603}", "\u{1F600}", "word ", "n\0l"];

    proptest! {
        #[test]
        fn whatever_the_buffers_every_token_and_character_comes_once_and_in_order(
            words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..20),
            tail in prop::sample::select(&["", "\u{FFFD}", "<|en"][..]),
            token_cap in 1usize..5,
            text_cap in 8usize..20,
        ) {
            let items: Vec<(Token, &str)> = words.iter().enumerate().map(|(at, word)| (at as Token, *word)).collect();
            let mut queue = filled(&items, tail, Ok(FinishReason::Stop));
            let (mut tokens, mut text) = (vec![0; token_cap], vec![0xAA; text_cap]);
            let (mut all_tokens, mut all_text) = (Vec::new(), String::new());
            loop {
                let step = queue.pull(&mut tokens, &mut text).unwrap();
                prop_assert!(step.done || step.tokens > 0 || step.text_bytes > 0, "a step always advances");
                prop_assert_eq!(text[step.text_bytes], 0);
                all_tokens.extend_from_slice(&tokens[..step.tokens]);
                all_text.push_str(std::str::from_utf8(&text[..step.text_bytes]).unwrap());
                if step.done {
                    break;
                }
            }
            prop_assert_eq!(all_tokens, (0..words.len() as Token).collect::<Vec<_>>());
            prop_assert_eq!(all_text, (words.concat() + tail).replace('\0', "\u{FFFD}"));
        }
    }
}
