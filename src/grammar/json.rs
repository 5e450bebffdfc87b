//! JSON whose objects keep the order of their members, and have each only once.
//!
//! The order counts for schemas: an answer's properties come in it.

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::HashSet;
use std::fmt;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The member with this key, of an object.
    pub(super) fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(members) => members.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Json::String(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_array(&self) -> Option<&[Json]> {
        if let Json::Array(items) = self { Some(items) } else { None }
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        if let Json::Bool(value) = self { Some(*value) } else { None }
    }

    pub(super) fn as_i64(&self) -> Option<i64> {
        if let Json::Number(number) = self { number.as_i64() } else { None }
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        if let Json::Number(number) = self { number.as_u64() } else { None }
    }

    pub(super) fn as_f64(&self) -> Option<f64> {
        if let Json::Number(number) = self { number.as_f64() } else { None }
    }

    pub(super) fn is_object(&self) -> bool {
        matches!(self, Json::Object(_))
    }

    /// The value as compact text.
    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether two values are equal as a schema compares them: in any order of members, 1 and 1.0 alike.
    pub(super) fn equals(&self, other: &Json) -> bool {
        match (self, other) {
            (Json::Number(a), Json::Number(b)) => a == b || a.as_f64() == b.as_f64(),
            (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b)),
            (Json::Object(a), Json::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(name, a)| other.get(name).is_some_and(|b| a.equals(b)))
            }
            (a, b) => a == b,
        }
    }
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Null => out.serialize_unit(),
            Json::Bool(value) => out.serialize_bool(*value),
            Json::Number(number) => number.serialize(out),
            Json::String(text) => out.serialize_str(text),
            Json::Array(items) => items.serialize(out),
            Json::Object(members) => {
                let mut map = out.serialize_map(Some(members.len()))?;
                for (key, value) in members {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Json, E> {
        let number = serde_json::Number::from_f64(value);
        number.map(Json::Number).ok_or_else(|| E::custom("a number that is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let (mut members, mut seen): (Vec<(String, Json)>, _) = (Vec::new(), HashSet::new());
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("duplicate key `{}`", crate::gguf::shown(&key))));
            }
            let value = map.next_value()?;
            members.push((key, value));
        }
        Ok(Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_and_come_once() {
        let text = r#"{"b":[1,-2,0.5,null],"a":{"z":true,"y":"é\n"}}"#;
        let json: Json = serde_json::from_str(text).unwrap();
        assert_eq!(json.text(), text);
        assert_eq!(json.get("a").and_then(|a| a.get("y")).and_then(Json::as_str), Some("é\n"));
        let twice = serde_json::from_str::<Json>(r#"[{"a":1,"a":2}]"#).unwrap_err();
        assert!(twice.to_string().starts_with("duplicate key `a` at line 1"), "{twice}");
    }
}
