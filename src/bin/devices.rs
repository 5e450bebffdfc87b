//! `devices`: what this machine can compute on, best first, and why.

use crate::output::{Outcome, print_json, printable};
use elizainference::engine::{devices, devices_json};
use std::io::{self, Write};

#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    if args.json {
        return print_json(&devices_json()?);
    }
    let mut out = io::stdout().lock();
    for (d, _) in devices()? {
        let kind = format!("{:?}", d.kind).to_lowercase();
        writeln!(out, "{kind:<4} {:<32} score {:>6}  {}", printable(&d.name), d.score, printable(&d.reason))?;
    }
    Ok(out.flush()?)
}
