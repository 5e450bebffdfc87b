//! What a grammar costs: the vocabulary's trie, the first state, masks that are new and masks that are known.
//!
//! `cargo bench --bench grammar`. Vocabularies of `ELIZA_SHARED` or `../shared`, else the demo model's. A hundred
//! grammars of JSON objects, from three keys to forty, with enums, numbers, lists and free strings in them; each is
//! followed by tokens of random objects that it allows. The first objects warm up; masks are timed in others after
//! them.
#![allow(clippy::unwrap_used)]

#[path = "../tests/testing/mod.rs"]
mod testing;

use elizainference::Token;
use elizainference::gguf::File;
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, Rules};
use elizainference::vocab::Vocab;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use testing::random_text::Random;

const SCHEMAS: usize = 100;
const WARM: usize = 3;
const TIMED: usize = 5;

/// The kind of a key's value.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Flag,
    Choice,
    List,
}

const KINDS: [Kind; 5] = [Kind::Text, Kind::Number, Kind::Flag, Kind::Choice, Kind::List];
const COMMON: &str = r#"
string ::= "\"" char* "\""
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?
flag ::= "true" | "false"
space ::= | " " | "\n"{1,2} [ \t]{0,20}
"#;

/// An object's keys.
fn keys(index: usize, random: &mut Random) -> Vec<(String, Kind)> {
    let count = 3 + index * 37 / SCHEMAS;
    (0..count).map(|key| (format!("key_{index}_{key}"), KINDS[random.below(KINDS.len())])).collect()
}

fn gbnf(keys: &[(String, Kind)]) -> String {
    let mut rules = String::from("root ::= \"{\" space");
    for (index, (key, kind)) in keys.iter().enumerate() {
        let value = match kind {
            Kind::Text => "string",
            Kind::Number => "number",
            Kind::Flag => "flag",
            Kind::Choice => "(\"\\\"red\\\"\" | \"\\\"green\\\"\" | \"\\\"blue\\\"\")",
            Kind::List => "\"[\" space (string (\",\" space string)*)? \"]\"",
        };
        let comma = if index == 0 { "" } else { "\",\" space " };
        write!(rules, " {comma}\"\\\"{key}\\\"\" space \":\" space {value}").unwrap();
    }
    rules + " space \"}\"" + COMMON
}

fn object(keys: &[(String, Kind)], random: &mut Random) -> String {
    const WORDS: [&str; 8] = ["a", "sunny", "day", "in", "Zürich", "with", "friends", "日本"];
    let text = |random: &mut Random| {
        let count = 1 + random.below(6);
        let words: Vec<&str> = (0..count).map(|_| WORDS[random.below(WORDS.len())]).collect();
        format!("\"{}\"", words.join(" "))
    };
    let mut parts = Vec::new();
    for (key, kind) in keys {
        let value = match kind {
            Kind::Text => text(random),
            Kind::Number => format!("{}.{}", random.below(100_000), random.below(100)),
            Kind::Flag => ["true", "false"][random.below(2)].to_owned(),
            Kind::Choice => ["\"red\"", "\"green\"", "\"blue\""][random.below(3)].to_owned(),
            Kind::List => format!("[{}, {}]", text(random), text(random)),
        };
        parts.push(format!("\"{key}\": {value}"));
    }
    format!("{{{}}}", parts.join(", "))
}

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

fn line(what: &str, times: &mut [f64], bounds: Option<(f64, f64)>) {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let verdict = match bounds {
        Some((median, p99)) if at(0.5) <= median && at(0.99) <= p99 => "ok",
        Some(_) => "MISSED",
        None => "",
    };
    println!(
        "  {what:<44}{:>9} {:>11.2} {:>11.2} {:>11.2}   {verdict}",
        times.len(),
        at(0.5),
        at(0.99),
        times[times.len() - 1]
    );
}

fn main() {
    for (name, path) in vocabularies() {
        let vocab = Arc::new(Vocab::from_gguf(&File::open(&path).unwrap()).unwrap());
        println!("{name}, {} tokens; microseconds:", vocab.n_tokens());
        println!("  {:<44}{:>9} {:>11} {:>11} {:>11}", "", "count", "median", "p99", "longest");
        let start = Instant::now();
        let rules = Rules::parse("root ::= \"a\"", "root").unwrap();
        Grammar::new(rules, &vocab, GrammarOptions::default()).unwrap();
        line("the vocabulary's trie, once", &mut [start.elapsed().as_secs_f64() * 1e6], None);
        let mut random = Random(11);
        let (mut compiled, mut first, mut new, mut known) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for index in 0..SCHEMAS {
            let keys = keys(index, &mut random);
            let text = gbnf(&keys);
            let start = Instant::now();
            let rules = Rules::parse(&text, "root").unwrap();
            let grammar = Grammar::new(rules, &vocab, GrammarOptions::default()).unwrap();
            let mut state = GrammarState::new(grammar);
            compiled.push(start.elapsed().as_secs_f64() * 1e6);
            state.mask().unwrap();
            first.push(start.elapsed().as_secs_f64() * 1e6);
            for round in 0..WARM + TIMED {
                let object = object(&keys, &mut random);
                let tokens = vocab.tokenize_inside(object.as_bytes(), false, &|| false).unwrap();
                follow(&mut state, &tokens, if round < WARM { &mut new } else { &mut known });
            }
        }
        line("parse and compile", &mut compiled, None);
        line("to the first mask", &mut first, Some((50_000.0, 50_000.0)));
        line("a mask in the first three objects", &mut new, None);
        line("a mask in objects after them", &mut known, Some((5.0, 100.0)));
    }
}
