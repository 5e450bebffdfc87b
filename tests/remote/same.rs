//! What a server's model says through the client is what the engine here says.

use crate::fake::Fake;
use crate::model::{MEAN, Model, local};
use crate::{Said, go_on, open, say, testing};
use elizainference::session::{EmbedOptions, FinishReason, Mode, Session, SpanEnd};
use elizainference::trie::Surroundings;
use elizainference::{Error, Token};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Kinds that know token ids and grammars.
const FULL: [&str; 3] = ["vllm", "sglang", "llama-server"];
const GENERATE: [(&str, &str); 4] = [
    ("vllm", "/v1/completions"),
    ("sglang", "/generate"),
    ("llama-server", "/completion"),
    ("openai", "/v1/completions"),
];

fn serve(kind: &'static str, change: impl FnOnce(&mut Model)) -> Fake {
    let mut model = Model::new(kind);
    change(&mut model);
    Fake::new(move |seen, reply| model.answer(seen, reply))
}

fn generations(fake: &Fake, kind: &str) -> usize {
    let (_, path) = GENERATE.iter().find(|(one, _)| *one == kind).unwrap();
    fake.seen_at(path).len()
}

pub fn prompts(session: &Session) -> Vec<Vec<Token>> {
    let text = |n: usize| {
        ["Please wake me at seven. ACTION: ", "Größe 12, 日本語 😀: ", "add milk to the list ", "x = [1, 2"][n % 4]
            .repeat(1 + n / 4)
    };
    (0..20).map(|n| session.tokenize(text(n).as_bytes(), true, true).unwrap()).collect()
}

/// Two hundred names, some with the same beginning.
pub fn names() -> Vec<String> {
    let actions = std::fs::read_to_string(testing::models().join("demo_actions.txt")).unwrap();
    let mut names: BTreeSet<String> = actions.lines().map(str::to_owned).collect();
    for n in 0.. {
        if names.len() == 200 {
            break;
        }
        names.insert(format!("ACTION_{n}"));
    }
    names.into_iter().collect()
}

pub fn payload(session: &Session, names: &[&str]) -> Vec<u8> {
    session.build_trie("action", names, Surroundings::default()).unwrap().json.into_bytes()
}

pub fn stop_at_end(session: &Session, on_span_end: SpanEnd) {
    session.configure(elizainference::session::Settings { on_span_end, ..session.settings() }).unwrap();
}

#[test]
fn greedy_texts_of_twenty_prompts_are_those_of_here_in_any_pieces() {
    let here = local();
    let expected: Vec<Said> = prompts(&here).iter().map(|prompt| say(&here, prompt, 24, 0.0).unwrap()).collect();
    for (kind, _) in GENERATE {
        for (piece, together) in [(usize::MAX, 1), (1, 3), (7, 2)] {
            let fake = serve(kind, |model| (model.piece, model.together) = (piece, together));
            let session = open(&fake.of_kind(kind));
            for (prompt, expected) in prompts(&here).iter().zip(&expected) {
                let said = say(&session, prompt, 24, 0.0).unwrap();
                if kind != "openai" {
                    assert_eq!(&said, expected, "{kind}, pieces of {piece}");
                }
                // Only texts come from this kind, cut where characters are; broken ones are lost.
                let whole = expected.text.contains('\u{FFFD}') || said.text.contains('\u{FFFD}');
                assert!(whole || kind != "openai" || said.text == expected.text, "{said:?} {expected:?}");
            }
        }
    }
}

#[test]
fn a_choice_among_two_hundred_names_is_one_request_and_the_same_name() {
    let here = local();
    let names = names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let payload = payload(&here, &names);
    stop_at_end(&here, SpanEnd::Stop);
    for kind in FULL {
        let fake = serve(kind, |_| ());
        let there = open(&fake.of_kind(kind));
        stop_at_end(&there, SpanEnd::Stop);
        for mode in [Mode::Greedy, Mode::Sampled] {
            for session in [&here, &there] {
                session.set_trie(&payload, mode).unwrap();
            }
            for prompt in &prompts(&here)[..6] {
                let before = generations(&fake, kind);
                let (expected, said) = (say(&here, prompt, 40, 0.0).unwrap(), say(&there, prompt, 40, 0.0).unwrap());
                assert_eq!(said, expected, "{kind} {mode:?}");
                assert_eq!(said.reason, FinishReason::Span);
                assert!(names.contains(&said.text.trim()), "{said:?}");
                assert_eq!(generations(&fake, kind), before + 1, "one request");
                assert_eq!(there.usage().server_requests, 1);
            }
        }
    }
}

#[test]
fn scores_of_names_are_those_of_here() {
    let here = local();
    let names = names();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    // A name that others begin with.
    names.push("CREATE");
    let payload = payload(&here, &names);
    stop_at_end(&here, SpanEnd::Stop);
    here.set_trie(&payload, Mode::ScoreLeaves).unwrap();
    for kind in FULL {
        let fake = serve(kind, |_| ());
        let there = open(&fake.of_kind(kind));
        stop_at_end(&there, SpanEnd::Stop);
        there.set_trie(&payload, Mode::ScoreLeaves).unwrap();
        for prompt in &prompts(&here)[..2] {
            let before = generations(&fake, kind);
            let expected = say(&here, prompt, 40, 0.0).unwrap();
            assert_eq!(say(&there, prompt, 40, 0.0).unwrap(), expected, "{kind}");
            let requests = generations(&fake, kind) - before;
            assert!(requests == 1 || kind == "llama-server", "{requests} requests");
            for session in [&here, &there] {
                session.prefill(prompt, -1).unwrap();
            }
            let (expected, scores) = (here.score_trie().unwrap(), there.score_trie().unwrap());
            assert_eq!(scores.leaves.len(), 201);
            for one in &scores.leaves {
                let same = expected.leaves.iter().find(|other| other.name == one.name).unwrap();
                assert_eq!(one.tokens, same.tokens);
                assert!((one.logprob - same.logprob).abs() < 1e-3, "{kind}: {one:?}, here {same:?}");
            }
        }
    }
    let fake = serve("openai", |_| ());
    let there = open(&fake.of_kind("openai"));
    there.set_trie(&payload, Mode::ScoreLeaves).unwrap();
    there.prefill(&[1, 2], -1).unwrap();
    assert!(matches!(there.score_trie(), Err(Error::Unsupported(_))));
    there.set_trie(&payload, Mode::Greedy).unwrap();
    assert!(matches!(go_on(&there, 8, 0.0), Err(Error::Unsupported(_))));
}

#[test]
fn text_goes_on_after_a_span() {
    let here = local();
    let names = ["CREATE_ALARM", "CREATE_TIMER", "DELETE_ALARM", "CREATE"];
    let payload = payload(&here, &names);
    for kind in FULL {
        let fake = serve(kind, |_| ());
        let there = open(&fake.of_kind(kind));
        for session in [&here, &there] {
            session.set_trie(&payload, Mode::Greedy).unwrap();
        }
        for prompt in &prompts(&here)[..4] {
            let expected = say(&here, prompt, 30, 0.0).unwrap();
            let said = say(&there, prompt, 30, 0.0).unwrap();
            let name =
                |said: &Said| names.iter().filter(|name| said.text.trim().starts_with(**name)).map(|n| n.len()).max();
            assert!(name(&said).is_some(), "{said:?}");
            // Where a name goes on as another, the model here may end it with any token, a server's with its end alone.
            if name(&said) == name(&expected) {
                assert_eq!(said, expected, "{kind}");
            }
        }
    }
}

#[test]
fn grammars_and_schemas_hold_and_give_the_same_text() {
    let here = local();
    let schema = json!({ "type": "object", "properties": {
        "action": { "enum": ["CREATE_ALARM", "DELETE_ALARM"] },
        "count": { "type": "integer", "minimum": 0, "maximum": 99 }
    }, "required": ["action", "count"], "additionalProperties": false });
    let sources = [
        json!({ "json_schema": schema, "compact": true, "jump_ahead": "off" }),
        json!({ "regex": "[A-Z]{3,8}_[0-9]{2}", "jump_ahead": "off" }),
        json!({ "gbnf": "root ::= (\"- \" [a-z ]{1,9} \"\\n\"){2}", "jump_ahead": "off" }),
        json!({ "gbnf": "root ::= <[5]> \"x\"+ <[7]>", "jump_ahead": "off" }),
    ];
    for kind in FULL {
        let fake = serve(kind, |_| ());
        let there = open(&fake.of_kind(kind));
        for source in &sources {
            for session in [&here, &there] {
                session.set_grammar(source.to_string().as_bytes()).unwrap();
            }
            for prompt in &prompts(&here)[..3] {
                let before = generations(&fake, kind);
                let (expected, said) = (say(&here, prompt, 80, 0.0).unwrap(), say(&there, prompt, 80, 0.0).unwrap());
                assert_eq!(said, expected, "{kind} {source}");
                assert_eq!(generations(&fake, kind), before + 1);
            }
        }
        let said = {
            there.set_grammar(sources[0].to_string().as_bytes()).unwrap();
            say(&there, &prompts(&here)[0], 80, 0.0).unwrap()
        };
        let value: Value = serde_json::from_str(&said.text).unwrap();
        assert!(value["count"].is_i64());
        let lazy =
            json!({ "gbnf": "root ::= \"x\"", "lazy": true, "triggers": [{ "type": "word", "value": "<tool>" }] });
        there.set_grammar(lazy.to_string().as_bytes()).unwrap();
        let refused = say(&there, &prompts(&here)[0], 8, 0.0);
        assert!(matches!(refused, Err(Error::Unsupported(problem)) if problem.contains("waits for a trigger")));
    }
}

#[test]
fn a_seed_repeats_a_sampled_text_and_settings_are_sent_in_the_server_s_words() {
    let here = local();
    let prompt = &prompts(&here)[2];
    for (kind, path) in GENERATE {
        let fake = serve(kind, |_| ());
        let session = open(&fake.of_kind(kind));
        let mut settings = session.settings();
        settings.params.seed = Some(u64::MAX - 7);
        settings.params.logit_bias = vec![(7, 1.5), (9, f32::NEG_INFINITY)];
        settings.params.min_p = 0.0;
        settings.params.top_k = if kind == "openai" { 0 } else { 30 };
        session.configure(settings).unwrap();
        let said = [0, 1].map(|_| say(&session, prompt, 12, 0.9).unwrap());
        assert_eq!(said[0], said[1], "{kind}");
        for most in [1, 3, 5] {
            assert_eq!(say(&session, prompt, most, 0.0).unwrap().reason, FinishReason::Length, "{kind} {most}");
        }
        say(&session, prompt, 12, 0.9).unwrap();
        let body = fake.seen_at(path).last().unwrap().body.clone();
        let sampling = if kind == "sglang" { &body["sampling_params"] } else { &body };
        let number = |name: &str| sampling[name].as_f64();
        assert!((number("temperature").unwrap() - 0.9).abs() < 1e-6, "{sampling}");
        assert_eq!(number("top_p"), Some(1.0));
        let bias = match kind {
            "llama-server" => json!([[7, 1.5], [9, false]]),
            _ => json!({ "7": 1.5, "9": -100.0 }),
        };
        assert_eq!(sampling["logit_bias"], bias);
        match kind {
            "openai" => assert!(sampling.get("top_k").is_none() && sampling.get("min_p").is_none()),
            _ => assert_eq!((number("top_k"), number("min_p")), (Some(30.0), Some(0.0))),
        }
        let fresh = open(&fake.of_kind(kind));
        assert!(say(&fresh, prompt, 4, 0.9).is_ok(), "{kind}: the defaults are what it has");
        let unknown: elizainference::session::Chain = "xtc=0.5,0.1;temp=0.8".parse().unwrap();
        session.set_chain(-1, Some(unknown)).unwrap();
        let refused = say(&session, prompt, 4, 0.9);
        assert!(matches!(&refused, Err(Error::Unsupported(problem)) if problem.contains("xtc")), "{refused:?}");
    }
}

#[test]
fn embeddings_usage_and_what_a_server_cannot_do() {
    let here = local();
    let fake = serve("vllm", |_| ());
    let there = open(&fake.of_kind("vllm"));
    let options = EmbedOptions { normalize: true, ..EmbedOptions::default() };
    let texts: [&[u8]; 3] = [b"one", b"two words", "größer".as_bytes()];
    let mean = EmbedOptions { normalize: true, ..MEAN };
    let (expected, rows) = (here.embed_texts(&texts, &mean).unwrap(), there.embed_texts(&texts, &options).unwrap());
    assert_eq!(rows.width, expected.width);
    let flat = |rows: &elizainference::session::Embeddings| rows.texts.concat();
    let apart = flat(&rows).iter().zip(flat(&expected)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-6, "{apart}");

    let info = there.info();
    let server = info.server.as_ref().unwrap();
    assert_eq!((server.model.as_str(), server.version.as_deref()), (crate::model::NAME, Some("0.32.0")));
    assert_eq!(info.context, crate::model::CONTEXT);
    say(&there, &prompts(&here)[0], 5, 0.0).unwrap();
    let usage = there.usage();
    assert_eq!((usage.server_requests, usage.forward_passes), (1, 0));
    assert!(usage.completion_tokens > 0);
    there.prefill(&prompts(&here)[0], -1).unwrap();
    assert!(there.usage_json().contains("\"server_requests\":"));

    let unsupported = |outcome: elizainference::Result<()>| assert!(matches!(outcome, Err(Error::Unsupported(_))));
    let mut row = vec![0.0; info.n_vocab];
    unsupported(there.logits(1, &mut row).map(drop));
    unsupported(there.save_slot(-1, &testing::fixture_folder().join("never")));
    let mut shifting = there.settings();
    shifting.on_context_full = elizainference::session::ContextFull::Shift { keep: 0 };
    there.configure(shifting).unwrap();
    unsupported(say(&there, &[1, 2], 3, 0.0).map(drop));
    assert!(matches!(there.prefill(&vec![3; 512], -1), Err(Error::OutOfMemory(_))));
}

#[test]
fn without_a_vocabulary_texts_go_there_and_come_back() {
    let here = local();
    let text = "add milk to the list";
    let expected = say(&here, &here.tokenize(text.as_bytes(), true, true).unwrap(), 24, 0.0).unwrap();
    let names = ["CREATE_ALARM", "DELETE_ALARM", "SHOW_LIST"];
    for (kind, _) in GENERATE {
        let fake = serve(kind, |_| ());
        let mut options = crate::options(&fake.of_kind(kind), None);
        options.remote.vocab = None;
        let there = Session::open(options).unwrap();
        assert!(fake.seen_at("/tokenize").is_empty());
        let prompt = there.tokenize(text.as_bytes(), true, true).unwrap();
        assert_eq!(prompt.len(), text.len(), "a byte is a token");
        let said = say(&there, &prompt, 24, 0.0).unwrap();
        assert_eq!((&said.text, said.reason), (&expected.text, expected.reason), "{kind}");
        // The server counts the tokens of the limit.
        let short = say(&there, &prompt, 3, 0.0).unwrap();
        assert!(expected.text.starts_with(&short.text) && short.text.len() > 3, "{short:?}");
        assert_eq!(short.reason, FinishReason::Length);
        assert_eq!(say(&there, &prompt, 0, 0.0).unwrap().text, "");
        // A stop string, and characters of several bytes.
        let mut settings = there.settings();
        settings.stop = vec![expected.text.as_bytes()[3..6].to_vec()];
        there.configure(settings.clone()).unwrap();
        let stopped = say(&there, &prompt, 24, 0.0).unwrap();
        assert_eq!((&stopped.text[..], stopped.reason), (&expected.text[..3], FinishReason::Stop));
        settings.stop.clear();
        settings.on_span_end = SpanEnd::Stop;
        there.configure(settings).unwrap();

        there.set_trie(&payload(&there, &names), Mode::Greedy).unwrap();
        there.prefill(&prompt, -1).unwrap();
        let chosen = go_on(&there, 40, 0.0);
        if kind == "openai" {
            assert!(matches!(chosen, Err(Error::Unsupported(_))));
            continue;
        }
        let chosen = chosen.unwrap();
        assert!(names.contains(&chosen.text.as_str()), "{chosen:?}");
        assert_eq!((chosen.reason, there.usage().server_requests), (FinishReason::Span, 1));
        there.prefill(&prompt, -1).unwrap();
        assert!(matches!(there.score_trie(), Err(Error::Unsupported(problem)) if problem.contains("option vocab")));
        there.set_grammar(br#"{"regex": "[0-9]{3}-\u00e4\u00f6"}"#).unwrap();
        let said = say(&there, &prompt, 40, 0.0).unwrap();
        assert!(said.text.ends_with("-äö") && said.reason == FinishReason::Stop, "{kind} {said:?}");
        there.clear_grammar().unwrap();
        let mut biased = there.settings();
        biased.params.logit_bias = vec![(5, 1.0)];
        there.configure(biased).unwrap();
        assert!(matches!(say(&there, &prompt, 4, 0.0), Err(Error::Unsupported(_))));
    }
}
