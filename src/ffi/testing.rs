//! Exports that only tests call, for conversions that real calls reach rarely or never. Built with the feature
//! `testing` alone, and not in the header.

use std::ffi::{c_char, c_int};

use super::errors::{on_handle, on_process};
use super::handle::FfiLlmHandle;
use super::{args, strings};
use crate::Error;

/// Panics with `message` inside the call. With a handle as a call on it, with NULL as one of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_testing_panic(
    handle: FfiLlmHandle,
    message: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    // SAFETY: tests pass a terminated message and a null or writable out_error.
    unsafe {
        let fail = || -> crate::Result<c_int> { panic!("{}", args::text(message, "message")?) };
        if handle.is_null() { on_process(out_error, fail) } else { on_handle(handle, out_error, |_| fail()) }
    }
    .unwrap_or_else(|code| code)
}

/// Returns `status` as it is.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_testing_return_status(status: i32) -> i32 {
    status
}

/// Returns `len` bytes of UTF-8 as a string of the library, to be freed with `eliza_inference_free_string`; NULL when
/// they are not UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_testing_echo_bytes(bytes: *const c_char, len: usize) -> *mut c_char {
    let echo = || {
        // SAFETY: tests pass `len` readable bytes.
        let bytes = unsafe { args::array(bytes.cast::<u8>(), len, "bytes")? };
        let text = std::str::from_utf8(bytes).map_err(|error| Error::InvalidArgument(error.to_string()))?;
        Ok(strings::give(text))
    };
    // SAFETY: no out_error.
    unsafe { on_process(std::ptr::null_mut(), echo) }.unwrap_or(std::ptr::null_mut())
}

/// The error of this code with this text, for the tests of bindings; `None` for a code that no error has.
pub fn error_of(code: i32, message: &str) -> Option<Error> {
    let message = || message.to_string();
    let errors = [
        Error::Unsupported(message()),
        Error::InvalidArgument(message()),
        Error::Model(message()),
        Error::Internal(message()),
        Error::OutOfMemory(message()),
        Error::Cancelled,
        Error::Io { path: "model.gguf".into(), message: message() },
        Error::NanLogits { row: 3, token: 5 },
        Error::Trie { place: "descriptors[0]".into(), problem: message() },
        Error::Busy(message()),
        Error::Device(message()),
        Error::Remote { server: "vllm:http://host".into(), problem: message() },
        Error::SavedSlot { path: "slot".into(), place: "magic".into(), problem: message() },
    ];
    errors.into_iter().find(|error| super::code(error) == code)
}
