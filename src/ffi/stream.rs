//! What runs on a handle: prefill, generate with a callback, cancel.
//!
//! A callback gets text in the session's arena, so that a host whose callback runs later, on a thread of its own, can
//! still read it.

use std::ffi::{c_char, c_void};

use super::args;
use super::errors::{FAILED, ask, on_handle};
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::ELIZA_OK;
use crate::panic;
use crate::session::{Event, Sink};
use crate::{Error, Result, Token};

/// Receives one event of a generation: a token with the text that it completes, or at the end, once, `token_id` -1 with
/// the held-back rest of the text, usually empty, and `is_done` true. Called on a thread of the library.
///
/// `token_text` is UTF-8, terminated, never NULL, and stays readable after the call until the next prefill or generate
/// on the handle; after close as long as at most 15 further handles are closed. A NUL character in the text is
/// U+FFFD here.
pub type TokenCallback = Option<unsafe extern "C" fn(token_id: i32, token_text: *const c_char, is_done: bool)>;

/// As `eliza_llm_stream_token_cb`, with the text exactly as generated, its length in bytes, and the host's
/// own pointer.
pub type TokenCallback2 = Option<
    unsafe extern "C" fn(
        token_id: i32,
        token_text: *const c_char,
        token_text_len: usize,
        is_done: bool,
        user_data: *mut c_void,
    ),
>;

/// Evaluates a prompt and keeps its KV cache in a slot; the longest common prefix with the tokens of any slot is
/// reused. Blocks until done.
///
/// `slot_id` -1 takes the slot whose tokens the prompt goes on from, else an empty one, else the least recently used; 0
/// and up selects a slot, one for each conversation. Success re-arms the token trie, if any, and makes the texts of the
/// last generation invalid.
///
/// The prompt of an encoder-decoder is what its encoder reads, in one pass, or not at all where the slot had the same
/// one before; a generation is the decoder's answer.
///
/// Ownership: the tokens are copied. Null rule: `prompt_tokens` must not be NULL; a NULL or closed handle
/// is -1. Threads: any; fails while the handle is at work. `eliza_inference_llm_stream_cancel` from another thread ends
/// it early.
///
/// Returns how many tokens are in place, reused ones included, which is `num_tokens`, or -1; then
/// `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no tokens, a token or slot out of range),
/// `ELIZA_ERR_OOM` (longer than the context), `ELIZA_ERR_BUSY`, `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_NAN` or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_prefill(
    handle: FfiLlmHandle,
    prompt_tokens: *const i32,
    num_tokens: usize,
    slot_id: i32,
) -> i32 {
    let prefill = |stream: &Stream| {
        // SAFETY: the header asks for `num_tokens` readable ids.
        let tokens: &[Token] = unsafe { args::array(prompt_tokens, num_tokens, "prompt_tokens")? };
        let placed = stream.session.prefill(tokens, slot_id)?;
        i32::try_from(placed).map_err(|_| Error::Internal(format!("{placed} tokens prefilled")))
    };
    // SAFETY: no out_error.
    unsafe { on_handle(handle, std::ptr::null_mut(), prefill) }.unwrap_or(FAILED)
}

/// As `eliza_inference_llm_stream_prefill`, but returns at once: for hosts with one thread, whose timers and aborts go
/// on while the prompt is evaluated.
///
/// `eliza_inference_llm_stream_status` is `ELIZA_STATUS_GENERATING` until the prefill is over, then `ELIZA_OK` or the
/// code of its error, whose text `eliza_inference_llm_stream_take_error` has. Poll about every millisecond, to leave
/// the cores to the library.
///
/// Ownership: the tokens are copied, `*out_error` is the host's to free. Null rule: `prompt_tokens` must not be NULL;
/// `out_error` may be; a NULL or closed handle is -1. Threads: any; fails while the handle is at work.
///
/// Returns `ELIZA_OK` when it was started, or -1 (handle), `ELIZA_ERR_INVALID_ARG` (no tokens, a token or slot out of
/// range), `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_start_prefill(
    handle: FfiLlmHandle,
    prompt_tokens: *const i32,
    num_tokens: usize,
    slot_id: i32,
    out_error: *mut *mut c_char,
) -> i32 {
    let start = |stream: &Stream| {
        // SAFETY: the header asks for `num_tokens` readable ids.
        let tokens: &[Token] = unsafe { args::array(prompt_tokens, num_tokens, "prompt_tokens")? };
        stream.session.start_prefill(tokens, slot_id).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, start) }.unwrap_or_else(|code| code)
}

/// Prewarm: evaluates a prompt in a slot when the handle has nothing else to do, and returns at once. A later prefill
/// of a prompt that begins with these tokens, in whatever slot, does not evaluate them again: for the part that many
/// conversations begin with, or for the next turn while the user is typing.
///
/// `slot_id` is as in `eliza_inference_llm_stream_prefill`. Prompts are warmed up in their order; they wait while a
/// generation runs and while a prompt waits for its generate. Every call that needs the model ends the one that is
/// evaluated: what was evaluated stays in its slot. Status, usage and texts are those of other calls; how many prompts
/// wait or are evaluated is "prewarms" in `eliza_inference_llm_stream_usage_json`. An error that comes later is logged
/// and waits for `eliza_inference_llm_stream_take_error`.
///
/// Ownership: the tokens are copied, `*out_error` is the host's to free. Null rule: `prompt_tokens` must not be NULL;
/// `out_error` may be; a NULL or closed handle is -1. Threads: any, any time, inside the callback too.
///
/// Returns `ELIZA_OK`, or -1 (handle), `ELIZA_ERR_INVALID_ARG` (no tokens, a token or slot out of range),
/// `ELIZA_ERR_OOM` (longer than the context), `ELIZA_ERR_BUSY` (64 prompts wait) or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_prewarm(
    handle: FfiLlmHandle,
    prompt_tokens: *const i32,
    num_tokens: usize,
    slot_id: i32,
    out_error: *mut *mut c_char,
) -> i32 {
    let prewarm = |stream: &Stream| {
        // SAFETY: the header asks for `num_tokens` readable ids.
        let tokens: &[Token] = unsafe { args::array(prompt_tokens, num_tokens, "prompt_tokens")? };
        stream.session.prewarm(tokens, slot_id).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, prewarm) }.unwrap_or_else(|code| code)
}

/// Pins a slot (`pinned` 1), or unpins it (0). A pinned slot keeps its tokens when others need room, and no prompt
/// takes it as its fresh slot: conversations in other slots share what they begin with. A prefill that names the slot
/// replaces its tokens all the same.
///
/// Ownership: `*out_error` is the host's to free. Null rule: `out_error` may be NULL; a NULL or closed handle is -1.
/// Threads: any; fails while the handle is at work.
///
/// Returns `ELIZA_OK`, or -1 (handle), `ELIZA_ERR_INVALID_ARG` (no such slot; -1 is none), `ELIZA_ERR_BUSY` or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_pin_slot(
    handle: FfiLlmHandle,
    slot_id: i32,
    pinned: i32,
    out_error: *mut *mut c_char,
) -> i32 {
    let pin = |stream: &Stream| stream.session.pin_slot(slot_id, pinned != 0).map(|()| ELIZA_OK);
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, pin) }.unwrap_or_else(|code| code)
}

/// Starts a generation after a prefill and returns at once; a callback then receives its tokens.
///
/// At most `max_new_tokens` are generated; 0 ends at once, a negative number goes on until the model stops or the
/// context is full. `temperature` 0 or below takes the likeliest token; `top_p` 1 keeps all. A NaN (or JavaScript's
/// NaN) leaves either to the options, the chain, or the model's defaults.
///
/// Null rule: without a callback the host pulls, by `eliza_inference_llm_stream_next` or `..._poll`; a NULL or
/// closed handle is -1. Threads: any. The callback runs on a thread of the library and must stay valid
/// until the terminal event; cancel, close and status may be called inside it.
///
/// Returns 0 when the generation was started; exactly one terminal event follows. Otherwise -1, and no event;
/// `eliza_inference_llm_stream_status` is then `ELIZA_ERR_BUSY` (generating, or not prefilled since the last generate),
/// `ELIZA_ERR_TRIE` (the last set_token_trie was refused), `ELIZA_ERR_INVALID_ARG` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_generate(
    handle: FfiLlmHandle,
    max_new_tokens: i32,
    temperature: f32,
    top_p: f32,
    token_callback: TokenCallback,
) -> i32 {
    let deliver = token_callback.map(|callback| {
        move |event: Event<'_>| {
            // SAFETY: the host keeps the callback valid until the terminal event; the text is in the arena.
            panic::host(|| unsafe { callback(event.token, event.stored.c_string, event.done) })
        }
    });
    // SAFETY: no out_error.
    unsafe { generate(handle, max_new_tokens, temperature, top_p, deliver, std::ptr::null_mut()) }
        .map_or(FAILED, |()| ELIZA_OK)
}

/// As `eliza_inference_llm_stream_generate`, for a callback with its own data and the text's length.
///
/// Ownership: `user_data` stays the host's, is only passed on, and must stay valid until the terminal event.
/// `*out_error` is the host's to free. Null rule: callback NULL means pulling; `user_data` and `out_error` may be
/// NULL; a NULL or closed handle is -1. Threads: as `eliza_inference_llm_stream_generate`.
///
/// Returns `ELIZA_OK` when the generation was started; exactly one terminal event follows. Otherwise the code:
/// -1 (handle), `ELIZA_ERR_BUSY`, `ELIZA_ERR_TRIE`, `ELIZA_ERR_INVALID_ARG` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_generate_ex(
    handle: FfiLlmHandle,
    max_new_tokens: i32,
    temperature: f32,
    top_p: f32,
    token_callback: TokenCallback2,
    user_data: *mut c_void,
    out_error: *mut *mut c_char,
) -> i32 {
    let user_data = HostData(user_data);
    let deliver = token_callback.map(|callback| {
        move |event: Event<'_>| {
            let (text, data) = (event.stored, user_data.get());
            // SAFETY: the host keeps callback and data valid until the terminal event; the text is in the arena.
            panic::host(|| unsafe { callback(event.token, text.exact, text.len, event.done, data) })
        }
    });
    // SAFETY: the host's out_error is null or writable.
    unsafe { generate(handle, max_new_tokens, temperature, top_p, deliver, out_error) }
        .map_or_else(|code| code, |()| ELIZA_OK)
}

/// # Safety
/// `out_error` is null or points to a writable pointer.
unsafe fn generate(
    handle: FfiLlmHandle,
    max_new_tokens: i32,
    temperature: f32,
    top_p: f32,
    deliver: Option<impl FnMut(Event<'_>) + Send + 'static>,
    out_error: *mut *mut c_char,
) -> std::result::Result<(), i32> {
    let given = |value: f32| if value.is_nan() { None } else { Some(value) };
    let start = |stream: &Stream| -> Result<()> {
        let sink = deliver.map_or(Sink::Queue, |deliver| Sink::Callback(Box::new(deliver)));
        stream.session.generate(max_new_tokens, given(temperature), given(top_p), sink)
    };
    // SAFETY: the caller's promise about `out_error`.
    unsafe { on_handle(handle, out_error, start) }
}

/// Asks what runs on the handle to stop, and never waits: a prefill, a generation, and every tokenize and
/// build_token_trie. The generation ends within about a token, and its terminal event still comes. Nothing happens when
/// nothing runs.
///
/// Null rule: a NULL or closed handle is -1. Threads: any, any time, inside the callback too. Returns `ELIZA_OK`, or
/// -1 for a handle that is not open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_cancel(handle: FfiLlmHandle) -> i32 {
    let cancel = |stream: &Stream| {
        stream.session.cancel();
        Ok(ELIZA_OK)
    };
    ask(handle, cancel).unwrap_or(FAILED)
}

/// A host's pointer for a callback on another thread.
#[derive(Clone, Copy)]
struct HostData(*mut c_void);

// SAFETY: the library only passes the pointer on; the header says on which threads the callback will see it.
unsafe impl Send for HostData {}

impl HostData {
    /// The pointer. (A method, so that closures capture the whole wrapper.)
    fn get(self) -> *mut c_void {
        self.0
    }
}
