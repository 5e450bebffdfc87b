//! `devices`: what this machine can compute on, best first, and why.

use crate::output::{Outcome, print_json, printable};
use elizainference::engine::devices;
use serde_json::json;
use std::io::{self, Write};

#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let kind = |d: &elizainference::engine::DeviceInfo| format!("{:?}", d.kind).to_lowercase();
    if args.json {
        let device = |d: &elizainference::engine::DeviceInfo| json!({"name": d.name, "kind": kind(d), "score": d.score, "reason": d.reason});
        return print_json(&devices().iter().map(device).collect());
    }
    let mut out = io::stdout().lock();
    for d in devices() {
        writeln!(out, "{:<4} {:<32} score {:>6}  {}", kind(&d), printable(&d.name), d.score, printable(&d.reason))?;
    }
    Ok(out.flush()?)
}
