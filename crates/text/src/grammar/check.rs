//! What is not even given to the compiler: schemas and grammars whose size, or whose kind, would keep it busy for longer
//! than anybody waits. The compiler's own limits do not see them.

use super::GrammarError;
use super::source::at_most;
use crate::limits;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt::Write;

/// Checks a schema's size, and that it refers to nothing elsewhere.
pub(super) fn check_size(schema: &Value) -> Result<(), GrammarError> {
    measure(schema, 0, &mut 0, false)
}

/// Checks that, and what it puts together. References may lead far: it wants the compiler's stack.
pub(super) fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    check_size(schema)?;
    // Definitions are looked at where something refers to them: others are not compiled.
    Joins { root: schema, known: HashMap::new() }.weigh(schema).map(drop)
}

/// Keywords whose values are schemas by name: the names are no keywords.
const SCHEMAS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// With `is_data`, it is a value and no schema.
fn measure(schema: &Value, depth: usize, values: &mut usize, is_data: bool) -> Result<(), GrammarError> {
    *values += 1;
    at_most("JSON schema, values", *values, limits::SCHEMA_VALUES_MAX)?;
    at_most("JSON schema, levels", depth, limits::SCHEMA_DEPTH_MAX)?;
    match schema {
        Value::Array(list) => list.iter().try_for_each(|value| measure(value, depth + 1, values, is_data)),
        Value::Object(fields) if is_data => {
            fields.values().try_for_each(|value| measure(value, depth + 1, values, true))
        }
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref")
                && !reference.starts_with('#')
            {
                let shown = crate::error::shorten(reference);
                let message = format!("`$ref` {shown:?}: only references inside the schema (`#/…`) are looked up");
                return Err(GrammarError::Invalid(message));
            }
            if let Some(Value::Object(patterns)) = fields.get("patternProperties") {
                at_most("`patternProperties`", patterns.len(), limits::SCHEMA_PATTERN_PROPERTIES_MAX)?;
            }
            for (key, value) in fields {
                if let (Value::Object(schemas), true) = (value, SCHEMAS.contains(&key.as_str())) {
                    *values += 1;
                    schemas.values().try_for_each(|schema| measure(schema, depth + 2, values, false))?;
                    continue;
                }
                exact(key, value)?;
                let is_data = ["const", "enum", "default", "examples"].contains(&key.as_str());
                measure(value, depth + 1, values, is_data)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The compiler's numbers are of 64-bit floating point: an integer beyond what that holds exactly would become another.
/// The ends of 64-bit integers as bounds, which schemas are often made with, lose nothing.
fn exact(key: &str, value: &Value) -> Result<(), GrammarError> {
    const EXACT: f64 = (1u64 << 53) as f64;
    let is_bound = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"].contains(&key);
    let values = match value {
        Value::Array(list) if key == "enum" => list.as_slice(),
        one if is_bound || key == "const" => std::slice::from_ref(one),
        _ => return Ok(()),
    };
    let is_end =
        |value: &Value| is_bound && [Some(i64::MIN), Some(i64::MAX)].contains(&value.as_i64()) && value.is_i64();
    let lost = |value: &&Value| value.as_f64().is_some_and(|number| number.abs() >= EXACT) && !is_end(value);
    match values.iter().find(lost) {
        Some(value) => Err(GrammarError::Invalid(format!("`{key}` {value}: numbers from 2^53 on are not told apart"))),
        None => Ok(()),
    }
}

/// Keywords that say nothing of values.
const NOTES: [&str; 10] =
    ["$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description", "examples", "title"];

/// What a schema holds of expressions that cost where they are put together.
#[derive(Clone, Copy, Default)]
struct Weight {
    expressions: usize,
    /// The product of all multiples; 0: there are none.
    multiples: usize,
}

impl Weight {
    fn and(self, other: Self) -> Self {
        let multiples = match (self.multiples, other.multiples) {
            (0, one) | (one, 0) => one,
            (a, b) => a.saturating_mul(b),
        };
        Self { expressions: self.expressions.saturating_add(other.expressions), multiples }
    }
}

struct Joins<'s> {
    root: &'s Value,
    /// By reference; those that are being looked at count as nothing.
    known: HashMap<&'s str, Weight>,
}

impl<'s> Joins<'s> {
    fn weigh(&mut self, schema: &'s Value) -> Result<Weight, GrammarError> {
        let mut weight = Weight::default();
        match schema {
            Value::Array(list) => {
                for value in list {
                    weight = weight.and(self.weigh(value)?);
                }
            }
            Value::Object(fields) => {
                for (key, value) in fields {
                    let part = match (key.as_str(), value) {
                        ("$defs" | "definitions" | "enum" | "const" | "default" | "examples", _) => continue,
                        ("pattern" | "format", Value::String(_)) => Weight { expressions: 1, multiples: 0 },
                        ("multipleOf", Value::Number(number)) => {
                            let multiples = significant(&number.to_string());
                            at_most("`multipleOf`, in its last digit", multiples, limits::SCHEMA_MULTIPLE_MAX)?;
                            Weight { expressions: 1, multiples }
                        }
                        ("$ref", Value::String(reference)) => self.referred(reference)?,
                        _ => self.weigh(value)?,
                    };
                    weight = weight.and(part);
                }
                if joins(fields) {
                    let what = "patterns, formats and multiples that are put together by `allOf` or beside `$ref`";
                    at_most(what, weight.expressions, limits::SCHEMA_JOINED_MAX)?;
                    at_most("product of multiples", weight.multiples, limits::SCHEMA_MULTIPLE_MAX)?;
                }
            }
            _ => {}
        }
        Ok(weight)
    }

    fn referred(&mut self, reference: &'s str) -> Result<Weight, GrammarError> {
        if let Some(weight) = self.known.get(reference) {
            return Ok(*weight);
        }
        self.known.insert(reference, Weight::default());
        let mut target = Some(self.root);
        for part in reference.trim_start_matches('#').split('/').filter(|part| !part.is_empty()) {
            target = target.and_then(|value| match value {
                Value::Array(list) => part.parse::<usize>().ok().and_then(|at| list.get(at)),
                value => value.get(part),
            });
        }
        // What is not there is the compiler's to say.
        let weight = target.map(|target| self.weigh(target)).transpose()?.unwrap_or_default();
        self.known.insert(reference, weight);
        Ok(weight)
    }
}

/// Whether a schema's parts hold for the same value.
fn joins(fields: &Map<String, Value>) -> bool {
    let has_alternatives = ["$ref", "anyOf", "oneOf"].iter().any(|key| fields.contains_key(*key));
    let others = fields.keys().filter(|key| !NOTES.contains(&key.as_str())).count();
    fields.contains_key("allOf") || (has_alternatives && others > 1)
}

/// A number without its point and its zeros: what its multiples are counted in.
fn significant(number: &str) -> usize {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').parse().unwrap_or(if digits.trim_matches('0').is_empty() { 0 } else { usize::MAX })
}

/// Checks what a grammar holds of schemas, and of what costs most; gives it back with its schemas as the compiler knows
/// them.
pub(super) fn checked_grammar(grammar: &str) -> Result<String, GrammarError> {
    let mut checked = String::with_capacity(grammar.len());
    let mut copied = 0;
    let mut rest = grammar;
    let mut joined = 0;
    while let Some(at) = rest.find(['"', '/', '&', '%', '#']) {
        rest = &rest[at..];
        let after = &rest[1..];
        rest = match rest.as_bytes()[0] {
            b'&' => {
                joined += 1;
                at_most("`&` in a grammar", joined, limits::GRAMMAR_JOINED_MAX)?;
                after
            }
            b'#' => behind_line(after),
            b'/' if after.starts_with('/') => behind_line(after),
            mark @ (b'"' | b'/') => behind_mark(after, mark),
            _ if after.starts_with("json") => {
                let text = &after["json".len()..];
                let Some((schema, behind)) = embedded(text) else {
                    rest = text;
                    continue;
                };
                checked.push_str(&grammar[copied..grammar.len() - text.len()]);
                let _ = write!(checked, " {}", prepared_in_grammar(&schema)?);
                copied = grammar.len() - behind.len();
                behind
            }
            _ if after.starts_with("regex") => {
                let text = &after["regex".len()..];
                let Some((parts, behind)) = embedded(text) else {
                    rest = text;
                    continue;
                };
                let bytes = parts.to_string().len();
                at_most("text whose parts are allowed, bytes", bytes, limits::GRAMMAR_PARTS_BYTES_MAX)?;
                behind
            }
            _ => after,
        };
    }
    checked.push_str(&grammar[copied..]);
    Ok(checked)
}

/// What it asks of space stays.
fn prepared_in_grammar(schema: &Value) -> Result<Value, GrammarError> {
    let mut prepared = super::source::prepared(schema)?;
    if let (Some(fields), Some(options)) = (prepared.as_object_mut(), schema.get("x-guidance")) {
        fields.insert("x-guidance".into(), options.clone());
    }
    Ok(prepared)
}

fn behind_line(text: &str) -> &str {
    text.find('\n').map_or("", |end| &text[end..])
}

/// Behind the mark that closes a text or an expression, in which a backslash takes away the meaning of what follows.
fn behind_mark(text: &str, mark: u8) -> &str {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            byte if byte == mark => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

/// The JSON that a grammar goes on with, and what comes behind it; `None`: it is none, which the compiler says.
fn embedded(text: &str) -> Option<(Value, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_put_together_is_counted() {
        let patterns = |count: usize| (0..count).map(|i| json!({"pattern": format!("a{i}")})).collect::<Vec<_>>();
        let fields =
            |count: usize| (0..count).map(|i| (format!("p{i}"), json!({"pattern": "a"}))).collect::<Map<_, _>>();
        assert!(check_schema(&json!({"allOf": patterns(16)})).is_ok());
        assert!(check_schema(&json!({"allOf": patterns(17)})).is_err());
        assert!(check_schema(&json!({"anyOf": patterns(100)})).is_ok());
        assert!(check_schema(&json!({"properties": fields(100)})).is_ok());
        assert!(check_schema(&json!({"pattern": "x", "anyOf": patterns(17)})).is_err());
        let defs = json!({"a": {"properties": fields(20)}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}});
        assert!(check_schema(&json!({"$defs": defs, "$ref": "#/$defs/a", "title": "x"})).is_ok());
        assert!(check_schema(&json!({"$defs": defs, "$ref": "#/$defs/b"})).is_err());
        assert!(check_schema(&json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})).is_ok());
        // Each doubles what the next one holds.
        let double = |i: usize| json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"$ref": format!("#/$defs/d{}", i + 1)}]});
        let mut bomb: Map<String, Value> = (0..40).map(|i| (format!("d{i}"), double(i))).collect();
        bomb.insert("d40".into(), json!({"pattern": "a"}));
        assert!(check_schema(&json!({"$defs": bomb, "$ref": "#/$defs/d0"})).is_err());
    }

    #[test]
    fn names_of_properties_are_no_keywords() {
        let patterns: Map<String, Value> = (0..101).map(|i| (format!("^{i}"), json!({}))).collect();
        let large = json!({"patternProperties": patterns});
        for name in ["default", "enum", "const", "x"] {
            assert!(check_size(&json!({"properties": {name: large}})).is_err(), "{name}");
            assert!(check_size(&json!({"$defs": {name: {"$ref": "http://x"}}})).is_err(), "{name}");
            assert!(check_size(&json!({"properties": {name: {"maximum": u64::MAX}}})).is_err(), "{name}");
        }
        assert!(check_size(&json!({"default": large, "examples": [{"$ref": "http://x"}]})).is_ok());
    }

    #[test]
    fn multiples_are_states() {
        for (number, is_taken) in
            [("5", true), ("0.01", true), ("1000000", true), ("1000003", false), ("1.23456789", false)]
        {
            let schema: Value = serde_json::from_str(&format!("{{\"multipleOf\": {number}}}")).unwrap();
            assert_eq!(check_schema(&schema).is_ok(), is_taken, "{number}");
        }
        assert!(check_schema(&json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]})).is_err());
    }

    #[test]
    fn grammars_are_looked_through() {
        let and = |count: usize| vec!["/a/"; count + 1].join(" & ");
        assert!(checked_grammar(&format!("start: A\nA: {}", and(8))).is_ok());
        assert!(checked_grammar(&format!("start: A\nA: {}", and(9))).is_err());
        let text = "&".repeat(50);
        assert!(checked_grammar(&format!("start: \"\\\"{text}\" /\\/{text}/ // {text}\n# {text}\n")).is_ok());
        assert!(checked_grammar("start: %json {\"multipleOf\": 1000003}").is_err());
        assert!(checked_grammar("start: %json {\"$ref\": \"http://a/b\"} \"x\"").is_err());
        assert!(checked_grammar("start: %json {\"type\": \"integer\"} \"x\"").is_ok());
        let long = "x".repeat(20_000);
        assert!(checked_grammar(&format!("start: %regex {{\"substring_chars\": \"{long}\"}}")).is_err());
        assert!(checked_grammar("start: \"a").is_ok());
    }
}
