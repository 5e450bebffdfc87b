//! The grammar that `generate` holds its text to.

use crate::args::read_input;
use crate::output::{Failure, fail};
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[group(id = "guide", multiple = true)]
pub struct Guide {
    /// A grammar (GBNF) that the text has to match; - is standard input
    #[arg(long, value_name = "FILE", group = "grammar_source")]
    grammar: Option<PathBuf>,
    /// A JSON schema that the text has to match
    #[arg(long, value_name = "FILE", group = "grammar_source")]
    schema: Option<PathBuf>,
    /// A regular expression that the whole text has to match
    #[arg(long, value_name = "TEXT", group = "grammar_source", allow_hyphen_values = true)]
    regex: Option<String>,
    /// A grammar in llguidance's dialect of Lark; needs a build with the feature `llguidance`
    #[arg(long, value_name = "FILE", group = "grammar_source")]
    lark: Option<PathBuf>,
    /// Spans (JSON) that make up the text
    #[arg(long, value_name = "FILE", group = "grammar_source")]
    spans: Option<PathBuf>,
    /// A response skeleton (JSON) that makes up the text
    #[arg(long, value_name = "FILE", group = "grammar_source")]
    skeleton: Option<PathBuf>,
    /// The rule that the text has to match
    #[arg(
        long,
        value_name = "NAME",
        requires = "grammar",
        conflicts_with_all = ["schema", "regex", "lark", "spans", "skeleton"]
    )]
    root: Option<String>,
    /// No white space in the JSON of a schema
    #[arg(long, requires = "schema", conflicts_with_all = ["grammar", "regex", "lark", "spans", "skeleton"])]
    compact: bool,
    /// What becomes of keywords of a schema that no grammar can keep
    #[arg(
        long,
        value_name = "HOW",
        requires = "schema",
        conflicts_with_all = ["grammar", "regex", "lark", "spans", "skeleton"]
    )]
    keywords: Option<Keywords>,
    /// Generate freely up to this text, with which the grammar begins; may be given several times
    #[arg(long, value_name = "TEXT", requires = "grammar_source", allow_hyphen_values = true)]
    lazy_trigger: Vec<String>,
    /// What is taken without sampling where the grammar leaves no choice
    #[arg(long, value_name = "WHAT", requires = "grammar_source")]
    jump_ahead: Option<JumpAhead>,
}

#[derive(Clone, Copy, ValueEnum)]
enum JumpAhead {
    /// Text, tokenized as the model writes it
    Bytes,
    /// Tokens that are the only legal one
    Tokens,
    /// Nothing
    Off,
}

#[derive(Clone, Copy, ValueEnum)]
enum Keywords {
    /// They are errors
    Exact,
    /// They are ignored
    Lenient,
    /// The schema is read as llama.cpp does
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// The name of a choice, which is the same here and in a source.
fn name(choice: impl ValueEnum) -> Option<Value> {
    choice.to_possible_value().map(|value| json!(value.get_name()))
}

impl Guide {
    /// The JSON that a session takes; `None` where no grammar is given.
    pub fn source(&self) -> Result<Option<Vec<u8>>, Failure> {
        let source = if let Some(path) = &self.grammar {
            member("gbnf", &json!(text(path)?).to_string())
        } else if let Some(path) = &self.schema {
            member("json_schema", &parsed(path)?.0)
        } else if let Some(pattern) = &self.regex {
            member("regex", &json!(pattern).to_string())
        } else if let Some(path) = &self.lark {
            member("lark", &json!(text(path)?).to_string())
        } else if let Some(path) = &self.spans {
            match parsed(path)? {
                (source, value) if value.get("spans").is_some() => source,
                (spans, _) => member("spans", &spans),
            }
        } else if let Some(path) = &self.skeleton {
            member("skeleton", &parsed(path)?.0)
        } else {
            return Ok(None);
        };
        let mut options = Map::new();
        if let Some(root) = &self.root {
            options.insert("root".into(), json!(root));
        }
        if self.compact {
            options.insert("compact".into(), json!(true));
        }
        if !self.lazy_trigger.is_empty() {
            let words = self.lazy_trigger.iter().map(|word| json!({"type": "word", "value": word}));
            options.insert("lazy".into(), json!(true));
            options.insert("triggers".into(), words.collect());
        }
        options.extend(self.keywords.and_then(name).map(|name| ("keywords".into(), name)));
        options.extend(self.jump_ahead.and_then(name).map(|name| ("jump_ahead".into(), name)));
        Ok(Some(joined(&source, &options).into_bytes()))
    }
}

/// An object with one member, whose value is JSON.
fn member(key: &str, value: &str) -> String {
    format!("{{\"{key}\":{value}}}")
}

/// An object with further members, which come first. The texts are joined, so that keys keep their order.
fn joined(object: &str, first: &Map<String, Value>) -> String {
    match (serde_json::to_string(first), object.trim_start().strip_prefix('{')) {
        (Ok(members), Some(rest)) if !first.is_empty() => {
            format!("{},{rest}", members.strip_suffix('}').unwrap_or(&members))
        }
        _ => object.into(),
    }
}

fn text(path: &Path) -> Result<String, Failure> {
    match String::from_utf8(read_input(path)?) {
        Ok(text) => Ok(text),
        Err(_) => fail(format!("{}: not UTF-8", path.display())),
    }
}

/// The JSON of a file, as it is written and as it is read.
fn parsed(path: &Path) -> Result<(String, Value), Failure> {
    let text = text(path)?;
    match serde_json::from_str(&text) {
        Ok(value) => Ok((text, value)),
        Err(error) => fail(format!("{}: malformed JSON: {error}", path.display())),
    }
}
