//! XTC, "exclude top choices": now and then removes all but the least probable of the candidates that are probable
//! enough (Weidmann, <https://github.com/oobabooga/text-generation-webui/pull/6335>).

use crate::sampling::listed::Listed;
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
    let (all, probable, last) = match pool.buffers.llama {
        true => along_the_list(pool, threshold),
        false => by_weights(pool, threshold),
    };
    if probable > 1 && all - (probable - 1) >= min_keep {
        pool.list_less(probable - 1);
        pool.retain(|token: Token, logit| key(token, logit) >= last);
    }
    Ok(())
}

/// How many candidates there are, how many of them are probable enough, and the key of the last of those.
fn by_weights(pool: &mut Pool<'_>, threshold: f32) -> (usize, usize, u64) {
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
    (all, probable, last)
}

/// The same with llama.cpp's numbers.
fn along_the_list(pool: &mut Pool<'_>, threshold: f32) -> (usize, usize, u64) {
    let listed = Listed::sorted(pool);
    let list = &pool.buffers.arranged;
    let probable = list.iter().take_while(|one| listed.probability(one) >= threshold).count();
    let last = list.get(probable.saturating_sub(1)).map_or(0, |one| one.key());
    (pool.size(), probable, last)
}
