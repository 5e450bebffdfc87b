//! What each kind of server calls things: one table. Paths of fields are JSON pointers (RFC 6901).

use crate::Token;
use serde_json::{Value, json};

/// How a grammar writes a token.
pub type Spelling = fn(Token) -> String;

/// One kind of server.
#[derive(Debug)]
pub(super) struct Dialect {
    pub kind: &'static str,
    /// Where a completion is asked for.
    pub generate: &'static str,
    /// The field with the prompt's token ids, or a list of such prompts where [`Dialect::scores`] says so.
    pub prompt: &'static str,
    /// The field with a prompt that is a text.
    pub text_prompt: &'static str,
    /// The field that keeps an answer from ending, if there is one.
    pub ignore_eos: Option<&'static str>,
    /// The most tokens of the answer.
    pub max_tokens: &'static str,
    /// Fields that are always sent, as true.
    pub always: &'static [&'static str],
    /// The samplers that it has, with the field and the value that turns each off, which is sent where it is not used:
    /// servers have defaults of their own.
    pub samplers: &'static [(Knob, &'static str, f64)],
    /// The field of the seed, and the greatest that it takes.
    pub seed: (&'static str, u64),
    pub bias: (&'static str, Bias),
    /// The field of a grammar, and how it writes a token; `None` has no grammars.
    pub grammar: Option<(&'static str, Spelling)>,
    pub event: Event,
    pub scores: Scores,
    pub tokenize: Option<Tokenize>,
    /// Places of the greatest context, at the path that has it.
    pub context: &'static [(&'static str, &'static str)],
    /// Places of the number of tokens in its vocabulary.
    pub n_vocab: &'static [(&'static str, &'static str)],
    /// Places of what it says of itself.
    pub version: &'static [(&'static str, &'static str)],
}

/// A number of a sampler chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knob {
    /// Divides the logits.
    Temperature,
    /// Candidates that top-k keeps.
    TopK,
    /// Probability that top-p keeps.
    TopP,
    /// Threshold of min-p.
    MinP,
    /// Probability that typical-p keeps.
    TypicalP,
    /// Standard deviations of top-n-sigma.
    TopNSigma,
    /// Window of the penalties.
    RepeatLastN,
    /// Repeat penalty.
    Repeat,
    /// Frequency penalty.
    Frequency,
    /// Presence penalty.
    Presence,
}

/// How added logits are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    /// `{"5": -100}`
    Map,
    /// `[[5, -100]]`; false in place of a number removes a token.
    Pairs,
}

/// Where things are in an event.
#[derive(Debug)]
pub(super) struct Event {
    /// Token ids; `None` where there is only text.
    pub tokens: Option<&'static str>,
    pub text: &'static str,
    /// Whether both have all of the answer so far.
    pub cumulative: bool,
    /// Where the reason is, once the answer has ended.
    pub finish: &'static str,
    /// The word for the end by length.
    pub length: &'static str,
    /// How many tokens of the prompt the server still had.
    pub cached: &'static str,
}

/// How continuations are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scores {
    /// It tells the probabilities of prompts' tokens, of many prompts at once.
    PromptLogprobs,
    /// It tells those of the last tokens of many prompts.
    InputLogprobs,
    /// Each continuation is forced by a grammar, in a request of its own.
    Forced,
    /// It tells no probabilities.
    None,
}

/// How a text is tokenized.
#[derive(Debug)]
pub(super) struct Tokenize {
    pub path: &'static str,
    pub text: &'static str,
    pub add_special: &'static str,
}

static DIALECTS: [Dialect; 4] = [
    Dialect {
        kind: "vllm",
        generate: "/v1/completions",
        prompt: "/prompt",
        text_prompt: "/prompt",
        ignore_eos: Some("/ignore_eos"),
        max_tokens: "/max_tokens",
        always: &["/stream", "/stream_options/include_usage", "/return_token_ids"],
        samplers: &[
            (Knob::Temperature, "/temperature", 1.0),
            (Knob::TopK, "/top_k", 0.0),
            (Knob::TopP, "/top_p", 1.0),
            (Knob::MinP, "/min_p", 0.0),
            (Knob::Repeat, "/repetition_penalty", 1.0),
            (Knob::Frequency, "/frequency_penalty", 0.0),
            (Knob::Presence, "/presence_penalty", 0.0),
        ],
        seed: ("/seed", i64::MAX as u64),
        bias: ("/logit_bias", Bias::Map),
        grammar: Some(("/structured_outputs/grammar", |token| format!("Token({token})"))),
        event: Event { tokens: Some("/choices/0/token_ids"), ..COMPLETION },
        scores: Scores::PromptLogprobs,
        tokenize: Some(Tokenize { path: "/tokenize", text: "prompt", add_special: "add_special_tokens" }),
        context: &[("/v1/models", "/max_model_len")],
        n_vocab: &[],
        version: &[("/version", "/version")],
    },
    Dialect {
        kind: "sglang",
        generate: "/generate",
        prompt: "/input_ids",
        text_prompt: "/text",
        ignore_eos: Some("/sampling_params/ignore_eos"),
        max_tokens: "/sampling_params/max_new_tokens",
        always: &["/stream"],
        samplers: &[
            (Knob::Temperature, "/sampling_params/temperature", 1.0),
            (Knob::TopK, "/sampling_params/top_k", -1.0),
            (Knob::TopP, "/sampling_params/top_p", 1.0),
            (Knob::MinP, "/sampling_params/min_p", 0.0),
            (Knob::Repeat, "/sampling_params/repetition_penalty", 1.0),
            (Knob::Frequency, "/sampling_params/frequency_penalty", 0.0),
            (Knob::Presence, "/sampling_params/presence_penalty", 0.0),
        ],
        seed: ("/sampling_params/sampling_seed", i64::MAX as u64),
        bias: ("/sampling_params/logit_bias", Bias::Map),
        grammar: Some(("/sampling_params/ebnf", |token| format!("Token({token})"))),
        event: Event {
            tokens: Some("/output_ids"),
            text: "/text",
            cumulative: true,
            finish: "/meta_info/finish_reason/type",
            length: "length",
            cached: "/meta_info/cached_tokens",
        },
        scores: Scores::InputLogprobs,
        tokenize: Some(Tokenize { path: "/tokenize", text: "prompt", add_special: "add_special_tokens" }),
        context: &[("/v1/models", "/max_model_len"), ("/server_info", "/context_length")],
        n_vocab: &[("/server_info", "/vocab_size")],
        version: &[("/server_info", "/version")],
    },
    Dialect {
        kind: "llama-server",
        generate: "/completion",
        prompt: "/prompt",
        text_prompt: "/prompt",
        ignore_eos: Some("/ignore_eos"),
        max_tokens: "/n_predict",
        always: &["/stream", "/return_tokens", "/cache_prompt"],
        samplers: &[
            (Knob::Temperature, "/temperature", 1.0),
            (Knob::TopK, "/top_k", 0.0),
            (Knob::TopP, "/top_p", 1.0),
            (Knob::MinP, "/min_p", 0.0),
            (Knob::TypicalP, "/typical_p", 1.0),
            (Knob::TopNSigma, "/top_n_sigma", -1.0),
            (Knob::RepeatLastN, "/repeat_last_n", 0.0),
            (Knob::Repeat, "/repeat_penalty", 1.0),
            (Knob::Frequency, "/frequency_penalty", 0.0),
            (Knob::Presence, "/presence_penalty", 0.0),
        ],
        seed: ("/seed", u32::MAX as u64),
        bias: ("/logit_bias", Bias::Pairs),
        grammar: Some(("/grammar", |token| format!("<[{token}]>"))),
        event: Event {
            tokens: Some("/tokens"),
            text: "/content",
            cumulative: false,
            finish: "/stop_type",
            length: "limit",
            cached: "/timings/cache_n",
        },
        scores: Scores::Forced,
        tokenize: Some(Tokenize { path: "/tokenize", text: "content", add_special: "add_special" }),
        context: &[("/props", "/default_generation_settings/n_ctx"), ("/v1/models", "/meta/n_ctx")],
        n_vocab: &[("/v1/models", "/meta/n_vocab")],
        version: &[("/props", "/build_info")],
    },
    Dialect {
        kind: "openai",
        generate: "/v1/completions",
        prompt: "/prompt",
        text_prompt: "/prompt",
        ignore_eos: None,
        max_tokens: "/max_tokens",
        always: &["/stream", "/stream_options/include_usage"],
        samplers: &[
            (Knob::Temperature, "/temperature", 1.0),
            (Knob::TopP, "/top_p", 1.0),
            (Knob::Frequency, "/frequency_penalty", 0.0),
            (Knob::Presence, "/presence_penalty", 0.0),
        ],
        seed: ("/seed", i64::MAX as u64),
        bias: ("/logit_bias", Bias::Map),
        grammar: None,
        event: COMPLETION,
        scores: Scores::None,
        tokenize: None,
        context: &[("/v1/models", "/max_model_len"), ("/v1/models", "/context_length")],
        n_vocab: &[],
        version: &[],
    },
];

/// An event of OpenAI's completions.
const COMPLETION: Event = Event {
    tokens: None,
    text: "/choices/0/text",
    cumulative: false,
    finish: "/choices/0/finish_reason",
    length: "length",
    cached: "/usage/prompt_tokens_details/cached_tokens",
};

/// The dialect of a kind.
pub(super) fn of(kind: &str) -> Option<&'static Dialect> {
    DIALECTS.iter().find(|dialect| dialect.kind == kind)
}

/// Sets the field at a pointer of names; objects on the way are made.
pub(super) fn set(body: &mut Value, pointer: &str, value: Value) {
    let mut place = body;
    for name in pointer.split('/').skip(1) {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[name];
    }
    *place = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::KINDS;

    #[test]
    fn every_kind_has_its_row() {
        assert!(KINDS.iter().all(|kind| of(kind).is_some()));
        assert_eq!(DIALECTS.len(), KINDS.len());
        assert!(of("tgi").is_none());
    }

    #[test]
    fn fields_are_set_where_their_pointers_lead() {
        let mut body = json!({"a": 1});
        set(&mut body, "/b/c", json!(2));
        set(&mut body, "/b/d", json!(true));
        assert_eq!(body, json!({"a": 1, "b": {"c": 2, "d": true}}));
    }
}
