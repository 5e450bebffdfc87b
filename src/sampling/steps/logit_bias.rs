//! Logit bias: adds a number to the logits of given tokens; -inf removes a token.

use crate::sampling::pool::Pool;
use crate::{Error, Result, Token};

/// Checks a list of biases.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the token that is outside `0..n_vocab`, or whose bias is NaN or +inf.
pub(super) fn check(biases: &[(Token, f32)], n_vocab: usize) -> Result<()> {
    for &(token, bias) in biases {
        if !usize::try_from(token).is_ok_and(|id| id < n_vocab) {
            return Err(Error::InvalidArgument(format!(
                "Logit bias for token {token}, which is outside the vocabulary of {n_vocab} tokens"
            )));
        }
        if bias.is_nan() || bias == f32::INFINITY {
            return Err(Error::InvalidArgument(format!("Logit bias for token {token} is {bias}")));
        }
    }
    Ok(())
}

pub(in crate::sampling) fn apply(pool: &mut Pool<'_>, biases: &[(Token, f32)]) {
    pool.keep_order();
    let temperature = 1.0 / pool.scale;
    for &(token, bias) in biases {
        // -inf is not added: the logit may be +inf.
        pool.adjust(token, |logit| if bias == f32::NEG_INFINITY { bias } else { logit + bias * temperature });
    }
}
