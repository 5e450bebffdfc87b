//! What Java passes: bytes in direct buffers, numbers in arrays.

use std::ptr::NonNull;

use elizainference::Error;
use jni::Env;
use jni::objects::{JByteBuffer, JPrimitiveArray, TypeArray};

use crate::edge::Failure;

/// Where the memory of a direct buffer begins, and how long it is.
fn memory(env: &Env<'_>, buffer: &JByteBuffer<'_>) -> Result<(*mut u8, usize), Failure> {
    match env.get_direct_buffer_capacity(buffer)? {
        0 => Ok((NonNull::dangling().as_ptr(), 0)),
        len => Ok((env.get_direct_buffer_address(buffer)?, len)),
    }
}

/// The bytes of a direct buffer, all of its capacity.
pub(crate) fn bytes<'a>(env: &Env<'_>, buffer: &'a JByteBuffer<'_>) -> Result<&'a [u8], Failure> {
    let (address, len) = memory(env, buffer)?;
    // SAFETY: the memory is the buffer's, of that length, and stays while `buffer` refers to it. The package's own Java
    // code makes every buffer that comes here, and does not write it during the call.
    Ok(unsafe { std::slice::from_raw_parts(address, len) })
}

/// As [`bytes`], to be written.
pub(crate) fn room<'a>(env: &Env<'_>, buffer: &'a mut JByteBuffer<'_>) -> Result<&'a mut [u8], Failure> {
    let (address, len) = memory(env, buffer)?;
    // SAFETY: as for `bytes`; nor does the Java code read the buffer during the call, or pass it to two calls at once.
    Ok(unsafe { std::slice::from_raw_parts_mut(address, len) })
}

/// The text in a direct buffer.
pub(crate) fn text<'a>(env: &Env<'_>, buffer: &'a JByteBuffer<'_>, name: &str) -> Result<&'a str, Failure> {
    let not_utf8 = |error| Error::InvalidArgument(format!("{name} is not UTF-8: {error}"));
    Ok(std::str::from_utf8(bytes(env, buffer)?).map_err(not_utf8)?)
}

/// As [`text`], for a buffer that may be null.
pub(crate) fn optional_text<'a>(
    env: &Env<'_>,
    buffer: &'a JByteBuffer<'_>,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if buffer.is_null() { Ok(None) } else { text(env, buffer, name).map(Some) }
}

/// Texts one after the other in a direct buffer, with the ends of each.
pub(crate) fn texts<'a>(
    env: &Env<'_>,
    buffer: &'a JByteBuffer<'_>,
    ends: &JPrimitiveArray<'_, i32>,
    name: &str,
) -> Result<Vec<&'a str>, Failure> {
    let all = text(env, buffer, name)?;
    let mut begin = 0;
    let mut texts = Vec::new();
    for end in numbers(env, ends)? {
        let end = end as usize;
        let one = all.get(begin..end);
        texts.push(one.ok_or_else(|| Error::Internal(format!("{name} end at {end} of {}", all.len())))?);
        begin = end;
    }
    Ok(texts)
}

/// The numbers of an array.
pub(crate) fn numbers<T: TypeArray + Default + Clone>(
    env: &Env<'_>,
    array: &JPrimitiveArray<'_, T>,
) -> Result<Vec<T>, Failure> {
    let mut numbers = vec![T::default(); array.len(env)?];
    array.get_region(env, 0, &mut numbers)?;
    Ok(numbers)
}
