//! Top-n-sigma: keeps the candidates whose logits are at most n standard deviations below the greatest (Tang et al.,
//! "Top-nσ: Not All Logits Are You Need", <https://arxiv.org/abs/2411.07641>).
//!
//! The deviation is that of all candidates' logits, of the whole population. Temperature changes nothing in it. It is
//! computed from integers, see `statistics.rs`.

use crate::backend::deviations;
use crate::sampling::pool::Pool;
use crate::sampling::select::key;
use crate::sampling::statistics::{Unit, units};
use crate::{Error, Result, Token};

/// # Errors
/// [`Error::InvalidArgument`] when `n` is NaN.
pub(super) fn check(n: f32) -> Result<()> {
    if n.is_nan() { Err(Error::InvalidArgument("Top-n-sigma is NaN".into())) } else { Ok(()) }
}

/// # Errors
/// As [`Pool::scan`].
pub(in crate::sampling) fn apply(pool: &mut Pool<'_>, n: f32) -> Result<()> {
    pool.scan()?;
    let best = pool.best();
    let lowest = if pool.in_list {
        pool.buffers.list.iter().fold(best, |a, one| a.min(one.logit))
    } else {
        pool.buffers.passes.lowest(pool.row)
    };
    // Where all are equal, so are they to the deviation.
    let Some(unit) = Unit::new(best, lowest) else { return Ok(()) };
    let (count, sum, squares) = if pool.in_list {
        let distances = || pool.buffers.list.iter().map(|one| units(best, unit.scale(), one.logit));
        (pool.buffers.list.len() as u64, distances().sum(), distances().map(|d| u128::from(d * d)).sum())
    } else {
        pool.buffers.passes.spreads(pool.row, best, unit.scale())
    };
    let lowest = unit.lowest(deviations(n), count, sum, squares);
    pool.cut(key(Token::MAX, lowest));
    Ok(())
}
