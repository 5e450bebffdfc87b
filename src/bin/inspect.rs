//! `inspect`: what a GGUF file holds, for people and as JSON.

use crate::output::{Outcome, count, print_json, printable, size};
use elizainference::gguf::{Array, File, TensorInfo, Value, ValueType};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

/// Array elements that are shown.
const SHOWN_ELEMENTS: usize = 8;
/// Characters of a text that are shown to people.
const SHOWN_CHARACTERS: usize = 100;

#[derive(clap::Args)]
pub struct Args {
    /// The GGUF file
    #[arg(value_name = "FILE", required_unless_present = "model")]
    file: Option<PathBuf>,
    /// The same, as the other commands name it
    #[arg(short, long, value_name = "FILE", conflicts_with = "file", hide = true)]
    model: Option<PathBuf>,
    /// List all metadata keys
    #[arg(long)]
    keys: bool,
    /// List all tensors
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let path = args.file.or(args.model).unwrap_or_default();
    let file = File::open(&path)?;
    if args.json {
        return print_json(&as_json(&file, args.keys, args.tensors));
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let facts = Facts::of(&file);
    writeln!(out, "File          {} ({}, GGUF version {})", path.display(), size(file.size()), file.version())?;
    for (label, value) in facts.lines() {
        writeln!(out, "{label:<13} {value}")?;
    }
    writeln!(out, "Weights       {} in {} tensors", count(facts.parameters), file.tensors().len())?;
    for (name, sum) in &facts.types {
        let bytes = if sum.known { size(sum.bytes) } else { "unknown size".into() };
        writeln!(out, "  {name:<11} {:>5} tensors {:>10} {bytes:>12}", sum.tensors, count(sum.weights))?;
    }
    if args.keys {
        writeln!(out, "\nMetadata ({} keys)", file.metadata().count())?;
        for (key, value) in file.metadata() {
            writeln!(out, "  {:<44} {:<12} {}", printable(key), type_name(value), value_text(&file, key, value))?;
        }
    }
    if args.tensors {
        writeln!(out, "\nTensors")?;
        for info in file.tensors() {
            let (ty, shape) = (type_text(info), format!("{:?}", shape(info)));
            let bytes = if info.tensor_type().is_ok() { size(info.bytes) } else { "?".into() };
            writeln!(out, "  {:<44} {ty:<8} {shape:<24} {bytes:>12} at {}", printable(&info.name), info.offset)?;
        }
    }
    Ok(out.flush()?)
}

/// What a person wants to know first.
struct Facts {
    architecture: Option<String>,
    name: Option<String>,
    sizes: Vec<(&'static str, Option<u64>)>,
    vocabulary: Option<String>,
    tokens: Option<u64>,
    parameters: u64,
    types: BTreeMap<String, TypeSum>,
}

#[derive(Default)]
struct TypeSum {
    tensors: u64,
    weights: u64,
    bytes: u64,
    known: bool,
}

impl Facts {
    /// A key of an unexpected type is shown by `--keys`, and simply missing here.
    fn of(file: &File) -> Facts {
        let text = |key: &str| file.get::<String>(key).ok().flatten();
        let architecture = text("general.architecture");
        let prefix = architecture.clone().unwrap_or_default();
        let number = |key: &str| {
            let key = format!("{prefix}.{key}");
            // Some sizes may differ by layer: then the largest stands for all.
            let per_layer = || file.integers(&key).ok().flatten()?.into_iter().max()?.try_into().ok();
            file.get::<u64>(&key).ok().flatten().or_else(per_layer)
        };
        let sizes = vec![
            ("context", number("context_length")),
            ("layers", number("block_count")),
            ("embedding", number("embedding_length")),
            ("feed-forward", number("feed_forward_length")),
            ("heads", number("attention.head_count")),
            ("kv heads", number("attention.head_count_kv")),
            ("experts", number("expert_count")),
        ];
        let mut types: BTreeMap<String, TypeSum> = BTreeMap::new();
        for info in file.tensors() {
            let sum = types.entry(type_text(info)).or_default();
            sum.tensors += 1;
            sum.weights = sum.weights.saturating_add(info.elements());
            sum.bytes += info.bytes;
            sum.known = info.tensor_type().is_ok();
        }
        let vocabulary = text("tokenizer.ggml.model").map(|model| match text("tokenizer.ggml.pre") {
            Some(pre) => format!("{model}, {pre}"),
            None => model,
        });
        Facts {
            tokens: file.get::<Array>("tokenizer.ggml.tokens").ok().flatten().map(|a| a.len as u64),
            parameters: types.values().fold(0, |n: u64, t| n.saturating_add(t.weights)),
            name: text("general.name"),
            architecture,
            sizes,
            vocabulary,
            types,
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        let mut add = |label, value: Option<String>| lines.extend(value.map(|v| (label, printable(v))));
        add("Architecture", self.architecture.clone());
        add("Name", self.name.clone());
        let known: Vec<String> = self.sizes.iter().filter_map(|(k, v)| v.map(|v| format!("{k} {v}"))).collect();
        add("Sizes", (!known.is_empty()).then(|| known.join(", ")));
        let tokens = self.tokens.map(|n| format!("{n} tokens"));
        let vocabulary: Vec<String> = tokens.into_iter().chain(self.vocabulary.clone()).collect();
        add("Vocabulary", (!vocabulary.is_empty()).then(|| vocabulary.join(", ")));
        lines
    }
}

fn as_json(file: &File, with_keys: bool, with_tensors: bool) -> serde_json::Value {
    let facts = Facts::of(file);
    let types: Vec<_> = facts
        .types
        .iter()
        .map(|(name, t)| json!({"type": name, "tensors": t.tensors, "weights": t.weights, "bytes": t.bytes}))
        .collect();
    let sizes: Map<_, _> = facts.sizes.iter().map(|(k, v)| (k.replace([' ', '-'], "_"), json!(v))).collect();
    let mut out = json!({
        "path": file.path().display().to_string(),
        "bytes": file.size(),
        "version": file.version(),
        "alignment": file.alignment(),
        "architecture": facts.architecture,
        "name": facts.name,
        "sizes": sizes,
        "vocabulary": {"model": facts.vocabulary, "tokens": facts.tokens},
        "parameters": facts.parameters,
        "types": types,
    });
    if with_keys {
        out["keys"] = file.metadata().map(|(k, v)| (k.to_string(), key_json(file, k, v))).collect::<Map<_, _>>().into();
    }
    if with_tensors {
        let tensor = |t: &TensorInfo| {
            let bytes = t.tensor_type().is_ok().then_some(t.bytes);
            json!({"name": t.name, "type": type_text(t), "shape": shape(t), "offset": t.offset, "bytes": bytes})
        };
        out["tensors"] = file.tensors().iter().map(tensor).collect::<Vec<_>>().into();
    }
    out
}

fn shape(info: &TensorInfo) -> &[u64] {
    info.shape.get(..info.n_dims as usize).unwrap_or(&info.shape)
}

fn type_text(info: &TensorInfo) -> String {
    info.tensor_type().map_or_else(|_| format!("type {}", info.type_id), |ty| ty.to_string())
}

fn type_name(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("{:?}[{}]", array.element, array.len),
        other => format!("{:?}", other.value_type()),
    }
}

fn key_json(file: &File, key: &str, value: &Value) -> serde_json::Value {
    match value {
        Value::Array(array) => {
            json!({"type": "Array", "element": format!("{:?}", array.element), "len": array.len, "first": first(file, key, array)})
        }
        other => json!({"type": format!("{:?}", other.value_type()), "value": scalar_json(other)}),
    }
}

fn scalar_json(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        // The shortest text that is this f32, not the digits of the f64 it widens to.
        Value::F32(v) => json!(v.to_string().parse::<f64>().ok()),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Array(_) => serde_json::Value::Null,
    }
}

/// The first elements of an array.
fn first(file: &File, key: &str, array: &Array) -> Vec<serde_json::Value> {
    fn head<T: Into<serde_json::Value>>(all: Option<Vec<T>>) -> Vec<serde_json::Value> {
        all.unwrap_or_default().into_iter().take(SHOWN_ELEMENTS).map(Into::into).collect()
    }
    match array.element {
        ValueType::String => head(file.strings(key).ok().flatten()),
        ValueType::F32 | ValueType::F64 => {
            let all = file.floats(key).ok().flatten().unwrap_or_default();
            all.into_iter().take(SHOWN_ELEMENTS).map(|v| scalar_json(&Value::F32(v))).collect()
        }
        _ => head(file.integers(key).ok().flatten()),
    }
}

fn value_text(file: &File, key: &str, value: &Value) -> String {
    let text = match value {
        Value::Array(array) => {
            let shown: Vec<String> = first(file, key, array).iter().map(ToString::to_string).collect();
            let more = if array.len > shown.len() { ", …" } else { "" };
            format!("[{}{more}]", shown.join(", "))
        }
        Value::String(text) => text.clone(),
        other => scalar_json(other).to_string(),
    };
    let text = printable(text);
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
