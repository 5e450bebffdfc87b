//! `embed` and `rank`.

use crate::program::{failure, json, stdout, text};
use crate::testing::encoders::{Encoder, WIDTH};
use crate::testing::fixture_folder;
use serde_json::Value;

fn rows(found: &Value) -> Vec<Vec<f64>> {
    let numbers = |row: &Value| row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    found["embeddings"].as_array().unwrap().iter().map(numbers).collect()
}

#[test]
fn rows_come_in_the_order_of_the_texts() {
    let path = Encoder::Modern.write(&fixture_folder());
    let how = ["embed", "--model", text(&path), "--threads", "1", "--kv-type", "f32"];
    let found = json(&[&how[..], &["--json", "a dog", "--prompt-tokens", "7,8,9", "Once upon a time"]].concat());
    let all = rows(&found);
    assert_eq!(found["tokens"][1], 3);
    assert!(all.iter().all(|row| row.len() == WIDTH && (row.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5));
    let one = |args: &[&str]| rows(&json(&[&how[..], &["--json"], args].concat()));
    for (args, row) in [(["a dog"].as_slice(), &all[0]), (&["--prompt-tokens", "[7, 8, 9]"], &all[1])] {
        let alone = &one(args)[0];
        assert!(alone.iter().zip(row).all(|(a, b)| (a - b).abs() < 1e-5), "{args:?}");
    }
    // A row for each token, the first of which is what pooling `cls` takes.
    let tokens = one(&["--pooling", "none", "--no-normalize", "--prompt-tokens", "7,8,9"]);
    let first = one(&["--pooling", "cls", "--no-normalize", "--prompt-tokens", "7,8,9", "--dimensions", "5"]);
    assert_eq!((tokens.len(), &tokens[0][..5]), (3, &first[0][..]));
    let printed = stdout(&[&how[..], &["--dimensions", "5", "--pooling", "cls", "--no-normalize", "a", "b"]].concat());
    assert_eq!(printed.lines().map(|line| line.split(' ').count()).collect::<Vec<_>>(), [5, 5]);

    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines");
    std::fs::write(&lines, "a dog\n\nOnce upon a time\n").unwrap();
    let read = one(&["--file", text(&lines)]);
    assert!(read[1].iter().zip(&all[2]).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn texts_are_ranked() {
    let path = Encoder::Bert.write(&fixture_folder());
    let how = ["rank", "--model", text(&path), "--threads", "1", "--query", "Who?"];
    let found = json(&[&how[..], &["--json", "a dog", "a little girl", "home"]].concat());
    let mut scores: Vec<f64> = found["scores"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let printed = stdout(&[&how[..], &["a dog", "a little girl", "home"]].concat());
    let shown: Vec<f64> = printed.lines().map(|line| line.split('\t').next().unwrap().parse().unwrap()).collect();
    scores.sort_by(|a, b| b.total_cmp(a));
    assert!(shown.iter().zip(&scores).all(|(shown, score)| (shown - score).abs() < 1e-3), "{printed}");
}

#[test]
fn what_cannot_be_done_says_why() {
    let path = Encoder::Jina.write(&fixture_folder());
    let how = ["--model", text(&path), "--threads", "1"];
    let fails = |command: &[&str], more: &[&str], part: &str| {
        let errors = failure(1, &[command, &how[..], more].concat());
        assert!(errors.contains(part), "{errors}");
    };
    fails(
        &["embed"],
        &["--ctx", "4", "--prompt-tokens", "1,2,3,4,5"],
        "text 0 has 5 tokens, more than the context of 4",
    );
    fails(&["embed"], &["--pooling", "rank", "a"], "classifier");
    fails(&["rank"], &["--query", "a", "b"], "classifier");
    fails(&["generate"], &["--prompt", "a"], "gives embeddings");
    assert!(failure(2, &[&["embed"], &how[..]].concat()).contains("TEXT"));
}

#[test]
fn inspect_tells_pooling_and_labels() {
    let path = Encoder::Bert.write(&fixture_folder());
    assert!(stdout(&["inspect", text(&path)]).contains("pooling cls, labels score, other"));
    assert_eq!(json(&["inspect", "--json", text(&path)])["labels"][0], "score");
}
