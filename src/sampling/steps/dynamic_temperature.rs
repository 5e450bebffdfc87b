//! Dynamic temperature by entropy, as llama.cpp's `temp_ext` sampler: the greater the entropy of the candidates'
//! probabilities, the higher the temperature.
//!
//! `T = low + (high - low) · (H / ln n)^exponent` with `low = max(0, t - range)`, `high = t + range` and the entropy H
//! of the n candidates' probabilities. H is computed from integer sums, so T does not depend on how the candidates are
//! stored; all of it is computed so that a device has the same bits, see `statistics.rs`.

use super::{greedy, temperature};
use crate::backend::DynamicRange;
use crate::sampling::listed::Listed;
use crate::sampling::pool::Pool;
use crate::sampling::statistics::{evenness, power};
use crate::sampling::weigh::moment;
use crate::{Error, Result};

/// # Errors
/// [`Error::InvalidArgument`] naming the number that is not finite.
pub(super) fn check(temperature: f32, range: f32, exponent: f32) -> Result<()> {
    temperature::check(temperature)?;
    for (name, value) in [("range", range), ("exponent", exponent)] {
        if !value.is_finite() {
            return Err(Error::InvalidArgument(format!("Dynamic temperature's {name} {value} is not a finite number")));
        }
    }
    Ok(())
}

/// # Errors
/// As [`Pool::scan`].
pub(in crate::sampling) fn apply(pool: &mut Pool<'_>, middle: f32, range: f32, exponent: f32) -> Result<()> {
    pool.scan()?;
    if pool.buffers.llama {
        let (size, low, high) = (pool.size(), (middle - range).max(0.0), middle + range);
        if size <= 1 {
            return Ok(());
        }
        let entropy = Listed::sorted(pool).entropy(&pool.buffers.arranged);
        let spread = entropy / -(1.0 / size as f32).ln();
        return temperature::apply(pool, low + (high - low) * spread.powf(exponent));
    }
    let (count, mass, moment) = sums(pool);
    if count <= 1 {
        return Ok(());
    }
    let dynamic = DynamicRange::new(middle, range, exponent);
    let raised = power(evenness(count, mass, moment), dynamic.exponent);
    let temperature = dynamic.low + dynamic.width * raised;
    if temperature < f32::MIN_POSITIVE {
        return greedy::apply(pool);
    }
    temperature::apply(pool, temperature)
}

/// The number of candidates, the sum of their weights, and the sum of their [`weigh::moment`]s.
pub(super) fn sums(pool: &Pool<'_>) -> (u64, u64, u64) {
    let (best, scale) = (pool.best(), pool.scale);
    if !pool.in_list {
        return pool.buffers.passes.moments(pool.row, best, scale);
    }
    let list = &pool.buffers.list;
    let masses = list.iter().map(|one| pool.weight(one.logit));
    let moments = list.iter().map(|one| moment((one.logit - best) * scale));
    (list.len() as u64, masses.sum(), moments.sum())
}
