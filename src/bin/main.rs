//! The command line `eliza-inference`: a thin client of the library.
//!
//! Results go to standard output, everything else (errors, progress, timings) to standard error. Exit codes: 0 done,
//! 1 failed, 2 used wrongly, 130 interrupted. A reader that closes the pipe ends the program quietly.

mod inspect;
mod output;
mod quantize;

use clap::{Parser, Subcommand};
use output::Failure;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "eliza-inference", version, about = "Runs GGUF language models on this machine", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what a GGUF file holds
    Inspect(inspect::Args),
    /// Convert a model to another weight type
    Quantize(quantize::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Inspect(args) => inspect::run(args),
        Command::Quantize(args) => quantize::run(args),
    };
    match result {
        Ok(()) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Err(Failure::Interrupted) => ExitCode::from(130),
        Err(Failure::Error(message)) => {
            output::error(&message);
            ExitCode::from(1)
        }
    }
}
