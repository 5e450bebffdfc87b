//! The demo model behind the interfaces of four kinds of servers: what the engine here says, it says over HTTP.

use crate::fake::{Reply, Seen};
use crate::testing;
use elizainference::Token;
use elizainference::session::{
    EmbedOptions, EngineOptions, Event, FinishReason, KvType, OpenOptions, Pooling, Session, Sink,
};
use serde_json::{Value, json};
use std::io::Result;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

pub const NAME: &str = "demo/model";
pub const CONTEXT: u32 = 512;

/// How texts become rows.
pub const MEAN: EmbedOptions = EmbedOptions { pooling: Some(Pooling::Mean), normalize: false, dimensions: 0 };

/// The demo model in single precision: activations that are rounded to eight bits for its own weights would make sums
/// in another order differ by hundredths.
pub fn path() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo-f32.gguf");
        let program = Command::new(env!("CARGO_BIN_EXE_eliza-inference"))
            .args(["quantize", "--type", "f32"])
            .args([&testing::demo(), &path])
            .output()
            .unwrap();
        assert!(program.status.success(), "{}", String::from_utf8_lossy(&program.stderr));
        path
    });
    &PATH
}

/// That model on this machine.
pub fn local() -> Session {
    let engine =
        EngineOptions { context: CONTEXT, kv_type: KvType::F32, slots: 2, threads: 1, ..EngineOptions::default() };
    Session::open(OpenOptions { path: path().into(), engine, ..OpenOptions::default() }).unwrap()
}

/// What a server of some kind does.
pub struct Model {
    kind: &'static str,
    session: Mutex<Session>,
    /// Bytes of one write.
    pub piece: usize,
    /// Tokens of one event.
    pub together: usize,
    /// Generations that ended because the client went away.
    pub cancelled: Arc<AtomicUsize>,
}

impl Model {
    pub fn new(kind: &'static str) -> Model {
        let session = Mutex::new(local());
        Model { kind, session, piece: usize::MAX, together: 1, cancelled: Arc::default() }
    }

    pub fn answer(&self, seen: &Seen, reply: &mut Reply<'_>) -> Result<()> {
        reply.piece = self.piece;
        let body = &seen.body;
        match (&seen.path[..], self.kind) {
            ("/v1/models", kind) => {
                let mut model = json!({ "id": NAME, "object": "model" });
                if kind == "vllm" {
                    model["max_model_len"] = json!(CONTEXT);
                }
                if kind == "llama-server" {
                    model["meta"] = json!({ "n_vocab": self.session.lock().unwrap().info().n_vocab });
                }
                reply.json(200, &json!({ "data": [model] }))
            }
            ("/version", "vllm") => reply.json(200, &json!({ "version": "0.32.0" })),
            ("/props", "llama-server") => {
                reply.json(200, &json!({ "default_generation_settings": { "n_ctx": CONTEXT }, "build_info": "b1" }))
            }
            ("/server_info", "sglang") => reply.json(200, &json!({ "context_length": CONTEXT, "version": "0.5.23" })),
            ("/tokenize", "vllm" | "sglang" | "llama-server") => {
                let text = body["prompt"].as_str().or(body["content"].as_str()).unwrap_or_default();
                let ids = self.session.lock().unwrap().tokenize(text.as_bytes(), false, true).unwrap();
                reply.json(200, &json!({ "tokens": ids }))
            }
            ("/v1/completions", "vllm" | "openai") => match body["prompt_logprobs"].is_null() {
                true => self.complete(body, body, reply),
                false => self.prompt_logprobs(body, reply),
            },
            ("/completion", "llama-server") => match body["n_probs"].is_null() {
                true => self.complete(body, body, reply),
                false => self.forced(body, reply),
            },
            ("/generate", "sglang") => match body["return_logprob"].is_null() {
                true => self.complete(body, &body["sampling_params"], reply),
                false => self.input_logprobs(body, reply),
            },
            ("/v1/embeddings", _) => {
                let texts: Vec<Vec<Token>> = body["input"].as_array().unwrap().iter().map(ids).collect();
                let rows = self.session.lock().unwrap().embed(texts, &MEAN).unwrap();
                let row = |(index, row): (usize, &Vec<f32>)| json!({ "index": index, "embedding": row });
                reply.json(200, &json!({ "data": rows.texts.iter().enumerate().map(row).collect::<Vec<_>>() }))
            }
            _ => reply.json(404, &json!({ "detail": "Not Found" })),
        }
    }

    fn complete(&self, body: &Value, sampling: &Value, reply: &mut Reply<'_>) -> Result<()> {
        let session = self.session.lock().unwrap();
        let prompt = body.get("prompt").or(body.get("input_ids")).unwrap_or(&body["text"]);
        let prompt = match prompt.as_str() {
            Some(text) => session.tokenize(text.as_bytes(), true, true).unwrap(),
            None => ids(prompt),
        };
        let names = ["max_tokens", "max_new_tokens", "n_predict"];
        let most = names.iter().find_map(|name| sampling[*name].as_i64()).unwrap();
        let grammars = ["/grammar", "/ebnf", "/structured_outputs/grammar"];
        let grammar = grammars.iter().find_map(|place| sampling.pointer(place)?.as_str());
        let mut settings = session.settings();
        settings.params.logit_bias = biases(&sampling["logit_bias"]);
        settings.params.seed = ["seed", "sampling_seed"].iter().find_map(|name| sampling[*name].as_u64());
        settings.params.top_k = sampling["top_k"].as_i64().unwrap_or(0) as i32;
        settings.params.min_p = sampling["min_p"].as_f64().unwrap_or(0.0) as f32;
        session.configure(settings).unwrap();
        session.clear_grammar().unwrap();
        if let Some(grammar) = grammar {
            // xgrammar writes a token as Token(5).
            let gbnf = regex_lite::Regex::new(r"Token\((\d+)\)").unwrap().replace_all(grammar, "<[$1]>").into_owned();
            let source = json!({ "gbnf": gbnf, "jump_ahead": "off" }).to_string();
            if let Err(error) = session.set_grammar(source.as_bytes()) {
                return reply.json(400, &json!({ "error": { "message": error.to_string(), "code": 400 } }));
            }
        }
        session.prefill(&prompt, -1).unwrap();
        let (sender, tokens) = channel();
        let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
            let _ = sender.send((!event.done).then_some(event.token));
        }));
        let temperature = sampling["temperature"].as_f64().unwrap() as f32;
        let top_p = sampling["top_p"].as_f64().unwrap_or(1.0) as f32;
        session.generate(most as i32, Some(temperature), Some(top_p), sink).unwrap();
        reply.begin_events()?;
        let mut all = Vec::new();
        let mut few = Vec::new();
        for token in tokens.iter() {
            few.extend(token);
            // Servers keep the beginning of a character back.
            let mut bytes = Vec::new();
            few.iter().for_each(|&id| session.vocab().piece(id, false, &mut bytes));
            let cut = std::str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_none());
            if (token.is_some() && (cut || few.len() < self.together)) || few.is_empty() {
                continue;
            }
            all.append(&mut few.clone());
            let sent = reply.event(&self.event(&session, &few, &all, None));
            few.clear();
            if sent.is_err() {
                session.cancel();
                session.wait_idle(Duration::from_secs(10));
                self.cancelled.fetch_add(1, Ordering::AcqRel);
                return sent;
            }
        }
        let by_length = session.usage().finish_reason == FinishReason::Length;
        // vLLM's answer has the token that ended it.
        let last = session.vocab().eog_tokens().first().filter(|_| self.kind == "vllm" && !by_length);
        few.extend(last);
        reply.event(&self.event(&session, &few, &all, Some(by_length)))?;
        if self.kind != "llama-server" {
            if self.kind == "vllm" {
                let cached = json!({ "prompt_tokens_details": { "cached_tokens": 5 } });
                reply.event(&json!({ "choices": [], "usage": cached }))?;
            }
            reply.chunks(b"data: [DONE]\n\n")?;
        }
        reply.end_events()
    }

    fn event(&self, session: &Session, few: &[Token], all: &[Token], by_length: Option<bool>) -> Value {
        let text = |tokens: &[Token]| {
            let bytes = session.detokenize(tokens, false, true).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        match self.kind {
            "llama-server" => {
                let reason = by_length.map_or("none", |by_length| if by_length { "limit" } else { "eos" });
                json!({ "content": text(few), "tokens": few, "stop": by_length.is_some(), "stop_type": reason })
            }
            "sglang" => {
                let reason = by_length.map(|by_length| json!({ "type": if by_length { "length" } else { "stop" } }));
                json!({ "text": text(all), "output_ids": all, "meta_info": { "finish_reason": reason } })
            }
            kind => {
                let reason = by_length.map(|by_length| if by_length { "length" } else { "stop" });
                let mut choice = json!({ "index": 0, "finish_reason": reason });
                let spoken: Vec<Token> = few.iter().copied().filter(|&id| !session.vocab().is_eog(id)).collect();
                // The text of a token that begins a text has a space less; what is sent is what follows others.
                let mut bytes = Vec::new();
                spoken.iter().for_each(|&id| session.vocab().piece(id, false, &mut bytes));
                choice["text"] = json!(String::from_utf8_lossy(&bytes));
                if kind == "vllm" {
                    choice["token_ids"] = json!(few);
                }
                json!({ "choices": [choice] })
            }
        }
    }

    fn prompt_logprobs(&self, body: &Value, reply: &mut Reply<'_>) -> Result<()> {
        let session = self.session.lock().unwrap();
        let prompts: Vec<Vec<Token>> = body["prompt"].as_array().unwrap().iter().map(ids).collect();
        let choice = |(index, prompt): (usize, &Vec<Token>)| {
            let entry =
                |(token, logprob): (&Token, f64)| json!({ token.to_string(): { "logprob": logprob, "rank": 1 } });
            let entries = prompt[1..].iter().zip(logprobs(&session, prompt)).map(entry);
            let all: Vec<Value> = std::iter::once(Value::Null).chain(entries).collect();
            json!({ "index": index, "prompt_logprobs": all })
        };
        // In no order.
        let choices: Vec<Value> = prompts.iter().enumerate().rev().map(choice).collect();
        reply.json(200, &json!({ "choices": choices }))
    }

    fn input_logprobs(&self, body: &Value, reply: &mut Reply<'_>) -> Result<()> {
        let session = self.session.lock().unwrap();
        let start = body["logprob_start_len"].as_u64().unwrap() as usize;
        let one = |prompt: Vec<Token>| {
            let told =
                prompt[1..].iter().zip(logprobs(&session, &prompt)).map(|(id, logprob)| json!([logprob, id, null]));
            let all: Vec<Value> = std::iter::once(json!([null, prompt[0], null])).chain(told).collect();
            json!({ "meta_info": { "input_token_logprobs": all[start..] } })
        };
        let prompts = body["input_ids"].as_array().unwrap().iter().map(ids);
        reply.json(200, &prompts.map(one).collect())
    }

    fn forced(&self, body: &Value, reply: &mut Reply<'_>) -> Result<()> {
        let session = self.session.lock().unwrap();
        let ids_of = regex_lite::Regex::new(r"<\[(\d+)\]>").unwrap();
        let grammar = body["grammar"].as_str().unwrap();
        let path: Vec<Token> = ids_of.captures_iter(grammar).map(|found| found[1].parse().unwrap()).collect();
        let prompt = ids(&body["prompt"]);
        let told = logprobs(&session, &[&prompt[..], &path].concat()).split_off(prompt.len() - 1);
        let told = path.iter().zip(told).map(|(id, logprob)| json!({ "id": id, "logprob": logprob }));
        reply.json(200, &json!({ "completion_probabilities": told.collect::<Vec<_>>() }))
    }
}

fn ids(list: &Value) -> Vec<Token> {
    list.as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as Token).collect()
}

fn biases(bias: &Value) -> Vec<(Token, f32)> {
    let number = |value: &Value| value.as_f64().map_or(f32::NEG_INFINITY, |value| value as f32);
    match bias {
        Value::Object(map) => map.iter().map(|(id, value)| (id.parse().unwrap(), number(value))).collect(),
        Value::Array(list) => list.iter().map(|pair| (pair[0].as_i64().unwrap() as Token, number(&pair[1]))).collect(),
        _ => Vec::new(),
    }
}

/// The logarithm of each token's probability after those before it, from the second on.
fn logprobs(session: &Session, tokens: &[Token]) -> Vec<f64> {
    session.prefill(tokens, -1).unwrap();
    let n_vocab = session.info().n_vocab;
    let mut rows = vec![0.0; tokens.len() * n_vocab];
    session.logits(tokens.len(), &mut rows).unwrap();
    let one = |(row, &token): (&[f32], &Token)| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - most).exp()).sum();
        f64::from(row[token as usize] - most) - sum.ln()
    };
    rows.chunks(n_vocab).zip(&tokens[1..]).map(one).collect()
}
