//! `template`: the prompt of messages, as text and as tokens.

use crate::program::{failure, json, stdout, text};
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};

#[test]
fn messages_become_a_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let jinja = file(
        "chat.jinja",
        "{{ bos_token }}{% for m in messages %}{{ m.content }};{% endfor %}{{ strftime_now('%Y') }}",
    );
    let inputs =
        file("chat.json", r#"{"messages": [{"role": "user", "content": "a<s>"}, {"role": "user", "content": "b"}]}"#);
    let now = ["--now", "2025-02-03T04:05:06"];
    let with = |more: &[&str]| {
        let args = ["template", "--template", text(&jinja), "--inputs", text(&inputs)];
        stdout(&[&args[..], &now, more].concat())
    };
    assert_eq!(with(&["--bos-token", "<s>"]), "<s>a<s>;b;2025");
    let error = failure(2, &["template", "--inputs", text(&inputs)]);
    assert!(error.contains("--template") && error.contains("--model"), "{error}");
    let error = failure(1, &["template", "--template", text(&jinja), "--inputs", "no/such.json"]);
    assert!(error.contains("no/such.json"), "{error}");
    let empty = file("empty.json", "{}");
    let error = failure(1, &["template", "--template", text(&jinja), "--inputs", text(&empty)]);
    assert!(error.contains("there are no `messages`"), "{error}");
    let error = failure(
        2,
        &[&["template", "--template", text(&jinja), "--inputs", text(&inputs)], &["--now", "noon"][..]].concat(),
    );
    assert!(error.contains("noon"), "{error}");
    let model = fixture(Kind::Llama, Weights::F32);
    let of_model = ["template", "--model", text(&model), "--inputs", text(&inputs)];
    assert_eq!(stdout(&of_model), "<s>user: a<s>\nuser: b\n");
    // The begin of the text is a token, the same spelling in a message is text.
    let tokens = json(&[&of_model[..], &["--tokens"]].concat());
    let tokens = tokens.as_array().unwrap();
    assert_eq!(tokens[0], 1);
    assert!(!tokens[1..].contains(&1.into()), "{tokens:?}");
    let system =
        file("system.json", r#"{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]}"#);
    let of_model = ["template", "--model", text(&model), "--inputs", text(&system)];
    assert!(failure(1, &of_model).contains("chat template: no system turn"));
    assert_eq!(stdout(&[&of_model[..], &["--adapt"]].concat()), "<s>user: x\ny\n");
    // A model that no family knows says what it lacks.
    let demo = crate::testing::demo();
    let error = failure(1, &["template", "--model", text(&demo), "--inputs", text(&inputs)]);
    assert!(error.contains("tokenizer.chat_template"), "{error}");
}
