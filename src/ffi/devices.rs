//! The devices of this machine, and the memory that a model would take.

use std::ffi::c_char;

use super::errors::on_process;
use super::open::{OpenOptions, asked};
use super::{args, strings};
use crate::engine;

/// The devices of this machine as a JSON array, best first: `[{"name": "CPU (avx512)", "kind": "cpu", "score": 100,
/// "reason": "...", "shader_compiler": null, "memory_bytes": 16000000000, "available_bytes": 8000000000,
/// "memory_of_host": true}]`. `kind` is "cpu" or "gpu"; a device with score 0 cannot be used, for the reason given;
/// `shader_compiler` is "DXC" or "FXC" with DX12, else null; `memory_bytes` and `available_bytes` are null where the
/// system does not report them; `memory_of_host` is true for a device without memory of its own. The option `device`
/// takes a name, whole or in part.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null rule: `out_error`
/// may be NULL. Threads: any, any time, several at once. The first call of a process may take about 100 ms, because
/// drivers are loaded. Returns NULL on failure, with the code in `eliza_inference_take_last_failure`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_devices_json(out_error: *mut *mut c_char) -> *mut c_char {
    let tell = || strings::give_json(&engine::devices_json()?);
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_process(out_error, tell) }.unwrap_or(std::ptr::null_mut())
}

/// The memory of each device that `eliza_inference_llm_stream_open_ex` with the same options would take, from the
/// file's header alone: nothing is loaded, and `progress` is not called.
///
/// The answer is one JSON object: `{"model": "...", "context": 4096, "kv_type": "f16", "kv_type_v": "f16", "n_batch":
/// 512, "n_layer": 28, "gpu_layers": 0, "draft": null, "devices": [...], "fits": true, "largest_context": 40960,
/// "largest_gpu_layers": null}`. Each device has `name`, `bytes` by component (`embedding`, `layers`, `head`,
/// `kv_cache`, `workspace`, `other`), `total_bytes`, `file_backed_bytes` (pages of the file, which the system may
/// drop), `available_bytes` and `memory_of_host`. The first device is the CPU, where a draft model is counted too;
/// `draft` tells its part: `model`, `total_bytes`, `file_backed_bytes`. `fits` is null where a device's free memory is
/// unknown; `largest_context` is the largest that fits, `largest_gpu_layers` the most layers on the GPU where those in
/// `options` do not fit; null is none, or unknown.
///
/// Ownership: everything in `options` is copied; the host frees the string with `eliza_inference_free_string`, and
/// `*out_error`. Null rule: `options` and its `model_path` must not be NULL; `out_error` may be. Threads: any, any
/// time, several at once. Returns NULL on failure, with the code in `eliza_inference_take_last_failure`: as
/// `eliza_inference_llm_stream_open_ex`, except for errors that only loading finds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_plan_json(
    options: *const OpenOptions,
    out_error: *mut *mut c_char,
) -> *mut c_char {
    let tell = || {
        // SAFETY: the host's options are null or as long as they say, with terminated strings.
        let (path, draft, options) = unsafe {
            let options = args::read(options)?;
            let (path, engine) = asked(&options)?;
            (path, args::optional_path(options.draft, "draft")?, engine)
        };
        strings::give_json(&engine::plan_json(&path, draft.as_deref(), &options)?)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_process(out_error, tell) }.unwrap_or(std::ptr::null_mut())
}
