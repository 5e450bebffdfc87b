//! What the program does when it is given no command: the main job, done on a small model that is part of the program.
//!
//! The model answers short requests with the name of an action (`models/README.md`). A story shows it streaming; twelve
//! requests that it was not trained on are answered three ways, with nothing to hold it, with the names as a mask, and
//! with the names as a token trie; and one more request is answered by scoring every name as a whole.

use crate::args::RunArgs;
use crate::output::{Failure, Outcome, count, fail, print_json, size};
use crate::spans::{Mask, generate, greedy_session};
use console::{Alignment, Term, pad_str, style, truncate_str};
use elizainference::Token;
use elizainference::engine::{EngineOptions, load_model};
use elizainference::gguf::File;
use elizainference::model::Model;
use elizainference::session::{LeafScores, Session, Sink, SpanEnd, Usage};
use elizainference::trie::{self, Surroundings, Trie};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// Plain text, without colours
    #[arg(long)]
    no_color: bool,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

const MODEL: &[u8] = include_bytes!("../../models/demo.gguf");
/// The names of its actions, one on a line.
const ACTIONS: &str = include_str!("../../models/demo_actions.txt");

/// How the story begins, and how it is drawn.
const STORY: &str = "One morning";
const STORY_CHAIN: &str = "top_k=40;top_p=0.95;temp=0.7";
const STORY_SEED: u64 = 3;

/// Requests with the actions that answer them, none of them in the training texts.
const REQUESTS: [(&str, &str); 12] = [
    ("well, please get rid of the alarm at 6 am for me", "DELETE_ALARM"),
    ("do me a favour and put on some jazz.", "PLAY_MUSIC"),
    ("When you have a minute, arrange a ride to the station.", "BOOK_TAXI"),
    ("Paula should know my position.", "SEND_LOCATION"),
    ("may I ask you to type a text to Grace that I found the cat?", "SEND_MESSAGE"),
    ("Listen, I wonder if it will rain on Sunday, thanks", "CHECK_WEATHER"),
    ("Turn off the heating in the hall.", "TURN_OFF_HEATING"),
    ("could you translate this text?", "TRANSLATE_TEXT"),
    ("I was going to ask you to clear the get-together.", "DELETE_EVENT"),
    ("When you are done, pay Sam 25 dollars", "SEND_MONEY"),
    ("I was going to ask you to find out how much money I have.", "CHECK_BALANCE"),
    ("hey, forward the album to Tara", "SHARE_ALBUM"),
];

/// A request that several actions would answer.
const OPEN_REQUEST: &str = "I want to hear the news about physics";

/// Each answer's time is the median of this many runs.
const REPETITIONS: usize = 5;
/// No action has more tokens.
const LONGEST: usize = 24;
const BARS: usize = 6;

/// How the model is put a request: an action and the end of the generation follow.
fn prompt(request: &str) -> String {
    format!("User: {request}\nAction:\n")
}

/// One way of answering.
#[derive(Clone, Copy)]
enum Way {
    /// Nothing holds the model; the answer ends where it ends it.
    Free,
    /// Whole rows of logits, of which only those of legal tokens count; a pass for every token.
    Mask,
    /// The token trie.
    Trie,
}

const WAYS: [(Way, &str); 3] = [(Way::Free, "unconstrained"), (Way::Mask, "mask"), (Way::Trie, "token trie")];

/// An answer to a request.
#[derive(Default, serde::Serialize)]
struct Answer {
    text: String,
    right: bool,
    tokens: usize,
    /// Passes after the prompt.
    forward_passes: u64,
    /// From the end of the prompt to the end of the answer.
    ms: f64,
}

pub fn run(args: Args) -> Outcome {
    if args.no_color {
        console::set_colors_enabled(false);
    }
    let mut options = args.run.engine(0)?;
    // So small a model is not worth a second thread's waking.
    options.threads = args.run.threads.unwrap_or(1);
    let began = Instant::now();
    let model = load_model(File::from_bytes(MODEL.to_vec())?, &options, None)?;
    let load_ms = began.elapsed().as_secs_f64() * 1e3;
    let demo = Demo::new(model, options, load_ms)?;
    match args.json {
        true => print_json(&demo.json()?),
        false => demo.show(usize::from(Term::stdout().size().1)),
    }
}

struct Demo {
    model: Arc<Model>,
    options: EngineOptions,
    /// Without a constraint.
    free: Session,
    payload: String,
    load_ms: f64,
}

/// A story's tokens, when the first was there, counted from before the prompt was read, and the rate of the others.
struct Story {
    tokens: u64,
    first_ms: f64,
    per_second: f64,
}

impl Demo {
    fn new(model: Arc<Model>, options: EngineOptions, load_ms: f64) -> Result<Demo, Failure> {
        let names: Vec<&str> = ACTIONS.lines().collect();
        let before = prompt("");
        let around = Surroundings { before: &before, after: "", parse_special: false };
        let payload = trie::build(model.vocab(), "", "action", &names, around)?.json;
        let free = greedy_session(model.clone(), &options, None)?;
        Ok(Demo { model, options, free, payload, load_ms })
    }

    fn tokens(&self, text: &str) -> Result<Vec<Token>, Failure> {
        Ok(self.model.vocab().tokenize(text.as_bytes(), true, false)?)
    }

    /// Tells a story, piece by piece.
    fn story(&self, mut hear: impl FnMut(&str) -> io::Result<()>) -> Result<Story, Failure> {
        let session = Session::over(self.model.clone(), &self.options)?;
        let mut settings = session.settings();
        settings.params.seed = Some(STORY_SEED);
        session.configure(settings)?;
        session.set_chain(-1, Some(STORY_CHAIN.parse()?))?;
        hear(STORY)?;
        session.prefill(&self.tokens(STORY)?, -1)?;
        session.generate(-1, None, None, Sink::Queue)?;
        let (mut tokens, mut text) = ([0; 1], [0; 256]);
        loop {
            let step = session.next(None, &mut tokens, &mut text)?;
            hear(&String::from_utf8_lossy(&text[..step.text_bytes]))?;
            if step.done {
                let usage = session.usage();
                let rest = usage.decode_us.saturating_sub(usage.first_token_us);
                return Ok(Story {
                    tokens: usage.completion_tokens,
                    first_ms: (usage.prefill_us + usage.first_token_us) as f64 / 1e3,
                    per_second: usage.completion_tokens.saturating_sub(1) as f64 * 1e6 / rest.max(1) as f64,
                });
            }
        }
    }

    /// The answers to every request, each in all ways.
    fn answers(&self) -> Result<Vec<[Answer; 3]>, Failure> {
        let trie = Arc::new(Trie::parse(self.payload.as_bytes())?);
        let mut mask = Mask::new(self.model.clone(), &self.options, trie)?;
        let held = greedy_session(self.model.clone(), &self.options, Some(self.payload.as_bytes()))?;
        let mut all = Vec::with_capacity(REQUESTS.len());
        for (request, action) in REQUESTS {
            let prompt = self.tokens(&prompt(request))?;
            let mut answers: [Answer; 3] = Default::default();
            for ((way, _), answer) in WAYS.iter().zip(&mut answers) {
                let mut times = Vec::with_capacity(REPETITIONS);
                for _ in 0..REPETITIONS {
                    let (tokens, passes, seconds) = match way {
                        Way::Free => timed(generate(&self.free, &prompt, LONGEST, SpanEnd::Continue)?),
                        Way::Trie => timed(generate(&held, &prompt, LONGEST, SpanEnd::Stop)?),
                        Way::Mask => {
                            let span = mask.span(&prompt)?;
                            (span.tokens, span.usage.forward_passes, span.seconds)
                        }
                    };
                    times.push(seconds * 1e3);
                    let text = self.model.vocab().detokenize(&tokens, false, false)?;
                    answer.text = String::from_utf8_lossy(&text).into();
                    answer.tokens = tokens.len();
                    // One of them is the prompt's.
                    answer.forward_passes = passes - 1;
                }
                times.sort_by(f64::total_cmp);
                answer.ms = times[REPETITIONS / 2];
                answer.right = answer.text == action;
            }
            all.push(answers);
        }
        Ok(all)
    }

    /// Every action's probability of being the answer to the open request.
    fn scores(&self) -> Result<LeafScores, Failure> {
        let session = greedy_session(self.model.clone(), &self.options, Some(self.payload.as_bytes()))?;
        session.prefill(&self.tokens(&prompt(OPEN_REQUEST))?, -1)?;
        Ok(session.score_trie()?)
    }

    fn weights(&self) -> u64 {
        self.model.file().tensors().iter().map(|tensor| tensor.elements()).sum()
    }
}

fn timed((tokens, usage): (Vec<Token>, Usage)) -> (Vec<Token>, u64, f64) {
    (tokens, usage.forward_passes, usage.decode_us as f64 / 1e6)
}

// -------------------------------------------------------------------------------------------- for machines, for people

impl Demo {
    fn json(&self) -> Result<Value, Failure> {
        let mut text = String::new();
        let story = self.story(|piece| {
            text.push_str(piece);
            Ok(())
        })?;
        let info = self.free.info();
        let requests = REQUESTS.iter().zip(self.answers()?).map(|((request, action), answers)| {
            let ways = WAYS.iter().zip(answers).map(|((_, name), answer)| ((*name).to_owned(), json!(answer)));
            json!({"request": request, "action": action, "answers": ways.collect::<serde_json::Map<_, _>>()})
        });
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "weights": self.weights(),
            "bytes": MODEL.len(),
            "load_ms": self.load_ms,
            "threads": info.threads,
            "device": info.device,
            "device_reason": info.device_reason,
            "no_gpu_reason": info.no_gpu_reason,
            "story": {
                "text": text,
                "tokens": story.tokens,
                "first_token_ms": story.first_ms,
                "tokens_per_second": story.per_second,
            },
            "actions": ACTIONS.lines().count(),
            "requests": requests.collect::<Vec<_>>(),
            "scores": {"request": OPEN_REQUEST, "leaves": self.scores()?.leaves},
        }))
    }

    fn show(&self, width: usize) -> Outcome {
        let mut out = io::stdout().lock();
        let info = self.free.info();
        writeln!(out, "{} {}", style("libelizainference").bold(), env!("CARGO_PKG_VERSION"))?;
        let (weights, bytes) = (count(self.weights()), size(MODEL.len() as u64));
        let model = format!("{weights} weights in {bytes}, a part of this program, loaded in {:.1} ms", self.load_ms);
        let threads = if info.threads == 1 { "1 thread".into() } else { format!("{} threads", info.threads) };
        let device = format!("{}, {threads}: {}", info.device, info.device_reason);
        for line in [format!("Model: {model}"), format!("Device: {device}")] {
            Lines { out: &mut out, width, column: 0, word: String::new() }.write(&format!("{line}\n"))?;
        }

        heading(&mut out, "Text, as it is made")?;
        let mut lines = Lines { out: &mut out, width, column: 0, word: String::new() };
        let story = self.story(|piece| lines.write(piece))?;
        lines.write("\n")?;
        let Story { tokens, first_ms, per_second } = story;
        let speed = format!("{tokens} tokens, the first after {first_ms:.1} ms, then {per_second:.0} a second");
        writeln!(out, "{}", style(speed).dim())?;

        let actions = ACTIONS.lines().count();
        heading(&mut out, &format!("{} requests, {actions} actions, three ways to an answer", REQUESTS.len()))?;
        let answers = self.answers()?;
        match width >= TABLE {
            true => table(&mut out, width, &answers)?,
            false => blocks(&mut out, width, &answers)?,
        }

        heading(&mut out, &format!("\u{201c}{OPEN_REQUEST}\u{201d}: every action scored as a whole"))?;
        bars(&mut out, width, &self.scores()?)?;
        Ok(out.flush()?)
    }
}

fn heading(out: &mut impl Write, text: &str) -> io::Result<()> {
    writeln!(out, "\n{}", style(text).bold())
}

/// Text in lines of at most `width` characters, each word printed once it is known to be whole.
struct Lines<'a, W> {
    out: &'a mut W,
    width: usize,
    column: usize,
    word: String,
}

impl<W: Write> Lines<'_, W> {
    fn write(&mut self, text: &str) -> io::Result<()> {
        for c in text.chars() {
            if c != ' ' && c != '\n' {
                self.word.push(c);
                continue;
            }
            let length = self.word.chars().count();
            if self.column > 0 && self.column + 1 + length > self.width {
                writeln!(self.out)?;
                self.column = 0;
            }
            let space = if self.column > 0 { " " } else { "" };
            write!(self.out, "{space}{}", self.word)?;
            self.column += space.len() + length;
            self.word.clear();
            if c == '\n' {
                writeln!(self.out)?;
                self.column = 0;
            }
        }
        self.out.flush()
    }
}

/// The narrowest table, and the width of one way's columns in it.
const TABLE: usize = 76;
const CELLS: usize = 20;
const COLUMNS: &str = "tok pass      ms   ";

/// Tokens, passes, milliseconds, and whether it is right.
fn cells(answer: &Answer) -> String {
    let mark = if answer.right { style(" \u{2713}").green() } else { style(" \u{2717}").red() };
    figures(answer) + &mark.to_string()
}

fn figures(answer: &Answer) -> String {
    format!("{:>3} {:>4} {:>7.2} ", answer.tokens, answer.forward_passes, answer.ms)
}

/// What all answers of a way take together, and how many are right.
fn sum(answers: &[[Answer; 3]], way: usize) -> String {
    let mut sum = Answer::default();
    let answers = answers.iter().map(|answers| &answers[way]);
    for answer in answers.clone() {
        sum.tokens += answer.tokens;
        sum.forward_passes += answer.forward_passes;
        sum.ms += answer.ms;
    }
    format!("{}{:>2}", figures(&sum), answers.filter(|answer| answer.right).count())
}

fn table(out: &mut impl Write, width: usize, answers: &[[Answer; 3]]) -> io::Result<()> {
    let room = width.min(110) - WAYS.len() * CELLS;
    let row = |first: &str, ways: [String; 3]| {
        let first = pad_str(first, room, Alignment::Left, Some("\u{2026}"));
        first.into_owned() + &ways.map(|way| format!(" {}", pad_str(&way, CELLS - 1, Alignment::Right, None))).concat()
    };
    writeln!(out, "{}", row("", WAYS.map(|(_, name)| name.into())))?;
    writeln!(out, "{}", style(row("", [(); 3].map(|()| COLUMNS.into()))).dim())?;
    for ((request, _), answers) in REQUESTS.iter().zip(answers) {
        writeln!(out, "{}", row(request, answers.each_ref().map(cells)))?;
    }
    writeln!(out, "{}", row("all", [0, 1, 2].map(|way| sum(answers, way))))
}

/// The table, for terminals that it does not fit.
fn blocks(out: &mut impl Write, width: usize, answers: &[[Answer; 3]]) -> io::Result<()> {
    writeln!(out, "{}", style(format!("{:16}{COLUMNS}", "")).dim())?;
    let mut block = |title: &str, ways: [String; 3]| {
        writeln!(out, "{}", truncate_str(title, width, "\u{2026}"))?;
        WAYS.iter().zip(ways).try_for_each(|((_, name), cells)| writeln!(out, "  {name:<13} {cells}"))
    };
    for ((request, _), answers) in REQUESTS.iter().zip(answers) {
        block(request, answers.each_ref().map(cells))?;
    }
    block("all", [0, 1, 2].map(|way| sum(answers, way)))
}

/// The most probable names, as bars of their share of the probability of all names.
fn bars(out: &mut impl Write, width: usize, scores: &LeafScores) -> Outcome {
    let total: f64 = scores.leaves.iter().map(|leaf| leaf.logprob.exp()).sum();
    let shown = &scores.leaves[..BARS.min(scores.leaves.len())];
    let Some(longest) = shown.iter().map(|leaf| leaf.name.len()).max() else { return fail("No action was scored") };
    let room = width.min(80).saturating_sub(longest + 11);
    for leaf in shown {
        let share = leaf.logprob.exp() / total;
        let bar = "\u{2588}".repeat((share * room as f64).round() as usize);
        writeln!(out, "  {:<longest$} {:>5.1} % {}", leaf.name, 100.0 * share, style(bar).cyan())?;
    }
    Ok(())
}
