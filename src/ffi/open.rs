//! Opening and closing a handle.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::args;
use super::errors::{on_handle, on_process, release};
use super::handle::{self, FfiLlmHandle};
use super::state::Stream;
use crate::panic;
use crate::session::arguments::{count, gpu_layers, lines, remote};
use crate::session::{self, Arena, EngineOptions, KvType, Session, StoreOptions, TensorDevice};
use crate::{Error, Result};

/// Receives the fraction of a model that is loaded, 0 to 1, on the thread that opens it. Returning anything but 0
/// cancels: the open then fails with "Cancelled". It is also asked while memory is planned (with 0), while
/// another open of the same file is waited for (how far that one is), and while the context is made ready (with 1).
///
/// No lock is held meanwhile: it may open other files, prefill, generate, cancel and close other handles, and take its
/// time. But it cannot open the file whose load it is called for, which is `ELIZA_ERR_BUSY`, and must not wait for
/// another thread that opens that file, because that thread waits for this load.
pub type ProgressCallback = Option<unsafe extern "C" fn(progress: f32, user_data: *mut c_void) -> i32>;

/// `flags`: the vocabulary alone is opened, without weights. Tokenize, detokenize, build_token_trie and the questions
/// about model, metadata and tokens work; every call that needs weights or a context fails with
/// `ELIZA_ERR_NOT_IMPLEMENTED`. The other options but `model_path` have no effect.
pub const ELIZA_OPEN_VOCAB_ONLY: u32 = 1;

/// `flags`: slots can have handles of their own, made by `eliza_inference_llm_stream_open_slot`, which generate at the
/// same time and share the context of the handle. Without it the slots of a handle take turns.
pub const ELIZA_OPEN_CONCURRENT_SLOTS: u32 = 2;

/// How to open a model. Zeroes are defaults for every field but `struct_size` and `model_path`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpenOptions {
    /// sizeof(eliza_llm_open_options_t), set by the caller.
    pub struct_size: u32,
    /// Context in tokens, shared by the slots; 0 chooses min(4096, what the model was trained with). Otherwise
    /// rounded up to a power of two and capped at what the model was trained with.
    pub context_size_tokens: i32,
    /// Number of threads that compute; 0 chooses `eliza_inference_default_thread_count`.
    pub num_threads: i32,
    /// Layers on the GPU, counted from the end: 0 none, -1 all.
    pub gpu_layers: i32,
    /// The GGUF file: UTF-8, on Unix any bytes. Or the address of a server that has the model, "KIND:URL#MODEL", such
    /// as "vllm:https://host:8000/v1#name"; kinds are "vllm", "sglang", "llama-server" and "openai", and without a name
    /// the server's first model answers. Of the other options only `slots` and those of servers have an effect then,
    /// and `context_size_tokens` where the server does not say its context. Required.
    pub model_path: *const c_char,
    /// Name of the device, or a part of it; or of several GPUs, separated by semicolons, which divide the layers, see
    /// `tensor_split`. NULL is the best device.
    pub device: *const c_char,
    /// Format of the key/value memory: "f16", "f32" or "q8_0"; NULL is "f16". Of the values `kv_type_v` may say
    /// otherwise.
    pub kv_type: *const c_char,
    /// Called with the progress of loading; may be NULL.
    pub progress: ProgressCallback,
    /// Passed to `progress`.
    pub progress_user_data: *mut c_void,
    /// How many conversations the context is shared by, 1 to 16; 0 chooses 16.
    pub slots: u32,
    /// 0, or `ELIZA_OPEN_VOCAB_ONLY` (1) or `ELIZA_OPEN_CONCURRENT_SLOTS` (2).
    pub flags: u32,
    /// Format of the values in the key/value memory, where it is not that of the keys; NULL is `kv_type`.
    pub kv_type_v: *const c_char,
    /// The most tokens of a prompt that are evaluated in one pass, 1 to 512; 0 is 512. Fewer take less memory, and more
    /// passes.
    pub n_batch: u32,
    /// How many earlier recurrent states, and earlier windows of sliding layers, are kept, after which a prompt can go
    /// on, 1 to 256; 0 keeps as many as fit into a share of the cache. Models with neither need none.
    pub snapshots: u32,
    /// Tensors that are placed whatever their layer: rules `PATTERN=DEVICE`, separated by semicolons, or NULL. The
    /// pattern is a regular expression that has to match some part of a tensor's name, the device "cpu" or "gpu"; the
    /// first rule that matches counts. "exps=cpu" keeps experts on the CPU.
    pub tensor_devices: *const c_char,
    /// The folder in which `eliza_inference_llm_stream_persist` keeps conversations, which is created where it is not
    /// there, or NULL. Several handles and processes may have the same.
    pub store_directory: *const c_char,
    /// The most bytes that the conversations in it take; 0: no limit.
    pub store_bytes: u64,
    /// How many handles share an engine, 1 to 16; 0 is 1. Handles that are opened with the same file and the same
    /// options join the engine of the first: they generate at the same time, and every step reads the weights once for
    /// all of them, which changes no token of anybody's. Each has a context of its own and `slots` slots, 16 in all;
    /// the memory for all of them is taken by the first. Where an engine has no place left, another one is made.
    pub parallel: u32,
    /// While prompts of others are read, a handle's time for a token grows to at most this many percent of the time
    /// without them, as well as the passes so far tell; 0 is 250, 100 lets prompts wait for the tokens of all others.
    pub max_slowdown_percent: u32,
    /// The GGUF file of a draft model, a small one, or NULL: what it guesses is evaluated in the pass of the token
    /// before, where that has paid. It changes no token. With another vocabulary it guesses by text, which pays less.
    /// The model's own file, where that has a block that predicts further tokens (NextN, MTP): the block guesses.
    /// It works on the CPU, takes memory for weights and a context of its own, and goes with no shared engine.
    pub draft: *const c_char,
    /// For a server: the GGUF file with the vocabulary of its model, which needs no tensors; or NULL, then the server
    /// tokenizes, and a token of the handle is a byte of its texts.
    pub vocab: *const c_char,
    /// For a server: the key that is sent to it, over https or to this machine alone; NULL is that of the environment
    /// variable `ELIZA_REMOTE_KEY`. It is in no log, error or description.
    pub api_key: *const c_char,
    /// For a server: a PEM file with the only certificates that are trusted; NULL trusts those of the platform.
    pub certificates: *const c_char,
    /// For a server: how long it may be silent, in milliseconds; 0 is 60000.
    pub server_timeout_ms: u32,
    /// 0.
    pub reserved: u32,
    /// Models in the place of the first, files or addresses, a line each, or NULL. Every prompt is given to the first
    /// model that can be opened, has room for it and does not fail before its first token; usage says which. All have
    /// the vocabulary of the first that was opened; those after it are opened when they are needed.
    pub fallback: *const c_char,
    /// How large a part of the weights that are on GPUs each of several has: numbers, separated by commas, relative to
    /// each other, such as "3,1", one for each that `device` names; where that names one or is NULL, the best so many
    /// GPUs are taken. NULL divides by their free memory. Every GPU has layers that follow each other, and the last one
    /// the output head.
    pub tensor_split: *const c_char,
}

// SAFETY: repr(C), the size first, then numbers, raw pointers and an optional function: all may be zero.
unsafe impl args::Sized32 for OpenOptions {
    const NAME: &'static str = "eliza_llm_open_options_t";
}

/// Opens a model with its own context: `eliza_inference_llm_stream_open_ex` for hosts that pass no structure.
///
/// `model_path` is a GGUF file. `context_size_tokens` 0 chooses min(4096, what the model was trained with), otherwise
/// it is rounded up to a power of two and capped at what the model was trained with. `num_threads` 0 chooses
/// `eliza_inference_default_thread_count`. `gpu_layers` 0 is CPU only, -1 all layers on the GPU. Handles on one file
/// share its weights. Blocks while the file is loaded; other handles work meanwhile.
///
/// The file stays open until its last handle is closed, and must not be written to or deleted until then: a model whose
/// output matrix is not its embedding looks up a row of it for every token, and saving a slot looks at pages of all
/// weights. Such a call on a file that was cut short or changed returns `ELIZA_ERR_IO` with "the file was changed after
/// it was opened", never anything worse; changed is what has another size or time of modification. A file that was
/// deleted or replaced by another gives the same, with "was deleted or replaced"; Windows does not tell, and the file
/// is read on. To replace a model under open handles keep a second name of the old file (a hard link) until they are
/// closed.
///
/// Ownership: the path is copied; the host ends the handle with `eliza_inference_llm_stream_close`. Null rule: a NULL
/// path is an error. Threads: any, several at once.
///
/// Returns NULL on failure, with the reason in `eliza_inference_take_last_error`: a file that cannot be read, is not a
/// model or of an unknown architecture, too little memory for the context, a GPU asked for where none works.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_open(
    model_path: *const c_char,
    context_size_tokens: i32,
    num_threads: i32,
    gpu_layers: i32,
) -> FfiLlmHandle {
    let options = OpenOptions {
        struct_size: size_of::<OpenOptions>() as u32,
        context_size_tokens,
        num_threads,
        gpu_layers,
        model_path,
        device: std::ptr::null(),
        kv_type: std::ptr::null(),
        progress: None,
        progress_user_data: std::ptr::null_mut(),
        slots: 0,
        flags: 0,
        kv_type_v: std::ptr::null(),
        n_batch: 0,
        snapshots: 0,
        tensor_devices: std::ptr::null(),
        store_directory: std::ptr::null(),
        store_bytes: 0,
        parallel: 0,
        max_slowdown_percent: 0,
        draft: std::ptr::null(),
        vocab: std::ptr::null(),
        api_key: std::ptr::null(),
        certificates: std::ptr::null(),
        server_timeout_ms: 0,
        reserved: 0,
        fallback: std::ptr::null(),
        tensor_split: std::ptr::null(),
    };
    // SAFETY: the options are ours, and the host's path is null or terminated; no out_error.
    unsafe { on_process(std::ptr::null_mut(), || open(&options)) }.unwrap_or(std::ptr::null_mut())
}

/// Opens a model with its own context. Blocks while the file is loaded.
///
/// Ownership: everything in `options` is copied; the host ends the handle with `eliza_inference_llm_stream_close`, and
/// frees `*out_error`. Null rule: `options` and its `model_path` must not be NULL; `out_error` may be. Threads: any,
/// several at once; `progress` runs on the calling thread.
///
/// Returns NULL on failure, with the reason in `*out_error` and in `eliza_inference_take_last_error`: as
/// `eliza_inference_llm_stream_open`, or an option out of range, or a cancelled load.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_open_ex(
    options: *const OpenOptions,
    out_error: *mut *mut c_char,
) -> FfiLlmHandle {
    // SAFETY: the host's options are null or as long as they say, with terminated strings; out_error is null or
    // writable.
    unsafe { on_process(out_error, || open(&args::read(options)?)) }.unwrap_or(std::ptr::null_mut())
}

/// Opens a handle of one slot of another handle: a stream with options, trie or grammar, status, usage and cancel of
/// its own, which generates at the same time as the handle itself and those of its other slots. Every step reads the
/// weights once for all of them, which changes no token of anybody's. The handle must have been opened with
/// `ELIZA_OPEN_CONCURRENT_SLOTS`.
///
/// `slot_id` -1 takes a slot that has no handle, an empty one where there is one. The new handle has this slot alone,
/// with the tokens in it, whether a call names it or -1; the first has it again once the new one is closed, and keeps
/// one slot at least. The sampling options are those that the handle has now. All share its context: where that is
/// full, a slot is emptied whose handle has no prompt and generates nothing.
///
/// Ownership: the host ends the new handle with `eliza_inference_llm_stream_close`, before or after the first one, and
/// frees `*out_error`. Null rule: `out_error` may be NULL; a NULL or closed handle gives NULL. Threads: any; fails
/// while the handle is at work.
///
/// Returns NULL on failure; `eliza_inference_llm_stream_status` is then `ELIZA_ERR_NOT_IMPLEMENTED` (opened without the
/// flag), `ELIZA_ERR_INVALID_ARG` (no such slot, one that has a handle, the last one), `ELIZA_ERR_BUSY` (at work, or
/// the slot has the prompt for the next generate), `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_open_slot(
    handle: FfiLlmHandle,
    slot_id: i32,
    out_error: *mut *mut c_char,
) -> FfiLlmHandle {
    let open = |stream: &Stream| handle::insert(Stream::new(stream.session.open_slot(slot_id)?));
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, open) }.unwrap_or(std::ptr::null_mut())
}

/// Ends a handle. A running generation is cancelled and its terminal event still comes; nothing is waited for
/// while one runs, and memory is freed after it. Texts stay readable until 16 further handles were closed.
///
/// Ownership: takes the handle; it is stale from now on, and closing it again does nothing. Null rule: NULL
/// does nothing. Threads: any, any time, inside the callback too; a call that blocks on another thread returns soon
/// with an error. Never fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_close(handle: FfiLlmHandle) {
    let Some(stream) = handle::remove(handle) else { return };
    // A panic here is the session's; no handle is left that could report it.
    let _ = panic::catch(|| {
        stream.session.close();
        quarantine(stream.session.arena());
        Ok(())
    });
    release(stream);
}

/// The host's pointer for its progress callback.
#[derive(Clone, Copy)]
struct HostData(*mut c_void);

// SAFETY: the pointer is only handed back, on the thread that gave it.
unsafe impl Send for HostData {}

impl HostData {
    fn get(self) -> *mut c_void {
        self.0
    }
}

/// # Safety
/// The strings of `options` are null or NUL-terminated.
unsafe fn open(options: &OpenOptions) -> Result<FfiLlmHandle> {
    // SAFETY: the caller's promise.
    let (path, engine, directory, draft, remote, fallback) = unsafe {
        let (path, engine) = asked(options)?;
        let remote = remote(
            args::optional_path(options.vocab, "vocab")?,
            args::optional_text(options.api_key, "api_key")?,
            args::optional_path(options.certificates, "certificates")?,
            options.server_timeout_ms,
        );
        let fallback = lines(args::optional_text(options.fallback, "fallback")?);
        let directory = args::optional_path(options.store_directory, "store_directory")?;
        (path, engine, directory, args::optional_path(options.draft, "draft")?, remote, fallback)
    };
    let store = directory.map(|directory| StoreOptions { directory, max_bytes: options.store_bytes });
    #[cfg(windows)]
    super::pin::stay_loaded()?;
    let (progress, user_data) = (options.progress, HostData(options.progress_user_data));
    let progress = progress.map(|progress| {
        // SAFETY: the host's callback and data are valid during the open, which calls it on this very thread.
        let go_on = move |done: f32| panic::host(|| unsafe { progress(done, user_data.get()) }) == 0;
        Box::new(go_on) as Box<dyn FnMut(f32) -> bool + Send>
    });
    let vocab_only = options.flags & ELIZA_OPEN_VOCAB_ONLY != 0;
    let options = session::OpenOptions { path, engine, draft, vocab_only, store, remote, fallback, progress };
    handle::insert(Stream::new(Session::open(options)?))
}

/// The model, and how to run it.
///
/// # Safety
/// The strings of `options` are null or NUL-terminated.
pub(super) unsafe fn asked(options: &OpenOptions) -> Result<(PathBuf, EngineOptions)> {
    // SAFETY: the caller's promise.
    let (path, device, kv_type, kv_type_v, tensor_devices, tensor_split) = unsafe {
        (
            args::path(options.model_path, "model_path")?,
            args::optional_text(options.device, "device")?,
            args::optional_text(options.kv_type, "kv_type")?,
            args::optional_text(options.kv_type_v, "kv_type_v")?,
            args::optional_text(options.tensor_devices, "tensor_devices")?,
            args::optional_text(options.tensor_split, "tensor_split")?,
        )
    };
    if options.flags & !(ELIZA_OPEN_VOCAB_ONLY | ELIZA_OPEN_CONCURRENT_SLOTS) != 0 {
        return Err(Error::InvalidArgument(format!("flags is {:#x}, must be 0 to 3", options.flags)));
    }
    let engine = EngineOptions {
        context: count(options.context_size_tokens, "context_size_tokens")?,
        threads: count(options.num_threads, "num_threads")?,
        gpu_layers: gpu_layers(options.gpu_layers, "gpu_layers")?,
        device: device.map(str::to_owned),
        tensor_split: tensor_split.unwrap_or_default().parse()?,
        tensor_devices: TensorDevice::list(tensor_devices.unwrap_or_default())?,
        kv_type: kv_type.map_or(Ok(KvType::default()), str::parse)?,
        kv_type_v: kv_type_v.map(str::parse).transpose()?,
        slots: options.slots,
        parallel: options.parallel,
        concurrent_slots: options.flags & ELIZA_OPEN_CONCURRENT_SLOTS != 0,
        max_slowdown_percent: options.max_slowdown_percent,
        n_batch: options.n_batch,
        snapshots: options.snapshots,
    };
    Ok((path, engine))
}

/// Keeps the texts of the last few closed handles readable, for hosts whose callbacks run late.
fn quarantine(arena: Arc<Arena>) {
    const KEPT: usize = 16;
    static ARENAS: Mutex<VecDeque<Arc<Arena>>> = Mutex::new(VecDeque::new());
    let evicted = {
        let mut arenas = ARENAS.lock();
        arenas.push_back(arena);
        if arenas.len() > KEPT { arenas.pop_front() } else { None }
    };
    drop(evicted);
}
