//! Spans of a grammar: how tokens are sampled in each, and where they begin and end.

use super::*;
use serde_json::{Value, json};

/// A model that likes "b" somewhat better than "a", and those better than all others.
fn undecided() -> Fake {
    Fake::new(Box::new(|_, _, row| {
        row[usize::from(b'a')] = 9.8;
        row[usize::from(b'b')] = 10.0;
        Ok(())
    }))
}

/// What a session with this chain makes of a source, with this seed.
fn made(source: &Value, chain: &str, seed: u64) -> (String, Session) {
    let session = open(undecided());
    session.set_grammar(source.to_string().as_bytes()).unwrap();
    session.set_chain(-1, Some(chain.parse().unwrap())).unwrap();
    set(&session, |settings| settings.params.seed = Some(seed));
    session.prefill(&PROMPT, -1).unwrap();
    let (sink, receiver) = listener();
    session.generate(-1, None, None, sink).unwrap();
    (Heard::all(&receiver).text(), session)
}

/// The different texts of some seeds.
fn texts(source: &Value, chain: &str) -> std::collections::BTreeSet<String> {
    (0..24).map(|seed| made(source, chain, seed).0).collect()
}

fn literal(text: &str) -> Value {
    json!({"kind": "literal", "text": text})
}

#[test]
fn choices_are_greedy_unless_told_and_what_is_free_is_not() {
    let choice = |sampling: &str| {
        let choice = json!({"kind": "choice", "values": ["a", "b", "c"], "sampling": sampling});
        json!({"spans": [literal("["), choice, literal("]")]})
    };
    assert_eq!(texts(&choice("greedy"), "temp=100").len(), 1);
    assert_eq!(texts(&choice("session"), "temp=100").len(), 3);
    let both = json!({"spans": [{"kind": "choice", "values": ["a", "b"]}, literal(","),
                                {"kind": "choice", "values": ["a", "b"], "sampling": "session"}]});
    assert_eq!(Vec::from_iter(texts(&both, "temp=100")), ["b,a", "b,b"]);
}

#[test]
fn a_span_has_a_chain_of_its_own_and_the_next_the_sessions() {
    let ab = json!({"kind": "choice", "values": ["a", "b"], "sampling": {"temperature": 100.0}});
    let source = json!({"spans": [
        {"kind": "choice", "values": ["a", "b"], "sampling": "session"}, literal("-"), ab, literal("-"),
        {"kind": "choice", "values": ["a", "b"], "sampling": "session"}]});
    assert_eq!(Vec::from_iter(texts(&source, "greedy")), ["b-a-b", "b-b-b"]);
    // The penalties of every chain see every token: without them, "b" would be the likelier one.
    let cold = json!({"kind": "choice", "values": ["a", "b"], "sampling": {"temperature": 0.01}});
    let penal = json!({"spans": [literal("bb-"), cold, literal("-"), cold]});
    assert_eq!(Vec::from_iter(texts(&penal, "temp=1")), ["bb-b-b"]);
    let seen = texts(&penal, "penalties=64,1000000,0,0;temp=1");
    assert!(seen.iter().all(|text| text.starts_with("bb-a-")), "{seen:?}");
    let narrow = json!({"spans": [{"kind": "choice", "values": ["a", "b", "c"], "sampling": {"top_k": 2}}]});
    assert_eq!(Vec::from_iter(texts(&narrow, "temp=100")), ["a", "b"]);
}

#[test]
fn a_hosts_grammar_is_sampled_as_its_overrides_say() {
    let gbnf = "root ::= \"{\" enum0 \",\" enum1 \"}\"\nenum0 ::= \"a\" | \"b\"\nenum1 ::= \"a\" | \"b\"";
    let overrides = json!({"overrides": [{"spanIndex": 1, "temperature": 0, "topK": 1}]});
    let source = json!({"gbnf": gbnf, "samplers": overrides});
    assert_eq!(Vec::from_iter(texts(&source, "temp=100")), ["{b,a}", "{b,b}"]);
    assert_eq!(texts(&json!({"gbnf": gbnf}), "temp=100").len(), 4);
    assert_eq!(texts(&json!({"gbnf": gbnf, "choice_sampling": "greedy"}), "temp=100").len(), 1);
}

#[test]
fn usage_has_the_spans_of_a_text_where_they_are_asked_for() {
    let line = json!([literal("{\"k\":"), {"kind": "choice", "key": "k", "values": ["ab", "b"]}, literal("}")]);
    let (text, session) = made(&json!({"spans": line, "events": true}), "greedy", 0);
    assert_eq!(text, "{\"k\":b}");
    let usage: Value = serde_json::from_str(&session.usage_json()).unwrap();
    let expected = json!([
        {"span": 0, "kind": "literal", "key": null, "parent": null, "begin": 0, "end": 5},
        {"span": 1, "kind": "choice", "key": "k", "parent": null, "begin": 5, "end": 6},
        {"span": 2, "kind": "literal", "key": null, "parent": null, "begin": 6, "end": 7}
    ]);
    assert_eq!(usage["spans"], expected);
    session.clear_grammar().unwrap();
    assert!(serde_json::from_str::<Value>(&session.usage_json()).unwrap().get("spans").is_none());
    let (_, silent) = made(&json!({"spans": line}), "greedy", 0);
    assert!(serde_json::from_str::<Value>(&silent.usage_json()).unwrap().get("spans").is_none());
}

#[test]
fn more_ways_of_sampling_than_there_may_be_are_refused() {
    let session = open(undecided());
    let span = |k: i32| json!({"kind": "boolean", "sampling": {"top_k": k + 2}});
    let source = json!({"spans": (0..17).map(span).collect::<Vec<_>>()});
    let refused = session.set_grammar(source.to_string().as_bytes()).unwrap_err();
    assert!(refused.to_string().contains("more than 16 different ways"), "{refused}");
}
