//! JSON schemas as grammars: llama.cpp's verdicts, our own schemas, limits.

use crate::naive::{Naive, Verdict};
use crate::testing::{schemas, shared};
use elizainference::Error;
use elizainference::grammar::schema::{Keywords, Options, to_gbnf};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const LLAMA: Options = Options { compact: false, keywords: Keywords::LlamaCpp };

fn exact(schema: &Value) -> Naive {
    Naive::parse(&to_gbnf(&schema.to_string(), Options::default()).unwrap())
}

fn refusal(schema: &Value) -> String {
    to_gbnf(&schema.to_string(), Options::default()).unwrap_err().to_string()
}

/// Cases whose verdicts are others with [`Keywords::Exact`], which keeps what llama.cpp ignores, or takes more.
const STRICTER: &[&str] = &[
    "number bounds are ignored",
    "date",
    "unknown format is a plain string",
    "pattern",
    "pattern unanchored is any string",
    "boolean schema",
    "not, if, unique are ignored",
];

#[test]
fn verdicts_are_those_of_llama_cpp() {
    let Some(path) = shared().map(|dir| dir.join("models/grammars/schema_cases.json")).filter(|path| path.is_file())
    else {
        return eprintln!("skipped: the schema cases are not on this machine (set ELIZA_SHARED)");
    };
    let text = std::fs::read_to_string(path).unwrap();
    // The order of properties counts, so schemas are taken as text.
    #[derive(serde::Deserialize)]
    struct Case<'t> {
        name: String,
        #[serde(borrow)]
        schema: &'t serde_json::value::RawValue,
        error: Option<String>,
        #[serde(default)]
        tests: Vec<Value>,
    }
    #[derive(serde::Deserialize)]
    struct Cases<'t> {
        #[serde(borrow)]
        cases: Vec<Case<'t>>,
    }
    let cases: Cases = serde_json::from_str(&text).unwrap();
    let mut compared = 0;
    for case in &cases.cases {
        let modes = [LLAMA, Options::default()];
        for options in modes.into_iter().filter(|o| *o == LLAMA || !STRICTER.contains(&case.name.as_str())) {
            let gbnf = to_gbnf(case.schema.get(), options);
            if case.error.is_some() {
                assert!(gbnf.is_err(), "{}: {options:?}", case.name);
                continue;
            }
            let gbnf = gbnf.unwrap_or_else(|error| panic!("{}: {options:?}: {error}", case.name));
            let naive = Naive::parse(&gbnf);
            for test in &case.tests {
                let text = test["text"].as_str().unwrap();
                let wanted = Verdict {
                    bytes: test["ok_bytes"].as_u64().unwrap() as usize,
                    complete: test["complete"].as_bool().unwrap(),
                };
                assert_eq!(naive.check(text), wanted, "{}: {options:?}: {text}\n{gbnf}", case.name);
                compared += 1;
            }
        }
    }
    assert!(compared > 400, "{compared}");
}

#[test]
fn keywords_that_llama_cpp_ignores_are_kept_or_refused() {
    let number = exact(&json!({"type": "number", "minimum": 5}));
    assert!(number.matches("5") && number.matches("5.25") && number.matches("123.5"));
    assert!(!number.matches("4") && !number.matches("4.9") && !number.matches("-6"));
    let email = exact(&json!({"type": "string", "format": "email"}));
    assert!(email.matches("\"a.b@example.org\"") && !email.matches("\"not an email\""));
    let uri = exact(&json!({"type": "string", "format": "uri"}));
    for text in ["https://example.com:18080/a%20b?q=1/2&r=?#x", "mailto:a.b@example.org", "urn:isbn:0-486-27557-4"] {
        assert!(uri.matches(&format!("\"{text}\"")), "{text}");
    }
    for text in ["example.com", "https://example.com/%2", "https://example.com/ü", "https://:80/"] {
        assert!(!uri.matches(&format!("\"{text}\"")), "{text}");
    }
    let address = exact(&json!({"type": "string", "format": "ipv6"}));
    for text in ["::", "::1", "1:2:3:4:5:6:7:8", "::ffff:192.0.2.1", "64:ff9b::192.0.2.33", "1:2:3:4:5:6:192.0.2.1"] {
        assert!(address.matches(&format!("\"{text}\"")), "{text}");
    }
    for text in ["", ":", "1:2:3:4:5:6:7:192.0.2.1", "::1::2", "1:2:3:4:5:6::192.0.2.1", "::256.0.0.1"] {
        assert!(!address.matches(&format!("\"{text}\"")), "{text}");
    }
    let time = exact(&json!({"type": "string", "format": "date-time"}));
    assert!(time.matches("\"2024-05-01T12:00:00.123456Z\"") && time.matches("\"2024-05-01T12:00:00.5+02:00\""));
    assert!(!time.matches("\"2024-05-01T12:00:00.Z\"") && !time.matches("\"2024-05-01 12:00:00Z\""));
    let number = exact(&json!({"type": "number"}));
    assert!(number.matches("1e-05") && number.matches("1.5E+10") && !number.matches("1e400"));
    let date = exact(&json!({"type": "string", "format": "date"}));
    assert!(date.matches("\"2024-02-29\"") && !date.matches("\"2023-02-29\"") && !date.matches("\"2026-02-31\""));
    let digit = exact(&json!({"type": "string", "pattern": "^[a-z]{2,3}-\\d$"}));
    assert!(digit.matches("\"ab-1\"") && !digit.matches("\"anything\""));
    let inside = exact(&json!({"type": "string", "pattern": "abc"}));
    assert!(inside.matches("\"abc\"") && inside.matches("\"xabcé\"") && !inside.matches("\"zzz\""));
    assert!(exact(&json!({"type": "array", "items": true})).matches("[1,\"a\"]"));
    let problem = refusal(&json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}));
    assert!(problem.contains("#/uniqueItems"), "{problem}");
}

#[test]
fn what_no_grammar_keeps_is_refused_by_name_and_place() {
    let inner = |keyword: &str, value: Value| json!({"properties": {"a": {keyword: value}}});
    for (keyword, value) in [
        ("not", json!({"const": 1})),
        ("multipleOf", json!(1009)),
        ("contains", json!({"type": "string"})),
        ("dependentRequired", json!({"a": ["b"]})),
        ("dependencies", json!({"a": ["b"]})),
        ("oneOf", json!([{"type": "integer"}, {"type": "number"}])),
        ("pattern", json!("^(?=a)b$")),
        ("minProperties", json!(3)),
        ("unevaluatedProperties", json!(false)),
    ] {
        let schema = inner(keyword, value);
        // Of what only counts for one kind, that kind is asked for.
        let mut typed = schema.clone();
        if keyword == "unevaluatedProperties" {
            typed["properties"]["a"]["type"] = json!("object");
        }
        let problem = refusal(&typed);
        assert!(problem.contains(&format!("#/properties/a/{keyword}")), "{keyword}: {problem}");
        let lenient = Options { keywords: Keywords::Lenient, ..Options::default() };
        let gbnf = to_gbnf(&typed.to_string(), lenient).unwrap_or_else(|error| panic!("{keyword}: {error}"));
        Naive::parse(&gbnf);
    }
}

/// Against all lists of up to four of the values.
#[test]
fn distinct_items_of_a_few_values_come_once_each() {
    let texts = ["\"a\"", "\"b\"", "1", "[null]"];
    let values = json!(["a", "b", 1, [null], 1.0]);
    for (min, max) in [(0, None), (0, Some(2)), (2, Some(3)), (3, None), (4, Some(9))] {
        let mut schema = json!({"type": "array", "items": {"enum": values}, "uniqueItems": true, "minItems": min});
        schema["maxItems"] = json!(max.unwrap_or(4));
        if max.is_none() {
            schema.as_object_mut().unwrap().remove("maxItems");
        }
        let naive = exact(&schema);
        for number in 0..5usize.pow(5) {
            // Digits in base 5, where 4 is the end.
            let list: Vec<usize> = (0..5).map(|place| number / 5usize.pow(place) % 5).take_while(|&d| d < 4).collect();
            let text = format!("[{}]", list.iter().map(|&i| texts[i]).collect::<Vec<_>>().join(","));
            let differ = (0..list.len()).all(|i| !list[..i].contains(&list[i]));
            let expected = differ && (min..=max.unwrap_or(4)).contains(&list.len());
            assert_eq!(naive.matches(&text), expected, "{schema}: {text}");
        }
    }
    let list = |n: usize| (0..n).collect::<Vec<_>>();
    let unique = |values: &[usize]| json!({"items": {"enum": values}, "uniqueItems": true});
    assert!(exact(&unique(&list(10))).matches("[9,0,8,1,7,2,6,3,5,4]"));
    assert!(refusal(&unique(&list(11))).contains("#/uniqueItems"));
    let mut few = unique(&list(40));
    few["maxItems"] = json!(2);
    assert!(exact(&few).matches("[39,0]") && !exact(&few).matches("[39,39]") && !exact(&few).matches("[1,2,3]"));
    let nested = json!({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "uniqueItems": true}}, "$ref": "#/$defs/a"});
    assert!(refusal(&nested).contains("uniqueItems"));
    let impossible = json!({"items": {"enum": [1, 2]}, "uniqueItems": true, "minItems": 3});
    assert!(refusal(&impossible).contains("no value"));
}

#[test]
fn what_is_never_so_leaves_the_rest() {
    let never = json!({"not": {}});
    let object = exact(&json!({"properties": {"a": {"type": "integer"}, "b": never}, "additionalProperties": never}));
    assert!(object.matches("{\"a\":1}") && object.matches("{}"));
    assert!(!object.matches("{\"b\":1}") && !object.matches("{\"c\":1}"));
    let choice = exact(&json!({"anyOf": [{"not": true}, {"type": "null", "not": false}]}));
    assert!(choice.matches("null") && !choice.matches("1"));
    assert!(refusal(&json!({"properties": {"b": never}, "required": ["b"]})).contains("no value"));
}

#[test]
fn schemas_that_hold_together_are_kept_together() {
    let union = exact(&json!({
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}},
        "required": ["kind"],
        "anyOf": [{"properties": {"kind": {"const": "a"}}, "required": ["n"]}, {"properties": {"kind": {"const": "b"}}}]
    }));
    assert!(union.matches(r#"{"kind":"a","n":1}"#) && union.matches(r#"{"kind":"b"}"#));
    assert!(!union.matches(r#"{"kind":"a"}"#) && !union.matches(r#"{"kind":"c"}"#));
    let both = exact(&json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}));
    assert!(both.matches("3") && both.matches("5") && !both.matches("2") && !both.matches("6"));
    let referred = exact(&json!({"$ref": "#/$defs/a~1b", "maxLength": 2, "$defs": {"a/b": {"type": "string"}}}));
    assert!(referred.matches("\"ab\"") && !referred.matches("\"abc\""));
    let tree = exact(&json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["a", "next"]
    }));
    assert!(tree.matches(r#"{"a":1,"next":{"a":2,"next":null}}"#));
}

#[test]
fn a_surrogate_pair_is_one_character_and_halves_are_none() {
    let two = exact(&json!({"type": "string", "minLength": 2}));
    assert!(!two.matches(r#""\ud83d\ude00""#) && two.matches(r#""\ud83d\ude00a""#) && !two.matches(r#""a\ud83d""#));
}

#[test]
fn numbers_keep_their_bounds_exactly() {
    let cases: &[(Value, &[&str], &[&str])] = &[
        (
            json!({"minimum": 0.5, "maximum": 2.25}),
            &["0.5", "0.51", "0.500", "1", "1.999", "2", "2.0", "2.25", "2.250", "2.2"],
            &["0.49", "0", "2.26", "2.251", "3", "-1", "10"],
        ),
        (
            json!({"exclusiveMinimum": 0, "maximum": 1}),
            &["0.001", "1", "1.0", "0.9"],
            &["0", "0.0", "1.1", "-0.1", "-0"],
        ),
        (json!({"minimum": -1.5, "exclusiveMaximum": 0}), &["-1.5", "-0.1", "-1"], &["0", "-1.51", "-2", "-0", "-0.0"]),
        (json!({"minimum": -2, "maximum": 3}), &["-2", "-1.9", "0", "3.0", "-0.0"], &["-2.1", "3.01", "4"]),
        (
            json!({"exclusiveMinimum": 1.25, "exclusiveMaximum": 1.3}),
            &["1.26", "1.299", "1.2501"],
            &["1.25", "1.3", "1.2", "1"],
        ),
        (json!({"minimum": 1e3}), &["1000", "1000.5", "99999"], &["999.9", "1"]),
    ];
    for (bounds, inside, outside) in cases {
        let mut schema = bounds.clone();
        schema["type"] = json!("number");
        let naive = exact(&schema);
        for text in *inside {
            assert!(naive.matches(text), "{schema}: {text}");
        }
        for text in *outside {
            assert!(!naive.matches(text), "{schema}: {text}");
        }
    }
}

/// Against arithmetic with integers, in thousandths.
#[test]
fn multiples_are_all_and_only_those_within_bounds() {
    let all = -1 << 30..=1 << 30;
    let cases = [
        (json!({"type": "number", "multipleOf": 0.01}), 2, 10, all.clone()),
        (json!({"type": "number", "multipleOf": 0.25, "minimum": -1.1, "maximum": 2.3}), 2, 250, -1100..=2300),
        (json!({"multipleOf": 1.5}), 1, 1500, all.clone()),
        (json!({"multipleOf": 0.007, "exclusiveMinimum": 0, "exclusiveMaximum": 2.1}), 3, 7, 1..=2099),
        (json!({"multipleOf": 0.07, "exclusiveMinimum": -2.1, "maximum": -0.35}), 2, 70, -2099..=-350),
        (json!({"multipleOf": 0.5, "type": "integer"}), 0, 1000, all.clone()),
        (json!({"allOf": [{"multipleOf": 0.2}, {"multipleOf": 0.3}]}), 1, 600, all.clone()),
        (json!({"multipleOf": 2.0, "minimum": 1}), 0, 2000, 1000..=1 << 30),
        (json!({"multipleOf": 1}), 0, 1000, all.clone()),
    ];
    for (schema, places, step, range) in cases {
        let naive = exact(&schema);
        for n in -3100i64..=3100 {
            let sign = if n < 0 { "-" } else { "" };
            let mut text = format!("{sign}{}.{:03}", n.abs() / 1000, n.abs() % 1000);
            loop {
                let after = text.split_once('.').map_or(0, |(_, after)| after.len());
                let expected = n % step == 0 && range.contains(&n) && after <= places;
                assert_eq!(naive.matches(&text), expected, "{schema}: {text}");
                match text.pop() {
                    Some('0') if text.contains('.') => text = text.trim_end_matches('.').into(),
                    _ => break,
                }
            }
        }
        for text in ["", "-", "-0.0", "00", "1.", ".5", "1e3", "+1"] {
            assert!(!naive.matches(text), "{schema}: {text}");
        }
    }
}

#[test]
fn multiples_of_integers_are_all_and_only_those_within_bounds() {
    for (of, min, max) in
        [(7, -100, 1000), (60, -1300, 1300), (365, 300, 1300), (3, -7, 7), (97, -1, 99), (1000, 1, 999)]
    {
        let schema = json!({"type": "integer", "multipleOf": of, "minimum": min, "maximum": max});
        if (min..=max).all(|n| n % of != 0) {
            assert!(refusal(&schema).contains("no value"));
            continue;
        }
        let naive = exact(&schema);
        for n in -1400..=1400 {
            assert_eq!(naive.matches(&n.to_string()), n % of == 0 && (min..=max).contains(&n), "{schema}: {n}");
        }
    }
    let long = exact(&json!({"type": "integer", "multipleOf": 12}));
    for n in [9_999_999_999_999_996i64, -123_456_789_012, 100_000_000_000_000, 999_999_999_999_999] {
        assert_eq!(long.matches(&n.to_string()), n % 12 == 0, "{n}");
    }
    assert!(exact(&json!({"multipleOf": 1e15})).matches("3000000000000000"));
    let chosen = exact(&json!({"enum": [1, 3, 4, 0.5, "a"], "multipleOf": 2}));
    assert!(chosen.matches("4") && chosen.matches("\"a\""));
    assert!(!chosen.matches("3") && !chosen.matches("0.5"));
    for wrong in [json!(0), json!(-1), json!("2")] {
        let problem = refusal(&json!({"multipleOf": wrong}));
        assert!(problem.contains("multipleOf must be a number above 0"), "{problem}");
    }
    for large in [json!(1009), json!(1e-16), json!(1e30)] {
        assert!(refusal(&json!({"multipleOf": large})).contains("#/multipleOf"));
    }
}

#[test]
fn integers_keep_their_bounds_exactly() {
    let bounds = [-1000i64, -999, -100, -10, -9, -1, 0, 1, 9, 10, 11, 99, 100, 101, 250, 999, 1000];
    for (i, &min) in bounds.iter().enumerate() {
        for &max in &bounds[i..] {
            let naive = exact(&json!({"type": "integer", "minimum": min, "maximum": max}));
            for value in (-1012..=1012).step_by(7).chain(bounds).chain(bounds.map(|b| b + 1)) {
                let wanted = (min..=max).contains(&value);
                assert_eq!(naive.matches(&value.to_string()), wanted, "{min}..{max}: {value}");
            }
        }
    }
}

#[test]
fn compact_text_has_no_white_space() {
    let options = Options { compact: true, ..Options::default() };
    let schema = json!({"properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]});
    let naive = Naive::parse(&to_gbnf(&schema.to_string(), options).unwrap());
    assert!(naive.matches(r#"{"a":[1,2]}"#));
    for text in [r#"{ "a":[1,2]}"#, r#"{"a": [1,2]}"#, r#"{"a":[1, 2]}"#, "{\"a\":[1,2]\n}"] {
        assert!(!naive.matches(text), "{text}");
    }
}

#[test]
fn many_values_share_their_beginnings() {
    let names: Vec<String> = (0..300).map(|i| format!("ACTION_{i}")).chain(["ACTION".into(), "é\"\\".into()]).collect();
    let naive = exact(&json!({"enum": names}));
    for name in &names {
        assert!(naive.matches(&json!(name).to_string()), "{name}");
    }
    assert!(!naive.matches("\"ACTION_300\"") && !naive.matches("\"ACTION_\"") && !naive.matches("\"\""));
}

#[test]
fn hostile_schemas_are_refused_or_small() {
    let nested = |open: &str, close: &str, n: usize| open.repeat(n) + "true" + &close.repeat(n);
    let values: Vec<String> = (0..1_000_000).map(|i| format!("v{i}")).collect();
    let product: Vec<Value> = (0..12)
        .map(|i| json!({"anyOf": (0..10).map(|k| json!({"maxLength": 100 * i + k})).collect::<Vec<_>>()}))
        .collect();
    let texts = [
        nested("{\"not\":", "}", 10_000),
        nested("{\"items\":", "}", 10_000),
        nested("{\"items\":", "}", 100),
        "[".repeat(100_000),
        json!({"$ref": "#"}).to_string(),
        json!({"anyOf": [{"$ref": "#"}]}).to_string(),
        json!({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"allOf": [{"$ref": "#/a"}]}}).to_string(),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}).to_string(),
        json!({"enum": values}).to_string(),
        json!({"anyOf": values.iter().take(100_000).map(|v| json!({"const": v})).collect::<Vec<_>>()}).to_string(),
        json!({"type": "string", "minLength": 1_000_000_000}).to_string(),
        json!({"type": "string", "maxLength": 1_000_000_000}).to_string(),
        json!({"type": "string", "minLength": 500, "maxLength": 999_999}).to_string(),
        json!({"type": "string", "pattern": "^(a{0,1000000000}){1000000000}$"}).to_string(),
        json!({"allOf": product}).to_string(),
        json!({"oneOf": values.iter().take(2000).map(|v| json!({"const": v})).collect::<Vec<_>>()}).to_string(),
        json!({"properties": {"a".repeat(1_000_000): {}}, "additionalProperties": true}).to_string(),
    ];
    for text in &texts {
        for keywords in [Keywords::Exact, Keywords::Lenient, Keywords::LlamaCpp] {
            let start = Instant::now();
            let result = to_gbnf(text, Options { compact: false, keywords });
            let took = start.elapsed();
            let shown: String = text.chars().take(60).collect();
            eprintln!("{shown}: {keywords:?}: {took:?}: {:?}", result.as_ref().map(String::len));
            assert!(took < Duration::from_secs(if cfg!(debug_assertions) { 8 } else { 1 }), "{shown}: {took:?}");
            if let Err(error) = result {
                assert!(matches!(error, Error::InvalidArgument(_) | Error::Unsupported(_)), "{shown}: {error}");
            }
        }
    }
}

#[test]
fn one_of_several_that_are_choices_themselves() {
    let nested = |inner: &str, last: u32| {
        let choice = json!({inner: [{"const": 1}, {"const": 2}]});
        json!({"oneOf": [choice, {"const": last}, {"type": "string"}]})
    };
    for inner in ["oneOf", "anyOf"] {
        let one = exact(&nested(inner, 3));
        assert!(one.matches("1") && one.matches("2") && one.matches("3") && one.matches("\"x\"") && !one.matches("4"));
        assert!(refusal(&nested(inner, 2)).contains("alternatives 0 and 1 may both match"));
    }
    // More than a million pairs of alternatives are not looked at: what is beyond counts as alike.
    let many = |count: usize| {
        let leaf: Vec<Value> = (0..1000).map(|i| json!({"const": i})).collect();
        let choice = json!({"anyOf": vec![json!({"$ref": "#/$defs/leaf"}); count]});
        json!({"oneOf": [choice, {"const": 5000}], "$defs": {"leaf": {"anyOf": leaf}}})
    };
    assert!(to_gbnf(&many(20).to_string(), Options::default()).is_ok());
    assert!(refusal(&many(1200)).contains("alternatives 0 and 1 may both match"));
}

#[test]
fn lists_and_maps_of_thousands() {
    for most in [999, 1000, 1001, 1999, 2000, 5000, 20_000] {
        for schema in [
            json!({"type": "array", "items": {"type": "integer"}, "maxItems": most}),
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": most}),
        ] {
            let gbnf = to_gbnf(&schema.to_string(), Options::default()).unwrap();
            elizainference::grammar::Rules::parse(&gbnf, "root").unwrap_or_else(|error| panic!("{schema}: {error}"));
        }
    }
}

#[test]
fn a_hundred_schemas_take_their_texts() {
    for case in schemas::all() {
        let gbnf =
            to_gbnf(case.schema.get(), Options::default()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let naive = Naive::parse(&gbnf);
        for text in &case.valid {
            assert!(naive.matches(text), "{}: {text}", case.name);
        }
        for text in &case.invalid {
            assert!(!naive.matches(text), "{}: {text}", case.name);
        }
    }
}
