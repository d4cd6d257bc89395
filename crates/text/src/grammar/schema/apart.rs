//! Whether schemas exclude each other, so that "exactly one of them" is the same as "any of them". What is not proven is
//! taken to overlap.

use super::{Fields, Place};
use serde_json::Value;
use std::collections::HashMap;

/// Schemas that are looked at to tell the parts of all `oneOf` of a schema apart.
const LOOKS_MAX: usize = 400_000;
/// How deep they are looked into.
const DEPTH_MAX: usize = 12;

/// Kinds of values, a bit for each.
const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const WHOLE: u8 = 4;
/// Numbers that are not whole.
const BROKEN: u8 = 8;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;
const ALL: u8 = 127;

pub(super) struct Apart<'s> {
    root: &'s Value,
    looks: usize,
}

/// What is known of the values that a schema is for; all of it holds.
#[derive(Clone)]
struct Facts<'v> {
    kinds: u8,
    /// They are among these.
    values: Option<Vec<&'v Value>>,
    required: Vec<&'v str>,
    properties: HashMap<&'v str, Vec<&'v Value>>,
    /// Names of properties beside which there are no others.
    closed: Vec<&'v Fields>,
    /// Numbers from and to.
    range: (f64, f64),
    /// Characters of strings, from and to.
    length: (f64, f64),
    /// Items of arrays, from and to.
    items: (f64, f64),
    /// Alternatives, of each of which one holds.
    any: Vec<&'v [Value]>,
}

const ANY_RANGE: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

fn overlaps(a: (f64, f64), b: (f64, f64)) -> bool {
    a.0.max(b.0) <= a.1.min(b.1)
}

impl<'s> Apart<'s> {
    pub(super) fn new(root: &'s Value) -> Self {
        Self { root, looks: 0 }
    }

    /// The first two of some schemas that may be for the same value.
    pub(super) fn overlap(&mut self, parts: &[Value]) -> Option<(usize, usize)> {
        // Facts refer to the parts and to the root alike.
        let parts: Vec<Facts<'_>> = parts.iter().map(|part| Facts::of(part, self.root, &mut self.looks)).collect();
        let pairs = (0..parts.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
        let mut looks = self.looks;
        let root = self.root;
        let found = pairs.into_iter().find(|&(a, b)| !are_apart(&parts[a], &parts[b], root, &mut looks, 0));
        self.looks = looks;
        found
    }
}

impl<'v> Facts<'v> {
    fn of(schema: &'v Value, root: &'v Value, looks: &mut usize) -> Self {
        let mut facts = Self {
            kinds: ALL,
            values: None,
            required: Vec::new(),
            properties: HashMap::new(),
            closed: Vec::new(),
            range: ANY_RANGE,
            length: ANY_RANGE,
            items: ANY_RANGE,
            any: Vec::new(),
        };
        facts.add(schema, root, looks, 0);
        facts
    }

    fn add(&mut self, schema: &'v Value, root: &'v Value, looks: &mut usize, depth: usize) {
        *looks += 1;
        let fields = match schema {
            Value::Bool(false) => {
                self.kinds = 0;
                return;
            }
            Value::Object(fields) if depth < DEPTH_MAX && *looks < LOOKS_MAX => fields,
            _ => return,
        };
        let has_patterns = fields.contains_key("patternProperties");
        for (keyword, value) in fields {
            match (keyword.as_str(), value) {
                ("type", value) => self.kinds &= kinds_named(value),
                ("const", value) => self.only(vec![value]),
                ("enum", Value::Array(list)) => self.only(list.iter().collect()),
                ("required", Value::Array(names)) => self.required.extend(names.iter().filter_map(Value::as_str)),
                ("properties", Value::Object(properties)) => {
                    properties.iter().for_each(|(name, schema)| self.properties.entry(name).or_default().push(schema));
                }
                ("$ref", Value::String(reference)) => {
                    if let Some(target) = Place::of_reference(reference).and_then(|place| place.resolve(root)) {
                        self.add(target, root, looks, depth + 1);
                    }
                }
                ("allOf", Value::Array(list)) => list.iter().for_each(|part| self.add(part, root, looks, depth + 1)),
                ("anyOf" | "oneOf", Value::Array(list)) => self.any.push(list),
                _ => self.measure(keyword, value),
            }
        }
        if fields.get("additionalProperties") == Some(&Value::Bool(false)) && !has_patterns {
            static NONE: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Fields::new);
            self.closed.push(fields.get("properties").and_then(Value::as_object).unwrap_or(&NONE));
        }
    }

    /// Bounds. Those that exclude their own number are taken as if they did not.
    fn measure(&mut self, keyword: &str, value: &Value) {
        let Some(number) = value.as_f64() else { return };
        let bound = match keyword {
            "minimum" | "exclusiveMinimum" => &mut self.range.0,
            "maximum" | "exclusiveMaximum" => &mut self.range.1,
            "minLength" => &mut self.length.0,
            "maxLength" => &mut self.length.1,
            "minItems" => &mut self.items.0,
            "maxItems" => &mut self.items.1,
            _ => return,
        };
        *bound = if keyword.to_ascii_lowercase().contains("min") { bound.max(number) } else { bound.min(number) };
    }

    fn only(&mut self, values: Vec<&'v Value>) {
        self.kinds &= values.iter().fold(0, |kinds, value| kinds | kind(value));
        self.values = Some(match self.values.take() {
            Some(before) => before.into_iter().filter(|one| values.iter().any(|other| same(one, other))).collect(),
            None => values,
        });
    }

    /// Whether a value is certainly none of these.
    fn rejects(&self, value: &Value, root: &Value, looks: &mut usize, depth: usize) -> bool {
        let measured = match value {
            Value::Number(number) => number.as_f64().map(|number| (number, self.range)),
            Value::String(text) => Some((text.chars().count() as f64, self.length)),
            Value::Array(list) => Some((list.len() as f64, self.items)),
            _ => None,
        };
        let lacks = |fields: &Fields| self.required.iter().any(|name| !fields.contains_key(*name));
        let exceeds = |fields: &Fields| fields.keys().any(|name| self.closed.iter().any(|c| !c.contains_key(name)));
        kind(value) & self.kinds == 0
            || self.values.as_ref().is_some_and(|values| !values.iter().any(|one| same(one, value)))
            || measured.is_some_and(|(number, (from, to))| number < from || number > to)
            || value.as_object().is_some_and(|fields| {
                let forbids = |(name, value): (&String, &Value)| {
                    let schemas = self.properties.get(name.as_str()).into_iter().flatten();
                    schemas.into_iter().any(|schema| {
                        depth < DEPTH_MAX && Facts::of(schema, root, looks).rejects(value, root, looks, depth + 1)
                    })
                };
                lacks(fields) || exceeds(fields) || fields.iter().any(forbids)
            })
    }
}

fn are_apart(a: &Facts<'_>, b: &Facts<'_>, root: &Value, looks: &mut usize, depth: usize) -> bool {
    *looks += 1;
    if depth > DEPTH_MAX || *looks > LOOKS_MAX {
        return false;
    }
    for (one, other) in [(a, b), (b, a)] {
        if let Some(values) = &one.values {
            return values.iter().all(|value| one.rejects_own(value) || other.rejects(value, root, looks, depth));
        }
    }
    let both = a.kinds & b.kinds;
    let kinds = [NULL, BOOLEAN, WHOLE, BROKEN, STRING, ARRAY, OBJECT];
    let is_apart = |kind: u8, looks: &mut usize| match kind {
        WHOLE | BROKEN => !overlaps(a.range, b.range),
        STRING => !overlaps(a.length, b.length),
        ARRAY => !overlaps(a.items, b.items),
        OBJECT => are_objects_apart(a, b, root, looks, depth),
        _ => false,
    };
    if kinds.into_iter().filter(|kind| both & kind != 0).all(|kind| is_apart(kind, looks)) {
        return true;
    }
    // One of the alternatives holds, and each excludes the other schema.
    [(a, b), (b, a)].into_iter().any(|(one, other)| {
        one.any.iter().any(|list| {
            list.iter().all(|part| {
                let mut part = Facts::of(part, root, looks);
                part.kinds &= one.kinds;
                are_apart(&part, other, root, looks, depth + 1)
            })
        })
    })
}

impl Facts<'_> {
    /// Whether one of its values is of no kind that it may be.
    fn rejects_own(&self, value: &Value) -> bool {
        kind(value) & self.kinds == 0
    }
}

/// By a property that one of them requires, and that cannot be what both want of it.
fn are_objects_apart(a: &Facts<'_>, b: &Facts<'_>, root: &Value, looks: &mut usize, depth: usize) -> bool {
    let excludes = |facts: &Facts<'_>, name: &str| facts.closed.iter().any(|names| !names.contains_key(name));
    let mut names = a.required.iter().chain(&b.required);
    names.any(|name| {
        if excludes(a, name) || excludes(b, name) {
            return true;
        }
        let [of_a, of_b] = [a, b].map(|facts| facts.properties.get(*name).map_or(&[][..], Vec::as_slice));
        let mut pairs = of_a.iter().flat_map(|one| of_b.iter().map(move |other| (*one, *other)));
        pairs.any(|(one, other)| {
            let (one, other) = (Facts::of(one, root, looks), Facts::of(other, root, looks));
            are_apart(&one, &other, root, looks, depth + 1)
        })
    })
}

fn kinds_named(types: &Value) -> u8 {
    let one = |name: &Value| match name.as_str() {
        Some("null") => NULL,
        Some("boolean") => BOOLEAN,
        Some("integer") => WHOLE,
        Some("number") => WHOLE | BROKEN,
        Some("string") => STRING,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => 0,
    };
    match types {
        Value::Array(list) => list.iter().fold(0, |kinds, name| kinds | one(name)),
        name => one(name),
    }
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => WHOLE,
        Value::Number(_) => BROKEN,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// As JSON Schema compares: 1 is 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn are_told_apart(parts: Value) -> bool {
        let root = json!({"$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
            "dog": {"properties": {"kind": {"enum": ["dog", "puppy"]}}, "required": ["kind"], "type": "object"},
            "self": {"$ref": "#/$defs/self"},
        }});
        let Value::Array(list) = parts else { panic!() };
        Apart::new(&root).overlap(&list).is_none()
    }

    #[test]
    fn what_excludes_each_other_is_told_apart() {
        let closed = |name: &str| json!({"type": "object", "properties": {name: {}}, "required": [name], "additionalProperties": false});
        for parts in [
            json!([{"type": "string"}, {"type": ["number", "null"]}, {"type": "object"}]),
            json!([{"const": 1}, {"const": 2}, {"const": "1"}, {"const": null}]),
            json!([{"enum": ["a", "b"]}, {"enum": ["c"]}, {"type": "integer"}]),
            json!([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}, {"type": "null"}]),
            json!([{"$ref": "#/$defs/cat"}, {"allOf": [{"$ref": "#/$defs/dog"}, {"required": ["x"]}]}]),
            json!([closed("a"), closed("b")]),
            json!([{"type": "integer", "maximum": 3}, {"type": "number", "minimum": 4}]),
            json!([{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 4}]),
            json!([{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}]),
            json!([{"anyOf": [{"$ref": "#/$defs/cat"}, {"type": "string"}]}, {"$ref": "#/$defs/dog"}]),
            json!([false, {}]),
            json!([{"const": {"kind": "cat"}}, {"$ref": "#/$defs/dog"}]),
        ] {
            assert!(are_told_apart(parts.clone()), "{parts}");
        }
    }

    #[test]
    fn what_may_be_both_is_not() {
        let properties = |name: &str| json!({"type": "object", "properties": {name: {"const": 1}}});
        for parts in [
            json!([{"type": "integer"}, {"type": "number"}]),
            json!([{"type": "string"}, {"type": "string", "minLength": 1}]),
            json!([{"const": 1}, {"const": 1.0}]),
            json!([{"enum": [1, 2]}, {"type": "integer", "minimum": 2}]),
            json!([properties("a"), properties("b")]),
            // Whoever leaves `kind` out is both.
            json!([{"properties": {"kind": {"const": 1}}}, {"properties": {"kind": {"const": 2}}}]),
            // And so is what is no object.
            json!([{"properties": {"k": {"const": 1}}, "required": ["k"]}, {"properties": {"k": {"const": 2}}, "required": ["k"]}]),
            json!([{"$ref": "#/$defs/self"}, {"$ref": "#/$defs/self"}]),
            json!([{"type": "number", "maximum": 3}, {"type": "number", "minimum": 3}]),
            json!([{}, {"type": "null"}]),
            json!([true, {"type": "null"}]),
            json!([{"type": "array"}, {"type": "array", "items": {"type": "string"}}]),
            json!([{"$ref": "#/$defs/none"}, {"type": "null"}]),
        ] {
            assert!(!are_told_apart(parts.clone()), "{parts}");
        }
    }
}
