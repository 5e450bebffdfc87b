//! What was said so far, as a chat template reads it.

use elizainference::chat::Part;
use serde_json::{Value, json};

pub struct Conversation {
    system: Option<String>,
    pub thinking: Option<bool>,
    /// A JSON array, as it was given: templates show the order of its fields.
    tools: Option<String>,
    messages: Vec<Value>,
}

impl Conversation {
    pub fn new(system: Option<String>, thinking: Option<bool>, tools: Option<String>) -> Self {
        Conversation { system, thinking, tools, messages: Vec::new() }
    }

    pub fn reset(&mut self) {
        self.messages.clear();
    }

    pub fn set_system(&mut self, text: &str) {
        self.system = (!text.is_empty()).then(|| text.to_string());
        self.reset();
    }

    pub fn ask(&mut self, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
    }

    /// The result of the call that was made last; false where the last message calls nothing.
    pub fn result(&mut self, text: &str) -> bool {
        let call = self.messages.last().and_then(|message| message["tool_calls"].as_array()?.last());
        let Some(call) = call.cloned() else { return false };
        let result =
            json!({"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text});
        self.messages.push(result);
        true
    }

    /// Takes the last message back, which was not answered.
    pub fn take_back(&mut self) {
        self.messages.pop();
    }

    /// What the model said, after `start`, which was given.
    pub fn answered(&mut self, start: &str, parts: Vec<Part>) {
        let (mut answer, mut reasoning, mut calls) = (start.to_string(), String::new(), Vec::new());
        for part in parts {
            match part {
                Part::Answer { text } => answer.push_str(&text),
                Part::Reasoning { text } => reasoning.push_str(&text),
                Part::ToolCall(call) => {
                    // Ids of nine letters and digits: some templates insist on that.
                    let id = call.id.unwrap_or_else(|| format!("call{:05}", self.messages.len() * 100 + calls.len()));
                    let function = json!({"name": call.name, "arguments": call.arguments});
                    calls.push(json!({"id": id, "type": "function", "function": function}));
                }
            }
        }
        let mut message = json!({"role": "assistant", "content": answer});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.messages.push(message);
    }

    /// The inputs of the next turn; with `answers` up to where the answer begins.
    pub fn inputs(&self, answers: bool, answer_start: Option<&str>) -> String {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.chain(self.messages.iter().cloned()).collect();
        let mut inputs = format!("{{\"messages\": {}, \"add_generation_prompt\": {answers}", Value::from(messages));
        if let Some(thinking) = self.thinking {
            inputs.push_str(&format!(", \"enable_thinking\": {thinking}"));
        }
        if let Some(tools) = &self.tools {
            inputs.push_str(&format!(", \"tools\": {tools}"));
        }
        if let Some(text) = answer_start {
            inputs.push_str(&format!(", \"answer_start\": {}", Value::from(text)));
        }
        inputs + "}"
    }
}
