//! How a model is opened, and how a session samples. The numbers are in the order of the Java classes.

use elizainference::Error;
use elizainference::session::arguments::{self, count};
use elizainference::session::{ContextFull, EngineOptions, KvType, Params, Settings, SpanEnd, TensorDevice};
use jni::objects::{JByteBuffer, JClass, JFloatArray, JIntArray};
use jni::sys::{jint, jlong};
use jni::{Env, EnvUnowned};

use crate::arguments::{numbers, optional_text, texts};
use crate::edge::{Failure, native};
use crate::table;

/// What an `OpenOptions` says of the engine.
pub(crate) fn engine_options(
    env: &Env<'_>,
    whole: &JIntArray<'_>,
    device: &JByteBuffer<'_>,
    tensor_devices: &JByteBuffer<'_>,
    kv_type: &JByteBuffer<'_>,
    kv_type_v: &JByteBuffer<'_>,
) -> Result<EngineOptions, Failure> {
    let mut whole_numbers = [0; 6];
    whole.get_region(env, 0, &mut whole_numbers)?;
    let [context, threads, gpu_layers, slots, n_batch, snapshots] = whole_numbers;
    Ok(EngineOptions {
        context: count(context, "contextSize")?,
        threads: count(threads, "threads")?,
        gpu_layers: arguments::gpu_layers(gpu_layers, "gpuLayers")?,
        device: optional_text(env, device, "device")?.map(str::to_owned),
        tensor_devices: TensorDevice::list(optional_text(env, tensor_devices, "tensorDevice")?.unwrap_or_default())?,
        kv_type: optional_text(env, kv_type, "kvType")?.map_or(Ok(KvType::default()), str::parse)?,
        kv_type_v: optional_text(env, kv_type_v, "kvTypeV")?.map(str::parse).transpose()?,
        slots: count(slots, "slots")?,
        n_batch: count(n_batch, "nBatch")?,
        snapshots: count(snapshots, "snapshots")?,
    })
}

/// Fills the arrays with the settings in force. A seed that is new each time is -1.
#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_samplingOptions<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    whole: JIntArray<'local>,
    real: JFloatArray<'local>,
) -> jlong {
    native(env, |env| {
        let settings = table::get(session)?.settings();
        let params = &settings.params;
        let switches = [settings.on_span_end == SpanEnd::Stop, settings.strict_trie, settings.ignore_eos];
        whole.set_region(env, 0, &[params.top_k, params.repeat_last_n])?;
        whole.set_region(env, 2, &switches.map(jint::from))?;
        let (shifts, keep) = match settings.on_context_full {
            ContextFull::Stop => (0, 0),
            ContextFull::Shift { keep } => (1, keep as usize),
        };
        let count = |count: usize| jint::try_from(count).unwrap_or(jint::MAX);
        let spelled = jint::from(settings.special_text);
        whole.set_region(env, 5, &[count(settings.candidates), shifts, count(keep), spelled])?;
        let penalties = [params.repeat_penalty, params.presence_penalty, params.frequency_penalty];
        real.set_region(env, 0, &[params.min_p])?;
        real.set_region(env, 1, &penalties)?;
        Ok(params.seed.map_or(-1, |seed| seed as jlong))
    })
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // the Java method's own list
extern "system" fn Java_ai_eliza_inference_Native_configure<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    seed: jlong,
    whole: JIntArray<'local>,
    real: JFloatArray<'local>,
    stop: JByteBuffer<'local>,
    stop_ends: JIntArray<'local>,
    bias_ids: JIntArray<'local>,
    bias_values: JFloatArray<'local>,
) {
    native(env, |env| {
        let session = table::get(session)?;
        let (mut whole_numbers, mut real_numbers) = ([0; 9], [0.0; 4]);
        whole.get_region(env, 0, &mut whole_numbers)?;
        real.get_region(env, 0, &mut real_numbers)?;
        let [top_k, repeat_last_n, on_span_end, strict_trie, ignore_eos, candidates, shifts, keep, spelled] =
            whole_numbers;
        let [min_p, repeat_penalty, presence_penalty, frequency_penalty] = real_numbers;
        let stop = texts(env, &stop, &stop_ends, "stop")?;
        session.configure(Settings {
            params: Params {
                seed: u64::try_from(seed).ok(),
                top_k,
                repeat_last_n,
                min_p,
                repeat_penalty,
                presence_penalty,
                frequency_penalty,
                logit_bias: numbers(env, &bias_ids)?.into_iter().zip(numbers(env, &bias_values)?).collect(),
                ..session.settings().params
            },
            stop: stop.into_iter().map(|text| text.as_bytes().to_vec()).collect(),
            ignore_eos: ignore_eos != 0,
            on_span_end: if on_span_end != 0 { SpanEnd::Stop } else { SpanEnd::Continue },
            strict_trie: strict_trie != 0,
            candidates: count(candidates, "candidates")? as usize,
            on_context_full: match (shifts != 0, count(keep, "nKeep")?) {
                (true, keep) => ContextFull::Shift { keep },
                (false, 0) => ContextFull::Stop,
                (false, keep) => {
                    let problem = format!("nKeep is {keep}, which only onContextFull SHIFT has a use for");
                    return Err(Error::InvalidArgument(problem).into());
                }
            },
            special_text: spelled != 0,
        })?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_ai_eliza_inference_Native_setChain<'local>(
    env: EnvUnowned<'local>,
    _: JClass<'local>,
    session: jlong,
    slot: jint,
    chain: JByteBuffer<'local>,
) {
    native(env, |env| {
        let session = table::get(session)?;
        let chain = optional_text(env, &chain, "chain")?.map(str::parse).transpose()?;
        session.set_chain(slot, chain)?;
        Ok(())
    })
}
