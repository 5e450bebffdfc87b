//! A grammar's life in a session.

use super::spans::{arm, wants};
use super::*;
use serde_json::json;

fn hold(session: &Session, gbnf: &str) {
    session.set_grammar(json!({ "gbnf": gbnf }).to_string().as_bytes()).unwrap();
}

fn hold_with(session: &Session, gbnf: &str, others: serde_json::Value) {
    let mut source = json!({ "gbnf": gbnf });
    for (key, value) in others.as_object().unwrap() {
        source[key] = value.clone();
    }
    session.set_grammar(source.to_string().as_bytes()).unwrap();
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Err(Error::InvalidArgument(problem)) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn forced_text_is_evaluated_with_the_next_choice_and_the_end_takes_no_pass() {
    let fake = wants("zzzz");
    let watch = fake.watch.clone();
    let session = open(fake);
    hold(&session, r#"root ::= "ax" [bd] "yz""#);
    let heard = generate(&session, -1);
    assert_eq!((heard.text().as_str(), reason(&session)), ("axdyz", FinishReason::Stop));
    let usage = session.usage();
    assert_eq!((usage.completion_tokens, usage.forced_tokens, usage.sampled_tokens), (5, 4, 1));
    assert_eq!((usage.branching_steps, usage.whole_row_steps), (1, 0));
    assert_eq!((usage.span_tokens, usage.span_candidates), (5, 6));
    assert_eq!(usage.forward_passes, 2, "the prompt, and the run before the choice");
    assert!(usage.grammar_masks >= 1 && usage.grammar_states >= 3, "{usage:?}");
    assert_eq!(*watch.batches.lock(), [b"ax".map(Token::from).to_vec()]);
}

#[test]
fn each_kind_of_jumping_ahead_gives_the_same_text_and_single_tokens_the_same_tokens() {
    for grammar in [
        r#"root ::= ("Hello" | "Hallo") " world"{0,2} "!""#,
        r#"root ::= [a-c]{2,4} "-" ("x" | "yy" | "yz") "end""#,
        r#"root ::= "é" [^a]? "ü" | "éa""#,
    ] {
        let made = ["bytes", "tokens", "off"].map(|jump| {
            let session = open(wants("Hbx!yzd world"));
            hold_with(&session, grammar, json!({ "jump_ahead": jump }));
            let heard = generate(&session, 40);
            assert_eq!(reason(&session), FinishReason::Stop, "{grammar} {jump}");
            let text: Vec<u8> = heard.text().into_bytes();
            let source = json!({ "gbnf": grammar }).to_string();
            let mut state =
                crate::grammar::GrammarState::new(crate::grammar::load(source.as_bytes(), session.vocab()).unwrap());
            assert_eq!(state.advance_bytes(&text, &mut |_, _| {}), text.len(), "{grammar} {jump}: {text:?}");
            assert!(state.may_end(), "{grammar} {jump}: {text:?}");
            (heard.tokens, session.usage())
        });
        assert_eq!(made[1].0, made[2].0, "{grammar}");
        assert_eq!(made[2].1.forced_tokens, 0);
        assert!(made[1].1.forward_passes <= made[2].1.forward_passes);
    }
}

#[test]
fn end_of_generation_is_masked_until_the_grammar_may_end() {
    let session = open(wants(""));
    hold(&session, r#"root ::= [ab] [ab] [ab]*"#);
    let heard = generate(&session, -1);
    assert_eq!((heard.text().as_str(), reason(&session)), ("aa", FinishReason::Stop));
    // What the grammar asks for goes before what is ignored or suppressed.
    set(&session, |settings| settings.ignore_eos = true);
    assert_eq!((generate(&session, 9).text().as_str(), reason(&session)), ("aa", FinishReason::Stop));
    let session = open(say([NEVER, NEVER]));
    hold(&session, "root ::= [a-z]+ \"!\"");
    assert!(!generate(&session, 4).tokens.contains(&NEVER));
}

#[test]
fn many_legal_tokens_are_a_mask_over_the_whole_row() {
    let session = open(say([b'"' as Token, b'q' as Token, HELLO, WORLD]));
    hold(&session, r#"root ::= [^"]*"#);
    let heard = generate(&session, 4);
    assert_eq!(heard.tokens[1..], [Token::from(b'q'), HELLO, WORLD]);
    assert_ne!(heard.tokens[0], Token::from(b'"'));
    let usage = session.usage();
    assert!(usage.branching_steps == 4 && usage.whole_row_steps <= 4, "{usage:?}");
    assert!(usage.grammar_masks <= usage.branching_steps, "{usage:?}");
}

#[test]
fn a_prefill_begins_a_grammar_again_and_it_persists_until_it_is_cleared() {
    let session = open(spell(b"zzz"));
    hold(&session, r#"root ::= "abc" "def""#);
    for _ in 0..2 {
        assert_eq!((generate(&session, 2).text().as_str(), reason(&session)), ("ab", FinishReason::Length));
    }
    assert_eq!(generate(&session, -1).text(), "abcdef");
    session.clear_trie().unwrap();
    assert_eq!(generate(&session, 1).text(), "a", "the call clears tries alone");
    session.clear_grammar().unwrap();
    assert_eq!(generate(&session, -1).text(), "zzz");
}

#[test]
fn a_grammar_and_a_trie_replace_each_other() {
    let session = open(spell(b"zzz"));
    arm(&session, &[r#"{"name":"red","tokens":[114,101,100]}"#]);
    hold(&session, r#"root ::= "ab""#);
    assert_eq!(generate(&session, -1).text(), "ab");
    assert!(session.arm_trie(None).is_err() && session.score_trie().is_err());
    arm(&session, &[r#"{"name":"red","tokens":[114,101,100]}"#]);
    assert_eq!(generate(&session, 3).text(), "red");
    session.clear_grammar().unwrap();
    assert_eq!(generate(&session, 3).text(), "red", "the call clears grammars alone");
}

#[test]
fn a_refused_grammar_bars_generating_until_a_set_or_a_clear() {
    let session = open(spell(b"zzz"));
    for (source, named) in [
        (r#"{"gbnf":"root ::= [a"}"#, "line 1"),
        (r#"{"gbnf":"root ::= other"}"#, "other"),
        (r#"{"nothing":1}"#, "gbnf"),
        ("[", "JSON"),
    ] {
        hold(&session, r#"root ::= "ab""#);
        let problem = refusal(session.set_grammar(source.as_bytes()));
        assert!(problem.contains(named), "{problem}");
        session.prefill(&PROMPT, -1).unwrap();
        let (sink, _receiver) = listener();
        assert_eq!(refusal(session.generate(1, None, None, sink)), problem);
        session.clear_trie().unwrap();
        let (sink, _receiver) = listener();
        assert_eq!(refusal(session.generate(1, None, None, sink)), problem, "the trie's call does not lift it");
        session.clear_grammar().unwrap();
        assert_eq!(generate(&session, -1).text(), "zzz");
    }
    assert!(session.refuse_grammar(Error::InvalidArgument("no".into())).is_err());
    arm(&session, &[r#"{"name":"red","tokens":[114,101,100]}"#]);
    assert_eq!(generate(&session, 3).text(), "red", "a set of either kind lifts it");
}

#[test]
fn options_may_bring_a_grammar() {
    let session = open(spell(b"zzz"));
    let settings = || Settings { candidates: 3, ..session.settings() };
    session.configure_guided(settings(), r#"root ::= "ab""#).unwrap();
    assert_eq!((generate(&session, -1).text().as_str(), session.settings().candidates), ("ab", 3));
    session.configure(Settings::default()).unwrap();
    assert_eq!(generate(&session, -1).text(), "ab", "without one the grammar stays");
    assert!(session.configure_guided(settings(), "root ::=  [").is_err());
    assert_eq!(session.settings().candidates, 0, "a refused grammar leaves the settings");
    session.prefill(&PROMPT, -1).unwrap();
    let (sink, _receiver) = listener();
    assert!(session.generate(1, None, None, sink).is_err());
    session.configure_guided(settings(), "").unwrap();
    assert_eq!(generate(&session, -1).text(), "zzz");
    let unusable = Settings { stop: vec![Vec::new()], ..Settings::default() };
    assert!(session.configure_guided(unusable, r#"root ::= "ab""#).is_err());
    assert_eq!(generate(&session, -1).text(), "zzz", "refused settings leave the grammar");
}

#[test]
fn a_lazy_grammar_waits_for_its_trigger() {
    let lazy = |word: &str| json!({ "lazy": true, "triggers": [{"type": "word", "value": word}] });
    let session = open(spell(b"so: <?zzzzzzzzz"));
    hold_with(&session, r#"root ::= "<" [a?] ">" "end""#, lazy("<"));
    let heard = generate(&session, -1);
    assert_eq!((heard.text().as_str(), reason(&session)), ("so: <?>end", FinishReason::Stop));
    assert_eq!(session.usage().forced_tokens, 4);
    assert_eq!(generate(&session, -1).text(), "so: <?>end", "and again after a prefill");
    // What a trigger's token has after it has to fit.
    let session = open(say([HELLO, WORLD]));
    hold_with(&session, r#"root ::= "Hell" "x""#, lazy("Hell"));
    assert_eq!((generate(&session, -1).text().as_str(), reason(&session)), ("", FinishReason::Error));
    let problem = session.status().error.unwrap().to_string();
    assert!(problem.contains("Hello"), "{problem}");
    // Without a trigger nothing is forced, and the end is the model's.
    let session = open(spell(b"none"));
    hold_with(&session, r#"root ::= "<""#, lazy("<"));
    assert_eq!((generate(&session, -1).text().as_str(), reason(&session)), ("none", FinishReason::Stop));
}

#[test]
fn a_grammar_goes_on_over_shifts_and_stop_strings_end_it() {
    let session = open(drone());
    set(&session, |settings| settings.on_context_full = ContextFull::Shift { keep: 3 });
    hold(&session, r#"root ::= ("ab" [cd]){50} "end""#);
    let heard = generate(&session, -1);
    assert_eq!((heard.text(), reason(&session)), (format!("{}end", "abc".repeat(50)), FinishReason::Stop));
    assert!(session.usage().context_shifts > 0);
    set(&session, |settings| settings.stop = vec![b"cab".to_vec()]);
    assert_eq!((generate(&session, -1).text().as_str(), reason(&session)), ("ab", FinishReason::Stop));
}

#[test]
fn a_cancelled_generation_leaves_a_grammar_that_begins_again() {
    let session = Arc::new(open(drone()));
    hold(&session, r#"root ::= "x" [ab]* "y""#);
    session.prefill(&PROMPT, -1).unwrap();
    let (sender, receiver) = channel();
    let (cancelling, mut seen) = (Arc::downgrade(&session), 0);
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        seen += 1;
        if seen == 5
            && let Some(session) = cancelling.upgrade()
        {
            session.cancel();
        }
        let _ = sender.send(event.text.to_owned());
    }));
    session.generate(-1, Some(0.0), None, sink).unwrap();
    assert_eq!(receiver.iter().collect::<String>(), "xaaaa");
    assert_eq!(reason(&session), FinishReason::Cancelled);
    assert_eq!(generate(&session, 3).text(), "xaa");
}
