//! What a grammar costs: the vocabulary's trie, the first state, masks that are new and masks that are known.
//!
//! `cargo bench --bench grammar`; with `--features llguidance` also the same schemas in Lark. Vocabularies of
//! `ELIZA_SHARED` or `../shared`, else the demo model's. A hundred JSON schemas from simple to hard, each with six
//! valid texts: three warm up, masks are timed in the three others after them. `tools/bench_grammar.py` runs it beside
//! other programs: where `ELIZA_BENCH_OUT` names a file, the figures are written there, with the vocabularies' texts
//! and the tokens that were timed.
#![allow(clippy::unwrap_used)]

#[path = "../tests/testing/mod.rs"]
mod testing;

use elizainference::Token;
use elizainference::gguf::File;
use elizainference::grammar::schema::{Keywords, Options, to_gbnf};
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, Rules, load};
use elizainference::vocab::Vocab;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use testing::schemas;

/// Texts that warm up.
const WARM: usize = 3;

fn vocabularies() -> Vec<(String, PathBuf)> {
    let shared = testing::shared().into_iter().flat_map(|dir| {
        ["qwen2", "gemma-4"].map(|name| (name.to_owned(), dir.join(format!("models/vocab/ggml-vocab-{name}.gguf"))))
    });
    let mut found: Vec<_> = shared.filter(|(_, path)| path.is_file()).collect();
    if found.is_empty() {
        found.push(("demo".to_owned(), testing::demo()));
    }
    found
}

/// Follows a text by its tokens; the time of each mask goes to `times`, in microseconds.
fn follow(state: &mut GrammarState, tokens: &[Token], times: &mut Vec<f64>) {
    state.rearm();
    for &token in tokens {
        let start = Instant::now();
        let mask = state.mask().unwrap().unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e6);
        assert!(mask.allows(token));
        state.accept(token).unwrap();
    }
    assert!(state.may_end());
}

fn line(what: &str, times: &mut [f64], bounds: Option<(f64, f64)>, report: &mut Map<String, Value>) {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let (median, p99, longest) = (at(0.5), at(0.99), at(1.0));
    let verdict = match bounds {
        Some(bounds) if median <= bounds.0 && p99 <= bounds.1 => "ok",
        Some(_) => "MISSED",
        None => "",
    };
    println!("  {what:<44}{:>9} {median:>11.2} {p99:>11.2} {longest:>11.2}   {verdict}", times.len());
    let figures = json!({ "count": times.len(), "median": median, "p99": p99, "longest": longest });
    report.insert(what.to_owned(), figures);
}

/// The same schemas inside of grammars in Lark, each text as far as llguidance takes it.
#[cfg(feature = "llguidance")]
fn lark(vocab: &Arc<Vocab>, report: &mut Map<String, Value>) {
    let start = Instant::now();
    Grammar::lark("start: \"a\"", vocab, GrammarOptions::default()).unwrap();
    line("llguidance's trie, once", &mut [start.elapsed().as_secs_f64() * 1e6], None, report);
    let (mut first, mut known) = (Vec::new(), Vec::new());
    for case in schemas::all() {
        let start = Instant::now();
        let text = format!("start: %json {}", case.schema.get());
        let Ok(grammar) = Grammar::lark(&text, vocab, GrammarOptions::default()) else { continue };
        let mut state = GrammarState::new(grammar);
        state.mask().unwrap();
        first.push(start.elapsed().as_secs_f64() * 1e6);
        for (nth, text) in case.valid.iter().enumerate() {
            state.rearm();
            for token in vocab.tokenize_inside(text.as_bytes(), false, &|| false).unwrap() {
                let start = Instant::now();
                let mask = state.mask().unwrap().unwrap();
                if nth >= WARM {
                    known.push(start.elapsed().as_secs_f64() * 1e6);
                }
                if !mask.allows(token) {
                    break;
                }
                state.accept(token).unwrap();
            }
        }
    }
    line("in Lark: to the first mask", &mut first, None, report);
    line("in Lark: a mask in the texts after them", &mut known, None, report);
}

/// Everything about one vocabulary.
fn measure(path: &PathBuf) -> Map<String, Value> {
    let vocab = Arc::new(Vocab::from_gguf(&File::open(path).unwrap()).unwrap());
    println!("  {:<44}{:>9} {:>11} {:>11} {:>11}", "microseconds", "count", "median", "p99", "longest");
    let mut report = Map::new();
    let start = Instant::now();
    let rules = Rules::parse("root ::= \"a\"", "root").unwrap();
    Grammar::new(rules, &vocab, GrammarOptions::default()).unwrap();
    line("the vocabulary's trie, once", &mut [start.elapsed().as_secs_f64() * 1e6], None, &mut report);
    let (mut compiled, mut first, mut new, mut known) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut texts = Vec::new();
    for case in schemas::all() {
        let source = case.source();
        let start = Instant::now();
        let mut state = GrammarState::new(load(&source, &vocab).unwrap());
        compiled.push(start.elapsed().as_secs_f64() * 1e6);
        state.mask().unwrap();
        first.push(start.elapsed().as_secs_f64() * 1e6);
        let mut timed = Vec::new();
        for (nth, text) in case.valid.iter().enumerate() {
            let tokens = vocab.tokenize_inside(text.as_bytes(), false, &|| false).unwrap();
            follow(&mut state, &tokens, if nth < WARM { &mut new } else { &mut known });
            if nth >= WARM {
                timed.push(json!({ "text": text, "tokens": tokens }));
            }
        }
        // As llama.cpp reads the schema, or where it does not take it, as it is.
        let options = Options { keywords: Keywords::LlamaCpp, ..Options::default() };
        let gbnf = to_gbnf(case.schema.get(), options).or_else(|_| to_gbnf(case.schema.get(), Options::default()));
        texts.push(json!({ "schema": case.schema.get(), "gbnf": gbnf.unwrap(), "timed": timed }));
    }
    line("read, compile", &mut compiled, None, &mut report);
    line("to the first mask", &mut first, Some((50_000.0, 50_000.0)), &mut report);
    line("a mask in the first three texts", &mut new, None, &mut report);
    line("a mask in the texts after them", &mut known, Some((5.0, 100.0)), &mut report);
    #[cfg(feature = "llguidance")]
    lark(&vocab, &mut report);
    let hex = |token: Token| {
        let mut piece = Vec::new();
        vocab.piece(token, true, &mut piece);
        piece.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let pieces: Vec<String> = (0..vocab.n_tokens() as Token).map(hex).collect();
    let mut all = Map::new();
    all.insert("ours".into(), Value::Object(report));
    all.insert("model".into(), json!(path));
    all.insert("pieces".into(), json!(pieces));
    all.insert("eog".into(), json!(vocab.eog_tokens()));
    all.insert("schemas".into(), json!(texts));
    all
}

fn main() {
    let mut all = Map::new();
    for (name, path) in vocabularies() {
        println!("{name}");
        all.insert(name, Value::Object(measure(&path)));
    }
    if let Some(path) = std::env::var_os("ELIZA_BENCH_OUT") {
        std::fs::write(path, serde_json::to_string(&all).unwrap()).unwrap();
    }
}
