//! Borrowing what the host passes: C strings, arrays and sized structures.
//!
//! The rules are the same everywhere. A required pointer that is null is `ELIZA_ERR_INVALID_ARG` naming the argument;
//! an array may be null exactly when its length is 0; a length that no object can have is refused before anything is
//! read; text is UTF-8. Structures begin with `struct_size`, and no byte after `min(struct_size, our size)` is read or
//! written.

use std::ffi::{CStr, c_char};
use std::path::PathBuf;

use crate::{Error, Result};

/// A structure that crosses the boundary by pointer.
///
/// # Safety
/// The type is `repr(C)`, begins with a `u32` that holds its size, and every bit pattern of its fields, all
/// zeroes included, is a valid value.
pub(super) unsafe trait Sized32: Copy {
    /// The structure's name in the header.
    const NAME: &'static str;
}

/// Copies a structure from the host; fields that the host's version does not have are zero.
///
/// # Safety
/// `source` is null or points to as many readable bytes as its first field says.
pub(super) unsafe fn read<T: Sized32>(source: *const T) -> Result<T> {
    // SAFETY: the caller's promise is the one that `host_size` asks for.
    let size = unsafe { host_size(source)? };
    // Every sizeof is a multiple of the alignment. Another size could end inside a pointer.
    if !size.is_multiple_of(align_of::<T>()) {
        return Err(wrong_size::<T>(size));
    }
    // SAFETY: `Sized32` promises that all zeroes are a valid value.
    let mut copy: T = unsafe { std::mem::zeroed() };
    // SAFETY: `size` is at most both structures' size, and `copy` is a local that cannot overlap the source.
    unsafe { std::ptr::copy_nonoverlapping(source.cast::<u8>(), (&raw mut copy).cast::<u8>(), size) };
    Ok(copy)
}

/// Copies a structure to the host, as far as the host's version reaches; its `struct_size` stays as it was.
///
/// # Safety
/// `target` is null or points to as many writable bytes as its first field says.
pub(super) unsafe fn write<T: Sized32>(target: *mut T, value: &T) -> Result<()> {
    const SKIP: usize = size_of::<u32>();
    // SAFETY: the caller's promise is the one that `host_size` asks for.
    let size = unsafe { host_size(target)? };
    let (from, to) = ((&raw const *value).cast::<u8>(), target.cast::<u8>());
    // SAFETY: `size` is between 4 and the size of both structures, which do not overlap: one is ours.
    unsafe { std::ptr::copy_nonoverlapping(from.add(SKIP), to.add(SKIP), size - SKIP) };
    Ok(())
}

fn wrong_size<T: Sized32>(size: usize) -> Error {
    argument(format!("{}.struct_size is {size}; set it to sizeof({})", T::NAME, T::NAME))
}

/// How many bytes of the host's structure may be read or written.
///
/// # Safety
/// `host` is null or points to at least four readable bytes.
unsafe fn host_size<T: Sized32>(host: *const T) -> Result<usize> {
    if host.is_null() {
        return Err(argument(format!("{} is NULL", T::NAME)));
    }
    // SAFETY: the host's structure starts with its size; it need not be aligned.
    let size = unsafe { host.cast::<u32>().read_unaligned() } as usize;
    if size < size_of::<u32>() {
        return Err(wrong_size::<T>(size));
    }
    Ok(size.min(size_of::<T>()))
}

/// A required C string in UTF-8.
///
/// # Safety
/// `text` is null or NUL-terminated, and unchanged for `'a`.
pub(super) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: the caller's promise is the one that `optional_text` asks for.
    unsafe { optional_text(text, what)? }.ok_or_else(|| argument(format!("{what} is NULL")))
}

/// A C string in UTF-8; null is `None`.
///
/// # Safety
/// `text` is null or NUL-terminated, and unchanged for `'a`.
pub(super) unsafe fn optional_text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and the caller promises the terminator.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map(Some).map_err(|error| argument(format!("{what} is not UTF-8: {error}")))
}

/// A file path; null is `None`.
///
/// # Safety
/// As [`path`].
pub(super) unsafe fn optional_path(text: *const c_char, what: &str) -> Result<Option<PathBuf>> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { path(text, what) }).transpose()
}

/// A required file path. On Unix any bytes, elsewhere UTF-8.
///
/// # Safety
/// `path` is null or NUL-terminated, and unchanged during the call.
pub(super) unsafe fn path(path: *const c_char, what: &str) -> Result<PathBuf> {
    if path.is_null() {
        return Err(argument(format!("{what} is NULL")));
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        // SAFETY: not null, and the caller promises the terminator.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        Ok(std::ffi::OsStr::from_bytes(bytes).into())
    }
    #[cfg(not(unix))]
    {
        // SAFETY: the caller's promise is the one that `text` asks for.
        unsafe { text(path, what) }.map(PathBuf::from)
    }
}

/// An array that the library reads.
///
/// # Safety
/// `data` is null or points to `n` readable elements that nobody changes for `'a`.
pub(super) unsafe fn array<'a, T>(data: *const T, n: usize, what: &str) -> Result<&'a [T]> {
    check(data, n, what)?;
    if n == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, aligned and of a possible size, as just checked; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data, n) })
}

/// An array that the library writes. The elements must have been written before: C buffers of integers have.
///
/// # Safety
/// `data` is null or points to `n` writable elements that nobody else uses for `'a`.
pub(super) unsafe fn array_mut<'a, T>(data: *mut T, n: usize, what: &str) -> Result<&'a mut [T]> {
    check(data, n, what)?;
    if n == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, aligned and of a possible size, as just checked; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(data, n) })
}

fn check<T>(data: *const T, n: usize, what: &str) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    if data.is_null() {
        return Err(argument(format!("{what} is NULL, but its length is {n}")));
    }
    if !data.is_aligned() {
        return Err(argument(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    if n > isize::MAX as usize / size_of::<T>() {
        return Err(argument(format!("{what} has the impossible length {n}")));
    }
    Ok(())
}

fn argument(problem: String) -> Error {
    Error::InvalidArgument(problem)
}

/// Stores through an out-pointer of the host, which may be null.
///
/// # Safety
/// `target` is null or points to a writable `T`, aligned or not.
pub(super) unsafe fn store<T>(target: *mut T, value: T) {
    if !target.is_null() {
        // SAFETY: not null; the caller promises that it can be written.
        unsafe { target.write_unaligned(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Sample {
        struct_size: u32,
        a: i32,
        b: f32,
        c: u32,
    }

    // SAFETY: repr(C), the size first, plain numbers throughout.
    unsafe impl Sized32 for Sample {
        const NAME: &'static str = "sample_t";
    }

    #[test]
    fn a_short_structure_is_read_as_far_as_it_goes_and_the_rest_is_zero() {
        let mut host = Sample { struct_size: 8, a: 7, b: 1.5, c: 9 };
        // SAFETY: `host` has all the bytes that its size claims.
        assert_eq!(unsafe { read(&raw const host) }.unwrap(), Sample { struct_size: 8, a: 7, b: 0.0, c: 0 });
        host.struct_size = 4000;
        // SAFETY: no byte after our own size is read, and `host` has those.
        assert_eq!(unsafe { read(&raw const host) }.unwrap(), host);
        host.struct_size = 3;
        let refused = |host: *const Sample| {
            // SAFETY: the pointer is null, or its size says that no more than the size may be read.
            unsafe { read(host) }.unwrap_err().to_string()
        };
        let too_small = "Invalid argument: sample_t.struct_size is 3; set it to sizeof(sample_t)";
        assert_eq!(refused(&raw const host), too_small);
        assert_eq!(refused(std::ptr::null()), "Invalid argument: sample_t is NULL");
    }

    #[derive(Debug, Clone, Copy)]
    #[repr(C)]
    struct WithPointer {
        struct_size: u32,
        pointer: *const c_char,
        after: u64,
    }

    // SAFETY: repr(C), the size first, then a raw pointer and a number.
    unsafe impl Sized32 for WithPointer {
        const NAME: &'static str = "with_pointer_t";
    }

    #[test]
    fn a_size_that_can_end_inside_a_pointer_is_refused() {
        let text = c"text".as_ptr();
        for size in 0..=40 {
            let host = WithPointer { struct_size: size, pointer: text, after: 7 };
            let whole = size >= 8 && (size % 8 == 0 || size > 24);
            // SAFETY: `host` has all the bytes that a size up to its own claims, and no more than its own are read.
            let read = unsafe { read(&raw const host) };
            assert_eq!(read.is_ok(), whole, "{size}");
            if let Ok(read) = read {
                assert!(read.pointer == text || size == 8 && read.pointer.is_null());
            }
        }
    }

    #[test]
    fn a_short_structure_is_written_no_further_than_it_goes() {
        let value = Sample { struct_size: 16, a: 1, b: 2.0, c: 3 };
        let mut host = Sample { struct_size: 12, a: -1, b: -1.0, c: 77 };
        // SAFETY: `host` has all the bytes that its size claims.
        unsafe { write(&raw mut host, &value) }.unwrap();
        assert_eq!(host, Sample { struct_size: 12, a: 1, b: 2.0, c: 77 });
    }

    #[test]
    fn arrays_that_cannot_be_are_refused() {
        let ids = [1, 2, 3];
        let refused = |data: *const i32, n| {
            // SAFETY: every call here is refused, or reads what `ids` has.
            unsafe { array(data, n, "tokens") }.map_err(|error| error.to_string())
        };
        assert_eq!(refused(ids.as_ptr(), 3).unwrap(), &ids);
        assert_eq!(refused(std::ptr::null(), 0).unwrap(), &[] as &[i32]);
        assert!(refused(std::ptr::null(), 1).unwrap_err().contains("tokens is NULL"));
        assert!(refused(ids.as_ptr(), usize::MAX).unwrap_err().contains("impossible length"));
        assert!(refused(ids.as_ptr().cast::<u8>().wrapping_add(1).cast(), 1).unwrap_err().contains("aligned"));
    }

    #[test]
    fn text_must_be_utf8() {
        // SAFETY: C string literals are NUL-terminated.
        unsafe {
            assert_eq!(text(c"héllo".as_ptr(), "t").unwrap(), "héllo");
            assert!(text(c"a\xff".as_ptr(), "t").unwrap_err().to_string().contains("t is not UTF-8"));
            assert!(text(std::ptr::null(), "t").unwrap_err().to_string().contains("t is NULL"));
            assert_eq!(optional_text(std::ptr::null(), "t").unwrap(), None);
        }
    }
}
