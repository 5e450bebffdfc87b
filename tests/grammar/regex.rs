//! Regular expressions as grammars, against an engine for them.

use crate::naive::Naive;
use crate::testing::rng::Stream;
use elizainference::Error;
use elizainference::grammar::regex::to_gbnf;
use std::time::{Duration, Instant};

const PATTERNS: &[&str] = &[
    "^abc$",
    "abc",
    "^a",
    "b$",
    "",
    "^$",
    "^a|b$",
    "^(a|b)$",
    "(^a$)|(^b+$)",
    "^a$|^b|c",
    "^[a-c]{2,3}-\\d$",
    "^(ab|c[0-9]+)x?\\.y{2}$",
    "^\\w+[ -]\\w*$",
    "^[^abc]*$",
    "^[\\w.-]+$",
    "^[\\w-]+@$",
    "^a.c$",
    "^(?:a|bc)*?d$",
    "^(?<name>a)b$",
    "^a{3}$",
    "^a{2,}$",
    "^(a(b(c)?)?)?$",
    "^[]\\-a]$",
    "^\\x41\\u0042$",
    "^é[à-ü]$",
    "^(a|)b$",
    "a*b",
    "^-?[0-9]+(\\.[0-9]+)?$",
    "^\\S+$",
    "^[^\\d]+$",
];

#[test]
fn patterns_match_what_an_engine_matches() {
    for (index, pattern) in PATTERNS.iter().enumerate() {
        // `[]…]` is written otherwise for the engine, and its dot takes more.
        let Ok(gbnf) = to_gbnf(pattern, false) else {
            assert!(pattern.starts_with("^[]"), "{pattern}");
            continue;
        };
        let naive = Naive::parse(&gbnf);
        let engine = regex_lite::Regex::new(pattern).unwrap();
        let random = Stream::new(index as u64, "texts");
        let alphabet: Vec<char> = "abcdxy01-. @_éüAB".chars().collect();
        for i in 0..400 {
            let length = random.below(i * 20, 7);
            let text: String =
                (0..length).map(|k| alphabet[random.below(i * 20 + 1 + k, alphabet.len() as u64) as usize]).collect();
            assert_eq!(naive.matches(&text), engine.is_match(&text), "{pattern}: {text:?}\n{gbnf}");
        }
        let (mut drawn, mut n) = (0, 10_000);
        for _ in 0..50 {
            let mut pick = |below| {
                n += 1;
                random.below(n, below)
            };
            let Some(text) = naive.random(12, &mut pick) else { continue };
            assert!(engine.is_match(&text), "{pattern}: {text:?}");
            drawn += 1;
        }
        assert!(drawn > 40, "{pattern}: {drawn}");
    }
}

#[test]
fn what_is_not_regular_is_refused_with_its_place() {
    for (pattern, place) in [
        ("a(?=b)", "character 2: look-around"),
        ("(?<!a)b", "character 1: look-around"),
        ("(a)\\1", "character 4: a back-reference"),
        ("\\bword", "character 1: a word boundary"),
        ("a\\p{L}", "character 2: a property of Unicode"),
        ("a^b", "an anchor inside"),
        ("(?i)a", "a group of this kind"),
    ] {
        let error = to_gbnf(pattern, false).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)) && error.to_string().contains(place), "{pattern}: {error}");
    }
    for pattern in ["(a", "a)", "[a", "a**", "*a", "a{2,1}", "\\", "[b-a]", "\\u12", "a{99999999999999999999}"] {
        let error = to_gbnf(pattern, false).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{pattern}: {error}");
    }
}

#[test]
fn hostile_patterns_are_refused_or_small() {
    for pattern in [
        "(".repeat(100_000),
        "(a".repeat(5000) + &")".repeat(5000),
        "a|".repeat(30_000),
        "a{0,1000000000}".into(),
        "a{1000000000}".into(),
        "((a{1000}){1000}){1000}".into(),
        "(((((a?){1000}){1000}){1000}){1000}){1000}".into(),
        "(^|a)".repeat(20),
        "[".repeat(100_000),
        "(a|b$)".repeat(100),
    ] {
        let start = Instant::now();
        let _ = to_gbnf(&pattern, false);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(2), "{}: {took:?}", &pattern[..20]);
    }
}
