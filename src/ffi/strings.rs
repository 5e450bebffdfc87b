//! Strings and token arrays that a host frees: they are from the C allocator, and freed by the calls here.

use std::ffi::{c_char, c_int};

use crate::panic;
use crate::{Error, Result, Token};

/// Copies text into a NUL-terminated C string that the host frees; an inner NUL becomes U+FFFD. Null when
/// memory is out.
pub(super) fn give(text: &str) -> *mut c_char {
    const STAND_IN: &[u8] = "\u{fffd}".as_bytes();
    let nuls = text.bytes().filter(|&byte| byte == 0).count();
    let len = text.len() + nuls * (STAND_IN.len() - 1);
    // SAFETY: malloc accepts any size.
    let copy = unsafe { libc::malloc(len + 1) }.cast::<u8>();
    if copy.is_null() {
        return copy.cast();
    }
    let mut end = copy;
    for (i, part) in text.split('\0').enumerate() {
        for bytes in [if i > 0 { STAND_IN } else { &[] }, part.as_bytes()] {
            // SAFETY: `copy` is fresh memory of `len + 1` bytes, the sum of all parts, replacements and a NUL.
            unsafe {
                end.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                end = end.add(bytes.len());
            }
        }
    }
    // SAFETY: as above, the last byte.
    unsafe { end.write(0) };
    copy.cast()
}

/// As [`give`], of an answer that may be long.
pub(super) fn give_text(text: &str) -> Result<*mut c_char> {
    match give(text) {
        copy if copy.is_null() => Err(Error::OutOfMemory(format!("A text of {} bytes", text.len()))),
        copy => Ok(copy),
    }
}

/// JSON as text.
pub(super) fn give_json(value: &serde_json::Value) -> Result<*mut c_char> {
    give_text(&value.to_string())
}

/// Copies token ids into an array that the host frees; never null for an empty one. Null when memory is out.
pub(super) fn give_tokens(tokens: &[Token]) -> *mut c_int {
    // SAFETY: malloc accepts any size.
    let copy = unsafe { libc::malloc(size_of_val(tokens).max(size_of::<Token>())) }.cast::<Token>();
    if !copy.is_null() {
        // SAFETY: `copy` is fresh memory of at least `tokens.len()` elements, aligned for any type.
        unsafe { copy.copy_from_nonoverlapping(tokens.as_ptr(), tokens.len()) };
    }
    copy
}

/// Frees a string that this library returned.
///
/// Ownership: takes it. Null rule: NULL is allowed and does nothing. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_free_string(str: *mut c_char) {
    let _ = panic::catch(|| {
        // SAFETY: null, or a string from `give`, as the header demands, hence from malloc.
        unsafe { libc::free(str.cast()) };
        Ok(())
    });
}

/// Frees a token array that `eliza_inference_llm_stream_tokenize` returned.
///
/// Ownership: takes it. Null rule: NULL is allowed and does nothing. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_free_tokens(tokens: *mut c_int) {
    let _ = panic::catch(|| {
        // SAFETY: null, or an array from `give_tokens`, as the header demands, hence from malloc.
        unsafe { libc::free(tokens.cast()) };
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn strings_are_terminated_once() {
        for (text, expected) in
            [("a\0b", "a\u{fffd}b"), ("", ""), ("\0", "\u{fffd}"), ("\0é\0\0", "\u{fffd}é\u{fffd}\u{fffd}")]
        {
            let given = give(text);
            // SAFETY: `give` returned a terminated string, freed once.
            unsafe {
                assert_eq!(CStr::from_ptr(given).to_str().unwrap(), expected);
                eliza_inference_free_string(given);
            }
        }
        // SAFETY: null is allowed.
        unsafe { eliza_inference_free_string(std::ptr::null_mut()) };
    }

    #[test]
    fn token_arrays_are_never_null() {
        let (none, some) = (give_tokens(&[]), give_tokens(&[5, 6]));
        assert!(!none.is_null());
        // SAFETY: `some` has two elements; both are freed once.
        unsafe {
            assert_eq!(std::slice::from_raw_parts(some, 2), &[5, 6]);
            eliza_inference_free_tokens(none);
            eliza_inference_free_tokens(some);
            eliza_inference_free_tokens(std::ptr::null_mut());
        }
    }
}
