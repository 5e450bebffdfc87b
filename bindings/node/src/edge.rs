//! The edge between JavaScript and the library: what fails or panics here becomes an error there.

use elizainference::{Error, Result, ffi, panic};
use napi::Status;

/// What a call on a handle that was closed says; the code is that of the C interface.
const CLOSED: &str = "-1 The handle is not open: closed before";

/// Runs the body of a call.
pub(crate) fn call<T>(body: impl FnOnce() -> Result<T>) -> napi::Result<T> {
    panic::catch(body).map_err(|error| thrown(&error))
}

/// The error as JavaScript gets it. An error of napi has no room for a number, so the code is written before the
/// message.
pub(crate) fn thrown(error: &Error) -> napi::Error {
    napi::Error::from_reason(message(error))
}

/// The code and the message.
pub(crate) fn message(error: &Error) -> String {
    format!("{} {error}", ffi::code(error))
}

pub(crate) fn closed() -> napi::Error {
    napi::Error::new(Status::GenericFailure, CLOSED)
}

/// Fails for a text that C could not take as a terminated string, so that all runtimes refuse the same.
pub(crate) fn terminated<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    match text.contains('\0') {
        true => Err(Error::InvalidArgument(format!("{name} holds a NUL character"))),
        false => Ok(text),
    }
}
