//! Native methods of `ai.eliza.inference.Testing`, a class of the tests alone: failures of every kind, and a session
//! without a model, pulled here for comparison with what Java pulls.

use std::ffi::CString;
use std::path::Path;
use std::ptr::null_mut;
use std::time::Instant;

use elizainference::session::Session;
use elizainference::{Error, ffi};
use jni::EnvUnowned;
use jni::objects::{JByteArray, JByteBuffer, JClass};
use jni::sys::{jboolean, jint, jlong};

use crate::arguments::{bytes, text};
use crate::edge::{Failure, native};
use crate::table;

/// Fails with the error of this code, or does nothing for a code that no error has.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Testing_fail<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    code: jint,
    message: JByteBuffer<'local>,
) {
    native(env, |env| {
        let found = ffi::error_of(code, text(env, &message, "message")?);
        found.map_or(Ok(()), |error| Err(Failure::Library(error)))
    })
}

#[unsafe(no_mangle)]
#[allow(clippy::panic)] // that is its purpose
extern "system" fn Java_ai_eliza_inference_Testing_panic<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    message: JByteBuffer<'local>,
) {
    native(env, |env| panic!("{}", text(env, &message, "message")?))
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Testing_echo<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    buffer: JByteBuffer<'local>,
) -> JByteArray<'local> {
    native(env, |env| Ok(env.byte_array_from_slice(bytes(env, &buffer)?)?))
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Testing_openNoop<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    path: JByteBuffer<'local>,
) -> jlong {
    native(env, |env| Ok(table::insert(Session::open_noop(Path::new(text(env, &path, "path")?))?)))
}

/// Nanoseconds that it takes to pull `n` tokens through the C interface, one a call, from a session without a model;
/// with `ready`, once all of them wait.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Testing_pullInC<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    path: JByteBuffer<'local>,
    n: jint,
    ready: jboolean,
) -> jlong {
    native(env, |env| {
        let failed = |what: &str| Error::Internal(format!("{what} failed"));
        let path =
            CString::new(text(env, &path, "path")?).map_err(|error| Error::InvalidArgument(error.to_string()))?;
        // SAFETY: the path is terminated, the buffers have their lengths, and every other pointer may be null.
        let spent = unsafe {
            let handle = ffi::eliza_testing_open_noop(path.as_ptr(), null_mut());
            if ffi::eliza_inference_llm_stream_prefill(handle, [1].as_ptr(), 1, -1) != 1 {
                return Err(failed("prefill").into());
            }
            let begin = Instant::now();
            if ffi::eliza_inference_llm_stream_generate(handle, n, 0.0, 1.0, None) != 0 {
                return Err(failed("generate").into());
            }
            while ready && ffi::eliza_inference_llm_stream_status(handle) == ffi::ELIZA_STATUS_GENERATING {
                std::thread::yield_now();
            }
            let begin = if ready { Instant::now() } else { begin };
            let (mut tokens, mut text) = ([0; 1], [0; 256]);
            loop {
                let step = ffi::eliza_inference_llm_stream_next(
                    handle,
                    tokens.as_mut_ptr(),
                    tokens.len(),
                    null_mut(),
                    text.as_mut_ptr(),
                    text.len(),
                    null_mut(),
                    null_mut(),
                    null_mut(),
                );
                match step {
                    ffi::ELIZA_STREAM_MORE => {}
                    ffi::ELIZA_STREAM_FINAL => break,
                    _ => return Err(failed("next").into()),
                }
            }
            let spent = begin.elapsed();
            ffi::eliza_inference_llm_stream_close(handle);
            spent
        };
        Ok(spent.as_nanos() as jlong)
    })
}
