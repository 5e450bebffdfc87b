//! Schemas as the standard means them: every keyword of schemas that hold together is kept, or refused by name.

use super::disjoint::Comparison;
use super::formats;
use super::gather::{
    ALL_KINDS, ARRAY, BOOLEAN, FRACTION, INTEGER, Kinds, MAX_PARTS, NULL, OBJECT, STRING, gathered, typed,
};
use super::multiples::Multiple;
use super::numbers::{Bound, Bounds};
use super::options::Keywords;
use super::places::refused;
use super::shape::{All, Array, Object, Others, Part, Property, Reading, Shape, Text};
use crate::gguf::shown;
use crate::grammar::json::Json;
use crate::grammar::regex::Pattern;
use crate::{Error, Result};
use std::cell::Cell;
use std::collections::HashSet;

/// Reads schemas that hold together; `left` bounds what alternatives are compared by.
pub(super) fn read<'j>(
    document: &'j Json,
    keywords: Keywords,
    parts: &[Part<'j>],
    left: &Cell<u32>,
) -> Result<Reading<'j>> {
    Reader { document, keywords, parts, left }.read()
}

/// Sets of values after which another may come, of one array of distinct values: 10 values in any order.
const MAX_SETS: u64 = 1_024;

struct Reader<'j, 'p> {
    document: &'j Json,
    keywords: Keywords,
    parts: &'p [Part<'j>],
    left: &'p Cell<u32>,
}

impl<'j> Reader<'j, '_> {
    /// Refuses what a grammar cannot keep, unless it may be ignored.
    fn unsupported(&self, part: &Part, keyword: &str, why: &str) -> Result<()> {
        match self.keywords {
            Keywords::Exact => {
                let place = shown(&format!("{}/{keyword}", part.at));
                Err(Error::Unsupported(format!("JSON schema, #{place}: a grammar cannot keep it{why}")))
            }
            _ => Ok(()),
        }
    }

    fn read(&self) -> Result<Reading<'j>> {
        for part in self.parts {
            match part.get("not") {
                Some(Json::Bool(true)) => return Ok(Reading::Shapes(Vec::new())),
                Some(Json::Object(members)) if members.is_empty() => return Ok(Reading::Shapes(Vec::new())),
                None | Some(Json::Bool(false)) => {}
                Some(_) => self.unsupported(part, "not", "")?,
            }
            for keyword in ["if", "$dynamicRef", "$recursiveRef"] {
                let alone = keyword == "if" && part.get("then").is_none() && part.get("else").is_none();
                if part.get(keyword).is_some() && !alone {
                    self.unsupported(part, keyword, "")?;
                }
            }
        }
        for (index, part) in self.parts.iter().enumerate() {
            for (keyword, taken) in [("anyOf", part.any_of), ("oneOf", part.one_of)] {
                if let Some(list) = part.get(keyword).filter(|_| !taken) {
                    return self.alternatives(index, keyword, list);
                }
            }
        }
        let kinds = self.kinds()?;
        if let Some(values) = self.values(kinds.unwrap_or(ALL_KINDS))? {
            return Ok(Reading::Shapes(vec![Shape::Values(values)]));
        }
        let allowed = kinds.unwrap_or_else(|| self.inferred());
        if allowed == ALL_KINDS && self.inferred() == ALL_KINDS {
            return Ok(Reading::Shapes(vec![Shape::Any]));
        }
        let mut shapes = Vec::new();
        if allowed & OBJECT != 0 {
            shapes.push(self.object()?);
        }
        if allowed & ARRAY != 0 {
            shapes.extend(self.array()?);
        }
        if allowed & STRING != 0 {
            shapes.extend(self.string()?);
        }
        if allowed & (INTEGER | FRACTION) != 0 {
            shapes.push(self.number(allowed & FRACTION != 0)?);
        }
        if allowed & BOOLEAN != 0 {
            shapes.push(Shape::Boolean);
        }
        if allowed & NULL != 0 {
            shapes.push(Shape::Null);
        }
        Ok(Reading::Shapes(shapes))
    }

    /// The kinds that all `type`s allow, where there is one.
    fn kinds(&self) -> Result<Option<Kinds>> {
        let mut allowed = None;
        for part in self.parts {
            if let Some(kinds) = typed(part)? {
                allowed = Some(allowed.unwrap_or(ALL_KINDS) & kinds);
            }
        }
        Ok(allowed)
    }

    /// The kinds that keywords speak of, where no `type` does.
    fn inferred(&self) -> Kinds {
        let has = |keywords: &[&str]| self.parts.iter().any(|part| keywords.iter().any(|k| part.get(k).is_some()));
        let object =
            ["properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"];
        if has(&object) || has(&["maxProperties", "dependentRequired", "dependentSchemas", "dependencies"]) {
            OBJECT
        } else if has(&["items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"]) {
            ARRAY
        } else if has(&["pattern", "minLength", "maxLength"]) || self.format().is_some() {
            STRING
        } else if has(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) {
            INTEGER | FRACTION
        } else {
            ALL_KINDS
        }
    }

    fn alternatives(&self, index: usize, keyword: &str, list: &'j Json) -> Result<Reading<'j>> {
        let part = &self.parts[index];
        let Json::Array(list) = list else { return Err(refused(&part.at, format!("{keyword} must be a list"))) };
        if list.is_empty() {
            return Err(refused(&part.at, format!("{keyword} must not be empty")));
        }
        let mut union = Vec::new();
        for (number, node) in list.iter().enumerate() {
            let chosen = gathered(self.document, &part.below(node, &format!("{keyword}/{number}")))?;
            let Some(chosen) = chosen else { continue };
            let mut all = self.parts.to_vec();
            match keyword {
                "anyOf" => all[index].any_of = true,
                _ => all[index].one_of = true,
            }
            for part in chosen {
                // What was taken of a part already stays taken; one whose choice is still to be made is read again.
                let same = |known: &&Part<'_>| known.identity().0 == part.identity().0;
                let is_whole = !part.any_of && !part.one_of;
                if !all.iter().any(|known| same(&known)) || is_whole && !self.parts.iter().any(|known| same(&known)) {
                    all.push(part);
                }
            }
            if all.len() > MAX_PARTS {
                return Err(refused(&part.at, format!("more than {MAX_PARTS} schemas that hold together")));
            }
            union.push(all);
        }
        if keyword == "oneOf" && self.keywords == Keywords::Exact {
            let comparison = Comparison { document: self.document, left: self.left };
            for (i, one) in union.iter().enumerate() {
                if let Some(j) = (0..i).find(|&j| !comparison.are_disjoint(one, &union[j], 3)) {
                    self.unsupported(part, keyword, &format!(": alternatives {j} and {i} may both match"))?;
                }
            }
        }
        Ok(Reading::Union(union.into_iter().map(Some).collect()))
    }

    /// The values of `const` and `enum`, those that the other keywords take.
    fn values(&self, allowed: Kinds) -> Result<Option<Vec<&'j Json>>> {
        let mut values: Option<Vec<&'j Json>> = None;
        for part in self.parts {
            let given: Vec<&'j Json> = match (part.get("const"), part.get("enum")) {
                (Some(value), _) => vec![value],
                (None, Some(Json::Array(list))) if !list.is_empty() => list.iter().collect(),
                (None, Some(_)) => return Err(refused(&part.at, "enum must be a list that is not empty")),
                (None, None) => continue,
            };
            values = Some(match values {
                None => given,
                Some(before) if before.len() * given.len() > 1 << 22 => {
                    let texts: HashSet<String> = given.iter().map(|value| value.text()).collect();
                    before.into_iter().filter(|value| texts.contains(&value.text())).collect()
                }
                Some(before) => before.into_iter().filter(|a| given.iter().any(|b| a.equals(b))).collect(),
            });
        }
        let Some(values) = values else { return Ok(None) };
        let (min, max) = self.lengths("minLength", "maxLength")?;
        let (bounds, multiple) = (self.bounds()?, self.multiple(None)?);
        let takes = |value: &&'j Json| match value {
            Json::String(text) => {
                let count = text.chars().count() as u64;
                allowed & STRING != 0 && count >= min && max.is_none_or(|max| count <= max)
            }
            Json::Number(number) => {
                let kind = if number.is_f64() && number.as_f64().is_some_and(|n| n.fract() != 0.0) {
                    FRACTION
                } else {
                    INTEGER
                };
                allowed & kind != 0 && bounds.has(number) && multiple.is_none_or(|multiple| multiple.has(number))
            }
            Json::Bool(_) => allowed & BOOLEAN != 0,
            Json::Null => allowed & NULL != 0,
            Json::Array(_) => allowed & ARRAY != 0,
            Json::Object(_) => allowed & OBJECT != 0,
        };
        let values: Vec<&'j Json> = values.into_iter().filter(takes).collect();
        let has = |kind: fn(&Json) -> bool| values.iter().any(|value| kind(value));
        let beside = [
            ("pattern", has(|v| matches!(v, Json::String(_)))),
            ("properties", has(|v| matches!(v, Json::Object(_)))),
            ("items", has(|v| matches!(v, Json::Array(_)))),
        ];
        for part in self.parts {
            for (keyword, counts) in beside {
                if counts && part.get(keyword).is_some() {
                    self.unsupported(part, keyword, " beside const or enum")?;
                }
            }
        }
        Ok(Some(values))
    }

    /// A count that is a keyword's value.
    fn count(&self, part: &Part, keyword: &str) -> Result<Option<u64>> {
        let Some(value) = part.get(keyword) else { return Ok(None) };
        let count = match value {
            Json::Number(number) => {
                let whole = number.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0).map(|n| n as u64);
                number.as_u64().or(whole)
            }
            _ => None,
        };
        count.map(Some).ok_or_else(|| refused(&part.at, format!("{keyword} must be a whole number, 0 or more")))
    }

    fn lengths(&self, least: &str, most: &str) -> Result<(u64, Option<u64>)> {
        let (mut min, mut max) = (0, None);
        for part in self.parts {
            min = min.max(self.count(part, least)?.unwrap_or(0));
            max = match (max, self.count(part, most)?) {
                (Some(a), Some(b)) => Some(u64::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        Ok((min, max))
    }

    fn format(&self) -> Option<(&Part<'j>, String)> {
        self.parts.iter().find_map(|part| match part.get("format") {
            Some(Json::String(format)) => formats::pattern(format).map(|pattern| (part, pattern)),
            _ => None,
        })
    }

    fn string(&self) -> Result<Option<Shape<'j>>> {
        let (min, max) = self.lengths("minLength", "maxLength")?;
        if max.is_some_and(|max| max < min) {
            return Ok(None);
        }
        let mut patterns: Vec<(&Part, &str, &str)> = Vec::new();
        for part in self.parts {
            match part.get("pattern") {
                None => {}
                Some(Json::String(pattern)) if patterns.iter().all(|(.., known)| known != pattern) => {
                    patterns.push((part, "pattern", pattern));
                }
                Some(Json::String(_)) => {}
                Some(_) => return Err(refused(&part.at, "pattern must be a string")),
            }
        }
        let format = self.format();
        if let Some((part, pattern)) = &format {
            patterns.push((part, "format", pattern));
        }
        let mut text = Text::Length(min, max);
        let mut is_first = true;
        for (part, keyword, pattern) in patterns {
            if !is_first {
                self.unsupported(part, keyword, " beside another pattern or format")?;
                continue;
            }
            is_first = false;
            let at = |error: Error| match error {
                Error::Unsupported(problem) => {
                    Error::Unsupported(format!("JSON schema, #{}/{keyword}: {problem}", shown(&part.at)))
                }
                Error::InvalidArgument(problem) => refused(&part.at, format!("{keyword}: {problem}")),
                other => other,
            };
            let parsed = match Pattern::parse(pattern).map_err(at) {
                Err(Error::Unsupported(_)) if self.keywords == Keywords::Lenient => continue,
                parsed => parsed?,
            };
            match parsed.within(min, max) {
                Some(parsed) => text = Text::Pattern(parsed),
                None => {
                    self.unsupported(part, keyword, " beside minLength and maxLength")?;
                    text = Text::Pattern(Pattern::parse(pattern).map_err(at)?);
                }
            }
        }
        Ok(Some(Shape::String(text)))
    }

    fn bounds(&self) -> Result<Bounds> {
        let mut bounds = Bounds::default();
        for part in self.parts {
            let number = |keyword: &str| match part.get(keyword) {
                None | Some(Json::Bool(_)) => Ok(None),
                Some(Json::Number(number)) => Ok(Some(number)),
                Some(_) => Err(refused(&part.at, format!("{keyword} must be a number"))),
            };
            // In the fourth draft the exclusive ones are flags.
            let flag = |keyword: &str| part.get(keyword) == Some(&Json::Bool(true));
            let lows = [("minimum", flag("exclusiveMinimum")), ("exclusiveMinimum", true)];
            for (keyword, exclusive) in lows {
                if let Some(bound) = number(keyword)?.map(|number| Bound::of(number, exclusive, true)) {
                    bounds.min = Some(bounds.min.map_or(bound, |min| min.higher(bound)));
                }
            }
            let highs = [("maximum", flag("exclusiveMaximum")), ("exclusiveMaximum", true)];
            for (keyword, exclusive) in highs {
                if let Some(bound) = number(keyword)?.map(|number| Bound::of(number, exclusive, false)) {
                    bounds.max = Some(bounds.max.map_or(bound, |max| max.lower(bound)));
                }
            }
        }
        Ok(bounds)
    }

    fn number(&self, fractions: bool) -> Result<Shape<'j>> {
        let bounds = self.bounds()?;
        Ok(match self.multiple((!fractions).then_some(Multiple::OF_ONE))? {
            None => Shape::Number(bounds),
            Some(Multiple::OF_ONE) => Shape::Integer(bounds),
            Some(multiple) => Shape::Multiple(multiple, bounds),
        })
    }

    /// What a number is a multiple of, besides `multiple`.
    fn multiple(&self, mut multiple: Option<Multiple>) -> Result<Option<Multiple>> {
        for part in self.parts {
            let number = match part.get("multipleOf") {
                None => continue,
                Some(Json::Number(number)) if number.as_f64().is_some_and(|number| number > 0.0) => number,
                Some(_) => return Err(refused(&part.at, "multipleOf must be a number above 0")),
            };
            let all = Multiple::of(number).and_then(|one| multiple.unwrap_or(one).and(one));
            match all {
                Some(_) => multiple = all,
                None => self.unsupported(part, "multipleOf", ": it is too fine, or would take too many rules")?,
            }
        }
        Ok(multiple)
    }

    fn array(&self) -> Result<Option<Shape<'j>>> {
        let (min, max) = self.lengths("minItems", "maxItems")?;
        if max.is_some_and(|max| max < min) {
            return Ok(None);
        }
        let first_of = |part: &Part<'j>| match (part.get("prefixItems"), part.get("items")) {
            (Some(Json::Array(list)), _) => Some(("prefixItems", list, "items")),
            (None, Some(Json::Array(list))) => Some(("items", list, "additionalItems")),
            _ => None,
        };
        let length = self.parts.iter().filter_map(first_of).map(|(_, list, _)| list.len()).max().unwrap_or(0);
        for part in self.parts {
            if part.get("contains").is_some() {
                self.unsupported(part, "contains", "")?;
            }
            let closed = part.get("items").is_some() || length > 0 || max == Some(0);
            if part.get("unevaluatedItems").is_some() && !closed {
                self.unsupported(part, "unevaluatedItems", "")?;
            }
        }
        let mut first = Vec::new();
        for index in 0..=length {
            // The last round is for all items after the first ones.
            let mut all: All<'j> = Some(Vec::new());
            for part in self.parts {
                let (node, path) = match first_of(part) {
                    Some((keyword, list, _)) if index < list.len() => (&list[index], format!("{keyword}/{index}")),
                    Some((.., others)) => match part.get(others) {
                        Some(node) => (node, others.to_owned()),
                        None => continue,
                    },
                    None => match part.get("items") {
                        Some(node) => (node, "items".to_owned()),
                        None => continue,
                    },
                };
                let more = gathered(self.document, &part.below(node, &path))?;
                all = joined(all, more);
            }
            first.push(all);
        }
        let rest = first.pop().flatten();
        let given = self.parts.iter().any(|part| match first_of(part) {
            Some((.., others)) => part.get(others).is_some(),
            None => part.get("items").is_some(),
        });
        // A tuple is whole, and goes on only where the schema says with what, or that there is more.
        let open = length == 0 || given || min > length as u64;
        let rest = if open && rest.is_some() { Some(rest) } else { None };
        let unique = |part: &&Part<'j>| part.get("uniqueItems") == Some(&Json::Bool(true));
        if let Some(part) = self.parts.iter().find(unique).filter(|_| max.is_none_or(|max| max > 1)) {
            let set = match &rest {
                Some(item) if first.is_empty() => self.set(item, min, max)?,
                _ => None,
            };
            match set {
                Some(set) => return Ok(Some(set)),
                None => self.unsupported(part, "uniqueItems", " but for a few values of an enum")?,
            }
        }
        Ok(Some(Shape::Array(Array { first, rest, min, max })))
    }

    /// An array of items that differ; `None` where their values are not listed, or are too many.
    fn set(&self, item: &All<'j>, min: u64, max: Option<u64>) -> Result<Option<Shape<'j>>> {
        let listed = match item {
            None => Some(Vec::new()),
            Some(parts) => {
                let item = Reader { parts, ..*self };
                let is_more = |part: &Part| ["anyOf", "oneOf", "not", "if"].iter().any(|key| part.get(key).is_some());
                if parts.iter().any(is_more) {
                    return Ok(None);
                }
                item.values(item.kinds()?.unwrap_or(ALL_KINDS))?
            }
        };
        let Some(listed) = listed.filter(|listed| listed.len() <= 64) else { return Ok(None) };
        let mut values: Vec<&'j Json> = Vec::new();
        for value in listed {
            if !values.iter().any(|known| known.equals(value)) {
                values.push(value);
            }
        }
        let count = values.len() as u64;
        let max = max.unwrap_or(count).min(count);
        // Sets after which more may come: of each size as many as there are ways to choose so many.
        let (mut sets, mut chosen) = (0u64, 1u64);
        for size in 0..max {
            sets = sets.saturating_add(chosen);
            chosen = chosen.saturating_mul(count - size) / (size + 1);
        }
        Ok((sets <= MAX_SETS).then_some(Shape::Set(values, min, max)))
    }

    fn object(&self) -> Result<Shape<'j>> {
        let (min, max) = self.lengths("minProperties", "maxProperties")?;
        for part in self.parts {
            for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
                if part.get(keyword).is_some() {
                    self.unsupported(part, keyword, "")?;
                }
            }
        }
        let required = self.required()?;
        let mut names: Vec<&'j str> = Vec::new();
        let mut known = HashSet::new();
        let mut listed = false;
        for part in self.parts {
            match part.get("properties") {
                None => {}
                Some(Json::Object(members)) => {
                    listed = true;
                    names.extend(members.iter().map(|(name, _)| name.as_str()).filter(|name| known.insert(*name)));
                }
                Some(_) => return Err(refused(&part.at, "properties must be an object")),
            }
        }
        names.extend(required.iter().copied().filter(|name| known.insert(*name)));
        let is_required: HashSet<&str> = required.iter().copied().collect();
        let mut properties = Vec::new();
        for name in names {
            let value = self.property(name)?;
            let required = is_required.contains(name);
            properties.push(Property { name, value, required });
        }
        let others = self.others(listed, properties.is_empty())?;
        self.check_members(&properties, others.is_some(), (min, max))?;
        Ok(Shape::Object(Object { properties, others, min, max }))
    }

    fn required(&self) -> Result<Vec<&'j str>> {
        let mut names = Vec::new();
        for part in self.parts {
            match part.get("required") {
                None | Some(Json::Bool(_)) => {}
                Some(Json::Array(list)) => {
                    for name in list {
                        let Json::String(name) = name else {
                            return Err(refused(&part.at, "required must be a list of names"));
                        };
                        names.push(name.as_str());
                    }
                }
                Some(_) => return Err(refused(&part.at, "required must be a list of names")),
            }
        }
        Ok(names)
    }

    /// All that the schemas say about one property.
    fn property(&self, name: &str) -> Result<All<'j>> {
        let mut all: All<'j> = Some(Vec::new());
        for part in self.parts {
            let mut named = false;
            if let Some(node) = part.get("properties").and_then(|list| list.get(name)) {
                let step = name.replace('~', "~0").replace('/', "~1");
                all = joined(all, gathered(self.document, &part.below(node, &format!("properties/{step}")))?);
                named = true;
            }
            if let Some(Json::Object(patterns)) = part.get("patternProperties") {
                for (pattern, node) in patterns {
                    let Ok(matcher) = regex_lite::Regex::new(pattern) else {
                        self.unsupported(part, "patternProperties", "")?;
                        continue;
                    };
                    if matcher.is_match(name) {
                        let below = part.below(node, "patternProperties");
                        all = joined(all, gathered(self.document, &below)?);
                        named = true;
                    }
                }
            }
            if let Some(node) = part.get("additionalProperties").filter(|_| !named) {
                all = joined(all, gathered(self.document, &part.below(node, "additionalProperties"))?);
            }
        }
        Ok(all)
    }

    /// What members there may be beside the listed ones.
    fn others(&self, listed: bool, none_named: bool) -> Result<Option<Others<'j>>> {
        let has = |keyword: &'static str| self.parts.iter().filter(move |part| part.get(keyword).is_some());
        let explicit = has("additionalProperties").next().is_some();
        for part in has("propertyNames").filter(|_| !none_named || listed) {
            self.unsupported(part, "propertyNames", " beside properties")?;
        }
        for part in has("unevaluatedProperties").filter(|_| explicit || !listed) {
            self.unsupported(part, "unevaluatedProperties", " where properties are not listed")?;
        }
        let mut value: All<'j> = Some(Vec::new());
        let mut patterns = has("patternProperties");
        if let Some(part) = patterns.next() {
            let Some(Json::Object(list)) = part.get("patternProperties") else {
                return Err(refused(&part.at, "patternProperties must be an object"));
            };
            // Beside listed names, members of patterns are left out.
            if !none_named || listed || list.is_empty() {
                return Ok(None);
            }
            if list.len() > 1 || patterns.next().is_some() || has("propertyNames").next().is_some() {
                self.unsupported(part, "patternProperties", " of several patterns")?;
            }
            let (pattern, node) = &list[0];
            value = joined(value, gathered(self.document, &part.below(node, "patternProperties"))?);
            let names = Pattern::parse(pattern).map_err(|error| match error {
                Error::InvalidArgument(problem) => refused(&part.at, format!("patternProperties: {problem}")),
                other => other,
            })?;
            return Ok(value
                .is_some()
                .then_some(Others { names: Some(vec![Shape::String(Text::Pattern(names))]), value }));
        }
        if listed && !explicit {
            return Ok(None);
        }
        for part in self.parts {
            if let Some(node) = part.get("additionalProperties") {
                value = joined(value, gathered(self.document, &part.below(node, "additionalProperties"))?);
            }
        }
        if value.is_none() {
            return Ok(None);
        }
        Ok(Some(Others { names: if none_named { self.names()? } else { None }, value }))
    }

    /// The shapes of names by `propertyNames`.
    fn names(&self) -> Result<Option<Vec<Shape<'j>>>> {
        let mut all: All<'j> = Some(Vec::new());
        for part in self.parts {
            if let Some(node) = part.get("propertyNames") {
                all = joined(all, gathered(self.document, &part.below(node, "propertyNames"))?);
            }
        }
        let Some(all) = all else { return Ok(Some(Vec::new())) };
        if all.is_empty() {
            return Ok(None);
        }
        let reader = Reader { document: self.document, keywords: self.keywords, parts: &all, left: self.left };
        if let Some(values) = reader.values(STRING)? {
            return Ok(Some(vec![Shape::Values(values)]));
        }
        for part in &all {
            for keyword in ["anyOf", "oneOf", "not", "if"] {
                if part.get(keyword).is_some() {
                    self.unsupported(part, keyword, " in propertyNames")?;
                }
            }
        }
        Ok(Some(reader.string()?.into_iter().collect()))
    }

    /// Whether the bounds on the number of members can be kept.
    fn check_members(&self, properties: &[Property], others: bool, (min, max): (u64, Option<u64>)) -> Result<()> {
        let required = properties.iter().filter(|property| property.required).count() as u64;
        let part = |keyword: &str| self.parts.iter().find(|part| part.get(keyword).is_some());
        // A name that comes twice is one member, so of free names no more than one can be asked for.
        let most = if properties.is_empty() { 1 } else { required + 1 };
        if let Some(part) = part("minProperties").filter(|_| min > most) {
            self.unsupported(part, "minProperties", &format!(" above {most} here"))?;
        }
        let fits = max.is_none_or(|max| if others { properties.is_empty() } else { properties.len() as u64 <= max });
        if let Some(part) = part("maxProperties").filter(|_| !fits) {
            self.unsupported(part, "maxProperties", " beside properties")?;
        }
        Ok(())
    }
}

/// Both lists together.
fn joined<'j>(all: All<'j>, more: All<'j>) -> All<'j> {
    let (mut all, more) = (all?, more?);
    for part in more {
        if !all.iter().any(|known| known.identity() == part.identity()) {
            all.push(part);
        }
    }
    Some(all)
}
