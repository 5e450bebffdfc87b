//! Functions that only tests call: failures of every kind, and text both ways.

use napi_derive::napi;

use crate::edge::call;

/// Fails with the error of this code, or does nothing for a code that no error has.
#[napi]
pub fn testing_fail(code: i32, message: String) -> napi::Result<()> {
    let found = elizainference::ffi::error_of(code, &message);
    call(|| found.map_or(Ok(()), Err))
}

/// Panics inside a call.
#[napi]
#[allow(clippy::panic)] // that is its purpose
pub fn testing_panic(message: String) -> napi::Result<()> {
    call(|| panic!("{message}"))
}

/// Returns the text.
#[napi]
pub fn testing_echo(text: String) -> String {
    text
}
