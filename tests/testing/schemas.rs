//! A hundred JSON schemas from simple to hard, with texts that they take and texts that they do not.

use serde_json::value::RawValue;

/// A schema of the set.
#[derive(serde::Deserialize)]
pub struct Case {
    pub name: String,
    /// As it is written: the order of properties counts.
    pub schema: Box<RawValue>,
    /// With members in a grammar's order: required ones first, then the others, each in the order of the schema.
    pub valid: Vec<String>,
    pub invalid: Vec<String>,
}

impl Case {
    /// The JSON that hosts hand in.
    pub fn source(&self) -> Vec<u8> {
        format!("{{\"json_schema\": {}}}", self.schema.get()).into_bytes()
    }
}

pub fn all() -> Vec<Case> {
    let lines = include_str!("../grammar/schemas.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}
