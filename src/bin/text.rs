//! `tokenize` and `detokenize`: the vocabulary alone, without loading the weights.

use crate::args::{TextArgs, bytes_of, read_input, token_list};
use crate::output::{Failure, Outcome, print_json};
use elizainference::gguf::File;
use elizainference::vocab::Vocab;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct TokenizeArgs {
    /// The model, a GGUF file
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// The text; - is standard input
    #[arg(required_unless_present = "file", allow_hyphen_values = true)]
    text: Option<OsString>,
    /// A file with the text; - is standard input
    #[arg(short, long, conflicts_with = "text")]
    file: Option<PathBuf>,
    #[command(flatten)]
    how: TextArgs,
}

#[derive(clap::Args)]
pub struct DetokenizeArgs {
    /// The model, a GGUF file
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Token ids: 1,2,3 or [1, 2, 3]; - is standard input
    #[arg(required_unless_present = "file", allow_hyphen_values = true)]
    tokens: Option<String>,
    /// A file with the token ids; - is standard input
    #[arg(short, long, conflicts_with = "tokens")]
    file: Option<PathBuf>,
    /// Leave out the begin- and end-of-text tokens that the vocabulary adds
    #[arg(long)]
    remove_special: bool,
    /// Spell out control tokens
    #[arg(long)]
    unparse_special: bool,
}

/// Prints one JSON array of token ids.
pub fn tokenize(args: TokenizeArgs) -> Outcome {
    let vocab = Vocab::from_gguf(&File::open(&args.model)?)?;
    let text = input(args.text.as_deref(), args.file)?;
    print_json(&args.how.tokenize(&vocab, &text)?.into())
}

/// Prints the text, byte by byte and without a line end of its own.
pub fn detokenize(args: DetokenizeArgs) -> Outcome {
    let vocab = Vocab::from_gguf(&File::open(&args.model)?)?;
    let list = input(args.tokens.as_deref().map(AsRef::as_ref), args.file)?;
    let tokens = token_list(&String::from_utf8_lossy(&list))?;
    let n = vocab.n_tokens();
    if let Some(id) = tokens.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= n)) {
        return Err(Failure::Error(format!("Token {id} is not in the vocabulary, which has {n} tokens")));
    }
    let mut out = io::stdout().lock();
    out.write_all(&vocab.detokenize(&tokens, args.remove_special, args.unparse_special)?)?;
    Ok(out.flush()?)
}

fn input(argument: Option<&std::ffi::OsStr>, file: Option<PathBuf>) -> Result<Vec<u8>, Failure> {
    match (file, argument) {
        (Some(path), _) => read_input(&path),
        (None, Some(dash)) if dash == "-" => read_input(dash.as_ref()),
        (None, text) => Ok(text.map(bytes_of).unwrap_or_default()),
    }
}
