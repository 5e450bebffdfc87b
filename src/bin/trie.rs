//! `trie`: the payload of a closed set of names, tokenized in the text in which they will be generated.

use crate::args::read_input;
use crate::output::{Failure, Outcome, fail, printable};
use elizainference::gguf::File;
use elizainference::model;
use elizainference::trie::{self, Shape, Surroundings};
use elizainference::vocab::Vocab;
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// The model, a GGUF file
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// The path of the set of names, which arms the trie (`eliza_inference_arm_token_trie`)
    #[arg(long, value_name = "TEXT")]
    path: String,
    /// The names
    #[arg(value_name = "NAME", required_unless_present = "names")]
    name: Vec<String>,
    /// A file with further names, one a line; - is standard input
    #[arg(long, value_name = "FILE")]
    names: Option<PathBuf>,
    /// The text before a name in the reply, at least from the last line break on
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    before: String,
    /// What closes a name in the reply, such as a quotation mark; it becomes a part of every leaf
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    after: String,
    /// Recognise the texts of control tokens, such as <|im_start|>
    #[arg(long)]
    parse_special: bool,
    /// Print the payload alone, without the report on standard error
    #[arg(long)]
    json: bool,
}

/// Prints the payload on a line of standard output, warnings and a report on standard error.
pub fn run(args: Args) -> Outcome {
    let file = File::open(&args.model)?;
    let vocab = Vocab::from_gguf(&file)?;
    let model_id = model::names(&file).into_iter().next().unwrap_or_default();
    let mut names = args.name;
    if let Some(path) = &args.names {
        match String::from_utf8(read_input(path)?) {
            Ok(text) => names.extend(text.lines().filter(|line| !line.is_empty()).map(str::to_owned)),
            Err(_) => return fail(format!("{}: not UTF-8", path.display())),
        }
    }
    let around = Surroundings { before: &args.before, after: &args.after, parse_special: args.parse_special };
    let built = trie::build(&vocab, &model_id, &args.path, &names, around)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{}", built.json)?;
    out.flush()?;
    let mut errors = io::stderr().lock();
    let mut say = |line: String| writeln!(errors, "{line}").map_err(|e| Failure::Error(format!("Standard error: {e}")));
    for warning in &built.warnings {
        say(format!("warning: {}", printable(warning)))?;
    }
    if !args.json {
        for (label, value) in lines(&model_id, &built.shape) {
            say(format!("{label:<13} {value}"))?;
        }
    }
    Ok(())
}

fn lines(model_id: &str, shape: &Shape) -> [(&'static str, String); 6] {
    let share = 100.0 * shape.forced as f64 / shape.tokens.max(1) as f64;
    [
        ("Model", printable(model_id)),
        ("Leaves", shape.leaves.to_string()),
        ("Nodes", format!("{}, {} of them with a choice", shape.nodes, shape.branching)),
        ("Depth", format!("{} tokens", shape.depth)),
        ("Forced", format!("{share:.0} % of the tokens, all leaves equally likely")),
        ("Prefix leaves", shape.prefix_leaves.len().to_string()),
    ]
}
