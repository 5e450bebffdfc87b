//! Status codes: their numbers never change, and one table maps the crate's errors to them.
//!
//! Codes 0 to -7 are those that earlier libraries of this name had; ours go on below. A number that falls out
//! of use stays reserved.

use crate::Error;

/// The call succeeded.
pub const ELIZA_OK: i32 = 0;

// -- general --

/// The request is well-formed, but this build or machine does not do it (a GPU where there is none, a model
/// architecture or option not known here). Remedy: read the text; choose another device, file or option.
///
/// The same number is the one failure value of the calls that know no other (open, prefill, generate, cancel, the token
/// trie calls), whatever the reason, and the result of every call on a handle that is NULL, closed or not ours;
/// `eliza_inference_llm_stream_status` then returns the code, and the error text has the reason.
pub const ELIZA_ERR_NOT_IMPLEMENTED: i32 = -1;

/// An argument is outside its range; the text names it. Remedy: correct the call.
pub const ELIZA_ERR_INVALID_ARG: i32 = -2;

/// The file is not valid GGUF, or not a model that can run: the text names the key, tensor and file
/// offset. Remedy: download or convert the model again.
pub const ELIZA_ERR_BUNDLE_INVALID: i32 = -3;

/// A fault of the library itself, caught at its boundary. The process and other handles are not affected; this handle
/// should be closed. Remedy: report the text as a bug.
pub const ELIZA_ERR_FFI_FAULT: i32 = -4;

/// Memory could not be allocated, or a fixed capacity (the context, a slot, the handle table) is full. Remedy: a
/// smaller context, a shorter prompt, a smaller model, fewer handles.
pub const ELIZA_ERR_OOM: i32 = -5;

/// The host's header and the library do not belong together. Not returned by this version: it is for the check
/// that a host makes of `eliza_inference_abi_version`.
pub const ELIZA_ERR_ABI_MISMATCH: i32 = -6;

/// The work was cancelled by the host. Nothing is wrong.
pub const ELIZA_ERR_CANCELLED: i32 = -7;

// -- model file --

/// The operating system refused a file; the text has its path and the system's reason. Remedy: check path
/// and permissions.
pub const ELIZA_ERR_IO: i32 = -10;

// -- generation --

/// The model computed a value that is not a number; the text names row and token. Remedy: the model file or
/// the device driver is broken; try the CPU, then another file.
pub const ELIZA_ERR_NAN: i32 = -20;

// -- constraint --

/// A token-trie payload was refused; the text names the place in it. Remedy: correct the payload. The
/// handle generates again after a successful set or a clear.
pub const ELIZA_ERR_TRIE: i32 = -30;

// -- state --

/// The handle is not in the state that the call needs: it is generating, or was not prefilled since the last
/// generation. Remedy: wait for the terminal event, or cancel; prefill first.
pub const ELIZA_ERR_BUSY: i32 = -40;

/// What the status call reports while a generation runs; never an error.
pub const ELIZA_STATUS_GENERATING: i32 = 2;

// -- device --

/// A GPU or its driver failed: it could not be opened, was lost, or refused a command; the text has the device's name
/// and the driver's reason. Other handles are not affected. Remedy: close the handle and open again, or use the CPU.
pub const ELIZA_ERR_DEVICE: i32 = -50;

// -- saved slot --

/// A file cannot be restored as a saved slot: it is damaged, cut short, of another kind, another model, another type of
/// KV cache, longer than the context, or inside a span of a token trie that is not set. The text names the file, the
/// place and the reason. The checks find damage, not intent: take saved slots from the same sources as models. Remedy:
/// set what it was saved with, or evaluate the prompt again.
pub const ELIZA_ERR_SAVED_SLOT: i32 = -60;

// ------------------------------------------------------------------------------------------------------ server --

/// A server failed, refused, was silent for too long, or answered what was not asked for. The text has its address and
/// what it said. Remedy: as the text says; what was generated until then was delivered.
pub const ELIZA_ERR_REMOTE: i32 = -70;

/// Nothing was generated yet, or the generation still runs.
pub const ELIZA_FINISH_NONE: i32 = 0;
/// The model ended its answer, or a stop string was met.
pub const ELIZA_FINISH_STOP: i32 = 1;
/// `max_new_tokens` were generated.
pub const ELIZA_FINISH_LENGTH: i32 = 2;
/// The host cancelled, or closed the handle.
pub const ELIZA_FINISH_CANCELLED: i32 = 3;
/// The generation failed; the error text says why.
pub const ELIZA_FINISH_ERROR: i32 = 4;
/// The context is full.
pub const ELIZA_FINISH_CONTEXT: i32 = 5;
/// A constrained span ended and the option `on_span_end` says stop.
pub const ELIZA_FINISH_SPAN: i32 = 6;

/// The status code of an error.
pub fn code(error: &Error) -> i32 {
    match error {
        Error::Io { .. } => ELIZA_ERR_IO,
        Error::Gguf { .. } | Error::Model(_) | Error::Vocab(_) => ELIZA_ERR_BUNDLE_INVALID,
        Error::InFile { source, .. } => code(source),
        Error::SavedSlot { .. } => ELIZA_ERR_SAVED_SLOT,
        Error::Trie { .. } => ELIZA_ERR_TRIE,
        Error::InvalidArgument(_) => ELIZA_ERR_INVALID_ARG,
        Error::Unsupported(_) => ELIZA_ERR_NOT_IMPLEMENTED,
        Error::OutOfMemory(_) => ELIZA_ERR_OOM,
        Error::Busy(_) => ELIZA_ERR_BUSY,
        Error::Cancelled => ELIZA_ERR_CANCELLED,
        Error::NanLogits { .. } => ELIZA_ERR_NAN,
        Error::Device(_) => ELIZA_ERR_DEVICE,
        Error::Remote { .. } => ELIZA_ERR_REMOTE,
        Error::Internal(_) => ELIZA_ERR_FFI_FAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts compile these numbers in: this list may only grow.
    #[test]
    fn numbers_are_fixed() {
        assert_eq!(
            [ELIZA_OK, ELIZA_ERR_NOT_IMPLEMENTED, ELIZA_ERR_INVALID_ARG, ELIZA_ERR_BUNDLE_INVALID],
            [0, -1, -2, -3]
        );
        assert_eq!([ELIZA_ERR_FFI_FAULT, ELIZA_ERR_OOM, ELIZA_ERR_ABI_MISMATCH, ELIZA_ERR_CANCELLED], [-4, -5, -6, -7]);
        assert_eq!([ELIZA_ERR_IO, ELIZA_ERR_NAN, ELIZA_ERR_TRIE, ELIZA_ERR_BUSY], [-10, -20, -30, -40]);
        assert_eq!([ELIZA_ERR_DEVICE, ELIZA_ERR_SAVED_SLOT, ELIZA_ERR_REMOTE], [-50, -60, -70]);
        let finish = [
            ELIZA_FINISH_NONE,
            ELIZA_FINISH_STOP,
            ELIZA_FINISH_LENGTH,
            ELIZA_FINISH_CANCELLED,
            ELIZA_FINISH_ERROR,
            ELIZA_FINISH_CONTEXT,
            ELIZA_FINISH_SPAN,
        ];
        assert_eq!(finish, [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn every_error_has_its_code() {
        let cases = [
            (Error::Io { path: "m.gguf".into(), message: "gone".into() }, -10),
            (Error::Gguf { what: "magic".into(), offset: 0, problem: "wrong".into() }, -3),
            (Error::Model("no head".into()), -3),
            (Error::Vocab("no tokens".into()), -3),
            (Error::InFile { path: "m.gguf".into(), source: Box::new(Error::Model("no head".into())) }, -3),
            (Error::InFile { path: "m.gguf".into(), source: Box::new(Error::Unsupported("experts".into())) }, -1),
            (Error::Trie { place: "descriptors".into(), problem: "missing".into() }, -30),
            (Error::SavedSlot { path: "s".into(), place: "magic".into(), problem: "wrong".into() }, -60),
            (Error::InvalidArgument("n".into()), -2),
            (Error::Unsupported("gpu".into()), -1),
            (Error::OutOfMemory("context".into()), -5),
            (Error::Busy("generating".into()), -40),
            (Error::Cancelled, -7),
            (Error::NanLogits { row: 0, token: 1 }, -20),
            (Error::Device("lost".into()), -50),
            (Error::Remote { server: "vllm:http://host".into(), problem: "silent".into() }, -70),
            (Error::Internal("bug".into()), -4),
        ];
        for (error, expected) in cases {
            assert_eq!(code(&error), expected, "{error}");
        }
    }
}
