//! The JSON that hosts hand in, and the grammars made of it, shared by the whole process.
//!
//! `{"gbnf": "root ::= …", "root"?: "root", "lazy"?: bool, "triggers"?: [{"type": …, "value": …}], "jump_ahead"?: …}`.
//! Every kind of source but Lark becomes [`Rules`]; `KINDS` has one row for each. Unknown keys are ignored.

use super::code;
use super::compiled::{Grammar, GrammarOptions, JumpAhead};
use super::lazy::Trigger;
use super::rules::Rules;
use super::schema::{self, Keywords};
use super::span_plan::SpanPlan;
use super::spans::{self, Lowered};
use crate::gguf::shown;
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};

/// The longest source, in bytes.
pub const MAX_SOURCE_BYTES: usize = 16 << 20;
/// The most grammars kept.
const CAPACITY: NonZeroUsize = NonZeroUsize::new(128).unwrap();
/// The most bytes of grammars kept.
const LIMIT_BYTES: usize = 256 << 20;

/// A kind of source: the key that says it, and what is made of the whole object.
struct Kind {
    key: &'static str,
    make: Make,
}

/// Of the JSON, as it was sent and as it was read.
type Make = fn(&[u8], &Map<String, Value>, &Vocab) -> Result<Made>;

/// What a grammar is compiled from.
enum Text {
    Rules(Rules),
    /// For llguidance.
    #[cfg(feature = "llguidance")]
    Lark(String),
}

/// What a source says besides its options.
struct Made {
    text: Text,
    spans: Option<SpanPlan>,
    /// What it waits for by itself.
    triggers: Vec<Trigger>,
}

impl From<Text> for Made {
    fn from(text: Text) -> Made {
        Made { text, spans: None, triggers: Vec::new() }
    }
}

impl From<Rules> for Made {
    fn from(rules: Rules) -> Made {
        Text::Rules(rules).into()
    }
}

impl TryFrom<Lowered> for Made {
    type Error = Error;

    fn try_from(lowered: Lowered) -> Result<Made> {
        let text = Text::Rules(lowered.rules()?);
        Ok(Made { text, triggers: lowered.triggers().collect(), spans: Some(lowered.plan) })
    }
}

const KINDS: &[Kind] = &[
    Kind { key: "gbnf", make: |json, source, _| gbnf(json, source) },
    Kind { key: "json_schema", make: |json, source, _| json_schema(json, source) },
    Kind { key: "regex", make: |_, source, _| regex(source) },
    Kind { key: "lark", make: |_, source, _| lark(source) },
    Kind { key: "spans", make: |json, _, vocab| spans::load(json, vocab)?.try_into() },
    Kind { key: "skeleton", make: |json, _, _| spans::load_skeleton(json)?.try_into() },
];

/// A schema, as it is written: the order of its members counts.
fn json_schema(json: &[u8], source: &Map<String, Value>) -> Result<Made> {
    #[derive(serde::Deserialize)]
    struct Schema<'a> {
        #[serde(borrow)]
        json_schema: &'a RawValue,
    }
    let schema: Schema<'_> =
        serde_json::from_slice(json).map_err(|error| refused("json_schema", shown(&error.to_string())))?;
    let keywords = match text(source, "keywords")? {
        None | Some("exact") => Keywords::Exact,
        Some("lenient") => Keywords::Lenient,
        Some("llama.cpp") => Keywords::LlamaCpp,
        Some(other) => {
            let problem = format!("\"{}\" must be \"exact\", \"lenient\" or \"llama.cpp\"", shown(other));
            return Err(refused("keywords", problem));
        }
    };
    let options = schema::Options { compact: flag(source, "compact")?, keywords };
    Ok(Rules::parse(&schema::to_gbnf(schema.json_schema.get(), options)?, "root")?.into())
}

fn regex(source: &Map<String, Value>) -> Result<Made> {
    let pattern = text(source, "regex")?.unwrap_or_default();
    Ok(Rules::parse(&super::regex::to_gbnf(pattern, true)?, "root")?.into())
}

#[cfg(feature = "llguidance")]
fn lark(source: &Map<String, Value>) -> Result<Made> {
    Ok(Text::Lark(text(source, "lark")?.unwrap_or_default().to_owned()).into())
}

#[cfg(not(feature = "llguidance"))]
fn lark(_: &Map<String, Value>) -> Result<Made> {
    let problem = "Grammars in Lark need the feature `llguidance`, which this library was built without";
    Err(Error::Unsupported(problem.into()))
}

/// A grammar as text. Where its shape is one that is known, its rules belong to spans; it matches the same texts.
fn gbnf(json: &[u8], source: &Map<String, Value>) -> Result<Made> {
    let (gbnf, root) = (text(source, "gbnf")?.unwrap_or_default(), text(source, "root")?.unwrap_or("root"));
    // Read as it was written, for the places in errors.
    let rules = Rules::parse(gbnf, root)?;
    match spans::recognise(gbnf, root, json)?.map(Made::try_from) {
        Some(Ok(made)) => Ok(made),
        // With a rule around each item it may be beyond a limit.
        _ => Ok(rules.into()),
    }
}

fn refused(place: &str, problem: impl std::fmt::Display) -> Error {
    Error::InvalidArgument(format!("Grammar: {place}: {problem}"))
}

/// A text of the source, if it is there.
fn text<'s>(source: &'s Map<String, Value>, key: &str) -> Result<Option<&'s str>> {
    match source.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(refused(key, "must be a string")),
    }
}

fn flag(source: &Map<String, Value>, key: &str) -> Result<bool> {
    match source.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(refused(key, "must be true or false")),
    }
}

fn trigger(index: usize, value: &Value) -> Result<Trigger> {
    let place = format!("triggers[{index}]");
    let Some(object) = value.as_object() else { return Err(refused(&place, "must be an object")) };
    let kind = object.get("type").and_then(Value::as_str).unwrap_or_default();
    let value = object.get("value").unwrap_or(&Value::Null);
    let text = || match value {
        Value::String(text) => Ok(text.clone()),
        _ => Err(refused(&format!("{place}.value"), "must be a string")),
    };
    match kind {
        "word" => Ok(Trigger::Word(text()?)),
        "pattern" => Ok(Trigger::Pattern(text()?)),
        "pattern_full" => Ok(Trigger::PatternFull(text()?)),
        "token" => match value.as_i64().and_then(|id| Token::try_from(id).ok()) {
            Some(id) => Ok(Trigger::Token(id)),
            None => Err(refused(&format!("{place}.value"), "must be a token's id")),
        },
        other => {
            let problem = format!("\"{}\", must be word, pattern, pattern_full or token", shown(other));
            Err(refused(&format!("{place}.type"), problem))
        }
    }
}

fn options(source: &Map<String, Value>) -> Result<GrammarOptions> {
    let triggers = match source.get("triggers") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => {
            list.iter().enumerate().map(|(index, value)| trigger(index, value)).collect::<Result<_>>()?
        }
        Some(_) => return Err(refused("triggers", "must be a list")),
    };
    let jump_ahead = match text(source, "jump_ahead")? {
        None | Some("bytes") => JumpAhead::Bytes,
        Some("tokens") => JumpAhead::Tokens,
        Some("off") => JumpAhead::Off,
        Some(other) => {
            return Err(refused("jump_ahead", format!("\"{}\", must be bytes, tokens or off", shown(other))));
        }
    };
    Ok(GrammarOptions {
        lazy: flag(source, "lazy")?,
        triggers,
        jump_ahead,
        spans: None,
        events: flag(source, "events")?,
    })
}

/// What a source says: what its grammar is compiled from, and its options.
fn read(json: &[u8], vocab: &Vocab) -> Result<(Text, GrammarOptions)> {
    let value: Value = serde_json::from_slice(json)
        .map_err(|error| refused("source", format!("malformed JSON: {}", shown(&error.to_string()))))?;
    let Some(source) = value.as_object() else { return Err(refused("source", "must be an object")) };
    let mut kinds = KINDS.iter().filter(|kind| source.contains_key(kind.key));
    let names = || KINDS.iter().map(|kind| kind.key).collect::<Vec<_>>().join(", ");
    let made = match (kinds.next(), kinds.next()) {
        (Some(kind), None) => (kind.make)(json, source, vocab)?,
        (None, _) => return Err(refused("source", format!("one of these keys must be there: {}", names()))),
        (Some(one), Some(other)) => {
            return Err(refused("source", format!("has both \"{}\" and \"{}\"", one.key, other.key)));
        }
    };
    let mut options = options(source)?;
    options.lazy |= !made.triggers.is_empty();
    options.triggers.extend(made.triggers);
    options.spans = made.spans.map(Arc::new);
    Ok((made.text, options))
}

/// The grammar of a source as GBNF for an engine elsewhere, the root first; `spell` writes a token. Empty where it
/// allows everything.
///
/// # Errors
/// As [`load`]; [`Error::Unsupported`] for a grammar that waits for a trigger, one in Lark, and spans with samplers of
/// their own.
pub fn to_gbnf(json: &[u8], vocab: &Vocab, spell: fn(Token) -> String) -> Result<String> {
    let (text, options) = read(json, vocab)?;
    let lost = match (&options.spans, text) {
        _ if options.lazy => "waits for a trigger",
        (Some(spans), _) if !spans.samplings().is_empty() => "has spans with samplers of their own",
        #[cfg(feature = "llguidance")]
        (_, Text::Lark(_)) => "is written in Lark",
        (_, Text::Rules(rules)) if rules.allows_all => return Ok(String::new()),
        (_, Text::Rules(rules)) => {
            let tokens = code::tokens(&rules, vocab)?;
            return Ok(rules.written(&|token| tokens.get(token as usize).copied().map(spell).unwrap_or_default()));
        }
    };
    Err(Error::Unsupported(format!("A grammar that {lost} works with engines on this machine alone")))
}

/// Text and vocabulary of a grammar in the cache.
type Key = ([u8; 32], usize);

static CACHE: LazyLock<Mutex<LruCache<Key, Arc<Grammar>>>> = LazyLock::new(|| Mutex::new(LruCache::new(CAPACITY)));

/// The grammar of a source for a vocabulary, from the process-wide cache or made now.
///
/// # Errors
/// [`Error::InvalidArgument`] that names the place; those of [`Grammar::new`].
pub fn load(json: &[u8], vocab: &Arc<Vocab>) -> Result<Arc<Grammar>> {
    if json.len() > MAX_SOURCE_BYTES {
        return Err(refused("source", format!("{} bytes, at most {MAX_SOURCE_BYTES}", json.len())));
    }
    let key: Key = (Sha256::digest(json).into(), Arc::as_ptr(vocab) as usize);
    // An address may be that of another vocabulary, which is gone.
    if let Some(known) = CACHE.lock().get(&key).filter(|grammar| grammar.is_for(vocab)) {
        return Ok(known.clone());
    }
    let grammar = match read(json, vocab)? {
        (Text::Rules(rules), options) => Grammar::new(rules, vocab, options)?,
        #[cfg(feature = "llguidance")]
        (Text::Lark(text), options) => Grammar::lark(&text, vocab, options)?,
    };
    let mut cache = CACHE.lock();
    let mut gone = Vec::new();
    gone.extend(cache.push(key, grammar.clone()));
    // Grammars grow while they are used, so their sizes are looked at now.
    let mut bytes: usize = cache.iter().map(|(_, grammar)| grammar.bytes()).sum();
    let dead: Vec<Key> = cache.iter().filter(|(_, grammar)| !grammar.is_in_use()).map(|(key, _)| *key).collect();
    for key in dead {
        gone.extend(cache.pop_entry(&key));
    }
    while bytes > LIMIT_BYTES && cache.len() > 1 {
        let Some(oldest) = cache.pop_lru() else { break };
        bytes = bytes.saturating_sub(oldest.1.bytes());
        gone.push(oldest);
    }
    drop(cache);
    drop(gone); // without the lock, since that takes a while
    Ok(grammar)
}
