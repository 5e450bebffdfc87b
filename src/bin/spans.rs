//! `bench --mode`: how fast a choice among names is made, in several ways.
//!
//! A span is one choice after one prompt: from the moment the prompt has been evaluated to the last token of a name. As
//! the tokens of a name that leave no choice need no pass until something follows, a second figure goes on to the first
//! token after the name, for which they have been evaluated. Modes share prompts and payload, and choose greedily: with
//! the trie as a host uses it, with the same mask over whole rows of logits and a pass for every token, with a grammar
//! of the same names, and without any constraint for as many tokens as the longest name has. The grammar is also what
//! the other modes are compared with: its spans are made in the same run, unless figures of another program are given.

use crate::args::{ModelArgs, TextArgs, loading, read_input};
use crate::output::{Failure, Outcome, fail, interrupted, printable, progress};
use clap::ValueEnum;
use elizainference::Token;
use elizainference::engine::{Engine, EngineOptions, SlotId, open_model};
use elizainference::model::Model;
use elizainference::sampling::{Chain, Sampler, legal_of};
use elizainference::session::{Mode, Session, Settings, Sink, SpanEnd, Usage};
use elizainference::trie::{Accept, Trie, TrieState};
use elizainference::vocab::Vocab;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// What constrains a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum How {
    /// The trie: forced tokens share a pass, and only logits that can win are computed
    StrictTrieFfi,
    /// The trie as a mask over whole rows of logits, with a pass for every token
    StrictMask,
    /// A grammar of the names: forced text shares a pass
    StrictGuided,
    /// Nothing, for as many tokens as the longest name has
    Unconstrained,
}

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Measure spans of names in place of prompt and decoding
    #[arg(long, value_name = "MODE", requires_all = ["prompt_file", "token_tree_descriptor"])]
    pub mode: Option<How>,
    /// With --mode or --html: a file with a prompt's text; - is standard input. May be given several times
    #[arg(long, visible_alias = "prompt", value_name = "FILE")]
    prompt_file: Vec<PathBuf>,
    /// With --mode or --html: the payload of the names, as `trie` prints it
    #[arg(long, value_name = "FILE")]
    token_tree_descriptor: Option<PathBuf>,
    /// With --mode: where the results go as JSON
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// With --mode or --html: what another program's grammar made of the same prompts, JSON with `tokens_per_second`
    /// and
    /// `names`, to compare with in place of this one's
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

/// A grammar's results, of this program or as `tools/bench_trie.py` writes them.
#[derive(serde::Deserialize)]
struct Grammar {
    tokens_per_second: f64,
    /// One for each prompt; `None` where no name came out.
    names: Vec<Option<String>>,
}

/// One choice.
#[derive(Default)]
pub struct Span {
    pub tokens: Vec<Token>,
    pub seconds: f64,
    /// To the first token after the name.
    seconds_behind: f64,
    pub usage: Usage,
}

/// Runs the spans after every prompt `reps` times.
pub fn run(how: How, model: &ModelArgs, reps: u32, args: &Args) -> Result<Value, Failure> {
    let payload = read_input(args.token_tree_descriptor.as_deref().unwrap_or(Path::new("-")))?;
    let texts = args.prompt_file.iter().map(|path| read_input(path)).collect::<Result<Vec<_>, _>>()?;
    let grammar = args.grammar.as_deref().map(|path| grammar(path, texts.len())).transpose()?;
    let trie = Arc::new(Trie::parse(&payload)?);
    let options = model.engine(0)?;
    let opened = open_model(&model.model, &options, Some(&mut loading()))?;
    let guided = || -> Result<Runner, Failure> {
        let session = greedy_session(opened.clone(), &options, None)?;
        let names = Names::new(&trie, session.vocab());
        Ok(Runner::Guided(Box::new(session), names))
    };
    let mut runner = match how {
        How::StrictGuided => guided()?,
        How::StrictMask => Runner::Mask(Box::new(Mask::new(opened.clone(), &options, trie.clone())?)),
        How::StrictTrieFfi => Runner::Session(Box::new(greedy_session(opened.clone(), &options, Some(&payload))?)),
        How::Unconstrained => {
            let session = greedy_session(opened.clone(), &options, None)?;
            session.configure(Settings { ignore_eos: true, ..session.settings() })?;
            Runner::Session(Box::new(session))
        }
    };
    let longest = trie.descriptors().first().map_or(0, |one| one.depth());
    let text = TextArgs { no_bos: false, parse_special: false };
    let prompts: Vec<Vec<Token>> =
        texts.iter().map(|prompt| text.tokenize(runner.vocab(), prompt)).collect::<Result<_, _>>()?;
    if let Some((_, path)) = prompts.iter().zip(&args.prompt_file).find(|(tokens, _)| tokens.is_empty()) {
        return fail(format!("{}: the prompt has no tokens", path.display()));
    }
    let spans = measure(&mut runner, &prompts, longest, reps)?;
    let grammar = match (grammar, how) {
        (None, How::StrictTrieFfi | How::StrictMask | How::Unconstrained) => {
            let mut guided = guided()?;
            let spans = measure(&mut guided, &prompts, longest, reps)?;
            let report = Report::new(&guided, How::StrictGuided, &trie, spans);
            Some(Grammar { tokens_per_second: report.rate(), names: report.names })
        }
        (given, _) => given,
    };
    let report = Report::new(&runner, how, &trie, spans).json(model, reps, grammar.as_ref());
    if let Some(path) = &args.output {
        let written = std::fs::write(path, format!("{report:#}\n"));
        written.map_err(|e| Failure::Error(format!("{}: {e}", path.display())))?;
    }
    Ok(report)
}

/// The spans after every prompt.
fn measure(runner: &mut Runner, prompts: &[Vec<Token>], longest: u32, reps: u32) -> Result<Vec<Vec<Span>>, Failure> {
    let bar = progress("Measuring", u64::from(reps) * prompts.len() as u64);
    let mut spans: Vec<Vec<Span>> = prompts.iter().map(|_| Vec::new()).collect();
    for round in 0..=reps {
        for (prompt, spans) in prompts.iter().zip(&mut spans) {
            if interrupted() {
                return Err(Failure::Interrupted);
            }
            let span = runner.span(prompt, longest)?;
            // The first round warms up.
            if round > 0 {
                spans.push(span);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(spans)
}

/// A report as a person reads it.
pub fn summary(report: &Value) -> Outcome {
    let mut out = io::stdout().lock();
    let number = |key: &str| report[key].as_f64();
    let mut line = |label: &str, value: String| writeln!(out, "{label:<16} {value}");
    line("Mode", report["mode"].as_str().unwrap_or_default().into())?;
    line(
        "Span",
        format!(
            "{:.2} ms, {:.1} tokens",
            number("ms_per_span").unwrap_or(0.0),
            number("tokens_per_span").unwrap_or(0.0)
        ),
    )?;
    line("To the next", format!("{:.2} ms", number("ms_to_token_behind").unwrap_or(0.0)))?;
    line("Speed", format!("{:.1} tok/s", number("tokens_per_second").unwrap_or(0.0)))?;
    if let Some(ratio) = number("tokens_per_second_vs_grammar") {
        line("Against grammar", format!("{ratio:.1} x"))?;
    }
    if let Some(share) = number("token_accuracy") {
        line("Same names", format!("{:.0} %", 100.0 * share))?;
    }
    let passes = (&report["forward_passes_total"], &report["forward_passes_saved"]);
    line("Passes", format!("{}, {} saved", passes.0, passes.1))?;
    let names = report["names"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap_or("-"));
    line("Names", printable(names.collect::<Vec<_>>().join(" ")).to_string())?;
    Ok(out.flush()?)
}

/// What all spans come to.
struct Report {
    how: How,
    /// Of each prompt.
    names: Vec<Option<String>>,
    /// Median seconds of each prompt.
    seconds: Vec<f64>,
    seconds_behind: Vec<f64>,
    tokens: usize,
    /// At each step, the share of the vocabulary that was no candidate.
    skipped: Vec<f64>,
    usage: BTreeMap<&'static str, u64>,
}

impl Report {
    fn new(runner: &Runner, how: How, trie: &Arc<Trie>, spans: Vec<Vec<Span>>) -> Report {
        let n_vocab = runner.n_vocab();
        let mut report = Report {
            how,
            names: Vec::new(),
            seconds: Vec::new(),
            seconds_behind: Vec::new(),
            tokens: 0,
            skipped: Vec::new(),
            usage: BTreeMap::new(),
        };
        for mut spans in spans {
            spans.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
            let Some(span) = spans.get(spans.len() / 2) else { continue };
            let mut state = TrieState::new(trie.clone(), Mode::Greedy);
            let mut name = None;
            if let Runner::Guided(session, names) = runner {
                name = names.of(session.vocab(), &span.tokens);
                // Of the candidates of each token only the sum is known.
                let (candidates, tokens) = (span.usage.span_candidates as f64, span.usage.span_tokens.max(1) as f64);
                report.skipped.extend(span.tokens.iter().map(|_| 1.0 - candidates / tokens / n_vocab as f64));
            }
            for &token in span.tokens.iter().filter(|_| how != How::StrictGuided) {
                let candidates = match how {
                    How::Unconstrained => n_vocab,
                    _ => state.mask().map_or(n_vocab, <[Token]>::len),
                };
                report.skipped.push(1.0 - candidates as f64 / n_vocab as f64);
                if state.accept(token) == Accept::Leaf {
                    name = state.leaf_name().map(str::to_owned);
                }
            }
            report.names.push(name);
            report.seconds.push(span.seconds);
            report.seconds_behind.push(span.seconds_behind);
            report.tokens += span.tokens.len();
            let usage = &span.usage;
            for (key, count) in [
                ("prompt_tokens", usage.prompt_tokens),
                ("completion_tokens", usage.completion_tokens),
                ("forced_tokens", usage.forced_tokens),
                ("branching_steps", usage.branching_steps),
                ("whole_row_steps", usage.whole_row_steps),
                ("logits_computed", usage.logits_computed),
                ("forward_passes_total", usage.forward_passes),
                ("forward_passes_saved", usage.forward_passes_saved),
            ] {
                *report.usage.entry(key).or_default() += count;
            }
        }
        report
    }

    /// Tokens a second.
    fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds.iter().sum::<f64>()
    }

    fn json(&self, model: &ModelArgs, reps: u32, grammar: Option<&Grammar>) -> Value {
        let rate = self.rate();
        let median = |seconds: &[f64]| {
            let mut sorted = seconds.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).map(|seconds| seconds * 1e3)
        };
        let n = self.skipped.len().max(1) as f64;
        let mean = self.skipped.iter().sum::<f64>() / n;
        let variance = self.skipped.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let same = |grammar: &Grammar| {
            let equal = self.names.iter().zip(&grammar.names).filter(|(a, b)| a.is_some() && a == b).count();
            equal as f64 / self.names.len().max(1) as f64
        };
        let mut report = json!({
            "mode": self.how.to_possible_value().map(|value| value.get_name().to_owned()),
            "model": model.model.display().to_string(),
            "spans": self.names.len(),
            "reps": reps,
            "skip_ratio_mean": mean,
            "skip_ratio_std": variance.sqrt(),
            "tokens_per_second": rate,
            "tokens_per_second_vs_grammar": grammar.map(|grammar| rate / grammar.tokens_per_second),
            "token_accuracy": grammar.filter(|_| self.how != How::Unconstrained).map(same),
            "tokens_per_span": self.tokens as f64 / self.names.len().max(1) as f64,
            "ms_per_span": median(&self.seconds),
            "ms_to_token_behind": median(&self.seconds_behind),
            "names": self.names,
        });
        for (key, count) in &self.usage {
            report[*key] = json!(count);
        }
        report
    }
}

/// What makes spans.
enum Runner {
    Session(Box<Session>),
    Mask(Box<Mask>),
    Guided(Box<Session>, Names),
}

/// The names of a trie's first descriptor as grammars.
struct Names {
    /// By what their tokens spell.
    names: BTreeMap<String, String>,
    /// A name alone, and a name with any text after it.
    grammars: [Vec<u8>; 2],
    /// Bytes of the longest.
    longest: usize,
}

impl Names {
    fn new(trie: &Trie, vocab: &Vocab) -> Names {
        let nodes = trie.descriptors().first().map_or(0..0, |one| one.nodes());
        let named = nodes.filter_map(|node| Some((spelled(vocab, &trie.path_to(node)), trie.leaf(node)?.to_owned())));
        let names: BTreeMap<String, String> = named.collect();
        let literal = |text: &String| {
            let escaped = text.chars().map(|c| match c {
                '"' | '\\' => format!("\\{c}"),
                c if c.is_control() => format!("\\U{:08X}", u32::from(c)),
                c => c.to_string(),
            });
            format!("\"{}\"", escaped.collect::<String>())
        };
        let all = names.keys().map(literal).collect::<Vec<_>>().join(" | ");
        let grammars = [format!("root ::= {all}"), format!("root ::= ({all}) .*")];
        let grammars = grammars.map(|gbnf| json!({ "gbnf": gbnf }).to_string().into_bytes());
        Names { longest: names.keys().map(String::len).max().unwrap_or(0), names, grammars }
    }

    fn of(&self, vocab: &Vocab, tokens: &[Token]) -> Option<String> {
        self.names.get(&spelled(vocab, tokens)).cloned()
    }
}

fn spelled(vocab: &Vocab, tokens: &[Token]) -> String {
    let mut text = Vec::new();
    tokens.iter().for_each(|&token| vocab.piece(token, true, &mut text));
    String::from_utf8_lossy(&text).into_owned()
}

impl Runner {
    fn vocab(&self) -> &Vocab {
        match self {
            Runner::Session(session) | Runner::Guided(session, _) => session.vocab(),
            Runner::Mask(mask) => mask.engine.model().vocab(),
        }
    }

    fn n_vocab(&self) -> usize {
        match self {
            Runner::Session(session) | Runner::Guided(session, _) => session.info().n_vocab,
            Runner::Mask(mask) => mask.engine.model().n_vocab(),
        }
    }

    fn span(&mut self, prompt: &[Token], longest: u32) -> Result<Span, Failure> {
        match self {
            Runner::Session(session) => stream(session, prompt, longest),
            Runner::Guided(session, names) => guided(session, prompt, names),
            Runner::Mask(mask) => mask.span(prompt),
        }
    }
}

/// A session that chooses greedily, among the names of a payload where there is one.
pub fn greedy_session(model: Arc<Model>, options: &EngineOptions, payload: Option<&[u8]>) -> Result<Session, Failure> {
    let session = Session::over(model, options)?;
    session.set_chain(-1, Some("greedy".parse()?))?;
    if let Some(payload) = payload {
        session.set_trie(payload, Mode::Greedy)?;
    }
    Ok(session)
}

/// The tokens that a session generates after a prompt, with their time and usage.
pub fn generate(
    session: &Session,
    prompt: &[Token],
    most: usize,
    on_span_end: SpanEnd,
) -> Result<(Vec<Token>, Usage), Failure> {
    session.configure(Settings { on_span_end, ..session.settings() })?;
    session.prefill(prompt, -1)?;
    session.generate(most as i32, None, None, Sink::Queue)?;
    let (mut tokens, mut text, mut all) = ([0; 64], [0; 1024], Vec::new());
    loop {
        let step = session.next(None, &mut tokens, &mut text)?;
        all.extend_from_slice(&tokens[..step.tokens]);
        if step.done {
            return Ok((all, session.usage()));
        }
    }
}

fn stream(session: &Session, prompt: &[Token], longest: u32) -> Result<Span, Failure> {
    let seconds = |usage: &Usage| usage.decode_us as f64 / 1e6;
    let (tokens, usage) = generate(session, prompt, longest as usize, SpanEnd::Stop)?;
    let (_, further) = generate(session, prompt, tokens.len() + 1, SpanEnd::Continue)?;
    Ok(Span { seconds: seconds(&usage), seconds_behind: seconds(&further), tokens, usage })
}

/// A name by a grammar, then one with a token after it.
fn guided(session: &Session, prompt: &[Token], names: &Names) -> Result<Span, Failure> {
    let seconds = |usage: &Usage| usage.decode_us as f64 / 1e6;
    session.set_grammar(&names.grammars[0])?;
    let (tokens, usage) = generate(session, prompt, names.longest + 1, SpanEnd::Stop)?;
    session.set_grammar(&names.grammars[1])?;
    let (_, further) = generate(session, prompt, tokens.len() + 1, SpanEnd::Continue)?;
    Ok(Span { seconds: seconds(&usage), seconds_behind: seconds(&further), tokens, usage })
}

/// An engine driven token by token.
pub struct Mask {
    engine: Engine,
    slot: SlotId,
    sampler: Sampler,
    trie: Arc<Trie>,
    never: AtomicBool,
}

impl Mask {
    pub fn new(model: Arc<Model>, options: &EngineOptions, trie: Arc<Trie>) -> Result<Mask, Failure> {
        let mut engine = Engine::new(model, options)?;
        trie.check_vocab(engine.model().n_vocab())?;
        let slot = engine.take_slot(0)?;
        let chain: Chain = "greedy".parse()?;
        let sampler = Sampler::new(&chain, engine.model().n_vocab(), 0)?;
        Ok(Mask { engine, slot, sampler, trie, never: AtomicBool::new(false) })
    }

    pub fn span(&mut self, prompt: &[Token]) -> Result<Span, Failure> {
        let mut span = Span::default();
        let before = self.engine.stats();
        self.engine.truncate(self.slot, 0);
        self.engine.prefill(self.slot, prompt, &self.never)?;
        let mut state = TrieState::new(self.trie.clone(), Mode::Greedy);
        let began = Instant::now();
        while let Some(legal) = legal_of(&state) {
            let row = match span.tokens.last() {
                None => self.engine.head(self.slot)?,
                Some(&last) => self.engine.decode(self.slot, last, &self.never)?,
            };
            let position = (prompt.len() + span.tokens.len()) as u32;
            let token = self.sampler.sample(row, Some(legal), &[], position)?;
            span.tokens.push(token);
            state.accept(token);
        }
        span.seconds = began.elapsed().as_secs_f64();
        let stats = self.engine.stats();
        if let Some(&last) = span.tokens.last() {
            let row = self.engine.decode(self.slot, last, &self.never)?;
            self.sampler.sample(row, None, &[], (prompt.len() + span.tokens.len()) as u32)?;
        }
        span.seconds_behind = began.elapsed().as_secs_f64();
        span.usage.prompt_tokens = prompt.len() as u64;
        span.usage.completion_tokens = span.tokens.len() as u64;
        span.usage.forward_passes = stats.forward_passes - before.forward_passes;
        span.usage.logits_computed = stats.logits - before.logits;
        Ok(span)
    }
}

fn grammar(path: &Path, prompts: usize) -> Result<Grammar, Failure> {
    let problem = |e: &dyn std::fmt::Display| Failure::Error(format!("{}: {e}", path.display()));
    let grammar: Grammar = serde_json::from_slice(&read_input(path)?).map_err(|e| problem(&e))?;
    match grammar.names.len() == prompts {
        true => Ok(grammar),
        false => Err(problem(&format!("{} names for {prompts} prompts", grammar.names.len()))),
    }
}
