//! Grammars in Lark, which llguidance follows: beside rules in GBNF for the same texts, and beside plain predicates.

use crate::testing;
use crate::testing::random_text::Random;
use crate::texts::{grammar, vocab};
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, JumpAhead, Trigger, load};
use elizainference::vocab::Vocab;
use elizainference::{Error, Result, Token};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn lark(text: &str, vocab: &Arc<Vocab>) -> Result<Arc<Grammar>> {
    Grammar::lark(text, vocab, GrammarOptions::default())
}

fn state(text: &str, vocab: &Arc<Vocab>) -> GrammarState {
    GrammarState::new(lark(text, vocab).unwrap())
}

/// Whether all of a text fits and may end.
fn matches(grammar: &Arc<Grammar>, text: &str) -> bool {
    let mut state = GrammarState::new(grammar.clone());
    state.advance_bytes(text.as_bytes(), &mut |_, _| {}) == text.len() && state.may_end()
}

fn piece(vocab: &Vocab, token: Token) -> Vec<u8> {
    let mut text = Vec::new();
    vocab.piece(token, true, &mut text);
    text
}

/// Grammars for the same texts in both languages.
const SAME: &[(&str, &str)] = &[
    ("start: \"yes\" | \"no\" | \"maybe not\"", "root ::= \"yes\" | \"no\" | \"maybe not\""),
    ("start: /[a-z]{2,5}/ \"-\" /[0-9]+/", "root ::= [a-z]{2,5} \"-\" [0-9]+"),
    (
        "start: item (\",\" item)*\nitem: \"(\" start \")\" | /[ab]+/",
        "root ::= i (\",\" i)*\ni ::= \"(\" root \")\" | [ab]+",
    ),
    ("start: /\"[^\"\\n]*\"/ \".\"", "root ::= \"\\\"\" [^\"\\n]* \"\\\"\" \".\""),
    ("start: /(日本|日曜)*é?/", "root ::= (\"日本\" | \"日曜\")* \"é\"?"),
    ("start: \"said \" WORD \" went home\"\nWORD: /[A-Z][a-z]*/", "root ::= \"said \" [A-Z] [a-z]* \" went home\""),
];

#[test]
fn masks_are_those_of_rules_for_the_same_texts() {
    let vocab = vocab(&testing::demo());
    let mut random = Random(1);
    for (ours, theirs) in SAME.iter().map(|(lark, gbnf)| (grammar(gbnf, &vocab), state(lark, &vocab))) {
        for _ in 0..20 {
            let (mut rules, mut lark) = (GrammarState::new(ours.clone()), theirs.clone());
            let mut history = Vec::new();
            for _ in 0..12 {
                let (mask, other) = (rules.mask().unwrap().unwrap(), lark.mask().unwrap().unwrap());
                assert_eq!(rules.may_end(), lark.may_end(), "{history:?}");
                assert_eq!(rules.must_end().unwrap(), lark.must_end().unwrap(), "{history:?}");
                let legal: Vec<Token> = (0..vocab.n_tokens() as Token).filter(|&token| other.allows(token)).collect();
                for token in 0..vocab.n_tokens() as Token {
                    // Characters of rules match the texts of control tokens, those of Lark do not.
                    let is_named = vocab.is_control(token) && !vocab.is_eog(token);
                    assert!(is_named || mask.allows(token) == other.allows(token), "{token} after {history:?}");
                }
                assert_eq!(other.few().is_some(), legal.len() <= 256);
                let going_on: Vec<Token> = legal.into_iter().filter(|&token| !vocab.is_eog(token)).collect();
                if going_on.is_empty() {
                    break;
                }
                // What is refused changes nothing.
                let wrong = random.below(vocab.n_tokens()) as Token;
                if !other.allows(wrong) {
                    assert!(lark.accept(wrong).is_err());
                }
                let token = going_on[random.below(going_on.len())];
                rules.accept(token).unwrap();
                lark.accept(token).unwrap();
                history.push(token);
            }
            // Back to the start, and there again.
            let there = lark.mask().unwrap().unwrap();
            lark.rearm();
            history.iter().for_each(|&token| lark.accept(token).unwrap());
            assert_eq!(lark.mask().unwrap().unwrap().bits(), there.bits());
        }
    }
}

#[test]
fn what_rules_cannot_say() {
    let vocab = vocab(&testing::demo());
    // Words of 3 to 6 letters that have a vowel and no `foo`.
    let words = lark("start: WORD\nWORD: /[a-z]{3,6}/ & /.*[aeiou].*/ & ~/.*foo.*/", &vocab).unwrap();
    let mut random = Random(2);
    for _ in 0..3000 {
        let text: String = (0..random.below(8)).map(|_| ['f', 'o', 'x', 'a', 'y'][random.below(5)]).collect();
        let wanted = (3..=6).contains(&text.len()) && text.contains(['a', 'o']) && !text.contains("foo");
        assert_eq!(matches(&words, &text), wanted, "{text}");
    }
    // A schema inside of a grammar.
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
        "additionalProperties": false}"#;
    let call = lark(&format!("start: \"call(\" args \")\"\nargs: %json {schema}"), &vocab).unwrap();
    assert!(matches(&call, "call({\"n\":12})") && !matches(&call, "call({\"n\":1.5})") && !matches(&call, "call({})"));
    // White space that is ignored between terminals.
    let sum = lark("start: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/\n%ignore / +/", &vocab).unwrap();
    assert!(matches(&sum, "1 +  22+3") && !matches(&sum, "1 2"));
    // At most so many tokens of a kind.
    let mut short = state("start: text \"!\"\ntext[max_tokens=2]: /.*/", &vocab);
    for _ in 0..2 {
        let token = vocab.tokenize_inside(b"a", false, &|| false).unwrap()[0];
        short.accept(token).unwrap();
    }
    let mask = short.mask().unwrap().unwrap();
    assert!((0..vocab.n_tokens() as Token).filter(|&t| mask.allows(t)).all(|t| piece(&vocab, t).starts_with(b"!")));
}

#[test]
fn control_tokens_are_named_and_their_texts_are_not_them() {
    let vocab = vocab(&testing::demo());
    let control = (0..vocab.n_tokens() as Token).find(|&t| vocab.is_control(t) && !vocab.is_eog(t)).unwrap();
    let name = String::from_utf8(piece(&vocab, control)).unwrap();
    let grammar = lark(&format!("start: \"a\" {name} \"b\""), &vocab).unwrap();
    assert!(grammar.has_tokens());
    let mut named = GrammarState::new(grammar);
    assert_eq!(named.advance_bytes(b"a", &mut |_, _| {}), 1);
    assert_eq!(named.mask().unwrap().unwrap().few(), Some(&[control][..]));
    // Its text, spelled by other tokens, is not it.
    let spelled = named.clone().advance_bytes(name.as_bytes(), &mut |_, _| {});
    assert_eq!(spelled, 0);
    named.accept(control).unwrap();
    assert_eq!(named.advance_bytes(b"b", &mut |_, _| {}), 1);
    assert!(named.must_end().unwrap());
    // By its number.
    let mut numbered = state(&format!("start: <[{control}]>"), &vocab);
    assert_eq!(numbered.mask().unwrap().unwrap().few(), Some(&[control][..]));
    // As text.
    let grammar = lark(&format!("start: \"{name}\""), &vocab).unwrap();
    assert!(!grammar.has_tokens());
    let mut text = GrammarState::new(grammar);
    assert!(!text.mask().unwrap().unwrap().allows(control));
    assert_eq!(text.advance_bytes(name.as_bytes(), &mut |_, _| {}), name.len());
    // One that ends the generation is none of a grammar's tokens.
    let end = String::from_utf8(piece(&vocab, vocab.eog_tokens()[0])).unwrap();
    assert!(lark(&format!("start: {end}"), &vocab).unwrap_err().to_string().contains(&end));
}

#[test]
fn forced_text_is_what_rules_force() {
    let vocab = vocab(&testing::demo());
    let whole = "once upon a time there was a little girl";
    for (lark, gbnf) in
        [("/[.!]/", "[.!]"), ("/[a-z]*/ \".\"", "[a-z]* \".\""), ("(\" named\" | \"s\")", "(\" named\" | \"s\")")]
    {
        let mut state = state(&format!("start: \"{whole}\" {lark}"), &vocab);
        let rules = grammar(&format!("root ::= \"{whole}\" {gbnf}"), &vocab);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        GrammarState::new(rules).forced_tokens(&[], &mut ours).unwrap();
        state.forced_tokens(&[], &mut theirs).unwrap();
        assert_eq!(ours, theirs, "{lark}");
        assert!(!theirs.is_empty());
        // The state is what it was.
        theirs.iter().for_each(|&token| state.accept(token).unwrap());
    }
    let tokens = GrammarOptions { jump_ahead: JumpAhead::Tokens, ..GrammarOptions::default() };
    let mut state = GrammarState::new(Grammar::lark("start: \"Q\" | \"Z\"", &vocab, tokens).unwrap());
    let mut forced = Vec::new();
    state.forced_tokens(&[], &mut forced).unwrap();
    assert!(forced.is_empty());
}

#[test]
fn a_trigger_that_ends_inside_of_a_token_brings_it_into_force() {
    let vocab = vocab(&testing::demo());
    let options =
        GrammarOptions { lazy: true, triggers: vec![Trigger::Word("<call>".into())], ..GrammarOptions::default() };
    let grammar = Grammar::lark("start: \"<call>\" /[a-z]+/ \"</call>\"", &vocab, options).unwrap();
    let mut state = GrammarState::new(grammar);
    for token in vocab.tokenize_inside(b"Once upon a time <call>", false, &|| false).unwrap() {
        assert!(!state.in_force() && state.mask().unwrap().is_none());
        state.accept(token).unwrap();
    }
    assert!(state.in_force() && !state.may_end());
    assert_eq!(state.advance_bytes(b"ab</call>x", &mut |_, _| {}), 9);
    assert!(state.must_end().unwrap());
}

#[test]
fn sources_in_lark() {
    let vocab = vocab(&testing::demo());
    let grammar = load(br#"{"lark": "start: \"a\"", "jump_ahead": "tokens"}"#, &vocab).unwrap();
    assert!(matches(&grammar, "a") && grammar.jump_ahead() == JumpAhead::Tokens && grammar.bytes() > 0);
    for (json, place) in [
        (r#"{"lark": 1}"#, "lark: must be a string"),
        (r#"{"lark": "start: missing"}"#, "missing"),
        (r#"{"lark": "start: /(/"}"#, "lark"),
        (r#"{"lark": ""}"#, "lark"),
        (r#"{"lark": "start: <|missing|>"}"#, "missing"),
        (r#"{"lark": "start: %json {\"not\": {\"type\": \"null\"}}"}"#, "not"),
    ] {
        let error = load(json.as_bytes(), &vocab).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)) && error.to_string().contains(place), "{json}: {error}");
        assert!(!error.to_string().contains("\\n"), "in one line: {error}");
    }
}

#[test]
fn what_goes_beyond_a_limit_ends_alone() {
    let vocab = vocab(&testing::demo());
    let grammar = lark("start: T\nT: /(.*a.{12}){2}/ & /(.*c.{13})/", &vocab).unwrap();
    let mut random = Random(3);
    let mut state = GrammarState::new(grammar.clone());
    let text: Vec<u8> = (0..4000).map(|_| b"abcd"[random.below(4)]).collect();
    assert!(state.advance_bytes(&text, &mut |_, _| {}) < text.len());
    let error = state.mask().unwrap_err();
    assert!(
        matches!(&error, Error::OutOfMemory(text) if text.ends_with("too many expressions constructed")),
        "{error}"
    );
    // It goes on being one, and others are not concerned; nor is itself at a new prompt.
    assert!(state.accept(5).is_err());
    let mut other = GrammarState::new(grammar);
    assert_eq!(other.advance_bytes(&text[..20], &mut |_, _| {}), 20);
    state.rearm();
    assert_eq!(state.advance_bytes(&text[..20], &mut |_, _| {}), 20);
}

#[test]
fn broken_grammars_are_refused_or_followed() {
    let vocab = vocab(&testing::demo());
    let mut random = Random(4);
    let others = [
        "start: \"call(\" args \")\"\nargs: %json {\"properties\": {\"n\": {\"type\": \"integer\"}}}",
        "start: A b %regex { \"substring_words\": \"one two three\" }\nA: /a+/ & ~/aaa/\nb[max_tokens=3]: /.*/",
        "%ignore / +/\nstart: (\"a\" | <[3]> | <[5-9,12]> | \"é\"i)~2..4 C{1,3}\nC[lazy]: /[0-9]*x/",
        "%llguidance { \"no_forcing\": true }\nstart: x*\nx[capture, stop=\"!\"]: /[a-z]*/",
    ];
    let (mut refused, mut followed) = (0, 0);
    for _ in 0..1500 {
        let all: Vec<&str> = SAME.iter().map(|(lark, _)| *lark).chain(others).collect();
        let mut text = all[random.below(all.len())].as_bytes().to_vec();
        for _ in 0..random.below(4) {
            let (from, to) = (random.below(text.len()), random.below(text.len()));
            match random.below(4) {
                0 => drop(text.remove(from)),
                1 => text.insert(from, b"()[]{}|*+?/\"\\~&:%<>\n \xC3"[random.below(22)]),
                2 => text.swap(from, to),
                _ => text.extend_from_within(from.min(to)..from.max(to)),
            }
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut follow = || {
            let mut state = GrammarState::new(lark(&text, &vocab)?);
            for _ in 0..8 {
                let Some(mask) = state.mask()? else { break };
                let legal: Vec<Token> =
                    (0..vocab.n_tokens() as Token).filter(|&t| mask.allows(t) && !vocab.is_eog(t)).collect();
                let mut forced = Vec::new();
                state.forced_tokens(&[], &mut forced)?;
                assert!(forced.first().is_none_or(|first| legal.contains(first)), "{text:?}: {forced:?}");
                let Some(&next) = legal.get(random.below(legal.len().max(1))) else { break };
                state.accept(next)?;
            }
            Ok(())
        };
        match follow() {
            Ok(()) => followed += 1,
            Err(Error::InvalidArgument(problem) | Error::OutOfMemory(problem)) => {
                assert!(!problem.contains("panic"), "{text:?}: {problem}");
                refused += 1;
            }
            Err(error) => panic!("{text:?}: {error}"),
        }
    }
    assert!(refused > 300 && followed > 300, "{refused} refused, {followed} followed");
}

#[test]
fn hostile_grammars_end_in_an_error_or_stay_small() {
    let vocab = vocab(&testing::demo());
    let lines = |n: usize, line: &dyn Fn(usize) -> String| (0..n).map(line).collect::<Vec<_>>().join("\n");
    let grammars = [
        ("deep parentheses", format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        ("parentheses at the limit", format!("start: {}\"a\"{}", "(".repeat(99), ")".repeat(99))),
        ("a deep pattern", format!("start: /{}a{}/", "(".repeat(99), ")*".repeat(99))),
        ("escaped brackets", format!("start: /{}/", "\\(".repeat(99))),
        ("a chain of rules", lines(1990, &|i| format!("r{i}: r{} \"x\"", i + 1)) + "\nr1990: \"y\"\nstart: r0"),
        ("a chain of terminals", lines(490, &|i| format!("T{i}: T{}? \"x\"", i + 1)) + "\nT490: \"y\"\nstart: T0"),
        ("too many terminals", lines(1990, &|i| format!("T{i}: (T{} \"x\")* \"z\"", i + 1))),
        ("a chain of stars", lines(490, &|i| format!("T{i}: (T{} \"x\")* \"z\"", i + 1)) + "\nT490: \"y\"\nstart: T0"),
        ("a chain of schemas", {
            let defs: Vec<String> =
                (0..4000).map(|i| format!("\"d{i}\":{{\"allOf\":[{{\"$ref\":\"#/$defs/d{}\"}}]}}", i + 1)).collect();
            format!("start: %json {{\"$ref\":\"#/$defs/d0\",\"$defs\":{{{},\"d4000\":{{}}}}}}", defs.join(","))
        }),
        ("too many rules", lines(100_000, &|i| format!("r{i}: \"{i}\""))),
        ("a text that is too long", format!("start: \"{}\"", "a".repeat(1 << 20))),
        ("left recursion", "start: start \"a\" | \"b\"".into()),
        ("recursion without an end", "start: \"a\" start".into()),
        ("terminals that refer to themselves", "start: A\nA: \"a\" B\nB: A".into()),
        ("a thousand million repetitions", "start: /a{1,1000000000}/".into()),
        ("repetitions of repetitions", "start: /((a{1000}){1000}){1000}/".into()),
        ("intersections that explode", "start: T\nT: /(.*a.{12})/ & /(.*b.{13})/ & ~/(.*c.{14})/".into()),
        ("ambiguous rules", "start: a a a a a a \"!\"\na: \"x\"* | a a".into()),
        ("alternatives", format!("start: {}", (0..20_000).map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join(" | "))),
    ];
    for (name, text) in grammars {
        let begin = Instant::now();
        let outcome = lark(&text, &vocab).and_then(|grammar| {
            let mut state = GrammarState::new(grammar);
            for _ in 0..20 {
                let Some(mask) = state.mask()? else { break };
                state.forced(&mut Vec::new())?;
                let next = (0..vocab.n_tokens() as Token).find(|&t| mask.allows(t) && !vocab.is_eog(t));
                let Some(next) = next else { break };
                state.accept(next)?;
            }
            Ok(())
        });
        println!("{name}: {:?}, {outcome:?}", begin.elapsed());
        assert!(begin.elapsed() < Duration::from_secs(60), "{name}");
    }
}
