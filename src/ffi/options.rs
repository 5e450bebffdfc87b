//! Sampling options, stop strings and chains, which are not arguments of generate.

use std::ffi::c_char;

use super::args;
use super::errors::{ask, on_handle};
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::ELIZA_OK;
use crate::sampling::{Dry, Generator, Mirostat};
use crate::session::arguments::reasoning;
use crate::session::{Chain, ContextFull, Params, ReasoningBudget, Settings, SpanEnd};
use crate::{Error, Result};

/// `seed`: a new one for each generation.
pub const ELIZA_SEED_RANDOM: u32 = 0xFFFF_FFFF;
/// `on_span_end`: generation goes on without the constraint.
pub const ELIZA_SPAN_CONTINUE: u32 = 0;
/// `on_span_end`: generation ends, with `ELIZA_FINISH_SPAN`.
pub const ELIZA_SPAN_STOP: u32 = 1;
/// `on_context_full`: generation ends, with `ELIZA_FINISH_CONTEXT`.
pub const ELIZA_CONTEXT_STOP: u32 = 0;
/// `on_context_full`: half of the tokens after the first `n_keep` are removed, and generation goes on.
pub const ELIZA_CONTEXT_SHIFT: u32 = 1;

/// `generator`: each draw is a function of seed and position.
pub const ELIZA_GENERATOR_COUNTER: u32 = 0;
/// `generator`: llama.cpp's (mt19937), with the tokens of llama.cpp for the same seed, samplers and logits.
pub const ELIZA_GENERATOR_MT19937: u32 = 1;

/// The sampling options of the generations on a handle. Fill them by `eliza_inference_llm_stream_sampling_defaults`,
/// change fields, and pass them to `eliza_inference_llm_stream_configure`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SamplingOptions {
    /// sizeof(eliza_llm_sampling_options_t), set by the caller.
    pub struct_size: u32,
    /// Seed of the draws; `ELIZA_SEED_RANDOM` (0xFFFFFFFF) takes a new one for each generation.
    pub seed: u32,
    /// Keep only this many of the likeliest tokens; 0 or below: all.
    pub top_k: i32,
    /// Keep only tokens at least this likely, relative to the likeliest; 0: all.
    pub min_p: f32,
    /// Divides the logits of repeated tokens; 1 or 0: off.
    pub repeat_penalty: f32,
    /// The penalties' window in tokens; 0 or below turns them off.
    pub repeat_last_n: i32,
    /// Subtracted from the logit of every token seen; 0: off.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time it was seen; 0: off.
    pub frequency_penalty: f32,
    /// A grammar in GBNF whose root is `root`, in force from now on as by `eliza_inference_set_grammar`; "" clears the
    /// grammar, NULL keeps what was set.
    pub gbnf_grammar: *const c_char,
    /// Stop strings, terminated UTF-8, none empty: generation ends before the first that appears.
    pub stop: *const *const c_char,
    /// How many stop strings.
    pub n_stop: usize,
    /// Tokens whose logits are shifted.
    pub logit_bias_ids: *const i32,
    /// By how much each is shifted.
    pub logit_bias_values: *const f32,
    /// How many of each.
    pub n_logit_bias: usize,
    /// What the end of a constrained span does: `ELIZA_SPAN_CONTINUE` (0) or `ELIZA_SPAN_STOP` (1).
    pub on_span_end: u32,
    /// 1 refuses a token trie where there would be a warning (made for another model); else 0.
    pub strict_trie: u32,
    /// 1 forbids end-of-generation tokens where no token trie decides; else 0.
    pub ignore_eos: u32,
    /// How many candidates `eliza_inference_llm_stream_sampled` can report, likeliest first; 0: none.
    pub n_candidates: u32,
    /// What a full context does: `ELIZA_CONTEXT_STOP` (0) or `ELIZA_CONTEXT_SHIFT` (1).
    pub on_context_full: u32,
    /// Number of tokens at the beginning that a shift keeps, a begin-of-text token included; with `ELIZA_CONTEXT_STOP`
    /// 0.
    pub n_keep: u32,
    /// 1 spells control tokens in the text of a generation, which else have none, for
    /// `eliza_inference_llm_stream_chat_parts_json`; else 0.
    pub special_text: u32,
    /// 1 never evaluates tokens that the text suggests before they are sampled, which changes no token and is done
    /// where it has paid in the generation so far; else 0.
    pub no_guessing: u32,
    /// Keep only tokens whose logit is at most so many standard deviations below the greatest; 0 or below: all.
    pub top_n_sigma: f32,
    /// Keep only tokens of the most typical surprise with this probability in sum; 0, 1 or above: all.
    pub typical_p: f32,
    /// XTC: how often all tokens of at least the threshold's probability are removed but the least likely; 0: never.
    pub xtc_probability: f32,
    /// The probability from which on XTC removes tokens; above 0.5: none.
    pub xtc_threshold: f32,
    /// Half the width of the range in which the temperature grows with the entropy; 0: a plain temperature.
    pub dynatemp_range: f32,
    /// The power to which the normalised entropy is raised.
    pub dynatemp_exponent: f32,
    /// DRY: subtracted from the logit of a token that prolongs a repetition of the allowed length; 0: off.
    pub dry_multiplier: f32,
    /// DRY: the factor for each token that the repetition is longer; below 1 turns it off.
    pub dry_base: f32,
    /// DRY: the length in tokens from which on a repetition counts.
    pub dry_allowed_length: i32,
    /// DRY: its window in tokens; 0 or below turns it off.
    pub dry_last_n: i32,
    /// 1 or 2: this version of mirostat in place of all samplers but the temperature; 0: none.
    pub mirostat: u32,
    /// The surprise of a token that mirostat aims at, in bits.
    pub mirostat_tau: f32,
    /// How far mirostat moves with every token.
    pub mirostat_eta: f32,
    /// Adaptive-p: draw near this probability; 0 or below: off.
    pub adaptive_target: f32,
    /// How much of its mean adaptive-p keeps with every token, 0 to 0.99.
    pub adaptive_decay: f32,
    /// The tokens that top-p, min-p, typical-p and XTC keep at least.
    pub min_keep: u32,
    /// Where random numbers come from: `ELIZA_GENERATOR_COUNTER` (0) or `ELIZA_GENERATOR_MT19937` (1).
    pub generator: u32,
    /// How many tokens the model may think in each block, before `reasoning_end` is forced. Only with that.
    pub reasoning_budget: u32,
    /// The samplers and their order, such as "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature". NULL:
    /// the order in force, at first the file's, else the one named here.
    pub samplers: *const c_char,
    /// DRY: texts at which a repetition ends. With none the texts in force, at first a line feed, ':', '"' and '*';
    /// "none" alone is no text.
    pub dry_breakers: *const *const c_char,
    /// How many of them.
    pub n_dry_breakers: usize,
    /// The text with which thinking begins, such as "<think>"; only with `reasoning_end`.
    pub reasoning_start: *const c_char,
    /// The text with which thinking ends, such as "</think>", which is forced after `reasoning_budget` tokens of
    /// thinking; NULL: no limit.
    pub reasoning_end: *const c_char,
}

// SAFETY: repr(C), the size first, then numbers and raw pointers: all may be zero.
unsafe impl args::Sized32 for SamplingOptions {
    const NAME: &'static str = "eliza_llm_sampling_options_t";
}

/// Fills the options with those in force on the handle: after open the model file's defaults, and the library's where
/// the file has none. The pointers and their counts are set to NULL and 0.
///
/// Ownership: `options` is the host's; set its `struct_size` first. Null rule: `options` must not be NULL; a NULL or
/// closed handle is -1. Threads: any, any time. Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG` (NULL,
/// `struct_size`) or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_sampling_defaults(
    handle: FfiLlmHandle,
    options: *mut SamplingOptions,
) -> i32 {
    let fill = |stream: &Stream| {
        // SAFETY: the host's options are null or as long as they say.
        unsafe { args::write(options, &to_options(&stream.session.settings()))? };
        Ok(ELIZA_OK)
    };
    ask(handle, fill).unwrap_or_else(|code| code)
}

/// Sets how later generations on the handle sample; it holds until set again.
///
/// Fields that the host's version of the structure does not have count as 0. Temperature and top-p are
/// arguments of generate.
///
/// Ownership: everything is copied, `*out_error` is the host's to free. Null rule: `options` must not be NULL; its
/// arrays may be where their count is 0; `out_error` may be; a NULL or closed handle is -1. Threads: any; fails while
/// the handle is at work.
///
/// Returns `ELIZA_OK`, or changes nothing and returns -1 (handle), `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_OOM` (more than
/// a grammar may hold), `ELIZA_ERR_NOT_IMPLEMENTED`, `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`. After a grammar that is
/// refused generate fails, as after `eliza_inference_set_grammar`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_configure(
    handle: FfiLlmHandle,
    options: *const SamplingOptions,
    out_error: *mut *mut c_char,
) -> i32 {
    let configure = |stream: &Stream| {
        // SAFETY: the host's options are null or as long as they say, and its arrays as long as their counts.
        let (settings, gbnf) = unsafe {
            let options = args::read(options)?;
            let settings = to_settings(&options, stream.session.settings().params)?;
            (settings, args::optional_text(options.gbnf_grammar, "gbnf_grammar")?)
        };
        match gbnf {
            Some(gbnf) => stream.session.configure_guided(settings, gbnf)?,
            None => stream.session.configure(settings)?,
        }
        Ok(ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, configure) }.unwrap_or_else(|code| code)
}

/// Sets the sampler chain of later generations on a slot, in place of the sampling options: for example
/// "top_k=40;top_p=0.95;min_p=0.05;temp=0.8". `slot_id` -1 means fresh slots.
///
/// Ownership: the text is copied, `*out_error` is the host's to free. Null rule: a NULL `chain_text` goes back to the
/// options; `out_error` may be NULL; a NULL or closed handle is -1. Threads: any; fails while the handle is at work.
///
/// Returns `ELIZA_OK`, or changes nothing and returns -1 (handle), `ELIZA_ERR_INVALID_ARG` (the text names the sampler
/// or value), `ELIZA_ERR_NOT_IMPLEMENTED`, `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_set_chain(
    handle: FfiLlmHandle,
    slot_id: i32,
    chain_text: *const c_char,
    out_error: *mut *mut c_char,
) -> i32 {
    let set = |stream: &Stream| {
        // SAFETY: the header asks for null or a terminated string.
        let text = unsafe { args::optional_text(chain_text, "chain_text")? };
        stream.session.set_chain(slot_id, text.map(str::parse::<Chain>).transpose()?)?;
        Ok(ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, set) }.unwrap_or_else(|code| code)
}

fn to_options(settings: &Settings) -> SamplingOptions {
    let params = &settings.params;
    let (on_context_full, n_keep) = match settings.on_context_full {
        ContextFull::Stop => (ELIZA_CONTEXT_STOP, 0),
        ContextFull::Shift { keep } => (ELIZA_CONTEXT_SHIFT, keep),
    };
    SamplingOptions {
        struct_size: size_of::<SamplingOptions>() as u32,
        seed: params.seed.map_or(ELIZA_SEED_RANDOM, |seed| seed as u32),
        top_k: params.top_k,
        min_p: params.min_p,
        repeat_penalty: params.repeat_penalty,
        repeat_last_n: params.repeat_last_n,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        gbnf_grammar: std::ptr::null(),
        stop: std::ptr::null(),
        n_stop: 0,
        logit_bias_ids: std::ptr::null(),
        logit_bias_values: std::ptr::null(),
        n_logit_bias: 0,
        on_span_end: match settings.on_span_end {
            SpanEnd::Continue => ELIZA_SPAN_CONTINUE,
            SpanEnd::Stop => ELIZA_SPAN_STOP,
        },
        strict_trie: u32::from(settings.strict_trie),
        ignore_eos: u32::from(settings.ignore_eos),
        n_candidates: u32::try_from(settings.candidates).unwrap_or(u32::MAX),
        on_context_full,
        n_keep,
        special_text: u32::from(settings.special_text),
        no_guessing: u32::from(settings.no_guessing),
        top_n_sigma: params.top_n_sigma,
        typical_p: params.typical_p,
        xtc_probability: params.xtc_probability,
        xtc_threshold: params.xtc_threshold,
        dynatemp_range: params.dynatemp_range,
        dynatemp_exponent: params.dynatemp_exponent,
        dry_multiplier: params.dry.multiplier,
        dry_base: params.dry.base,
        dry_allowed_length: params.dry.allowed_length,
        dry_last_n: params.dry.last_n,
        mirostat: params.mirostat as u32,
        mirostat_tau: params.mirostat_tau,
        mirostat_eta: params.mirostat_eta,
        adaptive_target: params.adaptive_target,
        adaptive_decay: params.adaptive_decay,
        min_keep: params.min_keep,
        generator: match params.generator {
            Generator::Counter => ELIZA_GENERATOR_COUNTER,
            Generator::Mt19937 => ELIZA_GENERATOR_MT19937,
        },
        reasoning_budget: settings.reasoning.as_ref().map_or(0, |budget| budget.tokens),
        samplers: std::ptr::null(),
        dry_breakers: std::ptr::null(),
        n_dry_breakers: 0,
        reasoning_start: std::ptr::null(),
        reasoning_end: std::ptr::null(),
    }
}

/// The parameters of the options; temperature and top-p, which are not in the options, are those of `before`.
///
/// # Safety
/// As [`to_settings`].
unsafe fn to_params(options: &SamplingOptions, before: Params) -> Result<Params> {
    // SAFETY: the caller's promise.
    let (ids, values, breakers, samplers) = unsafe {
        (
            args::array(options.logit_bias_ids, options.n_logit_bias, "logit_bias_ids")?,
            args::array(options.logit_bias_values, options.n_logit_bias, "logit_bias_values")?,
            args::array(options.dry_breakers, options.n_dry_breakers, "dry_breakers")?,
            args::optional_text(options.samplers, "samplers")?,
        )
    };
    let breaker = |(index, &text)| {
        // SAFETY: the caller's promise.
        unsafe { args::text(text, &format!("dry_breakers[{index}]")) }
    };
    let breakers = breakers.iter().enumerate().map(breaker).collect::<Result<Vec<&str>>>()?;
    let unless_0 = |number: f32, off: f32| if number == 0.0 { off } else { number };
    Ok(Params {
        seed: if options.seed == ELIZA_SEED_RANDOM { None } else { Some(options.seed.into()) },
        top_k: options.top_k,
        min_p: options.min_p,
        repeat_penalty: unless_0(options.repeat_penalty, 1.0),
        repeat_last_n: options.repeat_last_n,
        presence_penalty: options.presence_penalty,
        frequency_penalty: options.frequency_penalty,
        logit_bias: ids.iter().copied().zip(values.iter().copied()).collect(),
        generator: match switch(options.generator, "generator")? {
            false => Generator::Counter,
            true => Generator::Mt19937,
        },
        sequence: samplers.map_or(Ok(before.sequence), str::parse)?,
        top_n_sigma: options.top_n_sigma,
        typical_p: unless_0(options.typical_p, 1.0),
        xtc_probability: options.xtc_probability,
        xtc_threshold: options.xtc_threshold,
        dynatemp_range: options.dynatemp_range,
        dynatemp_exponent: options.dynatemp_exponent,
        dry: Dry {
            multiplier: options.dry_multiplier,
            base: options.dry_base,
            allowed_length: options.dry_allowed_length,
            last_n: options.dry_last_n,
            breakers: before.dry.breakers,
        }
        .with(&breakers),
        mirostat: Mirostat::checked(options.mirostat)?,
        mirostat_tau: options.mirostat_tau,
        mirostat_eta: options.mirostat_eta,
        adaptive_target: unless_0(options.adaptive_target, -1.0),
        adaptive_decay: options.adaptive_decay,
        min_keep: options.min_keep,
        temperature: before.temperature,
        top_p: before.top_p,
    })
}

/// # Safety
/// As [`to_settings`].
unsafe fn to_reasoning(options: &SamplingOptions) -> Result<Option<ReasoningBudget>> {
    // SAFETY: the caller's promise.
    let (start, end) = unsafe {
        (
            args::optional_text(options.reasoning_start, "reasoning_start")?,
            args::optional_text(options.reasoning_end, "reasoning_end")?,
        )
    };
    reasoning(options.reasoning_budget, start, end)
}

/// The settings of the options; temperature and top-p, which are not in the options, are those of `before`.
///
/// # Safety
/// The arrays of `options` are null or as long as their counts, the strings terminated.
unsafe fn to_settings(options: &SamplingOptions, before: Params) -> Result<Settings> {
    // SAFETY: the caller's promise.
    let (stop, params, reasoning) = unsafe {
        (args::array(options.stop, options.n_stop, "stop")?, to_params(options, before)?, to_reasoning(options)?)
    };
    let stop = stop.iter().enumerate().map(|(index, &text)| {
        // SAFETY: the caller's promise.
        unsafe { args::text(text, &format!("stop[{index}]")) }.map(|text| text.as_bytes().to_vec())
    });
    Ok(Settings {
        params,
        reasoning,
        stop: stop.collect::<Result<_>>()?,
        ignore_eos: switch(options.ignore_eos, "ignore_eos")?,
        on_span_end: if switch(options.on_span_end, "on_span_end")? { SpanEnd::Stop } else { SpanEnd::Continue },
        strict_trie: switch(options.strict_trie, "strict_trie")?,
        candidates: options.n_candidates as usize,
        on_context_full: match (switch(options.on_context_full, "on_context_full")?, options.n_keep) {
            (true, keep) => ContextFull::Shift { keep },
            (false, 0) => ContextFull::Stop,
            (false, keep) => {
                let problem = format!("n_keep is {keep}, which only on_context_full 1 (shift) has a use for");
                return Err(Error::InvalidArgument(problem));
            }
        },
        special_text: switch(options.special_text, "special_text")?,
        no_guessing: switch(options.no_guessing, "no_guessing")?,
    })
}

fn switch(value: u32, name: &str) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::InvalidArgument(format!("{name} is {other}, must be 0 or 1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank() -> SamplingOptions {
        // SAFETY: `Sized32` says that all zeroes are a valid value.
        unsafe { std::mem::zeroed() }
    }

    fn settings(options: &SamplingOptions) -> Result<Settings> {
        let before = Params { temperature: 0.5, top_p: 0.25, ..Params::default() };
        // SAFETY: every test passes live arrays.
        unsafe { to_settings(options, before) }
    }

    #[test]
    fn options_become_settings() {
        let (stop, breakers) = ([c"END".as_ptr(), c"\n\n".as_ptr()], [c".".as_ptr(), c"?".as_ptr()]);
        let (ids, values) = ([5, 9], [1.5, f32::NEG_INFINITY]);
        let options = SamplingOptions {
            seed: 7,
            top_k: 3,
            min_p: 0.1,
            repeat_penalty: 1.25,
            repeat_last_n: -1,
            presence_penalty: 0.5,
            frequency_penalty: 0.75,
            stop: stop.as_ptr(),
            n_stop: 2,
            logit_bias_ids: ids.as_ptr(),
            logit_bias_values: values.as_ptr(),
            n_logit_bias: 2,
            on_span_end: ELIZA_SPAN_STOP,
            strict_trie: 1,
            ignore_eos: 1,
            n_candidates: 4,
            on_context_full: ELIZA_CONTEXT_SHIFT,
            n_keep: 9,
            special_text: 1,
            top_n_sigma: 2.0,
            typical_p: 0.9,
            xtc_probability: 0.5,
            xtc_threshold: 0.2,
            dynatemp_range: 0.25,
            dynatemp_exponent: 1.5,
            dry_multiplier: 0.8,
            dry_base: 1.5,
            dry_allowed_length: 3,
            dry_last_n: 100,
            mirostat: 2,
            mirostat_tau: 4.0,
            mirostat_eta: 0.5,
            adaptive_target: 0.3,
            adaptive_decay: 0.75,
            min_keep: 6,
            generator: ELIZA_GENERATOR_MT19937,
            reasoning_budget: 200,
            samplers: c"xtc;temp".as_ptr(),
            dry_breakers: breakers.as_ptr(),
            n_dry_breakers: 2,
            reasoning_start: c"<think>".as_ptr(),
            reasoning_end: c"</think>".as_ptr(),
            ..blank()
        };
        let is = settings(&options).unwrap();
        assert_eq!((is.params.seed, is.params.top_k, is.params.repeat_last_n), (Some(7), 3, -1));
        assert_eq!((is.params.min_p, is.params.repeat_penalty), (0.1, 1.25));
        assert_eq!((is.params.presence_penalty, is.params.frequency_penalty), (0.5, 0.75));
        assert_eq!((is.params.temperature, is.params.top_p), (0.5, 0.25), "not in the options, so as before");
        assert_eq!(is.params.logit_bias, [(5, 1.5), (9, f32::NEG_INFINITY)]);
        assert_eq!(is.stop, [b"END".to_vec(), b"\n\n".to_vec()]);
        assert_eq!((is.on_span_end, is.strict_trie, is.ignore_eos, is.candidates), (SpanEnd::Stop, true, true, 4));
        let params = &is.params;
        assert_eq!((params.top_n_sigma, params.typical_p, params.min_keep), (2.0, 0.9, 6));
        assert_eq!((params.xtc_probability, params.xtc_threshold), (0.5, 0.2));
        assert_eq!((params.dynatemp_range, params.dynatemp_exponent), (0.25, 1.5));
        let breakers = vec![".".to_owned(), "?".to_owned()];
        assert_eq!(params.dry, Dry { multiplier: 0.8, base: 1.5, allowed_length: 3, last_n: 100, breakers });
        assert_eq!((params.mirostat, params.mirostat_tau, params.mirostat_eta), (Mirostat::Second, 4.0, 0.5));
        assert_eq!((params.adaptive_target, params.adaptive_decay), (0.3, 0.75));
        assert_eq!((params.generator, params.sequence.to_string()), (Generator::Mt19937, "xtc;temperature".into()));
        let budget = ReasoningBudget { tokens: 200, start: "<think>".into(), end: "</think>".into() };
        assert_eq!(is.reasoning, Some(budget));
        let back = to_options(&is);
        assert_eq!((back.top_n_sigma, back.typical_p, back.xtc_probability, back.xtc_threshold), (2.0, 0.9, 0.5, 0.2));
        assert_eq!(
            (back.dynatemp_range, back.dynatemp_exponent, back.dry_multiplier, back.dry_base),
            (0.25, 1.5, 0.8, 1.5)
        );
        assert_eq!((back.dry_allowed_length, back.dry_last_n, back.mirostat, back.generator), (3, 100, 2, 1));
        assert_eq!(
            (back.mirostat_tau, back.mirostat_eta, back.adaptive_target, back.adaptive_decay),
            (4.0, 0.5, 0.3, 0.75)
        );
        assert_eq!((back.min_keep, back.reasoning_budget), (6, 200));
        assert_eq!((back.seed, back.top_k, back.on_span_end, back.n_candidates), (7, 3, 1, 4));
        assert_eq!(is.on_context_full, ContextFull::Shift { keep: 9 });
        assert_eq!((back.on_context_full, back.n_keep, back.special_text), (1, 9, 1));
        assert!(back.stop.is_null() && back.n_stop == 0 && back.n_logit_bias == 0);
    }

    #[test]
    fn zeroes_switch_everything_off() {
        let is = settings(&blank()).unwrap();
        assert_eq!((is.params.seed, is.params.repeat_penalty), (Some(0), 1.0));
        assert_eq!(is.params.chain().to_string(), "top_p=0.25;temp=0.5");
        assert_eq!((is.params.dry.breakers, is.reasoning), (Dry::default().breakers, None));
        assert_eq!(is.on_context_full, ContextFull::Stop);
        let random = settings(&SamplingOptions { seed: ELIZA_SEED_RANDOM, ..blank() }).unwrap();
        assert_eq!(random.params.seed, None);
        assert_eq!(to_options(&random).seed, ELIZA_SEED_RANDOM);
    }

    #[test]
    fn refusals_name_the_field() {
        let refused = |options: SamplingOptions| settings(&options).unwrap_err().to_string();
        assert!(refused(SamplingOptions { n_stop: 1, ..blank() }).contains("stop is NULL"));
        let stop = [std::ptr::null()];
        assert!(refused(SamplingOptions { stop: stop.as_ptr(), n_stop: 1, ..blank() }).contains("stop[0] is NULL"));
        assert!(refused(SamplingOptions { n_logit_bias: 1, ..blank() }).contains("logit_bias_ids"));
        assert!(refused(SamplingOptions { on_span_end: 2, ..blank() }).contains("on_span_end is 2"));
        assert!(refused(SamplingOptions { strict_trie: 9, ..blank() }).contains("strict_trie is 9"));
        assert!(refused(SamplingOptions { ignore_eos: 3, ..blank() }).contains("ignore_eos is 3"));
        assert!(refused(SamplingOptions { on_context_full: 2, ..blank() }).contains("on_context_full is 2"));
        assert!(refused(SamplingOptions { special_text: 2, ..blank() }).contains("special_text is 2"));
        assert!(refused(SamplingOptions { no_guessing: 2, ..blank() }).contains("no_guessing is 2"));
        assert!(refused(SamplingOptions { mirostat: 3, ..blank() }).contains("mirostat is 3"));
        assert!(refused(SamplingOptions { generator: 2, ..blank() }).contains("generator is 2"));
        assert!(refused(SamplingOptions { n_dry_breakers: 1, ..blank() }).contains("dry_breakers is NULL"));
        assert!(refused(SamplingOptions { samplers: c"top_q".as_ptr(), ..blank() }).contains("unknown `top_q`"));
        assert!(refused(SamplingOptions { reasoning_end: c"x".as_ptr(), ..blank() }).contains("go together"));
        assert!(refused(SamplingOptions { n_keep: 5, ..blank() }).contains("n_keep is 5"));
    }
}
