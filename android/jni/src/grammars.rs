//! Grammars: holding what is generated to rules.

use jni::EnvUnowned;
use jni::objects::{JByteBuffer, JClass};
use jni::sys::jlong;

use crate::arguments::bytes;
use crate::edge::native;
use crate::table;

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_setGrammar<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    source: JByteBuffer<'local>,
) {
    native(env, |env| {
        table::get(session)?.set_grammar(bytes(env, &source)?)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_clearGrammar<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
) {
    native(env, |_| {
        table::get(session)?.clear_grammar()?;
        Ok(())
    })
}
