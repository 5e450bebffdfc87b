//! Token tries: constraining what is generated to a closed set.
//!
//! The session refuses to generate after a refused payload, so a host that ignores the result, as a `void` binding
//! would, never gets unconstrained output.

use std::ffi::{c_char, c_int};

use super::errors::{FAILED, ask_out, on_handle, on_process};
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::ELIZA_OK;
use super::{args, strings};
use crate::session::Mode;
use crate::trie::{Surroundings, cache};
use crate::{Error, Result};

/// `mode` of a token trie: the likeliest legal token.
pub const ELIZA_TRIE_GREEDY: c_int = 0;
/// `mode` of a token trie: temperature and truncations over the legal tokens, then a draw.
pub const ELIZA_TRIE_SAMPLED: c_int = 1;
/// `mode` of a token trie: every leaf is scored by its log-probability, and the best one wins.
pub const ELIZA_TRIE_SCORE_LEAVES: c_int = 2;

/// Constrains what follows to the leaves of a token trie, and arms its first descriptor.
///
/// The payload is JSON, UTF-8, `payload_len` bytes without a terminator: `{"modelId": "...", "descriptors": [{"path":
/// "...", "leaves": [{"name": "...", "tokens": [1, 2]}]}]}`. The constraint persists, and each successful prefill arms
/// it again, until it is cleared or replaced. After a set that fails, whatever the reason, generate fails until a set
/// succeeds or `eliza_inference_clear_token_trie` is called, so ignoring the result never leads to unconstrained
/// output.
///
/// Ownership: the payload is copied. Null rule: the payload must not be NULL; a NULL or closed handle is -1. Threads:
/// any; fails while the handle is at work and then changes nothing.
///
/// Returns 0, or -1; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_TRIE` (the text names the place in the
/// payload), `ELIZA_ERR_INVALID_ARG` (mode, pointer), `ELIZA_ERR_NOT_IMPLEMENTED`, `ELIZA_ERR_BUSY` or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_set_token_trie(
    handle: FfiLlmHandle,
    trie_payload_json: *const c_char,
    payload_len: usize,
    mode: c_int,
) -> i32 {
    let set = |stream: &Stream| {
        // SAFETY: the header asks for `payload_len` readable bytes.
        let json = unsafe { args::array(trie_payload_json.cast::<u8>(), payload_len, "trie_payload_json") };
        match json.and_then(|json| Ok((json, Mode::from_number(mode)?))) {
            Ok((json, mode)) => stream.session.set_trie(json, mode)?,
            Err(error) => stream.session.refuse_trie(error)?,
        }
        Ok(ELIZA_OK)
    };
    // SAFETY: no out_error.
    unsafe { on_handle(handle, std::ptr::null_mut(), set) }.unwrap_or(FAILED)
}

/// Removes the constraint, and lets generate succeed again after a refused payload. Nothing happens when there is none.
///
/// Null rule: a NULL or closed handle is -1. Threads: any; fails while the handle is at work and then changes
/// nothing. Returns 0, or -1; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_clear_token_trie(handle: FfiLlmHandle) -> i32 {
    let clear = |stream: &Stream| stream.session.clear_trie().map(|()| ELIZA_OK);
    // SAFETY: no out_error.
    unsafe { on_handle(handle, std::ptr::null_mut(), clear) }.unwrap_or(FAILED)
}

/// Arms one descriptor of the trie, by its path; what is generated next is one of its leaves.
///
/// Null rule: a NULL `path` arms the next descriptor in payload order, after the last the first; a NULL or closed
/// handle is -1. Threads: any; fails while the handle is at work and then changes nothing. Returns 0, or -1; then
/// `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no such path: the text names the known ones; no trie
/// is set; not UTF-8), `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_arm_token_trie(handle: FfiLlmHandle, path: *const c_char) -> i32 {
    let arm = |stream: &Stream| {
        // SAFETY: the header asks for null or a terminated string.
        let path = unsafe { args::optional_text(path, "path")? };
        stream.session.arm_trie(path).map(|()| ELIZA_OK)
    };
    // SAFETY: no out_error.
    unsafe { on_handle(handle, std::ptr::null_mut(), arm) }.unwrap_or(FAILED)
}

/// Scores every leaf of the descriptor armed last as a continuation of the prompt, and blocks until that is done. The
/// slot is unchanged: a generate may follow, and more scoring.
///
/// The answer is JSON, the most probable leaf first: `{"path": "...", "leaves": [{"name": "...", "tokens": 2,
/// "logprob": -0.7, "logprob_per_token": -0.35}]}`. `logprob` is the natural logarithm of the probability that exactly
/// this leaf follows: the product of its tokens' probabilities, each among the whole vocabulary by the model's own
/// logits, without any chain; where the leaf is a prefix of others, also of the probability that none of their tokens
/// follows. A leaf that cannot follow has `null`.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null rule: `out_error`
/// may be NULL; a NULL or closed handle gives NULL. Threads: any; fails while the handle is at work, and inside the
/// callback. `eliza_inference_llm_stream_cancel` from another thread ends it early.
///
/// Returns NULL on failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no trie is set),
/// `ELIZA_ERR_TRIE` (the last set_token_trie was refused), `ELIZA_ERR_BUSY` (at work, or not prefilled since the last
/// generate), `ELIZA_ERR_OOM` (the context has no room for the leaves), `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_NAN` or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_score_token_trie(
    handle: FfiLlmHandle,
    out_error: *mut *mut c_char,
) -> *mut c_char {
    let score = |stream: &Stream| {
        let scores = stream.session.score_trie()?;
        let json = serde_json::to_string(&scores);
        json.map(|json| strings::give(&json)).map_err(|error| Error::Internal(format!("The scores: {error}")))
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, score) }.unwrap_or(std::ptr::null_mut())
}

/// Makes the payload of one descriptor from names, by the model's own tokenizer: what
/// `eliza_inference_set_token_trie` takes.
///
/// Names are tokenized in the text in which they will be generated: `before`, a name and `after` are one text. `before`
/// is the text before the name in the reply, at least from the last line break on; `after` is the closing delimiter, a
/// part of every leaf. `parse_special`, 0 or not, recognises the texts of control tokens in all three. Warnings (a name
/// that is a prefix of another, one that is tokenized alone, names given twice) are written to `out_warnings`, a line
/// each.
///
/// Ownership: the host frees the string, `*out_warnings` and `*out_error` with `eliza_inference_free_string`;
/// `*out_warnings` is written on success only, NULL where there are none. Null rule: `path` and `names` must not be
/// NULL, nor any name; `before` and `after` NULL are empty; `out_warnings` and `out_error` may be NULL; a NULL or
/// closed handle gives NULL. Threads: any, any time, inside the callback too. `eliza_inference_llm_stream_cancel` from
/// another thread ends it early; a cancel before the call does not.
///
/// Returns NULL on failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no names, an empty
/// one, one that the vocabulary cannot spell, not UTF-8), `ELIZA_ERR_TRIE` (more than a payload may hold),
/// `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`, and while a generation runs that generation's.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn eliza_inference_build_token_trie(
    handle: FfiLlmHandle,
    path: *const c_char,
    names: *const *const c_char,
    n_names: usize,
    before: *const c_char,
    after: *const c_char,
    parse_special: c_int,
    out_warnings: *mut *mut c_char,
    out_error: *mut *mut c_char,
) -> *mut c_char {
    let build = |stream: &Stream| {
        // SAFETY: the header asks for null or terminated strings, and `n_names` readable ones.
        let (path, before, after, names) = unsafe {
            (
                args::text(path, "path")?,
                args::optional_text(before, "before")?.unwrap_or_default(),
                args::optional_text(after, "after")?.unwrap_or_default(),
                args::array(names, n_names, "names")?,
            )
        };
        // SAFETY: as above, for each name.
        let name = |(index, &name): (usize, &*const c_char)| unsafe { args::text(name, &format!("names[{index}]")) };
        let names: Vec<&str> = names.iter().enumerate().map(name).collect::<Result<_>>()?;
        let around = Surroundings { before, after, parse_special: parse_special != 0 };
        let built = stream.session.build_trie(path, &names, around)?;
        let warnings = match built.warnings.as_slice() {
            [] => std::ptr::null_mut(),
            lines => strings::give(&lines.join("\n")),
        };
        // SAFETY: the host's out_warnings is null or writable.
        unsafe { args::store(out_warnings, warnings) };
        Ok(strings::give(&built.json))
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, build) }.unwrap_or(std::ptr::null_mut())
}

/// Bounds the compiled payloads that the process keeps for later sets: 64 MiB at the start, and never more than 128 of
/// them. The least recently used are dropped first; one that is larger than the bound is compiled again at every set.
/// Tries in use stay valid, whatever the bound.
///
/// 0 keeps none. `eliza_inference_llm_stream_usage_json` reports the bytes kept. Threads: any, any time. Returns
/// `ELIZA_OK` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_set_trie_cache_limit(bytes: u64) -> i32 {
    let set = || {
        cache::set_limit(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(ELIZA_OK)
    };
    // SAFETY: no out_error.
    unsafe { on_process(std::ptr::null_mut(), set) }.unwrap_or_else(|code| code)
}
