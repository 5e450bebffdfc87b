//! Which tokens are legal in a state, as bits.

use crate::{Result, Token, reserve};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
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

/// Tokens by the number of items of a repetition that they need, in an endless loop of that item.
#[derive(Debug)]
pub(super) struct Local {
    /// Those that need fewer come first.
    tokens: Vec<Token>,
    /// How many tokens need at most so many items, by that number.
    counts: Vec<u32>,
    /// The most whole items that any text of the vocabulary begins with.
    pub(super) most: u16,
    /// Bits of the tokens that need at most so many items, by that number, up to [`SMALL`]; then those of all. Empty
    /// where there are few tokens.
    bits: Vec<Vec<u32>>,
    /// The bytes that the loop goes on with between two items.
    pub(super) live: [u64; 4],
    /// By byte, for those that the loop does not go on with: the nodes of the vocabulary with that byte after so many
    /// whole items.
    pub(super) exits: HashMap<u8, Vec<(u32, u16)>>,
}

/// More tokens than this have bits.
const LISTED: usize = 4096;
/// Up to so many items the bits are kept for each number.
const SMALL: usize = 16;

impl Local {
    /// `needs` has tokens with the items that they need, `whole` is the most whole items of a text.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub(super) fn new(
        mut needs: Vec<(u16, Token)>,
        whole: u16,
        n_vocab: usize,
        live: [u64; 4],
        exits: HashMap<u8, Vec<(u32, u16)>>,
    ) -> Result<Local> {
        const BITS: &str = "words of a mask";
        needs.sort_unstable();
        let most = needs.last().map_or(0, |need| usize::from(need.0));
        let counts = (0..=most).map(|most| needs.partition_point(|need| usize::from(need.0) <= most) as u32).collect();
        let mut local = Local { tokens: Vec::new(), counts, most: whole, bits: Vec::new(), live, exits };
        if needs.len() > LISTED {
            let mut bits = reserve::filled(0u32, n_vocab.div_ceil(32), BITS)?;
            let mut next = 0;
            for count in (0..=SMALL.min(most)).map(|most| local.counts[most] as usize).chain([needs.len()]) {
                needs[next..count].iter().for_each(|&(_, token)| set(&mut bits, token));
                next = count;
                local.bits.push(reserve::copied(&bits, BITS)?);
            }
        }
        local.tokens = needs.into_iter().map(|(_, token)| token).collect();
        Ok(local)
    }

    /// Adds the tokens that need at most so many items.
    pub(super) fn add(&self, bits: &mut [u32], items: u32) {
        let items = items as usize;
        let count = self.counts.get(items).map_or(self.tokens.len(), |&count| count as usize);
        let known = match self.bits.len().checked_sub(1) {
            None => return self.tokens[..count].iter().for_each(|&token| set(bits, token)),
            Some(all) if count == self.tokens.len() => &self.bits[all],
            Some(_) if items <= SMALL => &self.bits[items],
            // Those beyond the last number that has bits are few.
            Some(_) => {
                self.tokens[self.counts[SMALL] as usize..count].iter().for_each(|&token| set(bits, token));
                &self.bits[SMALL]
            }
        };
        bits.iter_mut().zip(known).for_each(|(word, known)| *word |= known);
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let bits: usize = self.bits.iter().map(Vec::len).sum();
        let exits: usize = self.exits.values().map(|list| list.len() * 8).sum();
        (self.tokens.len() + self.counts.len() + bits) * 4 + exits
    }
}

/// What was found for a vocabulary, for all of its grammars: by a description of the item and the place in it.
#[derive(Debug, Default)]
pub(super) struct Locals(Mutex<KnownLocals>);

#[derive(Debug, Default)]
struct KnownLocals {
    by_description: HashMap<[u8; 32], Option<Arc<Local>>>,
    bytes: usize,
}

/// Tokens that go beyond a repetition, with the number of whole items before that.
pub(super) type Beyond = Vec<(u16, Token)>;

/// The most bytes of [`Locals`]. Beyond them all are dropped and found again when they are needed.
const MAX_LOCAL_BYTES: usize = 64 << 20;

impl Locals {
    pub(super) fn get(&self, key: &[u8; 32]) -> Option<Option<Arc<Local>>> {
        self.0.lock().by_description.get(key).cloned()
    }

    pub(super) fn keep(&self, key: [u8; 32], local: Option<Arc<Local>>) {
        let mut known = self.0.lock();
        let bytes = local.as_ref().map_or(64, |local| local.bytes());
        if known.bytes + bytes > MAX_LOCAL_BYTES {
            *known = KnownLocals::default();
        }
        if known.by_description.insert(key, local).is_none() {
            known.bytes += bytes;
        }
    }
}

/// Sets the bit of a token.
pub(super) fn set(bits: &mut [u32], token: Token) {
    bits[token as usize / 32] |= 1 << (token % 32);
}
