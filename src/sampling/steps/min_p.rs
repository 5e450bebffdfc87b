//! Min-p: keeps the candidates that are at least p times as probable as the most probable one (Nguyen et al., "Turning
//! Up the Heat: Min-p Sampling", <https://arxiv.org/abs/2407.01082>).

use super::top_k;
use crate::sampling::pool::Pool;
use crate::sampling::select::key;
use crate::{Error, Result, Token};

/// # Errors
/// [`Error::InvalidArgument`] when `p` is NaN.
pub(super) fn check(p: f32) -> Result<()> {
    if p.is_nan() { Err(Error::InvalidArgument("Min-p is NaN".into())) } else { Ok(()) }
}

/// # Errors
/// As [`Pool::scan`].
pub(in crate::sampling) fn apply(pool: &mut Pool<'_>, p: f32, min_keep: usize) -> Result<()> {
    pool.scan()?;
    // A p above 1 keeps the best candidate and its ties. A token at -inf is never kept.
    let lowest = (pool.best() + p.ln() / pool.scale).min(pool.best()).max(f32::MIN);
    let cut = key(Token::MAX, lowest);
    if min_keep > 1 && pool.count(cut) < min_keep {
        return top_k::apply(pool, min_keep);
    }
    pool.list_alive();
    pool.cut(cut);
    Ok(())
}
