//! Top-n-sigma: keeps the candidates whose logits are at most n standard deviations below the greatest (Tang et al.,
//! "Top-nσ: Not All Logits Are You Need", <https://arxiv.org/abs/2411.07641>).
//!
//! The deviation is that of all candidates' logits, of the whole population. Temperature changes nothing in it.

use crate::sampling::pool::Pool;
use crate::sampling::select::key;
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
    let (mut count, mut sum) = (0u64, 0.0);
    pool.each(|_, logit| {
        count += 1;
        sum += f64::from(logit);
    });
    let (mean, mut squares) = (sum / count as f64, 0.0);
    pool.each(|_, logit| squares += (f64::from(logit) - mean).powi(2));
    let lowest = f64::from(pool.best()) - f64::from(n) * (squares / count as f64).sqrt();
    // The best stays whatever is rounded. A token at -inf is never kept.
    let lowest = (lowest as f32).min(pool.best()).max(f32::MIN);
    pool.cut(key(Token::MAX, lowest));
    Ok(())
}
