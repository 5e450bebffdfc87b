//! Messages of OpenAI's form, in the form that a template reads.

use elizainference::chat::{ChatTemplate, Inputs};

fn prompt(source: &str, messages: &str) -> String {
    let template = ChatTemplate::new(source, "", "").unwrap();
    template.prompt(&Inputs::from_json(&format!(r#"{{"messages": {messages}}}"#)).unwrap()).unwrap().text()
}

const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content + '' }}{% endfor %}";

#[test]
fn contents_take_the_form_that_the_template_reads() {
    let parts = r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]"#;
    assert_eq!(prompt(PLAIN, parts), "[user]a\nb");
    let typed = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}";
    assert_eq!(prompt(typed, parts), "<a><b>");
    assert_eq!(prompt(typed, r#"[{"role": "user", "content": "a"}]"#), "<a>");
    let both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
        {% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(prompt(both, parts), "<a><b>");
}

#[test]
fn a_system_turn_is_joined_with_the_next_where_there_is_none() {
    let messages = r#"[{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]"#;
    assert_eq!(prompt(PLAIN, messages), "[system]be brief[user]hi");
    let without = format!("{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{PLAIN}");
    assert_eq!(prompt(&without, messages), "[user]be brief\nhi");
    assert_eq!(prompt(&without, r#"[{"role": "system", "content": "alone"}]"#), "[user]alone");
    let knows = format!("{PLAIN}{{# 'developer' #}}");
    assert_eq!(prompt(&knows, messages), "[developer]be brief[user]hi");
}

#[test]
fn calls_have_arguments_as_an_object_where_the_template_wants_one() {
    let messages = r#"[{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls":
        [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": \"x\"}"}}]}]"#;
    let calls = "{% for m in messages %}{{ m.content + '' }}{% for c in m.tool_calls or [] %}";
    let pairs = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}";
    let object = format!("{calls}{pairs}{{% endfor %}}{{% endfor %}}");
    assert_eq!(prompt(&object, messages), "hib=1;a=x;");
    let text = format!("{calls}{{{{ c.function.arguments + '' }}}}{{% endfor %}}{{% endfor %}}");
    assert_eq!(prompt(&text, messages), "hi{\"b\": 1, \"a\": \"x\"}");
}

/// Published templates render what Python's library refuses in the form that hosts send.
#[test]
fn published_templates_take_what_hosts_send() {
    let Some(shared) = super::testing::shared() else {
        eprintln!("skipped: no folder of templates beside the project");
        return;
    };
    let parts = r#"[{"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "needle"}]}]"#;
    for entry in std::fs::read_dir(shared.join("models/templates")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jinja") {
            continue;
        }
        let text = prompt(&std::fs::read_to_string(&path).unwrap(), parts);
        assert!(text.contains("needle"), "{}: {text}", path.display());
    }
}
