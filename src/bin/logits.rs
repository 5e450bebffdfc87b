//! `logits`: the model's raw output for prompts, for comparison with other programs.

use crate::args::{ModelArgs, Prompts, TextArgs, loading};
use crate::output::{Outcome, fail, size};
use clap::ArgMatches;
use elizainference::Error;
use elizainference::engine::{Engine, SlotId, open_model};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompts: Prompts,
    #[command(flatten)]
    how: TextArgs,
    /// File for the rows: raw little-endian f32, one row of the vocabulary's size per position
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Write the row of every position instead of the last one's. Each of several prompts is evaluated by itself
    #[arg(long)]
    all: bool,
    /// Evaluate the last N tokens of a prompt one by one, as a generation does, and write a row after each
    #[arg(long, default_value_t = 0, value_name = "N")]
    decode: usize,
    /// Context in tokens; 0 takes as many as the longest prompt has
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    ctx: u32,
}

pub fn run(args: Args, matches: &ArgMatches) -> Outcome {
    let base = args.model.engine(0)?;
    let model = open_model(&args.model.model, &base, Some(&mut loading()))?;
    let mut texts = Vec::new();
    for (nth, (_, prompt)) in (1..).zip(args.prompts.placed(matches)) {
        let tokens = prompt.tokens(model.vocab(), &args.how)?;
        let (n, decode) = (tokens.len(), args.decode);
        let Some(read) = n.checked_sub(decode).filter(|&n| n > 0) else {
            return fail(format!("Prompt {nth} has {n} tokens, of which {decode} are to be decoded"));
        };
        texts.push((tokens, read));
    }
    let context = match args.ctx {
        0 => u32::try_from(texts.iter().map(|(tokens, _)| tokens.len()).max().unwrap_or(0)).unwrap_or(u32::MAX),
        context => context,
    };
    let mut engine = Engine::new(model, &args.model.engine(context)?)?;
    let io_error = |e: io::Error| Error::io(&args.out, &e);
    let mut out = BufWriter::new(std::fs::File::create(&args.out).map_err(io_error)?);
    let mut rows = 0;
    let mut put = |_: usize, row: &[f32]| {
        rows += 1;
        row.iter().try_for_each(|v| out.write_all(&v.to_le_bytes())).map_err(io_error)
    };
    let never = AtomicBool::new(false);
    let slot = SlotId::default();
    for (tokens, read) in &texts {
        let (prompt, decoded) = tokens.split_at(*read);
        engine.truncate(slot, 0);
        if args.all {
            engine.logits_all(prompt, &never, &mut put)?;
        } else {
            engine.prefill(slot, prompt, &never)?;
            put(0, engine.head(slot)?)?;
        }
        for &token in decoded {
            put(0, engine.decode(slot, token, &never)?)?;
        }
    }
    out.flush().map_err(io_error)?;
    let bytes = std::fs::metadata(&args.out).map_or(0, |m| m.len());
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}: {rows} rows of {}, {}", args.out.display(), engine.model().n_vocab(), size(bytes))?;
    Ok(stdout.flush()?)
}
