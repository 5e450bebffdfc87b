//! Chats: the prompt of messages, and an answer's parts.

use std::ffi::{c_char, c_int};

use super::errors::ask_out;
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::{args, strings};

/// The prompt that the model's chat template makes of messages, as one JSON object: `text`, and `tokens`, an array of
/// ids to prefill.
///
/// `inputs_json` is an object: `messages` (an array of objects with `role`, `content`, and where there are some
/// `tool_calls` and `reasoning_content`), and where wanted `tools`, `documents`, `add_generation_prompt` (true: the
/// prompt ends where the model's turn begins; false where it is not given) and whatever else the template reads, such
/// as `enable_thinking`. `answer_start` is the text that the model's turn begins with, whose special tokens are tokens.
/// Messages in the form of OpenAI's API are adapted to what the template reads (`docs/chat.md`).
/// What they spell stays text: no special token comes of a message.
///
/// Ownership: `inputs_json` is copied; the host frees the string with `eliza_inference_free_string`, and `*out_error`.
/// Null rule: `inputs_json` must not be NULL; `out_error` may be; a NULL or closed handle gives NULL. Threads: any, any
/// time, inside the callback too. `eliza_inference_llm_stream_cancel` from another thread ends it early. Returns NULL
/// on failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (inputs that are none, messages that
/// the template refuses, a broken template; the text has its words), `ELIZA_ERR_NOT_IMPLEMENTED` (the file has no
/// template, and its tokens are of no known family), `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`,
/// and while a generation runs that generation's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_chat_prompt_json(
    handle: FfiLlmHandle,
    inputs_json: *const c_char,
    out_error: *mut *mut c_char,
) -> *mut c_char {
    let tell = |stream: &Stream| {
        // SAFETY: the header asks for a terminated string.
        let inputs = unsafe { args::text(inputs_json, "inputs_json")? };
        strings::give_text(&stream.session.chat_prompt_json(inputs)?)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, tell) }.unwrap_or(std::ptr::null_mut())
}

/// Takes an answer apart as it comes, into what the user is to read, what the model thought, and calls of functions.
///
/// `text` is the answer's next piece, of any size: how it is cut changes nothing. The result is a JSON array of the
/// parts that it completes: `{"type": "answer", "text": "..."}`, `{"type": "reasoning", "text": "..."}`, and `{"type":
/// "tool_call", "name": "...", "arguments": "{...}", "id": "..."}`, whose `arguments` are a JSON object as text, and
/// whose `id` only some models give. Texts of one type that follow each other belong together. What looks like a call
/// and is none is a part of the answer.
///
/// `inputs_json` begins a new answer, the one to the prompt that `eliza_inference_llm_stream_chat_prompt_json` makes of
/// the same inputs; without it the text goes on. `last`, 0 or not, ends the answer: the result has what was held back.
/// An answer that is there whole takes one call. Control tokens have to be spelled in the text: set `special_text` of
/// `eliza_llm_sampling_options_t`.
///
/// Ownership: everything is copied; the host frees the string with `eliza_inference_free_string`, and `*out_error`.
/// Null rule: `inputs_json` may be NULL, and `text` where `text_len` is 0; `out_error` may be; a NULL or closed handle
/// gives NULL. Threads: any, any time, inside the callback too; a handle reads one answer. Returns NULL on failure and
/// has then changed nothing; `eliza_inference_llm_stream_status` is then `ELIZA_ERR_INVALID_ARG` (no answer was begun,
/// or inputs that make no prompt), `ELIZA_ERR_NOT_IMPLEMENTED` (no template, as for the prompt), `ELIZA_ERR_OOM` or
/// `ELIZA_ERR_FFI_FAULT`, and while a generation runs that generation's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_chat_parts_json(
    handle: FfiLlmHandle,
    inputs_json: *const c_char,
    text: *const c_char,
    text_len: usize,
    last: c_int,
    out_error: *mut *mut c_char,
) -> *mut c_char {
    let tell = |stream: &Stream| {
        // SAFETY: the header asks for null or a terminated string, and `text_len` readable bytes.
        let (inputs, text) = unsafe {
            (args::optional_text(inputs_json, "inputs_json")?, args::array(text.cast::<u8>(), text_len, "text")?)
        };
        strings::give_text(&stream.session.chat_parts_json(inputs, text, last != 0)?)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, tell) }.unwrap_or(std::ptr::null_mut())
}
