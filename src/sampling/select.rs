//! Finds where a truncation cuts without sorting the vocabulary: radix selection on the bits of the logits.
//!
//! A candidate's *key* is a number in the order of candidates: smaller keys come first, and no two are equal. A cut is
//! the key of the last candidate kept.

use crate::Token;

/// Bins of one level of [`radix_cut`]; the passes' bins are large enough.
const RADIX: usize = 1 << 11;

/// The upper half of a candidate's key: smaller for greater logits, equal for equal ones (-0 and 0 included).
#[inline(always)]
pub(super) fn rank(logit: f32) -> u32 {
    let bits = (logit + 0.0).to_bits();
    // Ascending in the logit: positive numbers above all negative ones, those in reverse.
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

/// The logit with this rank.
pub(super) fn logit_of_rank(rank: u32) -> f32 {
    let ascending = !rank;
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

/// A candidate's key.
#[inline(always)]
pub(super) fn key(token: Token, logit: f32) -> u64 {
    u64::from(rank(logit)) << 32 | u64::from(token as u32)
}

/// The logit in a key.
pub(super) fn key_logit(key: u64) -> f32 {
    logit_of_rank((key >> 32) as u32)
}

/// The token in a key.
pub(super) fn key_token(key: u64) -> Token {
    key as u32 as Token
}

/// The key at which the weights of the row's candidates, added in order, first reach `need`, or `None` when all
/// together do not. The order, and the key, are those of the values that `by` makes of logits. `weigh` must be 0 for a
/// token that is no candidate. Reads the row four times, whatever its content.
pub(super) fn radix_cut(
    row: &[f32],
    bins: &mut [u64],
    mut need: u64,
    by: impl Fn(f32) -> f32,
    weigh: impl Fn(f32) -> u64,
) -> Option<u64> {
    let bins = bins.get_mut(..RADIX)?;
    let mut prefix = 0u32;
    let mut known = 0; // bits of the rank that `prefix` holds
    for width in [11, 11, 10] {
        bins.fill(0);
        let shift = 32 - known - width;
        for &x in row {
            let rank = rank(by(x));
            if known == 0 || rank >> (32 - known) == prefix {
                bins[(rank >> shift) as usize & ((1 << width) - 1)] += weigh(x);
            }
        }
        let mut digit = 0;
        loop {
            let mass = *bins.get(digit)?;
            if mass >= need && mass > 0 {
                break;
            }
            need -= mass;
            digit += 1;
        }
        prefix = prefix << width | digit as u32;
        known += width;
    }
    let logit = logit_of_rank(prefix);
    for (token, &x) in row.iter().enumerate() {
        if by(x) == logit {
            let mass = weigh(x);
            if mass >= need {
                return Some(u64::from(prefix) << 32 | token as u64);
            }
            need -= mass;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_fall_as_logits_rise_and_come_back() {
        let logits = [f32::INFINITY, f32::MAX, 7.5, 1e-40, 0.0, -1e-40, -3.0, f32::MIN, f32::NEG_INFINITY];
        for pair in logits.windows(2) {
            assert!(rank(pair[0]) < rank(pair[1]), "{pair:?}");
        }
        for logit in logits {
            assert_eq!(logit_of_rank(rank(logit)), logit);
        }
        assert_eq!(rank(-0.0), rank(0.0));
        assert_eq!((key_logit(key(5, -2.5)), key_token(key(5, -2.5))), (-2.5, 5));
    }
}
