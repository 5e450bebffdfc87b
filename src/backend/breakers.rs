//! The texts at which a repetition ends for DRY, as tokens of a vocabulary.

use crate::Token;
use std::ops::Range;

/// Which tokens complete or begin such a text, and how it goes on.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Breakers {
    heads: Vec<BreakerHead>,
    tails: Vec<Token>,
}

/// A token that ends with the beginning of a breaker, and the tokens of the rest; without these it is one by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerHead {
    /// The token.
    pub token: Token,
    /// Where its tail is in [`Breakers::tails`].
    pub tail: Range<u32>,
}

impl Breakers {
    /// Breakers of these heads, whose tails are in `tails`.
    pub fn new(mut heads: Vec<BreakerHead>, tails: Vec<Token>) -> Breakers {
        heads.sort_by(|a, b| a.token.cmp(&b.token).then(b.tail.len().cmp(&a.tail.len())));
        let tail = |head: &BreakerHead| &tails[head.tail.start as usize..head.tail.end as usize];
        heads.dedup_by(|a, b| a.token == b.token && tail(a) == tail(b));
        Breakers { heads, tails }
    }

    /// All heads by token, of one token the longest tail first.
    pub fn heads(&self) -> &[BreakerHead] {
        &self.heads
    }

    /// The tokens of all tails.
    pub fn tails(&self) -> &[Token] {
        &self.tails
    }

    fn of(&self, token: Token) -> &[BreakerHead] {
        let start = self.heads.partition_point(|head| head.token < token);
        let heads = self.heads.get(start..).unwrap_or_default();
        &heads[..heads.partition_point(|head| head.token == token)]
    }

    /// Whether the token alone is a breaker.
    pub fn is_single(&self, token: Token) -> bool {
        self.of(token).last().is_some_and(|head| head.tail.is_empty())
    }

    /// How many tokens came since the last breaker ended; `newest_first` are the tokens. All of them where there was
    /// none.
    pub fn since_last(&self, newest_first: &[Token]) -> usize {
        for (at, &token) in newest_first.iter().enumerate() {
            let follows = |head: &&BreakerHead| {
                let tail = &self.tails[head.tail.start as usize..head.tail.end as usize];
                tail.len() <= at && newest_first[at - tail.len()..at].iter().rev().eq(tail)
            };
            if let Some(head) = self.of(token).iter().find(follows) {
                return at - head.tail.len();
            }
        }
        newest_first.len()
    }
}
