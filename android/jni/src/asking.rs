//! What a host asks: of the log, the machine, a file, an open model.

use std::path::Path;

use elizainference::engine::{devices_json, plan_json};
use elizainference::gguf::File;
use elizainference::session::arguments::count;
use elizainference::session::{EmbedOptions, Pooling};
use elizainference::{Error, ffi};
use jni::EnvUnowned;
use jni::objects::{JByteBuffer, JClass, JDoubleArray, JFloatArray, JIntArray, JObjectArray, JString};
use jni::sys::{jboolean, jint, jlong};

use crate::arguments::{numbers, optional_text, text, texts};
use crate::edge::native;
use crate::options::engine_options;
use crate::table;

/// The oldest log line that waits, and its level; null where none does. The first call makes them wait.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_nextLogLine<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    level: JIntArray<'local>,
) -> JString<'local> {
    native(env, |env| {
        let Some((number, line)) = ffi::next_log_line()? else { return Ok(JString::default()) };
        level.set_region(env, 0, &[number])?;
        Ok(env.new_string(line)?)
    })
}

/// No line waits any more.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_endLog<'local>(env: EnvUnowned<'local>, _: JClass<'local>) {
    native(env, |_| {
        // SAFETY: there is no sink, so there is nothing that has to stay valid.
        unsafe { ffi::eliza_inference_set_log_sink(None, std::ptr::null_mut()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_devices<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
) -> JString<'local> {
    native(env, |env| Ok(env.new_string(devices_json()?.to_string())?))
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // the Java method's own list
extern "system" fn Java_ai_eliza_inference_Native_plan<'local>(
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
) -> JString<'local> {
    native(env, |env| {
        let engine = engine_options(env, &whole, [&device, &tensor_split, &tensor_devices, &kv_type, &kv_type_v])?;
        let draft = optional_text(env, &draft, "draft")?.map(Path::new);
        let plan = plan_json(Path::new(text(env, &path, "path")?), draft, &engine)?;
        Ok(env.new_string(plan.to_string())?)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_fileMetadata<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    path: JByteBuffer<'local>,
    key: JByteBuffer<'local>,
) -> JString<'local> {
    native(env, |env| {
        let file = File::open(Path::new(text(env, &path, "path")?))?;
        Ok(env.new_string(file.metadata_json(optional_text(env, &key, "key")?)?)?)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_describe<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
) -> JString<'local> {
    native(env, |env| Ok(env.new_string(table::get(session)?.describe()?)?))
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_metadata<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    key: JByteBuffer<'local>,
) -> JString<'local> {
    native(env, |env| {
        let metadata = table::get(session)?.metadata_json(optional_text(env, &key, "key")?)?;
        Ok(env.new_string(metadata)?)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_isEog<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    token: jint,
) -> jboolean {
    native(env, |_| Ok(table::get(session)?.is_eog(token)?))
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_token<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    token: jint,
) -> JString<'local> {
    native(env, |env| Ok(env.new_string(table::get(session)?.token_json(token)?)?))
}

/// The prompt of messages as JSON: its text and its tokens.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_chatPrompt<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    inputs: JByteBuffer<'local>,
) -> JString<'local> {
    native(env, |env| {
        let inputs = text(env, &inputs, "inputsJson")?;
        Ok(env.new_string(table::get(session)?.chat_prompt_json(inputs)?)?)
    })
}

/// The parts that a piece of an answer completes, as JSON.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_chatParts<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    inputs: JByteBuffer<'local>,
    piece: JByteBuffer<'local>,
    last: jboolean,
) -> JString<'local> {
    native(env, |env| {
        let inputs = optional_text(env, &inputs, "inputsJson")?;
        let piece = text(env, &piece, "text")?;
        Ok(env.new_string(table::get(session)?.chat_parts_json(inputs, piece.as_bytes(), last)?)?)
    })
}

/// The logits of the last positions, one row after the other.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_logits<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    n_last: jint,
) -> JFloatArray<'local> {
    native(env, |env| {
        let session = table::get(session)?;
        let n_last = count(n_last, "nLast")? as usize;
        let needed = session.logits(n_last, &mut [])?;
        let mut rows = Vec::new();
        rows.try_reserve_exact(needed).map_err(|_| Error::OutOfMemory(format!("{needed} logits")))?;
        rows.resize(needed, 0.0);
        session.logits(n_last, &mut rows)?;
        let array = env.new_float_array(needed)?;
        array.set_region(env, 0, &rows)?;
        Ok(array)
    })
}

/// The rows of texts, whose tokens follow one another; of each an array.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // the Java method's own list
extern "system" fn Java_ai_eliza_inference_Native_embed<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    tokens: JIntArray<'local>,
    ends: JIntArray<'local>,
    pooling: jint,
    dimensions: jint,
    normalize: jboolean,
) -> JObjectArray<'local, JFloatArray<'local>> {
    native(env, |env| {
        let session = table::get(session)?;
        let (all, mut begin) = (numbers(env, &tokens)?, 0);
        let mut texts = Vec::new();
        for end in numbers(env, &ends)? {
            let text = all.get(begin..end as usize);
            texts.push(text.ok_or_else(|| Error::Internal(format!("texts end at {end} of {}", all.len())))?.to_vec());
            begin = end as usize;
        }
        let pooling = match pooling {
            0 => None,
            n => Pooling::ALL.get(n as usize - 1).copied(),
        };
        let options = EmbedOptions { pooling, normalize, dimensions: count(dimensions, "dimensions")? as usize };
        let made = session.embed(texts, &options)?;
        let array = JObjectArray::<JFloatArray<'_>>::new(env, made.texts.len(), JFloatArray::null())?;
        for (index, rows) in made.texts.iter().enumerate() {
            // Many texts need not fit the few local references that a native method may hold.
            let own = env.new_float_array(rows.len())?;
            own.set_region(env, 0, rows)?;
            array.set_element(env, index, &own)?;
            env.delete_local_ref(own);
        }
        Ok(array)
    })
}

/// How well each text answers a question.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_rank<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    query: JByteBuffer<'local>,
    joined: JByteBuffer<'local>,
    ends: JIntArray<'local>,
) -> JFloatArray<'local> {
    native(env, |env| {
        let (query, texts) = (text(env, &query, "query")?, texts(env, &joined, &ends, "texts")?);
        let texts: Vec<&[u8]> = texts.into_iter().map(str::as_bytes).collect();
        let scores = table::get(session)?.rank(query.as_bytes(), &texts)?;
        let array = env.new_float_array(scores.len())?;
        array.set_region(env, 0, &scores)?;
        Ok(array)
    })
}

/// How the last token of a slot was drawn: token, logarithm and probability, and after them token, logit and
/// probability of each candidate; null before the first.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_sampled<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    slot: jint,
) -> JDoubleArray<'local> {
    native(env, |env| {
        let Some(drawn) = table::get(session)?.sampled(slot) else { return Ok(JDoubleArray::default()) };
        let candidates = drawn.candidates.iter();
        let numbers: Vec<f64> = std::iter::once([drawn.token.into(), drawn.logprob.into(), drawn.prob.into()])
            .chain(candidates.map(|&(token, logit, prob)| [token.into(), logit.into(), prob.into()]))
            .flatten()
            .collect();
        let array = JDoubleArray::new(env, numbers.len())?;
        array.set_region(env, 0, &numbers)?;
        Ok(array)
    })
}
