//! Functions that only tests call: failures of every kind, and text both ways.

use elizainference::Error;
use napi_derive::napi;

use crate::edge::call;

/// Fails with the error of this code, or does nothing for a code that no error has.
#[napi]
pub fn testing_fail(code: i32, message: String) -> napi::Result<()> {
    let errors = [
        Error::Unsupported(message.clone()),
        Error::InvalidArgument(message.clone()),
        Error::Model(message.clone()),
        Error::Internal(message.clone()),
        Error::OutOfMemory(message.clone()),
        Error::Cancelled,
        Error::Io { path: "model.gguf".into(), message: message.clone() },
        Error::NanLogits { row: 3, token: 5 },
        Error::Trie { place: "descriptors[0]".into(), problem: message.clone() },
        Error::Busy(message.clone()),
        Error::Device(message.clone()),
        Error::SavedSlot { path: "slot".into(), place: "magic".into(), problem: message },
    ];
    let found = errors.into_iter().find(|error| elizainference::ffi::code(error) == code);
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
