//! Where the error of a failed call is kept, and how a host takes it.
//!
//! The error text of a call on a handle is kept with the handle, that of a call without a handle in a queue of the
//! process; never per thread, because a host may ask from another thread. Both are bounded: the oldest text is dropped
//! first, and the newest is returned first, since it belongs to the call that just failed. Where the caller passed an
//! `out_error`, it gets a copy.

use std::ffi::c_char;
use std::sync::Arc;

use parking_lot::Mutex;

use super::handle::{self, FfiLlmHandle};
use super::recent::Recent;
use super::state::Stream;
use super::status::{self, ELIZA_ERR_CANCELLED, ELIZA_OK, ELIZA_STATUS_GENERATING};
use super::{args, strings};
use crate::Result;
use crate::panic;
use crate::session::FinishReason;

/// The result of a call on a handle that is not open, and of failed calls that have no other failure value.
pub(super) const FAILED: i32 = -1;

/// Codes and texts of failures without a handle.
static PROCESS: Mutex<Recent<(i32, String)>> = Mutex::new(Recent::new());

/// Runs the body of a call on a handle within the panic boundary. A failure is kept, and its code is returned; for a
/// handle that is not open, -1.
///
/// # Safety
/// `out_error` is null or points to a writable pointer.
pub(super) unsafe fn on_handle<T>(
    handle: FfiLlmHandle,
    out_error: *mut *mut c_char,
    body: impl FnOnce(&Stream) -> Result<T>,
) -> std::result::Result<T, i32> {
    // SAFETY: the caller's promise about `out_error`.
    unsafe {
        ask_out(handle, out_error, |stream| {
            stream.begin_call();
            body(stream)
        })
    }
}

/// As [`on_handle`], for queries: they are legal at any time and do not change the status that another thread's call
/// left.
pub(super) fn ask<T>(handle: FfiLlmHandle, body: impl FnOnce(&Stream) -> Result<T>) -> std::result::Result<T, i32> {
    // SAFETY: no out_error.
    unsafe { ask_out(handle, std::ptr::null_mut(), body) }
}

/// As [`ask`], with the text of a failure.
///
/// # Safety
/// `out_error` is null or points to a writable pointer.
pub(super) unsafe fn ask_out<T>(
    handle: FfiLlmHandle,
    out_error: *mut *mut c_char,
    body: impl FnOnce(&Stream) -> Result<T>,
) -> std::result::Result<T, i32> {
    let Some(stream) = handle::get(handle) else {
        let text = match handle.addr() {
            0 => "The handle is NULL".to_owned(),
            token => format!("Handle {token:#x} is not open: closed before, or not one of ours"),
        };
        // SAFETY: the caller's promise about `out_error`.
        unsafe { hand_out(&text, out_error) };
        PROCESS.lock().push((FAILED, text));
        return Err(FAILED);
    };
    let outcome = panic::catch(|| body(&stream)).map_err(|error| {
        // SAFETY: the caller's promise about `out_error`.
        unsafe { hand_out(&error.to_string(), out_error) };
        let code = status::code(&error);
        stream.keep_error(error);
        code
    });
    release(stream);
    outcome
}

/// Runs the body of a call without a handle within the panic boundary. A failure is kept, and its code is returned.
///
/// # Safety
/// `out_error` is null or points to a writable pointer.
pub(super) unsafe fn on_process<T>(
    out_error: *mut *mut c_char,
    body: impl FnOnce() -> Result<T>,
) -> std::result::Result<T, i32> {
    panic::catch(body).map_err(|error| {
        let text = error.to_string();
        // SAFETY: the caller's promise about `out_error`.
        unsafe { hand_out(&text, out_error) };
        let code = status::code(&error);
        PROCESS.lock().push((code, text));
        code
    })
}

/// Drops a reference to a stream. It may be the last one to a closed stream, which frees the session; a panic there is
/// caught like any other, and its text is kept for the process.
pub(super) fn release(stream: Arc<Stream>) {
    let freed = panic::catch(|| {
        drop(stream);
        Ok(())
    });
    if let Err(error) = freed {
        PROCESS.lock().push((status::code(&error), error.to_string()));
    }
}

/// # Safety
/// `out_error` is null or points to a writable pointer.
unsafe fn hand_out(text: &str, out_error: *mut *mut c_char) {
    if !out_error.is_null() {
        // SAFETY: not null; the caller promises that it can be written.
        unsafe { args::store(out_error, strings::give(text)) };
    }
}

/// The status of the handle, and the code of a call that returned -1.
///
/// Returns `ELIZA_STATUS_GENERATING` (2) while a prefill or a generation runs. Otherwise the outcome of the call or
/// generation that finished last on the handle (queries count only where they fail): the code of a failed call, or the
/// end of the generation, which is `ELIZA_OK` (0) when the model stopped, at a stop string or at a span's end, 1 when a
/// limit ended it (`max_new_tokens` or the context), `ELIZA_ERR_CANCELLED`, or the code of its error; and `ELIZA_OK`
/// before any call. The exact finish reason is in `eliza_inference_llm_stream_usage`. The call changes nothing.
///
/// Null rule: a NULL or closed handle is -1. Threads: any, any time, inside the callback too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_status(handle: FfiLlmHandle) -> i32 {
    let stands = |stream: &Stream| {
        let now = stream.session.status();
        Ok(match (stream.refusal(), now.error, now.finish_reason) {
            _ if now.busy => ELIZA_STATUS_GENERATING,
            (Some(code), _, _) => code,
            (None, Some(error), _) => status::code(&error),
            (None, None, FinishReason::Cancelled) => ELIZA_ERR_CANCELLED,
            (None, None, FinishReason::Length | FinishReason::Context) => 1,
            (None, None, _) => ELIZA_OK,
        })
    };
    ask(handle, stands).unwrap_or_else(|code| code)
}

/// The text of the newest error on the handle that was not taken: of a failed call or generation. Each is returned
/// once; the last 16 are kept.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`. Returns NULL when there is no error
/// left, and for a NULL or closed handle, whose reason `eliza_inference_take_last_error` has. Threads: any, any time,
/// inside the callback too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_take_error(handle: FfiLlmHandle) -> *mut c_char {
    let take = |stream: &Stream| Ok(stream.take_error());
    match ask(handle, take) {
        Ok(Some(error)) => strings::give(&error.to_string()),
        _ => std::ptr::null_mut(),
    }
}

/// The text of the newest error without an open handle that was not taken: why an open returned NULL, or a call on a
/// handle that is not open failed. Each is returned once; the last 16 of the process are kept, of all threads.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`. Returns NULL when there is none.
/// Threads: any, any time.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_take_last_error() -> *mut c_char {
    // SAFETY: there is no out_code.
    unsafe { eliza_inference_take_last_failure(std::ptr::null_mut()) }
}

/// As `eliza_inference_take_last_error`, with the code that belongs to the text, for hosts that distinguish errors by
/// code.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`. Null rule: `out_code` may be NULL. Returns
/// NULL when there is none; `*out_code` is then `ELIZA_OK`, else the code, -1 for a call on a handle that is not open.
/// Threads: any, any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_take_last_failure(out_code: *mut i32) -> *mut c_char {
    let taken = panic::catch(|| Ok(PROCESS.lock().take())).ok().flatten();
    // SAFETY: the host's out_code is null or writable.
    unsafe { args::store(out_code, taken.as_ref().map_or(ELIZA_OK, |(code, _)| *code)) };
    taken.map_or(std::ptr::null_mut(), |(_, text)| strings::give(&text))
}
