//! Temperature: divides the logits. At 0 and below only the best candidate is left, the one with the lowest id on a
//! tie.
//!
//! The logits are not divided: the pool keeps the factor and applies it to distances from the best logit, which neither
//! overflows nor changes the order.

use super::greedy;
use crate::sampling::pool::Pool;
use crate::{Error, Result};

/// # Errors
/// [`Error::InvalidArgument`] when the temperature is not finite.
pub(super) fn check(temperature: f32) -> Result<()> {
    if temperature.is_finite() {
        Ok(())
    } else {
        Err(Error::InvalidArgument(format!("Temperature {temperature} is not a finite number")))
    }
}

/// # Errors
/// As [`Pool::scan`].
pub(in crate::sampling) fn apply(pool: &mut Pool<'_>, temperature: f32) -> Result<()> {
    let scale = pool.scale / temperature;
    if temperature <= 0.0 || !scale.is_finite() {
        return greedy::apply(pool);
    }
    pool.divisor *= temperature;
    // Not 0, so that 1 / scale stays finite; beyond that temperature all candidates are equal anyway.
    pool.scale = scale.max(f32::MIN_POSITIVE);
    Ok(())
}
