//! Slots saved to files, and restored.

use std::path::Path;

use jni::EnvUnowned;
use jni::objects::{JByteBuffer, JClass};
use jni::sys::{jint, jlong};

use crate::arguments::text;
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
