//! `bench --streams`: several streams on one engine, alone and while prompts of others are read.
//!
//! Every stream is a session with a worker and a callback of its own, as hosts have them, so the figures are those of
//! the whole path: passes, sampling, text and callbacks.

use crate::args::ModelArgs;
use crate::output::{Failure, Outcome, fail, interrupted, progress};
use elizainference::Token;
use elizainference::engine::EngineOptions;
use elizainference::sampling::Chain;
use elizainference::session::{Event, OpenOptions, Session, Sink};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Measure so many streams that share an engine instead, each with a prompt of `--depth` and an answer of `--tg`
    /// tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    #[arg(conflicts_with_all = ["sequences", "turns", "texts"])]
    pub streams: Option<u32>,
    /// With `--streams`: they are slots of one session, which share its context
    #[arg(long, requires = "streams")]
    concurrent_slots: bool,
    /// With `--streams`: so many more streams read a prompt of `--pp` tokens each while the others generate
    #[arg(long, default_value_t = 0, value_name = "N", requires = "streams")]
    readers: u32,
    /// With `--readers`: the most that the time for a token may grow meanwhile, in percent of the time without
    #[arg(long, default_value_t = 250, value_name = "PERCENT", requires = "readers")]
    max_slowdown: u32,
}

/// What is measured.
pub struct Work<'a> {
    pub model: &'a ModelArgs,
    pub depth: usize,
    pub pp: usize,
    pub tg: usize,
    pub reps: u32,
    pub chain: &'a Chain,
}

/// When each token of a generation came, from its begin on.
type Times = Vec<Duration>;

struct Bench {
    /// Those that generate, and those that read prompts.
    writers: Vec<Session>,
    readers: Vec<Session>,
    n_vocab: usize,
}

pub fn run(streams: u32, args: &Args, work: &Work<'_>) -> Result<Value, Failure> {
    let bench = Bench::open(streams, args, work)?;
    let mut alone = Vec::new();
    let mut together = Vec::new();
    let bar = progress("Measuring", u64::from(work.reps) + 1);
    for round in 0..=work.reps as usize {
        if interrupted() {
            return Err(Failure::Interrupted);
        }
        alone.push(bench.generate(&bench.writers[..1], work, round)?);
        together.push(bench.generate(&bench.writers, work, round)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    // The first round warms up.
    let (one, all) = (median(rates(&alone[1..])), median(rates(&together[1..])));
    let steps = median(together[1..].iter().flatten().flat_map(gaps));
    let mut report = json!({
        "model": work.model.model.display().to_string(),
        "threads": bench.writers[0].info().threads,
        "device": bench.writers[0].info().device,
        "streams": streams,
        "concurrent_slots": args.concurrent_slots,
        "chain": work.chain.to_string(),
        "depth": work.depth,
        "tg": work.tg,
        "reps": work.reps,
        "tokens_per_second_of_one": one,
        "aggregate_tokens_per_second": all,
        "speedup": all / one,
        "token_ms": steps,
    });
    if args.readers > 0 {
        let read_alone = bench.read(work, 0)?;
        let (times, read) = bench.generate_while_reading(work)?;
        let disturbed: Vec<f64> = times.iter().flat_map(gaps).collect();
        let p99 = percentile(disturbed.iter().copied(), 0.99);
        report["readers"] = json!({
            "readers": args.readers,
            "pp": work.pp,
            "max_slowdown_percent": args.max_slowdown,
            "prompt_tokens_per_second_alone": read_alone,
            "prompt_tokens_per_second": read,
            "share_of_alone": read / read_alone,
            "token_ms": median(disturbed.iter().copied()),
            "token_ms_p99": p99,
            "p99_over_undisturbed_median": p99 / steps,
            "tokens": disturbed.len(),
        });
    }
    Ok(report)
}

/// Tokens per second of each round.
fn rates(rounds: &[Vec<Times>]) -> impl Iterator<Item = f64> + '_ {
    rounds.iter().map(|streams| {
        let tokens: usize = streams.iter().map(Vec::len).sum();
        let last = streams.iter().filter_map(|times| times.last()).max().copied().unwrap_or_default();
        tokens as f64 / last.as_secs_f64()
    })
}

impl Bench {
    fn open(streams: u32, args: &Args, work: &Work<'_>) -> Result<Bench, Failure> {
        let (written, read) = (work.depth + work.tg + 1, if args.readers > 0 { work.pp + 1 } else { 0 });
        let (all, concurrent_slots) = (streams + args.readers, args.concurrent_slots);
        let (slots, parallel, tokens) = match concurrent_slots {
            true => (all, 1, written * streams as usize + read * args.readers as usize),
            false => (1, all, written.max(read)),
        };
        let context = u32::try_from(tokens).unwrap_or(u32::MAX);
        let engine = EngineOptions {
            slots,
            parallel,
            concurrent_slots,
            max_slowdown_percent: args.max_slowdown,
            ..work.model.engine(context)?
        };
        let open = || {
            let (path, engine) = (work.model.model.clone(), engine.clone());
            Session::open(OpenOptions { path, engine, ..OpenOptions::default() })
        };
        let mut writers = vec![open()?];
        for _ in 1..all {
            let next = if args.concurrent_slots { writers[0].open_slot(-1)? } else { open()? };
            writers.push(next);
        }
        for session in &writers {
            let mut settings = session.settings();
            settings.ignore_eos = true;
            // Texts of random weights run in circles, which would be guessed.
            settings.no_guessing = true;
            settings.params.seed = Some(1);
            session.configure(settings)?;
            session.set_chain(-1, Some(work.chain.clone()))?;
        }
        let readers = writers.split_off(streams as usize);
        let info = writers[0].info();
        if info.context < context {
            return fail(format!("{context} tokens do not fit in the model's context of {}", info.context));
        }
        let n_vocab = info.n_vocab;
        Ok(Bench { writers, readers, n_vocab })
    }

    /// So many tokens, others for every text.
    fn tokens(&self, n: usize, text: usize) -> Vec<Token> {
        let at = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(text as u64 * 0x51_7cc1);
        (0..n).map(|i| (at(i) % self.n_vocab.max(1) as u64) as Token).collect()
    }

    /// All of these generate at the same time.
    fn generate(&self, sessions: &[Session], work: &Work<'_>, round: usize) -> Result<Vec<Times>, Failure> {
        for (i, session) in sessions.iter().enumerate() {
            session.prefill(&self.tokens(work.depth.max(1), round * 16 + i), -1)?;
        }
        let start = Arc::new(Barrier::new(sessions.len()));
        thread::scope(|scope| {
            let of = |session| {
                let start = start.clone();
                scope.spawn(move || {
                    start.wait();
                    listen(session, work.tg as i32)
                })
            };
            let all: Vec<_> = sessions.iter().map(of).collect();
            all.into_iter().map(|one| one.join().unwrap_or_else(|_| fail("a stream panicked"))).collect()
        })
    }

    /// All readers read a prompt, one after the other; the tokens of their prompts per second.
    fn read(&self, work: &Work<'_>, round: usize) -> Result<f64, Failure> {
        let started = Instant::now();
        for (i, session) in self.readers.iter().enumerate() {
            session.prefill(&self.tokens(work.pp, 1000 + round * 16 + i), -1)?;
        }
        Ok((work.pp * self.readers.len()) as f64 / started.elapsed().as_secs_f64())
    }

    /// The writers generate, one answer after the other, until the readers are done; the times of the answers.
    fn generate_while_reading(&self, work: &Work<'_>) -> Result<(Vec<Times>, f64), Failure> {
        let over = AtomicBool::new(false);
        let answers = |session: &Session, text: usize| -> Result<Vec<Times>, Failure> {
            let (prompt, mut all) = (self.tokens(work.depth.max(1), 500 + text), Vec::new());
            while !over.load(Ordering::Relaxed) {
                session.prefill(&prompt, -1)?;
                all.push(listen(session, work.tg as i32)?);
            }
            Ok(all)
        };
        thread::scope(|scope| {
            let answers = &answers;
            let of = |(text, session)| scope.spawn(move || answers(session, text));
            let all: Vec<_> = self.writers.iter().enumerate().map(of).collect();
            let read = self.read(work, 1);
            over.store(true, Ordering::Relaxed);
            let times: Result<Vec<Vec<Times>>, Failure> =
                all.into_iter().map(|one| one.join().unwrap_or_else(|_| fail("a stream panicked"))).collect();
            Ok((times?.concat(), read?))
        })
    }
}

/// One generation.
fn listen(session: &Session, most: i32) -> Result<Times, Failure> {
    let (sender, receiver) = channel();
    let mut times = Vec::with_capacity(usize::try_from(most).unwrap_or(1 << 16));
    let started = Instant::now();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if event.done {
            let _ = sender.send(std::mem::take(&mut times));
        } else {
            times.push(started.elapsed());
        }
    }));
    session.generate(most, None, None, sink)?;
    let times = receiver.recv().map_err(|_| Failure::Error("a generation had no end".into()))?;
    match session.status().error {
        Some(error) => Err(error.into()),
        None => Ok(times),
    }
}

/// Milliseconds from each token to the next.
fn gaps(times: &Times) -> impl Iterator<Item = f64> + '_ {
    times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    percentile(values, 0.5)
}

/// The value below which this share of them is; 0 without any.
fn percentile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

pub fn summary(report: &Value) -> Outcome {
    let mut out = io::stdout().lock();
    let number = |key: &str| report[key].as_f64().unwrap_or(0.0);
    writeln!(out, "One stream   {:.1} tok/s", number("tokens_per_second_of_one"))?;
    let (all, speedup) = (number("aggregate_tokens_per_second"), number("speedup"));
    writeln!(
        out,
        "{:<13}{all:.1} tok/s together, {speedup:.2} times as many",
        format!("{} streams", report["streams"])
    )?;
    writeln!(out, "Each token   {:.1} ms (median)", number("token_ms"))?;
    let readers = &report["readers"];
    if readers.is_object() {
        let number = |key: &str| readers[key].as_f64().unwrap_or(0.0);
        writeln!(
            out,
            "While {} prompts of {} tokens are read: {:.1} ms (median), {:.1} ms (99th percentile)",
            readers["readers"],
            readers["pp"],
            number("token_ms"),
            number("token_ms_p99"),
        )?;
        writeln!(out, "             {:.2} times the median without", number("p99_over_undisturbed_median"))?;
        let (read, share) = (number("prompt_tokens_per_second"), number("share_of_alone"));
        writeln!(out, "Prompts      {read:.1} tok/s, {share:.2} of the rate alone")?;
    }
    Ok(out.flush()?)
}
