//! What the tools of a conversation say of their arguments. Some families write values without quotation marks: that
//! `5` is a text only the tool's schema tells.

use minijinja::Value;
use std::collections::BTreeMap;

/// The arguments of each tool; true where it takes a text.
#[derive(Default)]
pub(super) struct Tools {
    arguments: BTreeMap<String, BTreeMap<String, bool>>,
}

impl Tools {
    /// Reads schemas in the form of OpenAI's API, with or without `function` around them. What is none is passed over.
    pub(super) fn of(tools: Option<&Value>) -> Self {
        let mut read = Tools::default();
        for tool in tools.and_then(|tools| tools.try_iter().ok()).into_iter().flatten() {
            let function = field(&tool, "function").unwrap_or(tool);
            let Some(name) = field(&function, "name").and_then(|name| name.as_str().map(str::to_string)) else {
                continue;
            };
            let schema = field(&function, "parameters").and_then(|schema| field(&schema, "properties"));
            let mut arguments = BTreeMap::new();
            for key in schema.as_ref().and_then(|all| all.try_iter().ok()).into_iter().flatten() {
                let kind = schema.as_ref().and_then(|all| field(&all.get_item(&key).ok()?, "type"));
                if let Some(kind) = kind {
                    let is_text = |kind: &Value| kind.as_str() == Some("string");
                    let any = || kind.try_iter().is_ok_and(|mut kinds| kinds.any(|kind| is_text(&kind)));
                    arguments.insert(key.to_string(), is_text(&kind) || (kind.as_str().is_none() && any()));
                }
            }
            read.arguments.insert(name, arguments);
        }
        read
    }

    /// Whether there is a tool of this name.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.arguments.contains_key(name)
    }

    /// Whether there is no tool.
    pub(super) fn is_empty(&self) -> bool {
        self.arguments.is_empty()
    }

    /// An argument that was written without quotation marks, as JSON.
    pub(super) fn argument(&self, function: &str, key: &str, text: &str) -> String {
        let is_text = self.arguments.get(function).and_then(|arguments| arguments.get(key)).copied();
        let value = serde_json::from_str::<serde_json::Value>(text).ok();
        match value.filter(|value| is_text != Some(true) && !value.is_string()) {
            Some(_) => text.trim().into(),
            None => serde_json::Value::from(text).to_string(),
        }
    }
}

fn field(map: &Value, name: &str) -> Option<Value> {
    map.get_attr(name).ok().filter(|value| !value.is_undefined())
}
