//! Qwen and Hermes: `{"name": …, "arguments": {…}}` between tags; Qwen3-Coder's `<function=NAME><parameter=K>V</parameter>`
//! too, which stands between the same.

use super::arguments::object_call;
use super::{ToolCall, Tools};
use serde_json::Map;

pub(super) fn call(body: &str, tools: &Tools) -> Option<ToolCall> {
    match body.trim_start().strip_prefix("<function=") {
        Some(rest) => coder(rest, tools),
        None => object_call(body, tools),
    }
}

fn coder(body: &str, tools: &Tools) -> Option<ToolCall> {
    let (name, mut rest) = body.split_once('>')?;
    let name = name.trim();
    let mut arguments = Map::new();
    while let Some(at) = rest.find("<parameter=") {
        let (key, after) = rest[at + "<parameter=".len()..].split_once('>')?;
        let (value, after) = after.split_once("</parameter>").or_else(|| after.split_once("</function>"))?;
        // A line of its own is the template's form, not the value's.
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.trim().into(), tools.value(name, key.trim(), value));
        rest = after;
    }
    tools.has(name).then(|| ToolCall { name: name.into(), arguments })
}
