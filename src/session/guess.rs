//! Next tokens that are guessed: from the text itself, what followed the same tokens before, or by a draft model.
//!
//! A text that repeats parts of its prompt or of itself (an edit, JSON, code) goes on after its last few tokens as it
//! went on after the same tokens earlier ("prompt lookup decoding"), and after a token that is another one it likely
//! goes on in the same place. A small model guesses what a large one writes ("speculative decoding", Leviathan et al.,
//! <https://arxiv.org/abs/2211.17192>). The guessed tokens are evaluated in the pass of the tokens before them, which
//! costs little where a pass is bound by reading weights. Each token is then sampled from its own logits as ever; where
//! it is the one that was guessed, the next logits are there already. A guess that is wrong costs a part of one pass,
//! and no token of the output is another one.
//!
//! Whether guessing pays depends on the text and the machine, so it is measured for each way of it: while one does not
//! pay it rests, and is tried again after ever more tokens.

use super::decoder::PassTime;
use crate::Token;

/// From so many last tokens on that were there before, what followed them is likely to follow again.
const LONG: usize = 3;
/// Longer matches are as good as this.
const LONGEST: usize = 16;
/// The most tokens that are guessed at once: with the token before them eight rows of logits.
pub(super) const MOST: usize = 7;
/// Tokens until guessing is tried again after it did not pay: at first, and at most.
const REST: (u32, u32) = (32, 512);
/// What a way of guessing is taken to be like before it was tried: so many of its guesses were right and wrong, and one
/// costs this part of a pass.
const HOPED: (f64, f64, f64) = (2.0, 0.5, 0.1);
/// How much of what is known a pass leaves.
const KEPT: f64 = 0.8;
/// After so many passes with guesses one is made without, to learn anew what it takes.
const PASSES: u32 = 64;

/// Guesses of one generation.
pub(super) struct Guesser {
    /// Each way of guessing, by its number.
    ways: [Way; 3],
    /// How far back in the text it was that last went on as it does now.
    lag: Option<usize>,
    /// Seconds of a pass without guesses; 0 before the first.
    plain: f64,
    /// Passes with guesses since the last without.
    passes: u32,
    /// The pass whose guesses are being tried: by which way, how many, and how many times as long as a plain one it
    /// and they took; of several streams the time that all of them lost.
    tried: Option<(By, usize, f64)>,
}

/// Who guessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// The text, where one or two tokens were there before, or more in the same place before a token that was not.
    Few,
    /// The text, where more were there before.
    Text,
    /// The draft model.
    Draft,
}

/// How one way of guessing does.
struct Way {
    /// Guesses that were right and wrong, the last ones counting most. What comes after a wrong one was not tried.
    right: f64,
    wrong: f64,
    /// What a guess costs, in passes without guesses.
    cost: f64,
    /// Tokens until the next guess.
    rests: u32,
    /// How long the next rest is.
    next_rest: u32,
}

impl Way {
    fn new() -> Way {
        let (right, wrong, cost) = HOPED;
        Way { right, wrong, cost, rests: 0, next_rest: REST.0 }
    }

    /// How many tokens to guess now: as many as save the most time; 0 where none does, and while it rests.
    fn turn(&mut self) -> usize {
        if self.rests > 0 {
            self.rests -= 1;
            return 0;
        }
        let share = self.right / (self.right + self.wrong);
        let (mut best, mut tokens, mut reached) = ((1.0, 0), 1.0, 1.0);
        for guesses in 1..=MOST {
            reached *= share;
            tokens += reached;
            let gain = tokens / (1.0 + guesses as f64 * self.cost);
            if gain > best.0 {
                best = (gain, guesses);
            }
        }
        if best.1 == 0 {
            // The next try is judged by itself.
            *self = Way { rests: self.next_rest - 1, next_rest: (2 * self.next_rest).min(REST.1), ..Way::new() };
        }
        best.1
    }

    /// Notes a pass with so many guesses, so many of them right, that took so many times as long as one without.
    fn learn(&mut self, guesses: usize, right: usize, took: f64) {
        self.right = KEPT * self.right + right as f64;
        self.wrong = KEPT * self.wrong + f64::from(right < guesses);
        let cost = ((took - 1.0) / guesses as f64).max(0.01);
        self.cost = 0.75 * self.cost + 0.25 * cost;
        if right as f64 > guesses as f64 * self.cost {
            self.next_rest = REST.0;
        }
    }
}

impl Guesser {
    pub fn new() -> Guesser {
        Guesser { ways: [Way::new(), Way::new(), Way::new()], lag: None, plain: 0.0, passes: 0, tried: None }
    }

    /// Puts at most `most` guesses for what follows a text into `guesses`, and says by what. Where there are none, so
    /// many are asked of a draft model.
    pub fn guess(&mut self, text: &[Token], most: usize, guesses: &mut Vec<Token>) -> (By, usize) {
        guesses.clear();
        // A pass without guesses tells first what it takes.
        if self.plain == 0.0 || self.passes >= PASSES {
            return (By::Text, 0);
        }
        let [of_few, of_text, of_draft] = self.ways.each_mut().map(Way::turn);
        if of_few + of_text > 0 {
            let (after, same) = earlier(text);
            let (by, window) = if same >= LONG { (By::Text, of_text) } else { (By::Few, of_few) };
            // After a token that differs the place before it is likelier than that of so short a match.
            self.lag = if same >= LONG { Some(text.len() - after) } else { self.lag };
            let after = self.lag.and_then(|lag| text.len().checked_sub(lag)).unwrap_or(after);
            // What follows is guessed to follow after itself.
            for at in (after..).take(window.min(most)) {
                let next = text.get(at).or_else(|| guesses.get(at - text.len())).copied();
                guesses.extend(next);
            }
            if !guesses.is_empty() {
                return (by, 0);
            }
        }
        (By::Draft, of_draft.min(most))
    }

    /// Notes a pass with so many guesses.
    pub fn made(&mut self, by: By, guesses: usize, pass: PassTime) {
        let took = pass.took.as_secs_f64();
        match guesses {
            0 => {
                self.plain = if self.plain == 0.0 { took } else { 0.75 * self.plain + 0.25 * took };
                self.passes = 0;
            }
            _ => {
                self.passes += 1;
                // Every stream of the pass waits for the guesses of one.
                let lost = (took / self.plain.max(1e-9) - 1.0) * pass.streams as f64;
                self.tried = Some((by, guesses, 1.0 + lost));
            }
        }
    }

    /// Notes how many guesses of the last pass were right, before the next pass.
    pub fn learn(&mut self, right: usize) {
        let Some((by, guesses, took)) = self.tried.take() else { return };
        if by != By::Draft {
            self.lag = self.lag.filter(|_| right > 0);
        }
        self.ways[by as usize].learn(guesses, right, took);
    }
}

/// Where the text went on after its last tokens were there before, and how many: after the longest match, of several
/// the last; its end where there is none.
fn earlier(text: &[Token]) -> (usize, usize) {
    let Some((&last, before)) = text.split_last() else { return (0, 0) };
    let mut best = (text.len(), 0);
    for end in (1..text.len()).rev() {
        if text[end - 1] != last {
            continue;
        }
        let same =
            text[..end - 1].iter().rev().zip(before.iter().rev()).take(LONGEST).take_while(|(a, b)| a == b).count();
        if same + 1 > best.1 {
            best = (end, same + 1);
            if same + 1 >= LONGEST {
                break;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn pass(ms: u64) -> PassTime {
        PassTime { took: Duration::from_millis(ms), streams: 1 }
    }

    fn guess(text: &[Token]) -> Vec<Token> {
        let (mut guesser, mut guesses) = (Guesser::new(), Vec::new());
        guesser.made(By::Text, 0, pass(10));
        guesser.guess(text, 3, &mut guesses);
        guesses
    }

    #[test]
    fn what_followed_the_longest_match_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 6, 7, 1, 2, 3]), [4, 5, 6]);
        assert_eq!(guess(&[9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3]), [4, 8, 1], "four tokens match there");
        assert_eq!(guess(&[1, 2, 3, 4, 1, 2, 3, 5, 7, 1, 2, 3]), [5, 7, 1], "the last of two");
        assert_eq!(guess(&[4, 2, 3, 9, 1, 2, 3]), [9, 1, 2]);
        assert_eq!(guess(&[1, 1, 1, 1]), [1, 1, 1], "and so on");
        assert_eq!(guess(&[5, 1, 2, 1, 2, 1, 2]), [1, 2, 1], "and so on");
        assert_eq!((guess(&[]), guess(&[1]), guess(&[1, 2, 3])), (vec![], vec![], vec![]));
    }

    #[test]
    fn what_does_not_pay_rests_ever_longer() {
        let (mut guesser, mut guesses) = (Guesser::new(), Vec::new());
        let text = [1, 2, 3, 4, 5, 1, 2, 3];
        guesser.guess(&text, 7, &mut guesses);
        assert!(guesses.is_empty(), "nothing is known of this machine");
        guesser.made(By::Text, 0, pass(10));
        let (mut rested, mut rests) = (0, Vec::new());
        while rests.len() < 3 {
            guesser.guess(&text, 7, &mut guesses);
            match guesses.len() {
                0 => rested += 1,
                count => {
                    rests.extend((rested > 0).then_some(std::mem::take(&mut rested)));
                    guesser.made(By::Text, count, pass(30));
                    guesser.learn(0);
                }
            }
        }
        assert_eq!(rests, [32, 64, 128]);
        for _ in 0..600 {
            guesser.guess(&text, 7, &mut guesses);
            guesser.made(By::Text, guesses.len(), pass(if guesses.is_empty() { 10 } else { 12 }));
            guesser.learn(guesses.len());
        }
        assert_eq!(
            (guesses.len(), guesser.ways[By::Text as usize].next_rest),
            (7, REST.0),
            "all that follows, and so on"
        );
    }

    #[test]
    fn as_many_are_guessed_as_pay() {
        let guesses = |share: f64, cost: f64| Way { right: share, wrong: 1.0 - share, cost, ..Way::new() }.turn();
        assert_eq!([guesses(0.99, 0.05), guesses(0.7, 0.2), guesses(0.3, 0.2), guesses(0.1, 0.2)], [7, 3, 1, 0]);
    }
}
