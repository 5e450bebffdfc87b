//! Numbers within bounds, digit by digit.

use crate::grammar::draft::Expr;

/// Digits after the point that a bound may have.
pub(super) const SCALE: u32 = 15;
pub(super) const UNIT: i128 = 10i128.pow(SCALE);
/// No number that is written has more digits before its point.
pub(super) const MAX_DIGITS: u32 = 16;
/// The largest integer that is written.
const LARGEST: i128 = 10i128.pow(MAX_DIGITS) - 1;

/// An end of a range, in units of 10⁻¹⁵.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    value: i128,
    exclusive: bool,
}

/// What a number may be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bounds {
    pub(super) min: Option<Bound>,
    pub(super) max: Option<Bound>,
}

/// Whether a number is negative, its digits as an integer, unless they are too many, and the power of ten that makes
/// them units of 10⁻¹⁵.
fn read(number: &serde_json::Number) -> (bool, Option<i128>, i64) {
    let text = number.to_string();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (negative, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, mantissa),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.parse::<i64>().unwrap_or(0).saturating_sub(part.len() as i64) + i64::from(SCALE);
    (negative, [whole, part].concat().parse().ok(), exponent)
}

/// A number in units of 10⁻¹⁵; `None` where it is finer than that or too large.
pub(super) fn units(number: &serde_json::Number) -> Option<i128> {
    let (negative, digits, exponent) = read(number);
    let digits = digits?;
    let power = 10i128.checked_pow(u32::try_from(exponent.unsigned_abs()).ok()?);
    let value = match (power, exponent < 0) {
        _ if digits == 0 => 0,
        (Some(power), false) => digits.checked_mul(power)?,
        (Some(power), true) if digits % power == 0 => digits / power,
        _ => return None,
    };
    Some(if negative { -value } else { value })
}

impl Bound {
    /// A bound of a schema. What is finer than 10⁻¹⁵ or larger than any number that is written is rounded: `up` or
    /// down.
    pub(super) fn of(number: &serde_json::Number, exclusive: bool, up: bool) -> Bound {
        let (negative, digits, exponent) = read(number);
        let limit = (LARGEST + 2) * UNIT;
        let mut value = digits.unwrap_or(limit);
        let mut inexact = false;
        for _ in 0..exponent.clamp(0, 60) {
            value = value.saturating_mul(10).min(limit);
        }
        for _ in 0..(-exponent).clamp(0, 60) {
            inexact |= value % 10 != 0;
            value /= 10;
        }
        value = value.min(limit);
        if negative {
            value = -value;
        }
        // Rounded inwards, the end itself fits where it is not the bound.
        match inexact {
            true if up == negative => Bound { value, exclusive: false },
            true => Bound { value: value + if up { 1 } else { -1 }, exclusive: false },
            false => Bound { value, exclusive },
        }
    }

    /// The tighter of two lower bounds.
    pub(super) fn higher(self, other: Bound) -> Bound {
        let exceeds = other.value > self.value || other.value == self.value && other.exclusive;
        if exceeds { other } else { self }
    }

    /// The tighter of two upper bounds.
    pub(super) fn lower(self, other: Bound) -> Bound {
        let exceeds = other.value < self.value || other.value == self.value && other.exclusive;
        if exceeds { other } else { self }
    }

    fn negated(self) -> Bound {
        Bound { value: -self.value, ..self }
    }
}

impl Bounds {
    pub(super) fn is_free(self) -> bool {
        self == Bounds::default()
    }

    /// Whether no number is in both.
    pub(super) fn is_apart(self, other: Bounds) -> bool {
        let above = |min: Option<Bound>, max: Option<Bound>| match (min, max) {
            (Some(min), Some(max)) => {
                min.value > max.value || min.value == max.value && (min.exclusive || max.exclusive)
            }
            _ => false,
        };
        above(self.min, other.max) || above(other.min, self.max)
    }

    /// Whether a number of a schema's `enum` is within.
    pub(super) fn has(self, number: &serde_json::Number) -> bool {
        let exact = Bound::of(number, false, true);
        !self.is_apart(Bounds { min: Some(exact), max: Some(exact) })
    }

    /// The least and the largest count of so many units that is in the range, of those that are written.
    pub(super) fn counts(self, unit: i128) -> (i128, i128) {
        let min = self.min.map(|b| b.value.div_euclid(unit) + i128::from(b.exclusive || b.value.rem_euclid(unit) != 0));
        let max = self.max.map(|b| b.value.div_euclid(unit) - i128::from(b.exclusive && b.value.rem_euclid(unit) == 0));
        (min.unwrap_or(-LARGEST).max(-LARGEST), max.unwrap_or(LARGEST).min(LARGEST))
    }

    /// The integers of the range.
    pub(super) fn integer(self) -> Expr {
        let (low, high) = self.counts(UNIT);
        let mut ways = Vec::new();
        if low > high {
            return Expr::never();
        }
        if low < 0 {
            // As llama.cpp: "-0" only where both bounds are given.
            let from = if high < 0 { -high } else { i128::from(self.min.is_none()) };
            ways.push(Expr::Seq(vec![Expr::text("-"), digits(from, -low)]));
        }
        if high >= 0 {
            ways.push(digits(low.max(0), high));
        }
        Expr::Alt(ways)
    }

    /// The numbers of the range, without an exponent. Digits are few enough that reading them as a double rounds none
    /// of them over a bound.
    pub(super) fn decimal(self) -> Expr {
        let mut ways = Vec::new();
        let zero = Bound { value: 0, exclusive: false };
        if self.min.is_none_or(|min| min.value < 0) {
            let from = self.max.filter(|max| max.value < 0 || max.value == 0 && max.exclusive).unwrap_or(zero);
            ways.push(Expr::Seq(vec![Expr::text("-"), positive(from.negated(), self.min.map(Bound::negated))]));
        }
        if self.max.is_none_or(|max| max.value >= 0) {
            ways.push(positive(self.min.filter(|min| min.value >= 0).unwrap_or(zero), self.max));
        }
        Expr::Alt(ways)
    }
}

fn range(from: u8, to: u8) -> Option<Expr> {
    match to.checked_sub(from) {
        None => None,
        Some(0) => Some(Expr::text(char::from(from))),
        Some(_) => Some(Expr::Class(format!("[{}-{}]", char::from(from), char::from(to)))),
    }
}

fn some_digits(min: u64, max: u64) -> Expr {
    match (min, max) {
        (_, 0) => Expr::empty(),
        (1, 1) => Expr::class("[0-9]"),
        _ => Expr::Repeat(Box::new(Expr::class("[0-9]")), min, Some(max)),
    }
}

/// The integers from `low` to `high`, neither negative.
fn digits(low: i128, high: i128) -> Expr {
    let (mut ways, mut full) = (Vec::new(), Vec::new());
    for length in low.to_string().len()..=high.to_string().len() {
        let first = if length == 1 { 0 } else { 10i128.pow(length as u32 - 1) };
        let last = 10i128.pow(length as u32) - 1;
        match low <= first && last <= high && length > 1 {
            true => full.push(length as u64 - 1),
            false => {
                ways.push(same_length(low.max(first).to_string().as_bytes(), high.min(last).to_string().as_bytes()))
            }
        }
    }
    if let (Some(&fewest), Some(&most)) = (full.first(), full.last()) {
        ways.push(Expr::Seq(vec![Expr::class("[1-9]"), some_digits(fewest, most)]));
    }
    Expr::Alt(ways)
}

/// What is between two texts of digits of one length.
fn same_length(low: &[u8], high: &[u8]) -> Expr {
    let (Some((&l, lows)), Some((&h, highs))) = (low.split_first(), high.split_first()) else { return Expr::empty() };
    let count = lows.len() as u64;
    if lows.iter().all(|&d| d == b'0') && highs.iter().all(|&d| d == b'9') {
        return Expr::Seq(range(l, h).into_iter().chain([some_digits(count, count)]).collect());
    }
    if l == h {
        return Expr::Seq(vec![Expr::text(char::from(l)), same_length(lows, highs)]);
    }
    let mut ways = vec![Expr::Seq(vec![Expr::text(char::from(l)), same_length(lows, &vec![b'9'; lows.len()])])];
    ways.extend(range(l + 1, h - 1).map(|middle| Expr::Seq(vec![middle, some_digits(count, count)])));
    ways.push(Expr::Seq(vec![Expr::text(char::from(h)), same_length(&vec![b'0'; highs.len()], highs)]));
    Expr::Alt(ways)
}

/// Numbers from `low` to `high`, neither negative.
fn positive(low: Bound, high: Option<Bound>) -> Expr {
    let high = high.unwrap_or(Bound { value: (LARGEST + 1) * UNIT, exclusive: true });
    let (from, to) = (low.value / UNIT, (high.value / UNIT).min(LARGEST + 1));
    let (low_part, high_part) = (fraction(low.value % UNIT), fraction(high.value % UNIT));
    let before = if to > LARGEST { from } else { to }.to_string().len() as u64;
    let places = 15u64.saturating_sub(before).max(low_part.len().max(high_part.len()) as u64).max(1);
    let mut ways = Vec::new();
    let whole = |value: i128, part: Option<Expr>| part.map(|p| Expr::Seq(vec![digits(value, value), p]));
    if from > LARGEST || from > to {
        return Expr::never();
    }
    if from == to {
        ways.extend(whole(from, within(&low_part, low.exclusive, &high_part, high.exclusive, places)));
        return Expr::Alt(ways);
    }
    ways.extend(whole(from, at_least_part(&low_part, low.exclusive, places)));
    if from < to - 1 {
        ways.push(Expr::Seq(vec![digits(from + 1, to - 1), free_part(places)]));
    }
    if to <= LARGEST {
        ways.extend(whole(to, at_most_part(&high_part, high.exclusive, places)));
    }
    Expr::Alt(ways)
}

/// The digits of a fraction, without zeros at the end.
fn fraction(value: i128) -> Vec<u8> {
    let text = format!("{value:0width$}", width = SCALE as usize);
    trimmed(text.as_bytes()).to_vec()
}

fn trimmed(digits: &[u8]) -> &[u8] {
    let end = digits.iter().rposition(|&d| d != b'0').map_or(0, |last| last + 1);
    &digits[..end]
}

fn dot(digits: Expr) -> Expr {
    Expr::Seq(vec![Expr::text("."), digits])
}

fn free_part(places: u64) -> Expr {
    dot(some_digits(1, places)).optional()
}

/// The point and digits of at least these, or nothing where that is enough.
fn at_least_part(digits: &[u8], exclusive: bool, places: u64) -> Option<Expr> {
    match digits.is_empty() && !exclusive {
        true => Some(free_part(places)),
        false => at_least(digits, exclusive, places).map(dot),
    }
}

fn at_most_part(digits: &[u8], exclusive: bool, places: u64) -> Option<Expr> {
    if digits.is_empty() {
        let zeros = Expr::Repeat(Box::new(Expr::text("0")), 1, Some(places));
        return (!exclusive).then(|| dot(zeros).optional());
    }
    Some(dot(Expr::Alt(at_most(digits, exclusive, places))).optional())
}

/// Digits after a point that are at least these.
fn at_least(digits: &[u8], exclusive: bool, places: u64) -> Option<Expr> {
    let digits = trimmed(digits);
    if digits.is_empty() && !exclusive {
        return Some(some_digits(0, places));
    }
    if places == 0 {
        return None;
    }
    let first = digits.first().copied().unwrap_or(b'0');
    let rest = digits.get(1..).unwrap_or_default();
    let mut ways = Vec::new();
    ways.extend(range(first + 1, b'9').map(|more| Expr::Seq(vec![more, some_digits(0, places - 1)])));
    ways.extend(at_least(rest, exclusive, places - 1).map(|rest| Expr::Seq(vec![Expr::text(char::from(first)), rest])));
    (!ways.is_empty()).then_some(Expr::Alt(ways))
}

/// One or more digits after a point that are at most these.
fn at_most(digits: &[u8], exclusive: bool, places: u64) -> Vec<Expr> {
    let digits = trimmed(digits);
    let Some((&first, rest)) = digits.split_first() else {
        let zeros = Expr::Repeat(Box::new(Expr::text("0")), 1, Some(places));
        return if exclusive || places == 0 { Vec::new() } else { vec![zeros] };
    };
    if places == 0 {
        return Vec::new();
    }
    let mut ways = Vec::new();
    if first > b'0' {
        ways.extend(range(b'0', first - 1).map(|fewer| Expr::Seq(vec![fewer, some_digits(0, places - 1)])));
    }
    let rest_is_zero = trimmed(rest).is_empty();
    if !(rest_is_zero && exclusive) {
        let more = Expr::Alt(at_most(rest, exclusive, places - 1)).optional();
        ways.push(Expr::Seq(vec![Expr::text(char::from(first)), more]));
    }
    ways
}

/// The point and digits between two fractions.
fn within(low: &[u8], low_open: bool, high: &[u8], high_open: bool, places: u64) -> Option<Expr> {
    if low.is_empty() && !low_open {
        return at_most_part(high, high_open, places);
    }
    between(low, low_open, high, high_open, places).map(dot)
}

fn between(low: &[u8], low_open: bool, high: &[u8], high_open: bool, places: u64) -> Option<Expr> {
    let (low, high) = (trimmed(low), trimmed(high));
    if high.is_empty() || places == 0 {
        let equal = low.is_empty() && high.is_empty() && !low_open && !high_open;
        return equal.then(|| Expr::Repeat(Box::new(Expr::text("0")), 0, Some(places)));
    }
    let (l, h) = (low.first().copied().unwrap_or(b'0'), high[0]);
    let lows = low.get(1..).unwrap_or_default();
    let led = |digit: u8, rest: Expr| Expr::Seq(vec![Expr::text(char::from(digit)), rest]);
    if l > h {
        return None;
    }
    if l == h {
        return between(lows, low_open, &high[1..], high_open, places - 1).map(|rest| led(l, rest));
    }
    let mut ways: Vec<Expr> = at_least(lows, low_open, places - 1).map(|rest| led(l, rest)).into_iter().collect();
    ways.extend(range(l + 1, h - 1).map(|middle| Expr::Seq(vec![middle, some_digits(0, places - 1)])));
    if !(trimmed(&high[1..]).is_empty() && high_open) {
        ways.push(led(h, Expr::Alt(at_most(&high[1..], high_open, places - 1)).optional()));
    }
    Some(Expr::Alt(ways))
}
