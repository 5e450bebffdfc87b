//! Token tries: constraining what is generated to a closed set, and scoring its leaves.

use elizainference::session::Mode;
use elizainference::trie::{Surroundings, build};
use jni::objects::{JByteBuffer, JClass, JDoubleArray, JIntArray, JObject, JObjectArray, JString};
use jni::sys::{jboolean, jint, jlong, jsize};
use jni::{Env, EnvUnowned, jni_str};

use crate::arguments::{bytes, optional_text, text, texts};
use crate::edge::{Failure, native};
use crate::table;

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_setTokenTrie<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    payload: JByteBuffer<'local>,
    mode: jint,
) {
    native(env, |env| {
        let session = table::get(session)?;
        match Mode::from_number(mode) {
            Ok(mode) => session.set_trie(bytes(env, &payload)?, mode)?,
            Err(error) => session.refuse_trie(error)?,
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_clearTokenTrie<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
) {
    native(env, |_| {
        table::get(session)?.clear_trie()?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_armTokenTrie<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    path: JByteBuffer<'local>,
) {
    native(env, |env| {
        table::get(session)?.arm_trie(optional_text(env, &path, "path")?)?;
        Ok(())
    })
}

/// The payload of one descriptor, and after it the warnings.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // the Java method's own list
extern "system" fn Java_ai_eliza_inference_Native_buildTokenTrie<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    path: JByteBuffer<'local>,
    names: JByteBuffer<'local>,
    name_ends: JIntArray<'local>,
    before: JByteBuffer<'local>,
    after: JByteBuffer<'local>,
    parse_special: jboolean,
) -> JObjectArray<'local, JString<'local>> {
    native(env, |env| {
        let session = table::get(session)?;
        let names = texts(env, &names, &name_ends, "names")?;
        let around =
            Surroundings { before: text(env, &before, "before")?, after: text(env, &after, "after")?, parse_special };
        let model_id = session.info().ids.first().map_or("", String::as_str);
        let built = build(session.vocab(), model_id, text(env, &path, "path")?, &names, around)?;
        strings(env, std::iter::once(built.json.as_str()).chain(built.warnings.iter().map(String::as_str)))
    })
}

/// Scores the leaves of the descriptor armed last, the most probable first: the path, the names, their numbers of
/// tokens, and the natural logarithms of their probabilities.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_scoreTokenTrie<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
) -> JObjectArray<'local> {
    native(env, |env| {
        let scores = table::get(session)?.score_trie()?;
        let n = scores.leaves.len();
        let path = env.new_string(&scores.path)?;
        let names = strings(env, scores.leaves.iter().map(|leaf| leaf.name.as_str()))?;
        let tokens = JIntArray::new(env, n)?;
        tokens.set_region(env, 0, &scores.leaves.iter().map(|leaf| leaf.tokens as jint).collect::<Vec<_>>())?;
        let logprobs = JDoubleArray::new(env, n)?;
        logprobs.set_region(env, 0, &scores.leaves.iter().map(|leaf| leaf.logprob).collect::<Vec<_>>())?;
        let parts: [JObject<'_>; 4] = [path.into(), names.into(), tokens.into(), logprobs.into()];
        let array = env.new_object_array(parts.len() as jsize, jni_str!("java/lang/Object"), JObject::null())?;
        for (index, part) in parts.iter().enumerate() {
            array.set_element(env, index, part)?;
        }
        Ok(array)
    })
}

fn strings<'local, 'a>(
    env: &mut Env<'local>,
    texts: impl Iterator<Item = &'a str>,
) -> Result<JObjectArray<'local, JString<'local>>, Failure> {
    let texts: Vec<&str> = texts.collect();
    let array = JObjectArray::<JString<'_>>::new(env, texts.len(), JString::null())?;
    for (index, text) in texts.iter().enumerate() {
        // Many names need not fit the few local references that a native method may hold.
        let string = env.new_string(text)?;
        array.set_element(env, index, &string)?;
        env.delete_local_ref(string);
    }
    Ok(array)
}
