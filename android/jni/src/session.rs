//! One stream: open, prefill, generate, pull, tokens, usage.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use elizainference::session::arguments::{count, lines, remote};
use elizainference::session::{FinishReason, OpenOptions, Session, Sink, StoreOptions};
use elizainference::{Error, engine, ffi};
use jni::objects::{JByteArray, JByteBuffer, JClass, JIntArray, JLongArray, JObject, JString, JValue};
use jni::sys::{jboolean, jfloat, jint, jlong};
use jni::{Env, EnvUnowned, jni_sig, jni_str};

use crate::arguments::{bytes, numbers, optional_text, room, text};
use crate::edge::{Failure, native};
use crate::options::engine_options;
use crate::table;

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_abiVersion<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
) -> JString<'local> {
    native(env, |env| {
        // SAFETY: the version is a static string.
        let version = unsafe { std::ffi::CStr::from_ptr(ffi::eliza_inference_abi_version()) };
        Ok(env.new_string(version.to_string_lossy())?)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_defaultThreadCount<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
) -> jint {
    native(env, |_| Ok(engine::default_thread_count() as jint))
}

/// Opens a model and gives the session's number.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // the Java method's own list
extern "system" fn Java_ai_eliza_inference_Native_open<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    path: JByteBuffer<'local>,
    whole: JIntArray<'local>,
    device: JByteBuffer<'local>,
    tensor_split: JByteBuffer<'local>,
    tensor_devices: JByteBuffer<'local>,
    kv_type: JByteBuffer<'local>,
    kv_type_v: JByteBuffer<'local>,
    draft: JByteBuffer<'local>,
    store_directory: JByteBuffer<'local>,
    store_bytes: jlong,
    vocab: JByteBuffer<'local>,
    api_key: JByteBuffer<'local>,
    certificates: JByteBuffer<'local>,
    server_timeout_ms: jint,
    fallback: JByteBuffer<'local>,
    vocab_only: jboolean,
    progress: JObject<'local>,
) -> jlong {
    native(env, |env| {
        let engine = engine_options(env, &whole, [&device, &tensor_split, &tensor_devices, &kv_type, &kv_type_v])?;
        let path = PathBuf::from(text(env, &path, "path")?);
        let thrown = Arc::default();
        let progress = if progress.is_null() { None } else { Some(listener(env, &progress, &thrown)?) };
        let draft = optional_text(env, &draft, "draft")?.map(PathBuf::from);
        let directory = optional_text(env, &store_directory, "store")?.map(PathBuf::from);
        let max_bytes = u64::try_from(store_bytes);
        let max_bytes =
            max_bytes.map_err(|_| Error::InvalidArgument(format!("the store's bytes are {store_bytes}")))?;
        let store = directory.map(|directory| StoreOptions { directory, max_bytes });
        let remote = remote(
            optional_text(env, &vocab, "vocab")?.map(PathBuf::from),
            optional_text(env, &api_key, "apiKey")?,
            optional_text(env, &certificates, "certificates")?.map(PathBuf::from),
            count(server_timeout_ms, "serverTimeoutMs")?,
        );
        let fallback = lines(optional_text(env, &fallback, "fallback")?);
        let opened = Session::open(OpenOptions { path, engine, draft, vocab_only, store, remote, fallback, progress });
        if let Some(thrown) = lock(&thrown).take() {
            return Err(thrown.into());
        }
        Ok(table::insert(opened?))
    })
}

/// Where a listener's exception waits until the load that it ended has returned.
type Thrown = Mutex<Option<jni::errors::Error>>;

fn lock(thrown: &Thrown) -> MutexGuard<'_, Option<jni::errors::Error>> {
    thrown.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells a `LoadListener` the progress. It is called on the thread that opens, which is the caller's.
fn listener(
    env: &Env<'_>,
    listener: &JObject<'_>,
    thrown: &Arc<Thrown>,
) -> Result<Box<dyn FnMut(f32) -> bool + Send>, Failure> {
    let (machine, listener, thrown) = (env.get_java_vm()?, env.new_global_ref(listener)?, thrown.clone());
    let tell = move |fraction: f32| {
        let answer = machine.attach_current_thread(|env| {
            let (name, signature) = (jni_str!("onProgress"), jni_sig!("(F)Z"));
            env.call_method(&listener, name, signature, &[JValue::Float(fraction)])?.z()
        });
        answer.unwrap_or_else(|exception| {
            *lock(&thrown) = Some(exception);
            false
        })
    };
    Ok(Box::new(tell))
}

/// Opens a session of one slot of a session.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_openSlot<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    slot: jint,
) -> jlong {
    native(env, |_| Ok(table::insert(table::get(session)?.open_slot(slot)?)))
}

/// Closes a session, if it is open. Never waits for a generation.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_close<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
) {
    native(env, |_| {
        if let Some(session) = table::remove(session) {
            session.close();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_tokenize<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    text: JByteBuffer<'local>,
    add_special: jboolean,
    parse_special: jboolean,
) -> JIntArray<'local> {
    native(env, |env| {
        let session = table::get(session)?;
        let tokens = session.tokenize(bytes(env, &text)?, add_special, parse_special)?;
        let array = env.new_int_array(tokens.len())?;
        array.set_region(env, 0, &tokens)?;
        Ok(array)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_detokenize<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    tokens: JIntArray<'local>,
    remove_special: jboolean,
    unparse_special: jboolean,
) -> JByteArray<'local> {
    native(env, |env| {
        let session = table::get(session)?;
        let tokens = numbers(env, &tokens)?;
        Ok(env.byte_array_from_slice(&session.detokenize(&tokens, remove_special, unparse_special)?)?)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_prefill<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    tokens: JIntArray<'local>,
    slot: jint,
) {
    native(env, |env| {
        table::get(session)?.prefill(&numbers(env, &tokens)?, slot)?;
        Ok(())
    })
}

/// Starts a generation that Java pulls.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_generate<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    max_new_tokens: jint,
    temperature: jfloat,
    top_p: jfloat,
) {
    native(env, |_| {
        let given = |value: f32| if value.is_nan() { None } else { Some(value) };
        table::get(session)?.generate(max_new_tokens, given(temperature), given(top_p), Sink::Queue)?;
        Ok(())
    })
}

/// Fills `step` with what the generation has produced: room for `tokens_cap` token ids, after it room for text. Waits
/// at most `timeout_ms`. Returns the finish reason, or 0 while the generation goes on, from bit 60; the number of
/// tokens from bit 32; and the bytes of text.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_next<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    timeout_ms: jint,
    mut step: JByteBuffer<'local>,
    tokens_cap: jint,
) -> jlong {
    native(env, |env| {
        let session = table::get(session)?;
        let room = room(env, &mut step)?;
        let n_ids = tokens_cap as usize * size_of::<i32>();
        let split = room.split_at_mut_checked(n_ids);
        let (ids, text) = split.ok_or_else(|| Error::Internal(format!("No room for {tokens_cap} tokens")))?;
        // SAFETY: every bit pattern is a valid i32.
        let (before, ids, _) = unsafe { ids.align_to_mut::<i32>() };
        if !before.is_empty() {
            return Err(Error::Internal("The direct buffer is not aligned for token ids".into()).into());
        }
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or_default());
        let pulled = session.next(Some(timeout), ids, text)?;
        let reason = if pulled.done { session.usage().finish_reason } else { FinishReason::None };
        Ok((reason as jlong) << 60 | (pulled.tokens as jlong) << 32 | pulled.text_bytes as jlong)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_cancel<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
) {
    native(env, |_| {
        table::get(session)?.cancel();
        Ok(())
    })
}

/// The counters in the order of the Java class `Usage`.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_usage<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
) -> JLongArray<'local> {
    native(env, |env| {
        let usage = table::get(session)?.usage();
        let counters = [
            usage.finish_reason as u64,
            usage.prompt_tokens,
            usage.prompt_tokens_reused,
            usage.completion_tokens,
            usage.forced_tokens,
            usage.branching_steps,
            usage.span_tokens,
            usage.span_candidates,
            usage.forward_passes,
            usage.forward_passes_saved,
            usage.logits_computed,
            usage.prefill_us,
            usage.first_token_us,
            usage.decode_us,
            usage.whole_row_steps,
            usage.gpu_dispatches,
            usage.gpu_submissions,
            usage.gpu_waits,
            usage.gpu_bytes_uploaded,
            usage.gpu_bytes_read,
            usage.context_shifts,
            usage.sample_us,
            usage.sampled_tokens,
            usage.prompt_tokens_restored,
            usage.evaluated_tokens,
            usage.snapshots,
            usage.grammar_masks,
            usage.grammar_states,
            usage.drafted_tokens,
            usage.accepted_tokens,
        ]
        .map(|counter| counter as jlong);
        let array = env.new_long_array(counters.len())?;
        array.set_region(env, 0, &counters)?;
        Ok(array)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_usageJson<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
) -> JString<'local> {
    native(env, |env| Ok(env.new_string(table::get(session)?.usage_json())?))
}
