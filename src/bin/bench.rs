//! `bench`: how fast a model loads, prefills and decodes on this machine, compared with the bound of memory bandwidth.
//!
//! Decoding one token reads every weight and the cached keys and values once, so memory bandwidth bounds it. The
//! bandwidth of every device that reads weights is measured here (the host's with the same number of threads, a GPU's
//! by copies within its memory), and the fraction of it that decoding reaches says how much is left.

use crate::args::{ModelArgs, loading};
use crate::output::{
    Failure, Outcome, catch_interrupts, fail, interrupted, print_json, printable, progress, size, usage,
};
use crate::{spans, streams};
use elizainference::Token;
use elizainference::backend::kernel_times::{self, KernelTime};
use elizainference::engine::{
    EmbedOptions, Engine, EngineOptions, SlotId, SlotOutcome, SlotToken, Speculation, Traffic, open_model,
};
use elizainference::gguf::File;
use elizainference::sampling::{Chain, Sampler};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt; 0 leaves that out
    #[arg(long, default_value_t = 512, value_name = "N")]
    pp: usize,
    /// Tokens to decode; 0 leaves that out
    #[arg(long, default_value_t = 64, value_name = "N")]
    tg: usize,
    /// Tokens in every slot before the prompt and before decoding
    #[arg(long, default_value_t = 0, value_name = "N")]
    depth: usize,
    /// Repetitions; medians are reported
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Sequences that decode together, each in a slot of its own
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    sequences: u32,
    /// The sampler chain of every sequence
    #[arg(long, default_value = "greedy", value_name = "CHAIN")]
    chain: Chain,
    /// Measure a conversation instead: after a prompt of `--depth` tokens this many turns, each a question of `--pp`
    /// tokens and an answer of `--tg`
    #[arg(long, default_value_t = 0, value_name = "N", conflicts_with = "sequences")]
    turns: usize,
    /// Measure rows of texts instead: so many texts of `--pp` tokens, in one call and one by one
    #[arg(long, default_value_t = 0, value_name = "N", conflicts_with_all = ["sequences", "turns"])]
    texts: usize,
    /// Sample on the host, from copied logits, where the device could do it
    #[arg(long)]
    host_sampling: bool,
    /// Measure the kernels on a GPU, each by itself: every submission is then waited for
    #[arg(long)]
    profile: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    streams: streams::Args,
    #[command(flatten)]
    spans: spans::Args,
}

pub fn run(args: Args) -> Outcome {
    catch_interrupts(|| {});
    if args.profile {
        if args.model.engine(0)?.gpu_layers == 0 {
            return usage("--profile measures kernels on a GPU, and --gpu-layers puts none there");
        }
        kernel_times::measure();
    }
    if let Some(how) = args.spans.mode {
        let report = spans::run(how, &args.model, args.reps, &args.spans)?;
        return if args.json { print_json(&report) } else { spans::summary(&report) };
    }
    if let Some(streams) = args.streams.streams {
        let Args { model, depth, pp, tg, reps, chain, .. } = &args;
        let work = streams::Work { model, depth: *depth, pp: *pp, tg: *tg, reps: *reps, chain };
        let report = streams::run(streams, &args.streams, &work)?;
        return if args.json { print_json(&report) } else { streams::summary(&report) };
    }
    if args.turns > 0 {
        let report = conversation(&args)?;
        return if args.json { print_json(&report) } else { conversation_summary(&report) };
    }
    if args.texts > 0 {
        let report = embeddings(&args)?;
        return if args.json { print_json(&report) } else { embeddings_summary(&report) };
    }
    let report = speed(&args)?;
    if args.json { print_json(&report) } else { summary(&report) }
}

/// How many tokens a conversation evaluates, and how long each turn waits for its first token.
fn conversation(args: &Args) -> Result<Value, Failure> {
    let context = u32::try_from(args.context()).unwrap_or(u32::MAX);
    let mut bench = Bench::open(args, &EngineOptions { slots: 1, ..args.model.engine(context)? })?;
    let (engine, slot, never) = (&mut bench.engine, bench.slots[0], &bench.never);
    let n_vocab = engine.model().n_vocab();
    let (mut text, mut first_ms) = (args.tokens(n_vocab), Vec::new());
    let mut coming = text.split_off(args.depth).into_iter();
    let before = engine.stats().rows;
    let bar = progress("Turns", args.turns as u64);
    for _ in 0..args.turns {
        if interrupted() {
            return Err(Failure::Interrupted);
        }
        text.extend(coming.by_ref().take(args.pp));
        let started = Instant::now();
        engine.prefill(slot, &text, never)?;
        engine.head(slot)?;
        first_ms.push(started.elapsed().as_secs_f64() * 1e3);
        for token in coming.by_ref().take(args.tg) {
            engine.decode(slot, token, never)?;
            text.push(token);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let evaluated = engine.stats().rows - before;
    Ok(json!({
        "model": args.model.model.display().to_string(),
        "threads": engine.threads(),
        "turns": args.turns,
        "tokens": text.len(),
        "evaluated": evaluated,
        "evaluated_per_token": evaluated as f64 / text.len().max(1) as f64,
        "first_token_ms": first_ms.first(),
        "later_first_token_ms": median(first_ms.clone()),
        "peak_rss_bytes": peak_rss(),
    }))
}

fn conversation_summary(report: &Value) -> Outcome {
    let mut out = io::stdout().lock();
    let number = |key: &str| report[key].as_f64().unwrap_or(0.0);
    let (tokens, evaluated) = (&report["tokens"], &report["evaluated"]);
    writeln!(out, "Turns        {} over {tokens} tokens", report["turns"])?;
    writeln!(out, "Evaluated    {evaluated} tokens, {:.3} for each", number("evaluated_per_token"))?;
    writeln!(out, "First token  {:.1} ms in the first turn", number("first_token_ms"))?;
    if report["later_first_token_ms"].is_number() {
        writeln!(out, "             {:.1} ms in later ones (median)", number("later_first_token_ms"))?;
    }
    Ok(out.flush()?)
}

/// How fast the rows of texts are made, all in one call and each in a call of its own.
fn embeddings(args: &Args) -> Result<Value, Failure> {
    let context = u32::try_from(args.context()).unwrap_or(u32::MAX);
    let mut bench = Bench::open(args, &EngineOptions { slots: 1, ..args.model.engine(context)? })?;
    let (engine, never) = (&mut bench.engine, &bench.never);
    let tokens = args.tokens(engine.model().n_vocab());
    let texts: Vec<Vec<Token>> = (0..args.texts)
        .map(|text| (0..args.pp).map(|i| tokens[(text * 31 + i) % tokens.len().max(1)]).collect())
        .collect();
    let options = EmbedOptions { normalize: true, ..EmbedOptions::default() };
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    let bar = progress("Texts", args.reps as u64 + 1);
    // The first is the warm-up.
    for _ in 0..=args.reps {
        let started = Instant::now();
        engine.embed(&texts, &options, never)?;
        together.push(args.texts as f64 / started.elapsed().as_secs_f64());
        let started = Instant::now();
        for text in &texts {
            if interrupted() {
                return Err(Failure::Interrupted);
            }
            engine.embed(std::slice::from_ref(text), &options, never)?;
        }
        alone.push(args.texts as f64 / started.elapsed().as_secs_f64());
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (together, alone) = (median(together), median(alone));
    Ok(json!({
        "model": args.model.model.display().to_string(),
        "threads": engine.threads(),
        "texts": args.texts,
        "text_tokens": args.pp,
        "texts_s": together,
        "texts_s_one_by_one": alone,
        "peak_rss_bytes": peak_rss(),
    }))
}

fn embeddings_summary(report: &Value) -> Outcome {
    let mut out = io::stdout().lock();
    let number = |key: &str| report[key].as_f64().unwrap_or(0.0);
    let (together, alone) = (number("texts_s"), number("texts_s_one_by_one"));
    writeln!(out, "Texts        {} of {} tokens", report["texts"], report["text_tokens"])?;
    writeln!(out, "Together     {together:.1} texts/s")?;
    writeln!(out, "One by one   {alone:.1} texts/s, {:.2} times as long", together / alone)?;
    Ok(out.flush()?)
}

fn speed(args: &Args) -> Result<Value, Failure> {
    let context = u32::try_from(args.context()).unwrap_or(u32::MAX);
    let options = EngineOptions { slots: args.sequences, ..args.model.engine(context)? };
    let mut bench = Bench::open(args, &options)?;
    let (prompt, decode) = bench.measure(args)?;
    let peak = peak_rss();
    let shares = shares(&bench.engine)?;
    let bytes: u64 = shares.iter().map(|share| share.bytes).sum();
    // Devices read one after the other.
    let bandwidth = bytes as f64 / shares.iter().map(|share| share.bytes as f64 / share.bandwidth).sum::<f64>();
    // The weights are read once for all sequences, the cache of each as long as it is halfway.
    let cache = bench.engine.cache_bytes_read(args.depth + args.tg / 2) * u64::from(args.sequences);
    let rate = decode.map(|tok_s| tok_s / f64::from(args.sequences) * (bytes + cache) as f64);
    let steps = bench.steps.max(1) as f64;
    let per_step = |count: u64| count as f64 / steps;
    let Traffic { dispatches, submissions, waits, bytes_uploaded, bytes_read } = bench.decoding;
    Ok(json!({
        "model": args.model.model.display().to_string(),
        "threads": bench.engine.threads(),
        "device": bench.engine.model().device().name,
        "sequences": args.sequences,
        "chain": args.chain.to_string(),
        "sampled_on_device": bench.on_device,
        "step_ms": decode.map(|tok_s| 1e3 * f64::from(args.sequences) / tok_s),
        "step_dispatches": per_step(dispatches),
        "step_submissions": per_step(submissions),
        "step_waits": per_step(waits),
        "step_bytes_uploaded": per_step(bytes_uploaded),
        "step_bytes_read": per_step(bytes_read),
        "kv_type": args.model.kv_types()[0],
        "kv_type_v": args.model.kv_types()[1],
        "pp": args.pp,
        "tg": args.tg,
        "depth": args.depth,
        "reps": args.reps,
        "prompt_tok_s": prompt,
        "decode_tok_s": decode,
        "load_ms": bench.load_ms,
        "peak_rss_bytes": peak,
        "memory_read_bytes_s": bandwidth,
        "bytes_per_token": bytes,
        "cache_bytes_per_step": cache,
        "decode_read_bytes_s": rate,
        "devices": shares.iter().map(Share::json).collect::<Vec<_>>(),
        "no_gpu_reason": bench.engine.model().no_gpu_reason(),
        "bandwidth_fraction": rate.map(|r| r / bandwidth),
        "kernels": kernel_times::all(),
    }))
}

fn summary(report: &Value) -> Outcome {
    let mut out = io::stdout().lock();
    let number = |key: &str| report[key].as_f64();
    let bytes = |key: &str| size(report[key].as_f64().unwrap_or(0.0) as u64);
    writeln!(out, "Device       {}", printable(report["device"].as_str().unwrap_or_default()))?;
    writeln!(out, "Threads      {}", report["threads"])?;
    writeln!(out, "Load         {:.1} ms", number("load_ms").unwrap_or(0.0))?;
    if let Some(tok_s) = number("prompt_tok_s") {
        writeln!(out, "Prompt {:<5} {tok_s:.1} tok/s", report["pp"].to_string())?;
    }
    if let (Some(tok_s), Some(fraction)) = (number("decode_tok_s"), number("bandwidth_fraction")) {
        let sequences = &report["sequences"];
        let together = if *sequences == 1 { String::new() } else { format!(" in {sequences} sequences") };
        writeln!(out, "Decode {:<5} {tok_s:.1} tok/s{together}", report["tg"].to_string())?;
        let [read, cache, can] = ["bytes_per_token", "cache_bytes_per_step", "memory_read_bytes_s"].map(bytes);
        let share = 100.0 * fraction;
        writeln!(
            out,
            "Bandwidth    {share:.0} % of {can}/s reached ({read} of weights and {cache} of cache per step)"
        )?;
    }
    if number("peak_rss_bytes").is_some() {
        writeln!(out, "Peak memory  {}", bytes("peak_rss_bytes"))?;
    }
    kernels(&mut out)?;
    Ok(out.flush()?)
}

/// What kernels took, where that was measured.
fn kernels(out: &mut impl Write) -> Outcome {
    let all = kernel_times::all();
    let sum: f64 = all.iter().map(|time| time.us).sum();
    if !all.is_empty() {
        writeln!(out, "Kernels      {:.2} ms on the GPU", sum / 1e3)?;
    }
    for KernelTime { kernel, dispatches, us } in all {
        let (share, each) = (100.0 * us / sum.max(f64::MIN_POSITIVE), us / dispatches.max(1) as f64);
        writeln!(out, "  {share:5.1} %  {each:9.2} us x {dispatches:<7} {kernel}")?;
    }
    Ok(())
}

impl Args {
    /// Tokens of the longest thing that is measured, of all slots.
    fn context(&self) -> usize {
        if self.texts > 0 {
            // Room for the texts of a pass.
            return self.pp.max(512);
        }
        if self.turns > 0 {
            return self.depth.saturating_add(self.turns.saturating_mul(self.pp.saturating_add(self.tg)));
        }
        let sequences = self.sequences as usize;
        self.depth.saturating_mul(sequences).saturating_add(self.pp.max((self.tg + 1) * sequences))
    }

    /// So many tokens. Which ones makes no difference in speed; these are spread over the vocabulary.
    fn tokens(&self, n_vocab: usize) -> Vec<Token> {
        let token = |i: usize| ((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % n_vocab.max(1) as u64) as Token;
        (0..self.context()).map(token).collect()
    }
}

struct Bench {
    engine: Engine,
    slots: Vec<SlotId>,
    /// One per slot.
    samplers: Vec<Sampler>,
    load_ms: f64,
    never: AtomicBool,
    /// Whether the device samples; otherwise its logits are copied.
    on_device: bool,
    /// The work that decoding submitted to the devices, and its number of steps.
    decoding: Traffic,
    steps: u64,
}

impl Bench {
    /// Load with a warm page cache, timed until a prefill would be accepted.
    fn open(args: &Args, options: &EngineOptions) -> Result<Bench, Failure> {
        let path = &args.model.model;
        // The reader's errors are better than those of a plain read.
        drop(File::open(path)?);
        warm_page_cache(path)?;
        let started = Instant::now();
        let model = open_model(path, options, Some(&mut loading()))?;
        let mut engine = Engine::new(model, options)?;
        let slots = (0..args.sequences).map(|i| engine.take_slot(i as i32)).collect::<Result<Vec<_>, _>>()?;
        let load_ms = started.elapsed().as_secs_f64() * 1e3;
        let longest = args.context();
        if engine.context() < longest {
            return fail(format!("{longest} tokens do not fit in the model's context of {}", engine.context()));
        }
        let n_vocab = engine.model().n_vocab();
        let samplers = (0..args.sequences).map(|i| Sampler::new(&args.chain, n_vocab, i.into()));
        let samplers = samplers.collect::<Result<Vec<_>, _>>()?;
        let spec = samplers.first().map(|sampler| sampler.spec(&[])).unwrap_or_default();
        let on_device =
            !args.host_sampling && args.texts == 0 && engine.start_sampling(slots[0], &spec)? == spec.steps.len();
        let (never, decoding) = (AtomicBool::new(false), Traffic::default());
        Ok(Bench { engine, slots, samplers, load_ms, never, on_device, decoding, steps: 0 })
    }

    /// Median tokens per second of prompt and decode, after one unmeasured round.
    fn measure(&mut self, args: &Args) -> Result<(Option<f64>, Option<f64>), Failure> {
        let tokens = args.tokens(self.engine.model().n_vocab());
        let (mut prompt, mut decode) = (Vec::new(), Vec::new());
        let bar = progress("Measuring", u64::from(args.reps) + 1);
        for round in 0..=args.reps {
            if interrupted() {
                return Err(Failure::Interrupted);
            }
            if round == 1 {
                kernel_times::forget();
            }
            if args.pp > 0 {
                self.slots.iter().for_each(|slot| self.engine.truncate(*slot, args.depth));
                if args.depth > 0 {
                    self.engine.prefill(self.slots[0], &tokens[..args.depth], &self.never)?;
                }
                let started = Instant::now();
                self.engine.prefill(self.slots[0], &tokens[..args.depth + args.pp], &self.never)?;
                prompt.push(args.pp as f64 / started.elapsed().as_secs_f64());
            }
            if args.tg > 0 {
                for (i, (slot, sampler)) in self.slots.iter().zip(&mut self.samplers).enumerate() {
                    self.engine.truncate(*slot, args.depth);
                    self.engine.prefill(*slot, &tokens[i..=i + args.depth], &self.never)?;
                    sampler.restart(0);
                    sampler.accept(tokens[i + args.depth]);
                    if self.on_device {
                        self.engine.start_sampling(*slot, &sampler.spec(&[]))?;
                    }
                }
                let before = self.engine.stats().traffic;
                let started = Instant::now();
                match self.on_device && self.slots.len() == 1 {
                    true => self.decode_ahead(args.tg)?,
                    false => self.decode_together(&tokens[args.depth..], args.tg)?,
                }
                decode.push((args.tg * self.slots.len()) as f64 / started.elapsed().as_secs_f64());
                self.decoding = self.decoding + (self.engine.stats().traffic - before);
                self.steps += args.tg as u64;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok((median(prompt), median(decode)))
    }

    /// Decode as a session does: each token sampled on the device, with the next step as a speculative step.
    fn decode_ahead(&mut self, count: usize) -> Result<(), Failure> {
        let slot = self.slots[0];
        let mut token = self.engine.sample(slot, &[], None, Speculation::Step, &self.never)?.result.token;
        for step in 1..=count {
            let following = if step < count { Speculation::Step } else { Speculation::Nothing };
            token = self.engine.sample(slot, &[token], None, following, &self.never)?.result.token;
        }
        Ok(self.engine.rollback()?)
    }

    /// Decode all slots in steps, each from one of these tokens on.
    fn decode_together(&mut self, first: &[Token], count: usize) -> Result<(), Failure> {
        let mut last: Vec<Token> = first[..self.slots.len()].to_vec();
        for step in 0..count {
            let turn = |(slot, token): (&SlotId, &Token)| SlotToken { slot: *slot, token: *token, legal: None };
            let turns: Vec<_> = self.slots.iter().zip(&last).map(turn).collect();
            let (samplers, mut failed) = (&mut self.samplers, None);
            let mut hear = |i: usize, outcome: elizainference::Result<SlotOutcome<'_>>| {
                let token = outcome.and_then(|outcome| match outcome {
                    SlotOutcome::Sampled(result, _) => Ok(result.token),
                    SlotOutcome::Logits(logits) => {
                        samplers[i].accept(last[i]);
                        samplers[i].sample(logits, None, &[], step as u32 + 2)
                    }
                });
                match token {
                    Ok(token) => last[i] = token,
                    Err(error) => failed = Some(error),
                }
            };
            self.engine.step(&turns, &self.never, &mut hear)?;
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

/// The median without the first value, which is the warm-up's.
fn median(mut values: Vec<f64>) -> Option<f64> {
    let values = values.get_mut(1..)?;
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get((values.len().max(1) - 1) / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

fn warm_page_cache(path: &Path) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::Error(format!("{}: {e}", path.display()));
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer).map_err(failed)? > 0 {}
    Ok(())
}

/// A device, what it reads of the weights for a token, and how fast its memory is.
struct Share {
    device: String,
    bytes: u64,
    bandwidth: f64,
}

impl Share {
    fn json(&self) -> serde_json::Value {
        json!({"name": self.device, "bytes_per_token": self.bytes, "memory_read_bytes_s": self.bandwidth})
    }
}

/// The devices that read weights.
fn shares(engine: &Engine) -> Result<Vec<Share>, Failure> {
    let model = engine.model();
    let mut shares = Vec::new();
    for (i, device) in model.devices().iter().enumerate() {
        let (bytes, backend) = (model.outline().bytes_per_token(i), &device.backend);
        if bytes > 0 {
            let bandwidth = backend.bandwidth(engine.threads())?;
            shares.push(Share { device: backend.device().name, bytes, bandwidth });
        }
    }
    Ok(shares)
}

/// The most memory that this process had resident, where the system reports it (Linux).
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
