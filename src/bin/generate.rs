//! `generate`: text streamed to standard output as it comes, or one JSON object at the end.

use crate::args::{ModelArgs, Prompt, TextArgs, loading, read_input};
use crate::output::{Failure, Outcome, catch_interrupts, interrupted, print_json};
use clap::ValueEnum;
use elizainference::Token;
use elizainference::session::{Event, FinishReason, Mode, OpenOptions, Session, Settings, Sink, SpanEnd};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: Prompt,
    #[command(flatten)]
    how: TextArgs,
    /// Tokens to generate at most; -1 goes on to the end of the context
    #[arg(short, long = "max-tokens", default_value_t = 256, value_name = "N", allow_negative_numbers = true)]
    n: i32,
    /// Context in tokens, rounded up to a power of two; 0 is the model's own, at most 4096
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    ctx: u32,
    #[command(flatten)]
    sampling: Sampling,
    /// A text that ends the generation; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Go on where the model would end
    #[arg(long)]
    ignore_eos: bool,
    /// A token trie (JSON) that constrains what is generated first
    #[arg(long, value_name = "FILE")]
    trie: Option<PathBuf>,
    /// How tokens are chosen inside the trie
    #[arg(long, default_value = "greedy", value_name = "MODE")]
    trie_mode: TrieMode,
    /// What the end of a constrained span does
    #[arg(long, default_value = "continue", value_name = "ACTION")]
    on_span_end: OnSpanEnd,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long)]
    json: bool,
}

/// What is not given is the model's own default, else the library's.
#[derive(clap::Args)]
struct Sampling {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, value_name = "T")]
    temp: Option<f32>,
    /// Keep the likeliest tokens that make up this probability; 1 keeps all
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    top_k: Option<i32>,
    /// Keep tokens at least this likely compared with the likeliest; 0 keeps all
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Make recent tokens less likely, the last 64 unless the file says otherwise; 1 does not
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// Seed of the draws; without one every run is different
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The whole sampler chain, such as top_k=40;top_p=0.95;min_p=0.05;temp=0.8
    #[arg(long, conflicts_with_all = ["temp", "top_p", "top_k", "min_p", "repeat_penalty"])]
    chain: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum TrieMode {
    /// The likeliest token
    Greedy,
    /// A draw by the sampling options
    Sampled,
    /// Every leaf is scored as a whole, and the most probable one is taken
    Score,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnSpanEnd {
    /// Generate on without the constraint
    Continue,
    /// End the generation
    Stop,
}

pub fn run(args: Args) -> Outcome {
    let session_slot: Arc<OnceLock<Weak<Session>>> = Arc::default();
    let to_cancel = session_slot.clone();
    catch_interrupts(move || {
        if let Some(session) = to_cancel.get().and_then(Weak::upgrade) {
            session.cancel();
        }
    });
    let session = Arc::new(Session::open(OpenOptions {
        path: args.model.model.clone(),
        engine: args.model.engine(args.ctx)?,
        progress: Some(Box::new(loading())),
        ..OpenOptions::default()
    })?);
    // The slot is empty: it is filled here alone.
    let _ = session_slot.set(Arc::downgrade(&session));

    session.configure(settings(&args, session.settings()))?;
    if let Some(chain) = &args.sampling.chain {
        session.set_chain(-1, Some(chain.parse()?))?;
    }
    if let Some(path) = &args.trie {
        let mode = match args.trie_mode {
            TrieMode::Greedy => Mode::Greedy,
            TrieMode::Sampled => Mode::Sampled,
            TrieMode::Score => Mode::ScoreLeaves,
        };
        session.set_trie(&read_input(path)?, mode)?;
    }
    let tokens = args.prompt.tokens(session.vocab(), &args.how)?;
    session.prefill(&tokens, -1)?;
    generate(&args, &session)
}

fn settings(args: &Args, mut settings: Settings) -> Settings {
    let (chosen, params) = (&args.sampling, &mut settings.params);
    params.seed = chosen.seed.or(params.seed);
    params.temperature = chosen.temp.unwrap_or(params.temperature);
    params.top_p = chosen.top_p.unwrap_or(params.top_p);
    params.top_k = chosen.top_k.unwrap_or(params.top_k);
    params.min_p = chosen.min_p.unwrap_or(params.min_p);
    params.repeat_penalty = chosen.repeat_penalty.unwrap_or(params.repeat_penalty);
    settings.stop = args.stop.iter().map(|s| s.clone().into_bytes()).collect();
    settings.ignore_eos = args.ignore_eos;
    settings.on_span_end = match args.on_span_end {
        OnSpanEnd::Continue => SpanEnd::Continue,
        OnSpanEnd::Stop => SpanEnd::Stop,
    };
    settings
}

/// Generate and print. The tokens come from the session's worker; this thread prints them and watches for Ctrl-C.
fn generate(args: &Args, session: &Session) -> Outcome {
    let (events, received) = mpsc::channel::<(Token, String, bool)>();
    let send = move |event: Event<'_>| {
        // A closed channel means that printing failed; the session was cancelled then.
        let _ = events.send((event.token, event.text.to_string(), event.done));
    };
    session.generate(args.n, None, None, Sink::Callback(Box::new(send)))?;

    let mut out = io::stdout().lock();
    let (mut tokens, mut text) = (Vec::new(), String::new());
    loop {
        if interrupted() {
            session.cancel();
        }
        let (token, piece, done) = match received.recv_timeout(Duration::from_millis(100)) {
            Ok(event) => event,
            Err(mpsc::RecvTimeoutError::Timeout) => continue,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        };
        text.push_str(&piece);
        if !done {
            tokens.push(token);
        }
        if !args.json && !piece.is_empty() {
            let printed = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
            if let Err(e) = printed {
                session.cancel();
                return Err(e.into());
            }
        }
        if done {
            break;
        }
    }

    let status = session.status();
    if let (FinishReason::Error, Some(error)) = (status.finish_reason, status.error) {
        return Err(error.into());
    }
    let usage = session.usage();
    if args.json {
        drop(out);
        print_json(&json!({
            "prompt_tokens": usage.prompt_tokens,
            "tokens": tokens,
            "text": text,
            "finish_reason": status.finish_reason,
            "usage": usage,
        }))?;
    } else {
        if io::stdout().is_terminal() && !text.ends_with('\n') {
            writeln!(out)?;
        }
        if io::stderr().is_terminal() {
            let per_second = |n: u64, us: u64| n as f64 * 1e6 / us.max(1) as f64;
            let evaluated = usage.prompt_tokens - usage.prompt_tokens_reused;
            let _ = writeln!(
                io::stderr(),
                "[{}: {} prompt tokens at {:.0} tok/s, {} tokens at {:.1} tok/s]",
                json!(status.finish_reason).as_str().unwrap_or_default(),
                usage.prompt_tokens,
                per_second(evaluated, usage.prefill_us),
                usage.completion_tokens,
                per_second(usage.completion_tokens, usage.decode_us),
            );
        }
    }
    if interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
}
