//! Lazy grammars: what brings them into force, and what is replayed then.

use crate::testing;
use crate::texts::vocab;
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, Rules, Trigger};
use elizainference::vocab::Vocab;
use std::sync::Arc;

fn lazy(text: &str, vocab: &Arc<Vocab>, triggers: Vec<Trigger>) -> elizainference::Result<GrammarState> {
    let options = GrammarOptions { lazy: true, triggers, ..GrammarOptions::default() };
    Ok(GrammarState::new(Grammar::new(Rules::parse(text, "root")?, vocab, options)?))
}

fn accepted(state: &mut GrammarState, vocab: &Vocab, text: &str) -> elizainference::Result<()> {
    vocab.tokenize_inside(text.as_bytes(), false, &|| false)?.into_iter().try_for_each(|token| state.accept(token))
}

#[test]
fn a_word_brings_a_grammar_into_force_wherever_tokens_end() {
    let vocab = vocab(&testing::demo());
    let word = || vec![Trigger::Word("<call>".into())];
    let mut state = lazy("root ::= \"<call>\" [a-z]+ \"</call>\"", &vocab, word()).unwrap();
    assert!(!state.in_force() && state.may_end() && state.mask().unwrap().is_none());
    accepted(&mut state, &vocab, "Once upon a time <cal").unwrap();
    let fork = state.clone();
    assert!(!state.in_force());
    accepted(&mut state, &vocab, "l>").unwrap();
    assert!(state.in_force() && !state.may_end());
    assert_eq!(state.advance_bytes(b"ab</call>x", &mut |_, _| {}), 9);
    assert!(state.must_end().unwrap());
    state.rearm();
    assert!(!state.in_force());
    // The fork still waits, and knows the beginning of the word.
    let mut fork = fork;
    assert_eq!(fork.advance_bytes(b"l>9", &mut |_, _| {}), 2);
    assert!(fork.in_force());
}

#[test]
fn what_follows_the_trigger_in_its_token_must_fit() {
    let vocab = vocab(&testing::demo());
    // A token of several bytes, of which the first is the trigger.
    let mut text = Vec::new();
    let token = (0..vocab.n_tokens() as i32)
        .find(|&token| {
            text.clear();
            vocab.piece(token, false, &mut text);
            text.len() == 3 && text.is_ascii() && text.iter().all(u8::is_ascii_alphabetic) && text[0] != text[1]
        })
        .unwrap();
    let [a, b, c] = [text[0], text[1], text[2]].map(char::from);
    for (rest, fits) in [(format!("{b}{c}x"), true), (format!("{c}{b}{c}"), false)] {
        let triggers = vec![Trigger::Word(a.to_string())];
        let mut state = lazy(&format!("root ::= \"{a}{rest}\""), &vocab, triggers).unwrap();
        assert_eq!(state.accept(token).is_ok(), fits);
        assert_eq!(state.in_force(), fits);
        if !fits {
            // As it was: it still waits, and the token is not part of the text.
            assert!(state.mask().unwrap().is_none());
        }
    }
}

#[test]
fn patterns_begin_the_grammar_at_their_first_group() {
    let vocab = vocab(&testing::demo());
    let cases: &[(Trigger, &str, Option<&str>)] = &[
        (Trigger::Pattern("[a-z]+ (=)".into()), "x1 ab =", Some("1")),
        (Trigger::Pattern("==".into()), "x ==", Some("1")),
        (Trigger::Pattern("()(=)".into()), "xy=", Some("1")),
        (Trigger::Pattern("^=".into()), "x=", None),
        (Trigger::PatternFull("x(=)".into()), "x=", Some("1")),
        (Trigger::PatternFull("x(=)".into()), "xx=", None),
    ];
    for (trigger, text, rest) in cases {
        let mut state = lazy("root ::= \"=\"+ \"1\"", &vocab, vec![trigger.clone()]).unwrap();
        assert_eq!(state.advance_bytes(text.as_bytes(), &mut |_, _| {}), text.len(), "{trigger:?}");
        assert_eq!(state.in_force(), rest.is_some(), "{trigger:?}");
        if let Some(rest) = rest {
            assert_eq!(state.advance_bytes(rest.as_bytes(), &mut |_, _| {}), rest.len(), "{trigger:?}");
            assert!(state.must_end().unwrap(), "{trigger:?}");
        }
    }
}

#[test]
fn a_trigger_token_is_the_grammar_s_first_text() {
    let vocab = vocab(&testing::demo());
    let token = vocab.tokenize_inside(b"a", false, &|| false).unwrap()[0];
    let mut text = Vec::new();
    vocab.piece(token, true, &mut text);
    let text = String::from_utf8(text).unwrap();
    for grammar in [format!("root ::= \"{text}\" \"1\""), format!("root ::= <[{token}]> \"1\"")] {
        let mut state = lazy(&grammar, &vocab, vec![Trigger::Token(token)]).unwrap();
        assert_eq!(state.advance_bytes(b"b", &mut |_, _| {}), 1);
        state.accept(token).unwrap();
        assert!(state.in_force(), "{grammar}");
        assert_eq!(state.advance_bytes(b"12", &mut |_, _| {}), 1, "{grammar}");
    }
}

#[test]
fn triggers_that_cannot_be_used_are_refused() {
    let vocab = vocab(&testing::demo());
    let refused: &[Vec<Trigger>] = &[
        vec![],
        vec![Trigger::Word(String::new())],
        vec![Trigger::Pattern("(".into())],
        vec![Trigger::Pattern("a(?=b)".into())],
        vec![Trigger::Word("a".repeat(100_000))],
        vec![Trigger::Token(1); 5000],
    ];
    for triggers in refused {
        assert!(lazy("root ::= \"a\"", &vocab, triggers.clone()).is_err());
    }
}

#[test]
fn long_texts_before_a_trigger_cost_the_same_for_each_token() {
    let vocab = vocab(&testing::demo());
    let both = [Trigger::Word("STOP!".into()), Trigger::Pattern("[A-Z]+(\\?)".into())];
    let mut state = lazy("root ::= \"?\" \"!\" | \"STOP!\"", &vocab, both.into()).unwrap();
    let text = "once upon a time there was a little girl. ".repeat(1500);
    let tokens = vocab.tokenize_inside(text.as_bytes(), false, &|| false).unwrap();
    // Words alone are searched in what is new, also in a million tokens.
    let mut words = lazy("root ::= \"STOP!\"", &vocab, vec![Trigger::Word("STOP!".into())]).unwrap();
    for _ in 0..20 {
        tokens.iter().for_each(|&token| words.accept(token).unwrap());
    }
    accepted(&mut words, &vocab, "STOP!").unwrap();
    assert!(words.in_force() && words.must_end().unwrap());
    for &token in &tokens[..tokens.len().min(3000)] {
        state.accept(token).unwrap();
    }
    assert_eq!(state.advance_bytes(b"WHY?!", &mut |_, _| {}), 5);
    assert!(state.in_force() && state.must_end().unwrap());
}
