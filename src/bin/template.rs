//! `template`: messages as the prompt that a chat template makes of them.

use crate::args::read_input;
use crate::output::{Failure, Outcome, print_json};
use clap::ArgGroup;
use elizainference::chat::{ChatTemplate, Inputs, Now};
use elizainference::gguf::File;
use elizainference::vocab::Vocab;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(group = ArgGroup::new("source").required(true).args(["model", "template"]))]
pub struct Args {
    /// The model whose template it is, a GGUF file
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// A file with a Jinja template
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// What the template's bos_token is
    #[arg(long, value_name = "TEXT", default_value = "", conflicts_with = "model", allow_hyphen_values = true)]
    bos_token: String,
    /// What the template's eos_token is
    #[arg(long, value_name = "TEXT", default_value = "", conflicts_with = "model", allow_hyphen_values = true)]
    eos_token: String,
    /// A JSON object: messages, and where wanted tools, add_generation_prompt and what else the template reads; - is
    /// standard input
    #[arg(short, long, value_name = "FILE")]
    inputs: PathBuf,
    /// The moment that the template is told, like 2025-02-03T04:05:06; else the present
    #[arg(long, value_name = "TIME", value_parser = Now::parse)]
    now: Option<Now>,
    /// Adapt messages of OpenAI's form to what the template reads, as `chat` does; else they are rendered as they are
    #[arg(long)]
    adapt: bool,
    /// Print the prompt's tokens as a JSON array
    #[arg(long, requires = "model")]
    tokens: bool,
}

/// Prints the prompt, byte by byte and without a line end of its own.
pub fn run(args: Args) -> Outcome {
    let text = |path: &Path| {
        let text = String::from_utf8(read_input(path)?);
        text.map_err(|e| Failure::Error(format!("{}: not UTF-8: {e}", path.display())))
    };
    let inputs = Inputs::from_json(&text(&args.inputs)?)?.at(args.now.unwrap_or_default());
    let (template, vocab) = match (&args.model, &args.template) {
        (Some(path), _) => {
            let file = File::open(path)?;
            let vocab = Vocab::from_gguf(&file)?;
            (ChatTemplate::of_model(&file, &vocab)?, Some(vocab))
        }
        (None, Some(path)) => (ChatTemplate::new(&text(path)?, &args.bos_token, &args.eos_token)?, None),
        (None, None) => return Err(Failure::Usage("A model or a template is needed".into())),
    };
    let prompt = if args.adapt { template.prompt(&inputs)? } else { template.render(&inputs)? };
    match vocab.filter(|_| args.tokens) {
        Some(vocab) => print_json(&prompt.tokens(&vocab, &|| false)?.into()),
        None => {
            let mut out = io::stdout().lock();
            out.write_all(prompt.text().as_bytes())?;
            Ok(out.flush()?)
        }
    }
}
