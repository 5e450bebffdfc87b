//! A handle without a model, for measuring the time that a binding adds to a token. Built with the feature `testing`
//! alone, and not in the header.

use std::ffi::c_char;

use super::args;
use super::errors::on_process;
use super::handle::{self, FfiLlmHandle};
use super::state::Stream;
use crate::session::Session;

/// Opens a handle that has the vocabulary of the GGUF file and generates the same few tokens without end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_testing_open_noop(
    model_path: *const c_char,
    out_error: *mut *mut c_char,
) -> FfiLlmHandle {
    // SAFETY: tests pass a terminated path and a null or writable out_error.
    unsafe {
        on_process(out_error, || {
            let path = args::path(model_path, "model_path")?;
            handle::insert(Stream::new(Session::open_noop(&path)?))
        })
    }
    .unwrap_or(std::ptr::null_mut())
}
