//! Greedy (argmax): the candidate with the greatest logit, the one with the lowest id on a tie.

use crate::sampling::candidate::Candidate;
use crate::sampling::pool::Pool;
use crate::{Result, Token};

/// # Errors
/// As [`Pool::scan`].
pub(in crate::sampling) fn apply(pool: &mut Pool<'_>) -> Result<()> {
    pool.scan()?;
    let best = pool.best();
    let first = if pool.in_list {
        pool.buffers.list.iter().find(|one| one.logit == best).copied()
    } else {
        pool.blocks(best).find_map(|(start, block)| {
            let at = block.iter().position(|&x| x == best)?;
            Some(Candidate { token: (start + at) as Token, logit: best })
        })
    };
    if let Some(one) = first {
        pool.keep_one(one);
    }
    Ok(())
}
