//! How a model is opened, and how a session samples. The numbers are in the order of the Java classes.

use elizainference::Error;
use elizainference::sampling::{Dry, Generator, Mirostat};
use elizainference::session::arguments::{self, count, reasoning};
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
    [device, tensor_split, tensor_devices, kv_type, kv_type_v]: [&JByteBuffer<'_>; 5],
) -> Result<EngineOptions, Failure> {
    let mut whole_numbers = [0; 9];
    whole.get_region(env, 0, &mut whole_numbers)?;
    let [context, threads, gpu_layers, slots, n_batch, snapshots, parallel, max_slowdown, concurrent] = whole_numbers;
    Ok(EngineOptions {
        context: count(context, "contextSize")?,
        threads: count(threads, "threads")?,
        gpu_layers: arguments::gpu_layers(gpu_layers, "gpuLayers")?,
        device: optional_text(env, device, "device")?.map(str::to_owned),
        tensor_split: optional_text(env, tensor_split, "tensorSplit")?.unwrap_or_default().parse()?,
        tensor_devices: TensorDevice::list(optional_text(env, tensor_devices, "tensorDevice")?.unwrap_or_default())?,
        kv_type: optional_text(env, kv_type, "kvType")?.map_or(Ok(KvType::default()), str::parse)?,
        kv_type_v: optional_text(env, kv_type_v, "kvTypeV")?.map(str::parse).transpose()?,
        slots: count(slots, "slots")?,
        parallel: count(parallel, "parallel")?,
        concurrent_slots: concurrent != 0,
        max_slowdown_percent: count(max_slowdown, "maxSlowdownPercent")?,
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
        let tokens = settings.reasoning.as_ref().map_or(0, |budget| budget.tokens as usize);
        let (mt19937, keep) = (params.generator == Generator::Mt19937, params.min_keep as usize);
        let (mirostat, mt19937) = (params.mirostat as jint, jint::from(mt19937));
        whole.set_region(env, 9, &[params.dry.allowed_length, params.dry.last_n])?;
        let no_guessing = jint::from(settings.no_guessing);
        whole.set_region(env, 11, &[mirostat, count(keep), mt19937, count(tokens), no_guessing])?;
        let truncations = [params.top_n_sigma, params.typical_p, params.xtc_probability, params.xtc_threshold];
        let dynamic = [params.dynatemp_range, params.dynatemp_exponent, params.dry.multiplier, params.dry.base];
        let selecting = [params.mirostat_tau, params.mirostat_eta, params.adaptive_target, params.adaptive_decay];
        real.set_region(env, 4, &truncations)?;
        real.set_region(env, 8, &dynamic)?;
        real.set_region(env, 12, &selecting)?;
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
    breakers: JByteBuffer<'local>,
    breaker_ends: JIntArray<'local>,
    samplers: JByteBuffer<'local>,
    reasoning_start: JByteBuffer<'local>,
    reasoning_end: JByteBuffer<'local>,
) {
    native(env, |env| {
        let session = table::get(session)?;
        let (mut whole_numbers, mut real_numbers) = ([0; 16], [0.0; 16]);
        whole.get_region(env, 0, &mut whole_numbers)?;
        real.get_region(env, 0, &mut real_numbers)?;
        let [top_k, repeat_last_n, switches @ ..] = whole_numbers;
        let [on_span_end, strict_trie, ignore_eos, candidates, shifts, keep, spelled, numbers_of @ ..] = switches;
        let [allowed_length, last_n, mirostat, min_keep, mt19937, tokens, no_guessing] = numbers_of;
        let [min_p, repeat_penalty, presence_penalty, frequency_penalty, truncations @ ..] = real_numbers;
        let [top_n_sigma, typical_p, xtc_probability, xtc_threshold, dynamic @ ..] = truncations;
        let [dynatemp_range, dynatemp_exponent, multiplier, base, selecting @ ..] = dynamic;
        let [mirostat_tau, mirostat_eta, adaptive_target, adaptive_decay] = selecting;
        let stop = texts(env, &stop, &stop_ends, "stop")?;
        let before = session.settings().params;
        let breakers = texts(env, &breakers, &breaker_ends, "dryBreakers")?;
        let start = optional_text(env, &reasoning_start, "reasoningStart")?;
        let end = optional_text(env, &reasoning_end, "reasoningEnd")?;
        session.configure(Settings {
            reasoning: reasoning(count(tokens, "reasoningBudget")?, start, end)?,
            params: Params {
                seed: u64::try_from(seed).ok(),
                top_k,
                repeat_last_n,
                min_p,
                repeat_penalty,
                presence_penalty,
                frequency_penalty,
                logit_bias: numbers(env, &bias_ids)?.into_iter().zip(numbers(env, &bias_values)?).collect(),
                generator: if mt19937 != 0 { Generator::Mt19937 } else { Generator::Counter },
                sequence: optional_text(env, &samplers, "samplers")?.map_or(Ok(before.sequence), str::parse)?,
                top_n_sigma,
                typical_p,
                xtc_probability,
                xtc_threshold,
                dynatemp_range,
                dynatemp_exponent,
                dry: Dry { multiplier, base, allowed_length, last_n, breakers: before.dry.breakers }.with(&breakers),
                mirostat: Mirostat::checked(count(mirostat, "mirostat")?)?,
                mirostat_tau,
                mirostat_eta,
                adaptive_target,
                adaptive_decay,
                min_keep: count(min_keep, "minKeep")?,
                temperature: before.temperature,
                top_p: before.top_p,
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
            no_guessing: no_guessing != 0,
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
