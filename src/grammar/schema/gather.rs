//! Schemas that hold together: a schema, what it refers to and its `allOf`; and the kinds of values that they allow.

use super::places::{refused, resolve};
use super::shape::{All, Part};
use crate::Result;
use crate::gguf::shown;
use crate::grammar::json::Json;

/// The most schemas that hold together.
pub(super) const MAX_PARTS: usize = 1000;

/// Kinds of values, as bits.
pub(super) type Kinds = u8;
pub(super) const OBJECT: Kinds = 1;
pub(super) const ARRAY: Kinds = 2;
pub(super) const STRING: Kinds = 4;
pub(super) const INTEGER: Kinds = 8;
/// Numbers with a fraction; a number is this or an integer.
pub(super) const FRACTION: Kinds = 16;
pub(super) const BOOLEAN: Kinds = 32;
pub(super) const NULL: Kinds = 64;
pub(super) const ALL_KINDS: Kinds = 127;

/// The kinds of a type's name.
pub(super) fn kinds(name: &str) -> Option<Kinds> {
    Some(match name {
        "object" => OBJECT,
        "array" => ARRAY,
        "string" => STRING,
        "integer" => INTEGER,
        "number" => INTEGER | FRACTION,
        "boolean" => BOOLEAN,
        "null" => NULL,
        _ => return None,
    })
}

/// The kinds that the keyword `type` of a schema allows.
pub(super) fn typed(part: &Part) -> Result<Option<Kinds>> {
    let one = |name: &Json| match name {
        Json::String(name) => kinds(name).ok_or_else(|| refused(&part.at, format!("unknown type \"{}\"", shown(name)))),
        _ => Err(refused(&part.at, "type must be a name or a list of names")),
    };
    match part.get("type") {
        None => Ok(None),
        Some(Json::Array(list)) if list.is_empty() => Err(refused(&part.at, "type must not be empty")),
        Some(Json::Array(list)) => list.iter().try_fold(0, |all, name| Ok(all | one(name)?)).map(Some),
        Some(name) => one(name).map(Some),
    }
}

/// A schema, what it refers to and its `allOf`, as one list.
pub(super) fn gathered<'j>(document: &'j Json, part: &Part<'j>) -> Result<All<'j>> {
    let mut found = Vec::new();
    let possible = gather(document, part, &mut Vec::new(), &mut found)?;
    Ok(possible.then_some(found))
}

fn gather<'j>(document: &'j Json, part: &Part<'j>, path: &mut Vec<usize>, found: &mut Vec<Part<'j>>) -> Result<bool> {
    match part.node {
        Json::Bool(possible) => return Ok(*possible),
        Json::Object(_) => {}
        _ => return Err(refused(&part.at, "a schema must be an object or a boolean")),
    }
    let (identity, _) = part.identity();
    if path.contains(&identity) {
        return Err(refused(&part.at, "a circle of $ref without anything between"));
    }
    if path.len() >= 200 || found.len() >= MAX_PARTS {
        return Err(refused(&part.at, format!("more than {MAX_PARTS} schemas that hold together")));
    }
    if !found.iter().any(|known| known.identity() == part.identity()) {
        found.push(part.clone());
    }
    path.push(identity);
    let mut possible = true;
    match part.get("$ref") {
        None => {}
        Some(Json::String(reference)) => {
            possible &= gather(document, &resolve(document, reference, &part.at)?, path, found)?;
        }
        Some(_) => return Err(refused(&part.at, "$ref must be a string")),
    }
    match part.get("allOf") {
        None => {}
        Some(Json::Array(list)) => {
            for (index, node) in list.iter().enumerate() {
                possible &= gather(document, &part.below(node, &format!("allOf/{index}")), path, found)?;
            }
        }
        Some(_) => return Err(refused(&part.at, "allOf must be a list")),
    }
    path.pop();
    Ok(possible)
}
