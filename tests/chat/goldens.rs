//! Published templates against Python's own renderings.

use elizainference::chat::{ChatTemplate, Inputs, Now};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn folder() -> Option<PathBuf> {
    let found = super::testing::shared().map(|dir| dir.join("models/templates")).filter(|dir| dir.is_dir());
    if found.is_none() {
        eprintln!("skipped: no folder of templates beside the project");
    }
    found
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The objects of a case, in the order of the file: `serde_json` would sort them.
fn raw_inputs(text: &str) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Case<'a> {
        #[serde(borrow)]
        inputs: &'a serde_json::value::RawValue,
    }
    #[derive(serde::Deserialize)]
    struct Goldens<'a> {
        #[serde(borrow)]
        cases: Vec<Case<'a>>,
    }
    let goldens: Goldens<'_> = serde_json::from_str(text).unwrap();
    goldens.cases.iter().map(|case| case.inputs.get().to_string()).collect()
}

#[test]
fn every_template_renders_every_conversation_as_python_does() {
    let Some(folder) = folder() else { return };
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jinja") {
            continue;
        }
        let text = std::fs::read_to_string(path.with_extension("json")).unwrap();
        let goldens: Value = serde_json::from_str(&text).unwrap();
        let source = std::fs::read_to_string(&path).unwrap();
        let token = |name: &str| goldens[name].as_str().unwrap();
        let template = ChatTemplate::new(&source, token("bos_token"), token("eos_token")).unwrap();
        let now = Now::parse(goldens["now"].as_str().unwrap()).unwrap();
        for (case, raw) in goldens["cases"].as_array().unwrap().iter().zip(raw_inputs(&text)) {
            let name = format!("{} {}", path.display(), case["name"]);
            let got = template.render(&Inputs::from_json(&raw).unwrap().at(now));
            match (&case["output"], &case["error"], got) {
                (Value::String(wanted), _, Ok(prompt)) => assert_eq!(&prompt.text(), wanted, "{name}"),
                (_, Value::String(kind), Err(error)) => {
                    let message = case["message"].as_str().unwrap();
                    assert!(kind == "engine" || error.to_string().contains(message), "{name}: {error}");
                }
                (_, _, got) => panic!("{name}: {got:?}"),
            }
            compared += 1;
        }
    }
    assert!(compared >= 42 * 18, "{compared} cases");
}

#[test]
fn expressions_print_what_python_prints() {
    let Some(folder) = folder() else { return };
    let path = folder.join("expressions.json");
    let all = json(&path);
    #[derive(serde::Deserialize)]
    struct Expressions<'a> {
        #[serde(borrow)]
        context: std::collections::HashMap<&'a str, &'a serde_json::value::RawValue>,
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let context: Expressions<'_> = serde_json::from_str(&text).unwrap();
    let fields: Vec<String> = context.context.iter().map(|(k, v)| format!("\"{k}\": {}", v.get())).collect();
    let inputs = format!("{{\"messages\": [], {}}}", fields.join(", "));
    let cases = all["cases"].as_array().unwrap();
    for case in cases {
        let source = case["text"].as_str().unwrap();
        match (super::render(source, &inputs), case["output"].as_str()) {
            (Ok(got), Some(wanted)) => assert_eq!(got, wanted, "{source}"),
            (Err(_), None) => {}
            (got, wanted) => panic!("{source}: {got:?} instead of {wanted:?}"),
        }
    }
    assert!(cases.len() >= 274, "{} cases", cases.len());
}
