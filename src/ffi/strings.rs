//! What the library gives away: strings and token arrays from the C allocator, and the calls that take them back.

use std::ffi::{c_char, c_int};

use super::panic;
use crate::Token;

/// Copies text into a NUL-terminated C string that the host frees; an inner NUL becomes U+FFFD. Null when
/// memory is out.
pub(super) fn give(text: &str) -> *mut c_char {
    let text = text.replace('\0', "\u{fffd}");
    // SAFETY: malloc accepts any size.
    let copy = unsafe { libc::malloc(text.len() + 1) }.cast::<u8>();
    if !copy.is_null() {
        // SAFETY: `copy` is fresh memory of `len + 1` bytes.
        unsafe {
            copy.copy_from_nonoverlapping(text.as_ptr(), text.len());
            copy.add(text.len()).write(0);
        }
    }
    copy.cast()
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
        let given = give("a\0b");
        // SAFETY: `give` returned a terminated string, freed once below.
        unsafe {
            assert_eq!(CStr::from_ptr(given).to_str().unwrap(), "a\u{fffd}b");
            eliza_inference_free_string(given);
            eliza_inference_free_string(std::ptr::null_mut());
        }
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
