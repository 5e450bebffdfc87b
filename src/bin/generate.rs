//! `generate`: text streamed to standard output as it comes, or one JSON object at the end.

use crate::args::{ModelArgs, Prompt, Prompts, TextArgs, loading, placed, read_input};
use crate::output::{Failure, Outcome, catch_interrupts, interrupted, print_json, usage};
use clap::{ArgMatches, ValueEnum};
use elizainference::Token;
use elizainference::engine::EngineOptions;
use elizainference::sampling::{Chain, ChainStep};
use elizainference::session::{
    ContextFull, Event, FinishReason, Mode, OpenOptions, Params, Sampled, Session, Settings, Sink, SpanEnd,
};
use elizainference::vocab::Vocab;
use serde_json::{Value, json};
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
    prompts: Prompts,
    #[command(flatten)]
    how: TextArgs,
    /// Tokens to generate at most, for each prompt; -1 goes on to the end of the context
    #[arg(short, long = "max-tokens", default_value_t = 256, value_name = "N", allow_negative_numbers = true)]
    n: i32,
    /// Context in tokens, rounded up to a power of two; 0 is the model's own, at most 4096
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    ctx: u32,
    #[command(flatten)]
    parameters: Parameters,
    /// The whole sampler chain, such as top_k=40;top_p=0.95;min_p=0.05;temp=0.8: of the prompt before it, or, before
    /// all prompts, of those without one
    #[arg(long, conflicts_with = "parameters")]
    chain: Vec<Chain>,
    /// Seed of the draws; without one every run is different
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// A text that ends the generation; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Go on where the model would end
    #[arg(long)]
    ignore_eos: bool,
    /// What a full context does
    #[arg(long, default_value = "stop", value_name = "ACTION")]
    on_context_full: OnContextFull,
    /// Tokens at the beginning that every shift of the context keeps
    #[arg(long, value_name = "N")]
    keep: Option<u32>,
    /// A token trie (JSON) that constrains what is generated first
    #[arg(long, value_name = "FILE")]
    trie: Option<PathBuf>,
    /// How tokens are chosen inside the trie
    #[arg(long, default_value = "greedy", value_name = "MODE")]
    trie_mode: TrieMode,
    /// What the end of a constrained span does
    #[arg(long, default_value = "continue", value_name = "ACTION")]
    on_span_end: OnSpanEnd,
    /// Print the prompt before the text
    #[arg(long)]
    echo: bool,
    /// With each token the N likeliest that the chain left, in the JSON object
    #[arg(long, value_name = "N", requires = "json")]
    candidates: Option<usize>,
    /// Print one JSON object at the end instead of streaming text, for each prompt on a line of its own
    #[arg(long)]
    json: bool,
}

/// What the chain is made of where none is given. What is not given is the model's own default, else the library's.
#[derive(clap::Args)]
#[group(id = "parameters")]
struct Parameters {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, value_name = "T")]
    temp: Option<f32>,
    /// How far the temperature moves with how evenly the candidates are spread; 0 keeps it
    #[arg(long, value_name = "T")]
    dynatemp_range: Option<f32>,
    /// The power to which that spread is raised
    #[arg(long, value_name = "X")]
    dynatemp_exponent: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    top_k: Option<i32>,
    /// Keep the likeliest tokens that make up this probability; 1 keeps all
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep tokens at least this likely compared with the likeliest; 0 keeps all
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Tokens that --top-p and --min-p keep at least
    #[arg(long, value_name = "N")]
    min_keep: Option<u32>,
    /// Make recent tokens less likely by this factor; 1 does not
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// Make recent tokens less likely by so much for each time they occur
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Make recent tokens less likely by so much once
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// The window of the three penalties in tokens: 64 unless the file has another default
    #[arg(long, value_name = "N")]
    repeat_last_n: Option<u32>,
    /// Make a token likelier, or with -inf impossible: ID:VALUE, and more after commas; may be given several times
    #[arg(long, value_name = "ID:VALUE", value_parser = logit_bias)]
    logit_bias: Vec<Biases>,
}

/// Numbers added to logits.
type Biases = Vec<(Token, f32)>;

/// As in a chain.
fn logit_bias(text: &str) -> Result<Biases, String> {
    let chain: Chain =
        format!("logit_bias={text}").parse().map_err(|error: elizainference::Error| error.to_string())?;
    match &chain.steps[..] {
        [ChainStep::LogitBias(biases)] => Ok(biases.clone()),
        _ => Err("of the form ID:VALUE,ID:VALUE".into()),
    }
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnContextFull {
    /// End the generation
    Stop,
    /// Remove the first half of the tokens after those of --keep, and generate on
    Shift,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnSpanEnd {
    /// Generate on without the constraint
    Continue,
    /// End the generation
    Stop,
}

pub fn run(args: Args, matches: &ArgMatches) -> Outcome {
    let prompts = with_chains(&args, matches)?;
    if args.keep.is_some() && args.on_context_full == OnContextFull::Stop {
        return usage("--keep goes with --on-context-full shift");
    }
    let session_slot: Arc<OnceLock<Weak<Session>>> = Arc::default();
    let to_cancel = session_slot.clone();
    catch_interrupts(move || {
        if let Some(session) = to_cancel.get().and_then(Weak::upgrade) {
            session.cancel();
        }
    });
    let session = Arc::new(Session::open(OpenOptions {
        path: args.model.model.clone(),
        engine: EngineOptions { slots: prompts.len() as u32, ..args.model.engine(args.ctx)? },
        progress: Some(Box::new(loading())),
        ..OpenOptions::default()
    })?);
    // The slot is empty: it is filled here alone.
    let _ = session_slot.set(Arc::downgrade(&session));

    session.configure(settings(&args, session.settings()))?;
    if let Some(path) = &args.trie {
        let mode = match args.trie_mode {
            TrieMode::Greedy => Mode::Greedy,
            TrieMode::Sampled => Mode::Sampled,
            TrieMode::Score => Mode::ScoreLeaves,
        };
        session.set_trie(&read_input(path)?, mode)?;
    }
    for (slot, (_, chain)) in (0..).zip(&prompts) {
        session.set_chain(slot, chain.clone())?;
    }
    for (slot, (prompt, _)) in (0..).zip(&prompts) {
        let tokens = prompt.tokens(session.vocab(), &args.how)?;
        session.prefill(&tokens, slot)?;
        let echo = if args.echo { text_of(session.vocab(), &tokens) } else { String::new() };
        generate(&args, &session, slot, echo, prompts.len() > 1)?;
    }
    Ok(())
}

/// The prompts, slot by slot, each with its chain: the one after it, else the one before all prompts, else none.
fn with_chains<'a>(args: &'a Args, matches: &ArgMatches) -> Result<Vec<(Prompt<'a>, Option<Chain>)>, Failure> {
    let (mut prompts, mut first, mut of_all) = (Vec::new(), Vec::new(), None);
    for (place, prompt) in args.prompts.placed(matches) {
        first.push(place);
        prompts.push((prompt, None));
    }
    for (place, chain) in placed(matches, "chain", args.chain.iter()) {
        let chosen = match first.partition_point(|prompt| *prompt < place).checked_sub(1) {
            Some(prompt) => &mut prompts[prompt].1,
            None => &mut of_all,
        };
        if let Some(earlier) = chosen.replace(chain.clone()) {
            return usage(format!("Two chains for the same prompt: `{earlier}` and `{chain}`"));
        }
    }
    Ok(prompts.into_iter().map(|(prompt, chain)| (prompt, chain.or_else(|| of_all.clone()))).collect())
}

fn settings(args: &Args, mut settings: Settings) -> Settings {
    let (given, params) = (&args.parameters, settings.params);
    settings.params = Params {
        seed: args.seed.or(params.seed),
        logit_bias: given.logit_bias.concat(),
        repeat_last_n: given.repeat_last_n.map_or(params.repeat_last_n, |n| i32::try_from(n).unwrap_or(i32::MAX)),
        repeat_penalty: given.repeat_penalty.unwrap_or(params.repeat_penalty),
        frequency_penalty: given.frequency_penalty.unwrap_or(params.frequency_penalty),
        presence_penalty: given.presence_penalty.unwrap_or(params.presence_penalty),
        top_k: given.top_k.unwrap_or(params.top_k),
        top_p: given.top_p.unwrap_or(params.top_p),
        min_p: given.min_p.unwrap_or(params.min_p),
        min_keep: given.min_keep.unwrap_or(params.min_keep),
        temperature: given.temp.unwrap_or(params.temperature),
        dynatemp_range: given.dynatemp_range.unwrap_or(params.dynatemp_range),
        dynatemp_exponent: given.dynatemp_exponent.unwrap_or(params.dynatemp_exponent),
    };
    settings.stop = args.stop.iter().map(|s| s.clone().into_bytes()).collect();
    settings.ignore_eos = args.ignore_eos;
    settings.on_span_end = match args.on_span_end {
        OnSpanEnd::Continue => SpanEnd::Continue,
        OnSpanEnd::Stop => SpanEnd::Stop,
    };
    settings.on_context_full = match args.on_context_full {
        OnContextFull::Stop => ContextFull::Stop,
        OnContextFull::Shift => ContextFull::Shift { keep: args.keep.unwrap_or(0) },
    };
    settings.candidates = args.candidates.unwrap_or(0);
    settings
}

/// What tokens spell, control tokens not.
fn text_of(vocab: &Vocab, tokens: &[Token]) -> String {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|&token| vocab.piece(token, false, &mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A token on its way to be printed.
struct Delivered {
    token: Token,
    text: String,
    done: bool,
    /// How it was sampled, where that is asked for and it was.
    sampled: Option<Sampled>,
}

/// Generate after the prompt of a slot and print. The tokens come from the session's worker; this thread prints them
/// and watches for Ctrl-C.
fn generate(args: &Args, session: &Arc<Session>, slot: i32, echo: String, lines: bool) -> Outcome {
    let (events, received) = mpsc::channel();
    let (of, mut forced) = (args.candidates.map(|_| Arc::downgrade(session)), 0);
    let send = move |event: Event<'_>| {
        let sampled = of.as_ref().and_then(Weak::upgrade).filter(|_| !event.done).and_then(|session| {
            let before = std::mem::replace(&mut forced, session.usage().forced_tokens);
            if forced > before { None } else { session.sampled(slot) }
        });
        // A closed channel means that printing failed; the session was cancelled then.
        let _ = events.send(Delivered { token: event.token, text: event.text.to_string(), done: event.done, sampled });
    };
    session.generate(args.n, None, None, Sink::Callback(Box::new(send)))?;

    let mut out = io::stdout().lock();
    let mut print = |piece: &str| match args.json || piece.is_empty() {
        true => Ok(()),
        false => out.write_all(piece.as_bytes()).and_then(|()| out.flush()).inspect_err(|_| session.cancel()),
    };
    print(&echo)?;
    let (mut tokens, mut text, mut sampled) = (Vec::new(), echo, Vec::new());
    loop {
        if interrupted() {
            session.cancel();
        }
        let event: Delivered = match received.recv_timeout(Duration::from_millis(100)) {
            Ok(event) => event,
            Err(mpsc::RecvTimeoutError::Timeout) => continue,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        };
        print(&event.text)?;
        text.push_str(&event.text);
        if event.done {
            break;
        }
        tokens.push(event.token);
        sampled.push(event.sampled.as_ref().map(|sampled| candidates(session.vocab(), sampled)));
    }

    let status = session.status();
    if let (FinishReason::Error, Some(error)) = (status.finish_reason, status.error) {
        return Err(error.into());
    }
    if args.json {
        drop(out);
        print_json(&report(args, session, slot, (tokens, text, sampled)))?;
    } else {
        if (lines || io::stdout().is_terminal()) && !text.ends_with('\n') {
            writeln!(out)?;
        }
        if io::stderr().is_terminal() {
            speed(session);
        }
    }
    if interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// What a generation came to, for machines: the tokens, their text, and how each was sampled.
fn report(args: &Args, session: &Session, slot: i32, made: (Vec<Token>, String, Vec<Option<Value>>)) -> Value {
    let telemetry: Value = serde_json::from_str(&session.usage_json()).unwrap_or_default();
    let (tokens, text, sampled) = made;
    let mut report = json!({
        "slot": slot,
        "prompt_tokens": telemetry["usage"]["prompt_tokens"],
        "tokens": tokens,
        "text": text,
        "finish_reason": session.status().finish_reason,
        "chain": telemetry["chain"],
        "usage": telemetry["usage"],
    });
    if args.candidates.is_some() {
        report["sampled"] = json!(sampled);
    }
    report
}

/// A sampled token and what else the chain had left, best first.
fn candidates(vocab: &Vocab, sampled: &Sampled) -> Value {
    let one = |&(token, _, prob): &(Token, f32, f32)| {
        let text = text_of(vocab, &[token]);
        json!({"token": token, "text": text, "logprob": prob.ln()})
    };
    let best: Vec<Value> = sampled.candidates.iter().map(one).collect();
    json!({"token": sampled.token, "logprob": sampled.logprob, "candidates": best})
}

/// How fast it went, on standard error.
fn speed(session: &Session) {
    let usage = session.usage();
    let per_second = |n: u64, us: u64| n as f64 * 1e6 / us.max(1) as f64;
    let _ = writeln!(
        io::stderr(),
        "[{}: {} prompt tokens at {:.0} tok/s, {} tokens at {:.1} tok/s]",
        json!(usage.finish_reason).as_str().unwrap_or_default(),
        usage.prompt_tokens,
        per_second(usage.prompt_tokens - usage.prompt_tokens_reused, usage.prefill_us),
        usage.completion_tokens,
        per_second(usage.completion_tokens, usage.decode_us),
    );
}
