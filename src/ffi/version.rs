//! The version of the interface, and the library's capabilities.

use std::ffi::{c_char, c_int};

use super::status;
use crate::engine;
use crate::panic;

/// Major version of the interface: a change breaks hosts.
pub const ELIZA_STREAM_ABI_MAJOR: u32 = 1;
/// Minor version: functions or structure fields were added.
pub const ELIZA_STREAM_ABI_MINOR: u32 = 1;
/// Patch version: behaviour was corrected.
pub const ELIZA_STREAM_ABI_PATCH: u32 = 0;
/// The three parts as one number, `major * 1000000 + minor * 1000 + patch`, for comparisons in the preprocessor.
pub const ELIZA_STREAM_ABI_NUMBER: u32 = 1_001_000;

/// What [`eliza_inference_abi_version`] returns; the header's macro `ELIZA_STREAM_ABI_VERSION` says the same.
const VERSION: &std::ffi::CStr = c"eliza-stream/1.1.0";

/// The version of the interface that the loaded library has: the text of `ELIZA_STREAM_ABI_VERSION` in the
/// library's own header. Compare the name and the major version before the first other call.
///
/// Ownership: static, do not free. Threads: any. Never NULL, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_abi_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Whether the library can stream from a language model: 1.
///
/// Threads: any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_llm_stream_supported() -> c_int {
    1
}

/// How many threads a handle opened with `num_threads` 0 computes with: at least 1.
///
/// Threads: any. Returns the count, or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_default_thread_count() -> i32 {
    panic::catch(|| Ok(i32::try_from(engine::default_thread_count()).unwrap_or(i32::MAX)))
        .unwrap_or_else(|error| status::code(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_and_text_agree_with_the_parts() {
        let [major, minor, patch] = [ELIZA_STREAM_ABI_MAJOR, ELIZA_STREAM_ABI_MINOR, ELIZA_STREAM_ABI_PATCH];
        assert_eq!(ELIZA_STREAM_ABI_NUMBER, major * 1_000_000 + minor * 1000 + patch);
        assert_eq!(VERSION.to_str().unwrap(), format!("eliza-stream/{major}.{minor}.{patch}"));
    }
}
