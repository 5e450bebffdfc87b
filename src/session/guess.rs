//! Next tokens that are guessed: from the text itself, what followed the same tokens before, or by a draft model.
//!
//! A text that repeats parts of its prompt or of itself (an edit, JSON, code) goes on after its last few tokens as it
//! went on after the same tokens earlier ("prompt lookup decoding"). A small model of the same vocabulary guesses what a
//! large one writes ("speculative decoding", Leviathan et al., <https://arxiv.org/abs/2211.17192>). The guessed tokens
//! are evaluated in the pass of the tokens before them, which costs little where a pass is bound by reading weights.
//! Each token is then sampled from its own logits as ever; where it is the one that was guessed, the next logits are
//! there already. A guess that is wrong costs a part of one pass, and no token of the output is another one.
//!
//! Whether guessing pays depends on the text and the machine, so it is measured for each way of it: while one does not
//! pay it rests, and is tried again after ever more tokens.

use crate::Token;
use std::time::Duration;

/// The fewest last tokens that must have been there before.
const SHORTEST: usize = 3;
/// Longer matches are as good as this.
const LONGEST: usize = 16;
/// The most tokens that are guessed at once: with the token before them eight rows of logits.
pub(super) const MOST: usize = 7;
/// Tokens until guessing is tried again after it did not pay: at first, and at most.
const REST: (u32, u32) = (32, 512);
/// After so many passes with guesses one is made without, to learn anew what it takes.
const PASSES: u32 = 64;

/// Guesses of one generation.
pub(super) struct Guesser {
    text: Way,
    draft: Way,
    /// Seconds of a pass without guesses; 0 before the first.
    plain: f64,
    /// Passes with guesses since the last without.
    passes: u32,
    /// The pass whose guesses are being tried: by which way, how many, and how long guesses and pass took.
    tried: Option<(By, usize, Duration)>,
}

/// Who guessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// The text.
    Text,
    /// The draft model.
    Draft,
}

/// How one way of guessing does.
struct Way {
    /// How many tokens are guessed at once.
    window: usize,
    /// Tokens until the next guess.
    rests: u32,
    /// How long the next rest is.
    next_rest: u32,
    /// How many times as fast passes with guesses were.
    gain: f64,
}

impl Way {
    fn new() -> Way {
        Way { window: MOST, rests: 0, next_rest: REST.0, gain: 1.0 }
    }

    /// How many tokens to guess now.
    fn turn(&mut self) -> usize {
        match self.rests {
            0 => self.window,
            _ => {
                self.rests -= 1;
                0
            }
        }
    }

    /// Notes a pass with so many guesses, so many of them right, that was so many times as fast as those without.
    fn learn(&mut self, guesses: usize, right: usize, gain: f64) {
        self.gain = 0.5 * self.gain + 0.5 * gain;
        self.window = match right {
            _ if right == guesses => (2 * guesses).min(MOST),
            0 => (guesses / 2).max(1),
            _ => (right + 1).min(MOST),
        };
        if self.gain < 1.0 {
            (self.rests, self.next_rest) = (self.next_rest, (2 * self.next_rest).min(REST.1));
            // The next try is judged by itself.
            self.gain = 1.0;
        } else if gain > 1.0 {
            self.next_rest = REST.0;
        }
    }
}

impl Guesser {
    pub fn new() -> Guesser {
        Guesser { text: Way::new(), draft: Way::new(), plain: 0.0, passes: 0, tried: None }
    }

    /// Puts at most `most` guesses for what follows a text into `guesses`. Where there are none, so many are asked of
    /// a draft model.
    pub fn guess(&mut self, text: &[Token], most: usize, guesses: &mut Vec<Token>) -> usize {
        guesses.clear();
        let (of_text, of_draft) = (self.text.turn(), self.draft.turn());
        // A pass without guesses tells first what it takes.
        if self.plain == 0.0 || self.passes >= PASSES {
            return 0;
        }
        if of_text > 0
            && let Some(after) = earlier(text)
        {
            guesses.extend_from_slice(&text[after..][..of_text.min(most).min(text.len() - after)]);
        }
        if guesses.is_empty() { of_draft.min(most) } else { 0 }
    }

    /// Notes a pass with so many guesses.
    pub fn made(&mut self, by: By, guesses: usize, took: Duration) {
        match guesses {
            0 => {
                let took = took.as_secs_f64();
                self.plain = if self.plain == 0.0 { took } else { 0.75 * self.plain + 0.25 * took };
                self.passes = 0;
            }
            _ => {
                self.passes += 1;
                self.tried = Some((by, guesses, took));
            }
        }
    }

    /// Notes how many guesses of the last pass were right, before the next pass.
    pub fn learn(&mut self, right: usize) {
        let Some((by, guesses, took)) = self.tried.take() else { return };
        let gain = (right + 1) as f64 * self.plain / took.as_secs_f64().max(1e-9);
        match by {
            By::Text => self.text.learn(guesses, right, gain),
            By::Draft => self.draft.learn(guesses, right, gain),
        }
    }
}

/// Where the text went on after its last tokens were there before: after the longest match, of several the last.
fn earlier(text: &[Token]) -> Option<usize> {
    let (&last, before) = text.split_last()?;
    let mut best = (SHORTEST - 1, None);
    for end in (SHORTEST..text.len()).rev() {
        if text[end - 1] != last {
            continue;
        }
        let same =
            text[..end - 1].iter().rev().zip(before.iter().rev()).take(LONGEST).take_while(|(a, b)| a == b).count();
        if same + 1 > best.0 {
            best = (same + 1, Some(end));
            if same + 1 >= LONGEST {
                break;
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(text: &[Token]) -> Vec<Token> {
        let (mut guesser, mut guesses) = (Guesser::new(), Vec::new());
        guesser.made(By::Text, 0, Duration::from_millis(10));
        guesser.guess(text, 3, &mut guesses);
        guesses
    }

    #[test]
    fn what_followed_the_longest_match_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 6, 7, 1, 2, 3]), [4, 5, 6]);
        assert_eq!(guess(&[9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3]), [4, 8, 1], "four tokens match there");
        assert_eq!(guess(&[1, 2, 3, 4, 1, 2, 3, 5, 7, 1, 2, 3]), [5, 7, 1], "the last of two");
        assert!(guess(&[4, 2, 3, 9, 1, 2, 3]).is_empty(), "two tokens are too few");
        assert_eq!(guess(&[1, 1, 1, 1]), [1], "up to the end");
        assert_eq!((guess(&[]), guess(&[1]), guess(&[1, 2, 3])), (vec![], vec![], vec![]));
    }

    #[test]
    fn what_does_not_pay_rests_ever_longer() {
        let (mut guesser, mut guesses) = (Guesser::new(), Vec::new());
        let text = [1, 2, 3, 4, 5, 1, 2, 3];
        guesser.guess(&text, 7, &mut guesses);
        assert!(guesses.is_empty(), "nothing is known of this machine");
        guesser.made(By::Text, 0, Duration::from_millis(10));
        let mut between = Vec::new();
        for _ in 0..3 {
            let mut rested = 0;
            while {
                guesser.guess(&text, 7, &mut guesses);
                guesses.is_empty()
            } {
                rested += 1;
            }
            between.push(rested);
            guesser.made(By::Text, guesses.len(), Duration::from_millis(30));
            guesser.learn(0);
        }
        assert_eq!(between, [0, 32, 64]);
        assert_eq!(guesser.text.window, 1);
        while {
            guesser.guess(&text, 7, &mut guesses);
            guesses.is_empty()
        } {}
        for _ in 0..4 {
            guesser.made(By::Text, guesses.len(), Duration::from_millis(12));
            guesser.learn(guesses.len());
            guesser.guess(&text, 7, &mut guesses);
        }
        assert_eq!((guesses.len(), guesser.text.rests), (5, 0), "all that follows");
    }
}
