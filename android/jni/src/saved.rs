//! Slots saved to files, restored, pinned and warmed up.

use std::path::Path;

use jni::EnvUnowned;
use jni::objects::{JByteBuffer, JClass, JIntArray};
use jni::sys::{jboolean, jint, jlong};

use crate::arguments::{numbers, text};
use crate::edge::native;
use crate::table;

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_saveSlot<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    slot: jint,
    path: JByteBuffer<'local>,
) {
    native(env, |env| {
        table::get(session)?.save_slot(slot, Path::new(text(env, &path, "path")?))?;
        Ok(())
    })
}

/// Gives how many tokens the stream has.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_restoreSlot<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    slot: jint,
    path: JByteBuffer<'local>,
) -> jint {
    native(env, |env| Ok(table::get(session)?.restore_slot(slot, Path::new(text(env, &path, "path")?))? as jint))
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_persist<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    slot: jint,
    key: JByteBuffer<'local>,
) {
    native(env, |env| {
        table::get(session)?.persist(text(env, &key, "key")?, slot)?;
        Ok(())
    })
}

/// Gives how many tokens the stream has, 0 where nothing is kept.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_resume<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    slot: jint,
    key: JByteBuffer<'local>,
) -> jint {
    native(env, |env| Ok(table::get(session)?.resume(text(env, &key, "key")?, slot)? as jint))
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_forget<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    key: JByteBuffer<'local>,
) -> jboolean {
    native(env, |env| Ok(table::get(session)?.forget(text(env, &key, "key")?)?))
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_prewarm<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    tokens: JIntArray<'local>,
    slot: jint,
) {
    native(env, |env| {
        table::get(session)?.prewarm(&numbers(env, &tokens)?, slot)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_pinSlot<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    slot: jint,
    pinned: jboolean,
) {
    native(env, |_| {
        table::get(session)?.pin_slot(slot, pinned)?;
        Ok(())
    })
}
