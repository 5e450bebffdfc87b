//! `generate` under a grammar, a schema and a regular expression.

use crate::program::{failure, json, stdout, text};
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use std::fs;

fn joined<'a>(base: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [base, more].concat()
}

#[test]
fn generate_keeps_to_a_grammar() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.gbnf");
    fs::write(&file, "root ::= \"a\" \"bc\" other\nother ::= [0-9] [0-9] \"!\"\n").unwrap();
    let base = ["generate", "-m", text(&path), "--prompt", "Hello", "-n", "40", "--temp", "0.8", "--seed", "5"];
    for jump in ["bytes", "tokens", "off"] {
        let args = joined(&base, &["--grammar", text(&file), "--jump-ahead", jump]);
        let said = stdout(&args);
        assert!(said.trim_end().starts_with("abc") && said.trim_end().ends_with('!'), "{said}");
        let told = json(&[&args[..], &["--json"]].concat());
        assert_eq!((told["text"].as_str(), told["finish_reason"].as_str()), (Some(said.as_str()), Some("stop")));
        // Where the vocabulary has a character as a byte, too, no single token is the only legal one.
        let forced = told["usage"]["forced_tokens"].as_u64().unwrap();
        assert!(if jump == "bytes" { forced > 0 } else { jump == "tokens" || forced == 0 }, "{jump}: {forced}");
    }
    let said = stdout(&joined(&base, &["--grammar", text(&file), "--root", "other"]));
    assert!(said.len() == 3 && said.ends_with('!'), "{said}");
    let free = stdout(&base);
    let trigger: String = free.chars().take(1).collect();
    fs::write(&file, format!("root ::= {} \"yes\"", serde_json::json!(trigger))).unwrap();
    let lazy = joined(&base, &["--grammar", text(&file), "--lazy-trigger", &trigger, "--jump-ahead", "off"]);
    let lazy = stdout(&[&lazy[..], &["--top-k", "0"]].concat());
    assert!(lazy.contains(&format!("{trigger}yes")) || !lazy.contains(&trigger), "{lazy}");

    fs::write(&file, "root ::= [a").unwrap();
    let error = failure(1, &joined(&base, &["--grammar", text(&file)]));
    assert!(error.contains("line 1"), "{error}");
    for wrong in [
        &["--root", "a"][..],
        &["--lazy-trigger", "a"],
        &["--compact", "--grammar", text(&file)],
        &["--grammar", text(&file), "--regex", "a"],
        &["--grammar", text(&file), "--trie", text(&file)],
        &["--grammar", text(&file), "--jump-ahead", "far"],
    ] {
        failure(2, &joined(&base, wrong));
    }
    failure(1, &joined(&base, &["--schema", text(&file)]));
}

#[test]
fn generate_makes_json_of_a_schema_and_text_of_a_pattern() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("schema.json");
    let schema = r#"{"type":"object","properties":{"zeta":{"type":"integer","minimum":0,"maximum":99},
        "alpha":{"enum":["x","y"]}},"required":["zeta","alpha"]}"#;
    fs::write(&file, schema).unwrap();
    let base = ["generate", "-m", text(&path), "--prompt", "Hello", "-n", "90", "--temp", "0.8", "--seed", "5"];
    let said = stdout(&[&base[..], &["--schema", text(&file), "--compact"]].concat());
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(value["zeta"].as_i64().is_some_and(|n| (0..100).contains(&n)), "{said}");
    assert!(value["alpha"] == "x" || value["alpha"] == "y", "{said}");
    assert!(said.find("zeta") < said.find("alpha"), "in the order of the schema: {said}");
    let said = stdout(&[&base[..], &["--regex", "[0-9]{3}-[ab]"]].concat());
    let said = said.trim_end();
    assert!(said.len() == 5 && said.ends_with(['a', 'b']) && said[..3].bytes().all(|b| b.is_ascii_digit()), "{said}");
}

#[test]
fn generate_holds_its_text_to_lark_where_it_was_built_for_it() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("grammar.lark");
    fs::write(&file, "start: WORD \"!\"\nWORD: /[a-z]{3,5}/ & ~/.*[aeiou].*/").unwrap();
    let arguments =
        ["generate", "-m", text(&path), "--prompt", "Hello", "-n", "20", "--seed", "5", "--lark", text(&file)];
    if cfg!(feature = "llguidance") {
        let said = stdout(&arguments);
        let word = said.trim_end().strip_suffix('!').unwrap_or_default();
        assert!((3..=5).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase()), "{said}");
        assert!(!word.contains(['a', 'e', 'i', 'o', 'u']), "{said}");
    } else {
        let error = failure(1, &arguments);
        assert!(error.contains("feature `llguidance`"), "{error}");
    }
}
