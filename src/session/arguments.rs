//! Rules for arguments that hosts of every language pass, and the words in which they are refused. `name` is what the
//! host's language calls the argument.

use super::options::ReasoningBudget;
use crate::{Error, Result};

/// A count, which most languages pass with a sign.
///
/// # Errors
/// [`Error::InvalidArgument`] where it is negative.
pub fn count(value: i32, name: &str) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::InvalidArgument(format!("{name} is {value}, must not be negative")))
}

/// How many of the last layers the GPU computes; -1 is all.
///
/// # Errors
/// [`Error::InvalidArgument`] below -1.
pub fn gpu_layers(value: i32, name: &str) -> Result<i32> {
    match value {
        -1.. => Ok(value),
        _ => Err(Error::InvalidArgument(format!("{name} is {value}, must be -1 (all) or more"))),
    }
}

/// The budget of reasoning; none without its tags.
///
/// # Errors
/// [`Error::InvalidArgument`] where only one of the tags is given.
pub fn reasoning(tokens: u32, start: Option<&str>, end: Option<&str>) -> Result<Option<ReasoningBudget>> {
    match (start, end) {
        (None, None) => Ok(None),
        (Some(start), Some(end)) => Ok(Some(ReasoningBudget { tokens, start: start.into(), end: end.into() })),
        _ => {
            let problem = "The start and the end of the reasoning budget go together: only one of them is given";
            Err(Error::InvalidArgument(problem.into()))
        }
    }
}
