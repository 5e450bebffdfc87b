//! Contexts: bundles that a host has opened.

use crate::bundle::Bundle;
use crate::edge::{ELIZA_OK, call, done, invalid, made, text, unsupported};
use crate::engine::Pool;
use crate::later::Later;
use crate::stream::STREAMS;
use crate::table::Table;
use elizainference::Result;
use elizainference::session::Session;
use std::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::Arc;

/// The open contexts.
pub(crate) static CONTEXTS: Table<Context> = Table::new("context");

/// A bundle that is open. The type is only used by pointer, and that pointer is a number.
pub struct EliInferenceContext {
    _opaque: [u8; 0],
}

/// A bundle, and the engines of its text model.
pub(crate) struct Context {
    pub(crate) bundle: Bundle,
    vocabulary: Arc<Later<Arc<Session>>>,
    pub(crate) pool: Pool,
}

impl Context {
    /// The text model without its weights, which is read from the creation on.
    ///
    /// # Errors
    /// That of the file.
    pub(crate) fn vocabulary(&self) -> Result<Arc<Session>> {
        self.vocabulary.wait()
    }
}

/// The version of this interface: "15". Static; never freed. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_abi_version() -> *const c_char {
    c"15".as_ptr()
}

/// Opens the bundle in a folder: `eliza-1.manifest.json`, which may be missing, and the text model in `text/`. Only the
/// folder is read; the model's header is read meanwhile, its weights when a stream or an embedding wants them.
///
/// Ownership: the host ends the context with `eliza_inference_destroy`, and frees `*out_error`. Null rule: `bundle_dir`
/// must not be NULL. Threads: any.
///
/// Returns NULL where the folder, the manifest or the model is not there or cannot be read.
///
/// # Safety
/// `bundle_dir` is NULL or terminated, `out_error` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_create(
    bundle_dir: *const c_char,
    out_error: *mut *mut c_char,
) -> *mut EliInferenceContext {
    let create = || {
        // SAFETY: the host's promise.
        let bundle = Bundle::open(Path::new(unsafe { text(bundle_dir, "bundle_dir")? }))?;
        let files = bundle.clone();
        let vocabulary = Later::start(move || files.vocabulary().map(Arc::new), |_| {});
        Ok(CONTEXTS.insert(Arc::new(Context { bundle, vocabulary, pool: Pool::default() })))
    };
    // SAFETY: the host's promise.
    unsafe { made(out_error, create) }
}

/// Ends a context and all its streams; what runs is cancelled, and not waited for.
///
/// Ownership: takes the context. Null rule: NULL, and a context that has ended, do nothing. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_destroy(ctx: *mut EliInferenceContext) {
    done(|| {
        let Some(context) = CONTEXTS.remove(ctx) else { return };
        let streams = STREAMS.remove_all(|stream| Arc::ptr_eq(stream.context(), &context));
        streams.iter().for_each(|stream| stream.cancel());
    });
}

/// What a region of the interface is here.
enum Region {
    /// The text model, or its draft model: read by those who need it.
    Text,
    /// Speech and sound.
    Lacking,
}

/// # Safety
/// `region_name` is null or terminated.
unsafe fn region(ctx: *mut EliInferenceContext, region_name: *const c_char) -> Result<(Arc<Context>, Region)> {
    let context = CONTEXTS.get(ctx)?;
    // SAFETY: the caller's promise.
    match unsafe { text(region_name, "region_name")? } {
        "text" | "mtp" | "dflash" => Ok((context, Region::Text)),
        "tts" | "asr" | "vad" | "wakeword" => Ok((context, Region::Lacking)),
        other => Err(invalid(format!("region `{}` is not known", other.escape_default()))),
    }
}

/// Makes a region ready. `text`, `mtp` and `dflash` are made ready by those who use them, so nothing happens.
///
/// Ownership: the host frees `*out_error`. Null rule: `region_name` must not be NULL. Threads: any.
///
/// Returns `ELIZA_OK`, `ELIZA_ERR_NOT_IMPLEMENTED` (`tts`, `asr`, `vad`, `wakeword`) or `ELIZA_ERR_INVALID_ARG`.
///
/// # Safety
/// `region_name` is NULL or terminated, `out_error` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_mmap_acquire(
    ctx: *mut EliInferenceContext,
    region_name: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    // SAFETY: the host's promise.
    let acquire = || match unsafe { region(ctx, region_name)? } {
        (_, Region::Text) => Ok(ELIZA_OK),
        (_, Region::Lacking) => Err(unsupported("speech")),
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, acquire) }
}

/// Gives up a region's memory. `text`, `mtp` and `dflash`: the engines that no stream uses are closed, and with the
/// last one the weights go; whoever needs them reads them again. The regions of speech have no memory.
///
/// Ownership: the host frees `*out_error`. Null rule: `region_name` must not be NULL. Threads: any.
///
/// Returns `ELIZA_OK` or `ELIZA_ERR_INVALID_ARG`.
///
/// # Safety
/// `region_name` is NULL or terminated, `out_error` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_mmap_evict(
    ctx: *mut EliInferenceContext,
    region_name: *const c_char,
    out_error: *mut *mut c_char,
) -> c_int {
    let evict = || {
        // SAFETY: the host's promise.
        if let (context, Region::Text) = unsafe { region(ctx, region_name)? } {
            context.pool.clear();
        }
        Ok(ELIZA_OK)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, evict) }
}
