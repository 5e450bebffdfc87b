//! Token tries of streams: beside the calls of ABI 15, for hosts that have names to choose from.

use crate::edge::{ELIZA_OK, array, call, text};
use crate::stream::{EliLlmStream, STREAMS, Trie};
use elizainference::session::Mode;
use elizainference::trie::cache;
use std::ffi::{c_char, c_int};

/// Holds the stream's answers to the names of a payload in JSON, from the next answer on; an answer ends with its name.
/// It takes the grammar's place.
/// `mode` is 0 (greedy), 1 (sampled) or 2 (names are scored as a whole).
///
/// Ownership: the payload is copied; the host frees `*out_error`. Null rule: `trie_payload_json` must not be NULL.
/// Threads: as prefill.
///
/// Returns `ELIZA_OK`, or `ELIZA_ERR_INVALID_ARG` with the place in the payload that is wrong, for another mode and for
/// an answer that has not ended; the trie is then the one before.
///
/// # Safety
/// `trie_payload_json` is NULL or points to `payload_len` readable bytes, `out_error` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_set_token_trie(
    stream: *mut EliLlmStream,
    trie_payload_json: *const c_char,
    payload_len: usize,
    mode: c_int,
    out_error: *mut *mut c_char,
) -> c_int {
    let set = || {
        let stream = STREAMS.get(stream)?;
        // SAFETY: the host's promise.
        let payload = unsafe { array(trie_payload_json.cast::<u8>(), payload_len, "trie_payload_json")? };
        let mode = Mode::from_number(mode)?;
        let n_vocab = stream.context().vocabulary()?.info().n_vocab;
        cache::load(payload, |trie| trie.check_vocab(n_vocab))?;
        stream.set_trie(Some(Trie { payload: payload.to_vec(), mode, path: None })).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, set) }
}

/// Removes the stream's trie; its grammar, if it has one, is in force again.
///
/// Ownership: the host frees `*out_error`. Threads: as prefill.
///
/// Returns `ELIZA_OK`, or `ELIZA_ERR_INVALID_ARG` for an answer that has not ended.
///
/// # Safety
/// `out_error` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_clear_token_trie(
    stream: *mut EliLlmStream,
    out_error: *mut *mut c_char,
) -> c_int {
    let clear = || STREAMS.get(stream)?.set_trie(None).map(|()| ELIZA_OK);
    // SAFETY: the host's promise.
    unsafe { call(out_error, clear) }
}

/// Chooses the descriptor of the trie that the next answer begins with, by its path; without this call it is the first.
///
/// Ownership: `path` is copied; the host frees `*out_error`. Null rule: `path` must not be NULL. Threads: as prefill.
///
/// Returns `ELIZA_OK`, or `ELIZA_ERR_INVALID_ARG` where there is no trie and for an answer that has not ended. A path
/// that the trie does not have is an error of the next step.
///
/// # Safety
/// `path` is NULL or terminated, `out_error` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_arm_token_trie(
    stream: *mut EliLlmStream,
    path: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    let arm = || {
        let stream = STREAMS.get(stream)?;
        // SAFETY: the host's promise.
        stream.arm_trie(unsafe { text(path, "path")? }).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, arm) }
}
