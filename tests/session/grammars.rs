//! Grammars in sessions on a real engine: what is skipped changes no token, and nothing is allocated for a token.

use crate::testing;
use crate::testing::fixtures::{Kind, Weights};
use elizainference::Token;
use elizainference::grammar::{GrammarState, load};
use elizainference::session::{EngineOptions, Event, FinishReason, KvType, OpenOptions, Session, Sink, Usage};
use serde_json::{Value, json};
use std::sync::mpsc::channel;

const PROMPT: [Token; 6] = [1, 40, 300, 77, 410, 150];

const GRAMMARS: [&str; 5] = [
    r#"root ::= "{\"name\": \"" [a-zA-Z ]{1,12} "\", \"kind\": " kind ", \"age\": " [0-9]{1,2} "}"
kind ::= "\"cat\"" | "\"dog\"" | "\"dodo\""
"#,
    r#"root ::= ("ab" | "abc" | "b")+ "." "#,
    r#"root ::= [^x]{5,9} "xx" [\u00e0-\u00ff]{2}"#,
    "root ::= item{2,4}\nitem ::= \"- \" [^\\n]{1,6} \"\\n\"",
    r#"root ::= "no choice at all, from the first byte to the last""#,
];

fn open() -> Session {
    let path = testing::fixture(Kind::Llama, Weights::F32);
    let engine = EngineOptions { context: 256, kv_type: KvType::F32, slots: 1, threads: 1, ..EngineOptions::default() };
    let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap();
    let mut settings = session.settings();
    settings.params.seed = Some(11);
    session.configure(settings).unwrap();
    session
}

fn source(gbnf: &str, jump_ahead: &str) -> Vec<u8> {
    json!({ "gbnf": gbnf, "jump_ahead": jump_ahead }).to_string().into_bytes()
}

fn say(session: &Session, temperature: f32, most: i32) -> (Vec<Token>, String, FinishReason, Usage) {
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        let _ = sender.send((event.token, event.text.to_owned()));
    }));
    session.prefill(&PROMPT, -1).unwrap();
    session.generate(most, Some(temperature), Some(1.0), sink).unwrap();
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for (token, piece) in receiver.iter() {
        tokens.extend((token >= 0).then_some(token));
        text += &piece;
    }
    (tokens, text, session.status().finish_reason, session.usage())
}

#[test]
fn a_generation_is_a_text_of_its_grammar_however_it_jumps() {
    let session = open();
    for grammar in GRAMMARS {
        for temperature in [0.0, 0.9] {
            let made = ["bytes", "tokens", "off"].map(|jump| {
                session.set_grammar(&source(grammar, jump)).unwrap();
                let (tokens, text, reason, usage) = say(&session, temperature, 120);
                let mut state = GrammarState::new(load(&source(grammar, jump), session.vocab()).unwrap());
                for &token in &tokens {
                    state.accept(token).unwrap();
                }
                assert_eq!(reason == FinishReason::Stop, state.may_end(), "{grammar}: {text:?} {reason:?}");
                (tokens, usage)
            });
            let [bytes, tokens, off] = &made;
            assert_eq!(tokens.0, off.0, "{grammar}, temperature {temperature}");
            assert_eq!(off.1.forced_tokens, 0);
            for (said, usage) in &made {
                assert_eq!(usage.completion_tokens, said.len() as u64);
                // A token that ends the generation is sampled, but is no part of it.
                let ends = usage.forced_tokens + usage.sampled_tokens - usage.completion_tokens;
                assert!(ends <= u64::from(usage.finish_reason == FinishReason::Stop), "{grammar}: {usage:?}");
                assert_eq!(usage.span_tokens, usage.completion_tokens);
            }
            assert!(bytes.1.forced_tokens >= tokens.1.forced_tokens, "{grammar}");
        }
    }
    // All of it is forced: nothing is sampled, and nothing evaluated after the prompt.
    session.set_grammar(&source(GRAMMARS[4], "bytes")).unwrap();
    let (_, text, reason, usage) = say(&session, 0.0, -1);
    assert_eq!((text.as_str(), reason), ("no choice at all, from the first byte to the last", FinishReason::Stop));
    assert_eq!((usage.sampled_tokens, usage.forward_passes), (0, 1));
}

/// A chain that compares tokens before the mask needs whole rows; where it drops none, it says the same.
#[test]
fn the_rows_of_few_legal_tokens_give_the_token_of_the_whole_row() {
    let session = open();
    for grammar in GRAMMARS {
        session.set_grammar(&source(grammar, "off")).unwrap();
        let said = ["trie;temp=0.9", "top_k=100000;trie;temp=0.9"].map(|chain| {
            session.set_chain(-1, Some(chain.parse().unwrap())).unwrap();
            let (tokens, _, _, usage) = say(&session, 0.9, 60);
            (tokens, usage)
        });
        assert_eq!(said[0].0, said[1].0, "{grammar}");
        assert_eq!(said[1].1.whole_row_steps, said[1].1.branching_steps);
        assert!(said[0].1.logits_computed <= said[1].1.logits_computed);
    }
}

/// After a first generation the states, masks and transitions are known.
#[test]
fn a_second_generation_computes_no_mask() {
    let session = open();
    for grammar in GRAMMARS {
        session.set_grammar(&source(grammar, "tokens")).unwrap();
        let first = say(&session, 0.9, 60);
        let second = say(&session, 0.9, 60);
        assert_eq!((&first.0, second.3.grammar_masks), (&second.0, 0), "{grammar}");
        assert_eq!(first.3.grammar_states, second.3.grammar_states);
    }
}

#[test]
fn a_restored_stream_begins_the_grammar_of_its_session() {
    let session = open();
    session.set_grammar(&source(r#"root ::= "abc" [de] "f""#, "bytes")).unwrap();
    let (tokens, ..) = say(&session, 0.0, 2);
    assert_eq!(tokens.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    session.save_slot(-1, &path).unwrap();
    session.restore_slot(-1, &path).unwrap();
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| drop(sender.send(event.text.to_owned()))));
    session.generate(-1, Some(0.0), None, sink).unwrap();
    let text: String = receiver.iter().collect();
    assert!(text.starts_with("abc") && text.ends_with('f'), "{text}");
    let usage: Value = serde_json::from_str(&session.usage_json()).unwrap();
    assert!(usage["usage"]["grammar_states"].as_u64().unwrap() > 0);
}

#[test]
fn the_text_has_what_a_grammar_matched_control_tokens_too() {
    let session = open();
    let mut settings = session.settings();
    settings.params.logit_bias = vec![(1, 100.0)];
    session.configure(settings).unwrap();
    session.set_grammar(&source(r#"root ::= "a" [^x]{6} "x""#, "bytes")).unwrap();
    let (tokens, text, reason, _) = say(&session, 0.0, 20);
    assert_eq!((text.as_str(), reason), ("a<s><s>x", FinishReason::Stop), "{tokens:?}");
    // Free text shows none, nor does a grammar that asks for whole tokens.
    session.set_grammar(&source(r#"root ::= "a" <[1]> [^x]{3} "x""#, "bytes")).unwrap();
    let (tokens, text, _, _) = say(&session, 0.0, 20);
    assert_eq!((text.as_str(), tokens.iter().filter(|token| **token == 1).count()), ("ax", 2), "{tokens:?}");
    session.clear_grammar().unwrap();
    assert_eq!(say(&session, 0.0, 3).1, "");
}

/// Grammars for the same texts make the same answers, whichever engine follows them.
#[cfg(feature = "llguidance")]
#[test]
fn an_answer_in_lark_is_that_of_rules_for_the_same_texts() {
    let session = open();
    for (lark, gbnf) in [
        (
            "start: \"{\\\"name\\\": \\\"\" /[a-zA-Z ]{1,12}/ \"\\\", \\\"kind\\\": \" (\"cat\" | \"dog\") \"}\"",
            "root ::= \"{\\\"name\\\": \\\"\" [a-zA-Z ]{1,12} \"\\\", \\\"kind\\\": \" (\"cat\" | \"dog\") \"}\"",
        ),
        ("start: /(ab|abc|b)+/ \".\"", "root ::= (\"ab\" | \"abc\" | \"b\")+ \".\""),
        ("start: \"no choice at all\"", "root ::= \"no choice at all\""),
    ] {
        for (temperature, jump) in [(0.0, "bytes"), (0.9, "bytes"), (0.9, "tokens"), (0.9, "off")] {
            session.set_grammar(&source(gbnf, jump)).unwrap();
            let rules = say(&session, temperature, 60);
            session.set_grammar(json!({ "lark": lark, "jump_ahead": jump }).to_string().as_bytes()).unwrap();
            let other = say(&session, temperature, 60);
            assert_eq!((&rules.0, &rules.1, rules.2), (&other.0, &other.1, other.2), "{lark}, {jump}");
            assert_eq!(rules.3.forced_tokens, other.3.forced_tokens, "{lark}, {jump}");
            assert!(other.3.grammar_masks > 0 || other.3.sampled_tokens == 0);
        }
    }
}
