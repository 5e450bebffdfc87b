//! Slots saved to files, and restored.

use std::ffi::{c_char, c_int};

use super::args;
use super::errors::on_handle;
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::ELIZA_OK;
use crate::{Error, Result};

/// Saves a slot to a file, and blocks until that is done: its tokens, its part of the KV cache, and where its last
/// generation stopped, the state of a token trie included. The handle is unchanged.
///
/// `slot_id` -1 is the slot of the last prefill or restore; of any other slot only tokens and cache are saved. An
/// existing file is replaced as a whole; after a failure it is unchanged. It contains the prompt, and is readable by
/// its owner alone where the system has file owners. Chain, options and the trie itself are not in it.
///
/// Ownership: the path is copied; the host frees `*out_error`. Null rule: `path` must not be NULL, `out_error` may be;
/// a NULL or closed handle is -1. Threads: any; fails while the handle is at work, and inside the callback.
/// `eliza_inference_llm_stream_cancel` from another thread ends it early.
///
/// Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG` (no such slot, an empty one, a path without a file's name),
/// `ELIZA_ERR_IO`, `ELIZA_ERR_BUSY`, `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_DEVICE` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_save_slot(
    handle: FfiLlmHandle,
    slot_id: i32,
    path: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    let save = |stream: &Stream| -> Result<c_int> {
        // SAFETY: the header asks for null or a terminated string.
        let path = unsafe { args::path(path, "path")? };
        stream.session.save_slot(slot_id, &path).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, save) }.unwrap_or_else(|code| code)
}

/// Restores what `eliza_inference_llm_stream_save_slot` wrote into a slot, whose content it replaces, and blocks until
/// that is done. The file may come from another process, machine, device or placement of layers; model and type of the
/// KV cache must be the same. Trust it as you trust the model file: a checksum finds damage, but the author of a file
/// determines what the stream has read, and its state in a constraint.
///
/// A generate may follow at once, without a prefill, and goes on where the saved stream stopped, inside a span too. For
/// that the same token trie must be set in the same mode before; for a stream that was saved outside a constraint the
/// trie of the handle is armed, as by a prefill. A prefill reuses what was restored as far as the prompts agree.
/// `slot_id` -1 takes a fresh slot, as in a prefill. The texts of the last generation become invalid.
///
/// Ownership: the path is copied; the host frees `*out_error`. Null rule: `path` must not be NULL, `out_error` may be;
/// a NULL or closed handle is -1. Threads: any; fails while the handle is at work, and inside the callback.
/// `eliza_inference_llm_stream_cancel` from another thread ends it early.
///
/// Returns how many tokens the stream has, those included that were emitted and not evaluated yet; -1 (handle),
/// `ELIZA_ERR_SAVED_SLOT` (damaged, of another model or cache type, longer than the context, inside a constraint by
/// another trie; the text names the place), `ELIZA_ERR_IO`, `ELIZA_ERR_INVALID_ARG` or `ELIZA_ERR_BUSY`, and nothing
/// has changed; `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM`, `ELIZA_ERR_DEVICE` or `ELIZA_ERR_FFI_FAULT`, and the slot may
/// be empty: it needs a new prefill or restore.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_restore_slot(
    handle: FfiLlmHandle,
    slot_id: i32,
    path: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    let restore = |stream: &Stream| {
        // SAFETY: the header asks for null or a terminated string.
        let path = unsafe { args::path(path, "path")? };
        let tokens = stream.session.restore_slot(slot_id, &path)?;
        c_int::try_from(tokens).map_err(|_| Error::Internal(format!("{tokens} tokens restored")))
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, restore) }.unwrap_or_else(|code| code)
}

/// Keeps a slot in the handle's folder of conversations (`store_directory` of the options of open), and blocks until
/// that is done: as `eliza_inference_llm_stream_save_slot`, in place of what is kept under that key. Where the folder
/// is limited (`store_bytes`), the conversations that were used the longest time ago are removed for it.
///
/// `key` is the host's name for the conversation, 1 to 4096 bytes of UTF-8. A process that is killed meanwhile, and a
/// full disk, leave what was kept before.
///
/// Ownership: the key is copied; the host frees `*out_error`. Null rule: `key` must not be NULL, `out_error` may be; a
/// NULL or closed handle is -1. Threads: as `eliza_inference_llm_stream_save_slot`.
///
/// Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG` (no folder, a bad key, no such slot, an empty one),
/// `ELIZA_ERR_IO` (also for a conversation larger than the limit), `ELIZA_ERR_BUSY`, `ELIZA_ERR_CANCELLED`,
/// `ELIZA_ERR_DEVICE` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_persist(
    handle: FfiLlmHandle,
    slot_id: i32,
    key: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    let persist = |stream: &Stream| {
        // SAFETY: the header asks for null or a terminated string.
        let key = unsafe { args::text(key, "key")? };
        stream.session.persist(key, slot_id).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, persist) }.unwrap_or_else(|code| code)
}

/// Restores the conversation that `eliza_inference_llm_stream_persist` kept under a key, of this process or an earlier
/// one, as `eliza_inference_llm_stream_restore_slot` does: a generate may follow at once, and a prefill reuses it.
///
/// Ownership, null rule and threads are those of `eliza_inference_llm_stream_persist`.
///
/// Returns how many tokens the stream has; 0, and nothing has changed, where nothing is kept under that key; else as
/// `eliza_inference_llm_stream_restore_slot`, with `ELIZA_ERR_INVALID_ARG` also without a folder and for a bad key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_resume(
    handle: FfiLlmHandle,
    slot_id: i32,
    key: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    let resume = |stream: &Stream| {
        // SAFETY: the header asks for null or a terminated string.
        let key = unsafe { args::text(key, "key")? };
        let tokens = stream.session.resume(key, slot_id)?;
        c_int::try_from(tokens).map_err(|_| Error::Internal(format!("{tokens} tokens restored")))
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, resume) }.unwrap_or_else(|code| code)
}

/// Removes the conversation that is kept under a key.
///
/// Ownership and null rule are those of `eliza_inference_llm_stream_persist`. Threads: any, any time, inside the
/// callback too.
///
/// Returns 1 where there was one, 0 where there was none, -1 (handle), `ELIZA_ERR_INVALID_ARG` (no folder, a bad key),
/// `ELIZA_ERR_IO` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_forget(
    handle: FfiLlmHandle,
    key: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    let forget = |stream: &Stream| {
        // SAFETY: the header asks for null or a terminated string.
        let key = unsafe { args::text(key, "key")? };
        stream.session.forget(key).map(c_int::from)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, forget) }.unwrap_or_else(|code| code)
}
