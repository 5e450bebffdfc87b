//! Chat templates: what they render, for whom, and at which price.
#![allow(clippy::unwrap_used)]

mod adapt;
mod goldens;
mod hostile;
mod language;
mod parts;
mod tokens;

#[path = "../testing/mod.rs"]
mod testing;

use elizainference::chat::{ChatTemplate, Inputs, Now};

/// A template's text for inputs, without tokens; or its error.
fn render(source: &str, json: &str) -> Result<String, String> {
    let template = ChatTemplate::new(source, "<s>", "</s>").map_err(|e| e.to_string())?;
    let inputs = Inputs::from_json(json).map_err(|e| e.to_string())?;
    let inputs = inputs.at(Now::parse("2025-02-03T04:05:06").unwrap());
    template.render(&inputs).map(|prompt| prompt.text()).map_err(|e| e.to_string())
}

/// What an expression prints, without messages.
fn print(expression: &str) -> Result<String, String> {
    render(expression, r#"{"messages": []}"#)
}
