//! Arguments of calls: which tools a request offers, and what types their parameters have.

use super::ToolCall;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The tools of a request: their names, and the JSON schemas of their parameters.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    parameters: HashMap<String, Value>,
}

impl Tools {
    /// From the list of a request: `[{"type": "function", "function": {"name", "parameters"}}]`, or the functions alone.
    /// What is no tool is left out.
    pub fn of(list: &[Value]) -> Self {
        let named = list.iter().filter_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?;
            Some((name.to_string(), function.get("parameters").cloned().unwrap_or(Value::Null)))
        });
        Self { parameters: named.collect() }
    }

    /// Whether a tool of this name may be called: any where the request does not say.
    pub(super) fn has(&self, name: &str) -> bool {
        !name.is_empty() && (self.parameters.is_empty() || self.parameters.contains_key(name))
    }

    /// Whether a value that stands as bare text is a string, whatever it looks like.
    pub(crate) fn reads_as_text(&self, tool: &str, key: &str) -> bool {
        self.value(tool, key, "0").is_string()
    }

    /// A value that stands as bare text: a string where the schema says so or where it is nothing else, and JSON otherwise.
    pub(super) fn value(&self, tool: &str, key: &str, text: &str) -> Value {
        let schema = self.parameters.get(tool).and_then(|p| p.get("properties")?.get(key));
        let is = |ty: &str| schema.is_some_and(|schema| allows(schema, ty));
        if is("null") && text.trim() == "null" {
            return Value::Null;
        }
        if is("string") {
            return Value::String(text.into());
        }
        match serde_json::from_str(text) {
            // A string in quotes where a schema wants no string, or where there is none, is what was meant.
            Ok(value) => value,
            Err(_) => Value::String(text.into()),
        }
    }
}

/// Whether a schema's `type`, or that of one of its alternatives, is or holds `ty`; an `enum` of strings is of strings.
fn allows(schema: &Value, ty: &str) -> bool {
    let named = match schema.get("type") {
        Some(Value::String(name)) => name == ty,
        Some(Value::Array(names)) => names.iter().any(|name| name == ty),
        _ => {
            ty == "string"
                && schema.get("enum").and_then(Value::as_array).is_some_and(|e| e.iter().all(Value::is_string))
        }
    };
    let alternatives = ["anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
    // One level: a schema may refer to itself, but its text is finite, and deeper ones say nothing of a plain value.
    named || alternatives.filter_map(|schema| schema.get("type")).any(|name| name == ty)
}

/// A call of a tool by name, with arguments as a JSON object in text, or none at all.
pub(super) fn json_call(name: &str, arguments: &str, tools: &Tools) -> Option<ToolCall> {
    let name = name.trim();
    let arguments = match arguments.trim() {
        "" => Map::new(),
        text => object(serde_json::from_str(text).ok()?)?,
    };
    tools.has(name).then(|| ToolCall { name: name.into(), arguments })
}

/// A call that is a JSON object: the name under `name`, the arguments under one of the names that models use.
pub(super) fn object_call(text: &str, tools: &Tools) -> Option<ToolCall> {
    let call: Value = serde_json::from_str(text.trim()).ok()?;
    let name = call.get("name")?.as_str()?;
    let arguments = ["arguments", "parameters"].into_iter().find_map(|key| call.get(key)).cloned();
    let arguments = arguments.map_or_else(|| Some(Map::new()), object)?;
    tools.has(name).then(|| ToolCall { name: name.into(), arguments })
}

/// The object, or the one that a string spells; none for null.
fn object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(map) => Some(map),
        Value::Null => Some(Map::new()),
        Value::String(text) if text.trim().is_empty() => Some(Map::new()),
        Value::String(text) => match serde_json::from_str(&text).ok()? {
            Value::Object(map) => Some(map),
            _ => None,
        },
        _ => None,
    }
}
