//! The usage of a generation, and how its last token was sampled.

use std::ffi::c_char;

use super::args;
use super::errors::ask;
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::ELIZA_OK;
use super::strings;
use crate::{Error, session};

/// Counters and times since the last prefill began; times are microseconds.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Usage {
    /// sizeof(eliza_llm_usage_t), set by the caller.
    pub struct_size: u32,
    /// Why the generation ended: `ELIZA_FINISH_*`.
    pub finish_reason: i32,
    /// Tokens of the prompt, reused ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were still in the slot and not evaluated again.
    pub prompt_tokens_reused: u64,
    /// Tokens emitted; an end-of-generation token is not.
    pub completion_tokens: u64,
    /// Emitted tokens that were forced by the token trie or the grammar.
    pub forced_tokens: u64,
    /// Model evaluations, those of the prompt included.
    pub forward_passes: u64,
    /// From the start of the prefill to its end.
    pub prefill_us: u64,
    /// From the start of the generation to its first token event; 0 until then.
    pub first_token_us: u64,
    /// From the start of the generation to its end, callbacks included; grows while it runs.
    pub decode_us: u64,
    /// Kernels dispatched on a GPU; 0 on the CPU, as the next four.
    pub gpu_dispatches: u64,
    /// Command buffers submitted to a GPU.
    pub gpu_submissions: u64,
    /// Times the library waited for a GPU.
    pub gpu_waits: u64,
    /// Bytes written to a GPU.
    pub gpu_bytes_uploaded: u64,
    /// Bytes read from a GPU.
    pub gpu_bytes_read: u64,
    /// Sampled tokens for which the token trie or the grammar left a choice.
    pub branching_steps: u64,
    /// Of those, the ones for which all logits were computed, not only those of the legal tokens: more than 512 (of a
    /// grammar 256) are legal, or they are sampled by a chain that compares tokens before the mask.
    pub whole_row_steps: u64,
    /// How many more model evaluations it would have taken to evaluate the generated tokens one by one.
    pub forward_passes_saved: u64,
    /// Logits computed.
    pub logits_computed: u64,
    /// Emitted tokens for which the token trie or the grammar allowed only some tokens.
    pub span_tokens: u64,
    /// The sum of the numbers of tokens that were allowed there.
    pub span_candidates: u64,
    /// How often a full context was shifted to go on.
    pub context_shifts: u64,
    /// Time spent sampling on the host; sampling on a device is part of its pass and not counted.
    pub sample_us: u64,
    /// Tokens that were sampled, by host or device: all but forced tokens and those of leaves that were scored.
    pub sampled_tokens: u64,
    /// Reused prompt tokens that came from a file, by a restore or resume.
    pub prompt_tokens_restored: u64,
    /// Tokens evaluated, of the prompt and of what was generated, repeated ones counted each time.
    pub evaluated_tokens: u64,
    /// Earlier recurrent states and windows of sliding layers that are kept now, of all slots.
    pub snapshots: u64,
    /// Token masks that were computed for the grammar while the generation ran; others were known.
    pub grammar_masks: u64,
    /// States of the grammar that were known at the end of the generation.
    pub grammar_states: u64,
    /// Tokens that were guessed and evaluated before they were sampled, once they are told right from wrong.
    pub drafted_tokens: u64,
    /// Those of them that were sampled: each saved a pass.
    pub accepted_tokens: u64,
}

// SAFETY: repr(C), the size first, plain numbers throughout.
unsafe impl args::Sized32 for Usage {
    const NAME: &'static str = "eliza_llm_usage_t";
}

/// One token that could have been drawn.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Candidate {
    /// The token id.
    pub token: i32,
    /// Its logit after the chain.
    pub logit: f32,
    /// Its probability in the draw.
    pub probability: f32,
}

/// How a token was sampled.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Sampled {
    /// sizeof(eliza_llm_sampled_t), set by the caller.
    pub struct_size: u32,
    /// The token that was drawn.
    pub token: i32,
    /// Natural logarithm of its probability in the draw.
    pub logprob: f32,
    /// Its probability in the draw.
    pub probability: f32,
    /// The host's array for candidates, likeliest first; NULL for none.
    pub candidates: *mut Candidate,
    /// Room in `candidates`.
    pub candidates_cap: usize,
    /// How many candidates there are; at most `candidates_cap` of them were written.
    pub n_candidates: usize,
}

// SAFETY: repr(C), the size first, then numbers and a raw pointer: all may be zero.
unsafe impl args::Sized32 for Sampled {
    const NAME: &'static str = "eliza_llm_sampled_t";
}

/// The usage of the last prompt and the generation after it; also while that runs.
///
/// Ownership: `out` is the host's; set its `struct_size` first. Null rule: `out` must not be NULL; a NULL or closed
/// handle is -1. Threads: any, any time, inside the callback too. Returns `ELIZA_OK`, -1 (handle),
/// `ELIZA_ERR_INVALID_ARG` (NULL, `struct_size`) or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_usage(handle: FfiLlmHandle, out: *mut Usage) -> i32 {
    let fill = |stream: &Stream| {
        // SAFETY: the host's structure is null or as long as it says.
        unsafe { args::write(out, &to_usage(&stream.session.usage()))? };
        Ok(ELIZA_OK)
    };
    ask(handle, fill).unwrap_or_else(|code| code)
}

/// Usage, model, device and sizes as one JSON object.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`. Returns NULL for a NULL or closed handle
/// and after a fault; the reason is kept as for any call. Threads: any, any time, inside the callback too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_usage_json(handle: FfiLlmHandle) -> *mut c_char {
    ask(handle, |stream: &Stream| Ok(strings::give(&stream.session.usage_json()))).unwrap_or(std::ptr::null_mut())
}

/// How the last sampled token of a slot was drawn; `slot_id` -1 is the fresh slot. Tokens that a trie forced were not
/// sampled. Candidates are kept when the option `n_candidates` asks for them.
///
/// Ownership: `out` and its array are the host's; set `struct_size`, `candidates` and `candidates_cap` first. Null
/// rule: `out` must not be NULL; `candidates` may be where `candidates_cap` is 0; a NULL or closed handle is -1.
/// Threads: any, any time, inside the callback too. Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG` (NULL,
/// `struct_size`, nothing sampled yet) or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_sampled(
    handle: FfiLlmHandle,
    slot_id: i32,
    out: *mut Sampled,
) -> i32 {
    let fill = |stream: &Stream| {
        // SAFETY: the host's structure is null or as long as it says, its array as long as its capacity.
        let (host, room) = unsafe {
            let host = args::read(out)?;
            (host, args::array_mut(host.candidates, host.candidates_cap, "candidates")?)
        };
        let sampled = stream
            .session
            .sampled(slot_id)
            .ok_or_else(|| Error::InvalidArgument(format!("Nothing was sampled on slot {slot_id} yet")))?;
        for (to, &(token, logit, probability)) in room.iter_mut().zip(&sampled.candidates) {
            *to = Candidate { token, logit, probability };
        }
        let answer = Sampled {
            token: sampled.token,
            logprob: sampled.logprob,
            probability: sampled.prob,
            n_candidates: sampled.candidates.len(),
            ..host
        };
        // SAFETY: as above.
        unsafe { args::write(out, &answer)? };
        Ok(ELIZA_OK)
    };
    ask(handle, fill).unwrap_or_else(|code| code)
}

fn to_usage(usage: &session::Usage) -> Usage {
    Usage {
        struct_size: size_of::<Usage>() as u32,
        finish_reason: usage.finish_reason as i32,
        prompt_tokens: usage.prompt_tokens,
        prompt_tokens_reused: usage.prompt_tokens_reused,
        completion_tokens: usage.completion_tokens,
        forced_tokens: usage.forced_tokens,
        forward_passes: usage.forward_passes,
        prefill_us: usage.prefill_us,
        first_token_us: usage.first_token_us,
        decode_us: usage.decode_us,
        gpu_dispatches: usage.gpu_dispatches,
        gpu_submissions: usage.gpu_submissions,
        gpu_waits: usage.gpu_waits,
        gpu_bytes_uploaded: usage.gpu_bytes_uploaded,
        gpu_bytes_read: usage.gpu_bytes_read,
        branching_steps: usage.branching_steps,
        whole_row_steps: usage.whole_row_steps,
        forward_passes_saved: usage.forward_passes_saved,
        logits_computed: usage.logits_computed,
        span_tokens: usage.span_tokens,
        span_candidates: usage.span_candidates,
        context_shifts: usage.context_shifts,
        sample_us: usage.sample_us,
        sampled_tokens: usage.sampled_tokens,
        prompt_tokens_restored: usage.prompt_tokens_restored,
        evaluated_tokens: usage.evaluated_tokens,
        snapshots: usage.snapshots,
        grammar_masks: usage.grammar_masks,
        grammar_states: usage.grammar_states,
        drafted_tokens: usage.drafted_tokens,
        accepted_tokens: usage.accepted_tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::{
        ELIZA_FINISH_CANCELLED, ELIZA_FINISH_CONTEXT, ELIZA_FINISH_ERROR, ELIZA_FINISH_LENGTH, ELIZA_FINISH_NONE,
        ELIZA_FINISH_SPAN, ELIZA_FINISH_STOP,
    };
    use crate::session::FinishReason;

    #[test]
    fn finish_reasons_are_the_headers_numbers() {
        let pairs = [
            (FinishReason::None, ELIZA_FINISH_NONE),
            (FinishReason::Stop, ELIZA_FINISH_STOP),
            (FinishReason::Length, ELIZA_FINISH_LENGTH),
            (FinishReason::Cancelled, ELIZA_FINISH_CANCELLED),
            (FinishReason::Error, ELIZA_FINISH_ERROR),
            (FinishReason::Context, ELIZA_FINISH_CONTEXT),
            (FinishReason::Span, ELIZA_FINISH_SPAN),
        ];
        for (reason, number) in pairs {
            let usage = session::Usage { finish_reason: reason, ..session::Usage::default() };
            assert_eq!(to_usage(&usage).finish_reason, number, "{reason:?}");
        }
    }
}
