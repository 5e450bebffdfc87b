//! `bench`: how fast a model loads, reads a prompt and decodes on this machine, beside what its memory allows.
//!
//! Decoding one token reads every weight once, so memory bandwidth bounds it; the bandwidth is measured here with the
//! same number of threads, and the fraction of it that decoding reaches says how much is left.

use crate::args::{ModelArgs, loading};
use crate::output::{Failure, Outcome, catch_interrupts, fail, interrupted, print_json, printable, progress, size};
use elizainference::Token;
use elizainference::backend::{SampleOp, SampleSpec};
use elizainference::engine::{Engine, EngineOptions, SlotId, open_model};
use elizainference::gguf::File;
use serde_json::json;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Bytes that the bandwidth measurement reads: more than the caches of common machines.
const BANDWIDTH_BYTES: usize = 512 << 20;

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
    /// Repetitions; medians are reported
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Sample on the host, from copied logits, where the device could do it
    #[arg(long)]
    host_sampling: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    catch_interrupts(|| {});
    let options = args.model.engine(u32::try_from(args.pp.max(args.tg + 1)).unwrap_or(u32::MAX))?;
    let mut bench = Bench::open(&args, &options)?;
    let (prompt, decode) = bench.measure(&args)?;
    let peak = peak_rss();
    let bandwidth = read_bandwidth(bench.engine.threads());
    let bytes = bytes_per_token(bench.engine.model().file());
    let rate = decode.map(|tok_s| tok_s * bytes as f64);

    if args.json {
        return print_json(&json!({
            "model": args.model.model.display().to_string(),
            "threads": bench.engine.threads(),
            "device": bench.engine.model().device().name,
            "sampled_on_device": bench.on_device,
            "kv_type": args.model.kv_type,
            "pp": args.pp,
            "tg": args.tg,
            "reps": args.reps,
            "prompt_tok_s": prompt,
            "decode_tok_s": decode,
            "load_ms": bench.load_ms,
            "peak_rss_bytes": peak,
            "memory_read_bytes_s": bandwidth,
            "bytes_per_token": bytes,
            "bandwidth_fraction": rate.map(|r| r / bandwidth),
        }));
    }
    let mut out = io::stdout().lock();
    writeln!(out, "Device       {}", printable(&bench.engine.model().device().name))?;
    writeln!(out, "Threads      {}", bench.engine.threads())?;
    writeln!(out, "Load         {:.1} ms", bench.load_ms)?;
    if let Some(tok_s) = prompt {
        writeln!(out, "Prompt {:<5} {tok_s:.1} tok/s", args.pp)?;
    }
    if let (Some(tok_s), Some(rate)) = (decode, rate) {
        writeln!(out, "Decode {:<5} {tok_s:.1} tok/s", args.tg)?;
        let share = 100.0 * rate / bandwidth;
        let (read, can) = (size(bytes), size(bandwidth as u64));
        writeln!(out, "Bandwidth    {share:.0} % of {can}/s reached ({read} of weights per token)")?;
    }
    if let Some(peak) = peak {
        writeln!(out, "Peak memory  {}", size(peak))?;
    }
    Ok(out.flush()?)
}

/// The chain of the measurement.
fn greedy() -> SampleSpec {
    SampleSpec { ops: vec![SampleOp::Greedy], ..SampleSpec::default() }
}

struct Bench {
    engine: Engine,
    slot: SlotId,
    load_ms: f64,
    never: AtomicBool,
    /// Whether decoding samples on the device; otherwise it ends with the logits.
    on_device: bool,
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
        let slot = engine.take_slot(-1)?;
        let load_ms = started.elapsed().as_secs_f64() * 1e3;
        let longest = args.pp.max(args.tg + 1);
        if engine.context() < longest {
            return fail(format!("{longest} tokens do not fit in the model's context of {}", engine.context()));
        }
        let on_device = !args.host_sampling && engine.start_sampling(slot, &greedy())?;
        Ok(Bench { engine, slot, load_ms, never: AtomicBool::new(false), on_device })
    }

    /// Median tokens per second of prompt and decode, after one unmeasured round.
    fn measure(&mut self, args: &Args) -> Result<(Option<f64>, Option<f64>), Failure> {
        let n_vocab = self.engine.model().n_vocab() as u64;
        // Which tokens makes no difference in speed; these are spread over the vocabulary.
        let token = |i: usize| ((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % n_vocab) as Token;
        let tokens: Vec<Token> = (0..args.pp.max(args.tg + 1)).map(token).collect();
        let (mut prompt, mut decode) = (Vec::new(), Vec::new());
        let bar = progress("Measuring", u64::from(args.reps) + 1);
        for _ in 0..=args.reps {
            if interrupted() {
                return Err(Failure::Interrupted);
            }
            if args.pp > 0 {
                self.engine.truncate(self.slot, 0);
                let started = Instant::now();
                self.engine.prefill(self.slot, &tokens[..args.pp], &self.never)?;
                prompt.push(args.pp as f64 / started.elapsed().as_secs_f64());
            }
            if args.tg > 0 {
                self.engine.truncate(self.slot, 0);
                self.engine.prefill(self.slot, &tokens[..1], &self.never)?;
                if self.on_device {
                    self.engine.start_sampling(self.slot, &greedy())?;
                }
                let started = Instant::now();
                match self.on_device {
                    true => self.sample(args.tg)?,
                    false => {
                        for token in &tokens[1..=args.tg] {
                            black_box(self.engine.decode(self.slot, *token, &self.never)?);
                        }
                    }
                }
                decode.push(args.tg as f64 / started.elapsed().as_secs_f64());
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok((median(prompt), median(decode)))
    }

    /// Decode as a session does: each token sampled on the device, the next step under way meanwhile.
    fn sample(&mut self, count: usize) -> Result<(), Failure> {
        let mut none = Vec::new();
        let mut token = self.engine.sample(self.slot, &[], None, true, &mut none, &self.never)?.token;
        for step in 1..=count {
            token = self.engine.sample(self.slot, &[token], None, step < count, &mut none, &self.never)?.token;
        }
        Ok(self.engine.settle()?)
    }
}

/// The median without the first value, which is the warm-up's.
fn median(mut values: Vec<f64>) -> Option<f64> {
    let values = values.get_mut(1..)?;
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get((values.len().max(1) - 1) / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

fn warm_page_cache(path: &Path) -> Outcome {
    let failed = |e: io::Error| Failure::Error(format!("{}: {e}", path.display()));
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer).map_err(failed)? > 0 {}
    Ok(())
}

/// Bytes of weights that decoding one token reads: all tensors, except that of a separate embedding one row is read.
fn bytes_per_token(file: &File) -> u64 {
    let separate = file.tensor("output.weight").is_some();
    let read = file.tensors().iter().filter(|t| !(separate && t.name == "token_embd.weight"));
    read.map(|t| t.bytes).sum()
}

/// Bytes per second that `threads` threads together read from memory: the best of several passes.
fn read_bandwidth(threads: usize) -> f64 {
    let words = vec![1u64; BANDWIDTH_BYTES / 8];
    let part = words.len().div_ceil(threads.max(1));
    let pass = || {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks(part) {
                scope.spawn(|| black_box(sum(part)));
            }
        });
        BANDWIDTH_BYTES as f64 / started.elapsed().as_secs_f64()
    };
    (0..6).map(|_| pass()).fold(0.0, f64::max)
}

/// A sum in as many partial sums as keep the processor waiting for memory alone.
fn sum(words: &[u64]) -> u64 {
    let mut parts = [0u64; 16];
    for line in words.as_chunks::<16>().0 {
        for (part, word) in parts.iter_mut().zip(line) {
            *part = part.wrapping_add(*word);
        }
    }
    parts.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// The most memory that this process had resident, where the system tells (Linux).
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
