//! `inspect`: what a GGUF file holds, for people and as JSON.

use crate::output::{Outcome, count, print_json, printable, size};
use elizainference::gguf::{Array, File, TensorInfo, Value, ValueType};
use elizainference::model::{Facts, Pooling, is_of_tower, unknown};
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
    let parts = match file.parts().len() {
        1 => String::new(),
        n => format!(" in {n} files"),
    };
    let (path, bytes, version) = (path.display(), size(file.size()), file.version());
    writeln!(out, "File          {path} ({bytes}{parts}, GGUF version {version})")?;
    for (label, value) in lines(&facts) {
        writeln!(out, "{label:<13} {value}")?;
    }
    writeln!(out, "Weights       {} in {} tensors", count(facts.parameters), file.tensors().len())?;
    for (name, sum) in &types(&file) {
        let bytes = if sum.known { size(sum.bytes) } else { "unknown size".into() };
        writeln!(out, "  {name:<11} {:>5} tensors {:>10} {bytes:>12}", sum.tensors, count(sum.weights))?;
    }
    let towers = towers(&file);
    if towers > 0 {
        writeln!(out, "Left out      {towers} tensors of a vision or audio tower")?;
    }
    let unknown = unknown(&file);
    if !unknown.is_empty() {
        writeln!(out, "Not known     {}; ask for it {}", printable(unknown.join("; ")), where_to_ask())?;
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
            let part = match file.parts().len() {
                1 => String::new(),
                _ => format!(" of file {}", info.part + 1),
            };
            let (name, at) = (printable(&info.name), info.offset);
            writeln!(out, "  {name:<44} {ty:<8} {shape:<24} {bytes:>12} at {at}{part}")?;
        }
    }
    Ok(out.flush()?)
}

/// Tensors that a text model leaves out.
fn towers(file: &File) -> usize {
    file.tensors().iter().filter(|info| is_of_tower(&info.name)).count()
}

/// Where a user asks for what is not known.
fn where_to_ask() -> String {
    match env!("CARGO_PKG_REPOSITORY") {
        "" => "in the issue tracker of this project".into(),
        repository => format!("at {repository}/issues"),
    }
}

/// The tensors of one type.
#[derive(Default)]
struct TypeSum {
    tensors: u64,
    weights: u64,
    bytes: u64,
    known: bool,
}

/// The types of all tensors, by name.
fn types(file: &File) -> BTreeMap<String, TypeSum> {
    let mut types: BTreeMap<String, TypeSum> = BTreeMap::new();
    for info in file.tensors() {
        let sum = types.entry(type_text(info)).or_default();
        sum.tensors += 1;
        sum.weights = sum.weights.saturating_add(info.elements());
        sum.bytes += info.bytes;
        sum.known = info.tensor_type().is_ok();
    }
    types
}

/// The facts that the file has, a line each.
fn lines(facts: &Facts) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let mut add = |label, value: Option<String>| lines.extend(value.map(|v| (label, printable(v))));
    add("Architecture", facts.architecture.clone());
    add("Name", facts.name.clone());
    let size = |(name, size): (&str, Option<u64>)| Some(format!("{} {}", name.replace('_', " "), size?));
    let known: Vec<String> = facts.sizes().into_iter().filter_map(size).collect();
    add("Sizes", (!known.is_empty()).then(|| known.join(", ")));
    let tokens = facts.tokens.map(|n| format!("{n} tokens"));
    let vocabulary: Vec<String> = tokens.into_iter().chain(facts.vocabulary.clone()).collect();
    let labels = match facts.labels.len() {
        0 => String::new(),
        _ => format!(", labels {}", facts.labels.join(", ")),
    };
    add("Embeddings", facts.pooling.map(|pooling| format!("pooling {}{labels}", pooling.name())));
    add("Vocabulary", (!vocabulary.is_empty()).then(|| vocabulary.join(", ")));
    lines
}

fn as_json(file: &File, with_keys: bool, with_tensors: bool) -> serde_json::Value {
    let facts = Facts::of(file);
    let types: Vec<_> = types(file)
        .iter()
        .map(|(name, t)| json!({"type": name, "tensors": t.tensors, "weights": t.weights, "bytes": t.bytes}))
        .collect();
    let sizes: Map<_, _> = facts.sizes().into_iter().map(|(k, v)| (k.into(), json!(v))).collect();
    let mut out = json!({
        "path": file.path().display().to_string(),
        "files": file.parts().iter().map(|part| part.path().display().to_string()).collect::<Vec<_>>(),
        "bytes": file.size(),
        "version": file.version(),
        "alignment": file.alignment(),
        "architecture": facts.architecture,
        "name": facts.name,
        "sizes": sizes,
        "vocabulary": {"model": facts.vocabulary, "tokens": facts.tokens},
        "pooling": facts.pooling.map(Pooling::name),
        "labels": facts.labels,
        "parameters": facts.parameters,
        "types": types,
        "left_out": towers(file),
        "unknown": unknown(file),
    });
    if with_keys {
        out["keys"] = file.metadata().map(|(k, v)| (k.to_string(), key_json(file, k, v))).collect::<Map<_, _>>().into();
    }
    if with_tensors {
        let tensor = |t: &TensorInfo| {
            let bytes = t.tensor_type().is_ok().then_some(t.bytes);
            let (ty, shape) = (type_text(t), shape(t));
            json!({"name": t.name, "type": ty, "shape": shape, "file": t.part, "offset": t.offset, "bytes": bytes})
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
            let (element, first) = (format!("{:?}", array.element), first(file, key, array));
            json!({"type": "Array", "element": element, "len": array.len, "first": first})
        }
        other => json!({"type": format!("{:?}", other.value_type()), "value": other}),
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
            all.into_iter().take(SHOWN_ELEMENTS).map(|v| json!(Value::F32(v))).collect()
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
        other => json!(other).to_string(),
    };
    let text = printable(text);
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
