//! Grammars: holding what is generated to rules.
//!
//! The session refuses to generate after a refused grammar, so a host that ignores the result never gets unconstrained
//! output.

use std::ffi::c_char;

use super::args;
use super::errors::{FAILED, on_handle};
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::ELIZA_OK;

/// Holds what follows to a grammar, from its start. It takes the place of a token trie.
///
/// The source is JSON, UTF-8, `json_len` bytes without a terminator: `{"gbnf": "root ::= ..."}`, with `"root"` where
/// another rule is the root; `{"json_schema": {...}}`, with `"compact": true` for no white space and `"keywords"`,
/// which says what becomes of those that no grammar can keep: "exact" (they are refused, the default), "lenient" (they
/// are ignored) or "llama.cpp" (schemas are read as llama.cpp does); `{"regex": "..."}`; `{"skeleton": {...}}`;
/// `{"spans": [...]}`; or `{"lark": "..."}` in a library with the feature `llguidance`. Besides, each may have `"lazy":
/// true` with `"triggers": [{"type": "word", "value": "..."}]` (types word, pattern, pattern_full and token), for a
/// grammar that begins with the first of them, and `"jump_ahead"`: "bytes" (forced text is tokenized at once), "tokens"
/// (a token is taken without sampling where it is the only legal one) or "off". The grammar persists, and each
/// successful prefill begins it again, until it is cleared or replaced. After a set that fails, whatever the reason,
/// generate fails until a set succeeds or `eliza_inference_clear_grammar` is called. Where only an end-of-generation
/// token is legal the generation ends.
///
/// Ownership: the source is copied. Null rule: `json` must not be NULL; a NULL or closed handle is -1. Threads: any;
/// fails while the handle is at work and then changes nothing.
///
/// Returns 0, or -1; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (the text names the line and
/// column, the key or the span), `ELIZA_ERR_OOM` (more than a grammar may hold), `ELIZA_ERR_NOT_IMPLEMENTED`,
/// `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_set_grammar(
    handle: FfiLlmHandle,
    json: *const c_char,
    json_len: usize,
) -> i32 {
    let set = |stream: &Stream| {
        // SAFETY: the header asks for `json_len` readable bytes.
        match unsafe { args::array(json.cast::<u8>(), json_len, "json") } {
            Ok(json) => stream.session.set_grammar(json)?,
            Err(error) => stream.session.refuse_grammar(error)?,
        }
        Ok(ELIZA_OK)
    };
    // SAFETY: no out_error.
    unsafe { on_handle(handle, std::ptr::null_mut(), set) }.unwrap_or(FAILED)
}

/// Removes the grammar, and lets generate succeed again after a refused one. Nothing happens when there is none; a
/// token trie stays.
///
/// Null rule: a NULL or closed handle is -1. Threads: any; fails while the handle is at work and then changes
/// nothing. Returns 0, or -1; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_clear_grammar(handle: FfiLlmHandle) -> i32 {
    let clear = |stream: &Stream| stream.session.clear_grammar().map(|()| ELIZA_OK);
    // SAFETY: no out_error.
    unsafe { on_handle(handle, std::ptr::null_mut(), clear) }.unwrap_or(FAILED)
}
