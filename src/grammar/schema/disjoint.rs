//! Whether no value can match both of two alternatives: what `oneOf` asks for, and a grammar does not check.

use super::gather::{self, ALL_KINDS, FRACTION, INTEGER, Kinds};
use super::numbers::{Bound, Bounds};
use super::places::refused;
use super::shape::{All, Part};
use crate::Result;
use crate::grammar::json::Json;
use std::cell::Cell;
use std::collections::HashSet;

/// The most schemas of alternatives that are looked into, in all `oneOf` of a document.
pub(super) const EFFORT: u32 = 1_000_000;

/// Compares schemas of a document.
pub(super) struct Comparison<'j, 'e> {
    pub document: &'j Json,
    /// How many schemas may still be looked into. What is beyond is not seen.
    pub left: &'e Cell<u32>,
}

impl<'j> Comparison<'j, '_> {
    /// Whether schemas that hold together, and others that do, have no value in common, as far as that can be seen at
    /// up to `depth` levels of required properties and of alternatives.
    pub(super) fn are_disjoint(&self, one: &[Part<'j>], other: &[Part<'j>], depth: u32) -> bool {
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
        if depth == 0 {
            return false;
        }
        if self.all_disjoint(one, other, depth) || self.all_disjoint(other, one, depth) {
            return true;
        }
        if a & b != gather::OBJECT {
            return false;
        }
        if lacks(one, other) || lacks(other, one) {
            return true;
        }
        let needed = required(other);
        required(one).into_iter().filter(|name| needed.contains(name)).any(|name| {
            match (self.property(one, name), self.property(other, name)) {
                (Some(one), Some(other)) => self.are_disjoint(&one, &other, depth - 1),
                _ => false,
            }
        })
    }

    /// Whether `one` has a choice of alternatives, and no value of `other` can match any of them.
    fn all_disjoint(&self, one: &[Part<'j>], other: &[Part<'j>], depth: u32) -> bool {
        let choices = one.iter().flat_map(|part| {
            [("oneOf", part.one_of), ("anyOf", part.any_of)]
                .map(|(keyword, taken)| part.get(keyword).filter(|_| !taken))
        });
        let lists = choices.filter_map(|choice| match choice {
            Some(Json::Array(list)) => Some(list),
            _ => None,
        });
        lists.into_iter().any(|list| {
            list.iter().all(|node| match self.gathered(node) {
                Ok(Some(parts)) => self.are_disjoint(&parts, other, depth - 1),
                Ok(None) => true,
                Err(_) => false,
            })
        })
    }

    /// What schemas say about a property by its name; `None` where that cannot be read.
    fn property(&self, parts: &[Part<'j>], name: &str) -> Option<Vec<Part<'j>>> {
        let mut all = Vec::new();
        for part in parts {
            let Some(node) = part.get("properties").and_then(|list| list.get(name)) else { continue };
            all.extend(self.gathered(node).ok().flatten()?);
        }
        Some(all)
    }

    fn gathered(&self, node: &'j Json) -> Result<All<'j>> {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.ok_or_else(|| refused("", "too many alternatives"))?);
        gather::gathered(self.document, &Part::new(node, ""))
    }
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
