//! XTC, "exclude top choices": now and then removes all but the least probable of the candidates that are probable
//! enough (Weidmann, <https://github.com/oobabooga/text-generation-webui/pull/6335>).

use crate::sampling::order::Order;
use crate::sampling::pool::Pool;
use crate::sampling::select::key;
use crate::sampling::weigh::{ONE, weight};
use crate::{Error, Result, Token};

/// # Errors
/// [`Error::InvalidArgument`] naming the number that is NaN.
pub(super) fn check(probability: f32, threshold: f32) -> Result<()> {
    for (name, value) in [("probability", probability), ("threshold", threshold)] {
        if value.is_nan() {
            return Err(Error::InvalidArgument(format!("The {name} of XTC is NaN")));
        }
    }
    Ok(())
}

/// Where `acts` says that it is to act this time, which is asked once at most.
///
/// # Errors
/// As [`Pool::scan`].
pub(in crate::sampling) fn apply(
    pool: &mut Pool<'_>,
    threshold: f32,
    min_keep: usize,
    acts: impl FnOnce() -> bool,
) -> Result<()> {
    pool.scan()?;
    // llama.cpp does not draw where there is nothing to choose.
    if pool.buffers.llama && pool.size() < 2 || !acts() {
        return Ok(());
    }
    pool.order = Order::Logit;
    let (best, scale) = (pool.best(), pool.scale);
    let total = pool.mass();
    let enough = ((f64::from(threshold.max(0.0)) * total as f64).ceil() as u64).max(u64::from(threshold > 0.0));
    // Those below are not probable enough, with room for rounding.
    let floor = (enough as f64 / ONE as f64).ln() as f32 / scale;
    let floor = best + floor - (1e-3 / scale + floor.abs() * 1e-5);
    let (mut all, mut probable, mut last) = (0usize, 0usize, 0);
    pool.each(|token, logit| {
        all += 1;
        if logit >= floor && weight((logit - best) * scale) >= enough {
            probable += 1;
            last = last.max(key(token, logit));
        }
    });
    let all = if pool.buffers.llama { pool.size() } else { all };
    if probable > 1 && all - (probable - 1) >= min_keep {
        pool.list_less(probable - 1);
        pool.retain(|token: Token, logit| key(token, logit) >= last);
    }
    Ok(())
}
