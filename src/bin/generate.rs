//! `generate`: text streamed to standard output as it comes, or one JSON object at the end.

use crate::args::{ModelArgs, Prompt, Prompts, ServerArgs, StoreArgs, TextArgs, placed, read_input};
use crate::guide::Guide;
use crate::output::{Failure, Outcome, catch_interrupts, interrupted, print_json, usage};
use crate::parameters::{Parameters, Thinking};
use clap::{ArgMatches, ValueEnum};
use elizainference::Token;
use elizainference::engine::EngineOptions;
use elizainference::sampling::Chain;
use elizainference::session::{
    ContextFull, Event, FinishReason, Mode, OpenOptions, Sampled, Session, Settings, Sink, SpanEnd,
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
    /// A small GGUF model, best of the same vocabulary, whose guesses may save passes; the output is the same. The
    /// model itself where its file has a block that predicts further tokens (NextN, MTP)
    #[arg(long, value_name = "FILE")]
    draft: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Tokens to generate at most, for each prompt; -1 goes on to the end of the context
    #[arg(short, long = "max-tokens", default_value_t = 256, value_name = "N", allow_negative_numbers = true)]
    n: i32,
    /// Context in tokens, rounded up to a power of two; 0 is the model's own, at most 4096
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    ctx: u32,
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    reasoning: Thinking,
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
    /// Spell control tokens in the text, such as <|im_start|>
    #[arg(long)]
    special_text: bool,
    /// Never evaluate tokens that the text suggests before they are sampled; the output is the same
    #[arg(long)]
    no_guessing: bool,
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
    #[arg(long, value_name = "FILE", conflicts_with = "grammar_source")]
    trie: Option<PathBuf>,
    /// How tokens are chosen inside the trie
    #[arg(long, default_value = "greedy", value_name = "MODE")]
    trie_mode: TrieMode,
    #[command(flatten)]
    guide: Guide,
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
    let conversation = args.store.conversation.as_deref();
    if conversation.is_some() && prompts.len() > 1 {
        return usage(format!("{} prompts are given, where --conversation goes with one", prompts.len()));
    }
    let session_slot: Arc<OnceLock<Weak<Session>>> = Arc::default();
    let to_cancel = session_slot.clone();
    catch_interrupts(move || {
        if let Some(session) = to_cancel.get().and_then(Weak::upgrade) {
            session.cancel();
        }
    });
    let engine = EngineOptions { slots: prompts.len() as u32, ..args.model.engine(args.ctx)? };
    let session = Arc::new(Session::open(OpenOptions {
        draft: args.draft.clone(),
        store: args.store.options(),
        ..args.server.options(&args.model.model, engine)
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
    if let Some(source) = args.guide.source()? {
        session.set_grammar(&source)?;
    }
    for (slot, (_, chain)) in (0..).zip(&prompts) {
        session.set_chain(slot, chain.clone())?;
    }
    for (slot, (prompt, _)) in (0..).zip(&prompts) {
        let tokens = prompt.tokens(session.vocab(), &args.how)?;
        if let Some(key) = conversation {
            session.resume(key, slot)?;
        }
        session.prefill(&tokens, slot)?;
        let echo = if args.echo { text_of(session.vocab(), &tokens) } else { String::new() };
        generate(&args, &session, slot, echo, prompts.len() > 1)?;
        if let Some(key) = conversation {
            session.persist(key, slot)?;
        }
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
    settings.params = args.parameters.over(settings.params, args.seed);
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
    settings.special_text = args.special_text;
    settings.no_guessing = args.no_guessing;
    settings.reasoning = args.reasoning.budget();
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
        "served_by": telemetry["served_by"],
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
    let prompt = match usage.server_requests {
        0 => {
            let read = usage.prompt_tokens - usage.prompt_tokens_reused;
            format!("{} prompt tokens at {:.0} tok/s", usage.prompt_tokens, per_second(read, usage.prefill_us))
        }
        _ => format!("{} prompt tokens to {}", usage.prompt_tokens, session.served_by().display()),
    };
    let _ = writeln!(
        io::stderr(),
        "[{}: {prompt}, {} tokens at {:.1} tok/s]",
        json!(usage.finish_reason).as_str().unwrap_or_default(),
        usage.completion_tokens,
        per_second(usage.completion_tokens, usage.decode_us),
    );
}
