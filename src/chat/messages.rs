//! Messages as hosts send them, in the form that a template reads. What it reads, short conversations tell: each is
//! rendered once, and what it was given has to be found in the prompt.

use super::inputs::Inputs;
use crate::Result;
use minijinja::Value;
use minijinja::value::ValueKind;

/// What a template can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abilities {
    /// A message of the role `system`.
    system: bool,
    /// A content that is a text; else only one of typed parts.
    text: bool,
    /// A content of typed parts.
    parts: bool,
    /// Tool calls whose arguments are an object.
    object_arguments: bool,
    /// A role `developer`, which has a turn of its own.
    developer: bool,
}

/// What is put into the conversations that try a template.
const NEEDLE: &str = "<-needle->";

impl Abilities {
    /// `render` is the template, `knows_developer` whether it has turns of that role.
    pub(super) fn of(render: &dyn Fn(&Inputs) -> Result<String>, knows_developer: bool) -> Self {
        let reads = |messages: &str| {
            let json = format!(r#"{{"messages": [{messages}], "add_generation_prompt": true}}"#);
            let text = Inputs::from_json(&json.replace("NEEDLE", NEEDLE)).and_then(|inputs| render(&inputs));
            // A list that is printed as it is would hold the needle too.
            text.is_ok_and(|text| text.contains(NEEDLE) && !text.contains("'type'"))
        };
        let text = reads(r#"{"role": "user", "content": "NEEDLE"}"#);
        let parts = reads(r#"{"role": "user", "content": [{"type": "text", "text": "NEEDLE"}]}"#);
        let content = if text || !parts { r#""x""# } else { r#"[{"type": "text", "text": "x"}]"# };
        let call = |arguments: &str| {
            format!(
                r#"{{"role": "user", "content": {content}}}, {{"role": "assistant", "content": "", "tool_calls":
                   [{{"id": "call00001", "type": "function", "function": {{"name": "f", "arguments": {arguments}}}}}]}},
                   {{"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "1"}}"#
            )
        };
        let turn = |role: &str, content: &str| format!(r#"{{"role": "{role}", "content": {content}}}"#);
        let needle = if text || !parts { r#""NEEDLE""# } else { r#"[{"type": "text", "text": "NEEDLE"}]"# };
        Abilities {
            system: reads(&format!("{}, {}", turn("system", needle), turn("user", content))),
            text: text || !parts,
            parts,
            object_arguments: reads(&call(r#"{"k": "NEEDLE"}"#)),
            developer: knows_developer,
        }
    }

    /// The inputs with their messages in the form that is read.
    pub(super) fn adapt(self, inputs: &Inputs) -> Inputs {
        let mut adapted = inputs.clone();
        let Some(messages) = adapted.values.iter_mut().find(|(name, _)| name == "messages") else { return adapted };
        let all: Vec<Value> = messages.1.try_iter().into_iter().flatten().map(|m| self.message(&m)).collect();
        messages.1 = Value::from(if self.system { all } else { joined_system(all) });
        adapted
    }

    fn message(self, message: &Value) -> Value {
        let calls = field(message, "tool_calls").filter(Value::is_true);
        let mut changed: Vec<(&str, Value)> = Vec::new();
        if !self.developer && field(message, "role").is_some_and(|role| role.as_str() == Some("developer")) {
            changed.push(("role", Value::from("system")));
        }
        match field(message, "content") {
            None if calls.is_some() => changed.push(("content", Value::from(""))),
            Some(content) if content.is_none() && calls.is_some() => changed.push(("content", Value::from(""))),
            Some(content) if content.kind() == ValueKind::Seq && !self.parts => {
                changed.extend(text_of_parts(&content).map(|text| ("content", Value::from(text))));
            }
            Some(content) if content.as_str().is_some() && !self.text => {
                let part = Value::from_pairs([("type", Value::from("text")), ("text", content)]);
                changed.push(("content", Value::from(vec![part])));
            }
            _ => {}
        }
        if let Some(calls) = calls.filter(|_| self.object_arguments) {
            let calls: Vec<Value> = calls.try_iter().into_iter().flatten().map(|call| with_object(&call)).collect();
            changed.push(("tool_calls", Value::from(calls)));
        }
        with(message, changed)
    }
}

fn field(map: &Value, name: &str) -> Option<Value> {
    map.get_attr(name).ok().filter(|value| !value.is_undefined())
}

/// The map with some fields changed or added.
fn with(map: &Value, changed: Vec<(&str, Value)>) -> Value {
    if changed.is_empty() {
        return map.clone();
    }
    let keys: Vec<Value> = map.try_iter().into_iter().flatten().collect();
    let is = |key: &Value, name: &str| key.as_str() == Some(name);
    let added: Vec<Value> = changed
        .iter()
        .filter(|(name, _)| !keys.iter().any(|k| is(k, name)))
        .map(|(name, _)| Value::from(*name))
        .collect();
    Value::from_pairs(keys.into_iter().chain(added).map(|key| {
        let new = changed.iter().find(|(name, _)| is(&key, name)).map(|(_, value)| value.clone());
        let value = new.unwrap_or_else(|| map.get_item(&key).unwrap_or_default());
        (key, value)
    }))
}

/// The texts of typed parts, a line each; `None` where a part is no text.
fn text_of_parts(parts: &Value) -> Option<String> {
    let mut texts = Vec::new();
    for part in parts.try_iter().ok()? {
        texts.push(field(&part, "text")?.as_str()?.to_string());
    }
    Some(texts.join("\n"))
}

/// A tool call whose arguments are an object, where they were one as JSON.
fn with_object(call: &Value) -> Value {
    let Some(function) = field(call, "function") else { return call.clone() };
    let Some(arguments) = field(&function, "arguments") else { return call.clone() };
    let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    match parsed.filter(|value| value.kind() == ValueKind::Map) {
        Some(object) => with(call, vec![("function", with(&function, vec![("arguments", object)]))]),
        None => call.clone(),
    }
}

/// Messages without a system turn: its text begins the message after it.
fn joined_system(messages: Vec<Value>) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    let mut before: Option<String> = None;
    for message in messages {
        let content = field(&message, "content");
        let text = content
            .as_ref()
            .and_then(|content| content.as_str().map(str::to_string).or_else(|| text_of_parts(content)));
        let is_system = field(&message, "role").is_some_and(|role| role.as_str() == Some("system"));
        match (is_system, text, before.take()) {
            (true, Some(text), previous) => {
                before = Some(previous.map_or_else(|| text.clone(), |previous| format!("{previous}\n{text}")));
            }
            (false, Some(text), Some(previous)) => {
                out.push(with(&message, vec![("content", Value::from(format!("{previous}\n{text}")))]));
            }
            (_, _, previous) => {
                before = previous;
                out.push(message);
            }
        }
    }
    // A system turn alone has nothing to join: it is the user who says it.
    out.extend(before.map(|text| Value::from_pairs([("role", Value::from("user")), ("content", Value::from(text))])));
    out
}
