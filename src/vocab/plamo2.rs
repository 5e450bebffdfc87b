//! PLaMo-2's tokenization: of all ways to cut a text into tokens, or characters spelled in bytes, the one that costs
//! least. Costs are integers, the scores with four digits after the point. The text is read from its end.

use super::automaton::{Automaton, NONE, ReadFrom};
use super::merge::TOKENS;
use super::pace::Pace;
use super::special::BYTE;
use super::spelling::{byte_of_text, hex_text};
use super::texts::Texts;
use super::unicode::{TEXT, repair};
use crate::{Error, Result, Token, reserve};

const KEY: &str = "tokenizer.ggml.tokens";
/// What a character costs that is spelled in bytes.
const BYTES_COST: i64 = 10_000_000;
/// A token that costs so much is never used.
const NEVER: i32 = 20_000_000;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The tokens of a vocabulary and what they cost.
pub(super) struct Plamo2 {
    tokens: Automaton,
    /// By token.
    costs: Vec<i32>,
    bytes: [Token; 256],
}

/// The best way to cut the text after some place.
#[derive(Clone, Copy, Default)]
struct Best {
    cost: i64,
    /// The first token, [`NONE`] for the bytes of a character.
    id: u32,
    /// Where the next one begins.
    next: u32,
}

impl Plamo2 {
    /// From the score of every token.
    pub(super) fn new(texts: &Texts, attributes: &[u8], scores: &[f32]) -> Result<Self> {
        let mut bytes = [None; 256];
        let mut costs = reserve::list(scores.len(), "scores")?;
        for ((id, score), attribute) in (0..).zip(scores).zip(attributes) {
            let most = f64::from(i32::MAX);
            let scaled = (f64::from(*score) * 1e4).round().clamp(-most, most);
            costs.push(if score.is_finite() { -(scaled as i32) } else { NEVER });
            if let Some(byte) = byte_of_text(texts.get(id)).filter(|_| attribute & BYTE != 0) {
                bytes[usize::from(byte)] = Some(id as Token);
            }
        }
        let mut tokens = [0; 256];
        for (byte, (token, found)) in (0..=u8::MAX).zip(tokens.iter_mut().zip(bytes)) {
            *token = found.ok_or_else(|| {
                let text = hex_text(byte);
                Error::Vocab(format!("Key `{KEY}`: there is no byte token `{}`", String::from_utf8_lossy(&text)))
            })?;
        }
        let is_used = |id: &u32| attributes[*id as usize] & BYTE == 0 && costs[*id as usize] < NEVER;
        let used = (0..attributes.len() as u32).filter(is_used).map(|id| (id, texts.get(id)));
        let automaton = Automaton::new(ReadFrom::End, attributes.len(), used)?;
        Ok(Plamo2 { tokens: automaton, costs, bytes: tokens })
    }

    /// Append the tokens of one stretch of text that holds no special token.
    pub(super) fn tokenize(&self, text: &[u8], pace: &Pace<'_>, out: &mut Vec<Token>) -> Result<()> {
        let text = repair(text, pace)?;
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
        let mut best = reserve::filled(Best::default(), text.len() + 1, TEXT)?;
        let (mut state, mut behind) = (0, text.len());
        for (at, &byte) in text.iter().enumerate().rev() {
            pace.spend(1)?;
            state = self.tokens.step(state, byte);
            if byte & 0xc0 == 0x80 {
                continue;
            }
            let mut here = Best { cost: i64::MAX, id: NONE, next: behind as u32 };
            // Of equal costs the first is taken, that of the longest token.
            for (id, len) in self.tokens.found(state) {
                pace.spend(1)?;
                let cost = best[at + len].cost + i64::from(self.costs[id as usize]);
                if cost < here.cost {
                    here = Best { cost, id, next: (at + len) as u32 };
                }
            }
            let cost = best[behind].cost + BYTES_COST;
            if cost < here.cost {
                here = Best { cost, id: NONE, next: behind as u32 };
            }
            best[at] = here;
            behind = at;
        }
        let mut at = 0;
        while at < text.len() {
            pace.spend(1)?;
            let Best { id, next, .. } = best[at];
            if id == NONE {
                for &byte in &text[at..next as usize] {
                    reserve::push(out, self.bytes[usize::from(byte)], TOKENS)?;
                }
            } else {
                reserve::push(out, id as Token, TOKENS)?;
            }
            at = next as usize;
        }
        Ok(())
    }
}
