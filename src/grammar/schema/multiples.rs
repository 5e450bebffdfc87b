//! Multiples of a number within bounds, digit by digit.
//!
//! A multiple of m · 10⁻ᵏ is N · 10⁻ᵏ where m divides N. Of the digits of N that were read, what counts for those to
//! come is what they leave when m divides them, with zeros in the places to come. So there is a rule for each number
//! of digits to come and each remainder from which they can reach a multiple.

use super::numbers::{Bounds, MAX_DIGITS, SCALE, UNIT, units};
use crate::Result;
use crate::grammar::draft::{Draft, Expr};
use serde_json::Number;
use std::collections::HashMap;

/// The most rules of one multiple.
const MAX_RULES: i128 = 5_000;

/// What a number is a multiple of, in units of 10⁻¹⁵.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Multiple(i128);

impl Multiple {
    /// Integers.
    pub(super) const OF_ONE: Multiple = Multiple(UNIT);

    /// `None` where the number is not above 0, finer than 10⁻¹⁵, or too large.
    pub(super) fn of(number: &Number) -> Option<Multiple> {
        units(number).filter(|&units| units > 0).map(Multiple)
    }

    /// What is a multiple of both; `None` where that would have too many rules.
    pub(super) fn and(self, other: Multiple) -> Option<Multiple> {
        let both = Multiple((self.0 / common(self.0, other.0)).checked_mul(other.0)?);
        (both.rules() <= MAX_RULES).then_some(both)
    }

    /// Whether a number is one.
    pub(super) fn has(self, number: &Number) -> bool {
        units(number).is_some_and(|units| units % self.0 == 0)
    }

    /// Digits after the point, and the number whose multiples are written with that many.
    fn places(self) -> (u32, i128) {
        let places = (0..SCALE).find(|places| self.0 % 10i128.pow(SCALE - places) == 0).unwrap_or(SCALE);
        (places, self.0 / 10i128.pow(SCALE - places))
    }

    /// At least as many as there are pairs of digits to come and a remainder.
    fn rules(self) -> i128 {
        let (_, of) = self.places();
        // Remainders before so many digits are multiples of what their power of ten and the number have in common.
        let of_power = |power: i128| power.min(of) / common(of, power);
        (0..=MAX_DIGITS).map(|digits| of_power(10i128.pow(digits))).sum()
    }

    /// The multiples of the range, without an exponent, and without zeros at the end but those that fill the places.
    pub(super) fn expr(self, bounds: Bounds, draft: &mut Draft) -> Result<Expr> {
        let (places, of) = self.places();
        let (low, high) = bounds.counts(10i128.pow(SCALE - places));
        let mut digits = Digits { of, places: places as usize, draft, known: HashMap::new() };
        let mut ways = Vec::new();
        if low < 0 {
            ways.push(Expr::Seq(vec![Expr::text("-"), digits.between(1.max(-high), -low)?]));
        }
        if high >= 0 {
            ways.push(digits.between(low.max(0), high)?);
        }
        Ok(Expr::Alt(ways))
    }
}

fn common(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { common(b, a % b) }
}

/// Digits to come: from which to which, and the remainder of those before.
type Rest<'t> = (&'t [u8], &'t [u8], i128);

/// The digits of multiples.
struct Digits<'d> {
    of: i128,
    /// How many are after the point.
    places: usize,
    draft: &'d mut Draft,
    /// Any digits to come, by their number and the remainder.
    known: HashMap<(usize, i128), Expr>,
}

impl Digits<'_> {
    /// The multiples from `low` to `high`, neither negative, in units of the last place.
    fn between(&mut self, low: i128, high: i128) -> Result<Expr> {
        let mut ways = Vec::new();
        if low <= high {
            let least = self.places + 1;
            for length in low.to_string().len().max(least)..=high.to_string().len().max(least) {
                let first = if length == least { 0 } else { 10i128.pow(length as u32 - 1) };
                let last = 10i128.pow(length as u32) - 1;
                let text = |number: i128| format!("{number:0length$}").into_bytes();
                ways.push(self.rest((&text(low.max(first)), &text(high.min(last)), 0))?);
            }
        }
        Ok(Expr::Alt(ways))
    }

    /// The digits to come.
    fn rest(&mut self, (low, high, left): Rest<'_>) -> Result<Expr> {
        let value = |digits: &[u8]| digits.iter().fold(0, |value, digit| value * 10 + i128::from(digit - b'0'));
        let (least, most) = (left + value(low), left + value(high));
        if most / self.of * self.of < least {
            return Ok(Expr::never());
        }
        let count = low.len();
        if count == 0 {
            return Ok(Expr::empty());
        }
        let is_any = value(low) == 0 && value(high) == 10i128.pow(count as u32) - 1;
        if is_any && let Some(known) = self.known.get(&(count, left)) {
            return Ok(known.clone());
        }
        let mut expr = self.first((low, high, left))?;
        if count == self.places {
            expr = Expr::Seq(vec![Expr::text("."), expr]);
        }
        if count <= self.places && least == 0 {
            // Zeros are left out.
            expr = expr.optional();
        }
        if is_any {
            expr = self.draft.rule("multiple", expr)?;
            self.known.insert((count, left), expr.clone());
        }
        Ok(expr)
    }

    /// One digit or several that the same can come after, and that.
    fn first(&mut self, (low, high, left): Rest<'_>) -> Result<Expr> {
        let (Some((&l, lows)), Some((&h, highs))) = (low.split_first(), high.split_first()) else {
            return Ok(Expr::empty());
        };
        let power = 10i128.pow(lows.len() as u32);
        let (zeros, nines) = (vec![b'0'; lows.len()], vec![b'9'; lows.len()]);
        let mut groups: Vec<(String, Rest<'_>)> = Vec::new();
        for digit in l..=h {
            let from = if digit == l { lows } else { &zeros };
            let to = if digit == h { highs } else { &nines };
            let after = (from, to, (left + i128::from(digit - b'0') * power) % self.of);
            match groups.iter_mut().find(|(_, known)| *known == after) {
                Some((digits, _)) => digits.push(char::from(digit)),
                None => groups.push((char::from(digit).into(), after)),
            }
        }
        let mut ways = Vec::new();
        for (digits, after) in groups {
            let digit = match digits.len() {
                1 => Expr::Text(digits),
                10 => Expr::class("[0-9]"),
                _ => Expr::Class(format!("[{digits}]")),
            };
            ways.push(Expr::Seq(vec![digit, self.rest(after)?]));
        }
        Ok(Expr::Alt(ways))
    }
}
