//! Counters and times of one prompt and the generation after it.

use super::{FinishReason, ModelInfo};
use crate::backend::kernel_times::{self, KernelTime};
use crate::engine::EngineStats;
use crate::grammar::spans::{SpanEvent, SpanTracker};
use crate::grammar::{SpanKind, SpanPlan};
use crate::trie::cache;
use std::path::Path;

/// Counters and times since the last prefill began. Times are microseconds of wall clock on the worker thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Tokens of the prompt, reused ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were still in the slot and were not evaluated again.
    pub prompt_tokens_reused: u64,
    /// Those of them that came from a file, by a restore.
    pub prompt_tokens_restored: u64,
    /// Tokens evaluated, of the prompt and of what was generated, repeated ones counted each time.
    pub evaluated_tokens: u64,
    /// Snapshots that are kept now, of all slots: earlier recurrent states and windows of sliding layers, after which a
    /// prompt can go on.
    pub snapshots: u64,
    /// Tokens emitted; an end-of-generation token is not.
    pub completion_tokens: u64,
    /// Emitted tokens that were forced by the token trie or the grammar.
    pub forced_tokens: u64,
    /// Sampled tokens for which the token trie or the grammar left a choice.
    pub branching_steps: u64,
    /// Of those, the ones for which all logits were computed, not only those of the legal tokens: more than 512 (of a
    /// grammar 256) are legal, or they are sampled by a chain that compares tokens before the mask.
    pub whole_row_steps: u64,
    /// Emitted tokens for which the token trie or the grammar allowed only some tokens.
    pub span_tokens: u64,
    /// The sum of the numbers of tokens that were allowed there.
    pub span_candidates: u64,
    /// How often tokens were taken out of a full context; see [`ContextFull`](super::ContextFull).
    pub context_shifts: u64,
    /// Requests to the server that has the model, repeated ones included; 0 where the model is here.
    pub server_requests: u64,
    /// Tokens of the prompt that the server still had, where it says so.
    pub server_cached_tokens: u64,
    /// Model evaluations, those of the prompt included.
    pub forward_passes: u64,
    /// How many more evaluations one per generated token would have taken.
    pub forward_passes_saved: u64,
    /// Logits computed.
    pub logits_computed: u64,
    /// Kernels dispatched on a GPU.
    pub gpu_dispatches: u64,
    /// Command buffers submitted to a GPU.
    pub gpu_submissions: u64,
    /// Times the host waited for a GPU.
    pub gpu_waits: u64,
    /// Bytes written to a GPU.
    pub gpu_bytes_uploaded: u64,
    /// Bytes read from a GPU.
    pub gpu_bytes_read: u64,
    /// From the start of the prefill to its end.
    pub prefill_us: u64,
    /// From the start of the generation to its first token event; 0 until then.
    pub first_token_us: u64,
    /// From the start of the generation to its end, callbacks included; while it runs, to its last token.
    pub decode_us: u64,
    /// Time that the host spent sampling from logits, or from the candidates that a device left. Sampling on a device
    /// is part of its pass and not counted.
    pub sample_us: u64,
    /// Tokens that were sampled, by host or device: all but forced tokens and those of leaves that were scored.
    pub sampled_tokens: u64,
    /// Token masks that were computed for the grammar while this generation ran; others were known.
    pub grammar_masks: u64,
    /// States of the grammar that are known at the end of the generation.
    pub grammar_states: u64,
    /// Tokens that were guessed and evaluated before they were sampled, once they are told right from wrong.
    pub drafted_tokens: u64,
    /// Those of them that were sampled: each saved a pass.
    pub accepted_tokens: u64,
    /// Why the generation ended.
    pub finish_reason: FinishReason,
}

impl Usage {
    /// Sets the counters to the difference of two readings of the engine.
    pub(crate) fn count(&mut self, before: &EngineStats, now: &EngineStats) {
        self.evaluated_tokens = now.rows - before.rows;
        self.snapshots = now.snapshots;
        self.server_requests = now.requests - before.requests;
        self.server_cached_tokens = now.cached;
        self.forward_passes = now.forward_passes - before.forward_passes;
        self.logits_computed = now.logits - before.logits;
        let traffic = now.traffic - before.traffic;
        self.gpu_dispatches = traffic.dispatches;
        self.gpu_submissions = traffic.submissions;
        self.gpu_waits = traffic.waits;
        self.gpu_bytes_uploaded = traffic.bytes_uploaded;
        self.gpu_bytes_read = traffic.bytes_read;
    }
}

/// What [`Session::usage_json`](super::Session::usage_json) prints.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Telemetry<'a> {
    model: &'a ModelInfo,
    /// The model's file or address that the last prompt was given to.
    served_by: String,
    usage: Usage,
    /// Prompts that are warmed up or wait for that.
    prewarms: usize,
    /// Bytes of weights per second of decoding, where each token that was not forced counts as one read of all weights.
    decode_weight_bytes_s: Option<f64>,
    /// The mean share of the vocabulary that the token trie's masks excluded, 0 to 1.
    skip_ratio: Option<f64>,
    /// The chain of the last generation: `+` before a step that the device runs, `-` before one that the host runs.
    chain: &'a str,
    trie_cache: TrieCache,
    /// What kernels took on GPUs since the process began, the longest first, where that is measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelTime>,
    /// Those of the last generation, where its grammar reports them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    spans: Vec<NamedSpan>,
}

/// A span of a generated text.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct NamedSpan {
    #[serde(flatten)]
    event: SpanEvent,
    kind: SpanKind,
    key: Option<String>,
}

impl NamedSpan {
    /// The spans of a tracker with what a plan says of them.
    pub(crate) fn all(plan: &SpanPlan, tracker: &SpanTracker) -> Vec<NamedSpan> {
        let named = |event: &SpanEvent| {
            let info = plan.spans().get(event.span as usize)?;
            Some(NamedSpan { event: *event, kind: info.kind, key: info.key.clone() })
        };
        tracker.events().iter().filter_map(named).collect()
    }
}

/// The process-wide cache of compiled tries.
#[derive(Debug, serde::Serialize)]
struct TrieCache {
    hits: u64,
    misses: u64,
    entries: usize,
    bytes: usize,
}

impl<'a> Telemetry<'a> {
    pub(crate) fn new(
        model: &'a ModelInfo,
        served_by: &Path,
        usage: Usage,
        prewarms: usize,
        chain: &'a str,
        spans: Vec<NamedSpan>,
    ) -> Telemetry<'a> {
        let tokens = usage.completion_tokens.saturating_sub(usage.forced_tokens);
        let read = model.weight_bytes_per_token as f64 * tokens as f64;
        let decode_weight_bytes_s = (usage.decode_us > 0).then(|| read / (usage.decode_us as f64 / 1e6));
        let candidates = usage.span_candidates as f64 / (usage.span_tokens as f64 * model.n_vocab as f64);
        let skip_ratio = (usage.span_tokens > 0).then_some(1.0 - candidates);
        let cache::CacheStats { hits, misses, entries, bytes } = cache::stats();
        Telemetry {
            model,
            served_by: served_by.to_string_lossy().into_owned(),
            usage,
            prewarms,
            decode_weight_bytes_s,
            skip_ratio,
            chain,
            trie_cache: TrieCache { hits, misses, entries, bytes },
            kernels: kernel_times::all(),
            spans,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_skip_ratio_is_the_mean_share_that_was_ruled_out() {
        let model = ModelInfo { n_vocab: 100, ..ModelInfo::default() };
        let ratio = |span_tokens, span_candidates| {
            let usage = Usage { span_tokens, span_candidates, ..Usage::default() };
            Telemetry::new(&model, Path::new("m"), usage, 0, "", Vec::new()).skip_ratio
        };
        assert_eq!((ratio(0, 0), ratio(4, 40), ratio(1, 1)), (None, Some(0.9), Some(0.99)));
    }

    #[test]
    fn the_rate_of_decoding_is_that_of_tokens_that_read_weights() {
        let model = ModelInfo { weight_bytes_per_token: 1000, ..ModelInfo::default() };
        let rate = |decode_us| {
            let usage = Usage { completion_tokens: 5, forced_tokens: 1, decode_us, ..Usage::default() };
            Telemetry::new(&model, Path::new("m"), usage, 0, "", Vec::new()).decode_weight_bytes_s
        };
        assert_eq!((rate(2_000_000), rate(0)), (Some(2000.0), None));
    }
}
