//! Grammars that want too much time or memory: an error, or a bounded answer.

use crate::testing::random_text::Random;
use crate::testing::{self, process};
use crate::texts::{GRAMMARS, grammar, vocab};
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, Rules};
use elizainference::vocab::Vocab;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn grammars() -> Vec<(&'static str, String)> {
    let numbered = |n: usize, f: &dyn Fn(usize) -> String| (0..n).map(f).collect::<Vec<_>>();
    let optionals = |n: usize| format!("root ::= {}\"b\"{}", "(\"a\" ".repeat(n), ")?".repeat(n));
    vec![
        ("deep parentheses", format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        ("nesting at the limit", format!("root ::= {}\"a\"{}", "(".repeat(512), ")".repeat(512))),
        ("maximum below minimum", "root ::= \"a\"{2,1}".into()),
        ("a thousand million repetitions", "root ::= \"a\"{0,1000000000} \"b\"".into()),
        ("a minimum of a thousand million", "root ::= \"a\"{1000000000}".into()),
        ("a number without end", format!("root ::= \"a\"{{0,{}}}", "9".repeat(10_000))),
        ("repetitions of repetitions", "root ::= \"a\"{2000}{2000}{2000}".into()),
        ("nullable left recursion", "root ::= a\na ::= b a \"x\" | \"y\"\nb ::= c\nc ::= \"\" |".into()),
        ("a repetition of what may be empty", "root ::= (\"a\"?)*".into()),
        ("left recursion of many rules", {
            let rules = numbered(100_000, &|i| format!("r{i} ::= r{} \"a\"", (i + 1) % 100_000));
            format!("root ::= r0\n{}", rules.join("\n"))
        }),
        ("a megabyte of alternatives", {
            format!("root ::= {}", numbered(100_000, &|i| format!("\"n{i}\"")).join(" | "))
        }),
        ("300 000 alternatives", format!("root ::= {}", numbered(300_000, &|i| format!("\"{i:x}\"")).join("|"))),
        ("equal alternatives", format!("root ::= {}", numbered(300_000, &|_| "\"a\"".into()).join("|"))),
        ("rules as alternatives", {
            let rules = numbered(60_000, &|i| format!("r{i} ::= [a-z] \"{i}\""));
            format!("root ::= {}\n{}", numbered(60_000, &|i| format!("r{i}")).join("|"), rules.join("\n"))
        }),
        ("a chain of rules", {
            let rules = numbered(100_000, &|i| format!("r{i} ::= r{} | \"{i}\"", i + 1));
            format!("root ::= r0\n{}\nr100000 ::= \"z\"", rules.join("\n"))
        }),
        ("ambiguous stars", "root ::= (\"a\" | \"a\")*".into()),
        ("ambiguous nested stars", "root ::= (\"a\" (\"a\" (\"a\" \"a\"*)*)*)* \"b\"".into()),
        ("many optionals", "root ::= (\"a\"?){12} \"a\"{12}".into()),
        ("optionals of optionals", "root ::= (((\"a\"?){12}){12}){12}".into()),
        ("two thousand optionals", "root ::= (\"a\"{0,100}){0,15} \"b\"".into()),
        ("a stack that grows", "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"".into()),
        ("ambiguous stacks that grow", "root ::= \"a\" root \"b\"? | \"aa\" root \"b\"? | \"c\"".into()),
        ("all of it forced", "root ::= \"a\" root".into()),
        ("nested optional groups", optionals(500)),
        ("a long literal", format!("root ::= \"{}\"", "a".repeat(2 << 20))),
        ("a large class", {
            let all = numbered(60_000, &|i| format!("\\U{:08X}", 0x20 + 2 * i));
            format!("root ::= [{}]+", all.concat())
        }),
        ("many classes", {
            format!(
                "root ::= {}",
                numbered(20_000, &|i| format!("[\\U{:08X}-\\U{:08X}]", 0x100 + i, 0x200 + 3 * i)).join(" ")
            )
        }),
    ]
}

/// Compiles a grammar and follows long texts of `a`s, until something is refused.
fn try_out(text: &str, vocab: &Arc<Vocab>) -> elizainference::Result<usize> {
    let rules = Rules::parse(text, "root")?;
    let grammar = Grammar::new(rules, vocab, GrammarOptions::default())?;
    let mut state = GrammarState::new(grammar);
    let mut forced = Vec::new();
    state.mask()?;
    state.forced_tokens(&[], &mut forced)?;
    let accepted = state.advance_bytes(&[b'a'; 4096], &mut |_, _| {});
    state.mask()?;
    state.must_end()?;
    Ok(accepted)
}

#[test]
fn grammars_that_want_too_much_are_refused_or_bounded() {
    if !process::is_child() {
        return process::run(&mut process::of("hostile::grammars_that_want_too_much_are_refused_or_bounded"));
    }
    let vocab = vocab(&testing::demo());
    // The vocabulary's trie is not what is measured.
    let _ = try_out("root ::= \"a\"", &vocab);
    for (name, text) in grammars() {
        let start = Instant::now();
        let result = try_out(&text, &vocab);
        let (took, peak) = (start.elapsed(), peak_bytes());
        let shown = match &result {
            Ok(accepted) => format!("{accepted} bytes accepted"),
            Err(error) => error.to_string(),
        };
        println!("{name}: {shown}, {took:.2?}, peak {} MiB", peak >> 20);
        // Ten times what a release build on an idle machine may take.
        assert!(took < Duration::from_secs(10), "{name}: {took:?}");
        assert!(peak < 256 << 20, "{name}: {peak} bytes");
        let refused = [
            "deep parentheses",
            "maximum below minimum",
            "a minimum of a thousand million",
            "nullable left recursion",
            "a repetition of what may be empty",
            "left recursion of many rules",
        ];
        if refused.contains(&name) {
            assert!(result.is_err(), "{name}");
        }
    }
}

/// The most memory that this process has had, in bytes; 0 where the system does not say.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

#[test]
fn tables_that_are_full_are_made_again_from_the_states_in_use() {
    let vocab = vocab(&testing::demo());
    let text = "root ::= \"a\" root \"b\" | \"c\"";
    let compiled = grammar(text, &vocab);
    let mut long = GrammarState::new(compiled.clone());
    let mut kept = Vec::new();
    let mut accepted = 0;
    // Every byte makes a stack that was not there before.
    for round in 0..9 {
        accepted += long.advance_bytes(&vec![b'a'; 20_000], &mut |_, _| {});
        assert_eq!(accepted, (round + 1) * 20_000);
        kept.push((accepted, long.clone()));
    }
    assert!(compiled.rebuilt() > 0, "the tables were never full");
    for (length, mut state) in kept {
        assert_eq!(state.advance_bytes(b"c", &mut |_, _| {}), 1);
        assert!(!state.may_end());
        assert_eq!(state.advance_bytes(&vec![b'b'; length + 5], &mut |_, _| {}), length);
        assert!(state.may_end() && state.must_end().unwrap());
    }
}

#[test]
fn any_text_is_refused_or_read_and_walked() {
    let vocab = vocab(&testing::demo());
    let mut random = Random(5);
    let parts = [
        "\"",
        "[",
        "]",
        "(",
        ")",
        "|",
        "*",
        "+",
        "?",
        "{",
        "}",
        ",",
        "2",
        "0",
        "^",
        "-",
        "\\",
        "x",
        "::=",
        "\n",
        "root",
        "a",
        "é",
        "<",
        ">",
        "!",
        "<[300]>",
        ".",
        "#",
        " ",
        "\\u00e9",
        "\r\n",
        "\0",
        "\\U0010FFFF",
        "[^",
        "{1,3}",
    ];
    let mut read = 0;
    for round in 0..3000 {
        let mut text = GRAMMARS[round % GRAMMARS.len()].to_owned();
        for _ in 0..1 + random.below(2) {
            let places: Vec<usize> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
            let mut range = [places[random.below(places.len())], places[random.below(places.len())]];
            range.sort_unstable();
            let end = if random.below(2) == 0 { range[0] } else { range[1].min(range[0] + random.below(6)) };
            let end = places.iter().copied().find(|&at| at >= end).unwrap_or(range[0]);
            text.replace_range(range[0]..end, parts[random.below(parts.len())]);
        }
        let Ok(rules) = Rules::parse(&text, "root") else { continue };
        let written = rules.to_gbnf();
        Rules::parse(&written, "root").unwrap_or_else(|error| panic!("{text}\n{written}: {error}"));
        let Ok(grammar) = Grammar::new(rules, &vocab, GrammarOptions::default()) else { continue };
        read += 1;
        let mut state = GrammarState::new(grammar);
        for _ in 0..12 {
            let mask = state.mask().unwrap().unwrap();
            let mut forced = Vec::new();
            state.forced_tokens(&[], &mut forced).unwrap();
            let mut ahead = state.clone();
            forced.iter().for_each(|&token| ahead.accept(token).unwrap());
            let token = match mask.few() {
                Some([]) => break,
                Some(few) => few[random.below(few.len())],
                None => random.below(vocab.n_tokens()) as i32,
            };
            assert_eq!(state.accept(token).is_ok(), mask.allows(token), "{text}: {token}");
        }
    }
    assert!(read > 200, "only {read} grammars were read");
}
