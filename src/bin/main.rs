//! The command line `eliza-inference`: a thin client of the library.
//!
//! Results go to standard output, everything else (errors, progress, timings) to standard error. Exit codes: 0 done,
//! 1 failed, 2 used wrongly, 130 interrupted. A reader that closes the pipe ends the program quietly.

mod args;
mod bench;
mod chat;
mod demo;
mod devices;
mod embed;
mod generate;
mod grammar;
mod guide;
mod inspect;
mod logits;
mod output;
mod parameters;
mod plan;
mod quantize;
mod spans;
mod streams;
mod template;
mod text;
mod trie;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use output::Failure;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "eliza-inference",
    version,
    about = "Runs GGUF language models on this machine; without a command, shows what it does on a small model of its \
             own",
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    demo: demo::Args,
    /// Print all that the library reports to standard error, not warnings alone
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Talk with a model, turn by turn
    Chat(Box<chat::Args>),
    /// Continue a prompt
    Generate(Box<generate::Args>),
    /// Turn text into tokens, printed as a JSON array
    Tokenize(text::TokenizeArgs),
    /// Turn tokens back into text
    Detokenize(text::DetokenizeArgs),
    /// Turn chat messages into the prompt that a chat template makes of them
    Template(template::Args),
    /// Make the token trie payload of a set of names
    Trie(trie::Args),
    /// Try a grammar on a text, without a model's weights
    Grammar(grammar::Args),
    /// Turn texts into vectors
    Embed(embed::EmbedArgs),
    /// Order texts by how well they answer a question
    Rank(embed::RankArgs),
    /// Write the raw output rows for a prompt to a file
    Logits(logits::Args),
    /// Show what a GGUF file holds
    Inspect(inspect::Args),
    /// Convert a model to another weight type
    Quantize(quantize::Args),
    /// Show how much memory opening a model would take, and whether it fits
    Plan(plan::Args),
    /// Measure loading, prompt and decoding speed, or choices among names
    Bench(bench::Args),
    /// List what this machine can compute on
    Devices(devices::Args),
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // The places of arguments that belong together are only there.
    let places = matches.subcommand().map_or(&matches, |(_, matches)| matches);
    output::show_reports(cli.verbose);
    let result = match cli.command {
        None => demo::run(cli.demo),
        Some(Command::Chat(args)) => chat::run(*args),
        Some(Command::Generate(args)) => generate::run(*args, places),
        Some(Command::Tokenize(args)) => text::tokenize(args),
        Some(Command::Detokenize(args)) => text::detokenize(args),
        Some(Command::Template(args)) => template::run(args),
        Some(Command::Trie(args)) => trie::run(args),
        Some(Command::Grammar(args)) => grammar::run(args),
        Some(Command::Embed(args)) => embed::embed(args, places),
        Some(Command::Rank(args)) => embed::rank(args),
        Some(Command::Logits(args)) => logits::run(args, places),
        Some(Command::Inspect(args)) => inspect::run(args),
        Some(Command::Quantize(args)) => quantize::run(args),
        Some(Command::Plan(args)) => plan::run(args),
        Some(Command::Bench(args)) => bench::run(args),
        Some(Command::Devices(args)) => devices::run(args),
    };
    let (code, message) = match result {
        Ok(()) | Err(Failure::ClosedPipe) => return ExitCode::SUCCESS,
        Err(Failure::Interrupted) => return ExitCode::from(130),
        Err(Failure::Usage(message)) => (2, message),
        Err(Failure::Error(message)) => (1, message),
    };
    output::error(&message);
    ExitCode::from(code)
}
