//! `grammar`: how far a grammar accepts a text, and its rules as they are understood.

use crate::args::read_input;
use crate::guide::Guide;
use crate::output::{Failure, Outcome, fail, print_json, usage};
use elizainference::gguf::File;
use elizainference::grammar::{self, GrammarState, Rules};
use elizainference::vocab::Vocab;
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Say how many bytes of a text a grammar, a JSON schema or another source accepts, and whether it may end there
    Check(Box<CheckArgs>),
    /// Print the rules, groups and repetitions as rules of their own
    Print(Source),
}

#[derive(clap::Args)]
struct Source {
    /// A file with the grammar in GBNF; - is standard input
    #[arg(short, long, value_name = "FILE")]
    grammar: PathBuf,
    /// The rule that the text must match
    #[arg(long, value_name = "NAME", default_value = "root")]
    root: String,
}

#[derive(clap::Args)]
struct CheckArgs {
    /// Any GGUF file with a vocabulary
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    #[command(flatten)]
    guide: Guide,
    /// A file with the text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    text: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Source {
    fn rules(&self) -> Result<Rules, Failure> {
        match String::from_utf8(read_input(&self.grammar)?) {
            Ok(text) => Ok(Rules::parse(&text, &self.root)?),
            Err(_) => fail(format!("{}: not UTF-8", self.grammar.display())),
        }
    }
}

pub fn run(args: Args) -> Outcome {
    match args.what {
        What::Check(args) => check(&args),
        What::Print(source) => {
            let mut out = io::stdout().lock();
            out.write_all(source.rules()?.to_gbnf().as_bytes())?;
            Ok(out.flush()?)
        }
    }
}

/// The text is fed byte by byte; where the grammar asks for whole tokens, by the longest tokens.
fn check(args: &CheckArgs) -> Outcome {
    let Some(source) = args.guide.source()? else {
        return usage("one of --grammar, --schema, --regex, --lark, --spans and --skeleton must be given");
    };
    let text = read_input(&args.text)?;
    let vocab = Arc::new(Vocab::from_gguf(&File::open(&args.model)?)?);
    let mut state = GrammarState::new(grammar::load(&source, &vocab)?);
    let accepted = match state.grammar().has_tokens() {
        true => state.advance_pieces(&text),
        false => state.advance_bytes(&text, &mut |_, _| {}),
    };
    let may_end = state.may_end();
    let legal = state.mask()?.map_or(vocab.n_tokens(), |mask| mask.count() as usize);
    let is_complete = accepted == text.len() && may_end;
    if args.json {
        return print_json(&json!({
            "accepted": accepted, "bytes": text.len(), "may_end": may_end, "complete": is_complete,
            "legal_tokens": legal,
        }));
    }
    let mut out = io::stdout().lock();
    let end = if may_end { "the text may end there" } else { "the text may not end there" };
    writeln!(out, "{accepted} of {} bytes accepted; {end}; {legal} tokens may come next", text.len())?;
    Ok(out.flush()?)
}
