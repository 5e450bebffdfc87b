//! `embed` and `rank`: rows of whole texts.

use crate::args::{ModelArgs, ServerArgs, bytes_of, loading, placed, read_input, token_list};
use crate::output::{Failure, Outcome, print_json};
use clap::ArgMatches;
use clap::builder::PossibleValuesParser;
use elizainference::Token;
use elizainference::session::{EmbedOptions, OpenOptions, Pooling, Session};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    texts: Texts,
    /// How the rows of a text's tokens become one; else as the model's file says
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(Pooling::NAMES))]
    pooling: Option<String>,
    /// Leave the rows as long as the model makes them, in place of 1
    #[arg(long)]
    no_normalize: bool,
    /// Keep the first N numbers of a row, which models trained for it allow; 0 keeps all
    #[arg(long, default_value_t = 0, value_name = "N")]
    dimensions: usize,
    /// The most tokens of a text; 0 takes the model's own, at most 4096
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    ctx: u32,
    /// Print one JSON object; else a line of numbers for each row
    #[arg(long)]
    json: bool,
}

/// The texts to embed, in the order of the command line.
#[derive(clap::Args)]
#[group(id = "texts", required = true, multiple = true)]
struct Texts {
    /// The texts
    #[arg(value_name = "TEXT", id = "text")]
    text: Vec<OsString>,
    /// A text's tokens, such as 1,2,3; may be given several times
    #[arg(long, value_name = "IDS")]
    prompt_tokens: Vec<String>,
    /// A file with a text in each line; - is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Vec<PathBuf>,
}

#[derive(clap::Args)]
pub struct RankArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The question that the texts may answer
    #[arg(short, long, value_name = "TEXT")]
    query: OsString,
    /// The texts
    #[arg(value_name = "TEXT", required = true)]
    text: Vec<OsString>,
    /// The most tokens of question and text; 0 takes the model's own, at most 4096
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    ctx: u32,
    /// Print one JSON object with the scores in the order of the texts; else the texts, the best first
    #[arg(long)]
    json: bool,
}

pub fn embed(args: EmbedArgs, matches: &ArgMatches) -> Outcome {
    let session = Session::open(args.server.options(&args.model.model, args.model.engine(args.ctx)?))?;
    let texts = args.texts.tokens(&session, matches)?;
    let counts: Vec<usize> = texts.iter().map(Vec::len).collect();
    let pooling = args.pooling.as_deref().map(str::parse).transpose()?;
    let options = EmbedOptions { pooling, normalize: !args.no_normalize, dimensions: args.dimensions };
    let made = session.embed(texts, &options)?;
    let rows = made.texts.iter().flat_map(|rows| rows.chunks(made.width));
    if args.json {
        let rows: Vec<Value> = rows.map(|row| json!(row)).collect();
        return print_json(&json!({ "embeddings": rows, "tokens": counts }));
    }
    let mut out = io::stdout().lock();
    for row in rows {
        let numbers: Vec<String> = row.iter().map(f32::to_string).collect();
        writeln!(out, "{}", numbers.join(" "))?;
    }
    Ok(out.flush()?)
}

impl Texts {
    fn tokens(&self, session: &Session, matches: &ArgMatches) -> Result<Vec<Vec<Token>>, Failure> {
        let of_text = |text: &[u8]| session.tokenize(text, true, false).map_err(Failure::from);
        let mut all = Vec::new();
        for (place, text) in placed(matches, "text", self.text.iter()) {
            all.push((place, of_text(&bytes_of(text))?));
        }
        for (place, ids) in placed(matches, "prompt_tokens", self.prompt_tokens.iter()) {
            all.push((place, token_list(ids)?));
        }
        for (place, path) in placed(matches, "file", self.file.iter()) {
            for line in read_input(path)?.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                all.push((place, of_text(line)?));
            }
        }
        all.sort_by_key(|(place, _)| *place);
        Ok(all.into_iter().map(|(_, tokens)| tokens).collect())
    }
}

pub fn rank(args: RankArgs) -> Outcome {
    let session = {
        let (path, engine) = (args.model.model.clone(), args.model.engine(args.ctx)?);
        Session::open(OpenOptions { path, engine, progress: Some(Box::new(loading())), ..OpenOptions::default() })?
    };
    let texts: Vec<Vec<u8>> = args.text.iter().map(|text| bytes_of(text)).collect();
    let lent: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    let scores = session.rank(&bytes_of(&args.query), &lent)?;
    if args.json {
        return print_json(&json!({ "scores": scores }));
    }
    let mut order: Vec<_> = scores.iter().zip(&texts).collect();
    order.sort_by(|a, b| b.0.total_cmp(a.0));
    let mut out = io::stdout().lock();
    for (score, text) in order {
        writeln!(out, "{score:.4}\t{}", String::from_utf8_lossy(text))?;
    }
    Ok(out.flush()?)
}
