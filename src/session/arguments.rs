//! Rules for arguments that hosts of every language pass, and the words in which they are refused. `name` is what the
//! host's language calls the argument.

use super::options::ReasoningBudget;
use super::{Key, RemoteOptions};
use crate::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

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

/// How a server is reached; an absent or empty text is none, and 0 milliseconds are the default.
pub fn remote(
    vocab: Option<PathBuf>,
    key: Option<&str>,
    certificates: Option<PathBuf>,
    timeout_ms: u32,
) -> RemoteOptions {
    let given = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
    RemoteOptions {
        vocab: given(vocab),
        key: Key::new(key),
        certificates: given(certificates),
        timeout: (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into())),
    }
}

/// Files and addresses, a line each.
pub fn lines(text: Option<&str>) -> Vec<PathBuf> {
    text.unwrap_or_default().lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
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
