//! Pulling tokens: for hosts whose callbacks cannot run on foreign threads.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use super::args;
use super::errors::on_handle;
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::{ELIZA_ERR_BUSY, ELIZA_ERR_INVALID_ARG};
use crate::Error;
use crate::session::{FinishReason, Pull};

/// `next` and `poll`: the generation goes on.
pub const ELIZA_STREAM_MORE: c_int = 0;
/// `next` and `poll`: the generation ended, and all of its output was taken.
pub const ELIZA_STREAM_FINAL: c_int = 1;

/// Takes output of the generation: waits for the next token, then writes up to `tokens_cap` tokens and their text.
///
/// The text is whole characters in UTF-8, always terminated; no byte after `text_cap` is written. A step ends early
/// rather than cut the text of a token; only a token whose text alone is longer than the buffer has its text spread
/// over steps, the later ones without tokens. NUL characters are U+FFFD. The last step may hold tokens and text too.
///
/// Ownership: the buffers are the host's, `*out_error` is the host's to free. Null rule: `tokens_out` and `text_out`
/// must not be NULL; `num_tokens_out`, `drafter_drafted_out`, `drafter_accepted_out` (tokens that were guessed since
/// the last step, and those of them that were right) and `out_error` may be; a NULL or closed handle is -1. Threads:
/// one at a time per handle.
///
/// Returns `ELIZA_STREAM_MORE` (0), `ELIZA_STREAM_FINAL` (1), or a code: `ELIZA_ERR_CANCELLED` for the end of a
/// cancelled generation (the outputs are valid); -1 (handle); `ELIZA_ERR_INVALID_ARG` for a NULL buffer, `tokens_cap`
/// 0, `text_cap` below 8, no generation to read, or one that has a callback; or the code of the error that ended the
/// generation: `ELIZA_ERR_NAN`, `ELIZA_ERR_OOM`, `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_next(
    handle: FfiLlmHandle,
    tokens_out: *mut i32,
    tokens_cap: usize,
    num_tokens_out: *mut usize,
    text_out: *mut c_char,
    text_cap: usize,
    drafter_drafted_out: *mut i32,
    drafter_accepted_out: *mut i32,
    out_error: *mut *mut c_char,
) -> c_int {
    // SAFETY: the host's out-pointers are null or writable.
    unsafe {
        args::store(drafter_drafted_out, 0);
        args::store(drafter_accepted_out, 0);
        let guesses = [drafter_drafted_out, drafter_accepted_out];
        pull(handle, None, tokens_out, tokens_cap, num_tokens_out, text_out, text_cap, guesses, out_error)
    }
}

/// As `eliza_inference_llm_stream_next`, but waits at most `timeout_ms` milliseconds for the next token: 0 does not
/// wait at all, a negative number waits without end. Nothing in time is `ELIZA_STREAM_MORE` with no tokens.
///
/// Ownership, null rule, threads and results are those of `eliza_inference_llm_stream_next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_poll(
    handle: FfiLlmHandle,
    timeout_ms: i32,
    tokens_out: *mut i32,
    tokens_cap: usize,
    num_tokens_out: *mut usize,
    text_out: *mut c_char,
    text_cap: usize,
    out_error: *mut *mut c_char,
) -> c_int {
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    // SAFETY: the host's buffers have their capacities, its other out-pointers are null or writable.
    unsafe {
        let guesses = [std::ptr::null_mut(); 2];
        pull(handle, timeout, tokens_out, tokens_cap, num_tokens_out, text_out, text_cap, guesses, out_error)
    }
}

/// # Safety
/// `tokens_out` and `text_out` are null or have room for their capacities; `num_tokens_out`, `guesses` and `out_error`
/// are null or writable.
#[allow(clippy::too_many_arguments)] // the two exports' own list
unsafe fn pull(
    handle: FfiLlmHandle,
    timeout: Option<Duration>,
    tokens_out: *mut i32,
    tokens_cap: usize,
    num_tokens_out: *mut usize,
    text_out: *mut c_char,
    text_cap: usize,
    guesses: [*mut i32; 2],
    out_error: *mut *mut c_char,
) -> c_int {
    // SAFETY: the caller's promise. Whatever happens, the outputs are defined.
    unsafe {
        args::store(num_tokens_out, 0);
        if text_cap > 0 {
            args::store(text_out, 0);
        }
    }
    let step = |stream: &Stream| {
        // SAFETY: the caller's promise.
        let (tokens, text) = unsafe {
            (
                args::array_mut(tokens_out, tokens_cap, "tokens_out")?,
                args::array_mut(text_out.cast::<u8>(), text_cap, "text_out")?,
            )
        };
        let Pull { tokens, done, .. } = stream.session.next(timeout, tokens, text)?;
        let counts = stream.session.take_guesses();
        for (out, count) in guesses.into_iter().zip(counts) {
            // SAFETY: the caller's promise.
            unsafe { args::store(out, i32::try_from(count).unwrap_or(i32::MAX)) };
        }
        // SAFETY: the caller's promise.
        unsafe { args::store(num_tokens_out, tokens) };
        if !done {
            return Ok(ELIZA_STREAM_MORE);
        }
        match stream.session.status().finish_reason {
            FinishReason::Cancelled => Err(Error::Cancelled),
            _ => Ok(ELIZA_STREAM_FINAL),
        }
    };
    // SAFETY: the caller's promise about `out_error`.
    match unsafe { on_handle(handle, out_error, step) } {
        Ok(step) => step,
        // Pulling from a generation with a callback is a wrong call, and waiting does not help.
        Err(ELIZA_ERR_BUSY) => ELIZA_ERR_INVALID_ARG,
        Err(code) => code,
    }
}
