//! Errors that cannot be lost: where a failure goes, and how a host asks for it.
//!
//! A failed call on a handle leaves its text there, and one without a handle in a queue of the process; never in
//! the thread, for a host may ask from another one. Both are bounded: the oldest text goes first, and the newest
//! is handed out first, since it belongs to the call that just failed. Where the caller gave an `out_error`, that
//! gets a copy.

use std::ffi::c_char;
use std::sync::Arc;

use parking_lot::Mutex;

use super::handle::{self, FfiLlmHandle};
use super::recent::Recent;
use super::state::Stream;
use super::status::{self, ELIZA_ERR_CANCELLED, ELIZA_OK, ELIZA_STATUS_GENERATING};
use super::{args, panic, strings};
use crate::Result;
use crate::session::FinishReason;

/// What a call on a handle that is not open returns, and any failed call of those that know no other failure value.
pub(super) const FAILED: i32 = -1;

/// Codes and texts of failures that no handle belongs to.
static PROCESS: Mutex<Recent<(i32, String)>> = Mutex::new(Recent::new());

/// Runs the body of a call on a handle, behind the panic boundary. A failure is reported and comes back as its
/// code; for a handle that is not open, as -1.
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

/// As [`on_handle`], for calls that only ask and are no event in the life of the handle: legal at any time, they leave
/// the code of a call that another thread made as it is.
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

/// Runs the body of a call that has no handle yet, behind the panic boundary. A failure is reported and comes back as
/// its code.
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

/// Lets go of a stream. It may be the last reference to a closed one, which frees the session; a panic there ends
/// at the boundary like any other, and its text goes to the process.
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

/// How the handle stands: the detail behind a -1.
///
/// Returns `ELIZA_STATUS_GENERATING` (2) while a prefill or a generation runs. Otherwise the outcome of what finished
/// last on the handle (calls that only ask count where they fail, not where they succeed): the code of a call that
/// failed, or the end of the generation, which is `ELIZA_OK` (0) when the model stopped, at a stop string or at a
/// span's end, 1 when a limit ended it (`max_new_tokens` or the context), `ELIZA_ERR_CANCELLED`, or the code of its
/// error; and `ELIZA_OK` when nothing has happened. The exact finish reason is in `eliza_inference_llm_stream_usage`.
/// Asking changes nothing.
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

/// The text of the newest error on the handle that nobody has taken: of a failed call, or of a generation that
/// ended in one. Each is given once; the last 16 are kept.
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

/// The text of the newest error that belongs to no open handle and that nobody has taken: why an open returned NULL,
/// or a call on a handle that is not open failed. Each is given once; the last 16 of the process are kept, of
/// whatever thread.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`. Returns NULL when there is none.
/// Threads: any, any time.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_take_last_error() -> *mut c_char {
    // SAFETY: there is no out_code.
    unsafe { eliza_inference_take_last_failure(std::ptr::null_mut()) }
}

/// As `eliza_inference_take_last_error`, with the code that belongs to the text: why an open returned NULL, for hosts
/// that tell errors apart by code.
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
