//! Answers come apart into the messages that templates make such answers of.

use elizainference::chat::{ChatTemplate, Inputs, Now, Part};
use serde_json::{Value, json};

fn inputs(messages: &Value, tools: &Value, generate: bool) -> Inputs {
    let json = json!({"messages": messages, "tools": tools, "add_generation_prompt": generate});
    Inputs::from_json(&json.to_string()).unwrap().at(Now::parse("2025-02-03T04:05:06").unwrap())
}

/// What a template writes of an assistant's message is what the model would say: its calls come back.
#[test]
fn what_templates_write_of_calls_is_read_as_those_calls() {
    let Some(shared) = crate::testing::shared() else {
        eprintln!("skipped: no folder of templates beside the project");
        return;
    };
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters":
        {"type": "object", "properties": {"city": {"type": "string", "description": "c"},
         "days": {"type": "integer", "description": "n"}}, "required": ["city"]}}}]);
    let arguments = json!({"city": "Zürich \"5\"", "days": 3});
    let call =
        json!({"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": arguments}});
    let user = json!({"role": "user", "content": "How is it?"});
    let said = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let result = json!({"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "sun"});
    let (mut read, mut without) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(shared.join("models/templates")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jinja") {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let template = ChatTemplate::new(&std::fs::read_to_string(&path).unwrap(), "<s>", "</s>").unwrap();
        let text = |messages: Value, generate| template.prompt(&inputs(&messages, &tools, generate)).map(|p| p.text());
        let asked = inputs(&json!([user]), &tools, true);
        let (Ok(before), Ok(whole)) = (text(json!([user]), true), text(json!([user, said, result]), false)) else {
            without.push(name);
            continue;
        };
        // The prompt may have opened, or closed, a thought that the template leaves out of earlier turns.
        let open = (0..=before.len()).rev().filter(|&at| before.is_char_boundary(at));
        let common = open.into_iter().find(|&at| whole.starts_with(&before[..at])).unwrap();
        // Two marks may begin alike.
        let common = whole[..common].rfind('<').filter(|&at| !whole[at..common].contains('>')).unwrap_or(common);
        let mut parts = template.parts(&asked).unwrap();
        let mut found =
            parts.push(if common < before.len() && before.ends_with("<think>\n") { b"</think>" } else { b"" });
        found.extend(parts.push(&whole.as_bytes()[common..]));
        found.extend(parts.finish());
        let called = found.iter().find_map(|part| match part {
            Part::ToolCall(call) => Some((call.name.clone(), serde_json::from_str::<Value>(&call.arguments).unwrap())),
            _ => None,
        });
        match called {
            Some((function, given)) => {
                assert_eq!((function.as_str(), &given), ("get_weather", &arguments), "{name}: {whole}");
                read.push(name);
            }
            None => without.push(name),
        }
    }
    read.sort();
    without.sort();
    assert!(read.len() >= 25, "{read:?}, not {without:?}");
}

#[test]
fn an_answer_can_be_begun() {
    let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}\
        {% if add_generation_prompt %}<think>\n{% endif %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let with = |more: &str| {
        let json = format!(r#"{{"messages": [{{"role": "user", "content": "hi"}}], {more}}}"#);
        let inputs = Inputs::from_json(&json).unwrap();
        template.prompt(&inputs).map(|prompt| prompt.text()).map_err(|error| error.to_string())
    };
    assert_eq!(with(r#""add_generation_prompt": true"#).unwrap(), "[user]hi<think>\n");
    let begun = with(r#""add_generation_prompt": true, "answer_start": "So""#).unwrap();
    assert_eq!(begun, "[user]hi<think>\n\n</think>\n\nSo");
    assert!(with(r#""answer_start": "So""#).unwrap_err().contains("add_generation_prompt"));
    assert!(with(r#""add_generation_prompt": true, "answer_start": 5"#).unwrap_err().contains("answer_start"));
}

#[test]
fn roles_that_nobody_knows_are_named() {
    let template = ChatTemplate::new("{% for m in messages %}{{ m.role == 'critic' }}{% endfor %}", "", "").unwrap();
    let with = |message: &str| {
        let inputs = Inputs::from_json(&format!(r#"{{"messages": [{{"role": "user", "content": "x"}}, {message}]}}"#));
        template.prompt(&inputs.unwrap()).map_err(|error| error.to_string())
    };
    assert!(with(r#"{"content": "x"}"#).unwrap_err().contains("messages[1] has no `role`"));
    assert!(with(r#"{"role": 5, "content": "x"}"#).unwrap_err().contains("messages[1] has a `role` that is number"));
    let error = with(r#"{"role": "narrator\n", "content": "x"}"#).unwrap_err();
    assert!(error.contains("narrator\\n") && error.contains("system, developer, user, assistant"), "{error}");
    assert!(with(r#"{"role": "critic", "content": "x"}"#).is_ok());
}
