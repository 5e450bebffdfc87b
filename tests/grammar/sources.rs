//! What hosts hand in, and the cache.

use crate::testing;
use crate::texts::vocab;
use elizainference::grammar::{GrammarState, JumpAhead, load};
use std::sync::Arc;

#[test]
fn sources_are_read_with_their_options() {
    let vocab = vocab(&testing::demo());
    let plain = load(br#"{"gbnf": "root ::= \"a\""}"#, &vocab).unwrap();
    assert!(!plain.is_lazy() && plain.jump_ahead() == JumpAhead::Bytes);
    let json = br#"{"gbnf": "start ::= \"a\"", "root": "start", "lazy": true, "jump_ahead": "off", "unknown": 1,
        "triggers": [{"type": "word", "value": "a"}, {"type": "token", "value": 3},
                     {"type": "pattern", "value": "b"}, {"type": "pattern_full", "value": "c"}]}"#;
    let lazy = load(json, &vocab).unwrap();
    assert!(lazy.is_lazy() && lazy.jump_ahead() == JumpAhead::Off);
    assert!(!GrammarState::new(lazy).in_force());
}

#[test]
fn refused_sources_name_the_place() {
    let vocab = vocab(&testing::demo());
    for (json, place) in [
        ("", "malformed JSON"),
        ("[]", "source: must be an object"),
        ("{}", "one of these keys must be there: gbnf"),
        (r#"{"gbnf": 1}"#, "gbnf: must be a string"),
        (r#"{"gbnf": "root"}"#, "line 1, column 5"),
        (r#"{"gbnf": "root ::=", "root": 1}"#, "root: must be a string"),
        (r#"{"gbnf": "root ::=", "lazy": 1}"#, "lazy: must be true or false"),
        (r#"{"gbnf": "root ::=", "lazy": true}"#, "has no trigger"),
        (r#"{"gbnf": "root ::=", "triggers": {}}"#, "triggers: must be a list"),
        (r#"{"gbnf": "root ::=", "triggers": [{"type": "x", "value": ""}]}"#, "triggers[0].type"),
        (r#"{"gbnf": "root ::=", "triggers": [{"type": "word"}]}"#, "triggers[0].value: must be a string"),
        (r#"{"gbnf": "root ::=", "triggers": [{"type": "token", "value": "1"}]}"#, "triggers[0].value"),
        (r#"{"gbnf": "root ::=", "jump_ahead": "far"}"#, "jump_ahead: \"far\""),
    ] {
        let error = load(json.as_bytes(), &vocab).unwrap_err().to_string();
        assert!(error.contains(place), "{json}: {error}");
    }
}

#[test]
fn the_same_source_is_the_same_grammar_for_one_vocabulary() {
    let [one, other] = [vocab(&testing::demo()), vocab(&testing::demo())];
    let json = br#"{"gbnf": "root ::= [a-z]+ \"cached\""}"#;
    let first = load(json, &one).unwrap();
    assert!(Arc::ptr_eq(&first, &load(json, &one).unwrap()));
    assert!(!Arc::ptr_eq(&first, &load(json, &other).unwrap()));
    // Hundreds of others push it out; it stays what it is for those who use it.
    for i in 0..200 {
        load(format!(r#"{{"gbnf": "root ::= \"{i}\""}}"#).as_bytes(), &one).unwrap();
    }
    assert!(!Arc::ptr_eq(&first, &load(json, &one).unwrap()));
    assert_eq!(GrammarState::new(first).advance_bytes(b"xcached", &mut |_, _| {}), 7);
}

#[test]
fn what_becomes_of_keywords_is_said_by_the_source() {
    let vocab = vocab(&testing::demo());
    let source =
        |how: &str| format!(r#"{{"json_schema": {{"type": "integer", "not": {{"const": 13}}}}, "keywords": "{how}"}}"#);
    let error = load(source("exact").as_bytes(), &vocab).unwrap_err().to_string();
    assert!(error.contains("#/not"), "{error}");
    for how in ["lenient", "llama.cpp"] {
        let mut state = GrammarState::new(load(source(how).as_bytes(), &vocab).unwrap());
        assert_eq!(state.advance_bytes(b"13", &mut |_, _| {}), 2);
    }
    let error = load(source("some").as_bytes(), &vocab).unwrap_err().to_string();
    assert!(error.contains("keywords: \"some\""), "{error}");
    let twice = br#"{"json_schema": {"properties": {"a": {}, "a": {}}}}"#;
    let error = load(twice, &vocab).unwrap_err().to_string();
    assert!(error.contains("duplicate key `a`"), "{error}");
}
