//! Unigram tokenization, as SentencePiece has it (Kudo, <https://arxiv.org/abs/1804.10959>): of all ways to cut a text
//! into tokens the one with the largest sum of scores, found by Viterbi's algorithm.

use super::automaton::{Automaton, NONE, ReadFrom};
use super::charsmap::Charsmap;
use super::merge::{Scratch, TOKENS};
use super::pace::Pace;
use super::special::{NORMAL, UNUSED, USER_DEFINED};
use super::spelling::SPACE_MARK;
use super::texts::Texts;
use super::unicode::{REPLACEMENT, TEXT, lenient_char, utf8_len};
use crate::{Error, Result, Token, reserve};

/// How much less than the worst token a character without one scores.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The tokens of a vocabulary with their scores, and how a text is written before it is cut.
pub(super) struct Ugm {
    tokens: Automaton,
    /// By token.
    scores: Vec<f32>,
    unknown_score: f32,
    unk: Token,
    charsmap: Charsmap,
    /// The user-defined tokens. What begins one is not replaced, even if the whole token is not there, as in llama.cpp.
    kept: Automaton,
    /// Whether a run of spaces is one, and none where a text begins or ends.
    merge_spaces: bool,
}

/// The best way to cut the text before some place.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// The last token.
    id: u32,
    /// Where that begins.
    start: u32,
}

/// No way leads to a place: tokens end only where characters do.
const UNREACHED: Best = Best { score: f64::NEG_INFINITY, id: NONE, start: 0 };

impl Ugm {
    /// From the score of every token, all of them finite.
    pub(super) fn new(
        texts: &Texts,
        attributes: &[u8],
        mut scores: Vec<f32>,
        unk: Token,
        charsmap: Charsmap,
        merge_spaces: bool,
    ) -> Result<Self> {
        let normal = scores.iter().zip(attributes).filter(|(_, attribute)| **attribute & NORMAL != 0);
        let worst = normal.map(|(score, _)| *score).fold(f32::MAX, f32::min);
        for (score, _) in scores.iter_mut().zip(attributes).filter(|(_, attribute)| **attribute & USER_DEFINED != 0) {
            *score = 0.0;
        }
        let find = |wanted: u8| {
            let ids = (0..).zip(attributes).filter(move |(_, attribute)| **attribute & wanted != 0);
            Automaton::new(ReadFrom::Start, attributes.len(), ids.map(|(id, _)| (id, texts.get(id))))
        };
        let (tokens, kept) = (find(NORMAL | USER_DEFINED | UNUSED)?, find(USER_DEFINED)?);
        Ok(Ugm { tokens, scores, unknown_score: worst - UNKNOWN_PENALTY, unk, charsmap, kept, merge_spaces })
    }

    /// Append the tokens of one stretch of text that holds no special token. `begins` is set where a text begins with
    /// it, `prefix` where a space is put before the first word then.
    pub(super) fn tokenize(
        &self,
        text: &[u8],
        begins: bool,
        prefix: bool,
        scratch: &mut Scratch,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        self.normalize(text, begins, prefix, pace, &mut scratch.written)?;
        self.cut(&scratch.written, pace, out)
    }

    /// Write a text as tokens have it.
    fn normalize(&self, text: &[u8], begins: bool, prefix: bool, pace: &Pace<'_>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        reserve::reserve(out, text.len() + text.len() / 4, TEXT)?;
        let mut in_word = self.merge_spaces && !begins;
        let mut prefix = prefix && begins;
        let mut rest = text;
        while let Some(&first) = rest.first() {
            let whole = |len| (len, &rest[..len]);
            let (len, written) = match self.kept.common_start(rest) {
                0 => match (self.charsmap.replacement(rest), lenient_char(rest)) {
                    (Some(replaced), _) => replaced,
                    (None, None) if first >= 128 => (1, &REPLACEMENT[..]),
                    (None, found) => whole(found.map_or(1, |(_, len)| len)),
                },
                kept => whole(kept),
            };
            pace.spend(1 + len / 8 + written.len() / 8)?;
            for &byte in written {
                if byte == b' ' {
                    in_word = false;
                    if !self.merge_spaces {
                        reserve::extend(out, SPACE_MARK, TEXT)?;
                    }
                    continue;
                }
                if !in_word && (self.merge_spaces || prefix) {
                    reserve::extend(out, SPACE_MARK, TEXT)?;
                    prefix = false;
                }
                in_word = true;
                reserve::push(out, byte, TEXT)?;
            }
            rest = &rest[len..];
        }
        match out.len() <= u32::MAX as usize {
            true => Ok(()),
            false => Err(Error::InvalidArgument(format!("a text that is written as {} bytes", out.len()))),
        }
    }

    fn cut(&self, text: &[u8], pace: &Pace<'_>, out: &mut Vec<Token>) -> Result<()> {
        let mut best = reserve::filled(UNREACHED, text.len() + 1, "places in a text")?;
        best[0].score = 0.0;
        let (mut state, mut start) = (0, 0);
        while let Some(&first) = text.get(start) {
            let end = text.len().min(start + utf8_len(first));
            for &byte in &text[start..end] {
                state = self.tokens.step(state, byte);
            }
            pace.spend(end - start)?;
            let mut here = UNREACHED;
            // Of equal sums the first is taken, that of the longest last token.
            let mut consider = |id: u32, start: usize, score: f32| {
                let score = best[start].score + f64::from(score);
                if score > here.score {
                    here = Best { score, id, start: start as u32 };
                }
            };
            let mut is_token = false;
            for (id, len) in self.tokens.found(state) {
                pace.spend(1)?;
                consider(id, end - len, self.scores[id as usize]);
                is_token |= len == end - start;
            }
            if !is_token {
                consider(self.unk as u32, start, self.unknown_score);
            }
            best[end] = here;
            start = end;
        }
        let (begun, mut at) = (out.len(), text.len());
        while at > 0 {
            pace.spend(1)?;
            let Best { id, start, .. } = best[at];
            let id = id as Token;
            // Unknown characters beside each other are one token.
            if !(id == self.unk && out[begun..].last() == Some(&id)) {
                reserve::push(out, id, TOKENS)?;
            }
            at = start as usize;
        }
        out[begun..].reverse();
        Ok(())
    }
}
