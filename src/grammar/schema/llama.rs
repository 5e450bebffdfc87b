//! Schemas as llama.cpp's converter reads them.
//!
//! A schema is one of `$ref`, `oneOf`, `anyOf`, a list of types, `const`, `enum`, or what its type says, in this order;
//! what is beside the first of these is ignored, and so is every keyword that is not named here.

use super::formats;
use super::gather::kinds;
use super::numbers::{Bound, Bounds};
use super::places::{refused, resolve};
use super::shape::{All, Array, Object, Others, Part, Property, Reading, Shape, Text};
use crate::gguf::shown;
use crate::grammar::json::Json;
use crate::grammar::regex::Pattern;
use crate::{Error, Result};

/// The most references of `allOf` inside of each other.
const MAX_DEPTH: u32 = 100;

/// Reads a schema.
pub(super) fn read<'j>(document: &'j Json, parts: &[Part<'j>]) -> Result<Reading<'j>> {
    let Some(part) = parts.first() else { return Ok(Reading::Shapes(vec![Shape::Any])) };
    let Json::Object(members) = part.node else { return Err(refused(&part.at, "a schema must be an object")) };
    if let Some(reference) = part.get("$ref") {
        return Ok(Reading::Union(vec![Some(vec![referred(document, part, reference)?])]));
    }
    for keyword in ["oneOf", "anyOf"] {
        if let Some(list) = part.get(keyword) {
            let list = filled(part, keyword, list)?;
            let one = |(index, node)| Some(vec![part.below(node, &format!("{keyword}/{index}"))]);
            return Ok(Reading::Union(list.iter().enumerate().map(one).collect()));
        }
    }
    if let Some(value) = part.get("const") {
        return Ok(Reading::Shapes(vec![Shape::Values(vec![value])]));
    }
    if let Some(list) = part.get("enum") {
        return Ok(Reading::Shapes(vec![Shape::Values(filled(part, "enum", list)?.iter().collect())]));
    }
    let shapes = match part.get("type") {
        Some(Json::Array(_)) => {
            let list = filled(part, "type", part.get("type").unwrap_or(&Json::Null))?;
            list.iter().map(|name| typed(document, part, name)).collect::<Result<Vec<_>>>()?
        }
        Some(name) => vec![typed(document, part, name)?],
        None => vec![untyped(document, part, members.is_empty())?],
    };
    Ok(Reading::Shapes(shapes))
}

fn referred<'j>(document: &'j Json, part: &Part<'j>, reference: &Json) -> Result<Part<'j>> {
    match reference {
        Json::String(reference) => resolve(document, reference, &part.at),
        _ => Err(refused(&part.at, "$ref must be a string")),
    }
}

/// A list that must not be empty.
fn filled<'j>(part: &Part, keyword: &str, list: &'j Json) -> Result<&'j [Json]> {
    match list {
        Json::Array(list) if !list.is_empty() => Ok(list),
        _ => Err(refused(&part.at, format!("{keyword} must be a list that is not empty"))),
    }
}

fn typed<'j>(document: &'j Json, part: &Part<'j>, name: &Json) -> Result<Shape<'j>> {
    let Json::String(name) = name else { return Err(refused(&part.at, "type must be a name or a list of names")) };
    if kinds(name).is_none() {
        return Err(refused(&part.at, format!("unknown type \"{}\"", shown(name))));
    }
    match name.as_str() {
        "object" => object(document, part),
        "array" => array(part),
        "string" => string(part),
        "integer" => integer(part),
        "number" => Ok(Shape::Number(Bounds::default())),
        "boolean" => Ok(Shape::Boolean),
        _ => Ok(Shape::Null),
    }
}

fn untyped<'j>(document: &'j Json, part: &Part<'j>, is_empty: bool) -> Result<Shape<'j>> {
    let has = |keyword: &str| part.get(keyword).is_some();
    let additional = part.get("additionalProperties").is_some_and(|value| *value != Json::Bool(true));
    if is_empty {
        Ok(Shape::Any)
    } else if has("properties") || additional {
        object(document, part)
    } else if has("allOf") {
        all_of(document, part)
    } else if has("items") || has("prefixItems") {
        array(part)
    } else if has("pattern") || has("minLength") || has("maxLength") || format(part).is_some() {
        string(part)
    } else {
        Ok(Shape::Any)
    }
}

fn properties<'j>(part: &Part<'j>, required: impl Fn(&str) -> bool) -> Result<Vec<Property<'j>>> {
    let below = |name: &str, node| Some(vec![part.below(node, &format!("properties/{name}"))]);
    match part.get("properties") {
        None => Ok(Vec::new()),
        Some(Json::Object(list)) => {
            let one = |(name, node): &'j (String, Json)| Property {
                name,
                value: below(name, node),
                required: required(name),
            };
            Ok(list.iter().map(one).collect())
        }
        Some(_) => Err(refused(&part.at, "properties must be an object")),
    }
}

fn object<'j>(document: &'j Json, part: &Part<'j>) -> Result<Shape<'j>> {
    if part.get("allOf").is_some() && part.get("properties").is_none() {
        return all_of(document, part);
    }
    let names: Vec<&str> = match part.get("required") {
        Some(Json::Array(list)) => list
            .iter()
            .filter_map(|name| match name {
                Json::String(name) => Some(name.as_str()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    };
    let names: std::collections::HashSet<&str> = names.into_iter().collect();
    let properties = properties(part, |name| names.contains(name))?;
    let any = || Others { names: None, value: Some(Vec::new()) };
    let others = match part.get("additionalProperties") {
        Some(Json::Bool(false)) => None,
        Some(Json::Bool(true)) => Some(any()),
        Some(node) => Some(Others { names: None, value: Some(vec![part.below(node, "additionalProperties")]) }),
        None => part.get("properties").is_none().then(any),
    };
    Ok(Shape::Object(Object { properties, others, min: 0, max: None }))
}

/// All components' properties, required; those of alternatives are optional. Of several lists of values, those in all.
fn all_of<'j>(document: &'j Json, part: &Part<'j>) -> Result<Shape<'j>> {
    let (mut all, mut values) = (Vec::new(), Vec::new());
    let list = filled(part, "allOf", part.get("allOf").unwrap_or(&Json::Null))?;
    for (index, node) in list.iter().enumerate() {
        component(document, &part.below(node, &format!("allOf/{index}")), true, 0, &mut all, &mut values)?;
    }
    if let Some((first, others)) = values.split_first() {
        let common = first.iter().filter(|value| others.iter().all(|list| list.iter().any(|v| v.equals(value))));
        return Ok(Shape::Values(common.collect()));
    }
    let mut known = std::collections::HashSet::new();
    all.retain(|property: &Property| known.insert(property.name));
    Ok(Shape::Object(Object { properties: all, others: None, min: 0, max: None }))
}

fn component<'j>(
    document: &'j Json,
    part: &Part<'j>,
    required: bool,
    depth: u32,
    all: &mut Vec<Property<'j>>,
    values: &mut Vec<&'j [Json]>,
) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(refused(&part.at, "a circle of $ref"));
    }
    if let Some(reference) = part.get("$ref") {
        let target = referred(document, part, reference)?;
        return component(document, &target, required, depth + 1, all, values);
    }
    if let Some(Json::Array(list)) = part.get("anyOf") {
        for (index, node) in list.iter().enumerate() {
            component(document, &part.below(node, &format!("anyOf/{index}")), false, depth + 1, all, values)?;
        }
    }
    if let Some(list) = part.get("enum") {
        values.push(filled(part, "enum", list)?);
    }
    all.extend(properties(part, |_| required)?);
    Ok(())
}

fn count(part: &Part, keyword: &str) -> Result<Option<u64>> {
    match part.get(keyword) {
        None => Ok(None),
        Some(Json::Number(number)) if number.as_u64().is_some() => Ok(number.as_u64()),
        Some(_) => Err(refused(&part.at, format!("{keyword} must be a whole number, 0 or more"))),
    }
}

fn array<'j>(part: &Part<'j>) -> Result<Shape<'j>> {
    let tuple = |keyword: &'static str| match part.get(keyword) {
        Some(Json::Array(list)) => Some((keyword, list)),
        _ => None,
    };
    if let Some((keyword, list)) = tuple("items").or(tuple("prefixItems")) {
        let item = |(index, node)| -> All<'j> { Some(vec![part.below(node, &format!("{keyword}/{index}"))]) };
        let first = list.iter().enumerate().map(item).collect();
        return Ok(Shape::Array(Array { first, rest: None, min: 0, max: None }));
    }
    let rest = match part.get("items") {
        Some(node) => vec![part.below(node, "items")],
        None => Vec::new(),
    };
    let (min, max) = (count(part, "minItems")?.unwrap_or(0), count(part, "maxItems")?);
    Ok(Shape::Array(Array { first: Vec::new(), rest: Some(Some(rest)), min, max }))
}

fn format(part: &Part) -> Option<String> {
    match part.get("format") {
        Some(Json::String(format)) => formats::llama_pattern(format),
        _ => None,
    }
}

fn string<'j>(part: &Part<'j>) -> Result<Shape<'j>> {
    let any = Shape::String(Text::Length(0, None));
    if let Some(Json::String(pattern)) = part.get("pattern") {
        let Some(inner) = pattern.strip_prefix('^').and_then(|p| p.strip_suffix('$')) else { return Ok(any) };
        // Escapes that GBNF has not make it any string.
        let mut chars = inner.chars();
        while let Some(c) = chars.next() {
            if c == '\\' && chars.next().is_some_and(|c| c.is_ascii_alphanumeric() && !"rntxu".contains(c)) {
                return Ok(any);
            }
        }
        return match Pattern::parse(&format!("^({inner})$")) {
            Ok(pattern) => Ok(Shape::String(Text::Spelled(pattern))),
            Err(Error::Unsupported(_)) => Ok(any),
            Err(Error::InvalidArgument(problem)) => Err(refused(&part.at, format!("pattern: {problem}"))),
            Err(other) => Err(other),
        };
    }
    if let Some(pattern) = format(part) {
        return Ok(Shape::String(Text::Spelled(Pattern::parse(&pattern)?)));
    }
    Ok(Shape::String(Text::Length(count(part, "minLength")?.unwrap_or(0), count(part, "maxLength")?)))
}

fn integer<'j>(part: &Part<'j>) -> Result<Shape<'j>> {
    let bound = |keyword: &str, other: &str, up: bool| -> Result<Option<Bound>> {
        for (keyword, exclusive) in [(keyword, false), (other, true)] {
            match part.get(keyword) {
                None | Some(Json::Bool(_)) => {}
                Some(Json::Number(number)) => return Ok(Some(Bound::of(number, exclusive, up))),
                Some(_) => return Err(refused(&part.at, format!("{keyword} must be a number"))),
            }
        }
        Ok(None)
    };
    let min = bound("minimum", "exclusiveMinimum", true)?;
    let max = bound("maximum", "exclusiveMaximum", false)?;
    Ok(Shape::Integer(Bounds { min, max }))
}
