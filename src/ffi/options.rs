//! Sampling options, stop strings and chains, which are not arguments of generate.

use std::ffi::c_char;

use super::args;
use super::errors::{ask, on_handle};
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::ELIZA_OK;
use crate::session::{Chain, ContextFull, Params, Settings, SpanEnd};
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
    /// Must be 0.
    pub reserved: u32,
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
/// Returns `ELIZA_OK`, or changes nothing and returns -1 (handle), `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_OOM` (more than a
/// grammar may hold), `ELIZA_ERR_NOT_IMPLEMENTED`, `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`. After a grammar that is
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
        reserved: 0,
    }
}

/// The settings of the options; temperature and top-p, which are not in the options, are those of `before`.
///
/// # Safety
/// The arrays of `options` are null or as long as their counts, the strings terminated.
unsafe fn to_settings(options: &SamplingOptions, before: Params) -> Result<Settings> {
    if options.reserved != 0 {
        return Err(Error::InvalidArgument(format!("reserved is {}, must be 0", options.reserved)));
    }
    // SAFETY: the caller's promise.
    let (stop, ids, values) = unsafe {
        (
            args::array(options.stop, options.n_stop, "stop")?,
            args::array(options.logit_bias_ids, options.n_logit_bias, "logit_bias_ids")?,
            args::array(options.logit_bias_values, options.n_logit_bias, "logit_bias_values")?,
        )
    };
    let stop = stop.iter().enumerate().map(|(index, &text)| {
        // SAFETY: the caller's promise.
        unsafe { args::text(text, &format!("stop[{index}]")) }.map(|text| text.as_bytes().to_vec())
    });
    Ok(Settings {
        params: Params {
            seed: if options.seed == ELIZA_SEED_RANDOM { None } else { Some(options.seed.into()) },
            top_k: options.top_k,
            min_p: options.min_p,
            repeat_penalty: if options.repeat_penalty == 0.0 { 1.0 } else { options.repeat_penalty },
            repeat_last_n: options.repeat_last_n,
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            logit_bias: ids.iter().copied().zip(values.iter().copied()).collect(),
            ..before
        },
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
        let stop = [c"END".as_ptr(), c"\n\n".as_ptr()];
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
        let back = to_options(&is);
        assert_eq!((back.seed, back.top_k, back.on_span_end, back.n_candidates), (7, 3, 1, 4));
        assert_eq!(is.on_context_full, ContextFull::Shift { keep: 9 });
        assert_eq!((back.on_context_full, back.n_keep, back.special_text), (1, 9, 1));
        assert!(back.stop.is_null() && back.n_stop == 0 && back.n_logit_bias == 0);
    }

    #[test]
    fn zeroes_switch_everything_off() {
        let is = settings(&blank()).unwrap();
        assert_eq!((is.params.seed, is.params.repeat_penalty), (Some(0), 1.0));
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
        assert!(refused(SamplingOptions { reserved: 2, ..blank() }).contains("reserved is 2"));
        assert!(refused(SamplingOptions { n_keep: 5, ..blank() }).contains("n_keep is 5"));
    }
}
