//! Llama 3: `{"name": …, "parameters": {…}}` as the whole answer; several with semicolons between them. Behind a tag also
//! `NAME.call(KEY="VALUE", …)`, as the tools that come with the model are called.

use super::arguments::object_call;
use super::{ToolCall, Tools};
use serde_json::{Deserializer, Map, Value};

/// What stands behind the tag.
pub(super) fn tagged(text: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    bare(text, tools).or_else(|| built_in(text, tools).map(|call| vec![call]))
}

pub(super) fn bare(text: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        values.next()?.ok()?;
        let end = values.byte_offset();
        calls.push(object_call(&rest[..end], tools)?);
        rest = rest[end..].trim_start().trim_start_matches(';').trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}

/// Values stand in quotes, without escapes.
fn built_in(text: &str, tools: &Tools) -> Option<ToolCall> {
    let (name, rest) = text.trim().split_once(".call(")?;
    let mut rest = rest.strip_suffix(')')?;
    let mut arguments = Map::new();
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = after.split_once("\", ").or_else(|| Some((after.strip_suffix('"')?, "")))?;
        arguments.insert(key.trim().into(), tools.value(name, key.trim(), value));
        rest = after;
    }
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (is_name && tools.has(name)).then(|| ToolCall { name: name.into(), arguments })
}
