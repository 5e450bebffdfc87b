//! Reading GBNF, marks, and rules written out again.

use crate::testing;
use crate::texts::{GRAMMARS, grammar, vocab};
use elizainference::Error;
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, Rules};

#[test]
fn errors_name_line_and_column() {
    for (text, place) in [
        ("root ::= \"a", "line 1, column 10: the literal has no end"),
        ("root ::= a\n\na ::= [b", "line 3, column 7: the class has no end"),
        ("root ::= \"é\" \\d", "line 1, column 14: an element or the end of the line expected, found \"\\\""),
        ("root ::= \"a\" b", "line 1, column 14: the rule \"b\" is not defined"),
        ("root ::= \"a\"{2,1}", "line 1, column 13: {2,1}: the maximum is below the minimum"),
        ("root ::= [\\d]", "line 1, column 11: the escape \\d is not known"),
        ("root ::= \"\\x4\"", "line 1, column 11: \\x needs 2 hexadecimal digits"),
        ("root ::= a\na ::= b\nb ::= a \"x\"", "begins with itself"),
        ("root : \"a\"", "line 1, column 6: \"::=\" expected, found \":\""),
        ("root ::= (\"a\"", "line 1, column 14: \")\" expected, found the end"),
        ("# only\n", "there are no rules"),
        ("a ::= \"x\"", "there is no rule \"root\" to begin with"),
        ("root ::= <[99999999999]>", "line 1, column 10: a token is <[number]> or <text>"),
        ("root ::= <a", "line 1, column 10: the token has no \">\""),
        ("root ::= ! \"a\"", "line 1, column 11: \"<\" of a token expected"),
        ("root ::= \"\"*", "line 1, column 12: there is no element to repeat before this"),
    ] {
        match Rules::parse(text, "root") {
            Err(Error::InvalidArgument(message)) => assert!(message.contains(place), "{text}: {message}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn rules_written_out_match_the_same() {
    let vocab = vocab(&testing::demo());
    let texts =
        ["yes", "cat", "carts", "abab", "{\"a\":[1,2.5e3,\"x\"]}", "((", "aab", "'a' 'b'", "日", "é日x", "12", ""];
    for text in GRAMMARS {
        let rules = Rules::parse(text, "root").unwrap();
        let written = rules.to_gbnf();
        let again = Rules::parse(&written, "root").unwrap_or_else(|error| panic!("{written}: {error}"));
        let [first, second] =
            [rules, again].map(|rules| Grammar::new(rules, &vocab, GrammarOptions::default()).unwrap());
        let [mut first, mut second] = [first, second].map(GrammarState::new);
        let bits = |state: &mut GrammarState| state.mask().unwrap().unwrap().bits().to_vec();
        assert_eq!(bits(&mut first), bits(&mut second), "{written}");
        for text in texts {
            first.rearm();
            second.rearm();
            let [a, b] = [&mut first, &mut second].map(|state| state.advance_bytes(text.as_bytes(), &mut |_, _| {}));
            assert_eq!((a, first.may_end()), (b, second.may_end()), "{written} {text}");
            assert_eq!(bits(&mut first), bits(&mut second), "{written} {text}");
        }
    }
}

#[test]
fn marks_say_which_span_text_belongs_to() {
    let vocab = vocab(&testing::demo());
    let text = "root ::= \"{\" key \":\" value \"}\"\nkey ::= word\nvalue ::= word | \"[\" word \"]\"\nword ::= [a-z]+";
    let mut rules = Rules::parse(text, "root").unwrap();
    rules.mark("key", 3).unwrap();
    rules.mark("value", 5).unwrap();
    assert!(rules.mark("nothing", 1).is_err());
    let mut state = GrammarState::new(Grammar::new(rules, &vocab, GrammarOptions::default()).unwrap());
    let mut spans = Vec::new();
    assert_eq!(state.advance_bytes(b"{ab:[c]}", &mut |_, span| spans.push(span)), 8);
    assert_eq!(spans, [Some(3), Some(3), Some(3), Some(5), Some(5), Some(5), None, None]);
}

#[test]
fn token_references_are_whole_tokens() {
    let vocab = vocab(&testing::demo());
    let token = vocab.tokenize_inside(b"a", false, &|| false).unwrap()[0];
    let other = vocab.tokenize_inside(b"b", false, &|| false).unwrap()[0];
    let mut state = GrammarState::new(grammar(&format!("root ::= <[{token}]> !<[{token}]>"), &vocab));
    assert!(state.grammar().has_tokens());
    assert_eq!(state.mask().unwrap().unwrap().few(), Some(&[token][..]));
    assert_eq!(state.clone().advance_bytes(b"a", &mut |_, _| {}), 0);
    assert!(state.accept(other).is_err());
    state.accept(token).unwrap();
    let mask = state.mask().unwrap().unwrap();
    assert!(!mask.allows(token) && mask.allows(other) && !mask.allows(vocab.eog_tokens()[0]));
    assert!(state.accept(token).is_err() && state.accept(vocab.eog_tokens()[0]).is_err());
    state.accept(other).unwrap();
    assert!(state.must_end().unwrap());
    state.accept(vocab.eog_tokens()[0]).unwrap();
    let beyond = format!("root ::= <[{}]>", vocab.n_tokens());
    for text in [&beyond[..], "root ::= <not one token of it>"] {
        let rules = Rules::parse(text, "root").unwrap();
        assert!(Grammar::new(rules, &vocab, GrammarOptions::default()).is_err(), "{text}");
    }
    assert!(state.accept(-1).is_err() && state.accept(i32::MAX).is_err());
}
