//! Queries about a model: its file's metadata, its sizes, its tokens, its logits.

use std::ffi::c_char;

use super::errors::{ask, ask_out, on_handle, on_process};
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::{args, strings};
use crate::Error;
use crate::gguf::File;
use crate::session::arguments::count;

/// The metadata of a model file as JSON, from its header alone.
///
/// A NULL `key` gives one object of all keys in the file's order; an array of more than 16 elements is written as
/// `{"type": "String", "length": 32000}`. With a key, the key's whole value. Numbers that are not finite are null;
/// 64-bit integers are written exactly.
///
/// Ownership: `path` and `key` are copied; the host frees the string with `eliza_inference_free_string`, and
/// `*out_error`. Null rule: `path` must not be NULL; `key` and `out_error` may be. Threads: any, any time, several at
/// once. Returns NULL on failure, with the code in `eliza_inference_take_last_failure`: `ELIZA_ERR_IO`,
/// `ELIZA_ERR_BUNDLE_INVALID`, `ELIZA_ERR_INVALID_ARG` (a key that the file does not have), `ELIZA_ERR_OOM` or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_file_metadata_json(
    path: *const c_char,
    key: *const c_char,
    out_error: *mut *mut c_char,
) -> *mut c_char {
    let tell = || {
        // SAFETY: the header asks for null or terminated strings.
        let (path, key) = unsafe { (args::path(path, "path")?, args::optional_text(key, "key")?) };
        strings::give_text(&File::open(path)?.metadata_json(key)?)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_process(out_error, tell) }.unwrap_or(std::ptr::null_mut())
}

/// As `eliza_inference_file_metadata_json`, of the file that is open.
///
/// Ownership: `key` is copied; the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null
/// rule: `key` and `out_error` may be NULL; a NULL or closed handle gives NULL. Threads: any, any time, inside the
/// callback too. Returns NULL on failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (a key
/// that the file does not have), `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`, and while a generation runs that
/// generation's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_metadata_json(
    handle: FfiLlmHandle,
    key: *const c_char,
    out_error: *mut *mut c_char,
) -> *mut c_char {
    let tell = |stream: &Stream| {
        // SAFETY: the header asks for null or a terminated string.
        let key = unsafe { args::optional_text(key, "key")? };
        strings::give_text(&stream.session.metadata_json(key)?)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, tell) }.unwrap_or(std::ptr::null_mut())
}

/// A description of the open model as one JSON object: `path`, `names` (what a token trie may call the model), `name`,
/// `architecture`, `vocab_only`; `n_vocab`, `n_embd`, `n_layer`, `n_head`, `n_head_kv`, `n_ff` (the largest where
/// layers differ), `train_context`, `parameters`, `bytes` of the file; `context`, `slots`, `threads`, `n_batch`,
/// `kv_type`, `kv_type_v` and `device` of the handle; `vocabulary` (its kind), `special` (an object of token ids by
/// role: `bos`, `eos`, `eot`, `eom`, `unk`, `sep`, `pad`, `mask`, `nl`, `fim_pre`, `fim_suf`, `fim_mid`, `fim_pad`,
/// `fim_rep`, `fim_sep`; null where no token has the role), `eog` (all tokens that end a generation), `add_bos` and
/// `add_eos` (whether tokenizing with `add_special` adds them). What the file does not have is null.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null rule: `out_error`
/// may be NULL; a NULL or closed handle gives NULL. Threads: any, any time, inside the callback too. Returns NULL on
/// failure, with the reason in `*out_error`: the handle, or a fault.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_model_json(
    handle: FfiLlmHandle,
    out_error: *mut *mut c_char,
) -> *mut c_char {
    let tell = |stream: &Stream| strings::give_text(&stream.session.describe()?);
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, tell) }.unwrap_or(std::ptr::null_mut())
}

/// Whether a token ends a generation: 1 or 0.
///
/// Null rule: a NULL or closed handle is -1. Threads: any, any time, inside the callback too. Returns 1, 0, -1
/// (handle), `ELIZA_ERR_INVALID_ARG` (no such token) or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_is_eog(handle: FfiLlmHandle, token: i32) -> i32 {
    ask(handle, |stream: &Stream| stream.session.is_eog(token)).map_or_else(|code| code, i32::from)
}

/// A token as one JSON object: `id`; `text` as the file has it; `piece`, what it spells in a generated text (null where
/// that is no whole UTF-8, empty for control tokens), and its `bytes`; `score` (null where the file has none);
/// `attributes`, a list of "unknown", "unused", "normal", "control", "user_defined", "byte", "lstrip", "rstrip";
/// `is_eog`.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null rule: `out_error`
/// may be NULL; a NULL or closed handle gives NULL. Threads: any, any time, inside the callback too. Returns NULL on
/// failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no such token) or
/// `ELIZA_ERR_FFI_FAULT`, and while a generation runs that generation's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_token_json(
    handle: FfiLlmHandle,
    token: i32,
    out_error: *mut *mut c_char,
) -> *mut c_char {
    let tell = |stream: &Stream| strings::give_text(&stream.session.token_json(token)?);
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, tell) }.unwrap_or(std::ptr::null_mut())
}

/// The model's own logits of the last `n_last` positions (1 to 512) of the slot that was prefilled last: rows of as
/// many numbers as the vocabulary has tokens, the first position first, without chain or bias. Blocks until they are
/// computed.
///
/// The last position needs no evaluation. Earlier positions are evaluated again, which takes as long as a prefill of
/// `n_last` tokens. The slot is unchanged: a generate may follow, and further queries.
///
/// Ownership: `out` is the host's, `*out_error` is the host's to free. Null rule: `out` may be NULL where `cap`, its
/// length in numbers, is 0, to ask how many there would be; `out_error` may be NULL; a NULL or closed handle is -1.
/// Threads: any; fails while the handle is at work, and inside the callback. `eliza_inference_llm_stream_cancel` from
/// another thread ends it early.
///
/// Returns how many numbers there are, `n_last` times the vocabulary's size; they were written if `cap` is at least
/// that, else nothing was computed. Or -1 (handle), `ELIZA_ERR_INVALID_ARG` (`n_last` out of range or more than the
/// slot has; more than 1 in a slot whose context was shifted), `ELIZA_ERR_BUSY` (at work, or not prefilled since the
/// last generate), `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_DEVICE`, `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`; what `out`
/// holds is undefined then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_logits(
    handle: FfiLlmHandle,
    n_last: i32,
    out: *mut f32,
    cap: usize,
    out_error: *mut *mut c_char,
) -> i32 {
    let tell = |stream: &Stream| {
        // SAFETY: the header asks for `cap` writable numbers.
        let out = unsafe { args::array_mut(out, cap, "out")? };
        let n_last = count(n_last, "n_last")? as usize;
        let numbers = stream.session.logits(n_last, out)?;
        i32::try_from(numbers).map_err(|_| Error::OutOfMemory(format!("{numbers} logits")))
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, tell) }.unwrap_or_else(|code| code)
}
