//! Which tokens are legal in a state, as bits.

use crate::Token;
use std::sync::atomic::{AtomicU64, Ordering};

/// Up to so many legal tokens are listed.
pub const MAX_FEW: usize = 256;

/// The legal tokens of one state of a grammar.
#[derive(Debug)]
pub struct Mask {
    bits: Vec<u32>,
    count: u32,
    few: Vec<Token>,
    number: u64,
}

impl Mask {
    pub(super) fn new(bits: Vec<u32>) -> Mask {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let count: u32 = bits.iter().map(|word| word.count_ones()).sum();
        let mut few = Vec::new();
        if count as usize <= MAX_FEW {
            few.reserve_exact(count as usize);
            for (index, &word) in bits.iter().enumerate().filter(|(_, word)| **word != 0) {
                few.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| (index * 32 + bit) as Token));
            }
        }
        Mask { bits, count, few, number: NUMBERS.fetch_add(1, Ordering::Relaxed) }
    }

    /// A bit for each token, the lowest of a word first: ⌈n_vocab / 32⌉ words.
    pub fn bits(&self) -> &[u32] {
        &self.bits
    }

    /// How many tokens are legal.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The legal tokens, ascending, where they are [`MAX_FEW`] at most.
    pub fn few(&self) -> Option<&[Token]> {
        (self.count as usize <= MAX_FEW).then_some(&self.few)
    }

    /// Whether a token is legal; an id outside the vocabulary never is.
    pub fn allows(&self, token: Token) -> bool {
        usize::try_from(token).is_ok_and(|t| self.bits.get(t / 32).is_some_and(|word| word >> (t % 32) & 1 == 1))
    }

    /// A number that no other mask of this process has had.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.bits.len() * 4 + self.few.len() * 4 + size_of::<Mask>()
    }
}

/// What is legal in a state whatever comes after the rules that it is in: shared by all states that differ in that
/// alone.
#[derive(Debug)]
pub(super) struct Local {
    /// The tokens that end inside of those rules.
    pub(super) bits: Vec<u32>,
    /// The tokens that end exactly where they end.
    pub(super) ends: Vec<Token>,
    /// The nodes of the vocabulary that reach that end and have descendants.
    pub(super) beyond: Vec<u32>,
}

impl Local {
    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        (self.bits.len() + self.ends.len() + self.beyond.len()) * 4
    }
}
