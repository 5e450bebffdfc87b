//! The edge between a host and the library: the codes of ABI 15, texts of errors, and what a host passes.

use elizainference::{Error, Result, panic};
use std::ffi::{CStr, CString, c_char, c_int};

/// The call succeeded.
pub const ELIZA_OK: c_int = 0;
/// This library does not do that: speech, vision, a draft model or an architecture that it cannot run.
pub const ELIZA_ERR_NOT_IMPLEMENTED: c_int = -1;
/// An argument is outside its range, or the call comes at the wrong moment; the text says which.
pub const ELIZA_ERR_INVALID_ARG: c_int = -2;
/// The bundle or its model cannot be used.
pub const ELIZA_ERR_BUNDLE_INVALID: c_int = -3;
/// The system refused a file, a device failed, or a fault of the library itself was caught.
pub const ELIZA_ERR_FFI_FAULT: c_int = -4;
/// Memory, or a fixed capacity such as the context, is full.
pub const ELIZA_ERR_OOM: c_int = -5;
/// The host cancelled the work.
pub const ELIZA_ERR_CANCELLED: c_int = -7;

/// The code of an error. ABI 15 has no others, so several kinds share one; the text tells them apart.
fn code(error: &Error) -> c_int {
    match error {
        Error::InFile { source, .. } => code(source),
        Error::Unsupported(_) => ELIZA_ERR_NOT_IMPLEMENTED,
        Error::Gguf { .. } | Error::Model(_) | Error::Vocab(_) => ELIZA_ERR_BUNDLE_INVALID,
        Error::InvalidArgument(_) | Error::Busy(_) | Error::Trie { .. } | Error::SavedSlot { .. } => {
            ELIZA_ERR_INVALID_ARG
        }
        Error::OutOfMemory(_) => ELIZA_ERR_OOM,
        Error::Cancelled => ELIZA_ERR_CANCELLED,
        _ => ELIZA_ERR_FFI_FAULT,
    }
}

/// Runs the body of a call. Where it fails, `out_error` gets the text; else it is left as it is.
///
/// # Safety
/// `out_error` is null or writable.
unsafe fn run<T>(out_error: *mut *mut c_char, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let outcome = panic::catch(body);
    if let Err(error) = &outcome
        && !out_error.is_null()
    {
        // SAFETY: not null; the caller promises that it can be written.
        unsafe { out_error.write_unaligned(give(&error.to_string())) };
    }
    outcome
}

/// A call that returns a number: what its body says, or the code of what went wrong.
///
/// # Safety
/// `out_error` is null or writable.
pub(crate) unsafe fn call(out_error: *mut *mut c_char, body: impl FnOnce() -> Result<c_int>) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { run(out_error, body) }.unwrap_or_else(|error| code(&error))
}

/// A call that returns a handle, or null where it fails.
///
/// # Safety
/// `out_error` is null or writable.
pub(crate) unsafe fn made<T>(out_error: *mut *mut c_char, body: impl FnOnce() -> Result<usize>) -> *mut T {
    // SAFETY: the caller's promise.
    unsafe { run(out_error, body) }.map_or(std::ptr::null_mut(), std::ptr::without_provenance_mut)
}

/// A call that returns nothing.
pub(crate) fn done(body: impl FnOnce()) {
    // SAFETY: there is no out-pointer.
    let _ = unsafe {
        run(std::ptr::null_mut(), || {
            body();
            Ok(())
        })
    };
}

/// The error of what this library does not do.
pub(crate) fn unsupported(what: &str) -> Error {
    Error::Unsupported(format!("{what}: this library runs text models"))
}

pub(crate) fn invalid(problem: impl Into<String>) -> Error {
    Error::InvalidArgument(problem.into())
}

/// Copies a text for the host, which frees it with `eliza_inference_free_string`; a NUL in it becomes U+FFFD. Null
/// where memory is out.
fn give(text: &str) -> *mut c_char {
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    // SAFETY: a terminated string.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Copies tokens for the host, which frees them with `eliza_inference_free_tokens`; never null for none.
pub(crate) fn give_tokens(tokens: &[i32]) -> Result<*mut c_int> {
    // SAFETY: malloc accepts any size.
    let copy = unsafe { libc::malloc(size_of_val(tokens).max(size_of::<c_int>())) }.cast::<c_int>();
    if copy.is_null() {
        return Err(Error::OutOfMemory(format!("{} token ids", tokens.len())));
    }
    // SAFETY: `copy` is fresh memory of at least as many numbers.
    unsafe { copy.copy_from_nonoverlapping(tokens.as_ptr(), tokens.len()) };
    Ok(copy)
}

/// A C string; null or empty is `None`.
///
/// # Safety
/// `text` is null or terminated, and unchanged for `'a`.
pub(crate) unsafe fn optional_text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and the caller promises the terminator.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    let text = text.map_err(|error| invalid(format!("{name} is not UTF-8: {error}")))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// A C string that must be there.
///
/// # Safety
/// As [`optional_text`].
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    unsafe { optional_text(text, name)? }.ok_or_else(|| invalid(format!("{name} is NULL or empty")))
}

/// An array that is read; null exactly where it may be, with no elements.
///
/// # Safety
/// `data` is null or points to `n` readable elements, unchanged for `'a`.
pub(crate) unsafe fn array<'a, T>(data: *const T, n: usize, name: &str) -> Result<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    check_array(data, n, name)?;
    // SAFETY: not null, aligned and of a possible size; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data, n) })
}

/// As [`array`], to be written.
///
/// # Safety
/// As there, and nobody else uses the elements for `'a`.
pub(crate) unsafe fn array_mut<'a, T>(data: *mut T, n: usize, name: &str) -> Result<&'a mut [T]> {
    if n == 0 {
        return Ok(&mut []);
    }
    check_array(data, n, name)?;
    // SAFETY: not null, aligned and of a possible size; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(data, n) })
}

fn check_array<T>(data: *const T, n: usize, name: &str) -> Result<()> {
    match data {
        data if data.is_null() => Err(invalid(format!("{name} is NULL, but its length is {n}"))),
        data if !data.is_aligned() => Err(invalid(format!("{name} is not aligned to {} bytes", align_of::<T>()))),
        _ if n > isize::MAX as usize / size_of::<T>() => Err(invalid(format!("{name} has the impossible length {n}"))),
        _ => Ok(()),
    }
}

/// Writes through an out-pointer that may be null.
///
/// # Safety
/// `target` is null or writable.
pub(crate) unsafe fn store<T>(target: *mut T, value: T) {
    if !target.is_null() {
        // SAFETY: not null; the caller promises that it can be written.
        unsafe { target.write_unaligned(value) };
    }
}

/// Fails for an out-pointer that is null and must not be.
pub(crate) fn required<T>(target: *mut T, name: &str) -> Result<()> {
    match target.is_null() {
        true => Err(invalid(format!("{name} is NULL"))),
        false => Ok(()),
    }
}

/// Writes a text with its terminator, and gives its length without.
pub(crate) fn write_text(text: &[u8], out: &mut [u8]) -> Result<c_int> {
    let (n, room) = (text.len(), out.len());
    let (Some((last, bytes)), Ok(count)) = (out.get_mut(..=n).and_then(<[u8]>::split_last_mut), c_int::try_from(n))
    else {
        return Err(invalid(format!("max_text_bytes is {room}: the text takes {n} bytes and a terminator")));
    };
    bytes.copy_from_slice(text);
    *last = 0;
    Ok(count)
}

/// Frees a text that a call gave to `out_error`.
///
/// Ownership: takes it. Null rule: NULL does nothing. Threads: any. Never fails.
///
/// # Safety
/// NULL, or a text of this library that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_free_string(str: *mut c_char) {
    // SAFETY: null, or from `give`, hence from malloc.
    done(|| unsafe { libc::free(str.cast()) });
}

/// Frees tokens that `eliza_inference_tokenize` gave.
///
/// Ownership: takes them. Null rule: NULL does nothing. Threads: any. Never fails.
///
/// # Safety
/// NULL, or tokens of this library that were not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_free_tokens(tokens: *mut c_int) {
    // SAFETY: null, or from `give_tokens`, hence from malloc.
    done(|| unsafe { libc::free(tokens.cast()) });
}
