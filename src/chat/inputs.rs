//! What a host passes: messages, tools and whatever else a template reads.

use super::clock::Now;
use crate::{Error, Result};
use minijinja::Value;
use minijinja::value::ValueKind;

/// The input that is no template's: the text that the model's turn begins with.
pub(super) const ANSWER_START: &str = "answer_start";

/// What a template is given.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// By name, in the order of the host's JSON.
    pub(super) values: Vec<(String, Value)>,
    pub(super) now: Now,
}

impl Inputs {
    /// Reads a JSON object: `messages` (an array of objects with `role` and `content`), and where wanted `tools`,
    /// `documents`, `add_generation_prompt` and whatever else a template reads, such as `enable_thinking`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where it is not JSON, no object, or has no array `messages` of objects.
    pub fn from_json(json: &str) -> Result<Self> {
        let problem = |what: String| Error::InvalidArgument(format!("chat inputs: {what}"));
        let all: Value = serde_json::from_str(json).map_err(|e| problem(format!("not JSON: {e}")))?;
        if all.kind() != ValueKind::Map {
            return Err(problem(format!("a JSON object is needed, not {}", all.kind())));
        }
        let mut values = Vec::new();
        for key in all.try_iter().into_iter().flatten() {
            let value = all.get_item(&key).unwrap_or_default();
            values.push((key.to_string(), value));
        }
        let inputs = Inputs { values, now: Now::default() };
        match inputs.get("messages") {
            Some(messages) if messages.kind() == ValueKind::Seq => {
                let wrong = messages.try_iter().into_iter().flatten().position(|m| m.kind() != ValueKind::Map);
                wrong.map_or(Ok(()), |n| Err(problem(format!("messages[{n}] is no object"))))?;
            }
            Some(_) => return Err(problem("`messages` is no array".into())),
            None => return Err(problem("there are no `messages`".into())),
        }
        Ok(inputs)
    }

    /// With the moment that `strftime_now` tells.
    #[must_use]
    pub fn at(mut self, now: Now) -> Self {
        self.now = now;
        self
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The text that the model's turn begins with, where one is given.
    pub(super) fn answer_start(&self) -> Result<Option<&str>> {
        let problem = |what: &str| Err(Error::InvalidArgument(format!("chat inputs: `answer_start` {what}")));
        let Some(value) = self.get(ANSWER_START).filter(|value| !value.is_none()) else { return Ok(None) };
        let Some(text) = value.as_str() else { return problem(&format!("is {}, must be a text", value.kind())) };
        match self.get("add_generation_prompt").is_some_and(Value::is_true) {
            true => Ok(Some(text)),
            false => {
                problem("needs `add_generation_prompt`: without it the prompt has no turn of the model's to begin")
            }
        }
    }

    /// Whether there is at least one tool.
    pub(super) fn has_tools(&self) -> bool {
        self.get("tools").is_some_and(|tools| tools.kind() == ValueKind::Seq && tools.is_true())
    }
}
