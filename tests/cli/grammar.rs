//! `grammar`: a grammar tried on a text.

use crate::program::{failure, stdout, text};
use crate::testing::demo;

#[test]
fn grammars_are_tried_on_texts() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let rules = file("rules.gbnf", "root ::= \"a\" digit{1,3}\nother_rule ::= \"b\"\ndigit ::= [0-9]\n");
    let check = |content: &str, more: &[&str]| {
        let (text_file, model) = (file("text.txt", content), demo());
        let args = ["grammar", "check", "--model", text(&model), "--grammar", text(&rules), "--text", text(&text_file)];
        stdout(&[&args[..], more].concat())
    };
    let result: serde_json::Value = serde_json::from_str(&check("a12x", &["--json"])).unwrap();
    assert_eq!((&result["accepted"], &result["bytes"]), (&3.into(), &4.into()));
    assert_eq!((&result["may_end"], &result["complete"]), (&true.into(), &false.into()));
    assert!(check("a", &[]).contains("1 of 1 bytes accepted; the text may not end there"));
    assert!(check("b", &["--root", "other_rule"]).contains("1 of 1 bytes accepted; the text may end there"));
    let printed = stdout(&["grammar", "print", "--grammar", text(&rules)]);
    assert!(printed.starts_with("root ::= \"a\" digit"), "{printed}");
    let broken = file("broken.gbnf", "root ::= [a");
    let error = failure(1, &["grammar", "print", "--grammar", text(&broken)]);
    assert!(error.contains("line 1, column 10"), "{error}");
    let error = failure(1, &["grammar", "print", "--grammar", text(&rules), "--root", "none"]);
    assert!(error.contains("there is no rule \"none\""), "{error}");
}
