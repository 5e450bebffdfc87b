//! What the host reads of a step: results, reported candidates, candidates that are handed over.

use super::layout::*;
use crate::Token;
use crate::backend::{SampleProblem, SampleResult};

/// Bytes of a result.
pub const RESULT_BYTES: usize = RESULT_WORDS * 4;

/// Bytes of a candidate for the host.
pub const HANDED_OVER_BYTES: usize = 8;

/// A result from its bytes, `None` for less than [`RESULT_BYTES`].
pub fn read_result(bytes: &[u8]) -> Option<SampleResult> {
    let (words, _) = bytes.as_chunks::<4>();
    let [token, logprob, prob, kept, status, at, position, reported, ..] = words else { return None };
    let [kept, status, at, position, reported] = [kept, status, at, position, reported].map(|w| u32::from_le_bytes(*w));
    Some(SampleResult {
        token: Token::from_le_bytes(*token),
        logprob: f32::from_le_bytes(*logprob),
        prob: f32::from_le_bytes(*prob),
        kept,
        position,
        reported,
        problem: match status {
            STATUS_OK => None,
            STATUS_NAN => Some(SampleProblem::Nan(at as Token)),
            _ => Some(SampleProblem::NoCandidate),
        },
    })
}

/// The first `reported` candidates from their bytes, best first, each as (token, logit, probability); the logit is that
/// after biases, penalties and temperature.
pub fn read_candidates(bytes: &[u8], reported: u32) -> impl Iterator<Item = (Token, f32, f32)> + '_ {
    let (entries, _) = bytes.as_chunks::<{ REPORT_WORDS * 4 }>();
    entries.iter().take(reported as usize).map(|entry| {
        let (words, _) = entry.as_chunks::<4>();
        (Token::from_le_bytes(words[0]), f32::from_le_bytes(words[1]), f32::from_le_bytes(words[2]))
    })
}

/// The first `reported` candidates for the host, from their bytes, each as (token, logit); the logit is that after
/// biases and penalties, before temperature.
pub fn read_handed_over(bytes: &[u8], reported: u32) -> impl Iterator<Item = (Token, f32)> + '_ {
    let (entries, _) = bytes.as_chunks::<HANDED_OVER_BYTES>();
    entries.iter().take(reported as usize).map(|entry| {
        let (words, _) = entry.as_chunks::<4>();
        (Token::from_le_bytes(words[0]), f32::from_le_bytes(words[1]))
    })
}
