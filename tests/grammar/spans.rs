//! Spans: payloads, skeletons and the grammars that hosts make of them, on real vocabularies.

use crate::testing;
use elizainference::gguf::File;
use elizainference::grammar::spans::{self, MAX_SPANS, SpanEvent, SpanTracker};
use elizainference::grammar::{
    Grammar, GrammarOptions, GrammarState, JumpAhead, Rules, SpanKind, SpanPlan, SpanSampling, load,
};
use elizainference::vocab::Vocab;
use elizainference::{Error, Token};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn vocab(path: &Path) -> Arc<Vocab> {
    Arc::new(Vocab::from_gguf(&File::open(path).unwrap()).unwrap())
}

/// An SPM, a BPE and a gemma vocabulary, as far as they are at hand.
fn vocabularies() -> Vec<Arc<Vocab>> {
    let Some(shared) = testing::real_vocabularies::folder() else { return Vec::new() };
    let names = ["llama-spm", "qwen2", "gemma-4"].map(|name| format!("models/vocab/ggml-vocab-{name}.gguf"));
    names.iter().map(|name| vocab(&shared.join(name))).collect()
}

fn small() -> Option<Arc<Vocab>> {
    testing::stories260k().map(|path| vocab(&path))
}

fn source(json: &Value, vocab: &Arc<Vocab>) -> Arc<Grammar> {
    load(json.to_string().as_bytes(), vocab).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn refusal(json: &Value, vocab: &Arc<Vocab>) -> String {
    match load(json.to_string().as_bytes(), vocab) {
        Err(Error::InvalidArgument(problem)) => problem,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("taken: {json}"),
    }
}

fn plain(gbnf: &str, vocab: &Arc<Vocab>) -> Arc<Grammar> {
    Grammar::new(Rules::parse(gbnf, "root").unwrap(), vocab, GrammarOptions::default()).unwrap()
}

fn accepted(grammar: &Arc<Grammar>, text: &str) -> (usize, bool) {
    let mut state = GrammarState::new(grammar.clone());
    let count = state.advance_bytes(text.as_bytes(), &mut |_, _| {});
    (count, count == text.len() && state.may_end())
}

fn shape(plan: &SpanPlan) -> Vec<(SpanKind, Option<&str>)> {
    plan.spans().iter().map(|span| (span.kind, span.key.as_deref())).collect()
}

/// Skeletons with the grammars that the host makes of them.
fn skeletons() -> Vec<Value> {
    let Some(folder) = testing::shared() else {
        eprintln!("skipped: no folder with skeletons (ELIZA_SHARED)");
        return Vec::new();
    };
    let text = std::fs::read_to_string(folder.join("models/grammars/skeleton_cases.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["cases"].as_array().unwrap().iter().filter(|case| case["grammar"].is_string()).cloned().collect()
}

#[test]
fn a_skeleton_allows_what_its_grammar_allows() {
    let Some(vocab) = small() else { return };
    let mut texts = 0;
    for case in skeletons() {
        let gbnf = case["grammar"].as_str().unwrap();
        let native = source(&json!({"skeleton": case["skeleton"]}), &vocab);
        let (marked, plain) = (source(&json!({"gbnf": gbnf}), &vocab), plain(gbnf, &vocab));
        let name = &case["name"];
        for test in case["tests"].as_array().unwrap() {
            let text = test["text"].as_str().unwrap();
            let expected = (test["ok_bytes"].as_u64().unwrap() as usize, test["complete"].as_bool().unwrap());
            let verdicts = [&native, &marked, &plain].map(|grammar| accepted(grammar, text));
            assert_eq!(verdicts, [expected; 3], "{name}: {text}");
            let mut states = [&native, &marked, &plain].map(|grammar| GrammarState::new(grammar.clone()));
            for byte in &text.as_bytes()[..expected.0] {
                let masks: Vec<_> = states.iter_mut().map(|state| state.mask().unwrap().unwrap()).collect();
                assert!(masks.iter().all(|mask| mask.bits() == masks[0].bits()), "{name}: {text}");
                states.iter_mut().for_each(|state| assert_eq!(state.advance_bytes(&[*byte], &mut |_, _| {}), 1));
            }
            texts += 1;
        }
    }
    assert!(texts == 0 || texts > 20);
}

#[test]
fn a_grammar_of_a_skeleton_has_its_spans() {
    let Some(vocab) = small() else { return };
    for case in skeletons() {
        let native = source(&json!({"skeleton": case["skeleton"]}), &vocab);
        let overrides = json!({"overrides": case["overrides"], "strict": true});
        let marked = source(&json!({"gbnf": case["grammar"], "samplers": overrides}), &vocab);
        let (native, marked) = (native.spans().unwrap(), marked.spans().unwrap());
        let kinds = |plan: &SpanPlan| plan.spans().iter().map(|span| span.kind).collect::<Vec<_>>();
        assert_eq!(kinds(native), kinds(marked), "{}", case["name"]);
        for (a, b) in native.spans().iter().zip(marked.spans()) {
            assert!(a.kind == SpanKind::Literal || b.key.is_none() || a.key == b.key, "{a:?} {b:?}");
        }
        for one in case["overrides"].as_array().unwrap() {
            let span = one["span_index"].as_u64().unwrap() as u32;
            assert_eq!(marked.sampling(Some(span)).map(|at| marked.samplings()[at]), Some(SpanSampling::Greedy));
            // A token may hold the end of the literal before it.
            assert!(marked.sampling(Some(span - 1)).is_some());
        }
    }
}

/// The planner's strict grammar as elizaOS writes it, one rule for each action.
fn strict_planner(actions: &[&str]) -> String {
    let name = |action: &str| action.replace('_', "-");
    let branches: Vec<String> = actions.iter().map(|action| format!("callofaction-{}", name(action))).collect();
    let mut out = format!("root ::= {}\n", branches.join(" | "));
    out.push_str("jsonstring ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1F] | \"\\\\\" [\"\\\\/bfnrt] )* \"\\\"\"\n");
    for (action, branch) in actions.iter().zip(branches) {
        let params = format!("paramsofaction-{}", name(action));
        out.push_str(&format!(
            "{params}-p-unit ::= \"\\\"unit\\\":\" ( \"\\\"metric\\\"\" | \"\\\"imperial\\\"\" )\n\
             {params}-p-text ::= \"\\\"text\\\":\" jsonstring\n\
             {params} ::= \"{{\" {params}-p-unit \",\" {params}-p-text \"}}\"\n\
             {branch} ::= \"{{\\\"action\\\":\\\"{action}\\\"\" \",\\\"parameters\\\":\" {params} \
             \",\\\"thought\\\":\" jsonstring \"}}\"\n"
        ));
    }
    out
}

#[test]
fn the_strict_planner_is_a_choice_with_spans_after_it() {
    let Some(vocab) = small() else { return };
    let gbnf = strict_planner(&["REPLY", "REPLY_ALL", "SEND_MESSAGE"]);
    let (marked, plain) = (source(&json!({"gbnf": gbnf, "choice_sampling": "greedy"}), &vocab), plain(&gbnf, &vocab));
    let plan = marked.spans().unwrap();
    let expected = [
        (SpanKind::Literal, None),
        (SpanKind::Choice, Some("action")),
        (SpanKind::Literal, None),
        (SpanKind::Json, Some("parameters")),
        (SpanKind::Literal, None),
        (SpanKind::String, Some("thought")),
        (SpanKind::Literal, None),
    ];
    assert_eq!(shape(plan)[..7], expected);
    assert!(shape(plan)[7..].iter().all(|span| *span == (SpanKind::Choice, Some("unit"))));
    assert!(plan.sampling(Some(1)).is_some() && plan.sampling(Some(7)).is_some() && plan.sampling(Some(5)).is_none());
    let text = r#"{"action":"REPLY_ALL","parameters":{"unit":"metric","text":"a b"},"thought":"so"}"#;
    for end in 0..=text.len() {
        assert_eq!(accepted(&marked, &text[..end]), accepted(&plain, &text[..end]));
    }
    assert_eq!(accepted(&marked, text), (text.len(), true));
    assert_eq!(accepted(&marked, r#"{"action":"REPLY_NO"#), accepted(&plain, r#"{"action":"REPLY_NO"#));
}

#[test]
fn a_grammar_of_another_shape_stays_as_it_is() {
    let Some(vocab) = small() else { return };
    for gbnf in
        ["root ::= [a-z]+", "root ::= \"a\" ( \"b\" | \"c\" )*", "root ::= a | a\na ::= \"b\"", "root ::= \"a\"?"]
    {
        assert!(source(&json!({"gbnf": gbnf}), &vocab).spans().is_none(), "{gbnf}");
    }
    let strict = json!({"gbnf": "root ::= [a-z]+", "samplers": {"overrides": [], "strict": true}});
    assert!(refusal(&strict, &vocab).contains("no spans"));
}

/// A line with everything.
fn everything() -> Value {
    let integer = json!({"kind": "number", "key": "n", "integer": true});
    let text = |text: &str| json!({"kind": "literal", "text": text});
    json!({"spans": [
        text("{\"a\": "),
        {"kind": "choice", "key": "a",
         "values": ["\"x\"", {"value": "\"xy\"", "spans": [text(" ("), integer, text(")")]}]},
        text(""),
        {"kind": "repeat", "key": "list", "separator": ", ", "min": 1, "max": 3, "spans": [
            {"kind": "boolean", "key": "item"}]},
        {"kind": "string", "key": "s", "max_length": 4, "sampling": {"temperature": 0.5, "top_k": 3}},
        {"kind": "number", "key": "f"},
        {"kind": "json", "key": "j", "compact": true},
        {"kind": "free", "key": "t", "until": ["</t>", "<e>"]}
    ]})
}

#[test]
fn every_kind_of_span_matches_what_it_says() {
    let Some(vocab) = small() else { return };
    let grammar = source(&everything(), &vocab);
    for text in [
        r#"{"a": "x"true"é\n\u00e9\""-0.5e3[1,{"k":null}]free < text</t>"#,
        r#"{"a": "xy" (-12)false, true, false""0"s"</</t>"#,
        "{\"a\": \"x\"true\"\\ud83d\\ude00\"10{}\u{65e5}<<e>",
    ] {
        assert_eq!(accepted(&grammar, text), (text.len(), true), "{text}");
    }
    for (text, count) in [
        (r#"{"a": "xy"true"#, 10),
        (r#"{"a": "x"true,true"#, 14),
        (r#"{"a": "x"true, true, true, "#, 25),
        (r#"{"a": "x"true"12345"#, 18),
        ("{\"a\": \"x\"true\"\n\"", 14),
        (r#"{"a": "x"true"\ud800""#, 20),
        (r#"{"a": "x"true""-x"#, 16),
        (r#"{"a": "x"true""1[1, 2]"#, 19),
        (r#"{"a": "x"true""1[]ab</t>c"#, 24),
    ] {
        let (got, complete) = accepted(&grammar, text);
        assert!(got == count && !complete, "{text}: {got}, {complete}");
    }
    let plan = grammar.spans().unwrap();
    let sampling = |span: u32| plan.sampling(Some(span)).map(|at| plan.samplings()[at]);
    // Numbered as they are written, those of a value after their choice.
    assert_eq!((plan.spans()[6].kind, plan.spans()[7].parent), (SpanKind::Repeat, Some(6)));
    assert_eq!([sampling(0), sampling(1)], [Some(SpanSampling::Greedy); 2]);
    let told = SpanSampling::Chain { temperature: Some(0.5), top_k: Some(3), top_p: None };
    assert_eq!((sampling(8), sampling(9), sampling(4)), (Some(told), None, None));
}

#[test]
fn free_text_and_words_surround_a_structure() {
    let Some(vocab) = small() else { return };
    let line = json!([{"kind": "literal", "text": "[1]"}]);
    let grammar = source(&json!({"spans": line, "after": ["</think>", "</thought>"], "then": "free"}), &vocab);
    assert!(grammar.is_lazy());
    let mut state = GrammarState::new(grammar);
    for (text, in_force, ends) in [("I think", false, true), ("</thought>", true, false), ("[1]", true, true)] {
        assert_eq!(state.advance_bytes(text.as_bytes(), &mut |_, _| {}), text.len());
        assert_eq!((state.in_force(), state.may_end()), (in_force, ends), "{text}");
    }
    assert_eq!(state.advance_bytes("\nand more".as_bytes(), &mut |_, _| {}), 9);
}

#[test]
fn refusals_name_the_place() {
    let Some(vocab) = small() else { return };
    let spans = |span: Value| json!({"spans": [{"kind": "boolean"}, span]});
    let too_deep = (0..20)
        .fold(json!({"kind": "boolean"}), |inner, _| json!({"kind": "repeat", "separator": ",", "spans": [inner]}));
    for (json, problem) in [
        (json!({"spans": []}), "Spans: payload: there are no spans"),
        (json!({"spans": 1}), "spans: 1, must be a list"),
        (spans(json!(7)), "spans[1]: 7, must be a span"),
        (spans(json!({})), "spans[1]: `kind` is missing"),
        (spans(json!({"kind": "enum"})), "spans[1]: kind \"enum\": "),
        (spans(json!({"kind": "literal"})), "spans[1]: `text` is missing"),
        (spans(json!({"kind": "literal", "text": 1})), "spans[1].text: 1, must be a text"),
        (spans(json!({"kind": "choice", "values": []})), "spans[1].values: there are no values"),
        (
            spans(json!({"kind": "choice", "values": ["a", {"value": "b", "spans": [{"kind": "x"}]}]})),
            "spans[1].values[1].spans[0]: kind \"x\"",
        ),
        (spans(json!({"kind": "repeat", "spans": [{"kind": "literal", "text": ""}]})), "spans[1]: the repeated"),
        (spans(json!({"kind": "repeat", "spans": [], "separator": ",", "min": 3, "max": 2})), "spans[1]: `max`"),
        (spans(json!({"kind": "repeat", "spans": [], "separator": ",", "max": 2001})), "spans[1].max: 2001, must be"),
        (spans(json!({"kind": "number", "min": 1})), "spans[1]: `min` and `max` are for integers"),
        (spans(json!({"kind": "number", "integer": true, "min": 2, "max": 1})), "spans[1]: `max` is 1"),
        (spans(json!({"kind": "free", "until": [""]})), "spans[1]: `until` has an empty text"),
        (spans(json!({"kind": "free", "until": [99_999_999]})), "spans[1].until[0]: token 99999999"),
        (spans(json!({"kind": "boolean", "sampling": "cold"})), "spans[1].sampling: \"cold\", must be"),
        (spans(json!({"kind": "boolean", "sampling": {"top_p": 0}})), "spans[1].sampling.top_p: 0, must be"),
        (json!({"spans": [{"kind": "free"}, {"kind": "boolean"}]}), "span 0: free text without `until`"),
        (json!({"spans": [too_deep]}), "more than 16 deep"),
        (json!({"skeleton": {"spans": [{"kind": "word"}]}}), "skeleton.spans[0]: kind \"word\""),
        (
            json!({"skeleton": {"spans": [{"kind": "free-json", "rule": "b"}], "rules": "a ::= \"x\""}}),
            "skeleton.spans[0]: there is no rule \"b\"",
        ),
        (
            json!({"skeleton": {"spans": [{"kind": "boolean"}]}, "samplers": {"overrides": [{"spanIndex": 1}]}}),
            "samplers.overrides[0]: there is no span 1",
        ),
    ] {
        let got = refusal(&json, &vocab);
        assert!(got.contains(problem), "{got}\n  instead of {problem}");
    }
}

#[test]
fn large_payloads_are_refused_or_bounded() {
    let Some(vocab) = small() else { return };
    let began = Instant::now();
    let many = json!({"spans": vec![json!({"kind": "literal", "text": "a"}); 100_000]});
    assert!(refusal(&many, &vocab).contains(&format!("more than {MAX_SPANS} spans")));
    let skeleton = json!({"skeleton": {"spans": vec![json!({"kind": "free-json"}); 100_000]}});
    assert!(refusal(&skeleton, &vocab).contains("spans in all"));
    let long = json!({"spans": [{"kind": "literal", "text": "ab".repeat(1 << 19)}]});
    assert_eq!(accepted(&source(&long, &vocab), "abab"), (4, false));
    let longer = json!({"spans": [{"kind": "literal", "text": "ab".repeat(1 << 21)}]});
    assert!(refusal(&longer, &vocab).contains("bytes of text in all"));
    let values: Vec<String> = (0..10_000).map(|i| format!("VALUE_{i}")).collect();
    let choice = source(&json!({"spans": [{"kind": "choice", "values": values}]}), &vocab);
    assert_eq!((accepted(&choice, "VALUE_9999"), accepted(&choice, "VALUE_A")), ((10, true), (6, false)));
    eprintln!("large payloads: {:?}", began.elapsed());
}

/// A number for a token after others, the same in every run.
fn score(tokens: &[Token], token: Token) -> u64 {
    let mix = |hash: u64, one: u64| (hash ^ one).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    tokens.iter().rev().take(4).chain([&token]).fold(tokens.len() as u64 + 1, |hash, &one| mix(hash, one as u64 + 1))
}

/// What was decoded greedily by [`score`].
#[derive(Default)]
struct Decoded {
    /// Its tokens after the first, which only makes it different from others.
    tokens: Vec<Token>,
    forced: usize,
    text: Vec<u8>,
    events: Vec<SpanEvent>,
}

fn decode(grammar: &Arc<Grammar>, vocab: &Vocab, seed: Token, most: usize) -> Decoded {
    let mut state = GrammarState::new(grammar.clone());
    let (mut tracker, mut next) = (SpanTracker::default(), Vec::new());
    let mut out = Decoded { tokens: vec![seed], ..Decoded::default() };
    let none = SpanPlan::default();
    let plan = grammar.spans().map_or(&none, |plan| plan);
    while out.tokens.len() < most {
        next.clear();
        state.forced_tokens(&out.tokens[1..], &mut next).unwrap();
        out.forced += next.len();
        if next.is_empty() {
            let mask = state.mask().unwrap().unwrap();
            let legal = (0..vocab.n_tokens() as Token).filter(|&token| mask.allows(token));
            // An end is taken where there is one, so that texts are short.
            let best = legal.max_by_key(|&token| (vocab.is_eog(token), score(&out.tokens, token))).unwrap();
            if vocab.is_eog(best) {
                break;
            }
            next.push(best);
        }
        for &token in &next {
            let (mut before, mut piece) = (state.clone(), Vec::new());
            vocab.piece(token, true, &mut piece);
            tracker.token(plan, &mut before, &piece);
            state
                .accept(token)
                .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&out.text)));
            out.text.extend_from_slice(&piece);
            out.tokens.push(token);
        }
    }
    tracker.finish(plan);
    out.events = tracker.events().to_vec();
    out
}

/// Lines whose spans meet in awkward places.
fn seams() -> Vec<Value> {
    let string = json!({"kind": "string", "key": "s", "max_length": 12});
    let text = |text: &str| json!({"kind": "literal", "text": text});
    vec![
        json!([text("say: "), {"kind": "choice", "values": ["north", "south", " east"]}, text("!")]),
        json!([text("日本語é"), {"kind": "choice", "values": ["é", "è", "日", "曜"]}, text("ü")]),
        json!([text("{\"a\":"), {"kind": "choice", "values": ["\"REPLY\"", "\"REPLY_ALL\""]}, text(",\"b\":"), string,
               text("}")]),
        json!([text("["), {"kind": "choice", "values": ["\"say \\\"hi\\\"\"", "\"a\"b\"", "x"]}, text("]")]),
        json!([text(""), {"kind": "boolean"}, text(""), text(""), {"kind": "boolean"}]),
        json!([string, {"kind": "number", "integer": true}, string, {"kind": "boolean"}]),
        json!([text("all of it is fixed: "), text("日"), text(" end")]),
        json!([{"kind": "repeat", "min": 2, "max": 4, "separator": ", ", "spans": [
            text("<"), {"kind": "choice", "key": "c", "values": ["a", "aa", "ab "]}, text(">")]}, text("\n")]),
    ]
}

#[test]
fn spans_meet_rightly_in_every_kind_of_vocabulary() {
    for vocab in vocabularies() {
        for spans in seams() {
            let grammar = source(&json!({"spans": spans}), &vocab);
            for seed in 0..3 {
                let out = decode(&grammar, &vocab, seed, 200);
                let text = String::from_utf8(out.text.clone()).unwrap();
                assert_eq!(accepted(&grammar, &text), (text.len(), true), "{text}");
                check_events(&grammar, &out, &text);
            }
        }
    }
}

/// Events cover the text without gaps, those inside of others within them.
fn check_events(grammar: &Arc<Grammar>, out: &Decoded, text: &str) {
    let plan = grammar.spans().unwrap();
    let mut at = 0;
    for event in out.events.iter().filter(|event| event.parent.is_none()) {
        assert_eq!(event.begin, at, "{text}: {:?}", out.events);
        at = event.end.unwrap();
        let part = &out.text[event.begin..at];
        if plan.spans()[event.span as usize].kind == SpanKind::Boolean {
            assert!(part == b"true" || part == b"false", "{text}: {:?}", out.events);
        }
    }
    assert_eq!(at, text.len(), "{text}: {:?}", out.events);
    for event in out.events.iter().filter(|event| event.parent.is_some()) {
        let parent = out.events[event.parent.unwrap() as usize];
        assert!(parent.begin <= event.begin && event.end.unwrap() <= parent.end.unwrap());
        assert_eq!(plan.spans()[event.span as usize].parent, Some(parent.span));
    }
}

#[test]
fn jumping_ahead_by_tokens_gives_the_tokens_of_the_grammar_alone() {
    let skeletons = skeletons();
    for vocab in vocabularies() {
        let mut sources: Vec<Value> = seams().into_iter().map(|spans| json!({"spans": spans})).collect();
        sources.extend(skeletons.iter().map(|case| json!({"skeleton": case["skeleton"]})));
        for mut json in sources {
            let [off, tokens] = ["off", "tokens"].map(|jump| {
                json["jump_ahead"] = jump.into();
                decode(&source(&json, &vocab), &vocab, 1, 60)
            });
            let same = off.tokens.len().min(60).min(tokens.tokens.len());
            assert_eq!(off.tokens[..same], tokens.tokens[..same], "{json}");
            assert_eq!((off.forced, off.events.first()), (0, tokens.events.first()));
        }
    }
}

#[test]
fn literals_are_forced_in_a_run() {
    for vocab in vocabularies() {
        let json = json!({"spans": [
            {"kind": "literal", "text": "{\"thought\":\"nothing to be said of it\",\"action\":"},
            {"kind": "choice", "values": ["\"A\"", "\"B\""]}]});
        let grammar = source(&json, &vocab);
        assert_eq!(grammar.jump_ahead(), JumpAhead::Bytes);
        let out = decode(&grammar, &vocab, 1, 100);
        assert!(out.forced + 4 >= out.tokens.len() - 1, "{} of {}", out.forced, out.tokens.len() - 1);
    }
}

#[test]
fn a_span_keeps_its_mark_through_shared_rules() {
    let Some(vocab) = small() else { return };
    let gbnf = "root ::= \"{\\\"a\\\":\" value \",\\\"b\\\":\" value \"}\"\nvalue ::= \"[\" value* \"]\" | [0-9]+";
    let lowered = spans::recognise(gbnf, "root", b"{}").unwrap().unwrap();
    let options = GrammarOptions { spans: Some(Arc::new(lowered.plan.clone())), ..GrammarOptions::default() };
    let grammar = Grammar::new(lowered.rules().unwrap(), &vocab, options).unwrap();
    let (mut state, mut tracker) = (GrammarState::new(grammar.clone()), SpanTracker::default());
    let text = "{\"a\":[12[]],\"b\":3}";
    tracker.token(grammar.spans().unwrap(), &mut state, text.as_bytes());
    tracker.finish(grammar.spans().unwrap());
    let parts: Vec<_> = tracker.events().iter().map(|one| (one.span, &text[one.begin..one.end.unwrap()])).collect();
    assert_eq!(parts, [(0, "{\"a\":"), (1, "[12[]]"), (2, ",\"b\":"), (3, "3"), (4, "}")]);
}
