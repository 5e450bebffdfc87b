//! Whether no value can match both of two alternatives: what `oneOf` asks for, and a grammar does not check.

use super::gather::{self, ALL_KINDS, FRACTION, INTEGER, Kinds};
use super::numbers::{Bound, Bounds};
use super::shape::Part;
use crate::grammar::json::Json;
use std::collections::HashSet;

/// Whether schemas that hold together, and others that do, have no value in common, as far as that can be seen at up
/// to `depth` levels of required properties.
pub(super) fn are_disjoint<'j>(document: &'j Json, one: &[Part<'j>], other: &[Part<'j>], depth: u32) -> bool {
    let (a, b) = (kinds(one), kinds(other));
    if a & b == 0 {
        return true;
    }
    if let (Some(a), Some(b)) = (values(one), values(other))
        && !a.iter().any(|a| b.iter().any(|b| a.equals(b)))
    {
        return true;
    }
    if a & b & !(INTEGER | FRACTION) == 0 && bounds(one).is_apart(bounds(other)) {
        return true;
    }
    if a & b != gather::OBJECT || depth == 0 {
        return false;
    }
    if lacks(one, other) || lacks(other, one) {
        return true;
    }
    let needed = required(other);
    required(one).into_iter().filter(|name| needed.contains(name)).any(|name| {
        match (property(document, one, name), property(document, other, name)) {
            (Some(one), Some(other)) => are_disjoint(document, &one, &other, depth - 1),
            _ => false,
        }
    })
}

/// What schemas say about a property by its name; `None` where that cannot be read.
fn property<'j>(document: &'j Json, parts: &[Part<'j>], name: &str) -> Option<Vec<Part<'j>>> {
    let mut all = Vec::new();
    for part in parts {
        let Some(node) = part.get("properties").and_then(|list| list.get(name)) else { continue };
        all.extend(gather::gathered(document, &Part::new(node, "")).ok().flatten()?);
    }
    Some(all)
}

/// Whether `one` needs a property that `other` forbids.
fn lacks(one: &[Part], other: &[Part]) -> bool {
    let closed = other.iter().filter(|part| {
        part.get("additionalProperties") == Some(&Json::Bool(false)) && part.get("patternProperties").is_none()
    });
    let needed = required(one);
    closed.into_iter().any(|part| {
        let listed = part.get("properties");
        needed.iter().any(|name| listed.is_none_or(|listed| listed.get(name).is_none()))
    })
}

fn required<'p>(parts: &'p [Part]) -> HashSet<&'p str> {
    let lists = parts.iter().filter_map(|part| match part.get("required") {
        Some(Json::Array(list)) => Some(list),
        _ => None,
    });
    let names = lists.flatten().filter_map(|name| match name {
        Json::String(name) => Some(name.as_str()),
        _ => None,
    });
    names.collect()
}

fn kinds(parts: &[Part]) -> Kinds {
    let typed = parts.iter().fold(ALL_KINDS, |all, part| match gather::typed(part) {
        Ok(Some(kinds)) => all & kinds,
        _ => all,
    });
    match values(parts) {
        None => typed,
        Some(values) => values.iter().fold(0, |all, value| all | kind(value)) & typed,
    }
}

fn kind(value: &Json) -> Kinds {
    match value {
        Json::Null => gather::NULL,
        Json::Bool(_) => gather::BOOLEAN,
        Json::Number(_) => INTEGER | FRACTION,
        Json::String(_) => gather::STRING,
        Json::Array(_) => gather::ARRAY,
        Json::Object(_) => gather::OBJECT,
    }
}

fn values<'p>(parts: &[Part<'p>]) -> Option<Vec<&'p Json>> {
    parts.iter().find_map(|part| match (part.get("const"), part.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Json::Array(list))) => Some(list.iter().collect()),
        _ => None,
    })
}

fn bounds(parts: &[Part]) -> Bounds {
    let mut bounds = Bounds::default();
    for part in parts {
        let number = |keyword: &str| match part.get(keyword) {
            Some(Json::Number(number)) => Some(number),
            _ => None,
        };
        for (keyword, exclusive) in [("minimum", false), ("exclusiveMinimum", true)] {
            if let Some(bound) = number(keyword).map(|number| Bound::of(number, exclusive, true)) {
                bounds.min = Some(bounds.min.map_or(bound, |min| min.higher(bound)));
            }
        }
        for (keyword, exclusive) in [("maximum", false), ("exclusiveMaximum", true)] {
            if let Some(bound) = number(keyword).map(|number| Bound::of(number, exclusive, false)) {
                bounds.max = Some(bounds.max.map_or(bound, |max| max.lower(bound)));
            }
        }
    }
    bounds
}
