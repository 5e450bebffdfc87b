//! Rules for arguments that hosts of every language pass, and the words in which they are refused. `name` is what the
//! host's language calls the argument.

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
