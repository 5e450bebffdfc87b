//! The budget of reasoning: how many tokens a model may think, after which the end of its thinking is forced.
//!
//! Thinking begins where the tokens of the start tag were generated, or where the prompt ends with them, and ends with
//! those of the end tag. Once it has taken the budget, and no character is incomplete, the end tag is forced, token by
//! token; forced tokens cost no sampling. Each block of thinking has the whole budget. Where a token trie decides the
//! next token, that goes first.

use super::options::ReasoningBudget;
use crate::vocab::Vocab;
use crate::{Error, Result, Token};

/// A budget and how much of it was used.
#[derive(Debug, Clone)]
pub(crate) struct Reasoning {
    start: Tag,
    end: Tag,
    budget: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Outside of thinking.
    Outside,
    /// Within it, with so many tokens left.
    Within(u32),
    /// So many tokens of the end tag were forced.
    Ending(usize),
}

/// The tokens of a tag, and how many of them the last tokens of the stream are.
#[derive(Debug, Clone)]
struct Tag {
    tokens: Vec<Token>,
    matched: usize,
}

impl Tag {
    fn new(text: &str, name: &str, vocab: &Vocab) -> Result<Tag> {
        let tokens = vocab.tokenize_inside(text.as_bytes(), true, &|| false)?;
        if tokens.is_empty() {
            return Err(Error::InvalidArgument(format!("The {name} of the reasoning budget has no tokens")));
        }
        Ok(Tag { tokens, matched: 0 })
    }

    /// Reads a token; true where the tag is complete.
    fn push(&mut self, token: Token) -> bool {
        if self.tokens.get(self.matched) != Some(&token) {
            self.matched = 0;
        }
        self.matched += usize::from(self.tokens.get(self.matched) == Some(&token));
        let complete = self.matched == self.tokens.len();
        if complete {
            self.matched = 0;
        }
        complete
    }
}

impl Reasoning {
    /// A budget, before any token.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a tag without tokens, [`Error::OutOfMemory`].
    pub(crate) fn new(budget: &ReasoningBudget, vocab: &Vocab) -> Result<Reasoning> {
        Ok(Reasoning {
            start: Tag::new(&budget.start, "start", vocab)?,
            end: Tag::new(&budget.end, "end", vocab)?,
            budget: budget.tokens,
            state: State::Outside,
        })
    }

    /// Looks at the prompt: whether nothing but white space comes after a start tag.
    pub(crate) fn after(&mut self, prompt: &[Token], mut is_space: impl FnMut(Token) -> bool) {
        let spaces = prompt.iter().rev().take_while(|&&token| is_space(token)).count();
        // The tag may itself end with what spells white space.
        let begins = (0..=spaces).any(|after| prompt[..prompt.len() - after].ends_with(&self.start.tokens));
        self.state = if begins { State::Within(self.budget) } else { State::Outside };
    }

    /// The token that is forced; `None` where the model goes on. `whole` is whether no character is incomplete.
    pub(crate) fn forced(&mut self, whole: bool) -> Option<Token> {
        if self.state == State::Within(0) && whole {
            // What the model wrote of the tag itself is not written again.
            self.state = State::Ending(self.end.matched);
        }
        match self.state {
            State::Ending(at) => self.end.tokens.get(at).copied(),
            _ => None,
        }
    }

    /// Reads a token of the stream.
    pub(crate) fn accept(&mut self, token: Token) {
        let ended = self.end.push(token);
        self.state = match self.state {
            State::Outside if self.start.push(token) => {
                self.end.matched = 0;
                State::Within(self.budget)
            }
            State::Within(_) if ended => State::Outside,
            State::Within(left) => State::Within(left.saturating_sub(1)),
            State::Ending(_) if ended => State::Outside,
            State::Ending(at) if self.end.tokens.get(at) == Some(&token) => State::Ending(at + 1),
            // A trie asked for another token.
            State::Ending(_) => State::Within(0),
            State::Outside => State::Outside,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start 1 2, end 8 9.
    fn reasoning(budget: u32) -> Reasoning {
        let tag = |tokens: &[Token]| Tag { tokens: tokens.to_vec(), matched: 0 };
        Reasoning { start: tag(&[1, 2]), end: tag(&[8, 9]), budget, state: State::Outside }
    }

    /// The tokens of a stream, where the model would say these.
    fn stream(reasoning: &mut Reasoning, mut model: impl Iterator<Item = Token>, length: usize) -> Vec<Token> {
        let next = || {
            let token = reasoning.forced(true).or_else(|| model.next())?;
            reasoning.accept(token);
            Some(token)
        };
        std::iter::from_fn(next).take(length).collect()
    }

    #[test]
    fn the_end_is_forced_after_the_budget() {
        let said = [5, 1, 2, 3, 3, 3, 3, 3];
        assert_eq!(stream(&mut reasoning(2), said.into_iter(), 9), [5, 1, 2, 3, 3, 8, 9, 3, 3]);
        assert_eq!(stream(&mut reasoning(0), said.into_iter(), 6), [5, 1, 2, 8, 9, 3]);
        assert_eq!(stream(&mut reasoning(9), said.into_iter(), 20), said);
    }

    #[test]
    fn each_block_has_the_whole_budget_and_one_that_ends_by_itself_is_left_alone() {
        let said = [1, 2, 3, 8, 9, 4, 4, 4, 1, 2, 3, 3, 3, 3];
        let expected = [1, 2, 3, 8, 9, 4, 4, 4, 1, 2, 3, 3, 3, 8, 9, 3];
        assert_eq!(stream(&mut reasoning(3), said.into_iter(), 20), expected);
    }

    #[test]
    fn an_end_that_was_begun_is_completed() {
        assert_eq!(stream(&mut reasoning(2), [1, 2, 3, 8, 7].into_iter(), 6), [1, 2, 3, 8, 9, 7]);
        // A tag that begins anew within itself.
        assert_eq!(stream(&mut reasoning(5), [1, 1, 2, 8, 8, 9, 3].into_iter(), 9), [1, 1, 2, 8, 8, 9, 3]);
    }

    #[test]
    fn a_character_is_completed_first() {
        let mut reasoning = reasoning(1);
        [1, 2, 3].into_iter().for_each(|token| reasoning.accept(token));
        assert_eq!(reasoning.forced(false), None);
        reasoning.accept(4);
        assert_eq!(reasoning.forced(true), Some(8));
    }

    #[test]
    fn a_prompt_may_open_the_block() {
        let space = |token| token == 6;
        for (prompt, opens) in [(&[5, 1, 2][..], true), (&[1, 2, 6, 6], true), (&[1, 2, 5], false), (&[2], false)] {
            let mut reasoning = reasoning(0);
            reasoning.after(prompt, space);
            assert_eq!(reasoning.forced(true), opens.then_some(8), "{prompt:?}");
        }
    }
}
