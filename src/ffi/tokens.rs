//! Text to token ids and back, with the vocabulary of an open handle.

use std::ffi::{c_char, c_int};

use super::errors::ask_out;
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::ELIZA_OK;
use super::{args, strings};
use crate::Error;

/// Turns text into token ids.
///
/// `add_special` adds the begin- and end-of-text tokens that the model wants (usually BOS); `parse_special` turns the
/// text of special tokens into those tokens, which is for templates and not for users' text. Both are switches, 0 or
/// not. The text may have 1 GiB at most; time and memory grow with its length, whatever its content.
///
/// Ownership: `text` is read only during the call; the host frees `*out_tokens` with `eliza_inference_free_tokens` (it
/// is not NULL even when there are no tokens), and `*out_error`. Null rule: `text` may be NULL where `text_len`
/// is 0; `out_tokens` and `out_n` must not be NULL; `out_error` may be; a NULL or closed handle is -1. Threads: any,
/// any time, inside the callback too. `eliza_inference_llm_stream_cancel` from another thread ends it early; a cancel
/// before the call does not.
///
/// Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM` or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_tokenize(
    handle: FfiLlmHandle,
    text: *const c_char,
    text_len: usize,
    add_special: c_int,
    parse_special: c_int,
    out_tokens: *mut *mut c_int,
    out_n: *mut usize,
    out_error: *mut *mut c_char,
) -> c_int {
    let tokenize = |stream: &Stream| {
        if out_tokens.is_null() || out_n.is_null() {
            return Err(Error::InvalidArgument("out_tokens or out_n is NULL".into()));
        }
        // SAFETY: the header asks for `text_len` readable bytes.
        let text = unsafe { args::array(text.cast::<u8>(), text_len, "text")? };
        let tokens = stream.session.tokenize(text, add_special != 0, parse_special != 0)?;
        let copy = strings::give_tokens(&tokens);
        if copy.is_null() {
            return Err(Error::OutOfMemory(format!("No memory for {} token ids", tokens.len())));
        }
        // SAFETY: the host's out-pointers are not null, hence writable.
        unsafe {
            args::store(out_tokens, copy);
            args::store(out_n, tokens.len());
        }
        Ok(ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, tokenize) }.unwrap_or_else(|code| code)
}

/// Turns token ids into text.
///
/// `remove_special` leaves out the special tokens that tokenizing adds at the beginning and the end; `unparse_special`
/// writes control tokens as their text instead of leaving them out. Both are switches, 0 or not. The bytes are UTF-8
/// where the tokens spell whole characters, and followed by a NUL.
///
/// Ownership: `out_text` is the host's, `*out_error` is the host's to free. Null rule: `tokens` may be NULL where
/// `n_tokens` is 0; `out_text` may be NULL where `max_text_bytes` is 0, to ask for the length; `out_error`
/// may be NULL; a NULL or closed handle is -1. Threads: any, any time, inside the callback too.
///
/// Returns the length of the text in bytes without the NUL, which was written if `max_text_bytes` is greater than it or
/// 0; or -1 (handle), `ELIZA_ERR_INVALID_ARG` (a token out of range, a buffer too small: the text names the bytes
/// needed; nothing is written then), `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_detokenize(
    handle: FfiLlmHandle,
    tokens: *const c_int,
    n_tokens: usize,
    remove_special: c_int,
    unparse_special: c_int,
    out_text: *mut c_char,
    max_text_bytes: usize,
    out_error: *mut *mut c_char,
) -> c_int {
    let detokenize = |stream: &Stream| {
        // SAFETY: the header asks for `n_tokens` readable ids and `max_text_bytes` writable bytes.
        let (tokens, room) = unsafe {
            (
                args::array(tokens, n_tokens, "tokens")?,
                args::array_mut(out_text.cast::<u8>(), max_text_bytes, "out_text")?,
            )
        };
        let text = stream.session.detokenize(tokens, remove_special != 0, unparse_special != 0)?;
        if let Some((place, rest)) = room.split_at_mut_checked(text.len())
            && let Some(end) = rest.first_mut()
        {
            place.copy_from_slice(&text);
            *end = 0;
        } else if !room.is_empty() {
            let problem = format!("max_text_bytes is {max_text_bytes}, {} are needed", text.len() + 1);
            return Err(Error::InvalidArgument(problem));
        }
        c_int::try_from(text.len()).map_err(|_| Error::OutOfMemory(format!("{} bytes of text", text.len())))
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, detokenize) }.unwrap_or_else(|code| code)
}
